/*
 * Hooks of the runtime's copies and fills, which are made in parts of one tier each.
 *
 * The variants for per-thread default streams are functions of their own with the same body, so
 * bodies are written once and stamped by macros that do nothing but name.
 */
#include "interpose/cuda/hooks/hooks.h"

#include "interpose/cuda/hooks/real.h"
#include "vmm/base/compiler.h"

/* What the bodies below have in common. */
struct copying {
    const struct mp_gpu_interposer *gpu;
    struct mp_gpu_copy copy;
    uint64_t done, bytes; /* of the present part */
};

static struct copying begin_copy(const struct mp_gpu_interposer *gpu, void *dst, const void *src,
                                 uint64_t bytes, bool from_host, mp_rt_stream stream,
                                 enum mp_gpu_default meaning)
{
    struct copying c = {
        .gpu = gpu, .copy = { .dst = dst, .src = src, .bytes = bytes, .from_host = from_host }
    };

    mp_hook_enter();
    gpu->begin(stream, meaning);
    gpu->copies(&c.copy);
    return c;
}

static bool next_part(struct copying *c)
{
    c->done += c->bytes;
    if (c->done >= c->copy.bytes)
        return false;
    c->bytes = c->gpu->part(&c->copy, c->done);
    return true;
}

static void end_copy(const struct copying *c)
{
    c->gpu->end();
    mp_hook_leave();
}

static void *to(const struct copying *c)
{
    return (char *)c->copy.dst + c->done;
}

static const void *from(const struct copying *c)
{
    return (const char *)c->copy.src + c->done;
}

/*
 * A window is device memory to a program, wherever its units lie; where the program leaves it to
 * the addresses, the runtime would take units in host memory for the host's.
 */
static enum mp_rt_copy kind_of(const struct mp_gpu_interposer *gpu, const void *dst,
                               const void *src, enum mp_rt_copy kind, const void *site)
{
    const bool to_window = gpu->holds(dst), from_window = gpu->holds(src);
    mp_rt_error (*ask)(struct mp_rt_pointer *, const void *);
    struct {
        struct mp_rt_pointer pointer;
        long reserved[16]; /* what later releases have behind it */
    } other = { .pointer.type = MP_RT_MEMORY_DEVICE };

    if (kind != MP_RT_COPY_DEFAULT || (!to_window && !from_window))
        return kind;
    ask = (mp_rt_error(*)(struct mp_rt_pointer *, const void *))mp_hook_find(
        site, "cudaPointerGetAttributes");
    if (!(to_window && from_window) &&
        (ask == NULL || ask(&other.pointer, to_window ? src : dst) != MP_RT_SUCCESS))
        return kind;
    if (other.pointer.type > MP_RT_MEMORY_HOST) /* of a device, or managed */
        return MP_RT_DEVICE_TO_DEVICE;
    return to_window ? MP_RT_HOST_TO_DEVICE : MP_RT_DEVICE_TO_HOST;
}

static bool from_host(enum mp_rt_copy kind)
{
    return kind == MP_RT_HOST_TO_DEVICE || kind == MP_RT_COPY_DEFAULT;
}

#define COPY_ASYNC(name, meaning)                                                                 \
    MOEPAGER_API mp_rt_error name(void *dst, const void *src, size_t bytes, enum mp_rt_copy kind, \
                                  mp_rt_stream stream)                                            \
    {                                                                                             \
        REAL(name);                                                                               \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();                                      \
        mp_rt_error error = MP_RT_SUCCESS;                                                        \
        struct copying c;                                                                         \
                                                                                                  \
        if (gpu == NULL)                                                                          \
            return real(dst, src, bytes, kind, stream);                                           \
        kind = kind_of(gpu, dst, src, kind, MP_HOOK_SITE);                                        \
        c = begin_copy(gpu, dst, src, bytes, from_host(kind), stream, meaning);                   \
        while (error == MP_RT_SUCCESS && next_part(&c))                                           \
            error = real(to(&c), from(&c), c.bytes, kind, stream);                                \
        end_copy(&c);                                                                             \
        return error;                                                                             \
    }

COPY_ASYNC(cudaMemcpyAsync, MP_GPU_LEGACY)
COPY_ASYNC(cudaMemcpyAsync_ptsz, MP_GPU_PER_THREAD)

