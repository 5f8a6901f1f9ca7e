#ifndef MP_SIM_H
#define MP_SIM_H

#include <signal.h>

#include "policy/record/trace.h"
#include "policy/sim/sim_load.h"
#include "policy/pager/step.h"

/*
 * The simulator: the real step, pager, policies and space on a virtual clock. Transfers and
 * computation of device and CPU take the time given by a machine's description and overlap; nothing
 * is computed and no byte is moved. One thread; the same configuration gives the same result to the
 * last bit.
 *
 * Not modelled: the time of decisions, and contention of processor and link for memory bandwidth.
 * The device's work between experts (attention, router, shared experts, prediction) ends before the
 * step continues, as in the engine.
 */
struct mp_sim_config {
    const struct mp_sim_machine *machine;
    const struct mp_sim_model *model;
    const struct mp_replay_trace *trace;      /* or NULL: synthetic */
    const struct mp_calibration *calibration; /* or NULL: a synthetic load has its own */
    const struct mp_profile *profile;
    const struct mp_opt_group *groups; /* options of the policies; may be NULL */
    uint32_t slices;                   /* of an expert, 1..MP_SLICES_MAX; 0: whole */
    uint32_t batch, prompt, gen;       /* sequences; tokens of each */
    uint32_t warm;          /* decode steps before the prompt, not counted in the result */
    struct mp_share budget; /* auto: what the device's memory leaves */
    bool again;             /* the trace is run twice, and the second time counts */
    uint64_t seed;
    bool deterministic;
    struct mp_timeline **timeline_p;     /* or NULL; the caller destroys it */
    struct mp_trace_writer *routing;     /* or NULL: gets what is chosen after `warm` */
    const volatile sig_atomic_t *cancel; /* or NULL; not 0: end with MP_ERR_CANCELED */

    /* For tests: after every layer, check the invariants of pager, space and clock, and that each
     * need was computed exactly once with its bytes in place; E_SIM_CHECK names what is broken.
     * About fail_ppm of a million transfers fail. */
    bool check;
    uint32_t fail_ppm;
    const struct mp_sim_fit *fit; /* NULL: found */
};

struct mp_sim_result {
    uint64_t prefill_ns, decode_ns; /* of all steps */
    uint64_t prefill_tokens, decode_steps, decode_tokens;
    uint64_t budget_bytes, expert_bytes_all;
    uint32_t slots, units; /* of whole experts */
    uint32_t slices;

    /* In decode. */
    struct mp_counters counters;
    uint64_t device_busy_ns, cpu_busy_ns, link_busy_ns;
    struct mp_sim_seen seen; /* includes the steps before the prompt */
};

/* MP_ERR_CONFIG E_SIM: settings contradict each other; E_BUDGET_SMALL; others as of the parts. */
enum mp_status mp_sim_run(const struct mp_sim_config *config,
                          struct mp_sim_result *result_p) MP_MUST_CHECK;

#endif
