#ifndef MP_REPACK_H
#define MP_REPACK_H

#include "vmm/format/checkpoint.h"

/*
 * Rewrites a model directory as standard safetensors files in the order in which a pager reads:
 * gate, up and down of an expert together, experts in the order of layers, each at a multiple of
 * MP_REPACK_ALIGN bytes of its file. Loading an expert is then one aligned read. Other tensors
 * follow the experts, larger element types first, so that every tensor is aligned to its type.
 * docs/repack.md describes layout and limits.
 *
 * Experts whose size is no multiple of the alignment are followed by a tensor of zeros called
 * MP_PAD_PREFIX + number (engine/model/weights.h), because the format allows no holes. Experts that
 * are fused per layer are written one by one, under the names of published models.
 *
 * With `slices` each expert is stored in slices, each with its rows of gate and up and its columns
 * of down adjacent, so that one slice is one aligned read. Such a directory has another name for
 * config.json (engine/model/config.h) and is for moepager only; repacking it with one slice
 * restores the ordinary model.
 *
 * With `mxfp4` experts are rounded, and written for all of a layer in tensors of nibbles and
 * scales, under the names of gpt-oss's own checkpoints; config.json says so. Only directories of
 * that family can be so.
 *
 * Files are written as "<name>.part" and verified by reading before they are renamed;
 * MP_REPACK_MANIFEST lists the complete ones. After a failure or an interruption the same call
 * verifies those files and continues after the last complete one.
 *
 * Memory: three buffers of 8 MiB and tables of about 250 bytes per tensor. One thread; blocks.
 */
#define MP_REPACK_ALIGN 4096u
#define MP_REPACK_MANIFEST "moepager-repack.json"
#define MP_REPACK_SHARD_BYTES_DEFAULT (UINT64_C(5) << 30)

struct mp_repack_config {
    const char *model, *out; /* directories; `out` is made if it does not exist */
    uint32_t slices;         /* of an expert, 0 or 1: whole */
    uint64_t shard_bytes;    /* most tensor bytes per file; one expert or tensor may exceed it */
    bool mxfp4;              /* experts of gpt-oss become MXFP4, as its own checkpoints have them */
    bool force;              /* overwrite a model in `out`, or write among other files */
    const struct mp_progress *progress; /* or NULL; false from it: MP_ERR_CANCELED */
};

struct mp_repack_report {
    uint32_t shards, shards_kept; /* kept: complete from an earlier run */
    uint32_t experts;
    uint64_t expert_bytes, other_bytes, pad_bytes;
    uint64_t written_bytes; /* by this run, without copied files */
    /* Aligned reads that load every expert once, and their bytes. */
    uint64_t reads_before, reads_after, read_bytes_before, read_bytes_after;
    uint32_t files_copied;          /* config.json, tokenizer, ... */
    bool fused;                     /* the experts were fused per layer */
    uint32_t slices_before, slices; /* of an expert */
    bool exact; /* results in these slices are bit-identical to those of whole experts */
};

/*
 * MP_ERR_CONFIG, E_SLICES: the experts cannot be divided into so many slices. E_REPACK_TARGET:
 * `out` is the model itself, or holds other things and `force` is not given, or another process
 * writes it. MP_ERR_IO: E_REPACK_SPACE if the disk has too little room, E_REPACK_WRITE,
 * E_REPACK_VERIFY if bytes read back differ, and those of reading. MP_ERR_MODEL as
 * mp_checkpoint_open(), mp_model_config_load(), mp_weights_describe(); E_UNSUPPORTED for experts
 * that have no such form, E_CONVERT_VALUE for a weight that is rounded and not finite. After a
 * failure `out` has no weights that look complete, except those that existed before and are
 * unchanged.
 */
enum mp_status mp_repack(const struct mp_repack_config *config,
                         struct mp_repack_report *report_p) MP_MUST_CHECK;

#endif
