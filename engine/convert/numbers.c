/* What the configuration of a directory says, as the metadata of a GGUF file: the other direction
 * of engine/model/gguf/config_gguf.c, by the same tables of keys. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/convert/convert_int.h"

#define KEY_BYTES 128

static const char *key_of(const struct mp_convert *job, const char *name, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%s.%s", job->target->name, name);
    return key;
}

static void put_u32(const struct mp_convert *job, struct mp_gguf_out *out, const char *name,
                    uint32_t value)
{
    char key[KEY_BYTES];

    mp_gguf_put_u32(out, key_of(job, name, key), value);
}

static void put_f32(const struct mp_convert *job, struct mp_gguf_out *out, const char *name,
                    double value)
{
    char key[KEY_BYTES];

    mp_gguf_put_f32(out, key_of(job, name, key), (float)value);
}

static void begin_list(const struct mp_convert *job, struct mp_gguf_out *out, const char *name,
                       enum mp_gguf_kind kind, uint64_t count)
{
    char key[KEY_BYTES];

    mp_gguf_put_array(out, key_of(job, name, key), kind, count);
}

/* A flag for each layer. */
static void put_layers(const struct mp_convert *job, struct mp_gguf_out *out, const char *name,
                       const bool *flags)
{
    begin_list(job, out, name, MP_GGUF_BOOL, job->model.layers);
    for (uint32_t i = 0; i < job->model.layers; i++)
        mp_gguf_put(out->file, flags[i], 1);
}

/* Layers with experts are those behind the first ones, or every so many-th; others are found out
 * when the header is read again. */
static void put_moe_layers(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;
    const struct mp_arch_keys *keys = &job->target->keys;
    uint32_t first = 0, second, step = 1;

    while (first + 1 < c->layers && !c->is_moe[first])
        first++;
    for (second = first + 1; second < c->layers && !c->is_moe[second]; second++)
        step++;
    if (keys->moe_step != NULL)
        put_u32(job, out, keys->moe_step, step);
    if (keys->dense_first.key != NULL)
        put_u32(job, out, keys->dense_first.key, step > 1 ? 0 : first);
}

/* ---- heads */

/* Of keys and values: for each layer where some layers have none, or others. */
static void put_kv_heads(const struct mp_convert *job, struct mp_gguf_out *out)
{
    static const char name[] = "attention.head_count_kv";
    const struct mp_model_config *c = &job->model;

    if (c->short_conv == 0 && !job->target->wide) {
        put_u32(job, out, name, c->kv_heads);
        return;
    }
    begin_list(job, out, name, MP_GGUF_I32, c->layers);
    for (uint32_t i = 0; i < c->layers; i++)
        mp_gguf_put(out->file, c->short_conv > 0 && c->linear[i] ? 0 : mp_layer_kv_heads(c, i), 4);
}

/* Latent attention, with the latent as the only head. */
static void put_latent(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;

    put_u32(job, out, "attention.key_length", c->head_dim);
    put_u32(job, out, "attention.value_length", c->kv_rank);
    put_u32(job, out, "attention.key_length_mla", c->nope_dim + c->rotary_dim);
    put_u32(job, out, "attention.value_length_mla", c->value_dim);
    put_u32(job, out, job->target->keys.kv_rank, c->kv_rank);
    if (c->q_rank > 0)
        put_u32(job, out, "attention.q_lora_rank", c->q_rank);
    put_u32(job, out, "rope.dimension_count", c->rotary_dim);
}

/* Heads of layers of full attention, and of those with a window. */
static void put_wide(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;

    put_u32(job, out, "attention.key_length", c->wide_head_dim);
    put_u32(job, out, "attention.value_length", c->wide_head_dim);
    put_u32(job, out, "attention.key_length_swa", c->head_dim);
    put_u32(job, out, "attention.value_length_swa", c->head_dim);
    put_u32(job, out, "rope.dimension_count", c->wide_head_dim);
    put_u32(job, out, "rope.dimension_count_swa", c->rotary_dim);
    put_f32(job, out, "rope.freq_base_swa", c->rope_theta);
    put_u32(job, out, "embedding_length_per_layer_input", 0);
    put_u32(job, out, "attention.shared_kv_layers", 0);
    put_layers(job, out, "attention.sliding_window_pattern", c->windowed);
}

