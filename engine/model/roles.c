/* The table of roles: one row for each kind of tensor that is resident. It knows no names. */
#include "engine/model/roles.h"

#include "engine/model/arch/arch.h"
#include "engine/model/weights.h"

static bool has_qkv_bias(const struct mp_model_config *config, uint32_t layer)
{
    return config->qkv_bias && !config->linear[layer];
}

static bool has_o_bias(const struct mp_model_config *config, uint32_t layer)
{
    return config->o_bias && !config->linear[layer];
}

static bool has_qk_norm(const struct mp_model_config *config, uint32_t layer)
{
    return config->qk_norm && !config->linear[layer];
}

static bool is_drafting(const struct mp_model_config *config, uint32_t layer)
{
    (void)layer;
    return config->drafting;
}

static bool is_whole(const struct mp_model_config *config, uint32_t layer)
{
    return !is_drafting(config, layer);
}

static bool has_head(const struct mp_model_config *config, uint32_t layer)
{
    return !config->tied && is_whole(config, layer);
}

static bool has_head_bias(const struct mp_model_config *config, uint32_t layer)
{
    return config->head_bias && is_whole(config, layer);
}

static bool has_norm_bias(const struct mp_model_config *config, uint32_t layer)
{
    (void)layer;
    return config->norm_bias;
}

static bool has_delta(const struct mp_model_config *config, uint32_t layer)
{
    return config->linear[layer] && config->delta.key_heads > 0;
}

static bool has_delta_in(const struct mp_model_config *config, uint32_t layer)
{
    return has_delta(config, layer) && !config->delta.in_parts;
}

static bool has_delta_parts(const struct mp_model_config *config, uint32_t layer)
{
    return has_delta(config, layer) && config->delta.in_parts;
}

static bool has_conv(const struct mp_model_config *config, uint32_t layer)
{
    return config->linear[layer] && config->short_conv > 0;
}

static bool has_attention(const struct mp_model_config *config, uint32_t layer)
{
    return !config->linear[layer];
}

static bool is_latent(const struct mp_model_config *config, uint32_t layer)
{
    (void)layer;
    return config->kv_rank > 0;
}

static bool has_kv_up(const struct mp_model_config *config, uint32_t layer)
{
    return is_latent(config, layer) && !config->latent_split;
}

static bool has_split_up(const struct mp_model_config *config, uint32_t layer)
{
    return is_latent(config, layer) && config->latent_split;
}

/* Else they come from the latent, with the keys, or are the keys. */
static bool has_values(const struct mp_model_config *config, uint32_t layer)
{
    return config->kv_rank == 0 && !config->linear[layer] &&
           !(config->wide_values_are_keys && config->wide[layer]);
}

static bool has_v_bias(const struct mp_model_config *config, uint32_t layer)
{
    return has_qkv_bias(config, layer) && has_values(config, layer);
}

static bool has_q_rank(const struct mp_model_config *config, uint32_t layer)
{
    (void)layer;
    return config->q_rank > 0;
}

static bool has_sinks(const struct mp_model_config *config, uint32_t layer)
{
    (void)layer;
    return config->sinks;
}

static bool has_router_bias(const struct mp_model_config *config, uint32_t layer)
{
    return config->is_moe[layer] && config->router_bias;
}

static bool has_expert_bias(const struct mp_model_config *config, uint32_t layer)
{
    return config->is_moe[layer] && config->expert_bias;
}

static bool has_select_bias(const struct mp_model_config *config, uint32_t layer)
{
    return config->is_moe[layer] && config->select_bias;
}

static bool is_dense(const struct mp_model_config *config, uint32_t layer)
{
    return !config->is_moe[layer];
}

static bool is_moe(const struct mp_model_config *config, uint32_t layer)
{
    return config->is_moe[layer];
}

static bool has_shared(const struct mp_model_config *config, uint32_t layer)
{
    return config->is_moe[layer] && config->shared_ffn != 0;
}

static bool has_attn_after(const struct mp_model_config *config, uint32_t layer)
{
    return config->norms_after && !config->linear[layer];
}

static bool has_ffn_after(const struct mp_model_config *config, uint32_t layer)
{
    return config->norms_after && config->is_moe[layer];
}

static bool has_shared_after(const struct mp_model_config *config, uint32_t layer)
{
    return config->norms_after && has_shared(config, layer);
}

static bool has_router_norm(const struct mp_model_config *config, uint32_t layer)
{
    return config->router_norm && config->is_moe[layer];
}

static bool has_expert_scale(const struct mp_model_config *config, uint32_t layer)
{
    return config->expert_scale && config->is_moe[layer];
}

