#ifndef MP_INTERPOSE_EXPERTS_H
#define MP_INTERPOSE_EXPERTS_H

#include "vmm/format/expert_names.h"
#include "vmm/space/space.h"

/*
 * Finds the bytes of routed experts in a model's files by the names of tensors, for any
 * architecture and element type. GGUF, whole or split: tensors such as blk.N.ffn_gate_exps.weight
 * contain all experts of a layer one after the other, so an expert is an equal part of each. The
 * same holds for tensors such as model.layers.N.mlp.experts.gate_up_proj in safetensors files.
 * Tensors with other names, or with experts smaller than two pages, count as dense. So are shared
 * experts.
 *
 * A table of rows that a token reads a few of by number (per-layer and n-gram embeddings), which
 * may be a third of a model, is neither: it stays the file's, page by page, and is not read as a
 * whole.
 */
#define MP_BLOCKS_MAX 4096u

struct mp_expert_tensor {
    uint32_t file, layer; /* layer: number among MoE layers */
    enum mp_expert_part part;
    uint32_t piece;        /* number of its pieces in their units: those that are used first */
    uint64_t offset_bytes; /* in the file */
    uint64_t expert_bytes;
};

/* How a router's products become what its experts are chosen by. */
enum mp_gating { MP_GATING_SOFTMAX, MP_GATING_SIGMOID, MP_GATING_SQRT_SOFTPLUS };

/* The router of a layer, (experts, hidden), and what belongs to it; bytes 0: there is none. */
struct mp_router {
    struct mp_piece weight;
    uint32_t type;              /* of its numbers, as GGUF counts types */
    struct mp_piece bias;       // (experts) F32: added to the products
    struct mp_piece correction; // (experts) F32: added to the scores, for the choice only
    struct mp_piece norm;       // (hidden) F32: of the layer's input
};

struct mp_experts {
    struct mp_files *files;
    uint32_t layers, experts;
    uint32_t top_k;       /* experts of a token, from the model's metadata */
    uint32_t *layer_of;   /* (MP_BLOCKS_MAX): of a block; UINT32_MAX: it has no experts */
    uint64_t *data_begin; /* (files): the first byte of a tensor */
    struct mp_expert_tensor *tensors; /* by file and offset */
    uint32_t tensor_count;
    struct mp_piece *tables; /* of rows, by file and offset, or NULL */
    uint32_t table_count;
    struct mp_unit *units; /* (layers, experts) */
    uint32_t hidden;       /* channels of a router's input; 0: no router is known */
    enum mp_gating gating;
    struct mp_router *routers; /* (layers), or NULL */
    void *owner;               /* of files */
    void (*close)(void *owner);
};

/*
 * Inspect the file at `path` and the parts that belong to it. MP_ERR_UNSUPPORTED, without a text:
 * it has no experts that could be paged. MP_ERR_MODEL and others: the file is invalid or cannot be
 * read.
 */
enum mp_status mp_experts_open(const char *path, bool safetensors,
                               struct mp_experts *experts) MP_MUST_CHECK;

/* Accepts a zeroed one. */
void mp_experts_close(struct mp_experts *experts);

/* Of all tables. */
uint64_t mp_experts_table_bytes(const struct mp_experts *experts);

/* The expert tensor that contains byte `offset_bytes` of a file; NULL: none. */
const struct mp_expert_tensor *mp_experts_find(const struct mp_experts *experts, uint32_t file,
                                               uint64_t offset_bytes);

#endif
