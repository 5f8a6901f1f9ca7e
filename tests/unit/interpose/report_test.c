/*
 * What is reported and recorded of a model that was paged: the report as text or JSON, by the
 * argument, the trace and the timeline.
 */
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "interpose/entry/entry_int.h"
#include "policy/record/trace.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/interpose/made_up.h"
#include "vmm/base/compiler.h"

#define PROMPT 2u
#define STEPS 5u
#define BUDGET_BYTES (300u << 10)

static const char *in(const char *name)
{
    static char paths[4][sizeof(test_tmpdir_path) + 32];
    static unsigned next;
    char *path = paths[next++ % MP_ARRAY_LEN(paths)];

    snprintf(path, sizeof(paths[0]), "%s/%s", test_tmpdir(), name);
    return path;
}

/* The choice of a token; different for neighbours, so that each opens its layer. */
static void choose(uint32_t step, uint32_t layer, int32_t ids[MADE_TOP_K])
{
    ids[0] = (int32_t)((step + layer) % MADE_EXPERTS);
    ids[1] = (int32_t)((step + layer + 3) % MADE_EXPERTS);
}

static char report[sizeof(test_tmpdir_path) + 64];

/* Whoever reports at the end may find a thread stopped while it held the mutex: then nothing is
 * written, after two seconds. */
static void check_no_report_without_the_mutex(void)
{
    struct mp_paged *paged = mp_entry_begin(0);

    CHECK(paged != NULL);
    pthread_mutex_lock(&paged->mutex);
    mp_paged_report(paged);
    pthread_mutex_unlock(&paged->mutex);
    mp_entry_end(paged);
    CHECK(access(report, F_OK) != 0);
}

/* What is not an expert is read in the background, but where the program may write to it. */
static void check_dense_is_read(bool wanted)
{
    struct mp_paged *paged = mp_entry_begin(0);
    uint64_t bytes = 0;

    CHECK(paged != NULL);
    for (int i = 0; i < (wanted ? 3000 : 20) && bytes == 0; i++) {
        (void)mp_paged_dense_done(paged->dense, &bytes);
        usleep(10000);
    }
    mp_entry_end(paged);
    CHECK_EQ(bytes > 0, wanted);
}

/* A prompt of two tokens, then one after the other; its report is written when it is unmapped. */
static void run_model(void)
{
    const int fd = open(made_path(), O_RDONLY);
    char *base = made_map(fd, made_file_bytes, MAP_SHARED, 0);

    CHECK(made_is_paged(base));
    check_no_report_without_the_mutex();
    check_dense_is_read(true);
    for (uint32_t s = 0; s <= STEPS; s++) {
        for (uint32_t l = 0; l < MADE_LAYERS; l++) {
            int32_t ids[PROMPT * MADE_TOP_K];

            choose(2 * s, l, ids);
            choose(2 * s + 1, l, ids + MADE_TOP_K);
            made_run_layer(base, l, ids, s == 0 ? PROMPT : 1);
        }
    }
    close(fd);
    made_unmap(base, made_file_bytes);
}

static void check_row(const struct mp_trace_row *row, uint32_t step, uint32_t layer, uint32_t token)
{
    int32_t ids[MADE_TOP_K];

    choose(2 * step + token, layer, ids);
    CHECK_EQ(row->step, step);
    CHECK_EQ(row->layer, layer);
    CHECK_EQ(row->position, step == 0 ? token : PROMPT + step - 1);
    for (uint32_t r = 0; r < MADE_TOP_K; r++) {
        CHECK_EQ(row->experts[r], ids[r]);
        CHECK(row->weights[r] == 0.5f);
    }
}

