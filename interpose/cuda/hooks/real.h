#ifndef MP_INTERPOSE_HOOKS_REAL_H
#define MP_INTERPOSE_HOOKS_REAL_H

#include "interpose/cuda/hooks/hooks.h"

/*
 * The first line of a hook of the runtime.
 */
#define NO_RUNTIME 35 /* cudaErrorInsufficientDriver: the real function is nowhere to be found */

/* `real`: what is behind this hook for its caller. */
#define REAL(name)                                                          \
    __typeof__(&name) const real =                                          \
        (__typeof__(&name))mp_hook_behind(MP_RT_HOOK_##name, MP_HOOK_SITE); \
    if (real == NULL)                                                       \
    return NO_RUNTIME

#endif
