#ifndef MP_GPU_H
#define MP_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/cuda_kernels.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/base/spin.h"
#include "vmm/base/status.h"
#include "vmm/options/opt.h"

/*
 * A CUDA device to compute on: its context, kernels, streams and memory. A thin layer: one function
 * for each operation of the engine, the probe and benchmarks, which converts the driver's result to
 * a status. Memory of experts is managed in vmm/.
 *
 * Thread safety: calls set the context of the calling thread themselves; a stream or an event is
 * used by one thread at a time.
 */
struct mp_gpu;

struct mp_gpu_config {
    char cubins[512]; /* folder with the output of tools/make_cubins; empty: none */
    uint64_t pdl;     /* programmatic dependent launch, see mp_gpu_chain() */
};
extern const struct mp_opt mp_gpu_opts[]; /* MOEPAGER_CUDA_CUBINS, MOEPAGER_CUDA_PDL */

/* Configure all devices; to be called at the start of a program, before any is opened. The second
 * form is for programs without settings (engine/session/settings.h). */
void mp_gpu_configure(const struct mp_gpu_config *config);
void mp_gpu_configure_from_environment(void);

/* MP_ERR_UNSUPPORTED E_CUDA_OFF: no driver; MP_ERR_CONFIG E_CUDA_DEVICE: no such device. Loads the
 * kernels: compiled ones of mp_gpu_configure(), else PTX, which the driver compiles for this device
 * or finds in its cache. */
enum mp_status mp_gpu_open(unsigned ordinal, struct mp_gpu **gpu_p) MP_MUST_CHECK;
void mp_gpu_close(struct mp_gpu *gpu); /* NULL is allowed; does not wait */

/* Load the kernels for tensor cores, too, which are not to be launched before: for weights of 16
 * bits and of those quantised types whose kernels have been loaded or will be. No effect if they
 * are there. MP_ERR_UNSUPPORTED E_TENSOR_OFF: the device's compute capability is below 8.0. Not
 * while another thread uses the device. */
enum mp_status mp_gpu_load_tensor(struct mp_gpu *gpu) MP_MUST_CHECK;

/* Load the kernels for weights of a type that has them, which are not to be launched before: those
 * for tensor cores with mp_gpu_load_tensor(), whichever is called first. No effect if they are
 * there. Not while another thread uses the device. */
enum mp_status mp_gpu_load_type(struct mp_gpu *gpu, uint32_t type) MP_MUST_CHECK;

/* Source of its kernels: a file's name, or "PTX". */
const char *mp_gpu_image(const struct mp_gpu *gpu);
const struct mp_cuda *mp_gpu_driver(const struct mp_gpu *gpu);
const struct mp_cuda_device *mp_gpu_device(const struct mp_gpu *gpu);

/* Make the device's context the calling thread's. Needed before calls of mp_gpu_driver(). */
enum mp_status mp_gpu_enter(const struct mp_gpu *gpu) MP_MUST_CHECK;

/* True if the device is lost, for this or another user in the process. Then every call of this
 * header fails with the error that it was lost with, releases nothing, and makes no driver call. */
bool mp_gpu_is_lost(const struct mp_gpu *gpu);
/* Mark the device as lost: the end of work could not be observed. */
void mp_gpu_lose(struct mp_gpu *gpu);

/* Device memory, zeroed; `what` for the error's text. */
enum mp_status mp_gpu_alloc(struct mp_gpu *gpu, uint64_t bytes, const char *what,
                            mp_cu_ptr *address_p) MP_MUST_CHECK;
void mp_gpu_free(struct mp_gpu *gpu, mp_cu_ptr address); /* 0 is allowed */

/* Pinned host memory, zeroed. If the driver cannot pin that much, unpinned memory is used, with one
 * warning: copies to and from it go through a small pinned buffer and block until they are done, so
 * they must not be captured; kernels cannot read it. If that buffer cannot be allocated either, the
 * error of the first attempt is returned. */
enum mp_status mp_gpu_alloc_host(struct mp_gpu *gpu, uint64_t bytes, const char *what,
                                 void **address_p) MP_MUST_CHECK;
void mp_gpu_free_host(struct mp_gpu *gpu, void *address); /* NULL is allowed */

