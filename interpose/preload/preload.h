#ifndef MP_INTERPOSE_PRELOAD_H
#define MP_INTERPOSE_PRELOAD_H

#include "interpose/entry.h"

/*
 * The parts of libmoepager_preload.so: preload.c is its start and what opens the interposer,
 * preload_real.c finds the functions behind hooks, preload_memory.c hooks what maps memory,
 * preload_ggml.c what ggml calls.
 *
 * It is in processes that have nothing to do with models, so it starts no thread, allocates
 * nothing, prints nothing and reads one variable until a model file is mapped.
 */
extern struct mp_real mp_preload_real; /* complete from the first hook on */
extern struct mp_span mp_preload_span;

/* The interposer, opened at the first call of this kind; NULL: paging is off, or it cannot be
 * opened, which was said. */
const struct mp_interposer *mp_preload_open(void);

/* The same without opening it: NULL while nothing is paged. */
const struct mp_interposer *mp_preload_opened(void);

/* Is a budget set? */
bool mp_preload_is_on(void);

/* Find the functions of `mp_preload_real`; until then those are system calls. */
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

/* What `site`, an address inside of a caller, would call if there was no hook. NULL: nothing. */
void *mp_preload_behind(struct mp_hooked *hooked, const void *site);

/* The same for one name, without remembering it. */
void *mp_preload_find_behind(const void *site, const char *name, const void *hook);

/* A symbol of the library that holds the pager, which is opened for it; NULL: it cannot be, which
 * was said, or has none. */
void *mp_preload_symbol(const char *name);

/* As mp_find_fn. */
void *mp_preload_find(const void *site, const char *name);

#endif
