#include "vmm/base/error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static _Thread_local struct mp_error last;

enum mp_status mp_fail(enum mp_status status, const char *code, const char *format, ...)
{
    va_list args;

    last.status = status;
    snprintf(last.code, sizeof(last.code), "%s", code);
    va_start(args, format);
    vsnprintf(last.text, sizeof(last.text), format, args);
    va_end(args);
    for (char *at = last.text; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?';
    }
    return status;
}

enum mp_status mp_fail_no_memory(const char *what, uint64_t bytes)
{
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
    last = *error;
}

const char *mp_quote(char out[MP_QUOTE_BYTES], const char *s, size_t bytes)
{
    static const char hex[] = "0123456789abcdef";
    const size_t cut = bytes > 128 ? 128 : bytes;
    const size_t room = MP_QUOTE_BYTES - 4; /* "..." and NUL */
    size_t used = 0;
    size_t i;

    for (i = 0; i < cut; i++) {
        const unsigned char c = (unsigned char)s[i];
        const size_t need = c < 0x20 || c >= 0x7f ? 4 : c == '\'' || c == '\\' ? 2 : 1;

        if (used + need > room)
            break;
        if (need == 4) {
            out[used++] = '\\';
            out[used++] = 'x';
            out[used++] = hex[c >> 4];
            out[used++] = hex[c & 15];
        } else {
            if (need == 2)
                out[used++] = '\\';
            out[used++] = (char)c;
        }
    }
    if (i < bytes) {
        memcpy(out + used, "...", 3);
        used += 3;
    }
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
