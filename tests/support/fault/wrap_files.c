/*
 * The wrappers of FAULT_NAMED_CALLS: what writes, renames and removes files. Close closes also
 * where it fails, as the kernel does; fsync does nothing.
 */
#include "tests/support/fault/wrap_int.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

WRAP(int, rename, (const char *from, const char *to), (from, to), -1)
WRAP(int, renameat, (int from_fd, const char *from, int to_fd, const char *to),
     (from_fd, from, to_fd, to), -1)
WRAP(int, unlinkat, (int fd, const char *name, int flags), (fd, name, flags), -1)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), -1)
WRAP(DIR *, fdopendir, (int fd), (fd), NULL)
WRAP(FILE *, open_memstream, (char **text, size_t *bytes), (text, bytes), NULL)
WRAP(FILE *, fopencookie, (void *cookie, const char *mode, cookie_io_functions_t io),
     (cookie, mode, io), NULL)
WRAP(int, access, (const char *path, int mode), (path, mode), -1)
WRAP(int, linkat, (int from_fd, const char *from, int to_fd, const char *to, int flags),
     (from_fd, from, to_fd, to, flags), -1)

int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    const int number = fault_fails(FAULT_fsync, HERE);

    (void)fd;
    if (number == 0)
        return 0;
    errno = number;
    return -1;
}

int __real_close(int fd);
int __wrap_close(int fd);

int __wrap_close(int fd)
{
    const int number = fault_fails(FAULT_close, HERE), result = __real_close(fd);

    if (number == 0)
        return result;
    errno = number;
    return -1;
}

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);

/* Only what is read back is found to be wrong. */
static bool is_part(int fd)
{
    char link[64], name[4096];
    ssize_t bytes;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    bytes = readlink(link, name, sizeof(name));
    return bytes > 5 && memcmp(name + bytes - 5, ".part", 5) == 0;
}

static ssize_t write_wrong(int fd, const void *data, size_t bytes)
{
    char *wrong = malloc(bytes);
    ssize_t written;

    if (wrong == NULL)
        return -1;
    memcpy(wrong, data, bytes);
    wrong[bytes / 2] ^= 4;
    written = __real_write(fd, wrong, bytes);
    free(wrong);
    return written;
}

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    const struct fault_plan plan = fault_plan_now();
    const bool passes = plan.corrupt && !is_part(fd);
    const int number = passes ? 0 : fault_fails(FAULT_write, HERE);

    if (number == 0)
        return __real_write(fd, data, bytes);
    if (number == -1 && plan.corrupt)
        return write_wrong(fd, data, bytes);
    if (number == -1)
        return __real_write(fd, data, plan.short_bytes < bytes ? plan.short_bytes : bytes);
    errno = number;
    return -1;
}

int __real_fstatvfs64(int fd, struct statvfs *info);
int __wrap_fstatvfs64(int fd, struct statvfs *info);

int __wrap_fstatvfs64(int fd, struct statvfs *info)
{
    const int number = fault_fails(FAULT_fstatvfs, HERE);
    const int result = number > 0 ? -1 : __real_fstatvfs64(fd, info);

    if (number == -1)
        info->f_bavail = fault_plan_now().short_bytes;
    if (number > 0)
        errno = number;
    return result;
}
