/*
 * Decoding and prefill of one model at several budgets, in one process:
 *
 *     bench_model --model DIR --budgets 100,25,50 [--batch N] [--prompt-tokens N] [--gen-tokens N]
 *                 [--repeats N] [--warm N] [--from-trace TRACE] [--OPTION VALUE]...
 *
 * OPTION is one of `moepager env`. The device, its kernels and the pinned host memory are opened
 * once, and the host tier is full before anything is timed. At each budget runs are repeated until
 * two of them agree (WARM, 6, at most), and then REPEATS more are measured. One line of JSON per
 * budget as soon as it is known: medians. `graphs`: share of the decoding steps that were graphs
 * from beginning to end. `waits`: of the host for the device, of a step. A budget that fails has a
 * line with `error`, and the next one follows. 0; 1: an error; 77: there is no driver.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "engine/forward/engine_int.h"
#include "engine/session/report.h"
#include "engine/session/session.h"
#include "vmm/base/error.h"

#define BATCH_MAX 64u
#define REPEATS_MAX 99u
#define AGREE 0.03 /* of a step's time, and of the share of graphs */

struct bench {
    struct mp_settings settings;
    struct mp_session session;
    const char *model, *budgets, *route_from;
    uint32_t batch, prompt, gen, repeats, warm;
    struct mp_ids prompts[BATCH_MAX];
    struct mp_counters at_decode;
    uint64_t waits_at_decode;
};

struct result {
    double tpot_ms, ttft_ms, prefill_per_s, hit_rate, bytes_per_step, wait_ms, graphs, waits;
};

static volatile sig_atomic_t never;

static enum mp_status make_prompts(struct bench *b)
{
    uint64_t state = 1;

    for (uint32_t i = 0; i < b->batch; i++) {
        struct mp_ids *ids = &b->prompts[i];

        ids->ids = calloc(b->prompt, sizeof(uint32_t));
        if (ids->ids == NULL)
            return mp_fail_no_memory("the prompts", b->prompt * sizeof(uint32_t));
        ids->count = ids->capacity = b->prompt;
        for (uint32_t t = 0; t < b->prompt; t++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            ids->ids[t] = 1 + (uint32_t)((state >> 33) % (b->session.model.vocab - 1));
        }
    }
    return MP_OK;
}

/* For the device, of its transformer's thread. */
static uint64_t waited(const struct bench *b)
{
    const struct mp_device *device = b->session.engine->device;

    return device != NULL ? device->seen_count : 0;
}

static void on_step(void *ctx, uint32_t step, const struct mp_batch *batch)
{
    struct bench *b = ctx;

    (void)batch;
    if (step == 1) {
        b->at_decode = mp_report_counters(&b->session);
        b->waits_at_decode = waited(b);
    }
}

static struct mp_device_graph_counts counted(const struct bench *b)
{
    const struct mp_device_graph_counts none = { 0 };
    const struct mp_device *device = b->session.engine->device;

    return device != NULL ? mp_device_graphs_counted(device) : none;
}

static enum mp_status run_once(struct bench *b, struct result *result_p)
{
    const struct mp_generate_config config = {
        .engine = b->session.engine,
        .engine_config = &b->session.engine_config,
        .sampling = { .temperature = 0, .top_p = 1, .seed = 1 },
        .max_tokens = b->gen,
        .ignore_eos = true,
        .clock = b->session.engine_config.clock,
        .on_step = on_step,
        .ctx = b,
    };
    const struct mp_counters before = mp_report_counters(&b->session);
    const uint64_t complete = counted(b).complete;
    struct mp_output outputs[BATCH_MAX] = { 0 };
    struct mp_generate_stats stats;
    struct mp_counters decode = { 0 };
    struct mp_report report;
    const enum mp_status status = mp_generate(&config, b->prompts, b->batch, outputs, &stats);
    const double steps = stats.decode_steps > 0 ? (double)stats.decode_steps : 1;

