#ifndef MP_CUDA_WATCH_H
#define MP_CUDA_WATCH_H

#include <stdbool.h>

#include "vmm/base/error.h"
#include "vmm/backend/cuda/cuda_abi.h"

/*
 * Calls of the CUDA driver that do not return: a device that fell off its bus can keep its callers
 * for ever. Waits for events are calls too.
 *
 * With the watch on, every call of the table goes through a wrapper that leaves a word saying which
 * one its thread is in: two relaxed stores, no clock. A thread of its own looks at the words.
 *
 * A call that does not return within the limit is reported once. From then on no call reaches the
 * driver: all give MP_CU_NOT_RESPONDING, with which a device counts as lost, so that whatever ends
 * leaves it alone. What hangs goes on hanging, with all that waits for it: only the program can end
 * that, by _exit(), in `report`. Time for which the process was stopped does not count.
 *
 * Not watched: what other libraries (cuBLAS) call themselves; waiting for their work is.
 */

/* No result of the driver's. Sticky. */
#define MP_CU_NOT_RESPONDING 799

/*
 * Watch from now on; to be called before the driver is first looked for, so at the start of a
 * program. limit_s 0: nothing is watched, as without this call. `report` runs once, on the thread
 * that watches, with E_CUDA_HANG; NULL: it is logged instead.
 */
void mp_cuda_watch(unsigned limit_s, void (*report)(const struct mp_error *error));

/* Put the wrappers into the table, if there is a watch. For vmm/backend/cuda/cuda_driver.c, once.
 */
void mp_cuda_watch_calls(struct mp_cu_calls *calls);

/* The calling thread's next calls are for this device. */
void mp_cuda_watch_device(mp_cu_device device);

/* Has a call been reported? Fills in *error_p then. */
bool mp_cuda_watch_reported(struct mp_error *error_p);

#endif
