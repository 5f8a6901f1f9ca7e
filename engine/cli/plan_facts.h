#ifndef MP_PLAN_FACTS_H
#define MP_PLAN_FACTS_H

#include "engine/cli/args/args.h"
#include "engine/measure/measure.h"
#include "policy/sim/sim_machine.h"

/* What `moepager plan` knows before it simulates. */
struct mp_plan_facts {
    struct mp_sim_machine machine;
    struct mp_sim_model model;
    uint64_t fixed_bytes; /* memory that a run needs besides the budget */
    double disk_gbps;     /* measured on the model's files; 0: not */
    bool measured_run;    /* a run of the model was measured, and `machine` follows from it */
    struct mp_measured measured;
    char why_not[128]; /* a model is there, but does not run here; else empty */
    bool room_known;   /* device_gib is what this machine has free */
    bool on_host;      /* the machine has no GPU: its "device" is the CPU, its link the disk */
};

/*
 * The model of --model: a built-in description, or a model, whose files give its shape and sizes.
 * The machine of --machine; else this one, with the memory that it has free, where a short run of
 * the model (engine/measure/measure.h) gives all times and routing. Where the model does not fit
 * into RAM, host-disk with the speed of the disk that it lies on.
 */
enum mp_status mp_plan_read(const struct mp_args *args, const struct mp_settings *settings,
                            struct mp_plan_facts *facts) MP_MUST_CHECK;
/* Run the model here, as struct mp_trial says. */
enum mp_status mp_plan_try(const struct mp_args *args, const struct mp_settings *settings,
                           struct mp_trial *trials, size_t count) MP_MUST_CHECK;
/* For mp_log_set_sink() while something is simulated: policies warn of budgets that nobody chose.
 */
void mp_plan_drop_line(void *ctx, enum mp_log_level level, const char *line);
void mp_plan_facts_fini(struct mp_plan_facts *facts); /* safe on a zeroed one */

#endif
