/*
 * `repack --type`: GGUF files that this engine writes. As plain floats a model of every family
 * gives the same bits as its directory; quantised it runs, near the source; a GGUF file made of a
 * GGUF file is that made of the directory; the tokenizer gives the same ids.
 */
#include <math.h>

#include "engine/model/config.h"
#include "engine/text/tokenizer.h"
#include "tests/model/gguf/scored.h"
#include "tests/model/gguf/twin_runs.h"
#include "vmm/format/gguf.h"

static float *logits_of(const char *model, size_t *count_p)
{
    float *logits = twin_logits(model, UINT64_MAX, count_p);

    *count_p /= sizeof(*logits);
    return logits;
}

/* The directory, of floats of this type, and the file give the same bits: what the file has as F32
 * in any case is so in the directory, because other types add in another order. */
static void check_twin(const char *source, const char *const *pairs, const char *type)
{
    static unsigned number;
    const char *out = in_tmpdir("family.gguf"), *twin;
    const char *config = pairs != NULL ? twin_config(source, pairs) : NULL;
    char name[32];
    size_t count, more;
    float *want, *got;

    snprintf(name, sizeof(name), "wide%u", number++);
    twin = in_tmpdir(name);
    if (strcmp(type, "f32") == 0)
        rewrite_model(source, twin, config, rewrite_as_f32);
    else
        twin_directory(source, twin, config);
    want = logits_of(twin, &count);
    CHECK_EQ(convert(twin, out, type).quantised, 0);
    got = logits_of(out, &more);
    CHECK_EQ(count, more);
    if (memcmp(got, want, count * sizeof(*got)) != 0) {
        fprintf(stderr, "%s as %s: other logits\n", source, type);
        exit(1);
    }
    free(got);
    free(want);
}

static void check_family(const char *source)
{
    check_twin(source, NULL, "f32");
}

/* Of a model all of whose layers have experts, as GGUF has no others in this family. */
static const char *qwen2_model(void)
{
    static const char config[] =
        "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"vocab_size\":320,\"hidden_size\":40,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":5,\"num_key_value_heads\":1,"
        "\"num_experts\":8,\"num_experts_per_tok\":3,\"moe_intermediate_size\":24,"
        "\"shared_expert_intermediate_size\":136,\"rope_theta\":1000000.0}";
    const char *model = in_tmpdir("qwen2");

    rewrite_model(DATA "qwen2moe-tiny", model, config, rewrite_as_f32);
    return model;
}

static void families_give_the_same_bits(void)
{
    check_family(qwen2_model());
    check_family(DATA "lfm2_moe-a");
    check_family(QWEN3);
    check_family(DATA "mixtral-tiny");
    check_family(DATA "deepseek-a");
    check_family(DATA "ernie4_5_moe-b");
    check_family(DATA "glm4_moe-a");
    check_family(DATA "glm4_moe-b");
    check_family(DATA "granitemoe-a");
    check_family(DATA "minimax_m2-a");
    check_family(DATA "minimax_m2-b");
    check_family(DATA "olmoe-a");
}

/* Matrices that are cut, turned or put in another order, norms without their 1, nibbles apart from
 * their scales. Pairs: what files of the family can say. */
