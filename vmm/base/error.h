#ifndef MP_BASE_ERROR_H
#define MP_BASE_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * The text of an error.
 *
 * The function that detects an error calls mp_fail() with one sentence of the form
 *
 *     <what> '<object>' in '<file>' at byte <n>: got <x>, need <y>; <what to do>
 *
 * without the parts that do not apply, and returns its result. Callers pass the status on and add
 * nothing. The text is kept in a thread-local record, so reporting allocates nothing and needs no
 * object; work that fails on another thread passes a copy of the record with its completion.
 * Expected results (MP_ERR_NO_SPACE from a full tier, MP_ERR_BUSY from a leased unit) set no text.
 *
 * Strings that come from a file or from the user go through mp_quote() first.
 */
struct mp_error {
    enum mp_status status;
    char code[32];  /* "E_ST_SHORT": stable, greppable, listed in docs/errors.md */
    char text[640]; /* one line, without the code and without a newline */
};

/*
 * Replace the calling thread's record and return `status`, so that a failing function can write
 * `return mp_fail(MP_ERR_MODEL, "E_ST_SHORT", "file '%s' is %zu bytes, need at least 8", ...)`. The
 * text is cut to the record's size. Control characters are replaced by '?'.
 */
enum mp_status mp_fail(enum mp_status status, const char *code, const char *format, ...)
    MP_PRINTF(3, 4) MP_COLD;

/* mp_fail(MP_ERR_NO_MEMORY, "E_NO_MEMORY", "cannot allocate <bytes> bytes for <what>; ..."). */
enum mp_status mp_fail_no_memory(const char *what, uint64_t bytes) MP_COLD;

/* The limit to raise when a thread cannot be started: "address space (ulimit -v)" in a process that
 * has such a limit, because stacks need much of it, else "processes (ulimit -u)". */
const char *mp_thread_limit(void);

/* The calling thread's record; status MP_OK and empty strings if nothing failed since the clear. */
const struct mp_error *mp_error_last(void);

void mp_error_clear(void);

/* Copy a record that another thread filled. */
void mp_error_set(const struct mp_error *error);

/* "EIO", or "errno 4711" in `out` if the C library has no name for it. */
const char *mp_errno_name(char out[32], int error_number);

#define MP_QUOTE_BYTES 160

/*
 * Quote `bytes` bytes of `s` for a line of text: control characters, line separators, characters
 * that change the writing direction, and invalid UTF-8 become \xNN; quotes and backslashes are
 * escaped; text beyond 128 source bytes is cut and marked by "...". Always NUL-terminated. Returns
 * `out`, so that the call can be an argument of another.
 */
const char *mp_quote(char out[MP_QUOTE_BYTES], const char *s, size_t bytes);

#endif
