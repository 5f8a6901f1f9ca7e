#ifndef MP_OPTIONS_PRELOAD_OPTIONS_H
#define MP_OPTIONS_PRELOAD_OPTIONS_H

#include "vmm/options/opt.h"

/*
 * The option table of the preloaded library, without the options that it shares with the engine
 * (BUDGET, policies, reads, the log). It is here because two clients that do not include each other
 * use it: the library reads it, `moepager preload` shows it and passes it on.
 */
struct mp_preload_config {
    char report[512];   /* empty: none; "1", "json" or a path */
    char trace[512];    /* empty: none; a path */
    char timeline[512]; /* the same */
    uint64_t hooks;     /* enum mp_preload_hooks */
    uint64_t dense;
};

/* How the library learns which experts are about to be read. */
enum mp_preload_hooks {
    MP_PRELOAD_HOOKS_AUTO,    /* the first of these that the program supports */
    MP_PRELOAD_HOOKS_EXPERT,  /* ggml reports each expert */
    MP_PRELOAD_HOOKS_ROUTER,  /* the scheduler's callback reports a router's choice */
    MP_PRELOAD_HOOKS_TOUCHES, /* page accesses only */
    MP_PRELOAD_HOOKS_COUNT
};

/* It fills struct mp_preload_config; list it with the prefix "MOEPAGER_". */
extern const struct mp_opt mp_preload_opts[];

#endif