static bool has_layer_scale(const struct mp_model_config *config, uint32_t layer)
{
    return config->layer_scale && config->is_moe[layer];
}

#define MODEL(member) offsetof(struct mp_weights, member)
#define LAYER(member) offsetof(struct mp_layer_weights, member)

const struct mp_role_info mp_roles[MP_ROLE_COUNT] = {
    [MP_ROLE_EMBED] = { MP_DIM_VOCAB, MP_DIM_HIDDEN, MODEL(embed), is_whole },
    [MP_ROLE_FINAL_NORM] = { MP_DIM_HIDDEN, MP_DIM_NONE, MODEL(final_norm.w), is_whole },
    [MP_ROLE_FINAL_NORM_BIAS] = { MP_DIM_HIDDEN, MP_DIM_NONE, MODEL(final_norm.bias),
                                  has_norm_bias },
    [MP_ROLE_HEAD] = { MP_DIM_VOCAB, MP_DIM_HIDDEN, MODEL(head), has_head },
    [MP_ROLE_HEAD_BIAS] = { MP_DIM_VOCAB, MP_DIM_NONE, MODEL(head_bias), has_head_bias },
    [MP_ROLE_DRAFT_EMBED_NORM] = { MP_DIM_HIDDEN, MP_DIM_NONE, MODEL(draft.embed_norm.w),
                                   is_drafting },
    [MP_ROLE_DRAFT_STATE_NORM] = { MP_DIM_HIDDEN, MP_DIM_NONE, MODEL(draft.state_norm.w),
                                   is_drafting },
    [MP_ROLE_DRAFT_IN] = { MP_DIM_HIDDEN, MP_DIM_TWO_HIDDEN, MODEL(draft.in), is_drafting },
    [MP_ROLE_DRAFT_NORM] = { MP_DIM_HIDDEN, MP_DIM_NONE, MODEL(final_norm.w), is_drafting },
    [MP_ROLE_ATTN_NORM] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(attn_norm.w), NULL },
    [MP_ROLE_ATTN_NORM_BIAS] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(attn_norm.bias), has_norm_bias },
    [MP_ROLE_ATTN_AFTER] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(attn_after.w), has_attn_after },
    [MP_ROLE_CONV_IN] = { MP_DIM_CONV_IN, MP_DIM_HIDDEN, LAYER(conv.in), has_conv },
    [MP_ROLE_CONV] = { MP_DIM_HIDDEN, MP_DIM_CONV, LAYER(conv.taps), has_conv },
    [MP_ROLE_CONV_OUT] = { MP_DIM_HIDDEN, MP_DIM_HIDDEN, LAYER(conv.out), has_conv },
    [MP_ROLE_DELTA_IN] = { MP_DIM_DELTA_IN, MP_DIM_HIDDEN, LAYER(delta.in), has_delta_in },
    [MP_ROLE_DELTA_STEPS] = { MP_DIM_DELTA_STEPS, MP_DIM_HIDDEN, LAYER(delta.steps), has_delta },
    [MP_ROLE_DELTA_QKV] = { MP_DIM_DELTA_CHANNELS, MP_DIM_HIDDEN, LAYER(delta.qkv),
                            has_delta_parts },
    [MP_ROLE_DELTA_GATE] = { MP_DIM_DELTA_VALUES, MP_DIM_HIDDEN, LAYER(delta.gate),
                             has_delta_parts },
    [MP_ROLE_DELTA_SHARE] = { MP_DIM_DELTA_HEADS, MP_DIM_HIDDEN, LAYER(delta.share), has_delta },
    [MP_ROLE_DELTA_TIME] = { MP_DIM_DELTA_HEADS, MP_DIM_HIDDEN, LAYER(delta.time), has_delta },
    [MP_ROLE_DELTA_CONV] = { MP_DIM_DELTA_CHANNELS, MP_DIM_DELTA_CONV, LAYER(delta.conv),
                             has_delta },
    [MP_ROLE_DELTA_STEP_BIAS] = { MP_DIM_DELTA_HEADS, MP_DIM_NONE, LAYER(delta.step_bias),
                                  has_delta },
    [MP_ROLE_DELTA_DECAY] = { MP_DIM_DELTA_HEADS, MP_DIM_NONE, LAYER(delta.decay), has_delta },
    [MP_ROLE_DELTA_NORM] = { MP_DIM_DELTA_VALUE, MP_DIM_NONE, LAYER(delta.norm), has_delta },
    [MP_ROLE_DELTA_OUT] = { MP_DIM_HIDDEN, MP_DIM_DELTA_VALUES, LAYER(delta.out), has_delta },
    [MP_ROLE_Q_DOWN] = { MP_DIM_Q_RANK, MP_DIM_HIDDEN, LAYER(q_down), has_q_rank },
    [MP_ROLE_Q_DOWN_NORM] = { MP_DIM_Q_RANK, MP_DIM_NONE, LAYER(q_down_norm), has_q_rank },
    [MP_ROLE_LATENT_NORM] = { MP_DIM_KV_RANK, MP_DIM_NONE, LAYER(latent_norm), is_latent },
    [MP_ROLE_KV_UP] = { MP_DIM_KV_UP, MP_DIM_KV_RANK, LAYER(kv_up), has_kv_up },
    [MP_ROLE_K_UP] = { MP_DIM_K_UP, MP_DIM_NOPE, LAYER(k_up), has_split_up },
    [MP_ROLE_V_UP] = { MP_DIM_O_COLS, MP_DIM_KV_RANK, LAYER(v_up), has_split_up },
    [MP_ROLE_Q] = { MP_DIM_Q, MP_DIM_Q_COLS, LAYER(q), has_attention },
    [MP_ROLE_Q_BIAS] = { MP_DIM_Q, MP_DIM_NONE, LAYER(q_bias), has_qkv_bias },
    [MP_ROLE_K] = { MP_DIM_KV, MP_DIM_HIDDEN, LAYER(k), has_attention },
    [MP_ROLE_K_BIAS] = { MP_DIM_KV, MP_DIM_NONE, LAYER(k_bias), has_qkv_bias },
    [MP_ROLE_V] = { MP_DIM_KV, MP_DIM_HIDDEN, LAYER(v), has_values },
    [MP_ROLE_V_BIAS] = { MP_DIM_KV, MP_DIM_NONE, LAYER(v_bias), has_v_bias },
    [MP_ROLE_O] = { MP_DIM_HIDDEN, MP_DIM_O_COLS, LAYER(o), has_attention },
    [MP_ROLE_O_BIAS] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(o_bias), has_o_bias },
    [MP_ROLE_Q_NORM] = { MP_DIM_Q_NORM, MP_DIM_NONE, LAYER(q_norm), has_qk_norm },
    [MP_ROLE_K_NORM] = { MP_DIM_K_NORM, MP_DIM_NONE, LAYER(k_norm), has_qk_norm },
    [MP_ROLE_SINKS] = { MP_DIM_HEADS, MP_DIM_NONE, LAYER(sinks), has_sinks },
    [MP_ROLE_FFN_NORM] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(ffn_norm.w), NULL },
    [MP_ROLE_FFN_NORM_BIAS] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(ffn_norm.bias), has_norm_bias },
    [MP_ROLE_DENSE_GATE] = { MP_DIM_DENSE, MP_DIM_HIDDEN, LAYER(dense.gate), is_dense },
    [MP_ROLE_DENSE_UP] = { MP_DIM_DENSE, MP_DIM_HIDDEN, LAYER(dense.up), is_dense },
    [MP_ROLE_DENSE_DOWN] = { MP_DIM_HIDDEN, MP_DIM_DENSE, LAYER(dense.down), is_dense },
    [MP_ROLE_ROUTER] = { MP_DIM_EXPERTS, MP_DIM_HIDDEN, LAYER(router), is_moe },
    [MP_ROLE_ROUTER_BIAS] = { MP_DIM_EXPERTS, MP_DIM_NONE, LAYER(router_bias), has_router_bias },
    [MP_ROLE_ROUTER_NORM] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(router_norm.w), has_router_norm },
    [MP_ROLE_EXPERT_SCALE] = { MP_DIM_EXPERTS, MP_DIM_NONE, LAYER(expert_scale), has_expert_scale },
    [MP_ROLE_EXPERT_GATE_BIAS] = { MP_DIM_EXPERTS, MP_DIM_GATE_BIAS, LAYER(expert_bias.gate),
                                   has_expert_bias },
    [MP_ROLE_EXPERT_UP_BIAS] = { MP_DIM_EXPERTS, MP_DIM_CHANNELS, LAYER(expert_bias.up),
                                 has_expert_bias },
    [MP_ROLE_EXPERT_DOWN_BIAS] = { MP_DIM_EXPERTS, MP_DIM_HIDDEN, LAYER(expert_bias.down),
                                   has_expert_bias },
    [MP_ROLE_SELECT_BIAS] = { MP_DIM_EXPERTS, MP_DIM_NONE, LAYER(select_bias), has_select_bias },
    [MP_ROLE_SHARED_GATE] = { MP_DIM_SHARED, MP_DIM_HIDDEN, LAYER(shared.gate), has_shared },
    [MP_ROLE_SHARED_UP] = { MP_DIM_SHARED, MP_DIM_HIDDEN, LAYER(shared.up), has_shared },
    [MP_ROLE_SHARED_DOWN] = { MP_DIM_HIDDEN, MP_DIM_SHARED, LAYER(shared.down), has_shared },
    [MP_ROLE_SHARED_SWITCH] = { MP_DIM_ONE, MP_DIM_HIDDEN, LAYER(shared_gate), has_shared },
    [MP_ROLE_SHARED_NORM] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(shared_norm.w), has_shared_after },
    [MP_ROLE_SHARED_AFTER] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(shared_after.w),
                               has_shared_after },
    [MP_ROLE_ROUTED_AFTER] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(routed_after.w), has_ffn_after },
    [MP_ROLE_FFN_AFTER] = { MP_DIM_HIDDEN, MP_DIM_NONE, LAYER(ffn_after.w), has_ffn_after },
    [MP_ROLE_LAYER_SCALE] = { MP_DIM_ONE, MP_DIM_NONE, LAYER(layer_scale), has_layer_scale },
};

