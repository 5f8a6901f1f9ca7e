/*
 * An engine that runs on command, for tools/bench/pager_overhead, compare_steps and forced_drafts:
 *
 *     bench_steps_pager --model DIR [flags of moepager bench]
 *     bench_steps_plain --model DIR [flags of moepager bench]
 *
 * A line "FIRST COUNT" on stdin: the tokens at these positions are processed as one batch, and what
 * mp_forward() took is printed, in nanoseconds. They are made up, or those of --tokens-file. So two
 * programs can take their steps in turns and meet the same moments of the machine. A line "FIRST
 * COUNT RIGHT": the step of a draft, with --draft-tokens; the first RIGHT tokens are those of the
 * text, the others wrong guesses, tokens from WRONG_BACK positions before, and logits are wanted of
 * all. A line "FIRST 1 0", with --draft-tokens: the step of a run, which looks for guesses in the
 * tokens so far and checks those that it finds; the time is of all that. At the end of stdin:
 * misses, and nanoseconds of the pager's decisions and of the MoE layers, since the last line whose
 * COUNT was 0.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/session/report.h"
#include "tools/bench/bench_args.h"

#define WRONG_BACK 16u /* near enough for the text's topic to be the same */
#define LINE_BYTES 128

struct bench {
    struct mp_args args;
    struct mp_session session;
    uint32_t *token, *sequence, *position; // (tokens_max)
    uint8_t *want;                         // (tokens_max)
    uint32_t *text;                        // (ctx): of --tokens-file, or NULL
    uint32_t text_tokens;
};

/* As many ids as the file has and the context holds. */
static enum mp_status read_text(struct bench *bench)
{
    const char *path = bench->args.tokens_file;
    const uint32_t ctx = bench->session.engine_config.ctx;
    FILE *in;

    if (path == NULL)
        return MP_OK;
    in = fopen(path, "r");
    if (in == NULL)
        return mp_fail(MP_ERR_IO, "E_OPEN", "cannot read the tokens of '%s'", path);
    bench->text = calloc(ctx, sizeof(uint32_t));
    while (bench->text != NULL && bench->text_tokens < ctx &&
           fscanf(in, "%" SCNu32, &bench->text[bench->text_tokens]) == 1 &&
           bench->text[bench->text_tokens] < bench->session.model.vocab)
        bench->text_tokens++;
    fclose(in);
    return bench->text != NULL ? MP_OK : mp_fail_no_memory("the tokens", ctx * sizeof(uint32_t));
}

static enum mp_status open_bench(struct bench *bench, int argc, char **argv)
{
    static struct mp_settings settings;
    struct mp_session_config config = {
        .sequences = 1, .drafts = true, .clock = mp_clock_monotonic(), .cancel = &mp_interrupted
    };
    enum mp_status status = bench_args_load(argc, argv, &bench->args, &settings);
    uint32_t tokens;

    if (status == MP_OK)
        status = mp_require_model(&bench->args);
    if (status != MP_OK)
        return status;
    config.model = bench->args.model;
    status = mp_session_open(&settings, &config, &bench->session);
    if (status != MP_OK)
        return status;
    tokens = bench->session.engine_config.tokens_max;
    bench->token = calloc(tokens, sizeof(uint32_t));
    bench->sequence = calloc(tokens, sizeof(uint32_t));
    bench->position = calloc(tokens, sizeof(uint32_t));
    bench->want = calloc(tokens, 1);
    if (bench->token == NULL || bench->sequence == NULL || bench->position == NULL ||
        bench->want == NULL)
        return mp_fail_no_memory("a batch", tokens);
    return read_text(bench);
}

/* Spread over the vocabulary; id 0 is left out, it is special in many models. */
static uint32_t made_up(const struct bench *bench, uint32_t position)
{
    return 1 + (position * UINT32_C(2654435761) >> 8) % (bench->session.model.vocab - 1);
}

static uint32_t token_at(const struct bench *bench, uint32_t position)
{
    return bench->text != NULL ? bench->text[position] : made_up(bench, position);
}

/* The first tokens of the text, for who guesses those that follow. */
static void begin_text(struct bench *bench, uint32_t count)
{
    struct mp_drafts *drafts = bench->session.drafts;

    if (drafts == NULL)
        return;
    mp_drafts_begin(drafts);
    for (uint32_t i = 0; i < count; i++)
        mp_drafts_push(drafts, 0, token_at(bench, i));
}

/* As mp_generate() takes a step: the text's token, and behind it what is guessed. */
static enum mp_status forward_with_search(struct bench *bench, uint32_t first)
{
    const struct mp_engine_config *config = &bench->session.engine_config;
    struct mp_drafts *drafts = bench->session.drafts;
    struct mp_batch batch = { .count = 1,
                              .token = bench->token,
                              .sequence = bench->sequence,
                              .position = bench->position,
                              .want = bench->want };
    const uint32_t sequence = 0, room = config->ctx - first - 1;
    const uint64_t start_ns = mp_clock_now_ns(config->clock);
    const struct mp_drafts_expected *next;
    const struct mp_draft *draft;
    const float *logits;
    uint32_t accepted = 0;
    enum mp_status status;

