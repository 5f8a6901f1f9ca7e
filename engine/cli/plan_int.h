#ifndef MP_PLAN_INT_H
#define MP_PLAN_INT_H

#include "engine/cli/plan_facts.h"
#include "policy/sim/sim.h"

/* The table of `moepager plan`, between cmd_plan.c, which computes it, and plan_print.c. */
#define MP_PLAN_ROWS_MAX 24
#define MP_PLAN_GPUS_MAX 16
#define MP_PLAN_PROFILES_MAX 16

struct mp_plan_row {
    char name[64];                    /* of a machine of the list of GPUs */
    const struct mp_profile *profile; /* the best one; NULL: the model does not fit */
    struct mp_sim_result result;
    double scale;          /* of the simulated time of a token, by what was run of other budgets */
    struct mp_trial trial; /* runs 0: not run */
    uint64_t memory_bytes;
    bool fits; /* into the machine's memory */
    const char *limit;
};

struct mp_plan {
    const struct mp_args *args;
    const struct mp_settings *settings;
    struct mp_plan_facts facts;
    struct mp_sim_fit fit;
    struct mp_replay_trace file;         /* of --from-trace */
    const struct mp_replay_trace *trace; /* NULL: routing is synthetic */
    struct mp_profile profiles[MP_PLAN_PROFILES_MAX];
    size_t profile_count;
    double target_ms; /* 0: none */
    struct mp_plan_row rows[MP_PLAN_ROWS_MAX], least, gpus[MP_PLAN_GPUS_MAX];
    size_t row_count, gpu_count;
};

/* Of the simulated row alone. */
double mp_plan_simulated_ms(const struct mp_plan_row *row);
/* Of the row's run; without one, simulated, and scaled by what others took. */
double mp_plan_tpot_ms(const struct mp_plan_row *row);

void mp_plan_print_text(const struct mp_plan *p);
void mp_plan_print_json(const struct mp_plan *p);

#endif
