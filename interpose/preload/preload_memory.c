/*
 * Hooks of what maps memory. A hook that finds neither a model file nor a paged address is a call
 * of the real function and a few comparisons.
 *
 * The functions carry the names of libc's by labels, because headers give those other names where
 * file offsets have 64 bits.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/cuda/hooks/hooks.h"
#include "interpose/preload/preload.h"
#include "vmm/base/compiler.h"

/* No model whose experts are worth paging is smaller. */
#define MODEL_BYTES_MIN (1u << 20)
#define MODEL_HEAD_BYTES 4096

#define HOOK(type, label, ...)                                   \
    type hook_##label(__VA_ARGS__) __asm__(#label) MOEPAGER_API; \
    type hook_##label(__VA_ARGS__)

/* "GGUF", or the length of a safetensors header before its brace. Not asked of a device, which a
 * read may start or empty. */
static bool is_model_file(int fd)
{
    _Alignas(MODEL_HEAD_BYTES) unsigned char head[MODEL_HEAD_BYTES]; /* as O_DIRECT wants it */
    uint64_t header_bytes;
    struct stat st;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(head) ||
        pread(fd, head, sizeof(head), 0) != (ssize_t)sizeof(head))
        return false;
    memcpy(&header_bytes, head, sizeof(header_bytes));
    return memcmp(head, "GGUF", 4) == 0 || (head[8] == '{' && header_bytes < (100u << 20));
}

/* A call has failed. True: for want of mappings, of which ours were just given up. */
static MP_COLD bool may_try_again(void)
{
    const struct mp_interposer *interposer = mp_preload_opened();
    const int before = errno;
    bool may;

    if (before != ENOMEM || interposer == NULL)
        return false;
    may = interposer->refused();
    errno = before;
    return may;
}

/* Is some of the range not mapped? This call looks for that and does nothing else. */
static bool has_hole(void *at, size_t bytes)
{
    return syscall(SYS_msync, at, bytes, MS_ASYNC) != 0;
}

/* The same for a call about what is mapped in a range: where that is not all of it, the call fails
 * whatever is given up. Allocators do that often. */
static MP_COLD bool may_try_again_in(void *at, size_t bytes)
{
    const int before = errno;
    const bool vain = before != ENOMEM || has_hole(at, bytes);

    errno = before;
    return !vain && may_try_again();
}

static void *map(void *at, const struct mp_map_call *call)
{
    void *got =
        mp_preload_real.mmap(at, call->bytes, call->prot, call->flags, call->fd, call->offset);

    if (got == MAP_FAILED && may_try_again())
        got =
            mp_preload_real.mmap(at, call->bytes, call->prot, call->flags, call->fd, call->offset);
    return got;
}

/* A mapping of a file that may be a model's. */
static MP_COLD void *map_model(void *at, const struct mp_map_call *call)
{
    const int before = errno;
    const struct mp_interposer *interposer = is_model_file(call->fd) ? mp_preload_open() : NULL;
    struct mp_map_call unpopulated = *call;
    void *got;
    int after;

    if (interposer == NULL || !interposer->wants(call)) {
        errno = before;
        return map(at, call);
    }
    unpopulated.flags &= ~MAP_POPULATE;
    errno = before;
    got = map(at, &unpopulated);
    after = errno;
    if (!interposer->mapped(call, got) && got != MAP_FAILED) {
        if (has_hole(got, call->bytes)) { /* the kernel has taken it away again */
            errno = ENOMEM;
            return MAP_FAILED;
        }
        if ((call->flags & MAP_POPULATE) != 0)
            (void)mp_preload_real.madvise(got, call->bytes, MADV_WILLNEED);
    }
    errno = after;
    return got;
}

/* Whoever maps or unmaps at a paged address gets the file's own mapping out of the way first. */
static void leave(const void *at, size_t bytes)
{
    const struct mp_interposer *interposer = mp_preload_opened();
    const int before = errno;

    mp_hook_unmapped(bytes);
    if (interposer != NULL && mp_paged_span_touches(&mp_preload_span, at, bytes))
        interposer->leave(at, bytes);
    errno = before;
}

/* To be read, or written to by this process alone. What is shared may be made writable later if its
 * descriptor is, which ours are not. */
