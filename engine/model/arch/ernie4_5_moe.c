/* The ERNIE-4.5-MoE family: neighbours rotate together, a bias for the choice of experts, a shared
 * expert, layers without experts at the start. */
#include "engine/model/arch/arch.h"

#define MLP "model.layers.{layer}.mlp."
#define EXPERT MLP "experts.{expert}"
#define SHARED MLP "shared_experts"

const struct mp_arch mp_arch_ernie4_5_moe = {
    .name = "Ernie4_5_MoeForCausalLM",
    .model_type = "ernie4_5_moe",
    .default_positions = 131072,
    .default_eps = 1e-5,
    .default_theta = 5e5,
    .default_tied = true,
    .keys = {
        .experts = { "moe_num_experts", "num_experts" },
        .per_token = "moe_k",
        .expert_ffn = "moe_intermediate_size",
        .shared_count = { "moe_num_shared_experts", 2 },
        .dense_ffn = "intermediate_size",
        .moe_step = "moe_layer_interval",
        .dense_first = { "moe_layer_start_index", 1 },
        .moe_last = "moe_layer_end_index",
    },
    .switches = { .norm_topk = { NULL, true } },
    .refusals = { { "use_bias", 0, "products without a bias" } },
    .names = {
        MP_ARCH_COMMON_NAMES,
        MP_ARCH_DENSE_NAMES,
        [MP_ROLE_ROUTER] = { MLP "gate.weight", NULL },
        [MP_ROLE_SELECT_BIAS] = { MLP "moe_statics.e_score_correction_bias", NULL },
        MP_ARCH_SHARED_NAMES(SHARED),
    },
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight", EXPERT ".down_proj.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = MLP "experts.gate_up_proj",
    .fused_down = MLP "experts.down_proj",
    .rotary_neighbours = true,
};
