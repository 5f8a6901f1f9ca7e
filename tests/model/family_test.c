/*
 * Model families: each of the program's is complete, names come from patterns, and a family that is
 * made up here, with keys and names of its own, is one constant: the same model under its names
 * gives the same bits, also repacked.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "engine/model/arch/arch.h"
#include "tests/model/fails.h"
#include "tests/model/harness.h"
#include "tests/model/repack_check.h"
#include "tests/model/rewrite.h"
#include "tests/support/tmpdir.h"

#define MODEL "tests/data/models/qwen2moe-tiny"
#define PROMPT 6
#define STEPS 5

/* ---- the family: everything has another name, biases of keys stand alone */

#define LEAF "oak/{layer}/leaf"
#define NUT "oak/{layer}/acorn{expert}"

static const struct mp_arch oak = {
    .name = "OakForCausalLM",
    .model_type = "oak",
    .default_positions = 512,
    .default_eps = 1e-6,
    .default_theta = 1e6,
    .keys = {
        .experts = { "acorns", NULL },
        .expert_ffn = "acorn_size",
        .shared_ffn = "leaf_size",
        .dense_ffn = "wood_size",
        .dense_layers = "wood",
    },
    .switches = { .qkv_bias = { NULL, true }, .norm_topk = { "fair", true } },
    .names = {
        [MP_ROLE_EMBED] = { "oak/ground", NULL },
        [MP_ROLE_FINAL_NORM] = { "oak/top", NULL },
        [MP_ROLE_HEAD] = { "oak/sky", NULL },
        [MP_ROLE_ATTN_NORM] = { "oak/{layer}/n1", NULL },
        [MP_ROLE_Q] = { "oak/{layer}/q", NULL },
        [MP_ROLE_Q_BIAS] = { "oak/{layer}/q+", NULL },
        [MP_ROLE_K] = { "oak/{layer}/k", NULL },
        [MP_ROLE_K_BIAS] = { "oak/{layer}/k+", NULL },
        [MP_ROLE_V] = { "oak/{layer}/v", NULL },
        [MP_ROLE_V_BIAS] = { "oak/{layer}/v+", NULL },
        [MP_ROLE_O] = { "oak/{layer}/o", NULL },
        [MP_ROLE_FFN_NORM] = { "oak/{layer}/n2", NULL },
        [MP_ROLE_DENSE_GATE] = { "oak/{layer}/wood/a", NULL },
        [MP_ROLE_DENSE_UP] = { "oak/{layer}/wood/b", NULL },
        [MP_ROLE_DENSE_DOWN] = { "oak/{layer}/wood/c", NULL },
        [MP_ROLE_ROUTER] = { "oak/{layer}/choice", "oak/{layer}/old_choice" },
        [MP_ROLE_SHARED_GATE] = { LEAF "/a", NULL },
        [MP_ROLE_SHARED_UP] = { LEAF "/b", NULL },
        [MP_ROLE_SHARED_DOWN] = { LEAF "/c", NULL },
        [MP_ROLE_SHARED_SWITCH] = { LEAF "/stem", NULL },
    },
    .expert = { NUT "/a", NUT "/b", NUT "/c" },
    .slice = MP_ARCH_SLICES(NUT),
};

/* A family of the same names but one, which nothing in a file can have. */
static struct mp_arch endless;

const struct mp_arch *__real_mp_arch_at(size_t index);
const struct mp_arch *__wrap_mp_arch_at(size_t index);

const struct mp_arch *__wrap_mp_arch_at(size_t index)
{
    const struct mp_arch *arch = __real_mp_arch_at(index);

    if (arch != NULL)
        return arch;
    return __real_mp_arch_at(index - 1) != NULL                ? &oak
           : index > 1 && __real_mp_arch_at(index - 2) != NULL ? &endless
                                                               : NULL;
}

static const char config[] =
    "{\"architectures\":[\"OakForCausalLM\"],\"vocab_size\":320,\"hidden_size\":40,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":5,\"num_key_value_heads\":1,"
    "\"num_experts_per_tok\":3,\"acorns\":8,\"acorn_size\":24,\"leaf_size\":136,"
    "\"wood_size\":200,\"wood\":[1],\"fair\":false}";

