#ifndef MP_CUDA_WATCHDOG_H
#define MP_CUDA_WATCHDOG_H

#include <stdbool.h>

#include "vmm/base/error.h"
#include "vmm/backend/cuda/cuda_abi.h"

/*
 * The watchdog of the CUDA driver. It detects calls that do not return: a device that fell off its
 * bus can block its callers forever. Waits for events are watched too.
 *
 * With the watchdog on, every call of the table goes through a wrapper that stores which call its
 * thread is in: two relaxed stores, no clock. The watchdog's thread polls what was stored.
 *
 * A call that does not return within the limit is reported once. From then on no call reaches the
 * driver: all return MP_CU_NOT_RESPONDING, which marks the device as lost, so that cleanup leaves
 * it alone. The blocked thread stays blocked, and so do threads that wait for it: only the program
 * can end that, by calling _exit() in `report`. Time during which the process was stopped does not
 * count.
 *
 * Calls made by other libraries (cuBLAS) are not watched, but waits for their work are.
 */

/* Not a result of the driver. Sticky. */
#define MP_CU_NOT_RESPONDING 799

/*
 * Set the limit and the reaction to a call that exceeds it. Call it at the start of a program,
 * before the first mp_cuda_get(). limit_s 0, the default: no watchdog. `report` runs once, on the
 * watchdog's thread, with E_CUDA_HANG; NULL: the error is logged instead.
 */
void mp_cuda_watchdog_set(unsigned limit_s, void (*report)(const struct mp_error *error));

/* Start the watchdog, if there is a limit, and put its wrappers into the table. Called once, by
 * vmm/backend/cuda/cuda_driver.c. */
void mp_cuda_watchdog_wrap(struct mp_cu_calls *calls);

/* Note that the next calls of the calling thread are for this device. */
void mp_cuda_watchdog_device(mp_cu_device device);

/* True if a call has been reported; then *error_p is its error. */
bool mp_cuda_watchdog_fired(struct mp_error *error_p);

#endif