static void the_trace_has_every_choice(void)
{
    struct mp_trace_reader *reader;
    struct mp_trace_row row;

    CHECK_EQ(mp_trace_open(in("trace"), &reader), MP_OK);
    CHECK_STR(mp_trace_get_shape(reader)->model, "made.gguf");
    CHECK_EQ(mp_trace_get_shape(reader)->layers, MADE_LAYERS);
    CHECK_EQ(mp_trace_get_shape(reader)->experts, MADE_EXPERTS);
    CHECK_EQ(mp_trace_get_shape(reader)->top_k, MADE_TOP_K);
    CHECK_EQ(mp_trace_get_shape(reader)->expert_bytes, MADE_KINDS * MADE_EXPERT_BYTES);
    for (uint32_t s = 0; s <= STEPS; s++) {
        for (uint32_t l = 0; l < MADE_LAYERS; l++) {
            for (uint32_t t = 0; t < (s == 0 ? PROMPT : 1); t++) {
                CHECK_EQ(mp_trace_read(reader, &row), MP_OK);
                CHECK(row.experts != NULL);
                check_row(&row, s, l, t);
            }
        }
    }
    CHECK_EQ(mp_trace_read(reader, &row), MP_OK);
    CHECK(row.experts == NULL);
    mp_trace_reader_destroy(reader);
}

static void the_timeline_is_json(void)
{
    json_t *json = json_load_file(in("timeline.json"), 0, NULL);

    CHECK(json != NULL);
    CHECK(json_array_size(json_object_get(json, "traceEvents")) > 0);
    json_decref(json);
}

static uint64_t number(json_t *json, const char *key)
{
    CHECK(json_is_integer(json_object_get(json, key)));
    return (uint64_t)json_integer_value(json_object_get(json, key));
}

static void check_json(json_t *json)
{
    json_t *counters = json_object_get(json, "counters");
    const uint64_t hits = number(counters, "hits"), uses = hits + number(counters, "misses");

    CHECK_STR(json_string_value(json_object_get(json, "model")), made_path());
    CHECK_EQ(uses + number(counters, "elsewhere"),
             MADE_LAYERS * (PROMPT * MADE_TOP_K + STEPS * MADE_TOP_K));
    CHECK(json_real_value(json_object_get(json, "hit_rate")) == (double)hits / (double)uses);
    CHECK(hits > 0 && hits < uses);
    CHECK_EQ(number(json, "bytes_loaded"),
             number(counters, "load_bytes") + number(counters, "prefetch_bytes"));
    CHECK(number(json, "bytes_prefetched_unused") <= number(counters, "prefetch_bytes"));
    CHECK(number(json, "budget_bytes") <= BUDGET_BYTES);
    CHECK(number(json, "budget_bytes") > BUDGET_BYTES / 2);
    CHECK_EQ(number(json, "expert_bytes"), MADE_ALL_BYTES);
    CHECK(number(json, "weights_read_bytes") <= number(json, "weights_bytes"));
    CHECK_EQ(number(json, "layers_opened"), MADE_LAYERS * (1 + STEPS));
    CHECK_EQ(number(json, "layers_closed_early"), 0);
    CHECK_EQ(number(json, "unforeseen_touches"), 0);
    CHECK_EQ(number(json, "device_copies"), 0);
    CHECK(number(json, "experts_mapped") > 0);
    CHECK(json_is_true(json_object_get(json, "paged")));
    CHECK_STR(json_string_value(json_object_get(json, "hooks")), "expert");
    CHECK_STR(json_string_value(json_object_get(json_object_get(json, "policies"), "route")),
              "exact");
}

static void the_json_report_adds_up(void)
{
    json_t *json = json_load_file(report, JSON_REJECT_DUPLICATES, NULL);

    CHECK(json != NULL);
    check_json(json);
    json_decref(json);
}

/* Lines that depend on no time and no thread. */
static void the_text_report_says(void)
{
    static const char *const parts[] = {
        "expert RAM    0.3 of 0.9 MiB (34 %), other weights 0.9 MiB\n",
        "unforeseen    0 touches; experts are known by expert\n",
        "layers        18 opened, 0 closed early, 0 for all experts\n",
        "policies      route exact, assign gpu-only, ",
    };
    char text[8192];
    FILE *file = fopen(report, "r");
    size_t bytes;

    CHECK(file != NULL);
    bytes = fread(text, 1, sizeof(text) - 1, file);
    text[bytes] = '\0';
    fclose(file);
    CHECK(strncmp(text, "model         ", 14) == 0);
    for (size_t i = 0; i < MP_ARRAY_LEN(parts); i++) {
        if (strstr(text, parts[i]) == NULL) {
            fprintf(stderr, "no '%s' in\n%s", parts[i], text);
            exit(1);
        }
    }
    CHECK(strstr(text, "to devices") == NULL);
}

