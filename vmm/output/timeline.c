/*
 * Events in an array that threads fill without a lock, and the file that is written from it at the
 * end. Nothing is written during a run.
 */
#include "vmm/output/timeline.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"
#include "vmm/output/out.h"

struct event {
    const char *name;
    uint64_t start_ns;
    uint64_t end_ns; /* of a level: the value */
    const char *key[2];
    uint64_t value[2];
    uint16_t track;
    char phase;          /* as in the file: X span, C level */
    _Atomic char filled; /* release after the other fields, acquire by the writer of the file */
};

_Static_assert(sizeof(struct event) == 64, "the header promises 64 bytes");

struct mp_timeline {
    struct mp_clock *clock;
    struct event *events;
    uint64_t events_max;
    _Atomic uint64_t taken; /* relaxed: hands out places; above events_max: dropped */
    unsigned track_count;
    const char *tracks[MP_TIMELINE_TRACKS_MAX];
};

enum mp_status mp_timeline_create(struct mp_clock *clock, uint64_t events_max,
                                  struct mp_timeline **timeline_p)
{
    struct mp_timeline *timeline;
    size_t bytes;

    if (events_max == 0)
        return MP_ERR_INVALID;
    if (!mp_mul_size(events_max, sizeof(struct event), &bytes))
        return mp_fail_no_memory("a timeline", UINT64_MAX);
    timeline = calloc(1, sizeof(*timeline));
    if (timeline == NULL)
        return mp_fail_no_memory("a timeline", sizeof(*timeline));
    timeline->events = calloc(1, bytes);
    if (timeline->events == NULL) {
        free(timeline);
        return mp_fail_no_memory("the events of a timeline", bytes);
    }
    mp_assert(clock != NULL);
    timeline->clock = clock;
    timeline->events_max = events_max;
    *timeline_p = timeline;
    return MP_OK;
}

void mp_timeline_destroy(struct mp_timeline *timeline)
{
    if (timeline == NULL)
        return;
    free(timeline->events);
    free(timeline);
}

unsigned mp_timeline_add_track(struct mp_timeline *timeline, const char *name)
{
    if (timeline == NULL)
        return 0;
    mp_assert(name != NULL);
    if (timeline->track_count < MP_TIMELINE_TRACKS_MAX)
        timeline->tracks[timeline->track_count++] = name;
    return timeline->track_count - 1;
}

uint64_t mp_timeline_now_ns(struct mp_timeline *timeline)
{
    return timeline != NULL ? mp_clock_now_ns(timeline->clock) : 0;
}

static void record(struct mp_timeline *timeline, const struct event *event)
{
    const uint64_t index = atomic_fetch_add_explicit(&timeline->taken, 1, memory_order_relaxed);
    struct event *to;

    mp_assert(event->name != NULL);
    if (index >= timeline->events_max)
        return;
    to = &timeline->events[index];
    to->name = event->name;
    to->start_ns = event->start_ns;
    to->end_ns = event->end_ns;
    for (int i = 0; i < 2; i++) {
        to->key[i] = event->key[i];
        to->value[i] = event->value[i];
    }
    to->track = event->track;
    to->phase = event->phase;
    atomic_store_explicit(&to->filled, 1, memory_order_release);
}

static void set_args(struct event *event, const struct mp_timeline_args *args)
{
    if (args == NULL)
        return;
    for (int i = 0; i < 2; i++) {
        event->key[i] = args->key[i];
        event->value[i] = args->value[i];
    }
}

void mp_timeline_span(struct mp_timeline *timeline, unsigned track, const char *name,
                      uint64_t start_ns, uint64_t end_ns, const struct mp_timeline_args *args)
{
    struct event event = { .name = name, .start_ns = start_ns, .end_ns = end_ns, .phase = 'X' };

    if (timeline == NULL)
        return;
    mp_assert(end_ns >= start_ns);
    mp_assert(track < MP_TIMELINE_TRACKS_MAX);
    event.track = (uint16_t)track;
    set_args(&event, args);
    record(timeline, &event);
}

