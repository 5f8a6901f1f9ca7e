/*
 * A CUDA device to compute on: its context, streams, events, kernels and graphs; see gpu.h. Its
 * memory is in gpu_memory.c.
 *
 * If the driver compiles the kernels, its compiler's messages are part of the error text, because
 * the error may not be reproducible on another machine.
 */
#include "engine/gpu/gpu_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* More dynamic shared memory than this has to be asked for, per kernel. */
#define SHARED_BYTES_FREE (48u << 10)

/* Of mma.sync with BF16, 16 columns at a time. */
#define TENSOR_CAPABILITY_MIN 80

/* Of griddepcontrol, and of drivers whose graphs have such edges. */
#define EARLY_CAPABILITY_MIN 90
#define EARLY_VERSION_MIN 12030

/* Of the driver's compiler: options of cuModuleLoadDataEx. */
enum { JIT_ERROR_LOG_BUFFER = 5, JIT_ERROR_LOG_BYTES = 6 };

enum mp_status mp_gpu_check(const struct mp_gpu *gpu, mp_cu_result result, const char *call,
                            const char *object)
{
    return mp_cuda_check_life(gpu->cuda, gpu->life, result, call, object);
}

void mp_gpu_undone(const struct mp_gpu *gpu, mp_cu_result result, const char *call)
{
    if (mp_cuda_is_sticky(result))
        mp_cuda_lose(gpu->life, result);
    if (result != MP_CU_SUCCESS && !mp_cuda_known_lost(result))
        mp_log_warn("cuda", "%s failed (%d) while giving something back", call, result);
}

static mp_cu_result make_current(const struct mp_gpu *gpu)
{
    mp_cu_context current = NULL;
    mp_cu_result result;

    mp_cuda_watchdog_device(gpu->device.id);
    result = gpu->cuda->call.context_get(&current);
    if ((result == MP_CU_SUCCESS && current == gpu->context) || mp_cuda_is_sticky(result))
        return result;
    return gpu->cuda->call.context_set(gpu->context);
}

bool mp_gpu_is_lost(const struct mp_gpu *gpu)
{
    return mp_cuda_lost(gpu->life) != 0;
}

void mp_gpu_lose(struct mp_gpu *gpu)
{
    mp_cuda_lose(gpu->life, MP_CU_ERROR_UNKNOWN);
}

enum mp_status mp_gpu_enter(const struct mp_gpu *gpu)
{
    const int lost = mp_cuda_lost(gpu->life);

    return lost != 0 ? mp_cuda_check(gpu->cuda, lost, "an earlier call", gpu->device.name)
                     : mp_gpu_check(gpu, make_current(gpu), "cuCtxSetCurrent", gpu->device.name);
}

bool mp_gpu_enter_to_undo(const struct mp_gpu *gpu)
{
    mp_cu_result result;

    if (mp_gpu_is_lost(gpu))
        return false;
    result = make_current(gpu);
    mp_gpu_undone(gpu, result, "cuCtxSetCurrent");
    return result == MP_CU_SUCCESS;
}

/* An image, the module that it becomes, and which kernels are in it. */
struct image {
    const char *ptx;
    mp_cu_module *module;
    unsigned first, end;
    char path[600]; /* the file that was taken, or "PTX" */
};

/* What was compiled before, if it is there and the driver takes it. Leaves the module NULL if not.
 */
static enum mp_status load_cubin(struct mp_gpu *gpu, struct image *image)
{
    void *cubin =
        mp_gpu_cubin_read(image->ptx, gpu->device.capability, image->path, sizeof(image->path));
    mp_cu_result result;

    if (cubin == NULL)
        return MP_OK;
    result = gpu->cuda->call.module_load(image->module, cubin, 0, NULL, NULL);
    free(cubin);
    if (result == MP_CU_SUCCESS)
        return MP_OK;
    *image->module = NULL;
    if (mp_cuda_is_sticky(result))
        return mp_gpu_check(gpu, result, "cuModuleLoadDataEx", image->path);
    mp_log_warn("cuda", "%s: the driver refuses it (%d) and compiles the kernels itself",
                image->path, result);
    return MP_OK;
}

static enum mp_status load_ptx(struct mp_gpu *gpu, struct image *image)
{
    char log[1024] = "";
    int keys[] = { JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BYTES };
    void *values[] = { log, (void *)(uintptr_t)(sizeof(log) - 1) };
    const mp_cu_result result =
        gpu->cuda->call.module_load(image->module, image->ptx, 2, keys, values);

