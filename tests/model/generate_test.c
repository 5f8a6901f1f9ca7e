/*
 * Generation: why sequences end, stop strings wherever tokens end, batches of every size and
 * prefill in pieces of every length that give the same bits as one prompt alone, sizes that are
 * refused, and runs that are cancelled or lose their output.
 */
#include "engine/session/generate.h"
#include "tests/model/generate.h"

#include "tests/model/harness.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

static struct seen alone;

static void every_batch_equals_each_prompt_alone(void)
{
    static const uint32_t sizes[] = { 2, 3, 7, 33, 64 };
    static uint32_t storage[BATCH][32];
    struct mp_ids prompts[BATCH];
    uint32_t ids[BATCH][STEPS];
    struct mp_generate_stats stats;
    struct harness h;

    open_model(&h, FIXTURE, BATCH, 32, 100, 2);
    for (uint32_t i = 0; i < BATCH; i++) {
        struct mp_generate_config config = config_of(&h, STEPS);
        struct mp_output out = { 0 };

        config.ignore_eos = true;
        prompts[i] = prompt_of(i, h.model.vocab, storage[i]);
        CHECK_EQ(mp_generate(&config, &prompts[i], 1, &out, &stats), MP_OK);
        CHECK_EQ(out.ids.count, STEPS);
        CHECK_EQ(stats.prompt_tokens, prompts[i].count);
        memcpy(ids[i], out.ids.ids, sizeof(ids[i]));
        memcpy(alone.logits[i], seen.logits[0], sizeof(alone.logits[i]));
        mp_outputs_free(&out, 1);
    }
    for (size_t n = 0; n < MP_ARRAY_LEN(sizes); n++) {
        struct mp_generate_config config = config_of(&h, STEPS);
        struct mp_output out[BATCH] = { 0 };

        config.ignore_eos = true;
        CHECK_EQ(mp_generate(&config, prompts, sizes[n], out, &stats), MP_OK);
        CHECK_EQ(stats.generated_tokens, sizes[n] * STEPS);
        CHECK_EQ(seen.prefill_done, stats.prompt_tokens);
        for (uint32_t i = 0; i < sizes[n]; i++) {
            CHECK(memcmp(out[i].ids.ids, ids[i], sizeof(ids[i])) == 0);
            CHECK(memcmp(seen.logits[i], alone.logits[i], sizeof(alone.logits[i])) == 0);
        }
        mp_outputs_free(out, BATCH);
    }
    harness_close(&h);
}

static void pieces_of_prefill_and_threads_do_not_show(void)
{
    static const uint32_t chunks[] = { 256, 1, 5, 16, 39, 40 };
    uint32_t storage[40];
    struct mp_ids prompt = { .ids = storage, .count = 40 };
    struct mp_generate_stats stats;

    for (size_t i = 0; i < 40; i++)
        storage[i] = (uint32_t)(i * 37 + 11) % 97;
    for (size_t i = 0; i < MP_ARRAY_LEN(chunks) + 3; i++) {
        const uint32_t chunk = i < MP_ARRAY_LEN(chunks) ? chunks[i] : 7;
        const uint32_t threads = i < MP_ARRAY_LEN(chunks) ? 1 : (uint32_t)(i + 2 - 6);
        struct mp_output out = { 0 };
        struct harness h;

        open_model(&h, FIXTURE, 1, 64, chunk, threads);
        {
            struct mp_generate_config config = config_of(&h, STEPS);

            config.ignore_eos = true;
            CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_OK);
        }
        if (i == 0)
            memcpy(alone.logits[0], seen.logits[0], sizeof(alone.logits[0]));
        CHECK(memcmp(alone.logits[0], seen.logits[0], sizeof(alone.logits[0])) == 0);
        mp_outputs_free(&out, 1);
        harness_close(&h);
    }
}

/* A vocabulary whose words begin with their blank: prompt and text are one text, an answer is not.
 */
static void a_text_goes_on_where_the_prompt_ends(void)
{
    static const char whole[] = "the text and all that is in it", question[] = "the text and";
    struct mp_generate_stats stats;
    struct mp_tokenizer *tok;
    struct harness h;

    CHECK_EQ(mp_tokenizer_load("tests/data/tokenizers/llama", &tok), MP_OK);
    open_model(&h, TINY, 1, 128, 32, 2);
    for (int answers = 0; answers < 2; answers++) {
        struct mp_ids prompt = { 0 }, all = { 0 };
        struct mp_output out = { 0 };
        struct mp_generate_config config;

        CHECK_EQ(mp_tokenizer_encode(tok, question, strlen(question), 0, &prompt), MP_OK);
        CHECK_EQ(mp_tokenizer_encode(tok, whole, strlen(whole), 0, &all), MP_OK);
        CHECK(memcmp(prompt.ids, all.ids, prompt.count * sizeof(uint32_t)) == 0);
        config = config_of(&h, (uint32_t)(all.count - prompt.count));
        config.tokenizer = tok;
        config.new_text = answers;
        config.ignore_eos = true;
        config.forced = all.ids + prompt.count;
        CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_OK);
        CHECK_STR(out.text, answers ? "all that is in it" : " all that is in it");
        CHECK_STR(seen.text, out.text);
        mp_outputs_free(&out, 1);
        mp_ids_free(&prompt);
        mp_ids_free(&all);
    }
    mp_tokenizer_destroy(tok);
    harness_close(&h);
}

int main(void)
{
    RUN(every_batch_equals_each_prompt_alone);
    RUN(pieces_of_prefill_and_threads_do_not_show);
    RUN(a_text_goes_on_where_the_prompt_ends);
    return 0;
}
