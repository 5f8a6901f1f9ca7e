#ifndef MP_PLACE_LEARN_H
#define MP_PLACE_LEARN_H

#include <stdint.h>

/*
 * How a server learns what asking and reading take, from those that it did. For ranks, and for
 * servers of the simulator that stand for ranks: the same times lead both to the same choice.
 *
 * All times in ns; 0: unknown. Thread safety: none is needed for different values.
 */

/* Before anything is read instead of asking a server: the first calls find it filling its memory.
 */
#define MP_LEARN_SAMPLES_MIN 32
/* Reading takes what is kept here out of memory's bandwidth and the file's: it has to be faster by
 * this much. */
#define MP_LEARN_CLEARLY 0.8
/* What was not tried in a layer is expected to have become cheaper by this share, so that it is
 * tried again from time to time. */
#define MP_LEARN_FORGET 128

/* Rows of a call from which on arithmetic and the link show, as in costs.c, and from which on a
 * call says all it can of a row. */
#define MP_LEARN_ROWS_MIN 8u
#define MP_LEARN_ROWS_FULL 64u

/* A running mean that leans to the shorter ones: what takes longer for once, because a server
 * computes a prompt or fills its memory, says little about later, and nothing beyond four times
 * the mean. `part`: how much of a sample it is, at most 1. */
static inline void mp_learn(double *value, double sample, double part)
{
    const double longest = 4 * *value;

    if (*value == 0) {
        *value = sample;
        return;
    }
    sample = sample < longest ? sample : longest;
    *value += (sample - *value) * part / (sample < *value ? 4 : 8);
}

/* A call took `ns` until its reply: of few rows, what each call takes; of many, what each row adds.
 * The fewer rows, the more a delay that has nothing to do with them looks like theirs. */
static inline void mp_learn_call(double *fixed_ns, double *row_ns, double ns, uint32_t rows)
{
    const double part = rows < MP_LEARN_ROWS_FULL ? (double)rows / MP_LEARN_ROWS_FULL : 1;

    if (rows < MP_LEARN_ROWS_MIN)
        mp_learn(fixed_ns, ns, 1);
    else
        mp_learn(row_ns, ns > *fixed_ns ? (ns - *fixed_ns) / rows : 0, part);
}

static inline void mp_learn_forget(double *value)
{
    *value -= *value / MP_LEARN_FORGET;
}

/* How much longer a layer takes for the experts that it reads: for the first, and for each more,
 * which is read meanwhile. */
struct mp_learn_reads {
    double first_ns, more_ns;
};

static inline double mp_learn_reads_ns(const struct mp_learn_reads *reads, uint32_t count)
{
    return count > 0 ? reads->first_ns + (count - 1) * reads->more_ns : 0;
}

/* A layer took `ns` longer for `count` reads; more than one say what more take. */
static inline void mp_learn_reads(struct mp_learn_reads *reads, double ns, uint32_t count)
{
    if (count == 1)
        mp_learn(&reads->first_ns, ns, 1);
    else
        mp_learn(&reads->more_ns, ns > reads->first_ns ? (ns - reads->first_ns) / (count - 1) : 0,
                 1);
}

#endif