    snprintf(image->path, sizeof(image->path), "PTX");
    log[sizeof(log) - 1] = '\0';
    if (result != MP_CU_SUCCESS && log[0] != '\0')
        mp_log_warn("cuda", "compiling the kernels: %s", log);
    return mp_gpu_check(gpu, result, "cuModuleLoadDataEx", "the kernels");
}

static enum mp_status load_module(struct mp_gpu *gpu, struct image *image)
{
    enum mp_status status = load_cubin(gpu, image);

    if (status == MP_OK && *image->module == NULL)
        status = load_ptx(gpu, image);
    return status;
}

static enum mp_status load_early(struct mp_gpu *gpu, struct image *image)
{
    const char *ptx = image->ptx;
    char *early = mp_gpu_early_ptx(ptx);
    enum mp_status status;

    if (early == NULL)
        return mp_fail_no_memory("the kernels", strlen(ptx));
    image->ptx = early;
    status = load_module(gpu, image);
    image->ptx = ptx;
    free(early);
    return status;
}

static enum mp_status load_image(struct mp_gpu *gpu, struct image *image)
{
    const struct mp_cu_calls *call = &gpu->cuda->call;
    enum mp_status status = gpu->early ? load_early(gpu, image) : load_module(gpu, image);

    for (unsigned k = image->first; k < image->end && status == MP_OK; k++) {
        const char *name = mp_cuda_kernel_name((enum mp_cuda_kernel)k);

        status = mp_gpu_check(gpu, call->module_function(&gpu->functions[k], *image->module, name),
                              "cuModuleGetFunction", name);
    }
    return status;
}

static enum mp_status load_kernels(struct mp_gpu *gpu)
{
    struct image image = { .ptx = mp_cuda_image,
                           .module = &gpu->modules[0],
                           .end = MP_CUDA_QUANT_FIRST };
    const enum mp_status status = load_image(gpu, &image);

    memcpy(gpu->image, image.path, sizeof(gpu->image));
    return status;
}

/* Those of a type of weights for tensor cores, where both have been asked for. */
static enum mp_status load_tensor_type(struct mp_gpu *gpu, uint32_t type)
{
    const struct mp_cuda_type *kernels = mp_cuda_type(type);
    struct image image = { .module = &gpu->modules[2 + MP_WTYPE_COUNT + type] };

    if (gpu->modules[1] == NULL || gpu->modules[2 + type] == NULL || *image.module != NULL)
        return MP_OK;
    image.ptx = kernels->tensor_image;
    image.first = kernels->tensor;
    image.end = kernels->tensor_down + 1;
    return load_image(gpu, &image);
}

enum mp_status mp_gpu_load_tensor(struct mp_gpu *gpu)
{
    struct image image = { .ptx = mp_cuda_tensor_image,
                           .module = &gpu->modules[1],
                           .first = MP_CUDA_TENSOR_FIRST,
                           .end = MP_CUDA_TENSOR_QUANT_FIRST };
    enum mp_status status;

    if (gpu->device.capability < TENSOR_CAPABILITY_MIN)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_TENSOR_OFF",
                       "%s has compute capability %d.%d; the kernels for tensor cores need 8.0",
                       gpu->device.name, gpu->device.capability / 10, gpu->device.capability % 10);
    status = mp_gpu_enter(gpu);
    if (status == MP_OK && *image.module == NULL)
        status = load_image(gpu, &image);
    for (uint32_t type = 0; type < MP_WTYPE_COUNT && status == MP_OK; type++)
        status = load_tensor_type(gpu, type);
    return status;
}

enum mp_status mp_gpu_load_type(struct mp_gpu *gpu, uint32_t type)
{
    const struct mp_cuda_type *kernels = mp_cuda_type(type);
    struct image image = { .ptx = kernels->image,
                           .module = &gpu->modules[2 + type],
                           .first = kernels->first,
                           .end = kernels->end };
    enum mp_status status;

    if (image.ptx == NULL || *image.module != NULL)
        return MP_OK;
    status = mp_gpu_enter(gpu);
    if (status == MP_OK)
        status = load_image(gpu, &image);
    return status == MP_OK ? load_tensor_type(gpu, type) : status;
}

static bool can_begin_early(const struct mp_gpu *gpu)
{
    const bool can =
        gpu->device.capability >= EARLY_CAPABILITY_MIN && gpu->cuda->version >= EARLY_VERSION_MIN;

    if (!can && mp_gpu_wants_early())
        mp_log_warn("cuda",
                    "%s has compute capability %d.%d and driver %d.%d; programmatic dependent "
                    "launch needs 9.0 and 12.3, and is off",
                    gpu->device.name, gpu->device.capability / 10, gpu->device.capability % 10,
                    gpu->cuda->version / 1000, gpu->cuda->version % 1000 / 10);
    return can && mp_gpu_wants_early();
}

