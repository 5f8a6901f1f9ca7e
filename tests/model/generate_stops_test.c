/*
 * Why sequences end and what is refused: stop strings, a lost output, a cancel, absurd sizes.
 */
#include "engine/session/generate.h"
#include "tests/model/generate.h"

#include "tests/model/harness.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

static void sequences_end_for_the_right_reason(void)
{
    uint32_t storage[32], greedy[8];
    struct mp_generate_stats stats;
    struct mp_generate_config config;
    struct mp_output out = { 0 };
    struct mp_ids prompt;
    struct harness h;
    uint32_t first;

    open_model(&h, FIXTURE, 1, 12, 4, 1);
    prompt = prompt_of(7, h.model.vocab, storage); /* 4 tokens */
    CHECK_EQ(prompt.count, 4);
    h.model.eos_count = 0;

    config = config_of(&h, 100);
    CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_OK);
    CHECK_EQ(out.finish, MP_FINISH_CTX);
    CHECK_EQ(out.ids.count, 9); /* 4 + 9 - 1 == 12 positions were processed */
    memcpy(greedy, out.ids.ids, sizeof(greedy));
    mp_outputs_free(&out, 1);

    config = config_of(&h, 3);
    CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_OK);
    CHECK_EQ(out.finish, MP_FINISH_LENGTH);
    CHECK_EQ(out.ids.count, 3);
    mp_outputs_free(&out, 1);

    /* The second of two end tokens; it ends the sequence where it first appears. */
    h.model.eos[0] = h.model.vocab - 1 == greedy[2] ? 0 : h.model.vocab - 1;
    h.model.eos[1] = greedy[2];
    h.model.eos_count = 2;
    for (first = 0; greedy[first] != greedy[2] && greedy[first] != h.model.eos[0];)
        first++;
    config = config_of(&h, 8);
    CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_OK);
    CHECK_EQ(out.finish, MP_FINISH_EOS);
    CHECK_EQ(out.ids.count, first + 1);
    mp_outputs_free(&out, 1);

    config = config_of(&h, 8);
    config.ignore_eos = true;
    CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_OK);
    CHECK_EQ(out.finish, MP_FINISH_LENGTH);
    CHECK(memcmp(out.ids.ids, greedy, sizeof(greedy)) == 0);
    mp_outputs_free(&out, 1);
    harness_close(&h);
}

/* Every run: what was shown piece by piece is the text. */
static void write_text(struct harness *h, const struct mp_tokenizer *tok, const char *stop,
                       struct mp_output *out)
{
    static const char question[] = "The ";
    struct mp_generate_config config = config_of(h, 40);
    struct mp_ids prompt = { 0 };
    struct mp_generate_stats stats;

    config.tokenizer = tok;
    config.ignore_eos = true;
    config.stops[0] = "\x01 never";
    config.stops[1] = stop;
    config.stop_count = stop != NULL ? 2 : 1;
    CHECK_EQ(mp_tokenizer_encode(tok, question, strlen(question), 0, &prompt), MP_OK);
    CHECK_EQ(mp_generate(&config, &prompt, 1, out, &stats), MP_OK);
    CHECK_STR(seen.text, out->text);
    CHECK_EQ(seen.text_bytes, out->text_bytes);
    mp_ids_free(&prompt);
}

/* Pieces of the text that the model writes as stop strings: the first place ends the text. */
static void stop_strings_work_across_tokens(void)
{
    char text[TEXT_BYTES], stop[16];
    struct mp_tokenizer *tok;
    struct mp_output out = { 0 };
    struct harness h;
    size_t length = 1;

    CHECK_EQ(mp_tokenizer_load(TINY, &tok), MP_OK);
    open_model(&h, TINY, 1, 128, 32, 2);
    write_text(&h, tok, NULL, &out);
    CHECK_EQ(out.finish, MP_FINISH_LENGTH);
    snprintf(text, sizeof(text), "%s", out.text);
    CHECK(strlen(text) > 30);
    mp_outputs_free(&out, 1);
    for (size_t at = 0; at + length <= strlen(text); at += 3) {
        const char *first;

        memcpy(stop, text + at, length);
        stop[length] = '\0';
        first = strstr(text, stop);
        write_text(&h, tok, stop, &out);
        CHECK_EQ(out.finish, MP_FINISH_STOP);
        CHECK_EQ(out.text_bytes, first - text);
        CHECK(memcmp(out.text, text, out.text_bytes) == 0);
        mp_outputs_free(&out, 1);
        length = length % 9 + 1;
    }
    mp_tokenizer_destroy(tok);
    harness_close(&h);
}

