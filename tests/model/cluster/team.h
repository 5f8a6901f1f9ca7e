#ifndef MP_TEST_TEAM_H
#define MP_TEST_TEAM_H

#include "engine/cluster/rank.h"
#include "tests/model/cluster/loopback.h"
#include "tests/model/harness.h"
#include "tests/support/npy.h"

/*
 * Several ranks as threads of one process, each with an engine of its own that runs the same
 * prompts. What it computes is compared with what one engine computes alone. Each step is a request
 * whose result all ranks get.
 */
struct team_options {
    const char *model, *expect, *batch; /* "b1" or "b4" */
    uint32_t ranks, steps;
    const char *place;
    double room; /* of all experts: slots of all ranks together; rank 0 has twice as many as others
                    if there are three */
    double first_room; /* of rank 0, and `room` is that of each other one; 0: as above */
    bool no_reads;     /* nobody reads what it does not keep */
    uint64_t epoch_ns, deadline_ns;
    bool always_adopts;
    uint32_t restarts;
    bool comes_back;     /* a rank that dies can be started again, and then does all its steps */
    const char *kernels; /* of the last rank; NULL: as the others */
    const char *profile; /* of all; NULL: lru */
    /* Called by each rank's thread before each step, or NULL. */
    void (*on_step)(struct loopback *net, uint32_t number, struct mp_rank *rank, uint32_t step);
    /* Called by each rank's thread when it has nothing more to ask, or NULL. */
    void (*on_end)(struct loopback *net, uint32_t number, struct mp_rank *rank);
};

#define TEAM_MAX 8

struct team_rank {
    enum mp_status status; /* of joining, running and waiting for the others */
    char code[32];
    bool same; /* as many logits as were made are those of one engine alone */
    uint32_t rows;
    uint32_t forwards;          /* calls of mp_forward() */
    uint32_t results[TEAM_MAX]; /* of each rank's steps: how many results came here */
    bool reports;
    struct mp_rank_report report;
};

/* Runs them; ends the test if anything else fails. */
void team_run(const struct team_options *options, struct team_rank ranks[TEAM_MAX]);

#endif