enum mp_status mp_gpu_open(unsigned ordinal, struct mp_gpu **gpu_p)
{
    const struct mp_cuda *cuda;
    struct mp_cuda_device device;
    struct mp_gpu *gpu;
    enum mp_status status = mp_cuda_get(&cuda);

    if (status == MP_OK && ordinal >= cuda->devices)
        return mp_fail(MP_ERR_CONFIG, "E_CUDA_DEVICE",
                       "there is no CUDA device %u; the driver sees %u", ordinal, cuda->devices);
    if (status == MP_OK)
        status = mp_cuda_describe(cuda, ordinal, &device);
    if (status != MP_OK)
        return status;
    gpu = calloc(1, sizeof(*gpu));
    if (gpu == NULL)
        return mp_fail_no_memory("the CUDA device", sizeof(*gpu));
    gpu->cuda = cuda;
    gpu->device = device;
    gpu->early = can_begin_early(gpu);
    gpu->life = mp_cuda_life_get(device.id);
    pthread_mutex_init(&gpu->plain_lock, NULL);
    pthread_mutex_init(&gpu->shared_lock, NULL);
    status = mp_gpu_check(gpu, cuda->call.context_retain(&gpu->context, device.id),
                          "cuDevicePrimaryCtxRetain", device.name);
    if (status != MP_OK) {
        pthread_mutex_destroy(&gpu->shared_lock);
        pthread_mutex_destroy(&gpu->plain_lock);
        mp_cuda_life_put(gpu->life);
        free(gpu);
        return status;
    }
    status = mp_gpu_enter(gpu);
    if (status == MP_OK)
        status = load_kernels(gpu);
    if (status != MP_OK) {
        mp_gpu_close(gpu);
        return status;
    }
    *gpu_p = gpu;
    return MP_OK;
}

void mp_gpu_close(struct mp_gpu *gpu)
{
    if (gpu == NULL)
        return;
    mp_gpu_free_host(gpu, gpu->bounce);
    for (size_t i = 0; i < MP_ARRAY_LEN(gpu->modules); i++) {
        if (gpu->modules[i] != NULL && mp_gpu_enter_to_undo(gpu))
            mp_gpu_undone(gpu, gpu->cuda->call.module_unload(gpu->modules[i]), "cuModuleUnload");
    }
    if (mp_cuda_lost(gpu->life) == 0)
        mp_gpu_undone(gpu, gpu->cuda->call.context_release(gpu->device.id),
                      "cuDevicePrimaryCtxRelease");
    mp_cuda_life_put(gpu->life);
    pthread_mutex_destroy(&gpu->shared_lock);
    pthread_mutex_destroy(&gpu->plain_lock);
    free(gpu);
}

const struct mp_cuda *mp_gpu_driver(const struct mp_gpu *gpu)
{
    return gpu->cuda;
}

const char *mp_gpu_image(const struct mp_gpu *gpu)
{
    return gpu->image;
}

const struct mp_cuda_device *mp_gpu_device(const struct mp_gpu *gpu)
{
    return &gpu->device;
}

/* ---- streams and events */

enum mp_status mp_gpu_stream_open(struct mp_gpu *gpu, mp_cu_stream *stream_p)
{
    enum mp_status status = mp_gpu_enter(gpu);

    if (status == MP_OK)
        status =
            mp_gpu_check(gpu, gpu->cuda->call.stream_create(stream_p, MP_CU_STREAM_NON_BLOCKING, 0),
                         "cuStreamCreateWithPriority", gpu->device.name);
    return status;
}

void mp_gpu_stream_close(struct mp_gpu *gpu, mp_cu_stream stream)
{
    if (stream != NULL && mp_gpu_enter_to_undo(gpu))
        mp_gpu_undone(gpu, gpu->cuda->call.stream_destroy(stream), "cuStreamDestroy");
}

enum mp_status mp_gpu_finish(struct mp_gpu *gpu, mp_cu_stream stream)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : mp_gpu_check(gpu, gpu->cuda->call.stream_synchronize(stream),
                                          "cuStreamSynchronize", gpu->device.name);
}