    mp_outputs_free(outputs, BATCH_MAX);
    if (status != MP_OK)
        return status;
    mp_report_make(&b->session, &stats, &before, 0, &report);
    if (stats.decode_steps > 0)
        decode = mp_report_counters_since(&b->session, &b->at_decode);
    *result_p = (struct result){
        .tpot_ms = report.tpot_ms,
        .ttft_ms = report.ttft_ms,
        .prefill_per_s = report.prefill_per_s,
        .hit_rate = report.hit_rate,
        .bytes_per_step = (double)(decode.load_bytes + decode.prefetch_bytes) / steps,
        .wait_ms = (double)decode.exposed_wait_ns / 1e6 / steps,
        .graphs = (double)(counted(b).complete - complete) / steps,
        .waits = (double)(waited(b) - b->waits_at_decode) / steps,
    };
    return MP_OK;
}

static bool agree(const struct result *x, const struct result *y)
{
    return fabs(x->tpot_ms - y->tpot_ms) <= AGREE * y->tpot_ms &&
           fabs(x->ttft_ms - y->ttft_ms) <= 2 * AGREE * y->ttft_ms &&
           fabs(x->graphs - y->graphs) <= AGREE;
}

/* Residency, the policies' averages and the pauses of graphs settle. */
static enum mp_status warm_up(struct bench *b, unsigned *runs_p)
{
    struct result last = { 0 }, now = { 0 };
    enum mp_status status = MP_OK;
    unsigned runs = 0;

    mp_space_wait_filled(b->session.engine->space);
    do {
        last = now;
        status = run_once(b, &now);
        runs++;
    } while (status == MP_OK && runs < b->warm && !(runs > 1 && agree(&last, &now)));
    *runs_p = runs;
    return status;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(const struct result *results, unsigned count, size_t offset)
{
    double values[REPEATS_MAX];

    for (unsigned i = 0; i < count; i++)
        memcpy(&values[i], (const char *)&results[i] + offset, sizeof(double));
    qsort(values, count, sizeof(values[0]), compare);
    return values[count / 2];
}

static enum mp_status measure(struct bench *b, double percent)
{
    struct result results[REPEATS_MAX];
    unsigned warm = 0;
    enum mp_status status = warm_up(b, &warm);

    for (unsigned r = 0; r < b->repeats && status == MP_OK; r++)
        status = run_once(b, &results[r]);
    if (status != MP_OK)
        return status;
#define MEDIAN(field) median(results, b->repeats, offsetof(struct result, field))
    printf("{\"budget\": %g, \"batch\": %u, \"prompt\": %u, \"warm_runs\": %u, "
           "\"tpot_ms\": %.4f, \"ttft_ms\": %.3f, \"prefill_per_s\": %.1f, \"hit_rate\": %.4f, "
           "\"bytes_per_step\": %.0f, \"wait_ms_per_step\": %.4f, \"graphs\": %.3f, "
           "\"waits\": %.2f}\n",
           percent, b->batch, b->prompt, warm, MEDIAN(tpot_ms), MEDIAN(ttft_ms),
           MEDIAN(prefill_per_s), MEDIAN(hit_rate), MEDIAN(bytes_per_step), MEDIAN(wait_ms),
           MEDIAN(graphs), MEDIAN(waits));
#undef MEDIAN
    fflush(stdout);
    return MP_OK;
}

static enum mp_status each_budget(struct bench *b)
{
    const uint64_t whole_bytes = b->session.memory.expert_bytes;
    enum mp_status first = MP_OK;

