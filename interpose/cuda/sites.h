#ifndef MP_INTERPOSE_SITES_H
#define MP_INTERPOSE_SITES_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Who allocates: the calls that led to it.
 *
 * Libraries that hand physical pages to others (NCCL's buffers, RDMA, IPC) must not get a window,
 * whose pages change. Each place in a program is looked at once.
 *
 * Thread safety: any thread.
 */

/* The number of the calling place, the same for the same calls; *left_alone_p: one of those
 * libraries is among the callers, whose name is *library_p (static) then. 0: it cannot be found. */
uint64_t mp_site_look(bool *left_alone_p, const char **library_p);

#endif
