/*
 * Output files that are complete or absent. Their contents are not known here.
 */
#include "vmm/output/out.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define ATTEMPTS_MAX 100

static const char *advice(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT: return "; free some space there or name another place";
    case EFBIG: return "; raise the limit on file sizes (ulimit -f)";
    case ESPIPE: return "; a pipe takes no file whose head is written last, name a file";
    default: return "";
    }
}

static enum mp_status fail(const char *what, const char *path, int error)
{
    char quoted[MP_QUOTE_BYTES];

    mp_assert(error > 0);
    return mp_fail(MP_ERR_IO, "E_OUTPUT", "%s '%s': %s%s", what,
                   mp_quote(quoted, path, strlen(path)), strerror(error), advice(error));
}

/* The descriptor that a path stands for, as /dev/stdout and /dev/fd/5 do; -1: none. */
static int descriptor_of(const char *path)
{
    static const char *const folders[] = { "/dev/fd/", "/proc/self/fd/" };

    if (strcmp(path, "/dev/stdout") == 0)
        return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0)
        return STDERR_FILENO;
    for (size_t i = 0; i < MP_ARRAY_LEN(folders); i++) {
        const char *number = path + strlen(folders[i]);

        if (strncmp(path, folders[i], strlen(folders[i])) != 0)
            continue;
        if (*number != '\0' && strlen(number) < 8 && number[strspn(number, "0123456789")] == '\0')
            return (int)strtol(number, NULL, 10);
    }
    return -1;
}

/* A second descriptor for what is open already: it goes on where that one stands. */
static int open_descriptor(int fd)
{
    const int flags = fcntl(fd, F_GETFL);

    mp_assert(fd >= 0);
    if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY) {
        errno = EBADF;
        return -1;
    }
    return flags < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

/* Opens `path` itself: for devices and FIFOs. A FIFO nobody reads is an error, not a wait. */
static int open_in_place(const char *path)
{
    int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    mp_assert(path[0] != '\0');
    if (fd >= 0 && fcntl(fd, F_SETFL, 0) < 0) {
        int error = errno;

        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* The next name beside the target for out->temporary; false, with errno, if it is too long. */
static bool next_temporary(struct mp_out *out)
{
    static _Atomic unsigned counter; /* relaxed: only has to differ */
    const unsigned n = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
    const char *slash = strrchr(out->path, '/');
    const int directory = slash != NULL ? (int)(slash - out->path) + 1 : 0;
    const int length = snprintf(out->temporary, sizeof(out->temporary), "%.*s.moepager-%d-%u.tmp",
                                directory, out->path, (int)getpid(), n);

    mp_assert(out->path[0] != '\0');
    errno = ENAMETOOLONG;
    return length > 0 && (size_t)length < sizeof(out->temporary);
}

static void descriptor_path(int fd, char path[32])
{
    mp_assert(fd >= 0);
    snprintf(path, 32, "/proc/self/fd/%d", fd);
}

static void directory_of(const char *path, char directory[PATH_MAX])
{
    const char *slash = strrchr(path, '/');

    snprintf(directory, PATH_MAX, "%.*s", slash != NULL ? (int)(slash - path) + 1 : 1,
             slash != NULL ? path : ".");
}

/* Is this a name of next_temporary() by a process that has ended? */
static bool is_left_behind(const char *name)
{
    static const char prefix[] = ".moepager-";
    const size_t prefix_bytes = sizeof(prefix) - 1;
    char *end;
    long pid;

    if (strncmp(name, prefix, prefix_bytes) != 0 || strlen(name) > prefix_bytes + 32)
        return false;
    pid = strtol(name + prefix_bytes, &end, 10);
    if (pid <= 0 || pid > INT_MAX || *end != '-')
        return false;
    end++;
    end += strspn(end, "0123456789");
    return strcmp(end, ".tmp") == 0 && kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

/* Removes what killed processes left in a directory. The lock is for processes that cannot be seen
 * from here, such as those of another container. */
static void remove_left_behind(const char *directory)
{
    DIR *dir = opendir(directory);
    const struct dirent *entry;
    struct stat info;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        int fd;

        if (!is_left_behind(entry->d_name))
            continue;
        fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
            info.st_nlink == 1 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
        close(fd);
    }
    if (dir != NULL)
        closedir(dir);
}

/* A file without a name in the target's directory, which is gone when the process is, however it
 * ends. -1 where the file system has none, or could not name it later. */
static int open_nameless(const char *directory)
{
    char self[32];
    int fd;

    fd = open(directory, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    descriptor_path(fd, self);
    if (access(self, F_OK) == 0)
        return fd;
    close(fd);
    return -1;
}

/* The file that is written until commit: without a name if that can be had. */
static int open_temporary(struct mp_out *out)
{
    char directory[PATH_MAX];
    int fd;

    mp_assert(!out->in_place);
    if (!next_temporary(out))
        return -1;
    directory_of(out->path, directory);
    fd = open_nameless(directory);
    out->named = fd < 0;
    if (out->named)
        remove_left_behind(directory);
    for (int i = 0; i < ATTEMPTS_MAX && fd < 0; i++) {
        fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (fd < 0 && (errno != EEXIST || !next_temporary(out)))
            break;
    }
    if (out->named && fd >= 0)
        (void)flock(fd, LOCK_EX |
                            LOCK_NB); /* it is in use; where there are no locks, the PID says so */
    return fd;
}

/* For stdio: an error stays in `out`, whatever is done to the stream later. */
static ssize_t write_bytes(void *cookie, const char *from, size_t bytes)
{
    struct mp_out *out = cookie;
    size_t done = 0;

    mp_assert(out->fd >= 0);
    while (out->error == 0 && done < bytes) {
        const ssize_t wrote = write(out->fd, from + done, bytes - done);

        if (wrote > 0) {
            done += (size_t)wrote;
            out->at_byte += (uint64_t)wrote;
        } else if (wrote == 0 || errno != EINTR) {
            out->error = wrote == 0 ? EIO : errno;
        }
    }
    return (ssize_t)done;
}

/* Takes away what has a name and was not to keep it. */
static void forget(struct mp_out *out)
{
    if (!out->in_place && out->named)
        unlink(out->temporary);
}

enum mp_status mp_out_open(struct mp_out *out, const char *path)
{
    const cookie_io_functions_t io = { .write = write_bytes };
    const int descriptor = descriptor_of(path);
    struct stat info;
    bool exists;

    mp_assert(path != NULL);
    out->file = NULL;
    out->named = false;
    out->error = 0;
    out->at_byte = 0;
    if (*path == '\0' || strlen(path) >= sizeof(out->path))
        return fail("cannot write", path, *path == '\0' ? ENOENT : ENAMETOOLONG);
    memcpy(out->path, path, strlen(path) + 1);
    exists = descriptor < 0 && lstat(path, &info) == 0;
    if (exists && S_ISLNK(info.st_mode))
        return fail("cannot write through the symbolic link", path, ELOOP);
    if (exists && S_ISDIR(info.st_mode))
        return fail("cannot write", path, EISDIR);
    out->in_place = descriptor >= 0 || (exists && !S_ISREG(info.st_mode));
    out->fd = descriptor >= 0 ? open_descriptor(descriptor)
              : out->in_place ? open_in_place(path)
                              : open_temporary(out);
    if (out->fd < 0)
        return fail("cannot create", path, errno);
    out->file = fopencookie(out, "w", io);
    if (out->file == NULL) {
        int error = errno;

        close(out->fd);
        forget(out);
        return fail("cannot create", path, error);
    }
    return MP_OK;
}

uint64_t mp_out_position(struct mp_out *out)
{
    mp_assert(out->file != NULL);
    (void)!fflush(out->file); /* an error stays */
    return out->at_byte;
}

void mp_out_seek(struct mp_out *out, uint64_t byte)
{
    mp_assert(out->file != NULL);
    if (fflush(out->file) != 0 || out->error != 0)
        return;
    if (lseek(out->fd, (off_t)byte, SEEK_SET) < 0)
        out->error = errno;
    else
        out->at_byte = byte;
}

void mp_out_abandon(struct mp_out *out)
{
    if (out->file == NULL)
        return;
    mp_assert(out->fd >= 0);
    out->error = ECANCELED; /* what is still in the buffer goes nowhere */
    fclose(out->file);
    out->file = NULL;
    close(out->fd);
    forget(out);
}

enum mp_status mp_out_check(const char *path, bool seeks)
{
    struct mp_out out;
    struct stat info;
    enum mp_status status;

    mp_assert(path != NULL);
    if (seeks && stat(path, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode)))
        return fail("cannot write", path, ESPIPE);
    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode) &&
        !S_ISDIR(info.st_mode))
        return MP_OK;
    status = mp_out_open(&out, path);
    if (status == MP_OK)
        mp_out_abandon(&out);
    return status;
}

