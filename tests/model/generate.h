#ifndef MP_TESTS_GENERATE_H
#define MP_TESTS_GENERATE_H

/* A run of tiny-moe whose tokens, logits and texts are kept. */
#include "engine/session/generate.h"

#include "tests/model/harness.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define FIXTURE "tests/data/models/qwen2moe-tiny"
#define TINY "models/tiny-moe"
#define BATCH 64
#define STEPS 4
#define VOCAB_MAX 512
#define TEXT_BYTES 8192

/* What a run showed, by sequence. */
struct seen {
    float logits[BATCH][STEPS][VOCAB_MAX];
    char text[TEXT_BYTES];
    size_t text_bytes;
    int text_calls_left; /* before on_text fails */
    uint64_t prefill_done;
    uint32_t vocab;
};

static struct seen seen;

static inline enum mp_status on_logits(void *ctx, uint32_t sequence, uint32_t step,
                                       const float *logits)
{
    struct seen *s = ctx;

    if (step < STEPS && s->vocab <= VOCAB_MAX)
        memcpy(s->logits[sequence][step], logits, s->vocab * sizeof(float));
    return MP_OK;
}

static inline int on_text(void *ctx, uint32_t sequence, const char *text, size_t bytes)
{
    struct seen *s = ctx;

    CHECK(sequence == 0 && bytes > 0 && s->text_bytes + bytes < TEXT_BYTES);
    memcpy(s->text + s->text_bytes, text, bytes);
    s->text_bytes += bytes;
    s->text[s->text_bytes] = '\0';
    return s->text_calls_left-- == 0;
}

static inline void on_prefill(void *ctx, uint64_t done_tokens, uint64_t total_tokens)
{
    struct seen *s = ctx;

    CHECK(done_tokens > s->prefill_done && done_tokens <= total_tokens);
    s->prefill_done = done_tokens;
}

static inline struct mp_generate_config config_of(struct harness *h, uint32_t max_tokens)
{
    memset(&seen, 0, sizeof(seen));
    seen.vocab = h->model.vocab;
    seen.text_calls_left = -1;
    return (struct mp_generate_config){
        .engine = h->engine,
        .engine_config = &h->config,
        .sampling = { .top_p = 1 },
        .max_tokens = max_tokens,
        .clock = mp_clock_monotonic(),
        .on_text = on_text,
        .on_logits = on_logits,
        .on_prefill = on_prefill,
        .ctx = &seen,
    };
}

/* Prompt number i: 1 to 23 tokens. */
static inline struct mp_ids prompt_of(uint32_t i, uint32_t vocab, uint32_t *ids)
{
    const size_t count = 1 + (i * 7) % 23;

    for (size_t k = 0; k < count; k++)
        ids[k] = (uint32_t)((i * 131 + k * 17 + 5) % vocab);
    return (struct mp_ids){ .ids = ids, .count = count };
}

static inline void open_model(struct harness *h, const char *model, uint32_t sequences,
                              uint32_t ctx, uint32_t tokens_max, uint32_t threads)
{
    struct harness_options options = harness_defaults(model);

    options.sequences = sequences;
    options.ctx = ctx;
    options.tokens_max = tokens_max;
    options.threads = threads;
    harness_open(&options, h);
}

#endif
