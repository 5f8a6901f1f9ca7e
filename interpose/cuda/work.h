#ifndef MP_INTERPOSE_WORK_H
#define MP_INTERPOSE_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/cuda/gpu.h"
#include "vmm/backend/cuda/cuda_driver.h"

/*
 * Does the device do nothing, and can nobody give it something to do? Only then may what a window's
 * addresses mean be changed: waiting in a stream is no protection, the host must have seen the end.
 *
 * Every call that queues work goes through a gate that many can pass at once. mp_work_stop() closes
 * it, if nobody is inside, and asks the driver about every stream that the program has; the end
 * that a query reports is one that the host has seen. Not asked can be the default streams of other
 * threads and streams that were destroyed with work in them: those count as busy until
 * somebody waits for them, or for the device. Where a runtime's calls of the driver are not seen,
 * several threads are never quiet. While a stream is captured nothing is quiet.
 *
 * Thread safety: all of it.
 */
/* For each device, with its context; again after it was reset. */
void mp_work_open(const struct mp_cuda *cuda, mp_cu_context context);

/* A call that a runtime made of the driver has been seen: so will those of others be. */
void mp_work_sees_driver(void);

void mp_work_begin(void *stream, enum mp_gpu_default meaning);
void mp_work_end(void);

void mp_work_stream_made(void *stream);
void mp_work_stream_ends(void *stream);
void mp_work_capture(bool begins);
bool mp_work_is_captured(void);

void mp_work_wait_begins(struct mp_gpu_wait *wait);
/* A device is about to be reset: its streams are gone, and of its context nothing is asked any
 * more. `context` is that device's (NULL: not known); `alone`: there is no other, so nothing is
 * under way. What is not known to be of another device is its own no more, and where there are
 * others stays as it is: a capture, a stream that ended busy, or a thread's own stream, until
 * somebody has waited. */
void mp_work_forget(mp_cu_context context, bool alone);

void mp_work_waited(const struct mp_gpu_wait *wait, bool all, void *stream,
                    enum mp_gpu_default meaning);

/* Close the gate. The calling thread's context may be another one then. False: something is, or may
 * be, under way; the gate is open. */
bool mp_work_stop(void);

/* The caller has waited for the whole device: close the gate, after those inside have left. */
void mp_work_close(void);
void mp_work_go(void);

#endif
