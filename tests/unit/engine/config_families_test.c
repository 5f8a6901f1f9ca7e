/* config.json of families that ask for more than the first three: positions, windows, routers,
 * latent attention. */
#include <math.h>

#include "tests/unit/engine/config_parse.h"

static const char glm4[] =
    "{\"architectures\":[\"Glm4MoeForCausalLM\"],\"vocab_size\":151552,\"hidden_size\":4096,"
    "\"intermediate_size\":10944,\"num_hidden_layers\":46,\"num_attention_heads\":96,"
    "\"num_key_value_heads\":8,\"head_dim\":128,\"moe_intermediate_size\":1408,"
    "\"n_routed_experts\":128,\"num_experts_per_tok\":8,\"n_shared_experts\":1,\"n_group\":8,"
    "\"topk_group\":4,\"routed_scaling_factor\":2.5,\"use_qk_norm\":true,"
    "\"rope_theta\":1000000}";

static const char deepseek[] =
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"vocab_size\":129280,\"hidden_size\":7168,"
    "\"intermediate_size\":18432,\"num_hidden_layers\":61,\"num_attention_heads\":128,"
    "\"num_key_value_heads\":128,\"moe_intermediate_size\":2048,\"n_routed_experts\":256,"
    "\"num_experts_per_tok\":8,\"n_shared_experts\":1,\"n_group\":8,\"topk_group\":4,"
    "\"routed_scaling_factor\":2.5,\"first_k_dense_replace\":3,\"kv_lora_rank\":512,"
    "\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
    "\"v_head_dim\":128,\"rope_theta\":10000,\"max_position_embeddings\":163840}";

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
    /* Waves of 6.3 to 5e6 positions; between 8192 / 5 and 8192 / 2 of them a mixture. */
    CHECK(r.kind == MP_ROPE_LONG && r.magnitude == 1 && r.long_magnitude == 1);
    CHECK(r.factors[0][0] == 1 && r.factors[0][63] == 8 && r.factors[0][32] == 8);
    CHECK(memcmp(r.factors[0], r.factors[1], sizeof(r.factors[0])) == 0);
    for (unsigned i = 0; i < 64; i++) {
        const double wave = 6.283185307179586 * pow(1e6, i / 64.0), turns = 8192 / wave;
        const double mixed = 1 / ((5 - turns) / 3 / 8 + (turns - 2) / 3);

        CHECK(fabs(r.factors[0][i] - (turns < 2 ? 8 : turns > 5 ? 1 : mixed)) < 1e-6);
    }
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

/* Divisors of every frequency, for texts of the length that the model was trained with and longer.
 */