void mp_timeline_level(struct mp_timeline *timeline, const char *name, uint64_t at_ns,
                       uint64_t value)
{
    const struct event event = { .name = name, .start_ns = at_ns, .end_ns = value, .phase = 'C' };

    if (timeline != NULL)
        record(timeline, &event);
}

uint64_t mp_timeline_recorded(const struct mp_timeline *timeline)
{
    uint64_t taken;

    if (timeline == NULL)
        return 0;
    taken = atomic_load_explicit(&timeline->taken, memory_order_relaxed);
    return taken < timeline->events_max ? taken : timeline->events_max;
}

uint64_t mp_timeline_dropped(const struct mp_timeline *timeline)
{
    uint64_t taken;

    if (timeline == NULL)
        return 0;
    taken = atomic_load_explicit(&timeline->taken, memory_order_relaxed); /* once: others record */
    return taken > timeline->events_max ? taken - timeline->events_max : 0;
}

static void write_args(struct mp_json_out *json, const struct event *event)
{
    mp_assert(event->phase == 'X' || event->phase == 'C');
    if (event->phase != 'C' && event->key[0] == NULL)
        return;
    mp_json_object_begin(json, "args");
    if (event->phase == 'C')
        mp_json_put_u64(json, "value", event->end_ns);
    for (int i = 0; i < 2 && event->key[i] != NULL; i++)
        mp_json_put_u64(json, event->key[i], event->value[i]);
    mp_json_object_end(json);
}

static void write_event(struct mp_json_out *json, const struct event *event)
{
    const char phase[2] = { event->phase, '\0' };

    mp_assert(event->name != NULL);
    mp_json_object_begin(json, NULL);
    mp_json_put_string(json, "ph", phase);
    mp_json_put_string(json, "name", event->name);
    mp_json_put_u64(json, "pid", 1);
    mp_json_put_u64(json, "tid", event->track + 1u);
    mp_json_put_milli(json, "ts", event->start_ns);
    if (event->phase == 'X')
        mp_json_put_milli(json, "dur", event->end_ns - event->start_ns);
    write_args(json, event);
    mp_json_object_end(json);
    putc('\n', json->file);
}

/* The name of a track, and its place from top to bottom. */
static void write_track(struct mp_json_out *json, unsigned track, const char *name)
{
    static const char *const kinds[2] = { "thread_name", "thread_sort_index" };

    mp_assert(track < MP_TIMELINE_TRACKS_MAX && name != NULL);
    for (int i = 0; i < 2; i++) {
        mp_json_object_begin(json, NULL);
        mp_json_put_string(json, "ph", "M");
        mp_json_put_string(json, "name", kinds[i]);
        mp_json_put_u64(json, "pid", 1);
        mp_json_put_u64(json, "tid", track + 1u);
        mp_json_object_begin(json, "args");
        if (i == 0)
            mp_json_put_string(json, "name", name);
        else
            mp_json_put_u64(json, "sort_index", track);
        mp_json_object_end(json);
        mp_json_object_end(json);
    }
}

enum mp_status mp_timeline_write(const struct mp_timeline *timeline, const char *path)
{
    struct mp_json_out json;
    enum mp_status status;
    struct mp_out out;
    uint64_t count;

    if (timeline == NULL)
        return MP_OK;
    mp_assert(path != NULL);
    status = mp_out_open(&out, path);
    if (status != MP_OK)
        return status;
    count = mp_timeline_recorded(timeline);
    mp_json_begin(&json, out.file, false);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string(&json, "displayTimeUnit", "ns");
    mp_json_put_u64(&json, "dropped_events", mp_timeline_dropped(timeline));
    mp_json_array_begin(&json, "traceEvents");
    for (unsigned track = 0; track < timeline->track_count; track++)
        write_track(&json, track, timeline->tracks[track]);
    for (uint64_t i = 0; i < count; i++) {
        const struct event *event = &timeline->events[i];

        if (atomic_load_explicit(&event->filled, memory_order_acquire))
            write_event(&json, event);
    }
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
    return mp_out_commit(&out);
}
