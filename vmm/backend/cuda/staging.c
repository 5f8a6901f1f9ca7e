/*
 * Copies between the device and host memory that is not pinned, through a small pinned buffer: a
 * ring of slots, each with an event after the copy that uses it. To the device, the CPU fills one
 * slot while others are in flight; to the host, each copy is waited for.
 */
#include <stdlib.h>
#include <string.h>

#include "vmm/backend/cuda/backend_cuda_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define PLACES 4
#define PLACE_BYTES (UINT64_C(512) << 10)

struct mp_cuda_stage {
    char *memory;
    mp_cu_event ends[PLACES];
    bool used[PLACES];
    unsigned next;
};

enum mp_status mp_cuda_stage_open(struct cuda_backend *self, struct mp_cuda_stage **stage_p)
{
    const struct mp_cu_calls *call = &self->cuda->call;
    struct mp_cuda_stage *stage = calloc(1, sizeof(*stage));
    void *memory = NULL;
    enum mp_status status;

    if (stage == NULL)
        return mp_fail_no_memory("a buffer for copies", sizeof(*stage));
    status =
        mp_cuda_note(self, call->host_alloc(&memory, PLACES * PLACE_BYTES, MP_CU_HOST_PORTABLE),
                     "cuMemHostAlloc", "a buffer for copies");
    stage->memory = memory;
    for (unsigned i = 0; status == MP_OK && i < PLACES; i++)
        status = mp_cuda_note(self,
                              call->event_create(&stage->ends[i], MP_CU_EVENT_BLOCKING_SYNC |
                                                                      MP_CU_EVENT_DISABLE_TIMING),
                              "cuEventCreate", self->device.name);
    if (status != MP_OK) {
        mp_cuda_stage_close(self, stage);
        return status;
    }
    *stage_p = stage;
    return MP_OK;
}

/* Also takes a half-made one. */
void mp_cuda_stage_close(struct cuda_backend *self, struct mp_cuda_stage *stage)
{
    const struct mp_cu_calls *call = &self->cuda->call;

    if (stage == NULL)
        return;
    for (unsigned i = 0; i < PLACES && stage->ends[i] != NULL; i++) {
        if (mp_cuda_lost(self->life) == 0)
            (void)mp_cuda_undone(self, call->event_destroy(stage->ends[i]), "cuEventDestroy");
    }
    if (mp_cuda_lost(self->life) == 0) {
        if (stage->memory != NULL &&
            !mp_cuda_undone(self, call->host_free(stage->memory), "cuMemFreeHost"))
            mp_cuda_count_lost(self, PLACES * PLACE_BYTES);
    }
    free(stage);
}

void mp_cuda_stage_reset(struct mp_cuda_stage *stage)
{
    memset(stage->used, 0, sizeof(stage->used));
}

static enum mp_status wait_for(struct cuda_backend *self, struct mp_cuda_stage *stage, unsigned i)
{
    const enum mp_status status =
        stage->used[i] ? mp_cuda_note(self, self->cuda->call.event_synchronize(stage->ends[i]),
                                      "cuEventSynchronize", "copies")
                       : MP_OK;

    mp_assert(i < PLACES);
    if (status == MP_OK)
        stage->used[i] = false;
    return status;
}

/* What one place takes. */
static enum mp_status copy_one(struct cuda_backend *self, struct mp_cuda_stage *stage,
                               mp_cu_stream stream, enum mp_copy copy, char *dst, const char *src,
                               uint64_t bytes)
{
    const struct mp_cu_calls *call = &self->cuda->call;
    const unsigned i = stage->next++ % PLACES;
    char *place = stage->memory + i * PLACE_BYTES;
    enum mp_status status = wait_for(self, stage, i);

    mp_assert(bytes > 0 && bytes <= PLACE_BYTES);
    if (status != MP_OK)
        return status;
    if (copy == MP_COPY_TO_DEVICE) {
        memcpy(place, src, bytes);
        status = mp_cuda_note(self, call->copy_to_device((uintptr_t)dst, place, bytes, stream),
                              "cuMemcpyHtoDAsync", "a copy through a buffer");
    } else {
        status = mp_cuda_note(self, call->copy_to_host(place, (uintptr_t)src, bytes, stream),
                              "cuMemcpyDtoHAsync", "a copy through a buffer");
    }
    if (status == MP_OK)
        status = mp_cuda_note(self, call->event_record(stage->ends[i], stream), "cuEventRecord",
                              "copies");
    stage->used[i] = status == MP_OK;
    if (status == MP_OK && copy == MP_COPY_TO_HOST) {
        status = wait_for(self, stage, i);
        if (status == MP_OK)
            memcpy(dst, place, bytes);
    }
    return status;
}

enum mp_status mp_cuda_stage_copy(struct cuda_backend *self, struct mp_cuda_stage *stage,
                                  mp_cu_stream stream, enum mp_copy copy, void *dst,
                                  const void *src, uint64_t bytes)
{
    enum mp_status status = MP_OK;

    mp_assert(copy != MP_COPY_ON_DEVICE && stage->memory != NULL);
    for (uint64_t done = 0; status == MP_OK && done < bytes; done += PLACE_BYTES)
        status = copy_one(self, stage, stream, copy, (char *)dst + done, (const char *)src + done,
                          bytes - done < PLACE_BYTES ? bytes - done : PLACE_BYTES);
    return status;
}
