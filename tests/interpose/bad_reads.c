/*
 * A preloaded library that makes a disk bad: pread() of large files fails as the variable BAD_READS
 * says, `HOW FIRST EVERY`: the FIRST-th call (0, 1, 2, ...) and each EVERY-th after it.
 *
 *     eio      EIO
 *     short    half of what was asked for, in sectors
 *     odd      all but one byte
 *     end      the file ends there
 *
 * What is mapped is read by the kernel, which is not asked. At the end of the program it says
 * `bad N` on standard error.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { SECTOR = 512, LARGE = 1 << 20 };

static atomic_uint calls, failed;
static char how[8];
static unsigned first, every;

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("BAD_READS");

    if (text == NULL || sscanf(text, "%7s %u %u", how, &first, &every) != 3 || every == 0)
        how[0] = '\0';
}

static int is_next(int fd)
{
    struct stat st;
    unsigned call;

    if (how[0] == '\0' || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < LARGE)
        return 0;
    call = atomic_fetch_add(&calls, 1);
    return call >= first && (call - first) % every == 0;
}

static ssize_t read_badly(int fd, void *to, size_t bytes, off_t at)
{
    static ssize_t (*next)(int, void *, size_t, off_t);

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "pread");
    if (!is_next(fd))
        return next(fd, to, bytes, at);
    atomic_fetch_add(&failed, 1);
    if (strcmp(how, "short") == 0)
        return next(fd, to, bytes > 2 * SECTOR ? bytes / 2 / SECTOR * SECTOR : bytes, at);
    if (strcmp(how, "odd") == 0)
        return next(fd, to, bytes, at) == (ssize_t)bytes ? (ssize_t)bytes - 1 : -1;
    if (strcmp(how, "end") == 0)
        return 0;
    errno = EIO;
    return -1;
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    return read_badly(fd, to, bytes, at);
}

ssize_t pread64(int fd, void *to, size_t bytes, off_t at)
{
    return read_badly(fd, to, bytes, at);
}

__attribute__((destructor)) static void end(void)
{
    fprintf(stderr, "bad %u\n", atomic_load(&failed));
}
