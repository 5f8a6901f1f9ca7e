/* config.json and generation_config.json: three architectures, defaults, ranges, refusals. */
#include "engine/model/arch/arch.h"
#include "tests/unit/engine/config_parse.h"

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
    check_refused(mixtral, "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}}", NULL,
                  "E_UNSUPPORTED",
                  "key 'type' in 'config.json': got 'dynamic', this engine supports 'default', "
                  "'linear', 'llama3', 'yarn' and 'longrope' only");
    check_refused(mixtral, "{\"rope_scaling\":{\"factor\":4}}", NULL, "E_UNSUPPORTED",
                  "key 'factor' in 'config.json': got 4, this engine supports scaling with a "
                  "'rope_type' only");
    check_refused(mixtral, "{\"rope_parameters\":{\"rope_type\":3}}", NULL, "E_UNSUPPORTED",
                  "key 'rope_type' in 'config.json': got 3, this engine supports 'default', "
                  "'linear', 'llama3', 'yarn' and 'longrope' only");
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

#define FAMILIES                                                                       \
    "DeepseekForCausalLM, DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, "              \
    "Ernie4_5_MoeForCausalLM, "                                                        \
    "Gemma4ForConditionalGeneration, Gemma4ForCausalLM, Glm4MoeForCausalLM, "          \
    "Glm4MoeLiteForCausalLM, GptOssForCausalLM, GraniteMoeForCausalLM, "               \
    "Lfm2MoeForCausalLM, MiniMaxM2ForCausalLM, MixtralForCausalLM, OlmoeForCausalLM, " \
    "PhimoeForCausalLM, PhiMoEForCausalLM, Qwen2MoeForCausalLM, "                      \
    "Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeForCausalLM, Qwen3MoeForCausalLM, " \
    "Qwen3NextForCausalLM, XverseForCausalLM, XverseMoeForCausalLM"

#define QUANTISED(got)                                                               \
    "key 'quantization_config' in 'config.json': got " got ", this engine supports " \
    "weights in F32, BF16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, " \
    "Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS or IQ3_S only"

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
                  "E_UNSUPPORTED", QUANTISED("'fp8'"));
    check_refused(qwen3, "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}",
                  NULL, "E_UNSUPPORTED", QUANTISED("'compressed-tensors'"));
    check_refused(qwen3, "{\"quantization_config\":{\"quant_method\":\"mxfp4\"}}", NULL,
                  "E_UNSUPPORTED", QUANTISED("'mxfp4'"));
    check_refused(qwen3, "{\"quantization_config\":{\"bits\":4}}", NULL, "E_UNSUPPORTED",
                  QUANTISED("an object"));
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
    RUN(sizes_have_ranges);
    RUN(the_greatest_sizes_are_accepted);
    RUN(fields_must_fit_each_other);
    RUN(generation_config_goes_first);
    RUN(texts_that_are_no_configuration);
    return 0;
}
