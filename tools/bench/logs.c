/*
 * What a trace and a decision log cost while decoding:
 *
 *     bench_logs --model DIR --trace FILE --decision-log FILE [flags of moepager bench]
 *
 * One engine decodes the same made-up tokens --repeat times after a run that is not counted. Of
 * every three steps one writes nothing, one the trace (with --trace-scores all scores), one the
 * decision log, in an order that changes from three to three, so that all meet the same moments of
 * the machine. Prints the medians of each round and their ratios. No file is left.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/forward/engine_int.h"
#include "policy/record/trace.h"
#include "tools/bench/bench_args.h"

enum mode { NOTHING, TRACE, DECISIONS, MODES };

struct bench {
    struct mp_args args;
    struct mp_session session;
    struct mp_trace_sink sink;
    struct mp_decisions *log;
    struct mp_policies plain, recorded;
    enum mode mode;
    double *ms[MODES]; // (gen_tokens): of the round
    size_t count[MODES];
};

static void on_routed(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k,
                      const uint32_t *experts, const float *weights)
{
    struct bench *bench = ctx;

    if (bench->mode == TRACE)
        mp_trace_sink_routed(&bench->sink, layer, tokens, k, experts, weights);
}

/* The policies with the log in between, and as they are. */
static enum mp_status open_logs(struct bench *bench, const struct mp_settings *settings)
{
    struct mp_engine *engine = bench->session.engine;
    enum mp_status status = mp_decisions_create(bench->args.decision_log, &engine->config.policies,
                                                &engine->shape, settings->groups, &bench->log);

    if (status != MP_OK)
        return status;
    mp_decisions_record(bench->log, &engine->policies);
    bench->recorded = engine->policies;
    return mp_trace_sink_open(&bench->sink, &bench->args, &bench->session);
}

static uint32_t token_at(const struct bench *bench, uint32_t position)
{
    return 1 + (position * UINT32_C(2654435761) >> 8) % (bench->session.model.vocab - 1);
}

/* Tokens first.. of one sequence, in one batch; *ms_p: how long it took. */
static enum mp_status forward(struct bench *bench, uint32_t first, uint32_t count, double *ms_p)
{
    struct mp_engine *engine = bench->session.engine;
    uint32_t *list = calloc(count, 3 * sizeof(uint32_t));
    uint8_t *want = calloc(count, 1);
    enum mp_status status = MP_ERR_NO_MEMORY;

    if (list != NULL && want != NULL) {
        const struct mp_batch batch = { .count = count,
                                        .token = list,
                                        .sequence = list + count,
                                        .position = list + 2 * count,
                                        .want = want };
        struct mp_clock *clock = mp_clock_monotonic();
        const float *logits;
        uint64_t start_ns;

        for (uint32_t i = 0; i < count; i++) {
            list[i] = token_at(bench, first + i);
            list[2 * count + i] = first + i;
        }
        want[count - 1] = 1;
        bench->sink.batch = &batch;
        engine->policies = bench->mode == DECISIONS ? bench->recorded : bench->plain;
        start_ns = mp_clock_now_ns(clock);
        status = mp_forward(engine, &batch, &logits);
        *ms_p = (double)(mp_clock_now_ns(clock) - start_ns) * 1e-6;
        bench->sink.batch = NULL;
    }
    free(list);
    free(want);
    return status;
}

static enum mp_status run_round(struct bench *bench)
{
    const uint32_t prompt = (uint32_t)bench->args.prompt_tokens;
    double ms;
    enum mp_status status;

    bench->mode = NOTHING;
    for (unsigned m = 0; m < MODES; m++)
        bench->count[m] = 0;
    status = forward(bench, 0, prompt, &ms);
    for (uint32_t i = 0; i < bench->args.gen_tokens && status == MP_OK; i++) {
        bench->mode = (enum mode)((i + i / MODES) % MODES);
        status = forward(bench, prompt + i, 1, &ms);
        bench->ms[bench->mode][bench->count[bench->mode]++] = ms;
    }
    return status;
}

static int compare_double(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *list, size_t count)
{
    qsort(list, count, sizeof(list[0]), compare_double);
    return count % 2 ? list[count / 2] : (list[count / 2 - 1] + list[count / 2]) / 2;
}

static enum mp_status run_rounds(struct bench *bench)
{
    const size_t rounds = bench->args.repeat;
    double *ratios[MODES] = { NULL };
    enum mp_status status = run_round(bench);

    for (unsigned m = TRACE; m < MODES; m++) {
        ratios[m] = calloc(rounds, sizeof(double));
        if (ratios[m] == NULL)
            status = MP_ERR_NO_MEMORY;
    }
    for (size_t r = 0; r < rounds && status == MP_OK; r++) {
        double each[MODES];

        status = run_round(bench);
        for (unsigned m = 0; m < MODES; m++)
            each[m] = median(bench->ms[m], bench->count[m]);
        for (unsigned m = TRACE; m < MODES; m++)
            ratios[m][r] = each[m] / each[NOTHING];
        printf("ms per step: %.3f; with a trace %.3f (%.4f), with a decision log %.3f (%.4f)\n",
               each[NOTHING], each[TRACE], ratios[TRACE][r], each[DECISIONS], ratios[DECISIONS][r]);
    }
    for (unsigned m = TRACE; m < MODES && status == MP_OK; m++) {
        const double middle = median(ratios[m], rounds);

        printf("%s: %.4f (%.4f to %.4f)\n", m == TRACE ? "trace" : "decision log", middle,
               ratios[m][0], ratios[m][rounds - 1]);
    }
    for (unsigned m = TRACE; m < MODES; m++)
        free(ratios[m]);
    return status;
}

static enum mp_status run(struct bench *bench, int argc, char **argv)
{
    static struct mp_settings settings;
    struct mp_session_config config = { .sequences = 1,
                                        .clock = mp_clock_monotonic(),
                                        .cancel = &mp_interrupted,
                                        .routed = on_routed,
                                        .routed_ctx = bench };
    enum mp_status status = bench_args_load(argc, argv, &bench->args, &settings);

    if (status != MP_OK)
        return status;
    if (bench->args.model == NULL || bench->args.trace == NULL || bench->args.decision_log == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "need --model, --trace and --decision-log");
    config.model = bench->args.model;
    for (unsigned m = 0; m < MODES; m++) {
        bench->ms[m] = calloc(bench->args.gen_tokens, sizeof(double));
        if (bench->ms[m] == NULL)
            return mp_fail_no_memory("the times", bench->args.gen_tokens * sizeof(double));
    }
    status = mp_session_open(&settings, &config, &bench->session);
    if (status != MP_OK)
        return status;
    bench->plain = bench->session.engine->policies;
    status = open_logs(bench, &settings);
    if (status == MP_OK)
        status = run_rounds(bench);
    bench->session.engine->policies = bench->plain;
    mp_trace_abandon(bench->sink.writer);
    mp_session_close(&bench->session);
    mp_decisions_destroy(bench->log);
    return status;
}

int main(int argc, char **argv)
{
    struct bench bench = { 0 };
    enum mp_status status = run(&bench, argc, argv);

    for (unsigned m = 0; m < MODES; m++)
        free(bench.ms[m]);
    if (status != MP_OK)
        fprintf(stderr, "bench_logs: %s\n", mp_error_last()->text);
    return mp_status_exit_code(status);
}
