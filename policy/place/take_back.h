#ifndef MP_PLACE_TAKE_BACK_H
#define MP_PLACE_TAKE_BACK_H

#include <stdint.h>

#include "policy/place/learn.h"

/*
 * Reading instead of asking. For ranks, and for servers of the simulator that stand for ranks.
 *
 * Thread safety: no state but the arguments.
 */

/* The rows of a layer that a server is asked to give to one expert. */
struct mp_take_group {
    uint32_t number; /* the caller's */
    uint32_t tokens;
    double compute_ns; /* here */
};

/*
 * How many of the groups that one server is asked for are to be read and computed here instead: as
 * many as let the layer end earliest, and none if that is not clearly earlier than without. They
 * are put first, those with most tokens before others, as those are the dearest to send.
 *
 * *reads_p: how many experts are read here anyway; *own_p: when what is computed here is expected
 * to be done; *left_p: when the server's message is expected back. All are as they would be then.
 */
uint32_t mp_place_take_back(struct mp_take_group *groups, uint32_t count,
                            const struct mp_learn_reads *reads, double row_ns, uint32_t *reads_p,
                            double *own_p, double *left_p);

#endif