/* A name for what has none; 0 or an error number. */
static int give_name(struct mp_out *out)
{
    char self[32];

    mp_assert(!out->in_place && out->fd >= 0);
    descriptor_path(out->fd, self);
    for (int i = 0; i < ATTEMPTS_MAX && !out->named; i++) {
        out->named = linkat(AT_FDCWD, self, AT_FDCWD, out->temporary, AT_SYMLINK_FOLLOW) == 0;
        if (!out->named && (errno != EEXIST || !next_temporary(out)))
            return errno;
    }
    return out->named ? 0 : EEXIST;
}

enum mp_status mp_out_commit(struct mp_out *out)
{
    char quoted[MP_QUOTE_BYTES];
    int error = 0;

    mp_assert(out->file != NULL);
    if ((fflush(out->file) != 0 || ferror(out->file)) && out->error == 0)
        out->error = EIO; /* stdio's own, such as no memory */
    if (out->error != 0) {
        error = out->error;
        mp_out_abandon(out);
        return mp_fail(MP_ERR_IO, "E_OUTPUT", "cannot write '%s' at byte %" PRIu64 ": %s%s",
                       mp_quote(quoted, out->path, strlen(out->path)), out->at_byte,
                       strerror(error), advice(error));
    }
    /* Some file systems report a full disk only here. Devices do not know fsync. */
    if (!out->in_place && fsync(out->fd) != 0 && errno != EINVAL)
        error = errno;
    if (error == 0 && !out->in_place)
        error = give_name(out);
    fclose(out->file);
    out->file = NULL;
    if (close(out->fd) != 0 && error == 0)
        error = errno;
    if (error == 0 && !out->in_place && rename(out->temporary, out->path) != 0)
        error = errno;
    if (error == 0)
        return MP_OK;
    forget(out);
    return fail("cannot write", out->path, error);
}
