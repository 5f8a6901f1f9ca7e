#ifndef MP_INTERPOSE_GPU_H
#define MP_INTERPOSE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What hooks of the CUDA runtime and of the driver ask of the interposer. Hooks stand in the
 * library that is preloaded; everything behind this table is in the one that is opened when a
 * budget for the device is set and a program allocates a lot.
 *
 * Streams, events and graphs are the program's own handles, of the runtime or of the driver, which
 * are the same. Any thread may call; errors of ours end in "no", after which the hook does what
 * would happen without it.
 */
#define MP_GPU_ABI 3u
#define MP_GPU_SYMBOL "mp_gpu_v1"
#define MP_GPU_UNMAPPED_MIN (UINT64_C(1) << 20)

/* A call that moves bytes. */
struct mp_gpu_copy {
    void *dst;
    const void *src; /* NULL: a fill */
    uint64_t bytes;
    bool from_host; /* as far as the call says so */
};

/* How a call names its stream, where that is none that was created. */
enum mp_gpu_default {
    MP_GPU_LEGACY,     /* 0 is the device's */
    MP_GPU_PER_THREAD, /* 0 is the thread's own */
};

/* A wait that has begun: what had been queued by then. */
struct mp_gpu_wait {
    uint64_t per_thread, orphans;
};

struct mp_gpu_interposer {
    unsigned abi; /* MP_GPU_ABI */

    /* First call, once. False: nothing is to be done, or can be, which was said. */
    bool (*start)(void);

    /* Allocations of at least so many bytes are asked about. */
    uint64_t (*bytes_min)(void);

    /* True: *address_p is a window. False: the hook makes the program's own call, and took() if
     * that gave something. `failed`: that call was made already, and there was no memory. */
    bool (*allocate)(int device, uint64_t bytes, bool failed, void **address_p);
    void (*took)(int device, const void *address, uint64_t bytes);

    /* Managed memory is to be tried where there is neither. */
    bool (*manages)(void);

    /* The device of the window that begins there; -1: none does. The caller waits for that device
     * and calls release(), and the program's own call is not made. */
    int (*owner)(const void *address);
    void (*release)(const void *address);
    bool (*holds)(const void *address);

    /* The program's own call to free it is made next; it is no window. */
    void (*gives)(const void *address);

    /* The program is going to reset the device, which does nothing: all that is ours there ends,
     * and the next large allocation begins anew. */
    void (*reset)(int device);

    /* From what the device has to what the program can have. */
    void (*memory_info)(int device, size_t *free_bytes, size_t *total_bytes);

    /* Between begin() and end() a call queues work that may touch windows. */
    void (*begin)(void *stream, enum mp_gpu_default meaning);
    void (*end)(void);

    /* Within: what is moved, and how many of its first bytes can be moved in one call; *host_p:
     * they are, or come, in host memory, whatever the call says of its direction. */
    void (*copies)(const struct mp_gpu_copy *copy);
    uint64_t (*part)(const struct mp_gpu_copy *copy, uint64_t done);

    /* Within: a kernel is launched with these `bytes` bytes of parameters, one of them. */
    void (*parameter)(const void *data, size_t bytes);

    void (*stream_made)(void *stream);
    void (*stream_ends)(void *stream); /* before it does */
    void (*capture)(bool begins);

    /* Around a call that waits. */
    void (*wait_begins)(struct mp_gpu_wait *wait);
    void (*waited)(const struct mp_gpu_wait *wait, bool all, void *stream,
                   enum mp_gpu_default meaning);

    /* What lies at some addresses of the host changes, MP_GPU_UNMAPPED_MIN bytes at least. From any
     * place, with any lock. */
    void (*unmapped)(void);

    /* No window is made from now on, because of this. */
    void (*stand_aside)(const char *why);
};

extern const struct mp_gpu_interposer mp_gpu_interposer_table;

#endif