/* Of models that also see: pairs of a head that turn by the place in time, height and width. Text
 * has one place, so that any three do; these are those of the published models. */
static void put_sections(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const uint32_t half = job->model.rotary_dim / 2, width = half / 3, height = (half - width) / 2;

    begin_list(job, out, "rope.dimension_sections", MP_GGUF_I32, 4);
    mp_gguf_put(out->file, half - width - height, 4);
    mp_gguf_put(out->file, height, 4);
    mp_gguf_put(out->file, width, 4);
    mp_gguf_put(out->file, 0, 4);
}

/* Heads of delta networks, and which layers have one: as a list, and as a step for programs that
 * read no list. */
static void put_delta(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;
    const struct mp_delta *d = &c->delta;
    uint32_t step = 1;

    while (step < c->layers && c->linear[step - 1])
        step++;
    put_u32(job, out, job->target->keys.delta, d->key_heads);
    put_u32(job, out, "ssm.time_step_rank", d->value_heads);
    put_u32(job, out, "ssm.state_size", d->key_dim);
    put_u32(job, out, "ssm.inner_size", mp_delta_values(d));
    put_u32(job, out, "ssm.conv_kernel", d->conv);
    put_u32(job, out, "full_attention_interval", step);
    put_layers(job, out, "attention.recurrent_layers", c->linear);
    if (job->target->tiled)
        put_sections(job, out);
}

static void put_heads(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;

    put_u32(job, out, "attention.head_count", c->heads);
    put_kv_heads(job, out);
    if (c->short_conv > 0)
        put_u32(job, out, job->target->keys.short_conv, c->short_conv);
    if (c->delta.key_heads > 0)
        put_delta(job, out);
    if (c->kv_rank > 0) {
        put_latent(job, out);
    } else if (job->target->wide) {
        put_wide(job, out);
    } else {
        put_u32(job, out, "attention.key_length", c->head_dim);
        put_u32(job, out, "attention.value_length", c->head_dim);
        put_u32(job, out, "rope.dimension_count", c->rotary_dim);
    }
}

/* ---- positions */

/* A tenth of the share by which latent attention makes up for small sines and cosines, which the
 * configuration has in its scale; or what magnitudes are multiplied with besides. */
static void put_magnitude(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;
    const double part = log(c->rope.factor);

    if (c->kv_rank > 0) {
        const double scale = sqrt((double)c->attention_scale * sqrt(c->nope_dim + c->rotary_dim));

        put_f32(job, out, "rope.scaling.yarn_log_multiplier",
                part > 0 ? round((scale - 1) / part * 1e6) / 1e6 : 0);
    } else if (fabs(c->rope.magnitude - (0.1 * part + 1)) > 1e-6) {
        put_f32(job, out, "rope.scaling.attn_factor", c->rope.magnitude / (0.1 * part + 1));
    }
}

bool mp_rope_is_one(const struct mp_rope *rope)
{
    return rope->magnitude == 1 && rope->long_magnitude == 1 &&
           memcmp(rope->factors[0], rope->factors[1], sizeof(rope->factors[0])) == 0;
}

bool mp_convert_two_lists(const struct mp_convert *job)
{
    return job->model.rope.kind == MP_ROPE_LONG &&
           !(job->target->one_list && mp_rope_is_one(&job->model.rope));
}

/* What two lists of divisors need besides. */
static void put_long(const struct mp_convert *job, struct mp_gguf_out *out)
{
    char key[KEY_BYTES];

    mp_gguf_put_string(out, key_of(job, "rope.scaling.type", key), "longrope");
    put_u32(job, out, "rope.scaling.original_context_length", (uint32_t)job->model.rope.original);
    put_f32(job, out, "rope.scaling.attn_factor", job->model.rope.magnitude);
}