/* From the names of Qwen2-MoE, by the place of the role in both families. */
static void to_oak(struct rewritten *tensor)
{
    const char *old = tensor->name;
    struct mp_name_numbers numbers = { .layer = 0 };
    char made[sizeof(tensor->name)] = "";

    for (int role = 0; role < MP_ROLE_COUNT; role++) {
        const char *pattern = mp_arch_qwen2_moe.names[role].name;

        if (pattern == NULL ||
            (role < MP_ROLE_LAYER ? strcmp(pattern, old) != 0
                                  : !mp_arch_match(pattern, old, &numbers.layer)))
            continue;
        /* The routers of two layers have the older name. */
        mp_arch_format(made, sizeof(made),
                       role == MP_ROLE_ROUTER && numbers.layer > 0 ? oak.names[role].other
                                                                   : oak.names[role].name,
                       &numbers);
    }
    for (numbers.layer = 0; made[0] == '\0' && numbers.layer < 3; numbers.layer++) {
        for (numbers.expert = 0; numbers.expert < 8; numbers.expert++) {
            for (int p = 0; p < 3; p++) {
                char name[sizeof(tensor->name)];

                mp_arch_format(name, sizeof(name), mp_arch_qwen2_moe.expert[p], &numbers);
                if (strcmp(name, old) == 0)
                    mp_arch_format(made, sizeof(made), oak.expert[p], &numbers);
            }
        }
    }
    CHECK(made[0] != '\0');
    strcpy(tensor->name, made);
}

static const char *fresh(void)
{
    static char paths[16][sizeof(test_tmpdir_path) + 32];
    static unsigned count;

    CHECK(count < 16);
    snprintf(paths[count], sizeof(paths[0]), "%s/m%u", test_tmpdir(), count);
    return paths[count++];
}

static float *logits_of(const char *model, uint64_t budget_bytes, size_t *bytes_p)
{
    static const int32_t tokens[PROMPT + STEPS] = { 5, 70, 33, 199, 42, 8, 64, 120, 7, 90, 11 };
    static const int32_t lens[1] = { PROMPT };
    struct harness_options options = harness_defaults(model);
    struct harness h;
    float *logits;

    options.budget_bytes = budget_bytes;
    harness_open(&options, &h);
    CHECK_EQ(h.weights->extra_tensors, 0);
    *bytes_p = (size_t)h.model.vocab * (STEPS + 1) * sizeof(*logits);
    logits = malloc(*bytes_p);
    CHECK(logits != NULL);
    CHECK_EQ(harness_run(&h, tokens, PROMPT + STEPS, lens, 1, STEPS, logits), MP_OK);
    harness_close(&h);
    return logits;
}

/* ---- tests */

static void numbers_go_into_names(void)
{
    const struct mp_name_numbers numbers = { 7, 4294967295u, 0 };
    char out[64];
    uint32_t layer = 99;

    CHECK_EQ(mp_arch_format(out, sizeof(out), "a{layer}.{expert}{slice}{x}", &numbers), 17);
    CHECK_STR(out, "a7.42949672950{x}");
    CHECK_EQ(mp_arch_format(out, 5, "a{layer}.{expert}{slice}{x}", &numbers), 17);
    CHECK_STR(out, "a7.4");
    CHECK_EQ(mp_arch_format(out, 3, "a{layer}.{expert}", &numbers), 13);
    CHECK_STR(out, "a7");
    CHECK_EQ(mp_arch_format(NULL, 0, "{layer}", &numbers), 1);
    CHECK_EQ(mp_arch_format(out, sizeof(out), "", &(struct mp_name_numbers){ 0, 0, 0 }), 0);

    CHECK(mp_arch_match("m.{layer}.w", "m.12.w", &layer));
    CHECK_EQ(layer, 12);
    CHECK(mp_arch_match("m.{layer}.w", "m.4294967295.w", &layer));
    CHECK_EQ(layer, 4294967295u);
    CHECK(mp_arch_match("m.{layer}", "m.0", &layer));
    CHECK_EQ(layer, 0);
    CHECK(!mp_arch_match("m.{layer}.w", "m.4294967296.w", &layer));
    CHECK(!mp_arch_match("m.{layer}.w", "m.99999999999999999999999.w", &layer));
    CHECK(!mp_arch_match("m.{layer}.w", "m.01.w", &layer));
    CHECK(!mp_arch_match("m.{layer}.w", "m..w", &layer));
    CHECK(!mp_arch_match("m.{layer}.w", "m.1.w2", &layer));
    CHECK(!mp_arch_match("m.{layer}.w", "n.1.w", &layer));
    CHECK(!mp_arch_match("m.w", "m.w", &layer));
    CHECK_EQ(layer, 0);
}