static void factors_of_frequencies_are_read(void)
{
#define FOUR "[1,1.5,2,4]"
#define SHORT_HEADS "{\"head_dim\":8,\"original_max_position_embeddings\":4096,\"rope_scaling\":"
    struct mp_rope r = parse_ok(mixtral,
                                SHORT_HEADS "{\"type\":\"longrope\",\"short_factor\":" FOUR
                                            ",\"long_factor\":[3,5,7,9]}}",
                                NULL)
                           .rope;

    CHECK(r.kind == MP_ROPE_LONG && r.original == 4096);
    CHECK(r.factors[0][0] == 1 && r.factors[0][3] == 4);
    CHECK(r.factors[1][0] == 3 && r.factors[1][3] == 9);
    CHECK(fabs(r.magnitude - 1.1180339887498949) < 1e-12 && r.long_magnitude == r.magnitude);
    r = parse_ok(mixtral,
                 SHORT_HEADS "{\"type\":\"longrope\",\"short_factor\":" FOUR
                             ",\"long_factor\":" FOUR
                             ",\"short_mscale\":1.25,\"long_mscale\":1.75}}",
                 NULL)
            .rope;
    CHECK(r.magnitude == 1.25 && r.long_magnitude == 1.75);
    check_refused(mixtral, SHORT_HEADS "{\"type\":\"longrope\",\"short_factor\":[1,2]}}", NULL,
                  "E_CONFIG",
                  "key 'short_factor' in 'config.json': got 2 numbers, need one for each of 4 "
                  "rotated pairs of a head");
    check_refused(mixtral,
                  SHORT_HEADS "{\"type\":\"longrope\",\"short_factor\":" FOUR
                              ",\"long_factor\":[1,2,0,4]}}",
                  NULL, "E_CONFIG",
                  "key 'long_factor' in 'config.json': got 0, need numbers from 1e-6 to 1e6");
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

static void latent_attention_is_read(void)
{
    struct mp_model_config c = parse_ok(deepseek, "{}", NULL);

    CHECK(c.kv_heads == 1 && c.head_dim == 576 && c.rotary_dim == 64 && c.kv_rank == 512);
    CHECK(c.q_rank == 1536 && c.nope_dim == 128 && c.value_dim == 128);
    CHECK(fabsf(c.attention_scale - 0.07216878f) < 1e-7f);
    CHECK_STR(mp_model_config_beyond(&c), "latent attention");
    CHECK_EQ(parse_ok(deepseek, "{\"q_lora_rank\":null}", NULL).q_rank, 0);
    c = parse_ok(deepseek,
                 "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":1.0,"
                 "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096}}",
                 NULL);
    CHECK(c.rope.magnitude == 1 && fabsf(c.attention_scale - 0.1352338f) < 1e-6f);
    check_refused(deepseek, "{\"kv_lora_rank\":769}", NULL, "E_JSON_RANGE",
                  "key 'kv_lora_rank' in 'config.json': got 769, need an integer from 1 to 768");
    check_refused(deepseek, "{\"qk_rope_head_dim\":257}", NULL, "E_JSON_RANGE",
                  "key 'qk_rope_head_dim' in 'config.json': got 257, need an integer from 2 to "
                  "256");
    check_refused(deepseek, "{\"qk_rope_head_dim\":63}", NULL, "E_CONFIG",
                  "sizes of latents in 'config.json': got qk_rope_head_dim 63 and kv_lora_rank "
                  "512, need even numbers");
    check_refused(deepseek, "{\"rope_interleave\":false}", NULL, "E_UNSUPPORTED",
                  "key 'rope_interleave' in 'config.json': got false, this engine supports true "
                  "only");
    check_refused(deepseek, "{\"attention_bias\":true}", NULL, "E_UNSUPPORTED",
                  "key 'attention_bias' in 'config.json': got true, this engine supports attention "
                  "without biases only");
    check_refused(deepseek, "{}", "v_head_dim", "E_JSON_KEY",
                  "key 'v_head_dim' in 'config.json' is missing, need an integer from 1 to 1024");
}

static void layers_with_experts_are_listed(void)
{
    static const char lite[] = "{\"architectures\":[\"Glm4MoeLiteForCausalLM\"],"
                               "\"num_hidden_layers\":3,\"mlp_layer_types\":%s}";
    char text[256];
    struct mp_model_config c;

    snprintf(text, sizeof(text), lite, "[\"sparse\",\"dense\",\"sparse\"]");
    c = parse_ok(deepseek, text, NULL);
    CHECK(c.is_moe[0] && !c.is_moe[1] && c.is_moe[2]);
    snprintf(text, sizeof(text), lite, "null");
    c = parse_ok(deepseek, text, "first_k_dense_replace");
    CHECK(!c.is_moe[0] && c.is_moe[1] && c.is_moe[2]);
    snprintf(text, sizeof(text), lite, "[\"sparse\"]");
    check_refused(deepseek, text, NULL, "E_CONFIG",
                  "key 'mlp_layer_types' in 'config.json': got 1 kinds, need one for each of 3 "
                  "layers");
    snprintf(text, sizeof(text), lite, "[\"sparse\",\"none\",\"sparse\"]");
    check_refused(deepseek, text, NULL, "E_UNSUPPORTED",
                  "key 'mlp_layer_types' in 'config.json': got 'none', this engine supports "
                  "'sparse' and 'dense' only");
}

static void groups_of_deepseek_v2_may_not_be_used(void)
{
    static const char v2[] =
        "{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"n_group\":8,\"topk_group\":3,"
        "\"num_experts_per_tok\":6,\"norm_topk_prob\":false,\"topk_method\":%s}";
    char text[256];
    struct mp_model_config c;

    snprintf(text, sizeof(text), v2, "\"greedy\"");
    c = parse_ok(deepseek, text, NULL);
    CHECK(c.groups == 1 && c.router == MP_ROUTER_SOFTMAX && !mp_model_config_selects(&c));
    snprintf(text, sizeof(text), v2, "\"group_limited_greedy\"");
    c = parse_ok(deepseek, text, NULL);
    CHECK(c.groups == 8 && c.groups_used == 3 && c.group_best == 1);
    snprintf(text, sizeof(text), v2, "\"noaux_tc\"");
    check_refused(deepseek, text, NULL, "E_UNSUPPORTED",
                  "key 'topk_method' in 'config.json': got 'noaux_tc', this engine supports "
                  "'greedy' and 'group_limited_greedy' only");
}

static const char gemma4[] =
    "{\"architectures\":[\"Gemma4ForCausalLM\"],\"vocab_size\":262144,\"hidden_size\":2816,"
    "\"intermediate_size\":2112,\"num_hidden_layers\":6,\"num_attention_heads\":16,"
    "\"num_key_value_heads\":8,\"head_dim\":256,\"global_head_dim\":512,"
    "\"num_global_key_value_heads\":2,\"attention_k_eq_v\":true,\"sliding_window\":1024,"
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size_per_layer_input\":0,"
    "\"num_kv_shared_layers\":0,\"enable_moe_block\":true,\"num_experts\":128,"
    "\"top_k_experts\":8,\"moe_intermediate_size\":704,\"final_logit_softcapping\":30.0,"
    "\"use_bidirectional_attention\":\"vision\",\"layer_types\":[\"sliding_attention\","
    "\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
    "\"sliding_attention\",\"full_attention\"],\"rope_parameters\":{"
    "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":20000.0},"
    "\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,"
    "\"rope_theta\":2000000.0,\"factor\":4}}}";

