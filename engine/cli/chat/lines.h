#ifndef MP_CLI_CHAT_LINES_H
#define MP_CLI_CHAT_LINES_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Messages from standard input: a line each, or several. A line that ends with \ goes on in the
 * next one; lines between two lines of """ are one message. On a terminal lines can be edited and
 * called back, by libedit where that is installed (libedit2); nothing is kept when the program
 * ends.
 *
 * Thread safety: one thread.
 */
struct mp_lines {
    bool terminal;
    void *editor, *history; /* of libedit; NULL: without */
    char *line;             /* of getline() */
    size_t line_capacity;
    char *text; /* the message, NUL-terminated */
    size_t bytes, capacity;
};

enum mp_lines_result {
    MP_LINES_MESSAGE,
    MP_LINES_INTERRUPTED, /* by a signal; what was typed is forgotten */
    MP_LINES_END,         /* end of input, or no memory */
};

/* `terminal`: standard input is one, and prompts go to standard error. */
void mp_lines_open(struct mp_lines *lines, bool terminal);
void mp_lines_close(struct mp_lines *lines);

/* The next message as lines->text, without its last newline, until the next call. */
enum mp_lines_result mp_lines_read(struct mp_lines *lines);

#endif
