#ifndef MP_PROBE_INT_H
#define MP_PROBE_INT_H

#include "engine/gpu/gpu.h"
#include "engine/probe/probe.h"
#include "vmm/backend/backend.h"
#include "vmm/base/clock.h"

/*
 * Private to the measuring child: engine/probe/probe_measure.c, probe_memory.c and probe_compute.c.
 */
#define MP_PROBE_RUNS 7
#define MP_PROBE_BATCHES 3
#define MP_PROBE_BATCH 8 /* lists of experts */
#define MP_PROBE_STEP_HOST_NUMA "host-numa"
#define MP_PROBE_BLOCKS 1024 /* grid of kernels that read memory */

struct mp_bench {
    struct mp_gpu *gpu;
    struct mp_backend *backend; /* from the second step on, as are the frames */
    bool host_handles;          /* the first step found that they work */
    const struct mp_cu_calls *call;
    struct mp_clock *clock;
    struct mp_probe_shape shape;
    FILE *out;
    mp_cu_stream stream[2];
    mp_cu_event event;
    mp_cu_event begin, end;       /* with times */
    struct mp_frame device, host; /* of equal size */
    mp_cu_ptr scratch;            /* 1 MiB of device memory */
};

/* Print one result. */
void mp_bench_put(const struct mp_bench *bench, enum mp_probe_item item, double value);

/* Sorts the values and returns the median. */
double mp_bench_median(double *values, unsigned count);

double mp_bench_now_us(const struct mp_bench *bench);

/*
 * The time that the device takes for what is queued on the streams between these two, by its own
 * clock. A step queues many copies and launches ahead, so neither what the host adds to one counts
 * nor how late it hears of the end: the device waits until the first ones are queued.
 */
enum mp_status mp_bench_begin(struct mp_bench *bench) MP_MUST_CHECK;
enum mp_status mp_bench_end(struct mp_bench *bench, double *us_p) MP_MUST_CHECK; /* blocks */

/* A result of the driver; MP_OK or the error with the call's name. A result that means a lost
 * device is recorded: no later step calls the driver. */
enum mp_status mp_bench_check(struct mp_bench *bench, mp_cu_result result,
                              const char *call) MP_MUST_CHECK;

/* To be called before memory that work may access is freed: wait for all work, or mark the device
 * as lost. Keeps the error. */
void mp_bench_settle(struct mp_bench *bench);

/* The steps. An error ends the step, not the probe. */
enum mp_status mp_bench_host_numa(struct mp_bench *bench) MP_MUST_CHECK;
enum mp_status mp_bench_copies(struct mp_bench *bench) MP_MUST_CHECK;
enum mp_status mp_bench_reads(struct mp_bench *bench) MP_MUST_CHECK;
enum mp_status mp_bench_maps(struct mp_bench *bench) MP_MUST_CHECK;
enum mp_status mp_bench_maps_busy(struct mp_bench *bench) MP_MUST_CHECK;
enum mp_status mp_bench_launches(struct mp_bench *bench) MP_MUST_CHECK;
enum mp_status mp_bench_graph(struct mp_bench *bench) MP_MUST_CHECK;
enum mp_status mp_bench_experts(struct mp_bench *bench) MP_MUST_CHECK;
enum mp_status mp_bench_in_place(struct mp_bench *bench) MP_MUST_CHECK;
enum mp_status mp_bench_cpu(struct mp_bench *bench) MP_MUST_CHECK;

#endif
