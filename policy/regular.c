/*
 * Reads regular files line by line, with errors that name file and line. Lines are parsed by the
 * readers of traces and logs.
 */
#include "policy/regular.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/base/error.h"

enum mp_status mp_regular_fail(const char *path, const char *what, int error_number)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_IO, "E_TRACE_READ", "cannot %s '%s': %s", what,
                   mp_quote(quoted, path, strlen(path)), strerror(error_number));
}

enum mp_status mp_regular_open(const char *path, FILE **file_p, uint64_t *bytes_p)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    enum mp_status status;

    if (fd < 0)
        return mp_regular_fail(path, "open", errno);
    if (fstat(fd, &st) != 0) {
        status = mp_regular_fail(path, "look at", errno);
    } else if (!S_ISREG(st.st_mode)) {
        char quoted[MP_QUOTE_BYTES];

        status = mp_fail(MP_ERR_IO, "E_TRACE_READ", "'%s' is not a regular file",
                         mp_quote(quoted, path, strlen(path)));
    } else {
        *bytes_p = (uint64_t)st.st_size;
        *file_p = fdopen(fd, "r");
        if (*file_p != NULL)
            return MP_OK;
        status = mp_regular_fail(path, "open", errno);
    }
    close(fd);
    return status;
}

enum mp_status mp_regular_bad_line(const char *path, uint64_t line, const char *what)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_TRACE_LINE", "%s in '%s' at line %" PRIu64, what,
                   mp_quote(quoted, path, strlen(path)), line);
}

enum mp_status mp_regular_line(FILE *file, const char *path, uint64_t *line, char *text,
                               size_t bytes, bool *more_p)
{
    size_t used;

    *more_p = false;
    ++*line;
    if (fgets(text, (int)bytes, file) == NULL)
        return ferror(file) ? mp_regular_fail(path, "read", errno) : MP_OK;
    used = strlen(text);
    if (used == 0 || text[used - 1] != '\n')
        return mp_regular_bad_line(path, *line,
                                   "a line that is too long, holds a NUL or is cut off");
    text[used - 1] = '\0';
    *more_p = true;
    return MP_OK;
}