/* The same token brings both; the text ends at the one that comes first, not at the one that is
 * listed first. */
static void the_earliest_of_two_stops_ends_the_text(void)
{
    static const char text[] = "and and";
    struct mp_generate_config config;
    struct mp_generate_stats stats;
    struct mp_tokenizer *tok;
    struct mp_ids ids = { 0 };
    struct harness h;

    CHECK_EQ(mp_tokenizer_load("tests/data/tokenizers/llama", &tok), MP_OK);
    CHECK_EQ(mp_tokenizer_encode(tok, text, strlen(text), 0, &ids), MP_OK);
    CHECK_EQ(ids.count, 2); /* the second is " and" */
    open_model(&h, TINY, 1, 128, 32, 2);
    for (unsigned swapped = 0; swapped < 2; swapped++) {
        const struct mp_ids prompt = { .ids = ids.ids, .count = 1 };
        struct mp_output out = { 0 };

        config = config_of(&h, 1);
        config.tokenizer = tok;
        config.ignore_eos = true;
        config.forced = ids.ids + 1;
        config.stops[swapped] = "n";
        config.stops[!swapped] = "d";
        config.stop_count = 2;
        CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_OK);
        CHECK_EQ(out.finish, MP_FINISH_STOP);
        CHECK_STR(out.text, " a");
        CHECK_STR(seen.text, " a");
        mp_outputs_free(&out, 1);
    }
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
    harness_close(&h);
}

static void lost_output_ends_the_run(void)
{
    struct mp_tokenizer *tok;
    struct mp_generate_stats stats;
    struct mp_generate_config config;
    struct mp_ids prompt = { 0 };
    struct mp_output out = { 0 };
    struct harness h;

    CHECK_EQ(mp_tokenizer_load(TINY, &tok), MP_OK);
    CHECK_EQ(mp_tokenizer_encode(tok, "import", 6, 0, &prompt), MP_OK);
    open_model(&h, TINY, 1, 64, 32, 1);
    config = config_of(&h, 30);
    config.tokenizer = tok;
    config.ignore_eos = true;
    seen.text_calls_left = 2;
    CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_ERR_IO);
    CHECK_STR(mp_error_last()->code, "E_OUTPUT");
    CHECK(out.ids.count >= 3 && out.ids.count < 30); /* what was there stays */
    mp_outputs_free(&out, 1);
    mp_ids_free(&prompt);
    mp_tokenizer_destroy(tok);
    harness_close(&h);
}

static void expect_refused(const struct mp_generate_config *config, const struct mp_ids *prompts,
                           uint32_t count, const char *code)
{
    struct mp_output out[4] = { 0 };
    struct mp_generate_stats stats;

    CHECK_EQ(mp_generate(config, prompts, count, out, &stats), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, code);
    mp_outputs_free(out, 4);
}

static void prompts_that_cannot_run_are_refused(void)
{
    uint32_t ids[16] = { 0 };
    struct mp_ids prompts[3] = { { .ids = ids, .count = 2 }, { .ids = ids, .count = 0 } };
    struct mp_generate_config config;
    struct mp_engine_config widest;
    struct harness h;

    open_model(&h, FIXTURE, 2, 8, 4, 1);
    config = config_of(&h, 1);
    expect_refused(&config, prompts, 0, "E_BATCH");
    expect_refused(&config, prompts, 3, "E_BATCH");
    expect_refused(&config, prompts, 2, "E_PROMPT_EMPTY");
    prompts[1].count = 8;
    expect_refused(&config, prompts, 2, "E_PROMPT_LONG");
    CHECK(strstr(mp_error_last()->text, "the context holds 8; raise --ctx") != NULL);
    widest = h.config; /* a context that cannot be raised */
    widest.ctx = h.model.positions_max;
    config.engine_config = &widest;
    prompts[1].count = widest.ctx;
    expect_refused(&config, prompts, 2, "E_PROMPT_LONG");
    CHECK(strstr(mp_error_last()->text, "as many as the model was made for; shorten") != NULL);
    config.engine_config = &h.config;
    prompts[1].count = 7;
    config.stops[0] = "";
    config.stop_count = 1;
    expect_refused(&config, prompts, 2, "E_STOP_EMPTY");
    config.stops[0] = "caf\xc3";
    expect_refused(&config, prompts, 2, "E_STOP_UTF8");
    harness_close(&h);
}

