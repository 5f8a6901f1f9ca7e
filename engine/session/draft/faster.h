#ifndef MP_DRAFT_FASTER_H
#define MP_DRAFT_FASTER_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Which of two ways to run steps is faster: a running comparison of their times. The way in use is
 * 0 at first. Now and then the other one is tried for some steps; if they take less time, it is
 * the way in use. As long as nothing changes, the pause between two trials doubles.
 *
 * What a step reads ahead shortens the next one, so the first step that goes another way than the
 * one before does not count.
 */
struct mp_faster {
    unsigned way;         /* in use */
    double ns;            /* mean time of its steps; 0: unknown */
    double trial_ns;      /* sum over the steps of a trial */
    uint32_t tried;       /* those steps */
    uint32_t pause, left; /* steps between two trials; until the next */
    bool trying;
    bool settled; /* the step before went the same way */
};

void mp_faster_init(struct mp_faster *faster);

/* The way of the next step: 0 or 1. */
unsigned mp_faster_way(const struct mp_faster *faster);

/* A step went that way, and took so long. */
void mp_faster_note(struct mp_faster *faster, uint64_t ns);

/* Steps take another time from now on. The way in use stays. */
void mp_faster_forget(struct mp_faster *faster);

/* A step went neither way. */
void mp_faster_interrupt(struct mp_faster *faster);

#endif
