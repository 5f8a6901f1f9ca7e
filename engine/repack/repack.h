#ifndef MP_REPACK_H
#define MP_REPACK_H

#include "vmm/format/checkpoint.h"

/*
 * Writes a model directory anew, as standard safetensors files in the order in which a pager reads:
 * gate, up and down of an expert together, experts in the order of layers, each at a multiple of
 * MP_REPACK_ALIGN bytes of its file. Loading an expert is then one aligned read. What is not an
 * expert stands behind the experts, larger element types first, so that every tensor is aligned to
 * its type. docs/repack.md describes layout and limits.
 *
 * Experts whose size is no multiple of the alignment are followed by a tensor of zeros called
 * MP_PAD_PREFIX + number (engine/model/weights.h), because the format allows no holes. Experts that
 * are fused per layer are written one by one, under the names of published models.
 *
 * With `slices` each expert is stored in slices, each with its rows of gate and up and its columns
 * of down side by side, so that one slice is one aligned read. Such a directory has its config.json
 * under another name (engine/model/config.h) and is for moepager only; repacking it with one slice
 * gives back the ordinary model.
 *
 * Files are written under other names ("<name>.part") and read back before they get theirs; which
 * of them are whole stands in MP_REPACK_MANIFEST. After a failure or an interruption the same call
 * goes on where the last whole file ended, once it has read those files and found them right.
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
    bool force;              /* write over a model, or among other files, in `out` */
    const struct mp_progress *progress; /* or NULL; false from it: MP_ERR_CANCELED */
};

struct mp_repack_report {
    uint32_t shards, shards_kept; /* kept: whole from an earlier run */
    uint32_t experts;
    uint64_t expert_bytes, other_bytes, pad_bytes;
    uint64_t written_bytes; /* by this run, without small files */
    /* Aligned reads that load every expert once, and their bytes. */
    uint64_t reads_before, reads_after, read_bytes_before, read_bytes_after;
    uint32_t files_copied;          /* config.json, tokenizer, ... */
    bool fused;                     /* the experts were fused per layer */
    uint32_t slices_before, slices; /* of an expert */
    bool exact; /* executed in these slices an expert gives the same bits as whole */
};

/*
 * MP_ERR_CONFIG, E_SLICES: the experts do not have so many slices. E_REPACK_TARGET: `out` is the
 * model itself, or holds other things and `force` is not given, or another process writes it.
 * MP_ERR_IO: E_REPACK_SPACE if the disk has too little room, E_REPACK_WRITE, E_REPACK_VERIFY if
 * bytes read back differ, and those of reading. MP_ERR_MODEL as mp_checkpoint_open(),
 * mp_model_config_load(), mp_weights_describe(). After a failure `out` has no weights that look
 * whole, unless they were there before and are untouched.
 */
enum mp_status mp_repack(const struct mp_repack_config *config,
                         struct mp_repack_report *report_p) MP_MUST_CHECK;

#endif