static void other_orders_give_the_same_bits(void)
{
    static const char *const no_biases[] = { "\"attention_bias\": true",
                                             "\"attention_bias\": false", NULL };
    static const char *const one_layer[] = { "\"attention_bias\": true",
                                             "\"attention_bias\": false",
                                             "\"num_hidden_layers\": 4",
                                             "\"num_hidden_layers\": 1",
                                             "\"norm_topk_prob\": false",
                                             "\"norm_topk_prob\": true",
                                             "[\n    1\n  ]",
                                             "[]",
                                             NULL };
    static const char *const gemma4[] = { "\"attention_bias\": true", "\"attention_bias\": false",
                                          "\"linear\"", "\"default\"", NULL };
    static const struct {
        const char *source;
        const char *const *pairs;
        const char *type; /* of the directory */
    } cases[] = {
        { DATA "deepseek_v2-b", NULL, "f16" },
        { DATA "deepseek_v3-a", NULL, "bf16" },
        { DATA "deepseek_v3-b", NULL, "f16" },
        { DATA "glm4_moe_lite-a", NULL, "bf16" },
        { DATA "glm4_moe_lite-b", NULL, "f16" },
        { DATA "gemma4_text-a", NULL, "bf16" },
        { DATA "gemma4_text-b", gemma4, "f16" },
        { DATA "gpt_oss-a", NULL, "bf16" },
        { DATA "gpt_oss-mxfp4", NULL, "bf16" },
        { DATA "qwen3_next-a", NULL, "bf16" },
        { DATA "qwen3_next-b", one_layer, "f16" },
        { DATA "qwen3_5_moe_text-a", NULL, "bf16" },
        { DATA "qwen3_5_moe_text-b", no_biases, "f16" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        check_twin(cases[i].source, cases[i].pairs, "f32");
        check_twin(cases[i].source, cases[i].pairs, cases[i].type);
    }
}

/* Every tensor has the same type and bytes, and every text of the metadata is there. */
static void check_same_model(const char *a, const char *b)
{
    struct mp_gguf *x, *y;

    CHECK_EQ(mp_gguf_open(a, &x), MP_OK);
    CHECK_EQ(mp_gguf_open(b, &y), MP_OK);
    CHECK_EQ(mp_gguf_count(x), mp_gguf_count(y));
    CHECK_EQ(mp_gguf_entry_count(x), mp_gguf_entry_count(y));
    for (size_t i = 0; i < mp_gguf_count(x); i++) {
        const struct mp_gguf_tensor *t = mp_gguf_tensor(x, i), *u = mp_gguf_tensor(y, i);
        char *p = malloc(t->bytes), *q = malloc(t->bytes);

        CHECK(p != NULL && q != NULL);
        CHECK_STR(t->name, u->name);
        CHECK_STR(t->type->name, u->type->name);
        CHECK_EQ(mp_files_read(mp_gguf_files(x), 0, t->offset_bytes, t->bytes, p), MP_OK);
        CHECK_EQ(mp_files_read(mp_gguf_files(y), 0, u->offset_bytes, t->bytes, q), MP_OK);
        CHECK(memcmp(p, q, t->bytes) == 0);
        free(p);
        free(q);
    }
    for (size_t i = 0; i < mp_gguf_entry_count(x); i++)
        CHECK_STR(mp_gguf_entry(x, i)->key, mp_gguf_entry(y, i)->key);
    mp_gguf_close(x);
    mp_gguf_close(y);
}

/* llama3's scaling as one list of divisors, longrope as two, of which the test's context of 64
 * takes the one or the other. */
static void scaled_positions_give_the_same_bits(void)
{
#define THETA(n) "\"rope_theta\": " n
#define LONG(original)                                                                          \
    ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1.1, 1.5, 2.25, 3.5], " \
    "\"long_factor\": [1, 2, 4.5, 8, 16], \"original_max_position_embeddings\": " original "}"
    static const char llama3[] =
        THETA("1000000.0") ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
                           "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
                           "\"original_max_position_embeddings\": 16}";
    static const char *const one_list[] = { THETA("1000000.0"), llama3, NULL };
    static const char *const short_ones[] = { THETA("10000.0"), THETA("10000.0") LONG("300"),
                                              NULL };
    static const char *const long_ones[] = { THETA("1000000.0"), THETA("1000000.0") LONG("16"),
                                             NULL };
    static const char *const phimoe[] = { "\"short_mscale\": 1.2", "\"short_mscale\": 1.3",
                                          "\"router_jitter_noise\": 0.3",
                                          "\"router_jitter_noise\": 0.01", NULL };
    const struct {
        const char *source, *list, *no_list;
        const char *const *pairs;
    } cases[] = {
        { DATA "mixtral-tiny", MP_DIVISORS_NAME, MP_DIVISORS_LONG_NAME, one_list },
        { DATA "mixtral-tiny", MP_DIVISORS_LONG_NAME, MP_DIVISORS_NAME, long_ones },
        { DATA "granitemoe-a", MP_DIVISORS_SHORT_NAME, MP_DIVISORS_NAME, short_ones },
        { DATA "phimoe-a", MP_DIVISORS_SHORT_NAME, MP_DIVISORS_NAME, phimoe },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const char *out, *again;
        struct mp_gguf *gguf;

        check_twin(cases[i].source, cases[i].pairs, "f32");
        out = in_tmpdir("family.gguf");
        again = in_tmpdir("again.gguf");
        CHECK_EQ(mp_gguf_open(out, &gguf), MP_OK);
        CHECK(mp_gguf_find(gguf, cases[i].list) != NULL);
        CHECK(mp_gguf_find(gguf, cases[i].no_list) == NULL);
        mp_gguf_close(gguf);
        convert(out, again, "f32");
        check_same_model(out, again);
    }
#undef LONG
#undef THETA
}

