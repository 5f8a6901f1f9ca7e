#ifndef MP_CUDA_ABI_H
#define MP_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

/*
 * The part of the CUDA driver's binary interface that moepager calls, declared here so that one
 * binary is built without a toolkit and runs with or without a driver. Names and numbers are those
 * of NVIDIA's documentation of the driver API, 12.2 to 13.x; tests/device/vmm/cuda_abi_test.c
 * compares them with a toolkit's cuda.h where there is one.
 *
 * Types are ours (mp_cu_*), so that this header and a toolkit's can stand in one file.
 */
typedef int mp_cu_result;
typedef int mp_cu_device;
typedef unsigned long long mp_cu_ptr; /* an address on the device */
typedef unsigned long long mp_cu_handle;
typedef struct mp_cu_context_object *mp_cu_context;
typedef struct mp_cu_stream_object *mp_cu_stream;
typedef struct mp_cu_event_object *mp_cu_event;
typedef struct mp_cu_module_object *mp_cu_module;
typedef struct mp_cu_function_object *mp_cu_function;
typedef struct mp_cu_graph_object *mp_cu_graph;
typedef struct mp_cu_graph_exec_object *mp_cu_graph_exec;

/* X(name, value): results that moepager treats differently from others, or that tests provoke. */
#define MP_CU_RESULT_MAP(X)                      \
    X(SUCCESS, 0)                                \
    X(ERROR_INVALID_VALUE, 1)                    \
    X(ERROR_OUT_OF_MEMORY, 2)                    \
    X(ERROR_NOT_INITIALIZED, 3)                  \
    X(ERROR_DEINITIALIZED, 4)                    \
    X(ERROR_STUB_LIBRARY, 34)                    \
    X(ERROR_NO_DEVICE, 100)                      \
    X(ERROR_INVALID_DEVICE, 101)                 \
    X(ERROR_INVALID_CONTEXT, 201)                \
    X(ERROR_ECC_UNCORRECTABLE, 214)              \
    X(ERROR_FILE_NOT_FOUND, 301)                 \
    X(ERROR_INVALID_HANDLE, 400)                 \
    X(ERROR_ILLEGAL_STATE, 401)                  \
    X(ERROR_NOT_FOUND, 500)                      \
    X(ERROR_NOT_READY, 600)                      \
    X(ERROR_ILLEGAL_ADDRESS, 700)                \
    X(ERROR_LAUNCH_OUT_OF_RESOURCES, 701)        \
    X(ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712) \
    X(ERROR_HOST_MEMORY_NOT_REGISTERED, 713)     \
    X(ERROR_LAUNCH_FAILED, 719)                  \
    X(ERROR_NOT_PERMITTED, 800)                  \
    X(ERROR_NOT_SUPPORTED, 801)                  \
    X(ERROR_SYSTEM_NOT_READY, 802)               \
    X(ERROR_MPS_CONNECTION_FAILED, 805)          \
    X(ERROR_MPS_RPC_FAILURE, 806)                \
    X(ERROR_MPS_SERVER_NOT_READY, 807)           \
    X(ERROR_MPS_MAX_CLIENTS_REACHED, 808)        \
    X(ERROR_MPS_MAX_CONNECTIONS_REACHED, 809)    \
    X(ERROR_MPS_CLIENT_TERMINATED, 810)          \
    X(ERROR_UNKNOWN, 999)

enum {
#define X(name, value) MP_CU_##name = value,
    MP_CU_RESULT_MAP(X)
#undef X
};

enum {
    MP_CU_ATTR_MULTIPROCESSOR_COUNT = 16,
    MP_CU_ATTR_INTEGRATED = 18,
    MP_CU_ATTR_CAN_MAP_HOST_MEMORY = 19,
    MP_CU_ATTR_L2_CACHE_SIZE = 38,
    MP_CU_ATTR_UNIFIED_ADDRESSING = 41,
    MP_CU_ATTR_CAPABILITY_MAJOR = 75,
    MP_CU_ATTR_CAPABILITY_MINOR = 76,
    MP_CU_ATTR_VMM_SUPPORTED = 102,
    MP_CU_ATTR_HOST_NUMA_ID = 134
};

enum {
    MP_CU_LOCATION_DEVICE = 1,
    MP_CU_LOCATION_HOST = 2,
    MP_CU_LOCATION_HOST_NUMA = 3,
    MP_CU_LOCATION_HOST_NUMA_CURRENT = 4
};
enum { MP_CU_ALLOCATION_PINNED = 1 };
enum { MP_CU_GRANULARITY_MINIMUM = 0, MP_CU_GRANULARITY_RECOMMENDED = 1 };
enum { MP_CU_ACCESS_NONE = 0, MP_CU_ACCESS_READ = 1, MP_CU_ACCESS_READ_WRITE = 3 };
enum { MP_CU_HOST_PORTABLE = 1, MP_CU_HOST_DEVICE_MAP = 2 };
enum { MP_CU_STREAM_NON_BLOCKING = 1 };
enum { MP_CU_EVENT_BLOCKING_SYNC = 1, MP_CU_EVENT_DISABLE_TIMING = 2 };
enum { MP_CU_FUNCTION_SHARED_BYTES_MAX = 8 }; /* of cuFuncSetAttribute */
enum { MP_CU_CAPTURE_THREAD_LOCAL = 1, MP_CU_CAPTURE_RELAXED = 2 };
enum { MP_CU_LAUNCH_PROGRAMMATIC = 6 }; /* attribute: programmatic stream serialization */
enum { MP_CU_CAPTURE_NONE = 0, MP_CU_CAPTURE_ACTIVE = 1 };

