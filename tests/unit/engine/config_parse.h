#ifndef MP_TESTS_CONFIG_PARSE_H
#define MP_TESTS_CONFIG_PARSE_H

#include <jansson.h>

#include "engine/model/config.h"
#include "tests/model/fails.h"

/* Configurations as published models have them, and with changes. */
static const char mixtral[] =
    "{\"architectures\":[\"MixtralForCausalLM\"],\"vocab_size\":32000,\"hidden_size\":4096,"
    "\"intermediate_size\":14336,\"num_hidden_layers\":32,\"num_attention_heads\":32,"
    "\"num_key_value_heads\":8,\"head_dim\":null,\"hidden_act\":\"silu\","
    "\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,"
    "\"sliding_window\":null,\"num_local_experts\":8,\"num_experts_per_tok\":2,"
    "\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_token_id\":2}";

static const char qwen2[] =
    "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"vocab_size\":151936,\"hidden_size\":2048,"
    "\"intermediate_size\":5632,\"num_hidden_layers\":24,\"num_attention_heads\":16,"
    "\"num_key_value_heads\":16,\"hidden_act\":\"silu\",\"max_position_embeddings\":8192,"
    "\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"use_sliding_window\":false,"
    "\"sliding_window\":4096,\"max_window_layers\":21,\"decoder_sparse_step\":1,"
    "\"moe_intermediate_size\":1408,\"shared_expert_intermediate_size\":5632,"
    "\"num_experts\":60,\"num_experts_per_tok\":4,\"norm_topk_prob\":false,"
    "\"eos_token_id\":151643}";

/* `base` with the keys of `changes` put in its place; a key in `without` is taken away. */
static inline enum mp_status parse(const char *base, const char *changes, const char *without,
                                   struct mp_model_config *config)
{
    json_t *root = json_loads(base, 0, NULL), *more = json_loads(changes, 0, NULL);
    enum mp_status status;
    char *text;

    CHECK(root != NULL && more != NULL);
    CHECK_EQ(json_object_update(root, more), 0);
    if (without != NULL)
        CHECK_EQ(json_object_del(root, without), 0);
    text = json_dumps(root, 0);
    CHECK(text != NULL);
    status = mp_model_config_parse(text, strlen(text), NULL, 0, config);
    free(text);
    json_decref(root);
    json_decref(more);
    return status;
}

static inline struct mp_model_config parse_ok(const char *base, const char *changes,
                                              const char *without)
{
    struct mp_model_config config;

    if (parse(base, changes, without, &config) != MP_OK)
        CHECK_STR(mp_error_last()->text, "no error");
    return config;
}

static inline void check_refused(const char *base, const char *changes, const char *without,
                                 const char *code, const char *text)
{
    struct mp_model_config config;

    CHECK_FAILS(parse(base, changes, without, &config), MP_ERR_MODEL, code, text);
}

#endif
