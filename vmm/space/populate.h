#ifndef MP_POPULATE_H
#define MP_POPULATE_H

#include "vmm/backend/backend.h"
#include "vmm/base/clock.h"

/*
 * Pre-faults host frames. The kernel allocates and clears a page at its first write, on the thread
 * that submits a read or, worse, at the expense of a compute thread. This module touches the pages
 * earlier, on threads of its own, while the first reads leave the processor idle. Bytes that others
 * write to the frames meanwhile are preserved.
 *
 * `collapse` (caps.collapse of the backend): it makes huge pages of them, too (Linux 6.1); where
 * those come slowly by the clock, after all pages are there.
 */
struct mp_populate;

/*
 * Start with the first frame. NULL: no memory or no thread; logged, and only speed is affected. The
 * list is copied; frames and clock must exist until mp_populate_stop().
 */
struct mp_populate *mp_populate_start(const struct mp_frame *frames, uint32_t count, bool collapse,
                                      struct mp_clock *clock);

/* Stops the threads early, whatever is left to touch. NULL is allowed. */
void mp_populate_stop(struct mp_populate *populate);

#endif
