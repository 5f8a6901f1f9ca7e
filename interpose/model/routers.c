/*
 * The routers of a GGUF file, by the names of their tensors: what a layer chooses its experts with,
 * so that its choice can be guessed before it is made. They are a part of what every token reads.
 */
#include <stdio.h>
#include <stdlib.h>

#include "interpose/model/experts_int.h"
#include "vmm/base/error.h"

/* The file's numbers of types. */
#define TYPE_F32 0
#define TYPE_F16 1
#define TYPE_BF16 30

static const struct mp_gguf_tensor *find(const struct mp_gguf *gguf, uint32_t block,
                                         const char *part)
{
    char name[64];

    snprintf(name, sizeof(name), "blk.%u.%s", block, part);
    return mp_gguf_find(gguf, name);
}

static struct mp_piece piece_of(const struct mp_gguf_tensor *tensor)
{
    return (struct mp_piece){ .file = tensor->file,
                              .offset_bytes = tensor->offset_bytes,
                              .bytes = tensor->bytes };
}

/* `count` floats; none if there is no such tensor, or another one by that name. */
static struct mp_piece find_floats(const struct mp_gguf *gguf, uint32_t block, const char *part,
                                   uint64_t count)
{
    const struct mp_gguf_tensor *tensor = find(gguf, block, part);

    if (tensor == NULL || tensor->type->number != TYPE_F32 || tensor->bytes != 4 * count)
        return (struct mp_piece){ 0 };
    return piece_of(tensor);
}

/* The norm that gives a layer of experts its input: of the names that there are, the first. */
static struct mp_piece find_norm(const struct mp_gguf *gguf, uint32_t block, uint64_t hidden)
{
    const struct mp_piece norm = find_floats(gguf, block, "ffn_norm.weight", hidden);

    return norm.bytes > 0 ? norm : find_floats(gguf, block, "post_attention_norm.weight", hidden);
}

/* Where a table says which experts a token has, no router chooses. One with a scale of its own has
 * another input than the experts. */
static bool is_plain(const struct mp_gguf *gguf, uint32_t block)
{
    return find(gguf, block, "ffn_gate_tid2eid.weight") == NULL &&
           find(gguf, block, "ffn_gate_inp.scale") == NULL;
}

static void take_router(const struct mp_gguf *gguf, uint32_t block, struct mp_experts *experts)
{
    struct mp_router *router = &experts->routers[experts->layer_of[block]];
    const struct mp_gguf_tensor *weight = find(gguf, block, "ffn_gate_inp.weight");
    const uint32_t type = weight != NULL ? weight->type->number : TYPE_F32;

    if (weight == NULL || weight->dims != 2 || weight->shape[1] != experts->experts ||
        weight->shape[0] > UINT32_MAX || !is_plain(gguf, block) ||
        (type != TYPE_F32 && type != TYPE_F16 && type != TYPE_BF16))
        return;
    if (experts->hidden == 0)
        experts->hidden = (uint32_t)weight->shape[0];
    if (weight->shape[0] != experts->hidden)
        return;
    *router = (struct mp_router){
        .weight = piece_of(weight),
        .type = type,
        .bias = find_floats(gguf, block, "ffn_gate_inp.bias", experts->experts),
        .correction = find_floats(gguf, block, "exp_probs_b.bias", experts->experts),
        .norm = find_norm(gguf, block, experts->hidden),
    };
}

/* As the description says: 2 is a sigmoid and 4 the root of a softplus. Of old it says nothing
 * where corrections belong to sigmoids. */
static enum mp_gating find_gating(const struct mp_gguf *gguf, const struct mp_experts *experts)
{
    uint64_t number;

    if (mp_experts_get_u64(gguf, "expert_gating_func", &number))
        return number == 2   ? MP_GATING_SIGMOID
               : number == 4 ? MP_GATING_SQRT_SOFTPLUS
                             : MP_GATING_SOFTMAX;
    for (uint32_t l = 0; l < experts->layers; l++) {
        if (experts->routers[l].correction.bytes > 0)
            return MP_GATING_SIGMOID;
    }
    return MP_GATING_SOFTMAX;
}

void mp_experts_find_routers(const struct mp_gguf *gguf, struct mp_experts *experts)
{
    experts->routers = calloc(experts->layers, sizeof(*experts->routers));
    if (experts->routers == NULL)
        return;
    for (uint32_t block = 0; block < MP_BLOCKS_MAX; block++) {
        if (experts->layer_of[block] != UINT32_MAX)
            take_router(gguf, block, experts);
    }
    experts->gating = find_gating(gguf, experts);
}
