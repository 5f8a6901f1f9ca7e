#ifndef MP_POPULATE_H
#define MP_POPULATE_H

#include "vmm/backend/backend.h"

/*
 * Frames of the host get their pages when they are first written. The kernel clears each page at
 * that moment, on the thread that submits a read or, worse, in place of a thread that computes.
 * This module touches the pages earlier, on a thread of low priority, while the first reads leave
 * the processor idle. Bytes that others write to the frames meanwhile stay as they are.
 */
struct mp_populate;

/*
 * Start with the first frame. NULL: no memory or no thread, said in the log; only slower. The list
 * is copied; the frames must stay until mp_populate_stop().
 */
struct mp_populate *mp_populate_start(const struct mp_frame *frames, uint32_t count);

/* Ends soon, however much is left. NULL is allowed. */
void mp_populate_stop(struct mp_populate *populate);

#endif