    for (const char *at = b->budgets; *at != '\0';) {
        char *end;
        const double percent = strtod(at, &end);
        const uint64_t bytes =
            percent >= 100 ? UINT64_MAX : (uint64_t)((double)whole_bytes * percent / 100);
        enum mp_status status;

        if (end == at || percent <= 0 || (*end != ',' && *end != '\0'))
            return mp_fail(MP_ERR_CONFIG, "E_BENCH", "--budgets: got '%s', need percentages", at);
        at = *end == ',' ? end + 1 : end;
        status = mp_engine_set_budget(b->session.engine, bytes);
        if (status == MP_OK)
            status = measure(b, percent);
        if (status == MP_OK)
            continue;
        printf("{\"budget\": %g, \"error\": \"%s\"}\n", percent, mp_error_last()->code);
        fflush(stdout);
        fprintf(stderr, "bench_model: at %g %%: %s\n", percent, mp_error_last()->text);
        first = first == MP_OK ? status : first;
    }
    return first;
}

static enum mp_status open_session(struct bench *b)
{
    const struct mp_session_config config = {
        .model = b->model,
        .sequences = b->batch,
        .clock = mp_clock_monotonic(),
        .cancel = &never,
        .forced_routing = b->route_from,
    };

    return mp_session_open(&b->settings, &config, &b->session);
}

/* What is not a number of this program is a setting of the project. */
static enum mp_status parse(struct bench *b, int argc, char **argv)
{
    const struct {
        const char *flag;
        uint32_t *value;
    } numbers[] = { { "--batch", &b->batch },
                    { "--prompt-tokens", &b->prompt },
                    { "--gen-tokens", &b->gen },
                    { "--repeats", &b->repeats },
                    { "--warm", &b->warm } };
    const struct {
        const char *flag;
        const char **value;
    } texts[] = { { "--model", &b->model },
                  { "--budgets", &b->budgets },
                  { "--from-trace", &b->route_from } };

    for (int i = 1; i < argc; i += 2) {
        bool known = false;
        enum mp_status status;

        if (i + 1 == argc)
            return mp_fail(MP_ERR_CONFIG, "E_USAGE", "%s needs a value", argv[i]);
        for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
            if (strcmp(argv[i], numbers[n].flag) == 0) {
                *numbers[n].value = (uint32_t)strtoul(argv[i + 1], NULL, 10);
                known = true;
            }
        }
        for (size_t n = 0; n < sizeof(texts) / sizeof(texts[0]); n++) {
            if (strcmp(argv[i], texts[n].flag) == 0) {
                *texts[n].value = argv[i + 1];
                known = true;
            }
        }
        status = known ? MP_OK : mp_opt_set(b->settings.groups, argv[i], argv[i + 1]);
        if (status != MP_OK)
            return status;
    }
    if (b->model == NULL || b->budgets == NULL || b->batch < 1 || b->batch > BATCH_MAX ||
        b->prompt < 1 || b->gen < 2 || b->repeats < 1 || b->repeats > REPEATS_MAX)
        return mp_fail(
            MP_ERR_CONFIG, "E_USAGE",
            "need --model DIR --budgets PERCENT,..., --batch 1 to %u, --prompt-tokens 1 and "
            "more, --gen-tokens 2 and more, --repeats 1 to %u",
            BATCH_MAX, REPEATS_MAX);
    return MP_OK;
}

int main(int argc, char **argv)
{
    struct bench b = { .batch = 1, .prompt = 8, .gen = 48, .repeats = 3, .warm = 6 };
    enum mp_status status = mp_settings_load(&b.settings);

    if (status == MP_OK)
        status = parse(&b, argc, argv);
    if (status == MP_OK)
        status = mp_settings_start_log(&b.settings);
    mp_gpu_configure(&b.settings.gpu);
    if (status == MP_OK)
        status = open_session(&b);
    if (status == MP_OK)
        status = make_prompts(&b);
    if (status == MP_OK)
        status = each_budget(&b);
    if (status != MP_OK)
        fprintf(stderr, "bench_model: %s\n", mp_error_last()->text);
    for (uint32_t i = 0; i < BATCH_MAX; i++)
        free(b.prompts[i].ids);
    mp_session_close(&b.session);
    mp_log_fini();
    return status == MP_OK ? 0 : status == MP_ERR_UNSUPPORTED ? 77 : 1;
}