enum mp_status mp_gpu_event_open(struct mp_gpu *gpu, bool timing, mp_cu_event *event_p)
{
    const unsigned flags = MP_CU_EVENT_BLOCKING_SYNC | (timing ? 0 : MP_CU_EVENT_DISABLE_TIMING);
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : mp_gpu_check(gpu, gpu->cuda->call.event_create(event_p, flags),
                                          "cuEventCreate", gpu->device.name);
}

void mp_gpu_event_close(struct mp_gpu *gpu, mp_cu_event event)
{
    if (event != NULL && mp_gpu_enter_to_undo(gpu))
        mp_gpu_undone(gpu, gpu->cuda->call.event_destroy(event), "cuEventDestroy");
}

enum mp_status mp_gpu_record(struct mp_gpu *gpu, mp_cu_event event, mp_cu_stream stream)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    mp_gpu_chain_cut(gpu, stream);
    return status != MP_OK ? status
                           : mp_gpu_check(gpu, gpu->cuda->call.event_record(event, stream),
                                          "cuEventRecord", gpu->device.name);
}

enum mp_status mp_gpu_wait(struct mp_gpu *gpu, mp_cu_event event)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : mp_gpu_check(gpu, gpu->cuda->call.event_synchronize(event),
                                          "cuEventSynchronize", gpu->device.name);
}

enum mp_status mp_gpu_order(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_event event)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    mp_gpu_chain_cut(gpu, stream);
    return status != MP_OK ? status
                           : mp_gpu_check(gpu, gpu->cuda->call.stream_wait_event(stream, event, 0),
                                          "cuStreamWaitEvent", gpu->device.name);
}

enum mp_status mp_gpu_query(struct mp_gpu *gpu, mp_cu_event event, bool *done_p)
{
    const enum mp_status status = mp_gpu_enter(gpu);
    mp_cu_result result;

    if (status != MP_OK)
        return status;
    result = gpu->cuda->call.event_query(event);
    if (result != MP_CU_SUCCESS && result != MP_CU_ERROR_NOT_READY)
        return mp_gpu_check(gpu, result, "cuEventQuery", gpu->device.name);
    *done_p = result == MP_CU_SUCCESS;
    return MP_OK;
}

enum mp_status mp_gpu_await(struct mp_gpu *gpu, mp_cu_event event, const struct mp_spin *spin)
{
    struct mp_spin_wait wait = mp_spin_begin(spin);
    enum mp_status status = MP_OK;
    bool done = false;

    while (status == MP_OK && !done && mp_spin_again(&wait))
        status = mp_gpu_query(gpu, event, &done);
    return status == MP_OK && !done ? mp_gpu_wait(gpu, event) : status;
}

enum mp_status mp_gpu_elapsed(struct mp_gpu *gpu, mp_cu_event start, mp_cu_event end, float *ms_p)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : mp_gpu_check(gpu, gpu->cuda->call.event_elapsed(ms_p, start, end),
                                          "cuEventElapsedTime", gpu->device.name);
}

/* ---- work */

static enum mp_status allow_shared(struct mp_gpu *gpu, enum mp_cuda_kernel kernel, uint32_t bytes)
{
    _Atomic uint32_t *allowed = &gpu->shared_bytes[kernel];
    enum mp_status status = MP_OK;

    if (bytes <= SHARED_BYTES_FREE || bytes <= atomic_load_explicit(allowed, memory_order_relaxed))
        return MP_OK;
    pthread_mutex_lock(&gpu->shared_lock);
    if (bytes > atomic_load_explicit(allowed, memory_order_relaxed)) {
        status =
            mp_gpu_check(gpu,
                         gpu->cuda->call.function_set(gpu->functions[kernel],
                                                      MP_CU_FUNCTION_SHARED_BYTES_MAX, (int)bytes),
                         "cuFuncSetAttribute", mp_cuda_kernel_name(kernel));
        if (status == MP_OK)
            atomic_store_explicit(allowed, bytes, memory_order_relaxed);
    }
    pthread_mutex_unlock(&gpu->shared_lock);
    return status;
}

void mp_gpu_chain(struct mp_gpu *gpu, mp_cu_stream stream)
{
    gpu->chain = stream;
    gpu->chain_kernel = false;
}

void mp_gpu_chain_cut(struct mp_gpu *gpu, mp_cu_stream stream)
{
    if (stream == gpu->chain)
        gpu->chain_kernel = false;
}

bool mp_gpu_is_early(const struct mp_gpu *gpu)
{
    return gpu->early;
}

