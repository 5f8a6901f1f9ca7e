#ifndef MP_OUTPUT_TIMELINE_H
#define MP_OUTPUT_TIMELINE_H

#include <stdint.h>

#include "vmm/base/clock.h"
#include "vmm/base/status.h"

/*
 * A recorder of events in time: spans and levels on named tracks ("compute", "link", "layer"), kept
 * in memory and written as Chrome trace-event JSON, which ui.perfetto.dev opens.
 *
 * Memory is bounded: the recorder keeps a fixed number of events and counts those it dropped.
 * Recording into NULL does nothing and costs one branch, so callers need no check. Names and keys
 * are static strings; only pointers are kept.
 *
 * Thread safety: any threads may record and write in parallel, without a lock; adding tracks and
 * destroying the recorder need exclusive access.
 */
struct mp_timeline;

#define MP_TIMELINE_TRACKS_MAX 64

/* Up to two numbers shown with an event; a NULL key ends them. */
struct mp_timeline_args {
    const char *key[2];
    uint64_t value[2];
};

/* One event takes 64 bytes. MP_ERR_NO_MEMORY with a text, MP_ERR_INVALID for events_max 0. */
enum mp_status mp_timeline_create(struct mp_clock *clock, uint64_t events_max,
                                  struct mp_timeline **timeline_p) MP_MUST_CHECK;

void mp_timeline_destroy(struct mp_timeline *timeline);

/* Returns the number of the new track; after MP_TIMELINE_TRACKS_MAX the last one is shared. */
unsigned mp_timeline_add_track(struct mp_timeline *timeline, const char *name);

/* The recorder's clock, for the start of a span; 0 without a recorder. */
uint64_t mp_timeline_now_ns(struct mp_timeline *timeline);

/* A span from start_ns to end_ns. args may be NULL. */
void mp_timeline_span(struct mp_timeline *timeline, unsigned track, const char *name,
                      uint64_t start_ns, uint64_t end_ns, const struct mp_timeline_args *args);

/* A level that holds until the next one of this name, shown as a curve. */
void mp_timeline_level(struct mp_timeline *timeline, const char *name, uint64_t at_ns,
                       uint64_t value);

uint64_t mp_timeline_recorded(const struct mp_timeline *timeline);
uint64_t mp_timeline_dropped(const struct mp_timeline *timeline);

/* Write everything recorded so far. MP_ERR_IO with a text leaves no file. NULL is MP_OK. */
enum mp_status mp_timeline_write(const struct mp_timeline *timeline,
                                 const char *path) MP_MUST_CHECK;

#endif
