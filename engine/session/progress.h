#ifndef MP_PROGRESS_H
#define MP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/clock.h"

/*
 * A progress bar on standard error, for work that takes longer than a moment. It shows nothing in
 * the first 200 ms, and redraws at most ten times a second. Where standard error is not a terminal
 * it shows nothing, or with mp_progress_bar_want_lines() a line after ten seconds and every thirty
 * from then on, for work of minutes whose errors go to a file. Thread safety: none.
 */
struct mp_progress_bar {
    const char *label;
    struct mp_clock *clock;
    uint64_t start_ns, drawn_ns;
    bool enabled, lines, visible;
    const char *what; /* what is counted, such as "tokens"; NULL: bytes, shown in MiB */
};

void mp_progress_bar_begin(struct mp_progress_bar *bar, const char *label, const char *what,
                           struct mp_clock *clock);
void mp_progress_bar_show(struct mp_progress_bar *bar, uint64_t done, uint64_t total);

/* After begin(). */
void mp_progress_bar_want_lines(struct mp_progress_bar *bar);

/* Erase the line. */
void mp_progress_bar_end(struct mp_progress_bar *bar);

#endif
