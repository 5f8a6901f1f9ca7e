#ifndef MP_POPULATE_H
#define MP_POPULATE_H

#include "vmm/backend/backend.h"

/*
 * Frames of the host get their pages when they are first written, and the kernel clears each page
 * then: on the thread that hands a read to the disk, or, worse, instead of a thread that computes.
 * This does it before anybody asks, on a thread of low priority, while the first reads leave the
 * processor idle. What is written to frames meanwhile stays as it is.
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