bool mp_role_floats(enum mp_role role)
{
    return role == MP_ROLE_EXPERT_GATE_BIAS || role == MP_ROLE_EXPERT_UP_BIAS ||
           role == MP_ROLE_EXPERT_DOWN_BIAS || role == MP_ROLE_DELTA_CONV || role == MP_ROLE_CONV;
}

uint64_t mp_dim_size(const struct mp_model_config *config, enum mp_dim dim, uint32_t layer)
{
    const uint64_t head_dim = mp_layer_head_dim(config, layer);

    switch (dim) {
    case MP_DIM_NONE: return 0;
    case MP_DIM_ONE: return 1;
    case MP_DIM_VOCAB: return config->vocab;
    case MP_DIM_HIDDEN: return config->hidden;
    case MP_DIM_TWO_HIDDEN: return 2 * (uint64_t)config->hidden;
    case MP_DIM_Q:
        return (uint64_t)config->heads * (config->kv_rank > 0
                                              ? config->nope_dim + config->rotary_dim
                                              : head_dim * (config->q_gate ? 2u : 1u));
    case MP_DIM_Q_COLS: return config->q_rank > 0 ? config->q_rank : config->hidden;
    case MP_DIM_Q_RANK: return config->q_rank;
    case MP_DIM_KV_RANK: return config->kv_rank;
    case MP_DIM_KV_UP: return (uint64_t)config->heads * (config->nope_dim + config->value_dim);
    case MP_DIM_K_UP: return (uint64_t)config->heads * config->kv_rank;
    case MP_DIM_NOPE: return config->nope_dim;
    case MP_DIM_O_COLS: return config->heads * (config->kv_rank > 0 ? config->value_dim : head_dim);
    case MP_DIM_KV: return mp_layer_kv_heads(config, layer) * head_dim;
    case MP_DIM_HEAD: return head_dim;
    case MP_DIM_Q_NORM:
        return mp_dim_size(config, config->qk_norm_rows ? MP_DIM_Q : MP_DIM_HEAD, layer);
    case MP_DIM_K_NORM:
        return mp_dim_size(config, config->qk_norm_rows ? MP_DIM_KV : MP_DIM_HEAD, layer);
    case MP_DIM_DELTA_IN:
        return mp_delta_channels(&config->delta) + mp_delta_values(&config->delta);
    case MP_DIM_DELTA_STEPS: return 2 * config->delta.value_heads;
    case MP_DIM_DELTA_CHANNELS: return mp_delta_channels(&config->delta);
    case MP_DIM_DELTA_CONV: return config->delta.conv;
    case MP_DIM_DELTA_HEADS: return config->delta.value_heads;
    case MP_DIM_DELTA_VALUES: return mp_delta_values(&config->delta);
    case MP_DIM_DELTA_VALUE: return config->delta.value_dim;
    case MP_DIM_CONV_IN: return 3 * (uint64_t)config->hidden;
    case MP_DIM_CONV: return config->short_conv;
    case MP_DIM_HEADS: return config->heads;
    case MP_DIM_EXPERTS: return config->experts;
    case MP_DIM_CHANNELS: return config->expert_ffn;
    case MP_DIM_GATE_BIAS:
        return (uint64_t)config->expert_ffn *
               (config->arch->names[MP_ROLE_EXPERT_UP_BIAS].name != NULL ? 1 : 2);
    case MP_DIM_SHARED: return config->shared_ffn;
    case MP_DIM_DENSE: return config->dense_ffn;
    }
    return 0;
}

bool mp_role_needed(const struct mp_model_config *config, enum mp_role role, uint32_t layer)
{
    const struct mp_role_info *info = &mp_roles[role];

    return config->arch->names[role].name != NULL &&
           (info->needed == NULL || info->needed(config, layer));
}
