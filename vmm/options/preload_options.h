#ifndef MP_OPTIONS_PRELOAD_OPTIONS_H
#define MP_OPTIONS_PRELOAD_OPTIONS_H

#include "vmm/options/opt.h"

/*
 * The option table of the preloaded library, less what it shares by name with the engine (BUDGET,
 * policies, reads, the log). It stands here because two clients that do not know each other use
 * it: the library reads it, the program shows it and hands it on (moepager preload).
 */
struct mp_preload_config {
    char report[512];   /* empty: none; "1", "json" or a path */
    char trace[512];    /* empty: none; a path */
    char timeline[512]; /* the same */
    uint64_t hooks;     /* enum mp_preload_hooks */
    uint64_t dense;
};

/* How it is learned which experts are going to be read. */
enum mp_preload_hooks {
    MP_PRELOAD_HOOKS_AUTO,    /* the first of these that the program has */
    MP_PRELOAD_HOOKS_EXPERT,  /* ggml says so of each expert */
    MP_PRELOAD_HOOKS_ROUTER,  /* the scheduler's callback shows what a router chose */
    MP_PRELOAD_HOOKS_TOUCHES, /* what has been touched */
    MP_PRELOAD_HOOKS_COUNT
};

/* It fills struct mp_preload_config; list it with the prefix "MOEPAGER_". */
extern const struct mp_opt mp_preload_opts[];

#endif
