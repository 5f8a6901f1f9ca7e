/* XVERSE's models with experts: Llama's attention, experts with shared ones beside them, in every
 * layer. Published under two names; those without experts lack "num_experts". */
#include "engine/model/arch/arch.h"

#define MLP "model.layers.{layer}.mlp."
#define EXPERT MLP "experts.{expert}"
#define SHARED MLP "shared_experts"

#define XVERSE \
    .model_type = "xverse", .default_positions = 8192, .default_eps = 1e-6,                  \
    .default_theta = 1e4,                                                                    \
    .keys = { .experts = { "num_experts", NULL },                                            \
              .per_token = "moe_top_k",                                                      \
              .expert_ffn = "intermediate_size",                                             \
              .shared_count = { "num_shared_experts", 0 } },                                 \
    .switches = { .norm_topk = { "norm_topk_prob", false } },                                \
    .names = {                                                                               \
        MP_ARCH_COMMON_NAMES,                                                                \
        [MP_ROLE_ROUTER] = { MLP "router.weight", NULL },                                    \
        MP_ARCH_SHARED_NAMES(SHARED),                                                        \
    },                                                                                       \
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight",                        \
                EXPERT ".down_proj.weight" },                                                \
    .slice = MP_ARCH_SLICES(EXPERT)

const struct mp_arch mp_arch_xverse = { .name = "XverseForCausalLM", XVERSE };
const struct mp_arch mp_arch_xverse_moe = { .name = "XverseMoeForCausalLM", XVERSE };
