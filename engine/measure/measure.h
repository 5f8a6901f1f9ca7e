#ifndef MP_MEASURE_H
#define MP_MEASURE_H

#include <signal.h>

#include "engine/session/settings.h"
#include "policy/replay/replay.h"
#include "policy/sim/sim_machine.h"
#include "vmm/base/clock.h"

/*
 * What a token costs on this machine: a short run of the model itself, on the CPU, and a
 * description of the machine in which the simulator takes the same times.
 *
 * The run has a small budget, and routing that is made up so that every expert a token needs is
 * resident, or all but one per layer, or none: what computing, one read and many reads at once cost
 * follows from the three times of a step. All is done twice, and the second time counts: a disk may
 * be slow for what was never read. Where every expert is resident the budget is larger, and steps
 * take turns with experts, or the processor's cache would hold what a token needs. Then the model
 * routes as it does, for some tokens: the trace of that, and how often the next layer's router
 * guesses right.
 */
enum mp_pattern {
    MP_PATTERN_NONE_READ,
    MP_PATTERN_ONE_READ,
    MP_PATTERN_ALL_READ,
    MP_PATTERN_COUNT
};

struct mp_measured {
    uint32_t layers, experts, top_k; /* of the model; MoE layers */
    uint32_t steps;                  /* of each pattern */
    uint32_t sets;                   /* of experts that NONE_READ takes turns with; 0 is 1 */
    uint64_t budget_bytes;
    uint64_t step_ns[MP_PATTERN_COUNT]; /* median time of a decode step */
    uint64_t loads[MP_PATTERN_COUNT];   /* experts that were read in all of these steps */
    struct mp_replay_trace routing;     /* the model's own: a prompt and the tokens after it */
    double accuracy; /* of the next layer's router, as struct mp_sim_model has it */
};

struct mp_measure_config {
    const struct mp_settings *settings;
    const char *model;
    uint32_t prompt, gen; /* tokens of the model's own routing, at most; time limits them, too */
    struct mp_clock *clock;
    const volatile sig_atomic_t *cancel;
};

/* Takes as long as reading the model's other weights, and some seconds. MP_ERR_NO_MEMORY E_RAM if
 * those do not fit here; other errors as of running the model. */
enum mp_status mp_measure_run(const struct mp_measure_config *config,
                              struct mp_measured *measured_p) MP_MUST_CHECK;

/* What a budget and a profile are said to take, and what they take. */
struct mp_trial {
    const struct mp_profile *policies;
    uint64_t budget_bytes;
    uint64_t expected_prefill_ns, expected_step_ns;
    /* Of the median of the runs that count; 0 runs: it would have taken too long. */
    uint32_t runs;
    double ttft_ms, tpot_ms, hit_rate; /* the rate: with the prompt */
};

/*
 * Run config.prompt tokens and config.gen more, those of `moepager bench`, with each trial's budget
 * and policies, on the CPU: once to fill memory, then for a second and a half, at least three
 * times, as policies still learn the text the second time. Runs of the first half second of these
 * do not count, because a disk or a virtual processor that stood still is slower. Fewer tokens are
 * generated where a run would take longer, by what is expected.
 * Errors as of mp_measure_run().
 */
enum mp_status mp_measure_try(const struct mp_measure_config *config, struct mp_trial *trials,
                              size_t count) MP_MUST_CHECK;
void mp_measured_fini(struct mp_measured *measured); /* safe on a zeroed one */

/* Steps of one token in which the experts of a pattern are chosen, one pattern after the other,
 * `rounds` times each; a complete trace. */
enum mp_status mp_measure_pattern(const struct mp_measured *shape, uint32_t patterns,
                                  uint32_t rounds, struct mp_replay_trace *trace_p) MP_MUST_CHECK;

/*
 * Change the times of `machine`, in which the device is the CPU and its link the disk, until the
 * simulator takes as long for each pattern as was measured.
 */
enum mp_status mp_measure_fit(const struct mp_measured *measured, const struct mp_sim_model *model,
                              const struct mp_opt_group *groups,
                              struct mp_sim_machine *machine) MP_MUST_CHECK;

#endif