/* Root of the mean squared difference, relative to the root of the mean square. */
static double distance(const float *got, const float *want, size_t count)
{
    double squares = 0, errors = 0;

    for (size_t i = 0; i < count; i++) {
        const double rest = (double)got[i] - (double)want[i];

        squares += (double)want[i] * (double)want[i];
        errors += rest * rest;
    }
    return sqrt(errors / squares);
}

/* Two experts of 24 that are always used: llama.cpp asks for their number and, of ERNIE, for their
 * channels. */
static void counted_experts_have_channels(void)
{
    const char *out = in_tmpdir("counted.gguf");
    char *config = twin_changed_config(DATA "ernie4_5_moe-a", "{\"num_hidden_layers\": 3}");
    const char *model = in_tmpdir("counted");
    struct mp_gguf *gguf;
    uint64_t count = 0, channels = 0;

    rewrite_model(DATA "ernie4_5_moe-a", model, config, rewrite_as_f32);
    free(config);
    convert(model, out, "f32");
    CHECK_EQ(mp_gguf_open(out, &gguf), MP_OK);
    CHECK(mp_gguf_as_u64(mp_gguf_find_value(gguf, "ernie4_5-moe.expert_shared_count"), &count));
    CHECK(mp_gguf_as_u64(mp_gguf_find_value(gguf, "ernie4_5-moe.expert_shared_feed_forward_length"),
                         &channels));
    CHECK_EQ(count, 2);
    CHECK_EQ(channels, 48);
    mp_gguf_close(gguf);
}

/* The trained model, whose rows of 128 and 96 are no blocks of 256, in every type. */
static void types_run_near_the_source(void)
{
    static const struct {
        const char *type;
        double error, logits; /* most of the weights', of the logits' */
        const char *gate, *down;
    } cases[] = {
        { "bf16", 0, 0.0001, "BF16", "BF16" },     { "f16", 1e-5, 0.0001, "F16", "F16" },
        { "q8_0", 0.006, 0.012, "Q8_0", "Q8_0" },  { "q4_k_m", 0.04, 0.04, "Q5_0", "Q5_0" },
        { "mxfp4", 0.12, 0.07, "MXFP4", "MXFP4" }, { "q2_k", 0.08, 0.08, "IQ4_NL", "IQ4_NL" },
    };
    const char *out = in_tmpdir("types.gguf");
    size_t count, more;
    float *want = logits_of(TINY, &count);

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const struct mp_convert_report report = convert(TINY, out, cases[i].type);
        struct mp_gguf *gguf;
        float *got = logits_of(out, &more);
        const double far = distance(got, want, count);

        fprintf(stderr, "    %s: weights %.5f, logits %.5f\n", cases[i].type, report.error, far);
        CHECK(report.error <= cases[i].error);
        CHECK(far <= cases[i].logits);
        CHECK_EQ(mp_gguf_open(out, &gguf), MP_OK);
        CHECK_STR(mp_gguf_find(gguf, "blk.1.ffn_gate_exps.weight")->type->name, cases[i].gate);
        CHECK_STR(mp_gguf_find(gguf, "blk.1.ffn_down_exps.weight")->type->name, cases[i].down);
        CHECK_STR(mp_gguf_find(gguf, "blk.1.ffn_gate_inp.weight")->type->name, "F32");
        for (size_t t = 0; t < mp_gguf_count(gguf); t++)
            CHECK_EQ(mp_gguf_tensor(gguf, t)->offset_bytes % MP_CONVERT_ALIGN, 0);
        mp_gguf_close(gguf);
        free(got);
    }
    free(want);
}

