/*
 * Kernels: what a compiler puts into programs to register and to launch them, of 12 (the stub's
 * address) and of 13 (a handle that is asked for once).
 */
#include <stdlib.h>
#include <string.h>

#include "tests/device/fakecudart/fakecudart.h"

#define KERNELS_MAX 64

/* What __cudaRegisterFatBinary() is given; the text of a module stands where the binary would. */
struct fat_binary {
    int magic, version;
    const void *text;
    void *names;
};

struct binary {
    const struct fat_binary *fat;
    mp_cu_module module[RT_DEVICES_MAX];
};

static struct kernel {
    const void *stub;
    const char *name;
    struct binary *binary;
    mp_cu_function function[RT_DEVICES_MAX];
} kernels[KERNELS_MAX];
static unsigned kernel_count;

static __thread struct mp_rt_launch pushed;

RT_EXPORT void **__cudaRegisterFatBinary(void *fat)
{
    struct binary *binary = calloc(1, sizeof(*binary));

    if (binary != NULL)
        binary->fat = fat;
    return (void **)binary;
}

RT_EXPORT void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

RT_EXPORT void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle; /* at the end of the process, with it */
}

RT_EXPORT void __cudaRegisterFunction(void **handle, const char *stub, char *device_name,
                                      const char *name, int thread_limit, void *tid, void *bid,
                                      void *block, void *grid, int *warp)
{
    (void)device_name;
    (void)thread_limit;
    (void)tid;
    (void)bid;
    (void)block;
    (void)grid;
    (void)warp;
    pthread_mutex_lock(&rt.lock);
    if (kernel_count == KERNELS_MAX)
        abort();
    kernels[kernel_count++] =
        (struct kernel){ .stub = stub, .name = name, .binary = (struct binary *)handle };
    pthread_mutex_unlock(&rt.lock);
}

RT_EXPORT unsigned __cudaPushCallConfiguration(struct mp_rt_dim grid, struct mp_rt_dim block,
                                               size_t shared_bytes, mp_rt_stream stream)
{
    pushed = (struct mp_rt_launch){
        .grid = grid, .block = block, .shared_bytes = shared_bytes, .stream = stream
    };
    return 0;
}

RT_EXPORT mp_rt_error __cudaPopCallConfiguration(struct mp_rt_dim *grid, struct mp_rt_dim *block,
                                                 size_t *shared_bytes, mp_rt_stream *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_bytes = pushed.shared_bytes;
    *stream = pushed.stream;
    return MP_RT_SUCCESS;
}

/* Loaded when it is first wanted. With the lock held. */
static mp_rt_error load(struct kernel *kernel, mp_cu_function *function_p)
{
    mp_cu_module *module = &kernel->binary->module[rt_device()];
    mp_cu_function *function = &kernel->function[rt_device()];
    mp_rt_error error = MP_RT_SUCCESS;

    if (*module == NULL)
        error = rt.cu.module_load(module, kernel->binary->fat->text, 0, NULL, NULL);
    if (error == MP_RT_SUCCESS && *function == NULL)
        error = rt.cu.module_function(function, *module, kernel->name);
    *function_p = *function;
    return error;
}

void rt_unload(int device)
{
    for (unsigned i = 0; i < kernel_count; i++) {
        kernels[i].binary->module[device] = NULL;
        kernels[i].function[device] = NULL;
    }
}

static struct kernel *find(const void *stub)
{
    for (unsigned i = 0; i < kernel_count; i++) {
        if (kernels[i].stub == stub)
            return &kernels[i];
    }
    return NULL;
}

static mp_rt_error launch(struct kernel *kernel, struct mp_rt_dim grid, struct mp_rt_dim block,
                          void **arguments, size_t shared_bytes, mp_rt_stream stream)
{
    mp_cu_function function = NULL;
    mp_cu_stream s = NULL;
    mp_rt_error error = rt_stream(stream, &s);

    if (kernel == NULL)
        return 98; /* cudaErrorInvalidDeviceFunction */
    pthread_mutex_lock(&rt.lock);
    if (error == MP_RT_SUCCESS)
        error = load(kernel, &function);
    pthread_mutex_unlock(&rt.lock);
    if (error == MP_RT_SUCCESS)
        error = rt.cu.launch(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                             (unsigned)shared_bytes, s, arguments, NULL);
    return error;
}

RT_EXPORT mp_rt_error cudaLaunchKernel(const void *stub, struct mp_rt_dim grid,
                                       struct mp_rt_dim block, void **arguments,
                                       size_t shared_bytes, mp_rt_stream stream)
{
    RT_BEGIN();
    return rt_end(launch(find(stub), grid, block, arguments, shared_bytes, stream));
}

RT_EXPORT mp_rt_error cudaLaunchKernelExC(const struct mp_rt_launch *config, const void *stub,
                                          void **arguments)
{
    RT_BEGIN();
    return rt_end(launch(find(stub), config->grid, config->block, arguments, config->shared_bytes,
                         config->stream));
}

RT_EXPORT mp_rt_error __cudaGetKernel(mp_rt_kernel *kernel, const void *stub)
{
    *kernel = find(stub);
    return rt_end(*kernel != NULL ? MP_RT_SUCCESS : 98);
}

RT_EXPORT mp_rt_error __cudaLaunchKernel(mp_rt_kernel kernel, struct mp_rt_dim grid,
                                         struct mp_rt_dim block, void **arguments,
                                         size_t shared_bytes, mp_rt_stream stream)
{
    RT_BEGIN();
    return rt_end(launch(kernel, grid, block, arguments, shared_bytes, stream));
}

RT_EXPORT mp_rt_error __cudaLaunchKernel_ptsz(mp_rt_kernel kernel, struct mp_rt_dim grid,
                                              struct mp_rt_dim block, void **arguments,
                                              size_t shared_bytes, mp_rt_stream stream)
{
    return __cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes,
                              stream != NULL ? stream : MP_RT_STREAM_PER_THREAD);
}
