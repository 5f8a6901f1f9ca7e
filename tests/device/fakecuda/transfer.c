/*
 * Copies and fills, queued on a stream.
 */
#include "tests/device/fakecuda/stream.h"

enum side { HOST, DEVICE };

/* A copy beside everything else needs memory of the host that stays where it is, and that was
 * pinned or mapped as one. */
static bool is_side(unsigned long long address, size_t bytes, enum side side, const char *name)
{
    const struct fake_region *region = fake_region_at(address);

    if (side == DEVICE)
        return true;
    if (region == NULL || !region->host_memory)
        fake_violation("%s with %#llx, which is not pinned memory of the host", name, address);
    else if (bytes > region->bytes - (address - region->address))
        fake_violation("%s over the end of the pinned memory at %#llx", name, region->address);
    else
        return true;
    return false;
}

static int queue_copy(const char *name, unsigned long long dst, enum side dst_side,
                      unsigned long long src, enum side src_side, size_t bytes, mp_cu_stream stream)
{
    struct fake_stream *s = fake_stream_of(stream);
    struct fake_op *op;

    if (s == NULL)
        return MP_CU_ERROR_INVALID_HANDLE;
    if (bytes == 0)
        return MP_CU_SUCCESS;
    if (!is_side(dst, bytes, dst_side, name) || !is_side(src, bytes, src_side, name))
        return MP_CU_ERROR_INVALID_VALUE;
    op = fake_op_new(FAKE_COPY, name);
    if (op == NULL)
        return MP_CU_ERROR_OUT_OF_MEMORY;
    op->dst = dst;
    op->src = src;
    op->bytes = bytes;
    return fake_queue(s, op);
}

FAKE_EXPORT mp_cu_result cuMemcpyHtoDAsync_v2(mp_cu_ptr dst, const void *src, size_t bytes,
                                              mp_cu_stream stream)
{
    FAKE_BEGIN(cuMemcpyHtoDAsync_v2);
    FAKE_NEED_CONTEXT();
    return fake_leave(
        queue_copy("cuMemcpyHtoDAsync_v2", dst, DEVICE, (uintptr_t)src, HOST, bytes, stream));
}

FAKE_EXPORT mp_cu_result cuMemcpyDtoHAsync_v2(void *dst, mp_cu_ptr src, size_t bytes,
                                              mp_cu_stream stream)
{
    FAKE_BEGIN(cuMemcpyDtoHAsync_v2);
    FAKE_NEED_CONTEXT();
    return fake_leave(
        queue_copy("cuMemcpyDtoHAsync_v2", (uintptr_t)dst, HOST, src, DEVICE, bytes, stream));
}

FAKE_EXPORT mp_cu_result cuMemcpyDtoDAsync_v2(mp_cu_ptr dst, mp_cu_ptr src, size_t bytes,
                                              mp_cu_stream stream)
{
    FAKE_BEGIN(cuMemcpyDtoDAsync_v2);
    FAKE_NEED_CONTEXT();
    return fake_leave(queue_copy("cuMemcpyDtoDAsync_v2", dst, DEVICE, src, DEVICE, bytes, stream));
}

FAKE_EXPORT mp_cu_result cuMemsetD8Async(mp_cu_ptr dst, unsigned char value, size_t bytes,
                                         mp_cu_stream stream)
{
    struct fake_stream *s;
    struct fake_op *op;

    FAKE_BEGIN(cuMemsetD8Async);
    FAKE_NEED_CONTEXT();
    s = fake_stream_of(stream);
    if (s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (bytes == 0)
        return fake_leave(MP_CU_SUCCESS);
    op = fake_op_new(FAKE_FILL, "cuMemsetD8Async");
    if (op == NULL)
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    op->dst = dst;
    op->value = value;
    op->bytes = bytes;
    return fake_leave(fake_queue(s, op));
}