static void put_positions(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;
    const bool yarn = c->rope.kind == MP_ROPE_YARN;
    char key[KEY_BYTES];

    put_f32(job, out, "rope.freq_base", job->target->wide ? c->wide_theta : c->rope_theta);
    if (c->window != 0 && (job->target->window_step > 0 || job->target->wide))
        put_u32(job, out, "attention.sliding_window", c->window);
    if (mp_convert_two_lists(job) && !job->target->wide)
        put_long(job, out);
    if ((c->rope.kind != MP_ROPE_LINEAR && !yarn) || job->target->wide)
        return;
    mp_gguf_put_string(out, key_of(job, "rope.scaling.type", key), yarn ? "yarn" : "linear");
    put_f32(job, out, "rope.scaling.factor", c->rope.factor);
    if (!yarn)
        return;
    put_u32(job, out, "rope.scaling.original_context_length", (uint32_t)c->rope.original);
    put_f32(job, out, "rope.scaling.yarn_beta_fast", c->rope.fast);
    put_f32(job, out, "rope.scaling.yarn_beta_slow", c->rope.slow);
    put_magnitude(job, out);
}

/* What only some families have a key for. */
static void put_more_numbers(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;
    const struct mp_arch_keys *keys = &job->target->keys;
    const struct {
        const char *key;
        uint32_t value;
    } wholes[] = {
        { keys->shared_count.key, c->shared_ffn / c->expert_ffn },
        { keys->groups.key, c->groups },
        { keys->groups_used.key, c->groups_used },
        { c->router == MP_ROUTER_SIGMOID ? "expert_gating_func" : NULL, 2 },
    };
    const struct {
        const char *key;
        float value;
    } reals[] = {
        { keys->routed_scale.key, c->routed_scale },
        { keys->embed_scale.key, c->embed_scale },
        { keys->residual_scale.key, c->residual_scale },
        { c->attention_scale > 0 ? keys->attention_scale.key : NULL, c->attention_scale },
        { keys->logit_divisor.key, 1 / c->logit_scale },
        { c->logit_cap > 0 ? keys->logit_cap : NULL, c->logit_cap },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(wholes); i++) {
        if (wholes[i].key != NULL)
            put_u32(job, out, wholes[i].key, wholes[i].value);
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(reals); i++) {
        if (reals[i].key != NULL)
            put_f32(job, out, reals[i].key, reals[i].value);
    }
    put_moe_layers(job, out);
}

/* Channels of dense layers, of experts, and of the shared one; one key can stand for any of them.
 */
static void put_channels(const struct mp_convert *job, struct mp_gguf_out *out)
{
    static const char dense[] = "feed_forward_length";
    const struct mp_model_config *c = &job->model;
    const struct mp_arch_keys *keys = &job->target->keys;
    const bool shared = c->shared_ffn != 0 && keys->shared_ffn != NULL;

    if (strcmp(keys->expert_ffn, dense) != 0 && !(shared && strcmp(keys->shared_ffn, dense) == 0))
        put_u32(job, out, dense, c->dense_ffn == 0 ? c->expert_ffn : c->dense_ffn);
    put_u32(job, out, keys->expert_ffn, c->expert_ffn);
    if (shared)
        put_u32(job, out, keys->shared_ffn, c->shared_ffn);
    else if (c->shared_ffn != 0) /* beside their number, for llama.cpp's ERNIE */
        put_u32(job, out, "expert_shared_feed_forward_length", c->shared_ffn);
}

void mp_convert_numbers(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;
    const char *norm_topk = job->target->switches.norm_topk.key;
    char key[KEY_BYTES];

    put_u32(job, out, "vocab_size", c->vocab);
    put_u32(job, out, "context_length", c->positions_max);
    put_u32(job, out, "embedding_length", c->hidden);
    put_u32(job, out, "block_count", c->layers);
    put_channels(job, out);
    put_u32(job, out, "expert_count", c->experts);
    put_u32(job, out, "expert_used_count", c->experts_per_token);
    put_heads(job, out);
    put_f32(job, out, "attention.layer_norm_rms_epsilon", c->norm_eps);
    put_positions(job, out);
    put_more_numbers(job, out);
    if (norm_topk != NULL)
        mp_gguf_put_bool(out, key_of(job, norm_topk, key), c->norm_topk);
}
