/* The calling thread's error record, and texts that are safe to print. Prints nothing itself. */
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "vmm/base/utf8.h"

static _Thread_local struct mp_error last;

/* A text that fills the record may have been cut within a character. */
static void trim_cut_character(char text[sizeof(last.text)])
{
    const size_t bytes = strlen(text);

    if (bytes + 1 < sizeof(last.text))
        return;
    for (size_t back = 1; back <= 3; back++) {
        if ((unsigned char)text[bytes - back] >= 0xc0 &&
            mp_utf8_sequence(text + bytes - back, back) == 0)
            text[bytes - back] = '\0';
        if (((unsigned char)text[bytes - back] & 0xc0) != 0x80)
            return;
    }
}

enum mp_status mp_fail(enum mp_status status, const char *code, const char *format, ...)
{
    mp_assert(status != MP_OK && code != NULL);
    va_list args;

    last.status = status;
    snprintf(last.code, sizeof(last.code), "%s", code);
    va_start(args, format);
    vsnprintf(last.text, sizeof(last.text), format, args);
    va_end(args);
    trim_cut_character(last.text);
    for (char *at = last.text; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?';
    }
    return status;
}

enum mp_status mp_fail_no_memory(const char *what, uint64_t bytes)
{
    mp_assert(what != NULL);
    return mp_fail(MP_ERR_NO_MEMORY, "E_NO_MEMORY",
                   "cannot allocate %" PRIu64 " bytes of RAM for %s; "
                   "close other programs or lower --budget and --ctx",
                   bytes, what);
}

const char *mp_thread_limit(void)
{
    struct rlimit space;

    return getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY
               ? "address space (ulimit -v)"
               : "processes (ulimit -u)";
}

const struct mp_error *mp_error_last(void)
{
    return &last;
}

void mp_error_clear(void)
{
    memset(&last, 0, sizeof(last));
}

void mp_error_set(const struct mp_error *error)
{
    mp_assert(error != NULL);
    last = *error;
}

/* Can it stand in a line as it is? Not what moves the cursor, ends the line (U+2028, U+2029) or
 * turns the direction of writing (U+202a to U+202e, U+2066 to U+2069), so that a line reads as what
 * it says. */
static bool is_plain(const char *s, size_t bytes)
{
    mp_assert(s != NULL || bytes == 0);
    if (bytes == 0 || mp_utf8_is_control(s, bytes))
        return false;
    if (bytes == 3 && memcmp(s, "\xe2\x80", 2) == 0)
        return (unsigned char)s[2] < 0xa8 || (unsigned char)s[2] > 0xae;
    if (bytes == 3 && memcmp(s, "\xe2\x81", 2) == 0)
        return (unsigned char)s[2] < 0xa6 || (unsigned char)s[2] > 0xa9;
    return true;
}

const char *mp_quote(char out[MP_QUOTE_BYTES], const char *s, size_t bytes)
{
    static const char hex[] = "0123456789abcdef";
    const size_t room = MP_QUOTE_BYTES - 4; /* "..." and NUL */
    size_t used = 0, i = 0;

    while (i < bytes) {
        const size_t length = mp_utf8_sequence(s + i, bytes - i);
        const bool plain = is_plain(s + i, length);
        const bool escaped = s[i] == '\'' || s[i] == '\\';
        const size_t step = plain ? length : 1;

        if (i + step > 128 || used + (plain ? length + escaped : 4) > room)
            break;
        if (plain) {
            if (escaped)
                out[used++] = '\\';
            memcpy(out + used, s + i, length);
            used += length;
        } else {
            out[used++] = '\\';
            out[used++] = 'x';
            out[used++] = hex[(unsigned char)s[i] >> 4];
            out[used++] = hex[s[i] & 15];
        }
        i += step;
    }
    if (i < bytes) {
        memcpy(out + used, "...", 3);
        used += 3;
    }
    mp_assert(used < MP_QUOTE_BYTES);
    out[used] = '\0';
    return out;
}

const char *mp_errno_name(char out[32], int error_number)
{
    const char *name = strerrorname_np(error_number);

    if (name != NULL)
        return name;
    snprintf(out, 32, "errno %d", error_number);
    return out;
}