static void what_may_be_written_to_is_left_alone(void)
{
    const int fd = open(made_path(), O_RDONLY);
    char *base = made_map_to_write(fd, made_file_bytes);

    CHECK(made_is_paged(base));
    check_dense_is_read(false);
    close(fd);
    made_unmap(base, made_file_bytes);
}

/* Until it is there, or for so long. */
static bool wait_for_report(int most_ms)
{
    for (int i = 0; i < most_ms && access(report, F_OK) != 0; i++)
        usleep(1000);
    return access(report, F_OK) == 0;
}

/* While somebody listens, the thread says once a second what the pager does. */
static void a_top_is_told(void)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    const int fd = open(made_path(), O_RDONLY);
    char *base = made_map(fd, made_file_bytes, MAP_SHARED, 0), message[8192];
    const int top = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    json_t *json;
    ssize_t bytes;

    CHECK(made_is_paged(base));
    CHECK_EQ(mkdir(in("moepager"), 0700), 0);
    snprintf(at.sun_path, sizeof(at.sun_path), "%s", in("moepager/top.0"));
    CHECK_EQ(bind(top, (struct sockaddr *)&at, sizeof(at)), 0);
    bytes = recv(top, message, sizeof(message), 0);
    CHECK(bytes > 0);
    json = json_loadb(message, (size_t)bytes, JSON_REJECT_DUPLICATES, NULL);
    CHECK(json != NULL);
    CHECK_STR(json_string_value(json_object_get(json, "command")), "preload");
    CHECK_STR(json_string_value(json_object_get(json, "model")), made_path());
    CHECK_EQ(number(json, "pid"), getpid());
    CHECK_EQ(number(json, "expert_bytes"), MADE_ALL_BYTES);
    CHECK(number(json, "budget_bytes") <= BUDGET_BYTES);
    CHECK(json_object_get(json, "tokens") == NULL);
    CHECK(json_is_object(json_object_get(json, "counters")));
    json_decref(json);
    close(top);
    close(fd);
    made_unmap(base, made_file_bytes);
    CHECK_EQ(unlink(report), 0);
}

/* SIGUSR1 asks for a report, once; unasked, the thread that looks writes none, however often it
 * looks: hooks "touches" let it look a hundred times a second. */
static void a_signal_asks_for_one_report(void)
{
    const int fd = open(made_path(), O_RDONLY);
    char *base = made_map(fd, made_file_bytes, MAP_SHARED, 0);

    CHECK(made_is_paged(base));
    CHECK(!wait_for_report(150));
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(raise(SIGUSR1), 0);
        CHECK(wait_for_report(10000));
        usleep(20000); /* it is written to its end */
        CHECK_EQ(unlink(report), 0);
        CHECK(!wait_for_report(150));
    }
    close(fd);
    made_unmap(base, made_file_bytes);
    CHECK(access(report, F_OK) == 0); /* as at every end */
}

int main(int argc, char **argv)
{
    const bool touches = argc > 1 && strcmp(argv[1], "touches") == 0;
    const bool json = argc > 1 && strcmp(argv[1], "json") == 0;

    if (json)
        snprintf(report, sizeof(report), "%s/report-%ld.json", test_tmpdir(), (long)getpid());
    else
        snprintf(report, sizeof(report), "%s/report", test_tmpdir());
    setenv("MOEPAGER_REPORT", json ? in("report-%p.json") : in("report"), 1);
    setenv("XDG_RUNTIME_DIR", test_tmpdir(), 1);
    setenv("MOEPAGER_TRACE", in("trace"), 1);
    setenv("MOEPAGER_TIMELINE", in("timeline.json"), 1);
    made_path();
    made_start("300KiB", touches ? "touches" : "expert");
    if (touches) {
        RUN(a_top_is_told);
        RUN(a_signal_asks_for_one_report);
        return 0;
    }
    RUN(run_model);
    RUN(the_trace_has_every_choice);
    RUN(the_timeline_is_json);
    if (json)
        RUN(the_json_report_adds_up);
    else
        RUN(the_text_report_says);
    RUN(what_may_be_written_to_is_left_alone);
    return 0;
}
