/*
 * A progress bar on standard error. Knows nothing of the work.
 */
#include "engine/session/progress.h"

#include <stdio.h>
#include <unistd.h>

#define FIRST_NS 200000000u
#define STEP_NS 100000000u
#define FIRST_LINE_NS UINT64_C(10000000000)
#define STEP_LINE_NS UINT64_C(30000000000)
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

void mp_progress_bar_want_lines(struct mp_progress_bar *bar)
{
    bar->lines = !bar->enabled;
}

static bool is_due(const struct mp_progress_bar *bar, uint64_t now_ns)
{
    const uint64_t first_ns = bar->lines ? FIRST_LINE_NS : FIRST_NS;

    if (!bar->enabled && !bar->lines)
        return false;
    return now_ns - bar->start_ns >= first_ns &&
           now_ns - bar->drawn_ns >= (bar->lines ? STEP_LINE_NS : STEP_NS);
}

void mp_progress_bar_show(struct mp_progress_bar *bar, uint64_t done, uint64_t total)
{
    const uint64_t now_ns = mp_clock_now_ns(bar->clock);
    const double share = total > 0 ? (double)done / (double)total : 1;
    const double scale = bar->what == NULL ? 1.0 / (1 << 20) : 1;
    const int cells = (int)(share * CELLS);

    if (!is_due(bar, now_ns))
        return;
    bar->drawn_ns = now_ns;
    bar->visible = !bar->lines;
    if (bar->lines)
        fputs(bar->label, stderr);
    else
        fprintf(stderr, "\r%s [%.*s%*s]", bar->label, cells, "##############################",
                CELLS - cells, "");
    fprintf(stderr, " %3d %%  %.0f of %.0f %s, %.0f s left%c", (int)(share * 100),
            (double)done * scale, (double)total * scale, bar->what == NULL ? "MiB" : bar->what,
            share > 0 ? (double)(now_ns - bar->start_ns) * 1e-9 * (1 - share) / share : 0.0,
            bar->lines ? '\n' : ' ');
    fflush(stderr);
}

void mp_progress_bar_end(struct mp_progress_bar *bar)
{
    if (bar->visible)
        fprintf(stderr, "\r\033[K");
    bar->visible = false;
}