struct mp_cu_uuid {
    char bytes[16];
};

/* All zero before it is filled: 13.4 made a union of it. */
struct mp_cu_location {
    int type;
    int id;
};

struct mp_cu_allocation {
    int type;
    int handle_types;
    struct mp_cu_location location;
    void *win32;
    struct {
        unsigned char compression, gpu_direct_rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct mp_cu_access {
    struct mp_cu_location location;
    int flags;
};

struct mp_cu_launch_attribute {
    int id;
    char pad[8 - sizeof(int)];
    union {
        char pad[64];
        int programmatic; /* not 0: the kernel may begin before the one before it has ended */
    } value;
};

struct mp_cu_launch_config {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    mp_cu_stream stream;
    const struct mp_cu_launch_attribute *attributes;
    unsigned attribute_count;
};

/*
 * X(member, exported name, parameters, arguments): every call that moepager makes. Versioned names
 * are spelled out, so that what dlsym() finds has these parameters. All return mp_cu_result.
 */
#define MP_CU_CALL_MAP(X)                                                                          \
    X(init, cuInit, (unsigned flags), (flags))                                                     \
    X(driver_version, cuDriverGetVersion, (int *version), (version))                               \
    X(error_name, cuGetErrorName, (mp_cu_result result, const char **text), (result, text))        \
    X(error_string, cuGetErrorString, (mp_cu_result result, const char **text), (result, text))    \
    X(device_count, cuDeviceGetCount, (int *count), (count))                                       \
    X(device_get, cuDeviceGet, (mp_cu_device * device, int ordinal), (device, ordinal))            \
    X(device_name, cuDeviceGetName, (char *name, int bytes, mp_cu_device device),                  \
      (name, bytes, device))                                                                       \
    X(device_uuid, cuDeviceGetUuid_v2, (struct mp_cu_uuid * uuid, mp_cu_device device),            \
      (uuid, device))                                                                              \
    X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, mp_cu_device device), (bytes, device))  \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, mp_cu_device device),    \
      (value, attribute, device))                                                                  \
    X(device_pci, cuDeviceGetPCIBusId, (char *text, int bytes, mp_cu_device device),               \
      (text, bytes, device))                                                                       \
    X(context_retain, cuDevicePrimaryCtxRetain, (mp_cu_context * context, mp_cu_device device),    \
      (context, device))                                                                           \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (mp_cu_device device), (device))              \
    X(context_set, cuCtxSetCurrent, (mp_cu_context context), (context))                            \
    X(context_get, cuCtxGetCurrent, (mp_cu_context * context), (context))                          \
    X(memory_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes),                   \
      (free_bytes, total_bytes))                                                                   \
    X(granularity, cuMemGetAllocationGranularity,                                                  \
      (size_t * bytes, const struct mp_cu_allocation *allocation, int option),                     \
      (bytes, allocation, option))                                                                 \
    X(address_reserve, cuMemAddressReserve,                                                        \
      (mp_cu_ptr * address, size_t bytes, size_t align, mp_cu_ptr hint, unsigned long long flags), \
      (address, bytes, align, hint, flags))                                                        \
    X(address_free, cuMemAddressFree, (mp_cu_ptr address, size_t bytes), (address, bytes))         \
    X(create, cuMemCreate,                                                                         \
      (mp_cu_handle * handle, size_t bytes, const struct mp_cu_allocation *allocation,             \
       unsigned long long flags),                                                                  \
      (handle, bytes, allocation, flags))                                                          \
    X(release, cuMemRelease, (mp_cu_handle handle), (handle))                                      \
    X(map, cuMemMap,                                                                               \
      (mp_cu_ptr address, size_t bytes, size_t offset, mp_cu_handle handle,                        \
       unsigned long long flags),                                                                  \
      (address, bytes, offset, handle, flags))                                                     \
    X(unmap, cuMemUnmap, (mp_cu_ptr address, size_t bytes), (address, bytes))                      \
    X(set_access, cuMemSetAccess,                                                                  \
      (mp_cu_ptr address, size_t bytes, const struct mp_cu_access *access, size_t count),          \
      (address, bytes, access, count))                                                             \
    X(host_alloc, cuMemHostAlloc, (void **address, size_t bytes, unsigned flags),                  \
      (address, bytes, flags))                                                                     \
    X(host_free, cuMemFreeHost, (void *address), (address))                                        \
    X(host_register, cuMemHostRegister_v2, (void *address, size_t bytes, unsigned flags),          \
      (address, bytes, flags))                                                                     \
    X(host_unregister, cuMemHostUnregister, (void *address), (address))                            \
    X(host_device_pointer, cuMemHostGetDevicePointer_v2,                                           \
      (mp_cu_ptr * device, void *address, unsigned flags), (device, address, flags))               \
    X(alloc, cuMemAlloc_v2, (mp_cu_ptr * address, size_t bytes), (address, bytes))                 \
    X(free, cuMemFree_v2, (mp_cu_ptr address), (address))                                          \
    X(stream_create, cuStreamCreateWithPriority,                                                   \
      (mp_cu_stream * stream, unsigned flags, int priority), (stream, flags, priority))            \
    X(stream_destroy, cuStreamDestroy_v2, (mp_cu_stream stream), (stream))                         \
    X(stream_synchronize, cuStreamSynchronize, (mp_cu_stream stream), (stream))                    \
    X(stream_query, cuStreamQuery, (mp_cu_stream stream), (stream))                                \
    X(stream_wait_event, cuStreamWaitEvent,                                                        \
      (mp_cu_stream stream, mp_cu_event event, unsigned flags), (stream, event, flags))            \
    X(event_create, cuEventCreate, (mp_cu_event * event, unsigned flags), (event, flags))          \
    X(event_destroy, cuEventDestroy_v2, (mp_cu_event event), (event))                              \
    X(event_record, cuEventRecord, (mp_cu_event event, mp_cu_stream stream), (event, stream))      \
    X(event_query, cuEventQuery, (mp_cu_event event), (event))                                     \
    X(event_synchronize, cuEventSynchronize, (mp_cu_event event), (event))                         \
    X(event_elapsed, cuEventElapsedTime, (float *ms, mp_cu_event start, mp_cu_event end),          \
      (ms, start, end))                                                                            \
    X(copy_to_device, cuMemcpyHtoDAsync_v2,                                                        \
      (mp_cu_ptr dst, const void *src, size_t bytes, mp_cu_stream stream),                         \
      (dst, src, bytes, stream))                                                                   \
    X(copy_to_host, cuMemcpyDtoHAsync_v2,                                                          \
      (void *dst, mp_cu_ptr src, size_t bytes, mp_cu_stream stream), (dst, src, bytes, stream))    \
    X(copy_on_device, cuMemcpyDtoDAsync_v2,                                                        \
      (mp_cu_ptr dst, mp_cu_ptr src, size_t bytes, mp_cu_stream stream),                           \
      (dst, src, bytes, stream))                                                                   \
    X(set_bytes, cuMemsetD8Async,                                                                  \
      (mp_cu_ptr dst, unsigned char value, size_t bytes, mp_cu_stream stream),                     \
      (dst, value, bytes, stream))                                                                 \
    X(module_load, cuModuleLoadDataEx,                                                             \
      (mp_cu_module * module, const void *image, unsigned options, int *keys, void **values),      \
      (module, image, options, keys, values))                                                      \
    X(module_unload, cuModuleUnload, (mp_cu_module module), (module))                              \
    X(module_function, cuModuleGetFunction,                                                        \
      (mp_cu_function * function, mp_cu_module module, const char *name),                          \
      (function, module, name))                                                                    \
    X(function_set, cuFuncSetAttribute, (mp_cu_function function, int attribute, int value),       \
      (function, attribute, value))                                                                \
    X(launch, cuLaunchKernel,                                                                      \
      (mp_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                 \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                \
       mp_cu_stream stream, void **parameters, void **extra),                                      \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,          \
       parameters, extra))                                                                         \
    X(launch_ex, cuLaunchKernelEx,                                                                 \
      (const struct mp_cu_launch_config *config, mp_cu_function function, void **parameters,       \
       void **extra),                                                                              \
      (config, function, parameters, extra))                                                       \
    X(capture_begin, cuStreamBeginCapture_v2, (mp_cu_stream stream, int mode), (stream, mode))     \
    X(capture_end, cuStreamEndCapture, (mp_cu_stream stream, mp_cu_graph * graph),                 \
      (stream, graph))                                                                             \
    X(capturing, cuStreamIsCapturing, (mp_cu_stream stream, int *status), (stream, status))        \
    X(graph_instantiate, cuGraphInstantiateWithFlags,                                              \
      (mp_cu_graph_exec * exec, mp_cu_graph graph, unsigned long long flags),                      \
      (exec, graph, flags))                                                                        \
    X(graph_launch, cuGraphLaunch, (mp_cu_graph_exec exec, mp_cu_stream stream), (exec, stream))   \
    X(graph_exec_destroy, cuGraphExecDestroy, (mp_cu_graph_exec exec), (exec))                     \
    X(graph_destroy, cuGraphDestroy, (mp_cu_graph graph), (graph))

/* One pointer per call. */
struct mp_cu_calls {
#define X(member, name, parameters, arguments) mp_cu_result(*member) parameters;
    MP_CU_CALL_MAP(X)
#undef X
};

#endif
