/*
 * Somebody else's preloaded library: it hooks mmap and munmap too, counts them, and passes them on
 * to whoever is next. At the end of the program it says `other N` on standard error.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

static atomic_uint calls;

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    static void *(*next)(void *, size_t, int, int, int, off_t);

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "mmap");
    atomic_fetch_add(&calls, 1);
    return next(at, bytes, prot, flags, fd, offset);
}

int munmap(void *at, size_t bytes)
{
    static int (*next)(void *, size_t);

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "munmap");
    atomic_fetch_add(&calls, 1);
    return next(at, bytes);
}

__attribute__((destructor)) static void end(void)
{
    fprintf(stderr, "other %u\n", atomic_load(&calls));
}