/* A family names everything that some config.json of it can call for, with names of which none in
 * a file is longer. */
static void families_are_complete(void)
{
    static const struct mp_name_numbers most = { UINT32_MAX, UINT32_MAX, UINT32_MAX };
    size_t count = 0;

    for (const struct mp_arch *arch; (arch = __real_mp_arch_at(count)) != NULL; count++) {
        struct mp_model_config some = { .arch = arch, .is_moe = { true } };

        some.shared_ffn = arch->keys.shared_ffn != NULL || arch->keys.shared_count.key != NULL;
        some.kv_rank = some.q_rank = arch->keys.kv_rank != NULL;
        some.qkv_bias = arch->switches.qkv_bias.key != NULL || arch->switches.qkv_bias.value;
        some.o_bias = arch->switches.o_bias.key != NULL || arch->switches.o_bias.value;
        some.qk_norm = arch->switches.qk_norm.key != NULL || arch->switches.qk_norm.value;
        some.head_bias = arch->switches.head_bias.key != NULL || arch->switches.head_bias.value;
        some.delta.key_heads = arch->keys.delta != NULL;
        some.short_conv = arch->keys.short_conv != NULL;
        some.linear[0] = some.delta.key_heads > 0 || some.short_conv > 0;
        some.is_moe[1] = arch->keys.dense_ffn == NULL;
        CHECK(arch->keys.experts[0] != NULL && arch->keys.expert_ffn != NULL);
        CHECK_EQ(arch->keys.dense_ffn != NULL,
                 arch->keys.moe_step != NULL || arch->keys.dense_layers != NULL ||
                     arch->keys.dense_first.key != NULL || arch->keys.layer_kinds != NULL);
        for (int role = 0; role < MP_ROLE_COUNT; role++) {
            const char *name = arch->names[role].name;

            if (name != NULL)
                CHECK(mp_arch_format(NULL, 0, name, &most) <= MP_ST_NAME_BYTES_MAX);
            else if (role != MP_ROLE_SHARED_SWITCH && role != MP_ROLE_SELECT_BIAS &&
                     (role < MP_ROLE_DELTA_IN || role > MP_ROLE_DELTA_TIME))
                CHECK(mp_roles[role].needed != NULL && !mp_roles[role].needed(&some, 0) &&
                      !mp_roles[role].needed(&some, 1));
        }
        for (int p = 0; p < 3; p++) {
            CHECK(mp_arch_format(NULL, 0, arch->expert[p], &most) <= MP_ST_NAME_BYTES_MAX);
            CHECK(mp_arch_format(NULL, 0, arch->slice[p], &most) <= MP_ST_NAME_BYTES_MAX);
        }
        CHECK_EQ(arch->fused_gate_up == NULL, arch->fused_down == NULL);
    }
    CHECK_EQ(count, 23);
}

static void unchanged(struct rewritten *tensor)
{
    (void)tensor;
}

/* Where the context is longer than the model was trained with, the long factors are in use. */
static void long_contexts_have_factors_of_their_own(void)
{
    static const char source[] = "tests/data/models/phimoe-a";
    static const char phimoe[] =
        "{\"architectures\":[\"PhimoeForCausalLM\"],\"vocab_size\":97,\"hidden_size\":40,"
        "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"intermediate_size\":24,"
        "\"attention_bias\":true,\"lm_head_bias\":true,\"router_jitter_noise\":0.3,"
        "\"rope_theta\":10000.0,\"max_position_embeddings\":512,"
        "\"rope_scaling\":{\"type\":\"longrope\",\"short_mscale\":1.3,\"long_mscale\":1.3,"
        "\"original_max_position_embeddings\":64,"
        "\"short_factor\":[1.0,2.0,4.5,8.0,16.0],\"long_factor\":[1.0,2.0,4.5,8.0,16.0]}}";
    static const int32_t tokens[PROMPT + STEPS] = { 5, 70, 33, 19, 42, 8, 64, 12, 7, 90, 11 };
    static const int32_t lens[1] = { PROMPT };
    static float logits[3][97 * (STEPS + 1)];
    char all_long[PATH_MAX];

    snprintf(all_long, sizeof(all_long), "%s/long", test_tmpdir());
    rewrite_model(source, all_long, phimoe, unchanged);
    for (int i = 0; i < 3; i++) {
        struct harness_options options = harness_defaults(i == 2 ? all_long : source);
        struct harness h;

        options.ctx = i == 1 ? 65 : 64;
        harness_open(&options, &h);
        CHECK_EQ(harness_run(&h, tokens, PROMPT + STEPS, lens, 1, STEPS, logits[i]), MP_OK);
        harness_close(&h);
    }
    CHECK(memcmp(logits[0], logits[1], sizeof(logits[0])) != 0);
    CHECK(memcmp(logits[1], logits[2], sizeof(logits[0])) == 0);
}