/* Ordered by the kernel's own wait, not by the stream. */
static enum mp_status launch_early(struct mp_gpu *gpu, mp_cu_stream stream,
                                   enum mp_cuda_kernel kernel, const struct mp_cuda_grid *grid,
                                   void **parameters)
{
    const struct mp_cu_launch_attribute early = { .id = MP_CU_LAUNCH_PROGRAMMATIC,
                                                  .value.programmatic = 1 };
    const struct mp_cu_launch_config config = {
        .grid_x = grid->x,
        .grid_y = grid->y,
        .grid_z = grid->z,
        .block_x = grid->threads,
        .block_y = 1,
        .block_z = 1,
        .shared_bytes = grid->shared_bytes,
        .stream = stream,
        .attributes = &early,
        .attribute_count = 1,
    };

    return mp_gpu_check(
        gpu, gpu->cuda->call.launch_ex(&config, gpu->functions[kernel], parameters, NULL),
        "cuLaunchKernelEx", mp_cuda_kernel_name(kernel));
}

static enum mp_status launch(struct mp_gpu *gpu, mp_cu_stream stream, enum mp_cuda_kernel kernel,
                             const struct mp_cuda_grid *grid, void **parameters)
{
    return mp_gpu_check(gpu,
                        gpu->cuda->call.launch(gpu->functions[kernel], grid->x, grid->y, grid->z,
                                               grid->threads, 1, 1, grid->shared_bytes, stream,
                                               parameters, NULL),
                        "cuLaunchKernel", mp_cuda_kernel_name(kernel));
}

enum mp_status mp_gpu_launch(struct mp_gpu *gpu, mp_cu_stream stream, enum mp_cuda_kernel kernel,
                             const void *params)
{
    const struct mp_cuda_grid grid = mp_cuda_kernel_grid(kernel, params);
    void *parameters[] = { (void *)(uintptr_t)params }; /* the driver reads them during the call */
    const bool chained = gpu->early && stream == gpu->chain;
    enum mp_status status;

    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return MP_OK;
    status = mp_gpu_enter(gpu);
    if (status == MP_OK)
        status = allow_shared(gpu, kernel, grid.shared_bytes);
    if (status == MP_OK)
        status = chained && gpu->chain_kernel ? launch_early(gpu, stream, kernel, &grid, parameters)
                                              : launch(gpu, stream, kernel, &grid, parameters);
    if (chained)
        gpu->chain_kernel = status == MP_OK;
    return status;
}

/* ---- graphs */

enum mp_status mp_gpu_capture_begin(struct mp_gpu *gpu, mp_cu_stream stream)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    mp_gpu_chain_cut(gpu, stream);
    return status != MP_OK
               ? status
               : mp_gpu_check(gpu,
                              gpu->cuda->call.capture_begin(stream, MP_CU_CAPTURE_THREAD_LOCAL),
                              "cuStreamBeginCapture", gpu->device.name);
}

enum mp_status mp_gpu_capture_end(struct mp_gpu *gpu, mp_cu_stream stream,
                                  mp_cu_graph_exec *graph_p)
{
    const struct mp_cu_calls *call = &gpu->cuda->call;
    mp_cu_graph graph = NULL;
    mp_cu_graph_exec exec = NULL;
    enum mp_status status = mp_gpu_enter(gpu);

    mp_gpu_chain_cut(gpu, stream);
    if (status == MP_OK)
        status = mp_gpu_check(gpu, call->capture_end(stream, &graph), "cuStreamEndCapture",
                              gpu->device.name);
    if (status != MP_OK)
        return status;
    status = mp_gpu_check(gpu, call->graph_instantiate(&exec, graph, 0), "cuGraphInstantiate",
                          gpu->device.name);
    if (graph != NULL && mp_cuda_lost(gpu->life) == 0)
        mp_gpu_undone(gpu, call->graph_destroy(graph), "cuGraphDestroy");
    if (status == MP_OK)
        *graph_p = exec;
    return status;
}

enum mp_status mp_gpu_replay(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_graph_exec graph)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    mp_gpu_chain_cut(gpu, stream);
    return status != MP_OK ? status
                           : mp_gpu_check(gpu, gpu->cuda->call.graph_launch(graph, stream),
                                          "cuGraphLaunch", gpu->device.name);
}

void mp_gpu_graph_close(struct mp_gpu *gpu, mp_cu_graph_exec graph)
{
    if (graph != NULL && mp_gpu_enter_to_undo(gpu))
        mp_gpu_undone(gpu, gpu->cuda->call.graph_exec_destroy(graph), "cuGraphExecDestroy");
}
