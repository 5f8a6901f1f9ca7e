/*
 * What the metadata of a GGUF file say about positions: how they are scaled, and which layers see a
 * window of them only.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "engine/model/gguf/config_gguf_int.h"
#include "vmm/base/compiler.h"

#define SCALE_MAX 1e6

/* A window that is at least as long as the longest context changes nothing. */
static enum mp_status read_window(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    static const char key[] = "attention.sliding_window";
    const struct mp_gguf_value *window = mp_gguf_config_find(source, key);
    const uint32_t step = source->arch->window_step;
    uint64_t positions = 0;
    enum mp_status status;

    if (window == NULL || (mp_gguf_as_u64(window, &positions) &&
                           (positions == 0 || positions >= config->positions_max)))
        return MP_OK;
    if (step == 0)
        return mp_gguf_config_unsupported(source, key, "attention to all positions");
    status = mp_gguf_config_u32(source, key, 1, UINT32_MAX, &config->window);
    for (uint32_t i = 0; i < config->layers; i++)
        config->windowed[i] = (i + 1) % step != 0;
    return status;
}

static enum mp_status number_or(const struct mp_gguf_config *source, const char *name, double other,
                                double *out_p)
{
    *out_p = other;
    return mp_gguf_config_find(source, name) != NULL
               ? mp_gguf_config_double(source, name, 1e-6, SCALE_MAX, out_p)
               : MP_OK;
}

/* Latent attention makes up for sines and cosines that are too small, by a share of what they lack;
 * the key is a tenth of it, as a 32-bit number. Models are as large as the share in both places. */
static enum mp_status read_latent_yarn(const struct mp_gguf_config *source,
                                       struct mp_model_config *config)
{
    static const char key[] = "rope.scaling.yarn_log_multiplier";
    double tenth = 0, share;
    enum mp_status status = mp_gguf_config_double(source, key, 0, SCALE_MAX, &tenth);

    share = round(tenth * 1e7) / 1e6;
    config->rope.magnitude = 1;
    config->attention_scale *=
        (float)pow(config->rope.factor <= 1 ? 1 : 0.1 * share * log(config->rope.factor) + 1, 2);
    return status;
}

static enum mp_status read_yarn(const struct mp_gguf_config *source, struct mp_model_config *config)
{
    struct mp_rope *rope = &config->rope;
    double factor = 1;
    uint32_t original = 0;
    enum mp_status status = mp_gguf_config_u32_or(source, "rope.scaling.original_context_length", 1,
                                                  1u << 24, config->positions_max, &original);

    rope->truncate = !source->arch->yarn_untruncated;
    rope->original = original;
    if (status == MP_OK)
        status = number_or(source, "rope.scaling.yarn_beta_slow", 1, &rope->slow);
    if (status == MP_OK)
        status = number_or(source, "rope.scaling.yarn_beta_fast", 32, &rope->fast);
    if (status == MP_OK && rope->slow >= rope->fast)
        return mp_gguf_config_unsupported(source, "rope.scaling.yarn_beta_slow",
                                          "less than yarn_beta_fast");
    if (status == MP_OK)
        status = number_or(source, "rope.scaling.attn_factor", 1, &factor);
    if (status == MP_OK && config->kv_rank > 0)
        return factor == 1 ? read_latent_yarn(source, config)
                           : mp_gguf_config_unsupported(source, "rope.scaling.attn_factor", "1");
    rope->magnitude = factor * (rope->factor <= 1 ? 1 : 0.1 * log(rope->factor) + 1);
    return status;
}

/* How positions are scaled: by "rope.scaling.type", which is linear where there is a factor only.
 */
static enum mp_status read_scaling(const struct mp_gguf_config *source,
                                   struct mp_model_config *config)
{
    static const char key[] = "rope.scaling.type", factor[] = "rope.scaling.factor";
    static const char *const kinds[] = { [MP_ROPE_PLAIN] = "none",
                                         [MP_ROPE_LINEAR] = "linear",
                                         [MP_ROPE_YARN] = "yarn",
                                         [MP_ROPE_LONG] = "longrope" };
    const struct mp_gguf_value *type = mp_gguf_config_find(source, key);
    const char *old = "rope.scale_linear";
    size_t kind = type == NULL ? MP_ROPE_LINEAR : 0;
    enum mp_status status;

    while (type != NULL && kind < MP_ARRAY_LEN(kinds) &&
           (type->kind != MP_GGUF_STRING || type->count != strlen(kinds[kind]) ||
            memcmp(type->data, kinds[kind], type->count) != 0))
        kind++;
    if (kind == MP_ARRAY_LEN(kinds))
        return mp_gguf_config_unsupported(source, key, "'none', 'linear', 'yarn' and 'longrope'");
    if (kind == MP_ROPE_PLAIN)
        return MP_OK;
    if (config->kv_rank == 0 &&
        mp_gguf_config_find(source, "rope.scaling.yarn_log_multiplier") != NULL)
        return mp_gguf_config_unsupported(source, "rope.scaling.yarn_log_multiplier", "none");
    status = number_or(source, mp_gguf_config_find(source, factor) != NULL ? factor : old, 1,
                       &config->rope.factor);
    if (kind == MP_ROPE_LONG) {
        config->rope.kind = MP_ROPE_LONG; /* its lists are read below */
        if (status == MP_OK && source->arch->wide)
            return mp_gguf_config_unsupported(source, key, "heads of one size with 'longrope'");
        return status == MP_OK && config->rope.factor != 1
                   ? mp_gguf_config_unsupported(source, factor, "1 with 'longrope'")
                   : status;
    }
    config->rope.kind = config->rope.factor != 1 ? (enum mp_rope_kind)kind : MP_ROPE_PLAIN;
    return status == MP_OK && config->rope.kind == MP_ROPE_YARN ? read_yarn(source, config)
                                                                : status;
}

