#ifndef MP_SIMT_CONTEXT_H
#define MP_SIMT_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Coroutines: stacks that one thread of the host switches between. On x86-64 a switch is a few
 * instructions, elsewhere it is ucontext's. Sanitizers are notified of each.
 */
struct mp_context;

/* A coroutine that will run fn(arg), which never returns; NULL: no memory. */
struct mp_context *mp_context_open(void (*fn)(void *arg), void *arg);
void mp_context_close(struct mp_context *context); /* not the one that runs; NULL is allowed */

/* For the stack that the caller stands on already. */
struct mp_context *mp_context_open_own(void);

/* Run `to` until something switches back to `from`, which is the one that runs now. */
void mp_context_switch(struct mp_context *from, struct mp_context *to);

#endif
