#ifndef MP_INTERPOSE_ENTRY_H
#define MP_INTERPOSE_ENTRY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The interface between the two libraries. libmoepager_preload.so is loaded into every program that
 * is started with it and contains only hooks. It opens libmoepager_interpose.so, which contains the
 * pager, when a program maps a model file that is to be paged.
 *
 * Thread safety: any thread of the program. errno is not preserved.
 */
#define MP_INTERPOSE_ABI 4u
#define MP_INTERPOSE_SYMBOL "mp_interposer_v1"

/* The real functions behind the hooks: of libc, or of another preloaded library. */
struct mp_real {
    void *(*mmap)(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);
    int (*munmap)(void *at, size_t bytes);
    void *(*mremap)(void *at, size_t bytes, size_t new_bytes, int flags, void *new_at);
    int (*mprotect)(void *at, size_t bytes, int prot);
    int (*madvise)(void *at, size_t bytes, int advice);
    int (*mlock)(const void *at, size_t bytes);
    int (*mlock2)(const void *at, size_t bytes, unsigned flags);
    int (*execve)(const char *path, char *const argv[], char *const envp[]);
    int (*execv)(const char *path, char *const argv[]);
    int (*execvp)(const char *file, char *const argv[]);
    int (*execvpe)(const char *file, char *const argv[], char *const envp[]);
    int (*fexecve)(int fd, char *const argv[], char *const envp[]);
    int (*execveat)(int fd, const char *path, char *const argv[], char *const envp[], int flags);
};

/* Range of addresses that contains all paged mappings; begin == end: there is none. Written by the
 * interposer; hooks ignore addresses outside. A thread that reads old values may miss a mapping
 * that it does not know of yet, or see one that is being removed. */
struct mp_paged_span {
    _Atomic uintptr_t begin, end;
};

static inline bool mp_paged_span_touches(struct mp_paged_span *span, const void *at, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)at;

    return begin < atomic_load_explicit(&span->end, memory_order_acquire) &&
           begin + bytes > atomic_load_explicit(&span->begin, memory_order_acquire);
}

/* Arguments of the program's mmap(). */
struct mp_map_call {
    size_t bytes;
    int prot, flags, fd;
    off_t offset;
};

/* Bytes [begin, end) of a range of addresses, and how the program has mapped them. */
struct mp_paged_part {
    size_t begin, end;
    int prot;
};

/*
 * A copy of [data, +bytes) to `backend`. make(ctx, from, at, bytes) is called for each part in
 * order; it queues the copy of the bytes at offset `at` from the address `from`. That is in `data`,
 * or an alias that is valid until the layer closes; before that the calling thread waits for the
 * backend.
 */
struct mp_copy_call {
    void *backend;
    const void *data;
    size_t bytes;
    void (*make)(void *ctx, const void *from, size_t at, size_t bytes);
    void *ctx;
};
/* Resolve a function of the program as for a caller at `site`; NULL: there is none. */
typedef void *(*mp_find_fn)(const void *site, const char *name);

struct mp_host {
    struct mp_real real;
    struct mp_paged_span *span;
    mp_find_fn find;
};

struct mp_interposer {
    unsigned abi; /* MP_INTERPOSE_ABI */

    /* First call, once. False: paging is impossible here; a warning was logged. */
    bool (*start)(const struct mp_host *host);

    /* True if the program has a file open that would be paged if it mapped it now. */
    bool (*expects)(void);

    /* Called before a model file is mapped. True: it will be paged, and should not be populated. */
    bool (*wants)(const struct mp_map_call *call);

    /* Called after wants() returned true: the file was mapped at `at`, or could not be
     * (MAP_FAILED). False: it is not paged after all. */
    bool (*mapped)(const struct mp_map_call *call, void *at);

    /* Called before the program unmaps, moves, protects or maps over this range: it is no longer
     * paged, and becomes the file's own mapping again. */
    void (*leave)(const void *at, size_t bytes);

    /* The first part of the range that is in a paged mapping. False: there is none. */
    bool (*find_part)(const void *at, size_t bytes, struct mp_paged_part *part_p);

    /* Called when the kernel has refused the program a mapping (ENOMEM). True: there are more now,
     * because mappings of ours were given up, and the call should be made again. */
    bool (*refused)(void);

    /* Called before a thread of ggml reads expert `expert` of the operation `dst`, MUL_MAT_ID, for
     * `rows` rows. Returns when the expert has been read, or cannot be. */
    void (*expert)(const void *site, const void *dst, int64_t expert, int64_t rows);

    /* Called after a thread of ggml has copied the content of `tensor` to the host, to [data,
     * +bytes). */
    void (*ids_read)(const void *site, const void *tensor, const void *data, size_t bytes);

    /* Called before ggml copies something to a backend. True: the copy was made. False: ggml should
     * make it. */
    bool (*copy)(const void *site, const struct mp_copy_call *wanted);

    /* Called after ggml has waited for `backend`, or (`ends`) before it frees it. */
    void (*synchronized)(const void *backend, bool ends);

    /* Called before the scheduler copies all of `tensor`. */
    void (*whole)(const void *site, const void *tensor);

    /*
     * For versions of ggml that do not report which expert is read. wants_chosen(): true if the
     * scheduler's callback must be chained, so that chosen() is called. is_chosen(): true if the
     * tensor is a router's result. chosen(): the result was computed; returns when the experts in
     * it have been read, or cannot be.
     */
    bool (*wants_chosen)(const void *site);
    bool (*is_chosen)(const void *tensor);
    void (*chosen)(const void *tensor);

    /* For programs other than ggml: announce that these experts of the layer whose tensor begins at
     * `weights` are about to be read. False: they are not paged. */
    bool (*routed)(const void *weights, uint64_t expert_bytes, const int64_t *ids, size_t count);

    /* Called before another program takes the process's place (exec), which may fail: what is
     * written at the end is written now. No effect in a child that shares the memory (vfork). */
    void (*replaced)(void);
};

/* For interpose/cuda: the file that is paged at this address, and the offset in it. False: none. */
bool mp_interposer_place(const void *at, char path[], size_t path_bytes, uint64_t *offset_p);

/* The interposer's table; exported as the pointer MP_INTERPOSE_SYMBOL. */
extern const struct mp_interposer mp_interposer_table;
extern const struct mp_interposer *const mp_interposer_v1;

#endif
