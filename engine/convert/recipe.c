/*
 * Which tensor gets which type. The mixtures are those that are published under these names: in
 * q4_k_m and q5_k_m the first and last eighth of the layers and every third one between have more
 * bits where errors cost most, in down and v; the output head has six bits everywhere. Rows that
 * are no whole blocks of 256 get a type with blocks of 32, others 16-bit floats.
 */
#include <stdio.h>
#include <string.h>

#include "engine/convert/convert_int.h"

#define PURE(name, number, TYPE, most)                                         \
    {                                                                          \
        name, number, MP_WTYPE_##TYPE, MP_WTYPE_##most, false, MP_WTYPE_##TYPE \
    }
#define MIXED(name, number, TYPE)                                           \
    {                                                                       \
        name, number, MP_WTYPE_##TYPE, MP_WTYPE_Q6_K, true, MP_WTYPE_##TYPE \
    }

static const struct mp_recipe recipes[] = {
    PURE("f32", 0, F32, F32),
    PURE("f16", 1, F16, F16),
    PURE("bf16", 32, BF16, BF16),
    PURE("q8_0", 7, Q8_0, Q8_0),
    PURE("q4_0", 2, Q4_0, Q6_K),
    PURE("q4_1", 3, Q4_1, Q6_K),
    PURE("q5_0", 8, Q5_0, Q6_K),
    PURE("q5_1", 9, Q5_1, Q6_K),
    PURE("iq4_nl", 25, IQ4_NL, Q6_K),
    PURE("iq4_xs", 30, IQ4_XS, Q6_K),
    PURE("q2_k", 10, Q2_K, Q6_K),
    PURE("q3_k", 11, Q3_K, Q6_K),
    PURE("q4_k", 14, Q4_K, Q6_K),
    MIXED("q4_k_m", 15, Q4_K),
    PURE("q5_k", 16, Q5_K, Q6_K),
    MIXED("q5_k_m", 17, Q5_K),
    PURE("q6_k", 18, Q6_K, Q6_K),
    { "mxfp4", 38, MP_WTYPE_MXFP4, MP_WTYPE_Q8_0, false, MP_WTYPE_Q8_0 },
};

const struct mp_recipe *mp_recipe_find(const char *name)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(recipes); i++) {
        if (strcmp(recipes[i].name, name) == 0)
            return &recipes[i];
    }
    return NULL;
}

const char *mp_convert_types(char out[MP_CONVERT_TYPES_BYTES])
{
    size_t used = 0;

    for (size_t i = 0; i < MP_ARRAY_LEN(recipes); i++)
        used += (size_t)snprintf(out + used, MP_CONVERT_TYPES_BYTES - used, "%s%s",
                                 i > 0 ? ", " : "", recipes[i].name);
    return out;
}

static bool has_more(uint32_t layer, uint32_t layers)
{
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/* The next type that has rows of so many elements. */
static enum mp_wtype fit_rows(enum mp_wtype type, uint64_t cols)
{
    if (cols % mp_wtype_info(type)->block_elements == 0)
        return type;
    switch (type) {
    case MP_WTYPE_Q2_K:
    case MP_WTYPE_Q3_K:
    case MP_WTYPE_IQ4_XS: return fit_rows(MP_WTYPE_IQ4_NL, cols);
    case MP_WTYPE_Q4_K: return fit_rows(MP_WTYPE_Q5_0, cols);
    case MP_WTYPE_Q5_K: return fit_rows(MP_WTYPE_Q5_1, cols);
    case MP_WTYPE_Q6_K: return fit_rows(MP_WTYPE_Q8_0, cols);
    default: return MP_WTYPE_F16;
    }
}

static bool ends_with(const char *name, const char *suffix)
{
    const size_t length = strlen(name), tail = strlen(suffix);

    return length >= tail && strcmp(name + length - tail, suffix) == 0;
}

enum mp_wtype mp_recipe_type(const struct mp_recipe *recipe, const struct mp_model_config *model,
                             const struct mp_convert_tensor *tensor)
{
    const char *name = tensor->name;
    enum mp_wtype type = strstr(name, "_exps.") != NULL ? recipe->base : recipe->dense;
    unsigned layer = 0;

    if (tensor->dims == 1 || strstr(name, "ffn_gate_inp") != NULL ||
        strstr(name, ".shortconv.conv.") != NULL || strstr(name, ".ssm_conv1d.") != NULL ||
        !ends_with(name, ".weight"))
        return MP_WTYPE_F32;
    if (strcmp(name, "output.weight") == 0 ||
        (model->tied && strcmp(name, "token_embd.weight") == 0))
        type = recipe->most;
    else if (recipe->mixed && sscanf(name, "blk.%u.", &layer) == 1 &&
             has_more(layer, model->layers) &&
             (strstr(name, ".ffn_down") != NULL || strstr(name, ".attn_v.") != NULL))
        type = recipe->most;
    return fit_rows(type, tensor->cols);
}
