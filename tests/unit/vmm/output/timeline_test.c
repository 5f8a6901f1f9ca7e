/* Timelines: what is recorded, by one thread and by several, and the file that it becomes. */
#include <jansson.h>
#include <pthread.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "vmm/output/timeline.h"

static char directory[64];

static const char *in_directory(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return path;
}

static json_t *read_json(const char *path)
{
    json_error_t error;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);

    if (json == NULL)
        fprintf(stderr, "%s:%d:%d: %s\n", path, error.line, error.column, error.text);
    CHECK(json != NULL);
    return json;
}

static void no_recorder_is_no_recording(void)
{
    CHECK_EQ(mp_timeline_add_track(NULL, "x"), 0);
    CHECK_EQ(mp_timeline_now_ns(NULL), 0);
    mp_timeline_span(NULL, 0, "x", 1, 2, NULL);
    mp_timeline_level(NULL, "x", 1, 2);
    CHECK_EQ(mp_timeline_recorded(NULL) + mp_timeline_dropped(NULL), 0);
    CHECK_EQ(mp_timeline_write(NULL, "/none/such"), MP_OK);
    mp_timeline_destroy(NULL);
}

static uint64_t always_1500(struct mp_clock *clock)
{
    (void)clock;
    return 1500;
}

static void a_timeline_is_trace_event_json(void)
{
    const struct mp_timeline_args args = { { "layer", "expert" }, { 7, 21 } };
    struct mp_timeline *timeline = NULL;
    struct mp_clock clock = { always_1500 };
    json_t *json, *events, *span;

    CHECK_EQ(mp_timeline_create(&clock, 3, &timeline), MP_OK);
    CHECK_EQ(mp_timeline_add_track(timeline, "compute"), 0);
    CHECK_EQ(mp_timeline_add_track(timeline, "link \"0\""), 1);
    CHECK_EQ(mp_timeline_now_ns(timeline), 1500);
    mp_timeline_span(timeline, 1, "load", 1500, 4001, &args);
    mp_timeline_span(timeline, 0, "evict", 2000, 2000, NULL);
    mp_timeline_level(timeline, "resident_bytes", 2000, 4096);
    mp_timeline_span(timeline, 1, "late", 5000, 6000, NULL);
    CHECK_EQ(mp_timeline_recorded(timeline), 3);
    CHECK_EQ(mp_timeline_dropped(timeline), 1);
    CHECK_EQ(mp_timeline_write(timeline, in_directory("timeline.json")), MP_OK);
    json = read_json(in_directory("timeline.json"));
    CHECK_EQ(json_integer_value(json_object_get(json, "dropped_events")), 1);
    events = json_object_get(json, "traceEvents");
    CHECK_EQ(json_array_size(events), 2 * 2 + 3);
    CHECK_STR(json_string_value(
                  json_object_get(json_object_get(json_array_get(events, 2), "args"), "name")),
              "link \"0\"");
    span = json_array_get(events, 4);
    CHECK_STR(json_string_value(json_object_get(span, "ph")), "X");
    CHECK_STR(json_string_value(json_object_get(span, "name")), "load");
    CHECK_EQ(json_integer_value(json_object_get(span, "tid")), 2);
    CHECK(json_real_value(json_object_get(span, "ts")) == 1.5);
    CHECK(json_real_value(json_object_get(span, "dur")) == 2.501);
    CHECK_EQ(json_integer_value(json_object_get(json_object_get(span, "args"), "expert")), 21);
    json_decref(json);
    CHECK_EQ(mp_timeline_write(timeline, "/dev/full"), MP_ERR_IO);
    CHECK_EQ(mp_timeline_write(timeline, in_directory("none/x")), MP_ERR_IO);
    mp_timeline_destroy(timeline);
}

static void a_timeline_refuses_what_cannot_be(void)
{
    struct mp_timeline *timeline = NULL;

    CHECK_EQ(mp_timeline_create(mp_clock_monotonic(), 0, &timeline), MP_ERR_INVALID);
    CHECK_EQ(mp_timeline_create(mp_clock_monotonic(), UINT64_MAX / 8, &timeline), MP_ERR_NO_MEMORY);
    CHECK_EQ(mp_timeline_create(mp_clock_monotonic(), UINT64_C(1) << 56, &timeline),
             MP_ERR_NO_MEMORY);
    for (uint64_t n = 0; n < 2; n++) {
        fault_nth(FAULT_ALLOCATIONS, n);
        CHECK_EQ(mp_timeline_create(mp_clock_monotonic(), 1, &timeline), MP_ERR_NO_MEMORY);
        CHECK_EQ(fault_end(), 1);
    }
    CHECK(timeline == NULL);
    CHECK_EQ(mp_timeline_create(mp_clock_monotonic(), 1, &timeline), MP_OK);
    for (unsigned i = 0; i < 2 * MP_TIMELINE_TRACKS_MAX; i++)
        CHECK(mp_timeline_add_track(timeline, "t") < MP_TIMELINE_TRACKS_MAX);
    mp_timeline_destroy(timeline);
}

/* Three threads record this many each. */
enum { MANY = 20000 };

static void *record_many(void *arg)
{
    for (uint64_t i = 0; i < MANY; i++)
        mp_timeline_span(arg, 0, "work", i, i + 1, NULL);
    return NULL;
}

/* Counts are true and a file is whole at any moment: nothing is dropped before all room is taken.
 */
static void threads_record_while_another_looks(uint64_t room)
{
    struct mp_timeline *timeline = NULL;
    pthread_t threads[3];
    uint64_t last = 0;
    json_t *json;

    CHECK_EQ(mp_timeline_create(mp_clock_monotonic(), room, &timeline), MP_OK);
    mp_timeline_add_track(timeline, "t");
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, record_many, timeline), 0);
    CHECK_EQ(mp_timeline_write(timeline, in_directory("early.json")), MP_OK);
    while (last < room && last < 3 * MANY) {
        const uint64_t dropped = mp_timeline_dropped(timeline);
        const uint64_t recorded = mp_timeline_recorded(timeline);

        CHECK(dropped <= (3 * MANY > room ? 3 * MANY - room : 0));
        CHECK(recorded >= last && recorded <= room && (dropped == 0 || recorded == room));
        last = recorded;
    }
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    json = read_json(in_directory("early.json"));
    CHECK(json_integer_value(json_object_get(json, "dropped_events")) <= 3 * MANY);
    json_decref(json);
    CHECK_EQ(mp_timeline_recorded(timeline) + mp_timeline_dropped(timeline), 3 * MANY);
    CHECK_EQ(mp_timeline_write(timeline, in_directory("late.json")), MP_OK);
    json = read_json(in_directory("late.json"));
    CHECK_EQ(json_array_size(json_object_get(json, "traceEvents")), last + 2);
    json_decref(json);
    mp_timeline_destroy(timeline);
}

static void threads_record_and_nothing_is_dropped(void)
{
    threads_record_while_another_looks(3 * MANY);
}

static void threads_record_more_than_there_is_room(void)
{
    threads_record_while_another_looks(5000);
}

int main(void)
{
    char command[128];

    snprintf(directory, sizeof(directory), "/tmp/moepager-timeline-XXXXXX");
    CHECK(mkdtemp(directory) != NULL);
    RUN(no_recorder_is_no_recording);
    RUN(a_timeline_is_trace_event_json);
    RUN(a_timeline_refuses_what_cannot_be);
    RUN(threads_record_and_nothing_is_dropped);
    RUN(threads_record_more_than_there_is_room);
    snprintf(command, sizeof(command), "rm -r %s", directory);
    CHECK_EQ(system(command), 0);
    return 0;
}
