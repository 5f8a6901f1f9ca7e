#ifndef MP_TESTS_GPU_WORK_H
#define MP_TESTS_GPU_WORK_H

/* A stream, an event and a kernel on the device to compute on, and what it should have computed. */
#include "engine/gpu/gpu.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define COUNT 1000u
#define BYTES (COUNT * sizeof(float))

/* Everything that a kernel needs: two arrays of COUNT floats, on the device and pinned. */
struct work {
    struct mp_gpu *gpu;
    mp_cu_stream stream, other;
    mp_cu_event event, end;
    mp_cu_ptr gate, up;
    float *here;
};

static inline enum mp_status open_work(struct work *w)
{
    enum mp_status status;

    memset(w, 0, sizeof(*w));
    status = mp_gpu_open(0, &w->gpu);
    if (status == MP_OK)
        status = mp_gpu_stream_open(w->gpu, &w->stream);
    if (status == MP_OK)
        status = mp_gpu_stream_open(w->gpu, &w->other);
    if (status == MP_OK)
        status = mp_gpu_event_open(w->gpu, true, &w->event);
    if (status == MP_OK)
        status = mp_gpu_event_open(w->gpu, true, &w->end);
    if (status == MP_OK)
        status = mp_gpu_alloc(w->gpu, BYTES, "gate", &w->gate);
    if (status == MP_OK)
        status = mp_gpu_alloc(w->gpu, BYTES, "up", &w->up);
    if (status == MP_OK)
        status = mp_gpu_alloc_host(w->gpu, 2 * BYTES, "here", (void **)&w->here);
    for (uint32_t i = 0; status == MP_OK && i < COUNT; i++) {
        w->here[i] = (float)i / 100 - 3;
        w->here[COUNT + i] = (float)i;
    }
    return status;
}

/* Whatever fails: nothing may be under way when memory goes. */
static inline void close_work(struct work *w)
{
    if (w->gpu == NULL)
        return;
    if (w->stream != NULL && mp_gpu_finish(w->gpu, w->stream) != MP_OK)
        CHECK_EQ(mp_gpu_finish(w->gpu, w->stream), MP_OK);
    if (w->other != NULL && mp_gpu_finish(w->gpu, w->other) != MP_OK)
        CHECK_EQ(mp_gpu_finish(w->gpu, w->other), MP_OK);
    mp_gpu_free_host(w->gpu, w->here);
    mp_gpu_free(w->gpu, w->gate);
    mp_gpu_free(w->gpu, w->up);
    mp_gpu_event_close(w->gpu, w->event);
    mp_gpu_event_close(w->gpu, w->end);
    mp_gpu_stream_close(w->gpu, w->stream);
    mp_gpu_stream_close(w->gpu, w->other);
    mp_gpu_close(w->gpu);
}

static inline enum mp_status queue_kernel(struct work *w, mp_cu_stream stream)
{
    const struct mp_cuda_silu_mul params = { .gate = w->gate, .up = w->up, .count = COUNT };

    return mp_gpu_launch(w->gpu, stream, MP_CUDA_KERNEL_silu_mul, &params);
}

/* Up on one stream, the kernel on the other behind an event, then down. */
static inline enum mp_status work_once(struct work *w)
{
    bool done = false;
    float ms = -1;
    enum mp_status status = mp_gpu_upload(w->gpu, w->stream, w->gate, w->here, BYTES);

    if (status == MP_OK)
        status = mp_gpu_upload(w->gpu, w->stream, w->up, w->here + COUNT, BYTES);
    if (status == MP_OK)
        status = mp_gpu_record(w->gpu, w->event, w->stream);
    if (status == MP_OK)
        status = mp_gpu_order(w->gpu, w->other, w->event);
    if (status == MP_OK)
        status = queue_kernel(w, w->other);
    if (status == MP_OK)
        status = mp_gpu_download(w->gpu, w->other, w->here, w->gate, BYTES);
    if (status == MP_OK)
        status = mp_gpu_record(w->gpu, w->end, w->other);
    if (status == MP_OK)
        status = mp_gpu_wait(w->gpu, w->end);
    if (status == MP_OK)
        status = mp_gpu_query(w->gpu, w->end, &done);
    if (status == MP_OK)
        status = mp_gpu_elapsed(w->gpu, w->event, w->end, &ms);
    if (status == MP_OK)
        CHECK(done && ms >= 0);
    return status;
}

#endif
