/*
 * Calls of streams, events, modules and graphs: not supported so far.
 */
#include "tests/fakecuda/state.h"

FAKE_EXPORT mp_cu_result cuMemHostGetDevicePointer_v2(mp_cu_ptr *device, void *address,
                                                      unsigned flags)
{
    (void)device;
    (void)address;
    (void)flags;
    FAKE_BEGIN("cuMemHostGetDevicePointer_v2");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuMemAlloc_v2(mp_cu_ptr *address, size_t bytes)
{
    (void)address;
    (void)bytes;
    FAKE_BEGIN("cuMemAlloc_v2");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuMemFree_v2(mp_cu_ptr address)
{
    (void)address;
    FAKE_BEGIN("cuMemFree_v2");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuStreamCreateWithPriority(mp_cu_stream *stream, unsigned flags,
                                                    int priority)
{
    (void)stream;
    (void)flags;
    (void)priority;
    FAKE_BEGIN("cuStreamCreateWithPriority");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuStreamDestroy_v2(mp_cu_stream stream)
{
    (void)stream;
    FAKE_BEGIN("cuStreamDestroy_v2");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuStreamSynchronize(mp_cu_stream stream)
{
    (void)stream;
    FAKE_BEGIN("cuStreamSynchronize");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuStreamQuery(mp_cu_stream stream)
{
    (void)stream;
    FAKE_BEGIN("cuStreamQuery");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuStreamWaitEvent(mp_cu_stream stream, mp_cu_event event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    FAKE_BEGIN("cuStreamWaitEvent");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuEventCreate(mp_cu_event *event, unsigned flags)
{
    (void)event;
    (void)flags;
    FAKE_BEGIN("cuEventCreate");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuEventDestroy_v2(mp_cu_event event)
{
    (void)event;
    FAKE_BEGIN("cuEventDestroy_v2");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuEventRecord(mp_cu_event event, mp_cu_stream stream)
{
    (void)event;
    (void)stream;
    FAKE_BEGIN("cuEventRecord");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuEventQuery(mp_cu_event event)
{
    (void)event;
    FAKE_BEGIN("cuEventQuery");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuEventSynchronize(mp_cu_event event)
{
    (void)event;
    FAKE_BEGIN("cuEventSynchronize");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuEventElapsedTime(float *ms, mp_cu_event start, mp_cu_event end)
{
    (void)ms;
    (void)start;
    (void)end;
    FAKE_BEGIN("cuEventElapsedTime");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuMemcpyHtoDAsync_v2(mp_cu_ptr dst, const void *src, size_t bytes,
                                              mp_cu_stream stream)
{
    (void)dst;
    (void)src;
    (void)bytes;
    (void)stream;
    FAKE_BEGIN("cuMemcpyHtoDAsync_v2");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuMemcpyDtoHAsync_v2(void *dst, mp_cu_ptr src, size_t bytes,
                                              mp_cu_stream stream)
{
    (void)dst;
    (void)src;
    (void)bytes;
    (void)stream;
    FAKE_BEGIN("cuMemcpyDtoHAsync_v2");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuMemcpyDtoDAsync_v2(mp_cu_ptr dst, mp_cu_ptr src, size_t bytes,
                                              mp_cu_stream stream)
{
    (void)dst;
    (void)src;
    (void)bytes;
    (void)stream;
    FAKE_BEGIN("cuMemcpyDtoDAsync_v2");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuMemsetD8Async(mp_cu_ptr dst, unsigned char value, size_t bytes,
                                         mp_cu_stream stream)
{
    (void)dst;
    (void)value;
    (void)bytes;
    (void)stream;
    FAKE_BEGIN("cuMemsetD8Async");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuModuleLoadDataEx(mp_cu_module *module, const void *image,
                                            unsigned options, int *keys, void **values)
{
    (void)module;
    (void)image;
    (void)options;
    (void)keys;
    (void)values;
    FAKE_BEGIN("cuModuleLoadDataEx");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuModuleUnload(mp_cu_module module)
{
    (void)module;
    FAKE_BEGIN("cuModuleUnload");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuModuleGetFunction(mp_cu_function *function, mp_cu_module module,
                                             const char *name)
{
    (void)function;
    (void)module;
    (void)name;
    FAKE_BEGIN("cuModuleGetFunction");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuFuncSetAttribute(mp_cu_function function, int attribute, int value)
{
    (void)function;
    (void)attribute;
    (void)value;
    FAKE_BEGIN("cuFuncSetAttribute");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuLaunchKernel(mp_cu_function function, unsigned grid_x, unsigned grid_y,
                                        unsigned grid_z, unsigned block_x, unsigned block_y,
                                        unsigned block_z, unsigned shared_bytes,
                                        mp_cu_stream stream, void **parameters, void **extra)
{
    (void)function;
    (void)grid_x;
    (void)grid_y;
    (void)grid_z;
    (void)block_x;
    (void)block_y;
    (void)block_z;
    (void)shared_bytes;
    (void)stream;
    (void)parameters;
    (void)extra;
    FAKE_BEGIN("cuLaunchKernel");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuStreamBeginCapture_v2(mp_cu_stream stream, int mode)
{
    (void)stream;
    (void)mode;
    FAKE_BEGIN("cuStreamBeginCapture_v2");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuStreamEndCapture(mp_cu_stream stream, mp_cu_graph *graph)
{
    (void)stream;
    (void)graph;
    FAKE_BEGIN("cuStreamEndCapture");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuStreamIsCapturing(mp_cu_stream stream, int *status)
{
    (void)stream;
    (void)status;
    FAKE_BEGIN("cuStreamIsCapturing");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuGraphInstantiateWithFlags(mp_cu_graph_exec *exec, mp_cu_graph graph,
                                                     unsigned long long flags)
{
    (void)exec;
    (void)graph;
    (void)flags;
    FAKE_BEGIN("cuGraphInstantiateWithFlags");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuGraphLaunch(mp_cu_graph_exec exec, mp_cu_stream stream)
{
    (void)exec;
    (void)stream;
    FAKE_BEGIN("cuGraphLaunch");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuGraphExecDestroy(mp_cu_graph_exec exec)
{
    (void)exec;
    FAKE_BEGIN("cuGraphExecDestroy");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}

FAKE_EXPORT mp_cu_result cuGraphDestroy(mp_cu_graph graph)
{
    (void)graph;
    FAKE_BEGIN("cuGraphDestroy");
    return fake_leave(MP_CU_ERROR_NOT_SUPPORTED);
}
