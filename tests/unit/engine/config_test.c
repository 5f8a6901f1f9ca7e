/* config.json and generation_config.json: three architectures, defaults, ranges, refusals. */
#include <jansson.h>
#include <math.h>

#include "engine/model/arch/arch.h"
#include "engine/model/config.h"
#include "tests/model/fails.h"

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

/* As library version 5 writes it. */
static const char qwen3[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"attention_bias\":false,\"vocab_size\":151936,"
    "\"hidden_size\":2048,\"intermediate_size\":6144,\"num_hidden_layers\":48,"
    "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,"
    "\"hidden_act\":\"silu\",\"max_position_embeddings\":40960,\"rms_norm_eps\":1e-06,"
    "\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":\"default\"},"
    "\"use_sliding_window\":false,\"sliding_window\":null,\"decoder_sparse_step\":1,"
    "\"mlp_only_layers\":[],\"moe_intermediate_size\":768,\"num_local_experts\":128,"
    "\"num_experts_per_tok\":8,\"norm_topk_prob\":true,\"tie_word_embeddings\":false,"
    "\"eos_token_id\":null}";

static const char glm4[] =
    "{\"architectures\":[\"Glm4MoeForCausalLM\"],\"vocab_size\":151552,\"hidden_size\":4096,"
    "\"intermediate_size\":10944,\"num_hidden_layers\":46,\"num_attention_heads\":96,"
    "\"num_key_value_heads\":8,\"head_dim\":128,\"moe_intermediate_size\":1408,"
    "\"n_routed_experts\":128,\"num_experts_per_tok\":8,\"n_shared_experts\":1,\"n_group\":8,"
    "\"topk_group\":4,\"routed_scaling_factor\":2.5,\"use_qk_norm\":true,"
    "\"rope_theta\":1000000}";

/* `base` with the keys of `changes` put in its place; a key in `without` is taken away. */
static enum mp_status parse(const char *base, const char *changes, const char *without,
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

static struct mp_model_config parse_ok(const char *base, const char *changes, const char *without)
{
    struct mp_model_config config;

    if (parse(base, changes, without, &config) != MP_OK)
        CHECK_STR(mp_error_last()->text, "no error");
    return config;
}

static void check_refused(const char *base, const char *changes, const char *without,
                          const char *code, const char *text)
{
    struct mp_model_config config;

    CHECK_FAILS(parse(base, changes, without, &config), MP_ERR_MODEL, code, text);
}

static void mixtral_is_read(void)
{
    const struct mp_model_config c = parse_ok(mixtral, "{}", NULL);

    CHECK(c.arch == &mp_arch_mixtral);
    CHECK_EQ(c.vocab, 32000);
    CHECK_EQ(c.hidden, 4096);
    CHECK_EQ(c.layers, 32);
    CHECK_EQ(c.heads, 32);
    CHECK_EQ(c.kv_heads, 8);
    CHECK_EQ(c.head_dim, 128);
    CHECK_EQ(c.positions_max, 32768);
    CHECK(c.norm_eps == 1e-5f);
    CHECK(c.rope_theta == 1e6);
    CHECK_EQ(c.experts, 8);
    CHECK_EQ(c.experts_per_token, 2);
    CHECK_EQ(c.expert_ffn, 14336);
    CHECK_EQ(c.shared_ffn, 0);
    CHECK_EQ(c.dense_ffn, 0);
    CHECK_EQ(c.moe_layers, 32);
    CHECK(c.norm_topk && !c.qkv_bias && !c.o_bias && !c.qk_norm && !c.tied);
    CHECK_EQ(c.bos, 1);
    CHECK_EQ(c.eos_count, 1);
    CHECK_EQ(c.eos[0], 2);
    CHECK(!c.sampling.do_sample && c.sampling.temperature == 1 && c.sampling.top_p == 1);
    CHECK_EQ(c.sampling.top_k, 0);
}

static void qwen2_moe_is_read(void)
{
    struct mp_model_config c = parse_ok(qwen2, "{}", NULL);

    CHECK(c.arch == &mp_arch_qwen2_moe);
    CHECK_EQ(c.experts, 60);
    CHECK_EQ(c.expert_ffn, 1408);
    CHECK_EQ(c.shared_ffn, 5632);
    CHECK_EQ(c.dense_ffn, 0);
    CHECK(!c.norm_topk && c.qkv_bias && !c.o_bias && !c.qk_norm);
    CHECK_EQ(c.bos, MP_TOKEN_NONE);
    CHECK_EQ(c.eos[0], 151643);

    c = parse_ok(qwen2, "{\"qkv_bias\":false,\"decoder_sparse_step\":2,\"mlp_only_layers\":[1,4]}",
                 NULL);
    CHECK(!c.qkv_bias);
    CHECK_EQ(c.dense_ffn, 5632);
    CHECK_EQ(c.moe_layers, 11); /* 1, 3, 5, ... 23 without 1 */
    CHECK(!c.is_moe[0] && !c.is_moe[1] && !c.is_moe[2] && c.is_moe[3] && !c.is_moe[4]);
}

static void qwen3_moe_is_read(void)
{
    struct mp_model_config c = parse_ok(qwen3, "{}", NULL);

    CHECK(c.arch == &mp_arch_qwen3_moe);
    CHECK_EQ(c.head_dim, 128);
    CHECK_EQ(c.experts, 128);
    CHECK(c.rope_theta == 1e6);
    CHECK(c.qk_norm && c.norm_topk && !c.qkv_bias && !c.o_bias);
    CHECK_EQ(c.eos_count, 0);

    c = parse_ok(qwen3, "{\"num_experts\":64,\"norm_topk_prob\":false,\"attention_bias\":true}",
                 "num_local_experts");
    CHECK_EQ(c.experts, 64);
    CHECK(!c.norm_topk && c.qkv_bias && c.o_bias);
    /* The size of a head is independent of hidden_size; without it, their ratio. */
    CHECK_EQ(parse_ok(qwen3, "{}", "head_dim").head_dim, 64);
}

static void missing_fields_have_the_library_s_defaults(void)
{
    CHECK(parse_ok(qwen2, "{}", "rope_theta").rope_theta == 1e4);
    CHECK(parse_ok(mixtral, "{}", "rope_theta").rope_theta == 1e6);
    CHECK(parse_ok(mixtral, "{}", "rms_norm_eps").norm_eps == 1e-5f);
    CHECK(parse_ok(qwen3, "{}", "rms_norm_eps").norm_eps == 1e-6f);
    CHECK(parse_ok(qwen2, "{}", "rms_norm_eps").norm_eps == 1e-6f);
    CHECK(parse_ok(qwen3, "{\"rope_parameters\":null}", NULL).rope_theta == 1e4);
    CHECK(!parse_ok(qwen3, "{}", "norm_topk_prob").norm_topk);
    CHECK_EQ(parse_ok(qwen2, "{}", "max_position_embeddings").positions_max, 32768);
    CHECK_EQ(parse_ok(qwen3, "{}", "max_position_embeddings").positions_max, 32768);
    CHECK_EQ(parse_ok(mixtral, "{}", "max_position_embeddings").positions_max, 131072);
    CHECK_EQ(parse_ok(mixtral, "{\"num_key_value_heads\":null}", NULL).kv_heads, 32);
    CHECK(parse_ok(mixtral, "{\"model_type\":\"mixtral\"}", "architectures").arch ==
          &mp_arch_mixtral);
    CHECK_EQ(parse_ok(qwen3, "{\"hidden_act\":\"swish\"}", NULL).layers, 48);
}

static void rope_in_every_place_where_it_is_written(void)
{
    CHECK(parse_ok(mixtral, "{\"rope_scaling\":null}", NULL).rope_theta == 1e6);
    CHECK(parse_ok(mixtral, "{\"rope_scaling\":{\"type\":\"default\"}}", NULL).rope_theta == 1e6);
    CHECK(parse_ok(mixtral, "{\"rope_parameters\":{\"rope_theta\":5}}", "rope_theta").rope_theta ==
          5);
    /* From 1 to 10^12, in both places. */
    CHECK(parse_ok(mixtral, "{\"rope_theta\":1}", NULL).rope_theta == 1);
    CHECK(parse_ok(mixtral, "{\"rope_theta\":1e12}", NULL).rope_theta == 1e12);
    CHECK(parse_ok(qwen3, "{\"rope_parameters\":{\"rope_theta\":1e12}}", NULL).rope_theta == 1e12);
    check_refused(
        mixtral, "{\"rope_theta\":1000000000001}", NULL, "E_JSON_RANGE",
        "key 'rope_theta' in 'config.json': got 1000000000001, need a number from 1 to 1e+12");
    check_refused(
        qwen3, "{\"rope_parameters\":{\"rope_theta\":1000000000001}}", NULL, "E_JSON_RANGE",
        "key 'rope_theta' in 'config.json': got 1000000000001, need a number from 1 to 1e+12");
    check_refused(mixtral, "{\"rope_scaling\":{\"type\":\"longrope\",\"factor\":4}}", NULL,
                  "E_UNSUPPORTED",
                  "key 'type' in 'config.json': got 'longrope', this engine supports 'default', "
                  "'linear', 'llama3' and 'yarn' only");
    check_refused(mixtral, "{\"rope_scaling\":{\"factor\":4}}", NULL, "E_UNSUPPORTED",
                  "key 'factor' in 'config.json': got 4, this engine supports scaling with a "
                  "'rope_type' only");
    check_refused(mixtral, "{\"rope_parameters\":{\"rope_type\":3}}", NULL, "E_UNSUPPORTED",
                  "key 'rope_type' in 'config.json': got 3, this engine supports 'default', "
                  "'linear', 'llama3' and 'yarn' only");
    check_refused(mixtral, "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}}", NULL,
                  "E_UNSUPPORTED",
                  "key 'rope_parameters' in 'config.json': got an object, this engine supports "
                  "the same RoPE in all layers only");
    check_refused(mixtral, "{\"partial_rotary_factor\":0.5}", NULL, "E_UNSUPPORTED",
                  "key 'partial_rotary_factor' in 'config.json': got 0.5, this engine supports 1 "
                  "only");
    check_refused(qwen3, "{\"rope_parameters\":{\"rope_theta\":0}}", NULL, "E_JSON_RANGE",
                  "key 'rope_theta' in 'config.json': got 0, need a number from 1 to 1e+12");
}

static void scaled_positions_are_read(void)
{
    struct mp_rope r = parse_ok(mixtral, "{}", NULL).rope;

    CHECK(r.kind == MP_ROPE_PLAIN && r.factor == 1 && r.magnitude == 1);
    r = parse_ok(mixtral, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", NULL).rope;
    CHECK(r.kind == MP_ROPE_LINEAR && r.factor == 4 && r.magnitude == 1);
    r = parse_ok(mixtral,
                 "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
                 "\"low_freq_factor\":2,\"high_freq_factor\":5,"
                 "\"original_max_position_embeddings\":8192}}",
                 NULL)
            .rope;
    CHECK(r.kind == MP_ROPE_LLAMA3 && r.factor == 8 && r.slow == 2 && r.fast == 5);
    CHECK(r.original == 8192 && r.magnitude == 1);
    r = parse_ok(mixtral,
                 "{\"original_max_position_embeddings\":4096,"
                 "\"rope_scaling\":{\"type\":\"yarn\",\"truncate\":false}}",
                 NULL)
            .rope;
    CHECK(r.kind == MP_ROPE_YARN && r.factor == 8 && r.slow == 1 && r.fast == 32 && !r.truncate);
    CHECK(fabs(r.magnitude - 1.2079441541679836) < 1e-12);
    r = parse_ok(mixtral,
                 "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":1.0,"
                 "\"mscale_all_dim\":1.0}}",
                 NULL)
            .rope;
    CHECK(r.original == 32768 && r.magnitude == 1 && r.truncate);
    check_refused(mixtral, "{\"rope_scaling\":{\"type\":\"linear\"}}", NULL, "E_JSON_KEY",
                  "key 'factor' in 'config.json' is missing, need a number from 1e-06 to 1e+06");
    check_refused(mixtral, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_slow\":32}}",
                  NULL, "E_CONFIG",
                  "key 'beta_slow' in 'config.json': got 32, need less than beta_fast 32");
}

static void windows_are_read_by_layer(void)
{
    struct mp_model_config c = parse_ok(mixtral, "{\"sliding_window\":4096}", NULL);

    CHECK(c.window == 4096 && c.windowed[0] && c.windowed[31]);
    CHECK_STR(mp_model_config_beyond(&c), "a sliding window");
    c = parse_ok(mixtral, "{\"sliding_window\":32768}", NULL);
    CHECK(c.window == 0 && !c.windowed[0]);
    CHECK(mp_model_config_beyond(&c) == NULL);
    c = parse_ok(qwen2, "{\"sliding_window\":1}", NULL);
    CHECK(c.window == 0 && !c.windowed[0]);
    c = parse_ok(mixtral,
                 "{\"num_hidden_layers\":2,\"sliding_window\":9,"
                 "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
                 NULL);
    CHECK(c.window == 9 && !c.windowed[0] && c.windowed[1]);
    /* Versions of the library disagree about the layers. */
    check_refused(qwen2, "{\"use_sliding_window\":true}", NULL, "E_UNSUPPORTED",
                  "key 'sliding_window' in 'config.json': got 4096, this engine supports a window "
                  "together with 'layer_types' only");
    check_refused(qwen2, "{\"layer_types\":[\"full_attention\",\"linear_attention\"]}", NULL,
                  "E_UNSUPPORTED",
                  "key 'layer_types' in 'config.json': got 'linear_attention', this engine "
                  "supports 'full_attention' and 'sliding_attention' only");
    check_refused(qwen2, "{\"layer_types\":[\"full_attention\"]}", NULL, "E_CONFIG",
                  "key 'layer_types' in 'config.json': got 1 types, need one for each of 24 "
                  "layers");
    check_refused(qwen2, "{\"layer_types\":\"sliding_attention\"}", NULL, "E_JSON_TYPE",
                  "key 'layer_types' in 'config.json': got 'sliding_attention', need an array");
    check_refused(mixtral, "{\"sliding_window\":0}", NULL, "E_JSON_RANGE",
                  "key 'sliding_window' in 'config.json': got 0, need an integer from 1 to "
                  "4294967295");
}

static void routers_of_other_families_are_read(void)
{
    struct mp_model_config c = parse_ok(glm4, "{}", NULL);

    CHECK(c.router == MP_ROUTER_SIGMOID && c.select_bias && c.norm_topk && c.qk_norm);
    CHECK(c.groups == 8 && c.groups_used == 4 && c.group_best == 2 && c.routed_scale == 2.5f);
    CHECK(c.shared_ffn == 1408 && c.dense_ffn == 10944 && c.moe_layers == 45 && !c.is_moe[0]);
    CHECK(c.rotary_dim == 64 && c.head_dim == 128);
    CHECK_STR(mp_model_config_beyond(&c), "sigmoid scores");
    CHECK_EQ(parse_ok(glm4, "{\"partial_rotary_factor\":0.25}", NULL).rotary_dim, 32);
    CHECK_EQ(parse_ok(glm4, "{\"first_k_dense_replace\":0}", NULL).moe_layers, 46);
    check_refused(glm4, "{\"n_group\":5}", NULL, "E_CONFIG",
                  "key 'n_group' in 'config.json': got 5 groups for 128 experts, need equal ones, "
                  "of which 4 hold the 8 experts of a token");
    check_refused(glm4, "{\"n_group\":128}", NULL, "E_CONFIG",
                  "key 'n_group' in 'config.json': got 128 groups for 128 experts, need equal "
                  "ones, of which 4 hold the 8 experts of a token");
    check_refused(glm4, "{\"topk_group\":9}", NULL, "E_JSON_RANGE",
                  "key 'topk_group' in 'config.json': got 9, need an integer from 1 to 8");
    check_refused(glm4, "{\"first_k_dense_replace\":46}", NULL, "E_CONFIG",
                  "'config.json': no layer has experts (first_k_dense_replace); need at least one");
    check_refused(glm4, "{\"partial_rotary_factor\":0.01}", NULL, "E_CONFIG",
                  "rotated elements of a head in 'config.json': got 1, need an even number");
    check_refused(glm4, "{\"architectures\":[\"OlmoeForCausalLM\"],\"clip_qkv\":8}", NULL,
                  "E_UNSUPPORTED",
                  "key 'clip_qkv' in 'config.json': got 8, this engine supports queries, keys and "
                  "values without limits only");
}

#define FAMILIES                                                                                 \
    "Ernie4_5_MoeForCausalLM, Glm4MoeForCausalLM, GraniteMoeForCausalLM, MiniMaxM2ForCausalLM, " \
    "MixtralForCausalLM, OlmoeForCausalLM, Qwen2MoeForCausalLM, Qwen3MoeForCausalLM"

static void what_is_not_implemented_is_refused_by_name(void)
{
    check_refused(mixtral, "{\"architectures\":[\"GptForCausalLM\"]}", NULL, "E_UNSUPPORTED",
                  "key 'architectures' in 'config.json': got 'GptForCausalLM', this engine "
                  "supports " FAMILIES);
    check_refused(mixtral, "{\"model_type\":\"llama\"}", "architectures", "E_UNSUPPORTED",
                  "key 'model_type' in 'config.json': got 'llama', this engine supports " FAMILIES);
    check_refused(mixtral, "{}", "architectures", "E_UNSUPPORTED",
                  "key 'model_type' in 'config.json': got nothing, this engine supports " FAMILIES);
    check_refused(qwen3, "{\"quantization_config\":{\"quant_method\":\"fp8\"}}", NULL,
                  "E_UNSUPPORTED",
                  "key 'quantization_config' in 'config.json': got 'fp8', this engine supports "
                  "weights in F32, BF16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, "
                  "Q3_K, Q4_K, Q5_K, Q6_K or IQ4_XS only");
    check_refused(qwen3, "{\"hidden_act\":\"gelu\"}", NULL, "E_UNSUPPORTED",
                  "key 'hidden_act' in 'config.json': got 'gelu', this engine supports 'silu' "
                  "only");
}

static void sizes_have_ranges(void)
{
    static const struct {
        const char *changes, *text;
    } cases[] = {
        { "{\"hidden_size\":0}",
          "key 'hidden_size' in 'config.json': got 0, need an integer from 1 to 131072" },
        { "{\"hidden_size\":9223372036854775807}",
          "key 'hidden_size' in 'config.json': got 9223372036854775807, need an integer from 1 to "
          "131072" },
        { "{\"num_attention_heads\":0}",
          "key 'num_attention_heads' in 'config.json': got 0, need an integer from 1 to 1024" },
        { "{\"num_key_value_heads\":0}",
          "key 'num_key_value_heads' in 'config.json': got 0, need an integer from 1 to 1024" },
        { "{\"num_hidden_layers\":-1}",
          "key 'num_hidden_layers' in 'config.json': got -1, need an integer from 1 to 512" },
        { "{\"vocab_size\":4194305}",
          "key 'vocab_size' in 'config.json': got 4194305, need an integer from 1 to 4194304" },
        { "{\"num_local_experts\":0}",
          "key 'num_local_experts' in 'config.json': got 0, need an integer from 1 to 4096" },
        { "{\"num_experts_per_tok\":0}",
          "key 'num_experts_per_tok' in 'config.json': got 0, need an integer from 1 to 64" },
        { "{\"intermediate_size\":1048577}",
          "key 'intermediate_size' in 'config.json': got 1048577, need an integer from 1 to "
          "1048576" },
        { "{\"rms_norm_eps\":0}",
          "key 'rms_norm_eps' in 'config.json': got 0, need a number from 1e-20 to 1" },
        { "{\"head_dim\":0}",
          "key 'head_dim' in 'config.json': got 0, need an integer from 2 to 1024" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++)
        check_refused(mixtral, cases[i].changes, NULL, "E_JSON_RANGE", cases[i].text);
    check_refused(mixtral, "{\"hidden_size\":4096.0}", NULL, "E_JSON_TYPE",
                  "key 'hidden_size' in 'config.json': got 4096, need an integer from 1 to 131072");
    check_refused(mixtral, "{}", "hidden_size", "E_JSON_KEY",
                  "key 'hidden_size' in 'config.json' is missing, need an integer from 1 to "
                  "131072");
    check_refused(mixtral, "{}", "num_key_value_heads", "E_JSON_KEY",
                  "key 'num_key_value_heads' in 'config.json' is missing, need an integer from 1 "
                  "to 1024");
    check_refused(qwen3, "{\"decoder_sparse_step\":0}", NULL, "E_JSON_RANGE",
                  "key 'decoder_sparse_step' in 'config.json': got 0, need an integer from 1 to "
                  "1048576");
}

static void the_greatest_sizes_are_accepted(void)
{
    struct mp_model_config c;

    c = parse_ok(
        mixtral,
        "{\"hidden_size\":131072,\"num_attention_heads\":1024,\"num_key_value_heads\":1024,"
        "\"vocab_size\":4194304,\"num_hidden_layers\":512,\"num_local_experts\":4096,"
        "\"num_experts_per_tok\":64,\"intermediate_size\":1048576,"
        "\"max_position_embeddings\":16777216,\"rms_norm_eps\":1}",
        NULL);
    CHECK_EQ(c.hidden, 131072);
    CHECK_EQ(c.heads, 1024);
    CHECK_EQ(c.head_dim, 128);
    CHECK_EQ(c.layers, 512);
    CHECK_EQ(c.experts, 4096);
    CHECK_EQ(c.experts_per_token, 64);
    CHECK_EQ(c.expert_ffn, 1048576);
    CHECK_EQ(c.positions_max, 16777216);
    CHECK(c.norm_eps == 1);
    c = parse_ok(mixtral, "{\"hidden_size\":131072,\"num_attention_heads\":128}", NULL);
    CHECK_EQ(c.head_dim, 1024);
    check_refused(mixtral, "{\"hidden_size\":131072,\"num_attention_heads\":64}", NULL, "E_CONFIG",
                  "key 'hidden_size' in 'config.json': got 131072, need a multiple of "
                  "num_attention_heads 64 and at most 1024 per head");
    check_refused(mixtral, "{\"max_position_embeddings\":16777217}", NULL, "E_JSON_RANGE",
                  "key 'max_position_embeddings' in 'config.json': got 16777217, need an integer "
                  "from 1 to 16777216");
}

static void fields_must_fit_each_other(void)
{
    check_refused(mixtral, "{\"num_key_value_heads\":5}", NULL, "E_CONFIG",
                  "key 'num_attention_heads' in 'config.json': got 32, need a multiple of "
                  "num_key_value_heads 5");
    check_refused(mixtral, "{\"hidden_size\":4097}", NULL, "E_CONFIG",
                  "key 'hidden_size' in 'config.json': got 4097, need a multiple of "
                  "num_attention_heads 32 and at most 1024 per head");
    check_refused(mixtral, "{\"head_dim\":127}", NULL, "E_CONFIG",
                  "size of a head in 'config.json': got 127, need an even number");
    check_refused(mixtral, "{\"num_experts_per_tok\":9}", NULL, "E_CONFIG",
                  "key 'num_experts_per_tok' in 'config.json': got 9, need at most "
                  "num_local_experts 8");
    check_refused(qwen3, "{\"decoder_sparse_step\":49}", NULL, "E_CONFIG",
                  "'config.json': no layer has experts (decoder_sparse_step, mlp_only_layers); "
                  "need at least one");
    check_refused(qwen3, "{\"mlp_only_layers\":[48]}", NULL, "E_CONFIG",
                  "key 'mlp_only_layers' in 'config.json': got 48, need layers from 0 to 47");
    check_refused(qwen3, "{\"mlp_only_layers\":[\"0\"]}", NULL, "E_CONFIG",
                  "key 'mlp_only_layers' in 'config.json': got '0', need layers from 0 to 47");
    check_refused(qwen3, "{\"mlp_only_layers\":[0]}", "intermediate_size", "E_JSON_KEY",
                  "key 'intermediate_size' in 'config.json' is missing, need an integer from 1 to "
                  "1048576");
    check_refused(mixtral, "{\"eos_token_id\":32000}", NULL, "E_CONFIG",
                  "key 'eos_token_id' in 'config.json': got 32000, need token ids below "
                  "vocab_size 32000");
    check_refused(mixtral, "{\"eos_token_id\":[1,-1]}", NULL, "E_CONFIG",
                  "key 'eos_token_id' in 'config.json': got -1, need token ids below vocab_size "
                  "32000");
}

static void generation_config_goes_first(void)
{
    static const char generation[] =
        "{\"eos_token_id\":[5,7],\"do_sample\":true,\"temperature\":0.6,\"top_k\":20,"
        "\"top_p\":0.95,\"bos_token_id\":9}";
    static const char hot[] = "{\"temperature\":-0.5}";
    struct mp_model_config c;

    CHECK_EQ(mp_model_config_parse(mixtral, strlen(mixtral), generation, strlen(generation), &c),
             MP_OK);
    CHECK_EQ(c.eos_count, 2);
    CHECK_EQ(c.eos[0], 5);
    CHECK_EQ(c.eos[1], 7);
    CHECK_EQ(c.bos, 9);
    CHECK(c.sampling.do_sample && c.sampling.temperature == 0.6 && c.sampling.top_p == 0.95);
    CHECK_EQ(c.sampling.top_k, 20);
    CHECK_EQ(mp_model_config_parse(mixtral, strlen(mixtral), "{}", 2, &c), MP_OK);
    CHECK_EQ(c.eos[0], 2);
    CHECK_FAILS(mp_model_config_parse(mixtral, strlen(mixtral), hot, strlen(hot), &c), MP_ERR_MODEL,
                "E_JSON_RANGE",
                "key 'temperature' in 'generation_config.json': got -0.5, need a number from 0 to "
                "1000");
}

static void texts_that_are_no_configuration(void)
{
    struct mp_model_config c;

    CHECK_EQ(mp_model_config_parse("[]", 2, NULL, 0, &c), MP_ERR_MODEL);
    CHECK_EQ(mp_model_config_parse("{", 1, NULL, 0, &c), MP_ERR_MODEL);
    CHECK_FAILS(mp_model_config_parse("{\"a\":1,\"a\":2}", 13, NULL, 0, &c), MP_ERR_MODEL,
                "E_JSON_DUP",
                "'config.json' at byte 10 is not valid JSON: duplicate object key near '\"a\"'");
}

int main(void)
{
    RUN(mixtral_is_read);
    RUN(qwen2_moe_is_read);
    RUN(qwen3_moe_is_read);
    RUN(missing_fields_have_the_library_s_defaults);
    RUN(rope_in_every_place_where_it_is_written);
    RUN(what_is_not_implemented_is_refused_by_name);
    RUN(windows_are_read_by_layer);
    RUN(scaled_positions_are_read);
    RUN(routers_of_other_families_are_read);
    RUN(sizes_have_ranges);
    RUN(the_greatest_sizes_are_accepted);
    RUN(fields_must_fit_each_other);
    RUN(generation_config_goes_first);
    RUN(texts_that_are_no_configuration);
    return 0;
}
