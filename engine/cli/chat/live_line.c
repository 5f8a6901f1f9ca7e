/*
 * The live line: a region that scrolls (DECSTBM) without the last row.
 */
#include "engine/cli/chat/live_line.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define EVERY_NS UINT64_C(200000000)
#define ROWS_MIN 4
#define KEEP "\0337" /* the place of the cursor */
#define BACK "\0338"

void mp_live_line_open(struct mp_live_line *live, bool terminal, struct mp_clock *clock)
{
    struct winsize size;

    *live = (struct mp_live_line){ .clock = clock };
    if (!terminal || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < ROWS_MIN)
        return;
    live->rows = size.ws_row;
    /* A cursor in the last row goes up by one, with all that is above it. */
    printf("\n\033[A" KEEP "\033[1;%ur" BACK, live->rows - 1);
}

bool mp_live_line_due(struct mp_live_line *live)
{
    const uint64_t now = mp_clock_now_ns(live->clock);

    if (live->rows == 0 || (live->shown_ns != 0 && now - live->shown_ns < EVERY_NS))
        return false;
    live->shown_ns = now;
    return true;
}

void mp_live_line_show(struct mp_live_line *live, const char *text)
{
    if (live->rows > 0)
        printf(KEEP "\033[%u;1H\033[2K%s" BACK, live->rows, text);
}

void mp_live_line_close(struct mp_live_line *live)
{
    if (live->rows > 0)
        printf(KEEP "\033[r\033[%u;1H\033[2K" BACK, live->rows);
    live->rows = 0;
}
