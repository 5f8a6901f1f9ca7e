/*
 * Types of the KV cache: the bits of each depend on nothing but model, tokens and type (budget,
 * threads, chunks, other sequences, a beginning copied from another sequence), and the logits are
 * near those of F32, by how much a type rounds.
 */
#include <math.h>
#include <string.h>

#include "engine/forward/engine_int.h"
#include "tests/model/harness.h"
#include "tests/support/test.h"

#define TOKENS 40
#define PROMPT 16
#define STEPS (TOKENS - PROMPT)
#define VOCAB_MAX 2048

static enum mp_wtype type;
static int32_t tokens[2 * TOKENS];
static float f32[(STEPS + 1) * VOCAB_MAX], first[(STEPS + 1) * VOCAB_MAX];
static float got[2 * (STEPS + 1) * VOCAB_MAX];

static enum mp_status set_type(void *ctx, struct mp_engine_config *config)
{
    (void)ctx;
    config->kv_type = type;
    return MP_OK;
}

static struct harness_options options_of(const char *model)
{
    struct harness_options options = harness_defaults(model);

    options.ctx = TOKENS;
    options.before_engine = set_type;
    return options;
}

/* Teacher-forced; the first sequence's logits are then at the beginning of `got`. Returns their
 * number. */
static size_t run(const struct harness_options *options)
{
    const int32_t lens[] = { PROMPT, PROMPT - 5 };
    struct harness h;
    size_t floats;

    harness_open(options, &h);
    floats = (size_t)STEPS * h.model.vocab;
    CHECK(h.model.vocab <= VOCAB_MAX);
    CHECK_EQ(harness_run(&h, tokens, TOKENS, lens, options->sequences, STEPS - 1, got), MP_OK);
    harness_close(&h);
    return floats;
}

static void check_same(const struct harness_options *options)
{
    const size_t floats = run(options);

    CHECK(memcmp(got, first, floats * sizeof(*got)) == 0);
}

/* Tokens from..to of a sequence in one batch; the logits of the last. */
static const float *feed(struct harness *h, uint32_t of, uint32_t from, uint32_t to)
{
    uint32_t token[TOKENS], sequence[TOKENS], position[TOKENS];
    uint8_t want[TOKENS] = { 0 };
    const struct mp_batch batch = {
        .count = to - from, .token = token, .sequence = sequence, .position = position, .want = want
    };
    const float *logits;

    for (uint32_t i = 0; i < to - from; i++) {
        token[i] = (uint32_t)tokens[from + i];
        sequence[i] = of;
        position[i] = from + i;
    }
    want[to - from - 1] = 1;
    CHECK_EQ(mp_forward(h->engine, &batch, &logits), MP_OK);
    return logits;
}

/* Another sequence goes on from a copied beginning. */
static void check_copy(const char *model)
{
    struct harness_options options = options_of(model);
    struct harness h;

    options.sequences = 2;
    harness_open(&options, &h);
    feed(&h, 0, 0, PROMPT);
    CHECK(mp_engine_copy_kv(h.engine, 0, 1, PROMPT - 3));
    CHECK(memcmp(feed(&h, 1, PROMPT - 3, PROMPT), first, h.model.vocab * sizeof(float)) == 0);
    harness_close(&h);
}

/* Distance of `first` from `f32`, relative. */
static double distance(size_t floats)
{
    double squares = 0, of = 0;

    for (size_t i = 0; i < floats; i++) {
        squares += pow((double)first[i] - (double)f32[i], 2);
        of += pow((double)f32[i], 2);
    }
    return sqrt(squares / of);
}

static void check_type(const char *model, enum mp_wtype of, double most)
{
    struct harness_options options = options_of(model);
    double away;
    size_t floats;

    type = of;
    floats = run(&options);
    memcpy(first, got, floats * sizeof(*got));
    if (type == MP_WTYPE_F32)
        memcpy(f32, got, floats * sizeof(*got));
    away = distance(floats);
    fprintf(stderr, "    %s %s: %.2g away\n", model, mp_wtype_name(type), away);
    CHECK(type == MP_WTYPE_F32 ? away == 0 : away > 0 && away <= most);
    options.budget_bytes = harness_plan(&options, NULL).smallest_bytes;
    options.tokens_max = 7;
    check_same(&options);
    options.threads = 2;
    options.sequences = 2;
    check_same(&options);
    options.policies.policy[MP_POLICY_PREDICT] = "partial"; /* stores, and takes that back */
    options.policies.policy[MP_POLICY_PREFETCH] = "top";
    check_same(&options);
    check_copy(model);
}

static void one_model(const char *model, double f16, double bf16)
{
    check_type(model, MP_WTYPE_F32, 0);
    check_type(model, MP_WTYPE_F16, f16);
    check_type(model, MP_WTYPE_BF16, bf16);
}

static void a_trained_model(void)
{
    one_model("models/tiny-moe", 3e-4, 2e-3);
    check_type("models/tiny-moe", MP_WTYPE_Q8_0, 2e-2);
}

static void heads_of_any_size(void)
{
    one_model("tests/data/models/qwen2moe-tiny", 1e-3, 8e-3);
}

/* Keys that are values. */
static void latent_attention(void)
{
    one_model("tests/data/models/deepseek_v2-a", 1e-3, 8e-3);
}

static void sinks(void)
{
    one_model("tests/data/models/gpt_oss-a", 1e-3, 8e-3);
}

/* Heads of 16 and, in some layers, of 32 elements, whose values are the keys before their rotation.
 */
static void layers_with_heads_of_another_size(void)
{
    one_model("tests/data/models/gemma4_text-a", 2e-3, 1.6e-2);
}

/* What the cache keeps of a layer is no whole blocks: 32 + 8 numbers of a latent and its key, heads
 * of 16. With those that are: model/gguf/quantised_families_test. */
static void heads_that_are_no_blocks_are_refused(void)
{
    static const char *const cases[][2] = {
        { "tests/data/models/deepseek_v2-a", "heads of layer 0 have 40 elements" },
        { "tests/data/models/gemma4_text-a", "heads of layer 0 have 16 elements" },
    };

    type = MP_WTYPE_Q8_0;
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const struct harness_options options = options_of(cases[i][0]);
        struct harness h;

        CHECK_EQ(harness_try_open(&options, &h), MP_ERR_UNSUPPORTED);
        CHECK_STR(mp_error_last()->code, "E_KV_TYPE");
        CHECK(strstr(mp_error_last()->text, cases[i][1]) != NULL);
        CHECK(strstr(mp_error_last()->text, "f16 and bf16 take any") != NULL);
    }
}

int main(void)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(tokens); i++)
        tokens[i] = (int32_t)(3 + 7 * i % 50);
    RUN(a_trained_model);
    RUN(heads_of_any_size);
    RUN(latent_attention);
    RUN(sinks);
    RUN(layers_with_heads_of_another_size);
    RUN(heads_that_are_no_blocks_are_refused);
    return 0;
}