static const char *type_of(const struct mp_gguf *gguf, const char *pattern, unsigned layer)
{
    char name[64];

    snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, pattern);
    CHECK(mp_gguf_find(gguf, name) != NULL);
    return mp_gguf_find(gguf, name)->type->name;
}

/* Of 4 layers the last eighth is one, and every third is another. */
static void the_mixture_is_the_published_one(void)
{
    const char *model = model_256("mixture"), *out = in_tmpdir("mixture.gguf");
    struct mp_gguf *gguf;

    convert(model, out, "q4_k_m");
    CHECK_EQ(mp_gguf_open(out, &gguf), MP_OK);
    for (unsigned layer = 0; layer < 4; layer++) {
        const char *want = layer >= 2 ? "Q6_K" : "Q4_K";

        CHECK_STR(type_of(gguf, "ffn_down_exps", layer), want);
        CHECK_STR(type_of(gguf, "attn_v", layer), want);
        CHECK_STR(type_of(gguf, "ffn_up_exps", layer), "Q4_K");
        CHECK_STR(type_of(gguf, "attn_k", layer), "Q4_K");
    }
    CHECK_STR(mp_gguf_find(gguf, "output.weight")->type->name, "Q6_K");
    CHECK_STR(mp_gguf_find(gguf, "token_embd.weight")->type->name, "Q4_K");
    mp_gguf_close(gguf);
}

static void a_file_of_a_file_is_that_of_the_directory(void)
{
    static const struct {
        const char *model, *plain, *type;
    } cases[] = {
        { TINY, "bf16", "q8_0" },
        { TINY, "bf16", "mxfp4" },
        { DATA "gemma4_text-a", "f32", "q8_0" },
        { DATA "deepseek_v3-a", "f32", "q8_0" },
    };
    const char *plain_file = in_tmpdir("plain.gguf");
    const char *a = in_tmpdir("direct.gguf"), *b = in_tmpdir("indirect.gguf");

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        convert(cases[i].model, plain_file, cases[i].plain);
        convert(cases[i].model, a, cases[i].type);
        convert(plain_file, b, cases[i].type);
        check_same_model(a, b);
    }
}

static void threads_change_nothing(void)
{
    const struct mp_pool_config three = { .threads = 3, .spin_us = 0 };
    const char *model = model_256("threads");
    const char *a = in_tmpdir("one.gguf"), *b = in_tmpdir("three.gguf");
    struct mp_convert_config config = job(model, b, "q4_k_m");
    struct mp_convert_report one = convert(model, a, "q4_k_m"), report;

    CHECK_EQ(mp_pool_create(&three, NULL, MP_TOPOLOGY_ANY_NODE, &config.pool), MP_OK);
    CHECK_EQ(mp_convert(&config, &report), MP_OK);
    mp_pool_destroy(config.pool);
    check_same_file(a, b);
    CHECK(one.error == report.error && report.error > 0);
}

/* ---- tokenizers */