static void absurd_sizes_are_refused(void)
{
    uint64_t kv_bytes, state_bytes;
    struct mp_model_config model;
    struct mp_engine_config config;
    struct harness h;

    open_model(&h, FIXTURE, 1, 8, 4, 1);
    model = h.model;
    config = h.config;
    config.model = &model;
    CHECK_EQ(mp_engine_measure(&config, &kv_bytes, &state_bytes), MP_OK);
    model.positions_max = config.ctx = 1u << 24;
    model.kv_heads = model.heads = 1u << 20;
    model.head_dim = 1u << 20;
    config.sequences = 64;
    config.tokens_max = 65536;
    CHECK_EQ(mp_engine_measure(&config, &kv_bytes, &state_bytes), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_STATE_SIZE");
    config.tokens_max = 63;
    CHECK_EQ(mp_engine_measure(&config, &kv_bytes, &state_bytes), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BATCH");
    config.tokens_max = 65537;
    CHECK_EQ(mp_engine_measure(&config, &kv_bytes, &state_bytes), MP_ERR_CONFIG);
    config.tokens_max = 64;
    config.ctx++;
    CHECK_EQ(mp_engine_measure(&config, &kv_bytes, &state_bytes), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CTX");
    harness_close(&h);
}

static volatile sig_atomic_t cancel;
static uint32_t layers_routed, cancel_in_layer;

static void count_layer(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k,
                        const uint32_t *experts, const float *weights)
{
    (void)ctx, (void)layer, (void)tokens, (void)k, (void)experts, (void)weights;
    layers_routed++;
    if (layers_routed == cancel_in_layer)
        cancel = 1;
}

/* A cancelled run ends after the layer that it is in, and the engine can be used again. */
static void cancel_ends_within_a_layer(void)
{
    uint32_t storage[32];
    struct mp_generate_config config;
    struct mp_generate_stats stats;
    struct mp_output out = { 0 };
    struct mp_engine *engine;
    struct mp_ids prompt;
    struct harness h;

    open_model(&h, TINY, 1, 64, 32, 2);
    h.config.cancel = &cancel;
    h.config.routed = count_layer;
    CHECK_EQ(mp_engine_create(&h.config, &engine), MP_OK);
    prompt = prompt_of(5, h.model.vocab, storage);
    for (uint32_t layer = 1; layer <= 12; layer += 5) {
        config = config_of(&h, 3);
        config.engine = engine;
        layers_routed = 0;
        cancel_in_layer = layer;
        CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_ERR_CANCELED);
        CHECK_EQ(layers_routed, layer);
        CHECK(mp_pager_check(mp_engine_pager(engine)));
        mp_outputs_free(&out, 1);
        cancel = 0;
    }
    cancel_in_layer = 0;
    config = config_of(&h, 3);
    config.engine = engine;
    CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_OK);
    mp_outputs_free(&out, 1);
    mp_engine_destroy(engine);
    harness_close(&h);
}

int main(void)
{
    RUN(sequences_end_for_the_right_reason);
    RUN(stop_strings_work_across_tokens);
    RUN(the_earliest_of_two_stops_ends_the_text);
    RUN(lost_output_ends_the_run);
    RUN(prompts_that_cannot_run_are_refused);
    RUN(absurd_sizes_are_refused);
    RUN(cancel_ends_within_a_layer);
    return 0;
}
