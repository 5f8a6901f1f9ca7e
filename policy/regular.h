#ifndef MP_REGULAR_H
#define MP_REGULAR_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "vmm/base/status.h"

/*
 * Open a recorded file for reading. Never blocks, whatever kind of file it is. MP_ERR_IO
 * E_TRACE_READ: it does not exist or is not a regular file.
 */
enum mp_status mp_regular_open(const char *path, FILE **file_p, uint64_t *bytes_p) MP_MUST_CHECK;

/* MP_ERR_IO E_TRACE_READ with errno's text. */
enum mp_status mp_regular_fail(const char *path, const char *what, int error_number) MP_COLD;

/* MP_ERR_MODEL E_TRACE_LINE: `what` is wrong with line number `line`. */
enum mp_status mp_regular_bad_line(const char *path, uint64_t line, const char *what) MP_COLD;

/* text(bytes) := the next line, without its end, and count it; *more_p is false at the file's end.
 * A line that does not fit is refused as above. */
enum mp_status mp_regular_line(FILE *file, const char *path, uint64_t *line, char *text,
                               size_t bytes, bool *more_p) MP_MUST_CHECK;

#endif