static void a_family_is_one_constant(void)
{
    const char *model = fresh(), *sliced = fresh(), *whole = fresh();
    struct mp_repack_config cut = repack_config(model, sliced), back = repack_config(sliced, whole);
    size_t bytes, more;
    float *want = logits_of(MODEL, UINT64_MAX, &bytes), *got;

    rewrite_model(MODEL, model, config, to_oak);
    got = logits_of(model, UINT64_MAX, &more);
    CHECK_EQ(more, bytes);
    CHECK(memcmp(want, got, bytes) == 0);
    free(got);
    cut.slices = 2;
    CHECK(!repack_must(&cut).fused);
    CHECK(!repack_must(&back).fused);
    check_repacked(model, whole);
    got = logits_of(whole, UINT64_MAX, &more);
    CHECK(memcmp(want, got, bytes) == 0);
    free(got);
    free(want);
}

static void unknown_families_get_all_names(void)
{
    struct mp_model_config out;
    static const char text[] = "{\"architectures\":[\"ElmForCausalLM\"]}";

    endless = oak;
    endless.name = "EndlessForCausalLM";
    CHECK_FAILS(
        mp_model_config_parse(text, sizeof(text) - 1, NULL, 0, &out), MP_ERR_MODEL, "E_UNSUPPORTED",
        "key 'architectures' in 'config.json': got 'ElmForCausalLM', this engine supports "
        "DeepseekForCausalLM, DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, "
        "Ernie4_5_MoeForCausalLM, "
        "Gemma4ForConditionalGeneration, Gemma4ForCausalLM, "
        "Glm4MoeForCausalLM, Glm4MoeLiteForCausalLM, GptOssForCausalLM, "
        "GraniteMoeForCausalLM, Lfm2MoeForCausalLM, "
        "MiniMaxM2ForCausalLM, MixtralForCausalLM, OlmoeForCausalLM, PhimoeForCausalLM, "
        "PhiMoEForCausalLM, Qwen2MoeForCausalLM, "
        "Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeForCausalLM, Qwen3MoeForCausalLM, "
        "Qwen3NextForCausalLM, XverseForCausalLM, XverseMoeForCausalLM, OakForCausalLM, EndlessForCausalLM");
}

static void names_have_an_end(void)
{
    static char pattern[MP_ST_NAME_BYTES_MAX + 8], text[sizeof(config)];
    struct harness_options options = harness_defaults(fresh());
    struct harness h;

    endless = oak;
    endless.name = "ElmForCausalLM"; /* another one of the same length would do */
    memset(pattern, 'x', MP_ST_NAME_BYTES_MAX + 1);
    endless.names[MP_ROLE_V].name = pattern;
    strcpy(text, config);
    memcpy(strstr(text, "Oak"), "Elm", 3);
    rewrite_model(MODEL, options.model, text, to_oak);
    CHECK_EQ(harness_try_open(&options, &h), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_TENSOR_NAME");
    pattern[MP_ST_NAME_BYTES_MAX] = '\0';
    CHECK_EQ(harness_try_open(&options, &h), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_TENSOR_MISSING");
}

int main(void)
{
    RUN(numbers_go_into_names);
    RUN(families_are_complete);
    RUN(long_contexts_have_factors_of_their_own);
    RUN(a_family_is_one_constant);
    RUN(unknown_families_get_all_names);
    RUN(names_have_an_end);
    return 0;
}
