#include "vmm/base/out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/base/error.h"

#define ATTEMPTS_MAX 100

static enum mp_status fail(const char *what, const char *path, int error)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_IO, "E_OUTPUT", "%s '%s': %s", what, mp_quote(quoted, path, strlen(path)),
                   strerror(error));
}

/* Opens `path` itself: for devices and FIFOs. A FIFO nobody reads is an error, not a wait. */
static int open_in_place(const char *path)
{
    int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd >= 0 && fcntl(fd, F_SETFL, 0) < 0) {
        int error = errno;

        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Creates a file in the directory of out->path that did not exist. */
static int open_temporary(struct mp_out *out)
{
    static _Atomic unsigned counter; /* relaxed: only has to differ */
    const char *slash = strrchr(out->path, '/');
    const int directory = slash != NULL ? (int)(slash - out->path) + 1 : 0;
    int fd = -1;

    for (int i = 0; i < ATTEMPTS_MAX; i++) {
        unsigned n = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
        int length = snprintf(out->temporary, sizeof(out->temporary), "%.*s.moepager-%d-%u.tmp",
                              directory, out->path, (int)getpid(), n);

        if (length < 0 || (size_t)length >= sizeof(out->temporary)) {
            errno = ENAMETOOLONG;
            return -1;
        }
        fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (fd >= 0 || errno != EEXIST)
            break;
    }
    return fd;
}

enum mp_status mp_out_open(struct mp_out *out, const char *path)
{
    struct stat info;
    bool exists;
    int fd;

    out->file = NULL;
    if (*path == '\0' || strlen(path) >= sizeof(out->path))
        return fail("cannot write", path, *path == '\0' ? ENOENT : ENAMETOOLONG);
    memcpy(out->path, path, strlen(path) + 1);
    exists = lstat(path, &info) == 0;
    if (exists && S_ISLNK(info.st_mode))
        return fail("cannot write through the symbolic link", path, ELOOP);
    if (exists && S_ISDIR(info.st_mode))
        return fail("cannot write", path, EISDIR);
    out->in_place = exists && !S_ISREG(info.st_mode);
    fd = out->in_place ? open_in_place(path) : open_temporary(out);
    if (fd < 0)
        return fail("cannot create", path, errno);
    out->file = fdopen(fd, "w");
    if (out->file == NULL) {
        int error = errno;

        close(fd);
        if (!out->in_place)
            unlink(out->temporary);
        return fail("cannot create", path, error);
    }
    return MP_OK;
}

void mp_out_abandon(struct mp_out *out)
{
    if (out->file == NULL)
        return;
    fclose(out->file);
    out->file = NULL;
    if (!out->in_place)
        unlink(out->temporary);
}

enum mp_status mp_out_check(const char *path)
{
    struct mp_out out;
    struct stat info;
    enum mp_status status;

    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode) &&
        !S_ISDIR(info.st_mode))
        return MP_OK;
    status = mp_out_open(&out, path);
    if (status == MP_OK)
        mp_out_abandon(&out);
    return status;
}

enum mp_status mp_out_commit(struct mp_out *out)
{
    int error = 0;

    /* A write that failed before left its bytes in the buffer: trying again tells why. */
    const bool failed = ferror(out->file) != 0;

    errno = EIO;
    if (fflush(out->file) != 0 || failed)
        error = errno;
    /* Some file systems tell of a full disk only here. Devices do not know fsync. */
    if (error == 0 && !out->in_place && fsync(fileno(out->file)) != 0 && errno != EINVAL)
        error = errno;
    if (error != 0) {
        mp_out_abandon(out);
        return fail("cannot write", out->path, error);
    }
    if (fclose(out->file) != 0)
        error = errno;
    out->file = NULL;
    if (error == 0 && !out->in_place && rename(out->temporary, out->path) != 0)
        error = errno;
    if (error == 0)
        return MP_OK;
    if (!out->in_place)
        unlink(out->temporary);
    return fail("cannot write", out->path, error);
}
