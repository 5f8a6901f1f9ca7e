#ifndef MP_TERMINAL_H
#define MP_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/*
 * Text of a model or a user for standard output. On a terminal control characters other than line
 * ends and tabs, and bytes that are not UTF-8, are shown as \xNN: a vocabulary may hold sequences
 * that move the cursor, set titles or answer for the user. Elsewhere every byte goes through as it
 * is. `text` holds whole characters. False: standard output has failed.
 */
bool mp_terminal_write(FILE *out, bool is_terminal, const char *text, size_t bytes);

#endif
