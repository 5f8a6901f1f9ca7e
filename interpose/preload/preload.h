#ifndef MP_INTERPOSE_PRELOAD_H
#define MP_INTERPOSE_PRELOAD_H

#include "interpose/entry.h"

/*
 * The parts of libmoepager_preload.so: preload.c starts it and opens the interposer, preload_real.c
 * finds the real functions behind hooks, preload_memory.c hooks functions that map memory,
 * preload_ggml.c functions of ggml.
 *
 * It is also loaded into processes that use no models, so until a model file is mapped it starts no
 * thread, allocates nothing, prints nothing and reads only one variable.
 */
extern struct mp_real mp_preload_real; /* complete from the first hook on */
extern struct mp_paged_span mp_preload_span;

/* The interposer, opened at the first call; NULL: paging is off, or it cannot be opened, which was
 * logged. */
const struct mp_interposer *mp_preload_open(void);

/* The same without opening it: NULL while nothing is paged. */
const struct mp_interposer *mp_preload_opened(void);

/* True if a budget is set. */
bool mp_preload_is_on(void);

/* Find the functions of `mp_preload_real`; before, they are plain system calls. */
void mp_preload_find_real(void);

/* One function of ggml or llama.cpp that is hooked. The real one can differ from caller to caller:
 * each module that was opened with RTLD_LOCAL has its own. */
#define MP_SITES_MAX 32
struct mp_hooked {
    const char *name;
    void *hook;
    struct mp_site {
        _Atomic(const void *) site; /* NULL: free */
        _Atomic(void *) real;       /* NULL: not known yet */
    } sites[MP_SITES_MAX];
};

/* The function that a caller at address `site` would call without the hook; NULL: none. */
void *mp_preload_behind(struct mp_hooked *hooked, const void *site);

/* The same for one name, without remembering it. */
void *mp_preload_find_behind(const void *site, const char *name, const void *hook);

/* A symbol of the library with the pager, which is opened if necessary; NULL: it cannot be opened,
 * which was logged, or has no such symbol. */
void *mp_preload_symbol(const char *name);

/* preload_copies.c: a scheduler of ggml is about to end; its callback is not chained any more. */
void mp_preload_forget_copies(void *scheduler);

/* As mp_find_fn. */
void *mp_preload_find(const void *site, const char *name);

#endif
