#ifndef MP_OUTPUT_COUNTERS_H
#define MP_OUTPUT_COUNTERS_H

#include <stdint.h>
#include <stdio.h>

#include "vmm/output/json_out.h"

/*
 * The counters of a pager. Struct, reset, merge, text and JSON are generated from one list of
 * (field, key in reports, meaning); keys never change, because other programs read reports. A
 * COUNTER only grows and merges by addition. A GAUGE is a level and merges by maximum.
 *
 * Fields are plain integers, protected by whatever protects the object that contains them. Times
 * are of the injected clock.
 */
#define MP_COUNTERS(COUNTER, GAUGE)                                                               \
    COUNTER(hits, "hits", "needed experts that were resident")                                    \
    COUNTER(misses, "misses", "needed experts that were cold")                                    \
    COUNTER(partial_hits, "partial_hits",                                                         \
            "needed experts of which only some slices were resident")                             \
    COUNTER(elsewhere, "elsewhere", "cold experts that were computed from where they were")       \
    COUNTER(loads, "loads", "units brought in because they were needed")                          \
    COUNTER(load_bytes, "load_bytes", "bytes of those loads")                                     \
    COUNTER(prefetch_issued, "prefetch_issued",                                                   \
            "units whose transfer was started because they were predicted")                       \
    COUNTER(prefetch_used, "prefetch_used", "prefetched units that were needed before they left") \
    COUNTER(prefetch_bytes, "prefetch_bytes", "bytes of prefetches that were read")               \
    COUNTER(prefetch_unused_bytes, "prefetch_unused_bytes",                                       \
            "prefetched bytes that left, or ended, without being needed")                         \
    COUNTER(prefetch_canceled, "prefetch_canceled",                                               \
            "prefetches dropped before their transfer started")                                   \
    COUNTER(guesses_planned, "guesses_planned", "units queued because they were predicted")       \
    COUNTER(guesses_started, "guesses_started", "those of them whose read was started")           \
    COUNTER(guesses_superseded, "guesses_superseded",                                             \
            "those that were dropped: their layer ran, or they came another way")                 \
    COUNTER(guesses_late, "guesses_late",                                                         \
            "right ones that were still waiting or being read when their layer ran")              \
    COUNTER(swaps_planned, "swaps_planned", "swaps of residents that evict policies asked for")   \
    COUNTER(swaps_started, "swaps_started", "those of them whose read was started")               \
    COUNTER(swaps_superseded, "swaps_superseded",                                                 \
            "those that were dropped: decided anew, or without sense by now")                     \
    COUNTER(swaps_late, "swaps_late", "those that were still waiting when their layer ran again") \
    COUNTER(evictions, "evictions", "units that left the device tier")                            \
    COUNTER(evicted_bytes, "evicted_bytes", "bytes of those units")                               \
    COUNTER(exposed_wait_ns, "exposed_wait_ns", "time that compute stood still for a transfer")   \
    COUNTER(read_requests, "read_requests", "reads submitted to the file tier")                   \
    COUNTER(read_bytes, "read_bytes", "bytes that those reads returned")                          \
    COUNTER(read_retries, "read_retries", "reads submitted again after a short or failed one")    \
    COUNTER(read_errors, "read_errors", "reads given up")                                         \
    COUNTER(decisions_ns, "decisions_ns", "time spent inside policies")                           \
    COUNTER(layers_ns, "layers_ns", "time of MoE layers, from the router's scores to the sum")    \
    COUNTER(invalid_decisions, "invalid_decisions",                                               \
            "invalid decisions of policies, out of range and replaced")                           \
    COUNTER(route_choices, "route_choices",                                                       \
            "choices made by a routing that may differ from the model's own")                     \
    COUNTER(route_substituted, "route_substituted",                                               \
            "those of them that the model would not have made")                                   \
    GAUGE(resident_bytes, "resident_bytes", "bytes of units in the device tier now")              \
    GAUGE(resident_peak_bytes, "resident_peak_bytes", "the most that resident_bytes has been")

#define MP_COUNTERS_VERSION 7

struct mp_counters {
    uint32_t size;    /* sizeof(struct mp_counters) of the writer */
    uint32_t version; /* MP_COUNTERS_VERSION */
#define X(name, key, text) uint64_t name;
    MP_COUNTERS(X, X)
#undef X
};

/* All zero, size and version set. Also the way to initialise. */
void mp_counters_reset(struct mp_counters *counters);

/* Add `from` to `to`; both must be of this version. */
void mp_counters_merge(struct mp_counters *to, const struct mp_counters *from);

/* Changes since `before` was copied: counters as differences, gauges as they are now. */
struct mp_counters mp_counters_since(const struct mp_counters *now,
                                     const struct mp_counters *before);

/* One object with all entries by key. */
void mp_counters_json(const struct mp_counters *counters, struct mp_json_out *json,
                      const char *key);

#endif