static void layers_with_wider_heads_are_read(void)
{
    struct mp_model_config c = parse_ok(gemma4, "{}", NULL);

    CHECK(!c.wide[4] && c.windowed[4] && c.wide[5] && !c.windowed[5] && c.window == 1024);
    CHECK(c.head_dim == 256 && c.kv_heads == 8 && c.rotary_dim == 256 && c.rope_theta == 20000);
    CHECK(c.wide_head_dim == 512 && c.wide_kv_heads == 2 && c.wide_values_are_keys);
    CHECK(c.wide_rotary_dim == 128 && c.wide_theta == 2000000 && c.wide_factor == 4);
    CHECK(c.attention_scale == 1 && c.logit_cap == 30 && c.embed_scale == sqrtf(2816) && c.tied);
    CHECK(c.activation == MP_ACTIVATION_GELU && c.shared_ffn == 2112 && c.v_norm && c.qk_norm);
    CHECK(c.norms_after && c.router_norm && c.expert_scale && c.layer_scale && !c.norm_topk);
    CHECK(mp_model_config_selects(&c));
    CHECK_STR(mp_model_config_beyond(&c), "layers with heads of another size");

    /* Values that are read give full attention as many heads as the others. */
    c = parse_ok(gemma4, "{\"attention_k_eq_v\":false,\"final_logit_softcapping\":null}", NULL);
    CHECK(c.wide_kv_heads == 8 && !c.wide_values_are_keys && c.logit_cap == 0);
    c = parse_ok(gemma4, "{}", "global_head_dim");
    CHECK(c.wide_head_dim == 512 && c.wide_kv_heads == 2);
    c = parse_ok(gemma4, "{}", "rope_parameters");
    CHECK(c.rope_theta == 10000 && c.wide_theta == 1000000 && c.wide_rotary_dim == 128);
    CHECK(c.wide_factor == 1);
    c = parse_ok(gemma4,
                 "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\","
                 "\"rope_theta\":5.0,\"factor\":4}}}",
                 NULL);
    CHECK(c.rope_theta == 10000 && c.wide_theta == 5 && c.wide_rotary_dim == 512);
    CHECK(c.wide_factor == 1);
    /* A window as long as the context is none, but the layers have their heads. */
    c = parse_ok(gemma4, "{\"max_position_embeddings\":1024}", NULL);
    CHECK(c.window == 0 && !c.windowed[0] && !c.wide[0] && c.wide[5]);
}

