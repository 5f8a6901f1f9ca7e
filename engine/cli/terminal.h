#ifndef MP_TERMINAL_H
#define MP_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/*
 * Write text of a model or a user to standard output. On a terminal, control characters other than
 * newlines and tabs, and invalid UTF-8, are shown as \xNN, because a vocabulary may contain escape
 * sequences that move the cursor, set titles or simulate input. Otherwise all bytes are written
 * unchanged. `text` must hold whole characters. False: standard output has failed.
 */
bool mp_terminal_write(FILE *out, bool is_terminal, const char *text, size_t bytes);

#endif
