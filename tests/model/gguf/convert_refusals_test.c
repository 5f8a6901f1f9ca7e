/*
 * `repack --type`: what cannot be written is refused with a line; every call fails once.
 */
#include <math.h>
#include <unistd.h>

#include "tests/model/fails.h"
#include "tests/model/gguf/imatrix.h"
#include "tests/model/gguf/scored.h"
#include "tests/support/fault/wrap.h"

static void what_cannot_be_written(void)
{
    const char *out = in_tmpdir("never.gguf"), *file = in_tmpdir("there.gguf");
    struct mp_convert_config config = job(TINY, out, "q9");

    check_refused(&config, MP_ERR_CONFIG, "E_USAGE", "--type 'q9' is none of f32, f16, bf16, q8_0");
    config.type = "q8_0";
    config.model = DATA "qwen3moe-tiny-nonorm"; /* has a layer without experts */
    check_refused(
        &config, MP_ERR_MODEL, "E_UNSUPPORTED",
        "'model.layers.0.mlp.gate_proj.weight' has no place in a GGUF file of 'qwen3moe'");
    config.model = TINY;
    config.out = test_tmpdir();
    check_refused(&config, MP_ERR_CONFIG, "E_REPACK_TARGET", "is a directory");
    convert(TINY, file, "q8_0");
    config.out = file;
    config.force = false;
    check_refused(&config, MP_ERR_CONFIG, "E_REPACK_TARGET", "is there already");
    config.model = file;
    config.force = true;
    check_refused(&config, MP_ERR_CONFIG, "E_REPACK_TARGET", "a file of the model itself");
    config.model = TINY;
    config.imatrix = file;
    check_refused(&config, MP_ERR_CONFIG, "E_REPACK_TARGET", "is the importance matrix");
    config.imatrix = NULL;
    config.model = file;
    config.out = out;
    check_refused(&config, MP_ERR_MODEL, "E_UNSUPPORTED", "only plain numbers are quantised");
    CHECK_EQ(access(out, F_OK), -1);
}

static void models_without_a_form_are_named(void)
{
    static const struct {
        const char *model, *part;
    } cases[] = {
        { DATA "deepseek_v2-a", "'deepseek2' cannot say what this model has: scaled positions" },
        { DATA "gemma4_text-b", "self_attn.q_proj.bias' has no place in a GGUF file of 'gemma4'" },
        { DATA "gpt_oss-b", "'gpt-oss' cannot say what this model has: which layers have a slid" },
        { DATA "qwen3_next-b", "self_attn.q_proj.bias' has no place in a GGUF file of 'qwen3nex" },
        { DATA "phimoe-a", "positions with one magnitude in short contexts, 1.2, and another" },
        { DATA "phimoe-b", "positions with one magnitude in short contexts, 0.8, and another" },
        { DATA "lfm2_moe-b",
          "'lfm2moe' cannot say what this model has: weights of experts divided" },
        { DATA "xverse-a", "are not written as GGUF files: llama.cpp has it without experts" },
    };
    const char *out = in_tmpdir("family.gguf");

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const struct mp_convert_config config = job(cases[i].model, out, "q8_0");

        check_refused(&config, MP_ERR_MODEL, "E_UNSUPPORTED", cases[i].part);
        CHECK_EQ(access(out, F_OK), -1);
    }
}

