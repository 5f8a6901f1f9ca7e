#ifndef MP_PLAN_FACTS_H
#define MP_PLAN_FACTS_H

#include "engine/cli/args/args.h"
#include "policy/sim/sim_machine.h"

/* What `moepager plan` knows before it simulates. */
struct mp_plan_facts {
    struct mp_sim_machine machine;
    struct mp_sim_model model;
    uint64_t fixed_bytes; /* memory that a run needs besides the budget */
    double disk_gbps;     /* measured on the model's files; 0: not */
    bool room_known;      /* device_gib is what this machine has free */
    bool on_host;         /* the machine has no GPU: its "device" is the CPU, its link the disk */
};

/*
 * The model of --model: a built-in description, or a model, whose files give its shape and sizes
 * and the description's defaults its routing. The machine of --machine, else host-disk with the
 * speed of the disk that the model lies on, and the memory that this machine has free.
 */
enum mp_status mp_plan_read(const struct mp_args *args, const struct mp_settings *settings,
                            struct mp_plan_facts *facts) MP_MUST_CHECK;

#endif