static void check_tokenizers(const char *model, const char *out)
{
    static const char text[] = "def main():\n    print(\"h\xc3\xa9llo  w\xc3\xb6rld\", 12345) "
                               "<|im_start|>\xf0\x9f\x98\x80\t\r\n";
    struct mp_tokenizer *a, *b;

    CHECK_EQ(mp_tokenizer_load(model, &a), MP_OK);
    CHECK_EQ(mp_tokenizer_load(out, &b), MP_OK);
    for (size_t bytes = 0; bytes < sizeof(text); bytes++) {
        struct mp_ids x = { .count = 0 }, y = { .count = 0 };

        CHECK_EQ(mp_tokenizer_encode(a, text, bytes, 3, &x), MP_OK);
        CHECK_EQ(mp_tokenizer_encode(b, text, bytes, 3, &y), MP_OK);
        CHECK_EQ(x.count, y.count);
        CHECK(x.count == 0 || memcmp(x.ids, y.ids, x.count * sizeof(*x.ids)) == 0);
        mp_ids_free(&x);
        mp_ids_free(&y);
    }
    mp_tokenizer_destroy(a);
    mp_tokenizer_destroy(b);
}

static void the_tokenizer_is_the_directorys(void)
{
    const char *out = in_tmpdir("tokens.gguf");
    struct mp_tokenizer *tok;

    convert(TINY, out, "q8_0");
    check_tokenizers(TINY, out);
    CHECK_EQ(mp_tokenizer_load(out, &tok), MP_OK);
    CHECK_EQ(mp_tokenizer_eos(tok), 2047);
    CHECK(mp_tokenizer_is_special(tok, 2046));
    mp_tokenizer_destroy(tok);
}

/* Spaces are marked, and other bytes have tokens of their own. */
static void marked_spaces_stay(void)
{
    const char *out = in_tmpdir("marked.gguf");
    const char *model = model_with(DATA "gemma4_text-a", "marked", load_tokenizer("gemma", false));

    convert(model, out, "bf16");
    check_tokenizers(model, out);
}

/* The stages of tokenizer.json in another form: a space is put before every text, or none. */
static json_t *with_metaspace(json_t *root, const char *scheme)
{
    json_object_set_new(root, "normalizer", json_null());
    json_object_set_new(root, "pre_tokenizer",
                        json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement",
                                  "\xe2\x96\x81", "prepend_scheme", scheme, "split", 0));
    return root;
}

static void merges_become_scores(void)
{
    const char *out = in_tmpdir("scored.gguf");
    const char *source = DATA "mixtral-tiny";
    const char *models[] = {
        model_with(source, "scored", load_tokenizer("llama", true)),
        model_with(source, "always", with_metaspace(load_tokenizer("llama", true), "always")),
        model_with(source, "never", with_metaspace(load_tokenizer("llama", true), "never")),
    };
    struct mp_tokenizer *tok;

    for (size_t i = 0; i < MP_ARRAY_LEN(models); i++) {
        convert(models[i], out, "bf16");
        check_tokenizers(models[i], out);
    }
    CHECK_EQ(mp_tokenizer_load(out, &tok), MP_OK);
    CHECK(mp_tokenizer_is_special(tok, 0) && mp_tokenizer_is_special(tok, 1));
    mp_tokenizer_destroy(tok);
}

int main(void)
{
    const struct mp_pool_config one = { .threads = 1 };

    CHECK_EQ(mp_pool_create(&one, NULL, MP_TOPOLOGY_ANY_NODE, &pool), MP_OK);
    RUN(families_give_the_same_bits);
    RUN(other_orders_give_the_same_bits);
    RUN(scaled_positions_give_the_same_bits);
    RUN(counted_experts_have_channels);
    RUN(types_run_near_the_source);
    RUN(the_mixture_is_the_published_one);
    RUN(a_file_of_a_file_is_that_of_the_directory);
    RUN(threads_change_nothing);
    RUN(the_tokenizer_is_the_directorys);
    RUN(marked_spaces_stay);
    RUN(merges_become_scores);
    mp_pool_destroy(pool);
    return 0;
}