    if (drafts == NULL || first + 1 >= config->ctx ||
        (bench->text != NULL && first + 1 + MP_DRAFT_MAX >= bench->text_tokens))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "no step with drafts at %" PRIu32 ": no --draft-tokens, or too few tokens",
                       first);
    status = mp_drafts_plan(drafts, &sequence, &room, 1, mp_engine_wanted_max(config) - 1);
    if (status != MP_OK)
        return status;
    draft = mp_drafts_of(drafts, 0);
    for (uint32_t i = 0; i <= draft->count; i++) {
        bench->token[i] = i == 0 ? token_at(bench, first) : draft->token[i - 1];
        bench->position[i] = first + i;
        bench->want[i] = 1;
    }
    batch.count += draft->count;
    next = mp_drafts_expected(drafts);
    mp_engine_expect(bench->session.engine, next->token, next->chance, next->count);
    status = mp_forward(bench->session.engine, &batch, &logits);
    if (status != MP_OK)
        return status;
    while (accepted < draft->count &&
           draft->token[accepted] == token_at(bench, first + 1 + accepted))
        accepted++;
    if (draft->count > 0)
        mp_drafts_note(drafts, 0, accepted);
    mp_drafts_end(drafts, mp_clock_now_ns(config->clock) - start_ns);
    mp_drafts_push(drafts, 0, token_at(bench, first + 1));
    printf("%" PRIu64 "\n", mp_clock_now_ns(config->clock) - start_ns);
    return MP_OK;
}

/* right 0: a prompt, or one token. */
static enum mp_status forward(struct bench *bench, uint32_t first, uint32_t count, uint32_t right)
{
    const struct mp_engine_config *config = &bench->session.engine_config;
    const struct mp_batch batch = { .count = count,
                                    .token = bench->token,
                                    .sequence = bench->sequence,
                                    .position = bench->position,
                                    .want = bench->want };
    const float *logits;
    uint64_t start_ns;
    enum mp_status status;

    if (count < 1 || count > config->tokens_max || first >= config->ctx ||
        count > config->ctx - first)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "tokens %" PRIu32 " to %" PRIu32 " are beyond a batch or the context", first,
                       first + count);
    if (right > 0 && (first < WRONG_BACK || count > mp_engine_wanted_max(config)))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "no step of %" PRIu32 " tokens of a draft at %" PRIu32, count, first);
    if (bench->text != NULL && first + count > bench->text_tokens)
        return mp_fail(MP_ERR_CONFIG, "E_TOKENS_FILE", "%" PRIu32 " tokens, need %" PRIu32,
                       bench->text_tokens, first + count);
    for (uint32_t i = 0; i < count; i++) {
        bench->token[i] = token_at(bench, first + i - (right > 0 && i >= right ? WRONG_BACK : 0));
        bench->position[i] = first + i;
        bench->want[i] = right > 0 || i + 1 == count;
    }
    start_ns = mp_clock_now_ns(config->clock);
    status = mp_forward(bench->session.engine, &batch, &logits);
    if (status != MP_OK)
        return status;
    printf("%" PRIu64 "\n", mp_clock_now_ns(config->clock) - start_ns);
    if (first == 0 && right == 0)
        begin_text(bench, count + 1);
    return MP_OK;
}

static enum mp_status run(struct bench *bench)
{
    struct mp_counters before = mp_report_counters(&bench->session), counters;
    char line[LINE_BYTES];
    enum mp_status status = MP_OK;

    while (status == MP_OK && fgets(line, sizeof(line), stdin) != NULL) {
        uint32_t first, count, right = 0;
        const int numbers =
            sscanf(line, "%" SCNu32 " %" SCNu32 " %" SCNu32, &first, &count, &right);

        if (numbers < 2)
            break;
        if (count == 0)
            before = mp_report_counters(&bench->session);
        else if (numbers == 3 && count == 1 && right == 0)
            status = forward_with_search(bench, first);
        else
            status = forward(bench, first, count, right);
        if (count > 0 && status == MP_OK)
            status = mp_check_stdout();
    }
    counters = mp_report_counters_since(&bench->session, &before);
    if (status == MP_OK)
        printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", counters.misses, counters.decisions_ns,
               counters.layers_ns);
    return status;
}

int main(int argc, char **argv)
{
    struct bench bench = { 0 };
    enum mp_status status = open_bench(&bench, argc, argv);

    if (status == MP_OK)
        status = run(&bench);
    mp_session_close(&bench.session);
    free(bench.token);
    free(bench.sequence);
    free(bench.position);
    free(bench.want);
    free(bench.text);
    if (status != MP_OK)
        fprintf(stderr, "%s: %s\n", argv[0], mp_error_last()->text);
    return mp_status_exit_code(status);
}