/* What sines and cosines are multiplied with; yarn has it with its other numbers. */
static enum mp_status read_magnitude(const struct mp_gguf_config *source,
                                     struct mp_model_config *config)
{
    static const char key[] = "rope.scaling.attn_factor";
    enum mp_status status;

    if (config->rope.kind == MP_ROPE_YARN)
        return MP_OK;
    status = number_or(source, key, 1, &config->rope.magnitude);
    if (status == MP_OK && config->rope.magnitude != 1 &&
        (config->kv_rank > 0 || source->arch->wide))
        return mp_gguf_config_unsupported(source, key, "1");
    return status;
}

enum mp_status mp_gguf_config_divisors(const struct mp_gguf_config *source, const char *name,
                                       uint32_t count, float *divisors, bool *any_p)
{
    const struct mp_gguf_tensor *tensor = mp_gguf_find(source->gguf, name);
    enum mp_status status;

    *any_p = tensor != NULL;
    if (tensor == NULL)
        return MP_OK;
    if (strcmp(tensor->type->name, "F32") != 0 || tensor->dims != 1 || tensor->shape[0] != count ||
        count > MP_ROPE_FACTORS_MAX)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "tensor '%s' in '%s': got %" PRIu64 " numbers of type %s, need %" PRIu32
                       " of type F32, one for each rotated pair of a head",
                       name, source->file, tensor->shape[0], tensor->type->name, count);
    status = mp_files_read(mp_gguf_files(source->gguf), tensor->file, tensor->offset_bytes,
                           count * sizeof(*divisors), divisors);
    for (uint32_t i = 0; status == MP_OK && i < count; i++) {
        if (!(divisors[i] >= 1e-6f))
            return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                           "tensor '%s' in '%s': got %g, need numbers of at least 1e-6", name,
                           source->file, (double)divisors[i]);
    }
    return status;
}

static enum mp_status fail_lists(const struct mp_gguf_config *source, const char *got)
{
    return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                   "divisors of frequencies in '%s': got %s, need either '%s' or both '%s' and "
                   "'%s'",
                   source->file, got, MP_DIVISORS_NAME, MP_DIVISORS_SHORT_NAME,
                   MP_DIVISORS_LONG_NAME);
}

/* Of longrope: with contexts of up to the original length, and with longer ones. */
static enum mp_status read_two_lists(const struct mp_gguf_config *source,
                                     struct mp_model_config *config)
{
    struct mp_rope *rope = &config->rope;
    uint32_t original = 0;
    enum mp_status status = mp_gguf_config_u32_or(source, "rope.scaling.original_context_length", 1,
                                                  1u << 24, config->positions_max, &original);

    rope->original = original;
    rope->long_magnitude = rope->magnitude;
    return status;
}

/* One list is what converters make of llama3's scaling. */
static enum mp_status read_divisors(const struct mp_gguf_config *source,
                                    struct mp_model_config *config)
{
    struct mp_rope *rope = &config->rope;
    const bool named = rope->kind == MP_ROPE_LONG;
    const uint32_t count = config->rotary_dim / 2;
    bool one = false, first = false, second = false;
    enum mp_status status =
        mp_gguf_config_divisors(source, MP_DIVISORS_NAME, count, rope->factors[0], &one);

    if (status == MP_OK && one)
        memcpy(rope->factors[1], rope->factors[0], sizeof(rope->factors[0]));
    if (status == MP_OK)
        status = mp_gguf_config_divisors(source, MP_DIVISORS_SHORT_NAME, count, rope->factors[0],
                                         &first);
    if (status == MP_OK)
        status = mp_gguf_config_divisors(source, MP_DIVISORS_LONG_NAME, count, rope->factors[1],
                                         &second);
    if (status != MP_OK)
        return status;
    if (first != second || (one && first) || (named && !first))
        return fail_lists(source, one && first      ? "all three"
                                  : first != second ? "one of two lists"
                                                    : "no lists of 'longrope'");
    if (!one && !first)
        return MP_OK;
    if (rope->kind != MP_ROPE_PLAIN && !named)
        return mp_gguf_config_unsupported(source, "rope.scaling.type", "one kind of scaling");
    rope->kind = MP_ROPE_LONG;
    if (first)
        return read_two_lists(source, config);
    rope->original = config->positions_max;
    rope->long_magnitude = rope->magnitude;
    return MP_OK;
}

enum mp_status mp_gguf_config_positions(const struct mp_gguf_config *source,
                                        struct mp_model_config *config)
{
    enum mp_status status;

    config->rope = (struct mp_rope){ .factor = 1, .magnitude = 1 };
    status = read_scaling(source, config);
    if (status == MP_OK)
        status = read_magnitude(source, config);
    if (status == MP_OK && source->arch->wide)
        return mp_gguf_config_wide_positions(source, config);
    if (status == MP_OK)
        status = read_divisors(source, config);
    return status == MP_OK ? read_window(source, config) : status;
}
