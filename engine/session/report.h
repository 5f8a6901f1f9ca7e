#ifndef MP_REPORT_H
#define MP_REPORT_H

#include <stdio.h>

#include "engine/session/generate.h"
#include "engine/session/session.h"
#include "vmm/output/json_out.h"

/*
 * The report of a run, from the engine's counters and the clock. The same numbers as text and as
 * JSON; docs/architecture.md explains each.
 */
struct mp_report {
    uint64_t prompt_tokens, generated_tokens;
    double load_ms;                   /* opening the model */
    double ttft_ms;                   /* start of prefill to the first token of every prompt */
    double tpot_ms;                   /* mean time of a decode step */
    double tokens_per_s;              /* decode, all prompts together */
    double prefill_per_s;             /* prompt tokens per second */
    double hit_rate;                  /* of expert uses by layer and batch; 1 if there were none */
    uint64_t bytes_loaded;            /* experts, on demand and ahead */
    uint64_t bytes_prefetched_unused; /* evicted unused, or still unused at the end */
    double exposed_wait_ms;
    struct mp_drafts_stats drafts;
    double bytes_per_token; /* of experts, read while decoding */
    uint64_t budget_bytes, expert_bytes, weights_bytes, kv_bytes;
    enum mp_wtype kv_type;
    uint64_t full_bytes;         /* of slots for all experts */
    uint64_t lost_bytes;         /* of the device and its host memory: could not be released */
    struct mp_counters counters; /* of this run; gauges as they are now */
    const char *reader;          /* "io_uring" or "threads" */
    bool direct_io;
    const struct mp_profile *policies;
    const struct mp_kernels *kernels;
    unsigned threads;
    const struct mp_device_choice *device; /* experts are in its memory; cuda false: in RAM */
};

/* The engine's counters as if it ended now: prefetched bytes that are still unused count as wasted.
 */
struct mp_counters mp_report_counters(const struct mp_session *session);

/* Counts since `before`. Wasted bytes are never negative, even if the run used what an earlier one
 * had prefetched. */
struct mp_counters mp_report_counters_since(const struct mp_session *session,
                                            const struct mp_counters *before);

/* `before`: mp_report_counters() when the run began. */
void mp_report_make(const struct mp_session *session, const struct mp_generate_stats *stats,
                    const struct mp_counters *before, double load_ms, struct mp_report *report_p);

void mp_report_print(const struct mp_report *report, FILE *out);

/* Write the keys into the open object. */
void mp_report_json(const struct mp_report *report, struct mp_json_out *json);

#endif
