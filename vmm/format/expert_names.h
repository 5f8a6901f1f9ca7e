#ifndef MP_FORMAT_EXPERT_NAMES_H
#define MP_FORMAT_EXPERT_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/compiler.h"

/*
 * Parses names of tensors with routed experts, in files of any model family:
 *
 *     blk.3.ffn_gate_exps.weight                      GGUF: all experts of a layer
 *     blk.3.ffn_gate.7.weight                         GGUF of old: one expert
 *     model.layers.3.mlp.experts.gate_up_proj         safetensors: all experts of a layer
 *     model.layers.3.mlp.experts.7.up_proj.weight     safetensors: one expert
 *     model.layers.3.block_sparse_moe.experts.7.w2.weight
 *
 * Shared experts do not count: every token reads them. Shapes are not known here; in a tensor of
 * all experts the slowest dimension is the expert.
 */
enum mp_expert_part { MP_EXPERT_GATE, MP_EXPERT_UP, MP_EXPERT_DOWN, MP_EXPERT_GATE_UP };

struct mp_expert_name {
    uint32_t layer;
    enum mp_expert_part part;
    bool all;        /* tensor of all experts of the layer; else of one */
    uint32_t expert; /* of one expert: its index */
    bool weight;     /* else a bias, a scale and the like, which are small */
};

/* False: the tensor belongs to no routed expert. */
bool mp_expert_name_parse(const char *name, struct mp_expert_name *parsed_p) MP_MUST_CHECK;

#endif