/* Found when the header is read again: that family's files have no key for it. */
static void what_gguf_cannot_say(void)
{
#define SIXTEEN "[1,1,1,1,1,1,1,1,2,2,2,2,2,2,2,2]"
    static const struct {
        const char *from, *to, *part;
    } cases[] = {
        { "\"norm_topk_prob\":true", "\"norm_topk_prob\":false",
          "what this model has: weights of experts divided by their sum" },
        { "\"head_dim\":32",
          "\"head_dim\":32,\"rope_scaling\":{\"type\":\"llama3\",\"factor\":2.0}",
          "divisors of frequencies, as of llama3 positions, which llama.cpp does not use there" },
        { "\"head_dim\":32",
          "\"head_dim\":32,\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":" SIXTEEN
          ",\"long_factor\":" SIXTEEN ",\"attention_factor\":1.5}",
          "divisors of frequencies for short and for long contexts, as of longrope positions" },
        { "\"head_dim\":32",
          "\"head_dim\":32,\"use_sliding_window\":true,\"sliding_window\":64,"
          "\"max_window_layers\":0",
          "what this model has: a sliding window" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const char *found = strstr(config_256, cases[i].from);
        const char *out = in_tmpdir("said.gguf");
        struct mp_convert_config config = job(NULL, out, "q8_0");
        char name[32], text[1024];

        CHECK(found != NULL);
        snprintf(name, sizeof(name), "said%zu", i);
        config.model = in_tmpdir(name);
        snprintf(text, sizeof(text), "%.*s%s%s", (int)(found - config_256), config_256, cases[i].to,
                 found + strlen(cases[i].from));
        rewrite_model(QWEN3, config.model, text, fill);
        check_refused(&config, MP_ERR_MODEL, "E_UNSUPPORTED", cases[i].part);
        CHECK_EQ(access(out, F_OK), -1);
    }
}

/* Files of Phi-3.5-MoE say no share, which is the published one, and one magnitude. */
static void phimoe_has_the_published_share(void)
{
    static const char text[] =
        "{\"architectures\":[\"PhiMoEForCausalLM\"],\"vocab_size\":97,\"hidden_size\":40,"
        "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"intermediate_size\":24,"
        "\"attention_bias\":true,\"lm_head_bias\":true,\"router_jitter_noise\":0.3}";
    const char *out = in_tmpdir("share.gguf"), *model = in_tmpdir("share");
    struct mp_convert_config config = job(model, out, "q8_0");

    rewrite_model(DATA "phimoe-a", model, text, rewrite_as_f32);
    check_refused(&config, MP_ERR_MODEL, "E_UNSUPPORTED",
                  "'phimoe' cannot say what this model has: the share by which experts are close");
    CHECK_EQ(access(out, F_OK), -1);
}

/* The first cut of a piece that has several goes to the end of the list. */
static json_t *with_cuts_apart(json_t *root)
{
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    size_t i = 0;

    for (;; i++) {
        const json_t *a = json_array_get(merges, i), *b = json_array_get(merges, i + 1);
        char one[64], two[64];

        CHECK(b != NULL);
        snprintf(one, sizeof(one), "%s%s", json_string_value(json_array_get(a, 0)),
                 json_string_value(json_array_get(a, 1)));
        snprintf(two, sizeof(two), "%s%s", json_string_value(json_array_get(b, 0)),
                 json_string_value(json_array_get(b, 1)));
        if (strcmp(one, two) == 0)
            break;
    }
    json_array_append(merges, json_array_get(merges, i));
    json_array_remove(merges, i);
    return root;
}

/* A mark only before what begins a text, or a list of merges that no scores give. */
static void tokenizers_without_a_form(void)
{
    const char *source = DATA "mixtral-tiny", *out = in_tmpdir("scores.gguf");
    const struct {
        const char *model, *part;
    } cases[] = {
        { model_with(source, "first", load_tokenizer("metaspace", true)),
          "cuts text in a way that this engine knows no name of" },
        { model_with(source, "learned", load_tokenizer("llama", false)),
          "in fewer ways than it can be cut, which GGUF files cannot say" },
        { model_with(source, "apart", with_cuts_apart(load_tokenizer("llama", true))),
          "at two places of its list" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const struct mp_convert_config config = job(cases[i].model, out, "q8_0");

        check_refused(&config, MP_ERR_MODEL, "E_TOK_PATTERN", cases[i].part);
        CHECK_EQ(access(out, F_OK), -1);
    }
}

static void weights_are_finite(void)
{
    const char *model, *out = in_tmpdir("infinite.gguf");
    struct mp_convert_config config;

    bad = INFINITY;
    model = model_256("infinite");
    bad = 0;
    config = job(model, out, "q4_k");
    check_refused(&config, MP_ERR_MODEL, "E_CONVERT_VALUE",
                  "row 0 of what becomes 'token_embd.weight' has a number that is not finite");
    CHECK_EQ(access(out, F_OK), -1);
}

static bool cancel(void *context, uint64_t done, uint64_t total)
{
    CHECK(done <= total);
    return ++*(unsigned *)context < 3;
}

static void an_interruption_leaves_nothing(void)
{
    unsigned calls = 0;
    const struct mp_progress progress = { cancel, &calls };
    const char *out = in_tmpdir("canceled.gguf");
    struct mp_convert_config config = job(TINY, out, "q8_0");

    config.progress = &progress;
    check_refused(&config, MP_ERR_CANCELED, "E_CANCELED", "nothing was written");
    CHECK_EQ(access(out, F_OK), -1);
}

/* ---- failures */

static const char *fault_model, *fault_weights, *fault_want;

static void fail_once(const struct fault_plan *plan, void *ctx)
{
    const char *out = in_tmpdir("fault.gguf");
    struct mp_convert_config config = job(fault_model, out, "q8_0");
    struct mp_convert_report report;
    enum mp_status status;

    (void)ctx;
    config.imatrix = fault_weights;
    unlink(out);
    mp_error_clear();
    fault_begin(plan);
    status = mp_convert(&config, &report);
    if (fault_end() == 0)
        CHECK_EQ(status, MP_OK);
    if (status == MP_OK) {
        check_same_file(fault_want, out);
        return;
    }
    /* A file that cannot be opened to look at its first bytes counts as one of another kind. */
    CHECK(status == MP_ERR_NO_MEMORY || status == MP_ERR_IO || status == MP_ERR_MODEL);
    CHECK(mp_error_last()->text[0] != '\0');
    CHECK_EQ(access(out, F_OK), -1);
}

static void fail_calls(const char *source, const char *importance)
{
    static char model[PATH_BYTES], weights[PATH_BYTES], want[PATH_BYTES];
    struct mp_convert_config config;
    struct mp_convert_report report;

    snprintf(model, sizeof(model), "%s", source);
    snprintf(weights, sizeof(weights), "%s", importance != NULL ? importance : "");
    snprintf(want, sizeof(want), "%s", in_tmpdir("fault-want.gguf"));
    fault_model = model;
    fault_weights = importance != NULL ? weights : NULL;
    fault_want = want;
    config = job(model, want, "q8_0");
    config.imatrix = fault_weights;
    CHECK_EQ(mp_convert(&config, &report), MP_OK);
    CHECK(fault_sweep(FAULT_ANY, fail_once, NULL) > 10);
}

static void every_call_fails_once(void)
{
    char model[PATH_BYTES];

    snprintf(model, sizeof(model), "%s", model_of_a_layer("fault"));
    fail_calls(model, write_list(&whole));
    fail_calls(model_with(DATA "mixtral-tiny", "fault-scores", load_tokenizer("llama", true)),
               NULL);
}

int main(void)
{
    const struct mp_pool_config one = { .threads = 1 };

    CHECK_EQ(mp_pool_create(&one, NULL, MP_TOPOLOGY_ANY_NODE, &pool), MP_OK);
    RUN(what_cannot_be_written);
    RUN(models_without_a_form_are_named);
    RUN(what_gguf_cannot_say);
    RUN(phimoe_has_the_published_share);
    RUN(tokenizers_without_a_form);
    RUN(weights_are_finite);
    RUN(an_interruption_leaves_nothing);
    RUN(every_call_fails_once);
    mp_pool_destroy(pool);
    return 0;
}
