#ifndef MP_INTERPOSE_EXPERTS_H
#define MP_INTERPOSE_EXPERTS_H

#include "vmm/space/space.h"

/*
 * Which bytes of a model's files are routed experts: found by the names of tensors, whatever the
 * architecture and the type of their elements. GGUF, whole or split: blk.N.ffn_gate_exps.weight and
 * its kin hold the experts of a layer one after the other, so an expert is an equal part of each.
 * In safetensors files the same holds for model.layers.N.mlp.experts.gate_up_proj and its kin. What
 * has another name, or experts of less than two pages, is dense. So are shared experts.
 *
 * A table of rows that a token reads a few of by number (per-layer and n-gram embeddings), which
 * may be a third of a model, is neither: it stays the file's, page by page, and is not read as a
 * whole.
 */
#define MP_BLOCKS_MAX 4096u

struct mp_expert_tensor {
    uint32_t file, layer;  /* layer: counted without the dense ones */
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
    uint32_t top_k;       /* experts of a token, as the model's description says */
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
 * Look into the file at `path`, and the parts that belong to it. MP_ERR_UNSUPPORTED, without a
 * text: there are no experts in it that could be paged. MP_ERR_MODEL and others: it is not what it
 * seems to be.
 */
enum mp_status mp_experts_open(const char *path, bool safetensors,
                               struct mp_experts *experts) MP_MUST_CHECK;

/* Accepts a zeroed one. */
void mp_experts_close(struct mp_experts *experts);

/* Of all tables. */
uint64_t mp_experts_table_bytes(const struct mp_experts *experts);

/* The tensor in which byte `offset_bytes` of a file lies; NULL: in none with experts. */
const struct mp_expert_tensor *mp_experts_find(const struct mp_experts *experts, uint32_t file,
                                               uint64_t offset_bytes);

#endif
