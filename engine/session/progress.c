/*
 * A progress bar on standard error. Knows nothing of the work.
 */
#include "engine/session/progress.h"

#include <stdio.h>
#include <unistd.h>

#define FIRST_NS 200000000u
#define STEP_NS 100000000u
#define CELLS 30

void mp_progress_bar_begin(struct mp_progress_bar *bar, const char *label, const char *what,
                           struct mp_clock *clock)
{
    *bar = (struct mp_progress_bar){
        .label = label,
        .clock = clock,
        .start_ns = mp_clock_now_ns(clock),
        .enabled = isatty(STDERR_FILENO) == 1,
        .what = what,
    };
}

void mp_progress_bar_show(struct mp_progress_bar *bar, uint64_t done, uint64_t total)
{
    const uint64_t now_ns = mp_clock_now_ns(bar->clock);
    const double share = total > 0 ? (double)done / (double)total : 1;
    const double scale = bar->what == NULL ? 1.0 / (1 << 20) : 1;
    const int cells = (int)(share * CELLS);

    if (!bar->enabled || now_ns - bar->start_ns < FIRST_NS || now_ns - bar->drawn_ns < STEP_NS)
        return;
    bar->drawn_ns = now_ns;
    bar->visible = true;
    fprintf(stderr, "\r%s [%.*s%*s] %3d %%  %.0f of %.0f %s, %.0f s left ", bar->label, cells,
            "##############################", CELLS - cells, "", (int)(share * 100),
            (double)done * scale, (double)total * scale, bar->what == NULL ? "MiB" : bar->what,
            share > 0 ? (double)(now_ns - bar->start_ns) * 1e-9 * (1 - share) / share : 0.0);
    fflush(stderr);
}

void mp_progress_bar_end(struct mp_progress_bar *bar)
{
    if (bar->visible)
        fprintf(stderr, "\r\033[K");
    bar->visible = false;
}