/* The host has seen the end of these, but not of others' work. */
#define COPY(name, meaning)                                                                       \
    MOEPAGER_API mp_rt_error name(void *dst, const void *src, size_t bytes, enum mp_rt_copy kind) \
    {                                                                                             \
        REAL(name);                                                                               \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();                                      \
        mp_rt_error error = MP_RT_SUCCESS;                                                        \
        struct mp_gpu_wait wait;                                                                  \
        struct copying c;                                                                         \
                                                                                                  \
        if (gpu == NULL)                                                                          \
            return real(dst, src, bytes, kind);                                                   \
        kind = kind_of(gpu, dst, src, kind, MP_HOOK_SITE);                                        \
        gpu->wait_begins(&wait);                                                                  \
        c = begin_copy(gpu, dst, src, bytes, from_host(kind), NULL, meaning);                     \
        while (error == MP_RT_SUCCESS && next_part(&c))                                           \
            error = real(to(&c), from(&c), c.bytes, kind);                                        \
        c.gpu->end();                                                                             \
        if (error == MP_RT_SUCCESS)                                                               \
            gpu->waited(&wait, false, NULL, meaning);                                             \
        mp_hook_leave();                                                                          \
        return error;                                                                             \
    }

COPY(cudaMemcpy, MP_GPU_LEGACY)
COPY(cudaMemcpy_ptds, MP_GPU_PER_THREAD)

#define FILL_ASYNC(name, meaning)                                                          \
    MOEPAGER_API mp_rt_error name(void *dst, int value, size_t bytes, mp_rt_stream stream) \
    {                                                                                      \
        REAL(name);                                                                        \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();                               \
        mp_rt_error error = MP_RT_SUCCESS;                                                 \
        struct copying c;                                                                  \
                                                                                           \
        if (gpu == NULL)                                                                   \
            return real(dst, value, bytes, stream);                                        \
        c = begin_copy(gpu, dst, NULL, bytes, false, stream, meaning);                     \
        while (error == MP_RT_SUCCESS && next_part(&c))                                    \
            error = real(to(&c), value, c.bytes, stream);                                  \
        end_copy(&c);                                                                      \
        return error;                                                                      \
    }

FILL_ASYNC(cudaMemsetAsync, MP_GPU_LEGACY)
FILL_ASYNC(cudaMemsetAsync_ptsz, MP_GPU_PER_THREAD)

#define FILL(name, meaning)                                           \
    MOEPAGER_API mp_rt_error name(void *dst, int value, size_t bytes) \
    {                                                                 \
        REAL(name);                                                   \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();          \
        mp_rt_error error = MP_RT_SUCCESS;                            \
        struct copying c;                                             \
                                                                      \
        if (gpu == NULL)                                              \
            return real(dst, value, bytes);                           \
        c = begin_copy(gpu, dst, NULL, bytes, false, NULL, meaning);  \
        while (error == MP_RT_SUCCESS && next_part(&c))               \
            error = real(to(&c), value, c.bytes);                     \
        end_copy(&c);                                                 \
        return error;                                                 \
    }

FILL(cudaMemset, MP_GPU_LEGACY)
FILL(cudaMemset_ptds, MP_GPU_PER_THREAD)

/* Rows, each of which may lie in several parts. */
MOEPAGER_API mp_rt_error cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src,
                                           size_t src_pitch, size_t width, size_t height,
                                           enum mp_rt_copy kind, mp_rt_stream stream)
{
    REAL(cudaMemcpy2DAsync);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();
    mp_rt_error error = MP_RT_SUCCESS;

    if (gpu == NULL || height == 0 || (!gpu->holds(dst) && !gpu->holds(src)))
        return real(dst, dst_pitch, src, src_pitch, width, height, kind, stream);
    kind = kind_of(gpu, dst, src, kind, MP_HOOK_SITE);
    for (size_t row = 0; row < height && error == MP_RT_SUCCESS; row++) {
        struct copying c =
            begin_copy(gpu, (char *)dst + row * dst_pitch, (const char *)src + row * src_pitch,
                       width, from_host(kind), stream, MP_GPU_LEGACY);

        while (error == MP_RT_SUCCESS && next_part(&c))
            error = real(to(&c), dst_pitch, from(&c), src_pitch, c.bytes, 1, kind, stream);
        end_copy(&c);
    }
    return error;
}
