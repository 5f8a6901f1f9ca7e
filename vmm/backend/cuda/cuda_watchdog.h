#ifndef MP_CUDA_WATCHDOG_H
#define MP_CUDA_WATCHDOG_H

#include <stdbool.h>

#include "vmm/base/error.h"
#include "vmm/backend/cuda/cuda_abi.h"

/*
 * The watchdog of the CUDA driver. It finds calls that do not return: a device that fell off its
 * bus can keep its callers for ever. Waits for events are calls too.
 *
 * With the watchdog on, every call of the table goes through a wrapper that stores which call its
 * thread is in: two relaxed stores, no clock. The watchdog's thread polls what was stored.
 *
 * A call that does not return within the limit is reported once. From then on no call reaches the
 * driver: all give MP_CU_NOT_RESPONDING, with which a device counts as lost, so that cleanup leaves
 * the device alone. The thread that hangs goes on hanging, with all that waits for it: only the
 * program can end that, by _exit(), in `report`. Time for which the process was stopped does not
 * count.
 *
 * Not watched: calls that other libraries (cuBLAS) make. Waits for their work are.
 */

/* No result of the driver's. Sticky. */
#define MP_CU_NOT_RESPONDING 799

/*
 * Set the limit and what happens when a call exceeds it. Call it at the start of a program, before
 * the driver is first asked for. limit_s 0: no watchdog, as without this call. `report` runs once,
 * on the watchdog's thread, with E_CUDA_HANG; NULL: the error is logged instead.
 */
void mp_cuda_watchdog_set(unsigned limit_s, void (*report)(const struct mp_error *error));

/* Start the watchdog, if there is a limit, and put its wrappers into the table. For
 * vmm/backend/cuda/cuda_driver.c, once. */
void mp_cuda_watchdog_wrap(struct mp_cu_calls *calls);

/* The calling thread's next calls are for this device. */
void mp_cuda_watchdog_device(mp_cu_device device);

/* Has a call been reported? Fills in *error_p then. */
bool mp_cuda_watchdog_fired(struct mp_error *error_p);

#endif
