/*
 * A machine's description from measured steps. Each time that is searched makes one pattern slower
 * and the others not much, so they are searched by halves, one after the other, and once more.
 */
#include <math.h>

#include "engine/measure/measure.h"
#include "policy/sim/sim.h"
#include "vmm/base/error.h"

#define HALVINGS 24
#define ROUNDS 2
#define PROFILE "lru"

struct fit {
    const struct mp_measured *measured;
    const struct mp_sim_model *model;
    const struct mp_opt_group *groups;
    struct mp_profile profile;
    struct mp_sim_machine base; /* before computing was scaled */
    struct mp_replay_trace traces[MP_PATTERN_COUNT];
};

static enum mp_status simulate(const struct fit *f, enum mp_pattern pattern,
                               const struct mp_sim_machine *machine, double *step_ns_p)
{
    const struct mp_sim_config config = {
        .machine = machine,
        .model = f->model,
        .trace = &f->traces[pattern],
        .profile = &f->profile,
        .groups = f->groups,
        .slices = 1,
        .batch = 1,
        .again = true,
        .budget = { MP_SHARE_BYTES, f->measured->budget_bytes },
        .seed = 1,
    };
    struct mp_sim_result result;
    const enum mp_status status = mp_sim_run(&config, &result);

    if (status == MP_OK)
        *step_ns_p =
            (double)result.decode_ns / (double)(result.decode_steps + !result.decode_steps);
    return status;
}

/* Of what a pattern's time grows with. */
static void set_time(const struct fit *f, enum mp_pattern pattern, double us,
                     struct mp_sim_machine *machine)
{
    switch (pattern) {
    case MP_PATTERN_NONE_READ: /* us: times as slow as the description */
        machine->device_gbps = f->base.device_gbps / us;
        machine->device_gflops = f->base.device_gflops / us;
        machine->launch_us = f->base.launch_us * us;
        break;
    case MP_PATTERN_ONE_READ: machine->latency_us = us; break;
    default: machine->load_us = us; break;
    }
}

static enum mp_status search(const struct fit *f, enum mp_pattern pattern, double low, double high,
                             struct mp_sim_machine *machine)
{
    const double wanted_ns = (double)f->measured->step_ns[pattern];
    enum mp_status status = MP_OK;

    for (unsigned i = 0; i < HALVINGS && status == MP_OK; i++) {
        const double middle = sqrt(low * high);
        double step_ns = 0;

        set_time(f, pattern, middle, machine);
        status = simulate(f, pattern, machine, &step_ns);
        if (step_ns < wanted_ns)
            low = middle;
        else
            high = middle;
    }
    return status;
}

/* What is more, computing would hide: a late answer would be blamed for what reading costs. */
static double longest_latency_us(const struct mp_measured *m)
{
    const double ns =
        (double)m->step_ns[MP_PATTERN_ONE_READ] - (double)m->step_ns[MP_PATTERN_NONE_READ];

    return fmax(1, ns / 1e3 / m->layers);
}

enum mp_status mp_measure_fit(const struct mp_measured *measured, const struct mp_sim_model *model,
                              const struct mp_opt_group *groups, struct mp_sim_machine *machine)
{
    struct fit f = { .measured = measured, .model = model, .groups = groups };
    struct mp_sim_machine fitted = *machine;
    enum mp_status status =
        mp_policy_resolve(&(const struct mp_policy_names){ .profile = PROFILE }, &f.profile);

    for (unsigned i = 0; i < MP_PATTERN_COUNT && status == MP_OK; i++)
        status = mp_measure_pattern(measured, 1u << i, 1, &f.traces[i]);
    fitted.group_us = fitted.group_us > 0 ? fitted.group_us : 1;
    fitted.latency_us = 0;
    f.base = fitted;
    if (status == MP_OK)
        status = search(&f, MP_PATTERN_NONE_READ, 1e-3, 1e3, &fitted);
    for (unsigned i = 0; i < ROUNDS && status == MP_OK; i++) {
        status = search(&f, MP_PATTERN_ALL_READ, 1e-2, 1e7, &fitted);
        if (status == MP_OK)
            status = search(&f, MP_PATTERN_ONE_READ, 1e-2, longest_latency_us(measured), &fitted);
    }
    if (status == MP_OK)
        status = search(&f, MP_PATTERN_ALL_READ, 1e-2, 1e7, &fitted);
    for (unsigned i = 0; i < MP_PATTERN_COUNT; i++)
        mp_replay_trace_fini(&f.traces[i]);
    if (status == MP_OK)
        *machine = fitted;
    return status;
}