enum mp_status mp_gpu_stream_open(struct mp_gpu *gpu, mp_cu_stream *stream_p) MP_MUST_CHECK;
void mp_gpu_stream_close(struct mp_gpu *gpu, mp_cu_stream stream); /* NULL is allowed */
/* Wait for all that is queued on a stream. */
enum mp_status mp_gpu_finish(struct mp_gpu *gpu, mp_cu_stream stream) MP_MUST_CHECK;

enum mp_status mp_gpu_event_open(struct mp_gpu *gpu, bool timing,
                                 mp_cu_event *event_p) MP_MUST_CHECK;
void mp_gpu_event_close(struct mp_gpu *gpu, mp_cu_event event); /* NULL is allowed */
enum mp_status mp_gpu_record(struct mp_gpu *gpu, mp_cu_event event,
                             mp_cu_stream stream) MP_MUST_CHECK;
enum mp_status mp_gpu_wait(struct mp_gpu *gpu, mp_cu_event event) MP_MUST_CHECK; /* asleep */
/* The same, but awake as long as `spin` says; NULL: asleep. */
enum mp_status mp_gpu_await(struct mp_gpu *gpu, mp_cu_event event,
                            const struct mp_spin *spin) MP_MUST_CHECK;
enum mp_status mp_gpu_order(struct mp_gpu *gpu, mp_cu_stream stream,
                            mp_cu_event event) MP_MUST_CHECK; /* the stream waits, not the host */
/* *done_p := all work queued before the event is done. */
enum mp_status mp_gpu_query(struct mp_gpu *gpu, mp_cu_event event, bool *done_p) MP_MUST_CHECK;
/* Time between two events with timing that have been waited for. */
enum mp_status mp_gpu_elapsed(struct mp_gpu *gpu, mp_cu_event start, mp_cu_event end,
                              float *ms_p) MP_MUST_CHECK;

/* Queue a copy. Host memory must be pinned, and unchanged until the copy is done. */
enum mp_status mp_gpu_upload(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_ptr dst,
                             const void *src, uint64_t bytes) MP_MUST_CHECK;
enum mp_status mp_gpu_download(struct mp_gpu *gpu, mp_cu_stream stream, void *dst, mp_cu_ptr src,
                               uint64_t bytes) MP_MUST_CHECK;
enum mp_status mp_gpu_copy(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_ptr dst, mp_cu_ptr src,
                           uint64_t bytes) MP_MUST_CHECK; /* on the device */
enum mp_status mp_gpu_clear(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_ptr dst,
                            uint64_t bytes) MP_MUST_CHECK; /* with zeros */

/* Queue a kernel; *params is copied. Nothing is queued if it has no work (a grid of 0). */
enum mp_status mp_gpu_launch(struct mp_gpu *gpu, mp_cu_stream stream, enum mp_cuda_kernel kernel,
                             const void *params) MP_MUST_CHECK;

/*
 * With MOEPAGER_CUDA_PDL, on a device and a driver that can: a kernel on this stream whose
 * predecessor there is a kernel begins before that has ended, also as part of a graph, and waits
 * for its end before it reads or writes anything. Whoever queues otherwise than by this header says
 * so by mp_gpu_chain_cut(). One stream for each device, before it is used.
 */
void mp_gpu_chain(struct mp_gpu *gpu, mp_cu_stream stream);
void mp_gpu_chain_cut(struct mp_gpu *gpu, mp_cu_stream stream);
/* Do they begin early? */
bool mp_gpu_is_early(const struct mp_gpu *gpu);

/*
 * Graphs: work that is queued on the stream between begin and end is not executed but captured,
 * with its addresses and parameters, and executed at every replay. Only copies, kernels and events
 * of this header may be queued in between, and nothing may be allocated. mp_gpu_capture_end() after
 * an error in between frees the captured work and returns its own error.
 */
enum mp_status mp_gpu_capture_begin(struct mp_gpu *gpu, mp_cu_stream stream) MP_MUST_CHECK;
enum mp_status mp_gpu_capture_end(struct mp_gpu *gpu, mp_cu_stream stream,
                                  mp_cu_graph_exec *graph_p) MP_MUST_CHECK;
enum mp_status mp_gpu_replay(struct mp_gpu *gpu, mp_cu_stream stream,
                             mp_cu_graph_exec graph) MP_MUST_CHECK;
void mp_gpu_graph_close(struct mp_gpu *gpu, mp_cu_graph_exec graph); /* NULL is allowed */

#endif