static bool is_for_reading(const struct mp_map_call *call)
{
    if ((call->flags & MAP_TYPE) == MAP_PRIVATE)
        return call->prot == PROT_READ || call->prot == (PROT_READ | PROT_WRITE);
    return call->prot == PROT_READ && (fcntl(call->fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

static void *map_any(void *at, const struct mp_map_call *call)
{
    if ((call->flags & MAP_FIXED) != 0)
        leave(at, call->bytes);
    if (call->fd >= 0 && call->bytes >= MODEL_BYTES_MIN && (call->flags & MAP_ANONYMOUS) == 0 &&
        is_for_reading(call) && mp_preload_is_on())
        return map_model(at, call);
    return map(at, call);
}

HOOK(void *, mmap, void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    return map_any(at, &(struct mp_map_call){ bytes, prot, flags, fd, offset });
}

HOOK(void *, mmap64, void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    return map_any(at, &(struct mp_map_call){ bytes, prot, flags, fd, offset });
}

HOOK(int, munmap, void *at, size_t bytes)
{
    int result;

    leave(at, bytes);
    result = mp_preload_real.munmap(at, bytes);
    return result != 0 && may_try_again() ? mp_preload_real.munmap(at, bytes) : result;
}

HOOK(void *, mremap, void *at, size_t bytes, size_t new_bytes, int flags, ...)
{
    void *new_at = NULL, *got;
    va_list args;

    if ((flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) != 0) {
        va_start(args, flags);
        new_at = va_arg(args, void *);
        va_end(args);
    }
    leave(at, bytes);
    if ((flags & MREMAP_FIXED) != 0)
        leave(new_at, new_bytes);
    got = mp_preload_real.mremap(at, bytes, new_bytes, flags, new_at);
    if (got == MAP_FAILED && may_try_again())
        got = mp_preload_real.mremap(at, bytes, new_bytes, flags, new_at);
    return got;
}

static bool find_part(const void *at, size_t bytes, struct mp_paged_part *part)
{
    const struct mp_interposer *interposer = mp_preload_opened();
    const int before = errno;
    const bool found = interposer != NULL && mp_paged_span_touches(&mp_preload_span, at, bytes) &&
                       interposer->find_part(at, bytes, part);

    errno = before;
    return found;
}

/* Is any of it paged as the program has protected it otherwise? */
static bool is_protected_otherwise(const char *at, size_t bytes, int prot)
{
    struct mp_paged_part part;

    while (bytes > 0 && find_part(at, bytes, &part)) {
        if (part.prot != prot)
            return true;
        at += part.end;
        bytes -= part.end;
    }
    return false;
}

HOOK(int, mprotect, void *at, size_t bytes, int prot)
{
    int result;

    if (prot != PROT_READ || is_protected_otherwise(at, bytes, prot))
        leave(at, bytes);
    result = mp_preload_real.mprotect(at, bytes, prot);
    return result != 0 && may_try_again_in(at, bytes) ? mp_preload_real.mprotect(at, bytes, prot)
                                                      : result;
}

/* A call of the kernel for a range of addresses, with what else it is given. */
typedef int (*range_fn)(void *at, size_t bytes, int how);

/* Make it for the parts of the range that are not paged. Nothing is done for those that are. */
static int call_beside(range_fn call, const void *at, size_t bytes, int how)
{
    char *from = (char *)(uintptr_t)at;
    struct mp_paged_part part;
    int result = 0;

    while (find_part(from, bytes, &part)) {
        if (part.begin > 0 && call(from, part.begin, how) != 0)
            result = -1;
        from += part.end;
        bytes -= part.end;
        if (bytes == 0)
            return result;
    }
    return call(from, bytes, how) != 0 ? -1 : result;
}

/*
 * Advice for the kernel would be about pages that are not the file's, or would read all experts at
 * once (WILLNEED, POPULATE_READ), or empty memory that is not backed by the file (DONTNEED, FREE).
 * The pager knows better. What is said about children and dumps is passed on.
 */
static bool is_advice_for_us(int advice)
{
    return advice != MADV_DONTFORK && advice != MADV_DOFORK && advice != MADV_DONTDUMP &&
           advice != MADV_DODUMP;
}

/* Locking a model would read all of it, and keep it. What is resident is not swapped out by anybody
 * who has less than the budget; the rest is what the program has no room for. */
static int lock_range(void *at, size_t bytes, int how)
{
    (void)how;
    return mp_preload_real.mlock(at, bytes);
}

HOOK(int, mlock, const void *at, size_t bytes)
{
    return call_beside(lock_range, at, bytes, 0);
}

static int lock2_range(void *at, size_t bytes, int flags)
{
    return mp_preload_real.mlock2(at, bytes, (unsigned)flags);
}

HOOK(int, mlock2, const void *at, size_t bytes, unsigned flags)
{
    return call_beside(lock2_range, at, bytes, (int)flags);
}

static int advise_range(void *at, size_t bytes, int advice)
{
    const int result = mp_preload_real.madvise(at, bytes, advice);

    return result != 0 && may_try_again_in(at, bytes) ? mp_preload_real.madvise(at, bytes, advice)
                                                      : result;
}

HOOK(int, madvise, void *at, size_t bytes, int advice)
{
    return is_advice_for_us(advice) ? call_beside(advise_range, at, bytes, advice)
                                    : advise_range(at, bytes, advice);
}

HOOK(int, posix_madvise, void *at, size_t bytes, int advice)
{
    const int before = errno;
    int number = 0;

    /* As libc has it: "will not need" must not lose bytes. */
    if (advice != POSIX_MADV_DONTNEED && call_beside(advise_range, at, bytes, advice) != 0)
        number = errno;
    errno = before;
    return number;
}
