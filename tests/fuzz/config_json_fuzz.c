/*
 * config.json, and behind a NUL byte generation_config.json. What is accepted must keep every
 * promise of engine/model/config.h, so that sizes can be multiplied and divided without looking.
 */
#include <math.h>
#include <string.h>

#include "engine/model/config.h"
#include "tests/fuzz/text.h"

static void check_config(const struct mp_model_config *c)
{
    uint32_t moe_layers = 0;

    FUZZ_CHECK(c->arch != NULL);
    FUZZ_CHECK(c->vocab >= 1 && c->vocab <= 1u << 22);
    FUZZ_CHECK(c->hidden >= 1 && c->hidden <= 1u << 17);
    FUZZ_CHECK(c->layers >= 1 && c->layers <= MP_LAYERS_MAX);
    FUZZ_CHECK(c->kv_heads >= 1 && c->heads >= 1 && c->heads <= 1024);
    FUZZ_CHECK(c->heads % c->kv_heads == 0);
    FUZZ_CHECK(c->head_dim >= 2 && c->head_dim % 2 == 0 && c->head_dim <= 1024);
    FUZZ_CHECK(c->positions_max >= 1 && c->positions_max <= 1u << 24);
    FUZZ_CHECK(c->norm_eps > 0 && isfinite(c->norm_eps));
    FUZZ_CHECK(c->rope_theta > 0 && isfinite(c->rope_theta));
    FUZZ_CHECK(c->experts >= 1 && c->experts <= MP_EXPERTS_MAX);
    FUZZ_CHECK(c->experts_per_token >= 1 && c->experts_per_token <= c->experts);
    FUZZ_CHECK(c->experts_per_token <= MP_EXPERTS_PER_TOKEN_MAX);
    FUZZ_CHECK(c->expert_ffn >= 1 && c->expert_ffn <= 1u << 20);
    FUZZ_CHECK(c->shared_ffn <= 1u << 20 && c->dense_ffn <= 1u << 20);
    for (uint32_t i = 0; i < c->layers; i++)
        moe_layers += c->is_moe[i];
    FUZZ_CHECK(moe_layers == c->moe_layers && moe_layers >= 1);
    FUZZ_CHECK(moe_layers == c->layers || c->dense_ffn >= 1);
    FUZZ_CHECK(c->bos == MP_TOKEN_NONE || c->bos < c->vocab);
    FUZZ_CHECK(c->eos_count <= MP_EOS_MAX);
    for (uint32_t i = 0; i < c->eos_count; i++)
        FUZZ_CHECK(c->eos[i] < c->vocab);
    FUZZ_CHECK(c->sampling.temperature >= 0 && isfinite(c->sampling.temperature));
    FUZZ_CHECK(c->sampling.top_p >= 0 && c->sampling.top_p <= 1);
    FUZZ_CHECK(c->sampling.top_k <= 1u << 22);
}

static void check_refusal(enum mp_status status)
{
    const struct mp_error *error = mp_error_last();

    FUZZ_CHECK(status == MP_ERR_MODEL);
    FUZZ_CHECK(error->status == status && error->code[0] == 'E' && error->text[0] != '\0');
    fuzz_check_message(error->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *nul = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    const size_t config_bytes = nul != NULL ? (size_t)(nul - data) : bytes;
    const char *generation = nul != NULL ? (const char *)nul + 1 : NULL;
    const size_t generation_bytes = nul != NULL ? bytes - config_bytes - 1 : 0;
    struct mp_model_config config;
    enum mp_status status;

    mp_error_clear();
    status = mp_model_config_parse((const char *)data, config_bytes, generation, generation_bytes,
                                   &config);
    if (status == MP_OK)
        check_config(&config);
    else
        check_refusal(status);
    return 0;
}
