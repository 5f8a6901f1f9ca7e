#ifndef MP_CLI_CHAT_LIVE_LINE_H
#define MP_CLI_CHAT_LIVE_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/clock.h"

/*
 * One line at the bottom of a terminal that says what an answer does, while its text goes on above.
 * The rows above it scroll by themselves as long as it is open. A terminal of less
 * than four rows sees nothing.
 */
struct mp_live_line {
    struct mp_clock *clock;
    unsigned rows; /* of the terminal; 0: closed */
    uint64_t shown_ns;
};

/* `terminal`: standard output is one that moves its cursor. */
void mp_live_line_open(struct mp_live_line *live, bool terminal, struct mp_clock *clock);

/* Whether it is time to show something again. */
bool mp_live_line_due(struct mp_live_line *live);
void mp_live_line_show(struct mp_live_line *live, const char *text);

/* The line is empty afterwards, and all rows scroll again. */
void mp_live_line_close(struct mp_live_line *live);

#endif