static void what_wider_heads_come_with_is_refused_by_name(void)
{
    static const char need[] = ", this engine supports ";
    static const struct {
        const char *changes, *without, *got, *wanted;
    } cases[] = {
        { "{\"hidden_size_per_layer_input\":256}", NULL,
          "key 'hidden_size_per_layer_input' in 'config.json': got 256",
          "0: no embeddings of each layer only" },
        { "{}", "hidden_size_per_layer_input",
          "key 'hidden_size_per_layer_input' in 'config.json': got nothing",
          "0: no embeddings of each layer only" },
        { "{\"num_kv_shared_layers\":2}", NULL,
          "key 'num_kv_shared_layers' in 'config.json': got 2",
          "0: keys and values of each layer only" },
        { "{\"use_bidirectional_attention\":\"all\"}", NULL,
          "key 'use_bidirectional_attention' in 'config.json': got 'all'",
          "null and 'vision' only" },
        { "{\"enable_moe_block\":false}", NULL,
          "key 'enable_moe_block' in 'config.json': got false", "true only" },
        { "{}", "enable_moe_block", "key 'enable_moe_block' in 'config.json': got nothing",
          "true only" },
        { "{\"per_layer_config\":{}}", NULL,
          "key 'per_layer_config' in 'config.json': got an object",
          "'global_head_dim' and 'num_global_key_value_heads' only" },
        { "{\"layer_types\":[\"sliding_attention\"]}", NULL,
          "key 'layer_types' in 'config.json': got 'sliding_attention'",
          "'full_attention' in the last layer only" },
        { "{\"layer_types\":[]}", NULL, "key 'layer_types' in 'config.json': got nothing",
          "'full_attention' in the last layer only" },
        { "{}", "layer_types", "key 'layer_types' in 'config.json': got nothing",
          "'full_attention' in the last layer only" },
        { "{\"hidden_activation\":\"silu\"}", NULL,
          "key 'hidden_activation' in 'config.json': got 'silu'", "'gelu_pytorch_tanh' only" },
        { "{\"rope_parameters\":{}}", NULL, "key 'rope_parameters' in 'config.json': got an object",
          "one object for each of the two kinds of layers only" },
        { "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\"}}}", NULL,
          "key 'rope_type' in 'config.json': got 'yarn'",
          "'default' and 'proportional' with full attention only" },
        { "{\"rope_parameters\":{\"full_attention\":{}}}", NULL,
          "key 'rope_type' in 'config.json': got nothing",
          "'default' and 'proportional' with full attention only" },
    };
    char text[512];

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        snprintf(text, sizeof(text), "%s%s%s", cases[i].got, need, cases[i].wanted);
        check_refused(gemma4, cases[i].changes, cases[i].without, "E_UNSUPPORTED", text);
    }
    check_refused(gemma4, "{\"num_global_key_value_heads\":3}", NULL, "E_CONFIG",
                  "heads of full attention in 'config.json': got num_global_key_value_heads 3 and "
                  "global_head_dim 512, need a divisor of num_attention_heads 16 and an even "
                  "number");
    check_refused(gemma4, "{\"global_head_dim\":511}", NULL, "E_CONFIG",
                  "heads of full attention in 'config.json': got num_global_key_value_heads 2 and "
                  "global_head_dim 511, need a divisor of num_attention_heads 16 and an even "
                  "number");
    check_refused(gemma4, "{\"final_logit_softcapping\":0}", NULL, "E_JSON_RANGE",
                  "key 'final_logit_softcapping' in 'config.json': got 0, need a number from "
                  "1e-06 to 1e+06");
}

int main(void)
{
    RUN(factors_of_frequencies_are_read);
    RUN(windows_are_read_by_layer);
    RUN(scaled_positions_are_read);
    RUN(routers_of_other_families_are_read);
    RUN(latent_attention_is_read);
    RUN(layers_with_experts_are_listed);
    RUN(groups_of_deepseek_v2_may_not_be_used);
    RUN(layers_with_wider_heads_are_read);
    RUN(what_wider_heads_come_with_is_refused_by_name);
    return 0;
}
