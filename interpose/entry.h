#ifndef MP_INTERPOSE_ENTRY_H
#define MP_INTERPOSE_ENTRY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * What the two libraries have of each other. libmoepager_preload.so is in every program that is
 * started with it, holds hooks and nothing else, and opens libmoepager_interpose.so, which holds
 * the pager, when a program maps a model file that is to be paged.
 *
 * Everything here may be called by any thread of the program. Nothing here keeps errno.
 */
#define MP_INTERPOSE_ABI 1u
#define MP_INTERPOSE_SYMBOL "mp_interposer_v1"

/* The functions that stand behind our hooks: those of libc, or of another preloaded library. */
struct mp_real {
    void *(*mmap)(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);
    int (*munmap)(void *at, size_t bytes);
    void *(*mremap)(void *at, size_t bytes, size_t new_bytes, int flags, void *new_at);
    int (*mprotect)(void *at, size_t bytes, int prot);
    int (*madvise)(void *at, size_t bytes, int advice);
    int (*mlock)(const void *at, size_t bytes);
    int (*mlock2)(const void *at, size_t bytes, unsigned flags);
};

/* Addresses between which all mappings lie that are paged; begin == end: there is none. Written by
 * the interposer; hooks that find themselves outside have nothing to do. A late reader sees a
 * mapping that its own thread has not heard of yet, or one that is being taken down. */
struct mp_span {
    _Atomic uintptr_t begin, end;
};

static inline bool mp_span_touches(struct mp_span *span, const void *at, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)at;

    return begin < atomic_load_explicit(&span->end, memory_order_acquire) &&
           begin + bytes > atomic_load_explicit(&span->begin, memory_order_acquire);
}

/* What a program asks mmap() for. */
struct mp_map_call {
    size_t bytes;
    int prot, flags, fd;
    off_t offset;
};

/*
 * [data, +bytes) is to be copied to `backend`: make(ctx, from, at, bytes) is called for each part,
 * in order, which is at `at` of the copy and is to be queued from `from`. That is in `data`, or an
 * alias that stays valid until the layer closes: before that the calling thread waits for the
 * backend.
 */
struct mp_seam_copy {
    void *backend;
    const void *data;
    size_t bytes;
    void (*make)(void *ctx, const void *from, size_t at, size_t bytes);
    void *ctx;
};
/* The address of a function of the program as somebody who calls from `site` sees it; NULL: there
 * is none. */
typedef void *(*mp_find_fn)(const void *site, const char *name);

struct mp_host {
    struct mp_real real;
    struct mp_span *span;
    mp_find_fn find;
};

struct mp_interposer {
    unsigned abi; /* MP_INTERPOSE_ABI */

    /* First call, once. False: it cannot work here, which it has said. */
    bool (*start)(const struct mp_host *host);

    /* Does the program have a file open that would be paged if it mapped it now? */
    bool (*expects)(void);

    /* A model file is about to be mapped. True: it will be paged, and should not be populated. */
    bool (*wants)(const struct mp_map_call *call);

    /* After wants() said yes: it was mapped at `at`, or could not be (MAP_FAILED). False: it is not
     * paged after all. */
    bool (*mapped)(const struct mp_map_call *call, void *at);

    /* The program is going to unmap, move, or protect otherwise, what lies here, or to map
     * something else over it: from now on it is the file's own mapping. */
    void (*leave)(const void *at, size_t bytes);

    /* Is this address in a mapping that is paged? */
    bool (*covers)(const void *at, size_t bytes);

    /* A thread of ggml is going to read expert `expert` of the operation `dst`, MUL_MAT_ID, for
     * `rows` rows. Returns when it has been read, or cannot be. */
    void (*expert)(const void *site, const void *dst, int64_t expert, int64_t rows);

    /* A thread of ggml has read [data, +bytes), the content of `tensor`, to the host. */
    void (*ids_read)(const void *site, const void *tensor, const void *data, size_t bytes);

    /* ggml is going to copy something to a backend. False: as it is; else it has been done. */
    bool (*copy)(const void *site, const struct mp_seam_copy *wanted);

    /* ggml has waited for `backend`, or is going to end it. */
    void (*synchronized)(const void *backend, bool ends);

    /* The scheduler is going to copy all of `tensor`. */
    void (*whole)(const void *site, const void *tensor);

    /*
     * For versions of ggml that do not say which expert is read when: does the scheduler's callback
     * have to be chained, so that chosen() hears of routers? And is this tensor a router's result?
     * chosen(): it has been computed. Returns when what it names has been read, or cannot be.
     */
    bool (*wants_chosen)(const void *site);
    bool (*is_chosen)(const void *tensor);
    void (*chosen)(const void *tensor);

    /* A program of another kind says so itself: these experts of the layer whose tensor begins at
     * `weights` are going to be read. False: they are not paged. */
    bool (*routed)(const void *weights, uint64_t expert_bytes, const int64_t *ids, size_t count);
};

/* For the other half of the interposer, interpose/cuda: the file that is paged at this address, and
 * the byte in it. False: none is. */
bool mp_interposer_place(const void *at, char path[], size_t path_bytes, uint64_t *offset_p);

/* Of the interposer; exported as the pointer MP_INTERPOSE_SYMBOL. */
extern const struct mp_interposer mp_interposer_table;
extern const struct mp_interposer *const mp_interposer_v1;

#endif
