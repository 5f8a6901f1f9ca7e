#ifndef MP_BACKEND_H
#define MP_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * A backend is the only code that talks to a device: it makes frames, physical memory of one tier
 * that stays mapped at one address, its alias, for as long as the frame exists. It knows nothing of
 * units, budgets or policies.
 *
 * Granule, alignment, layouts, limits and capabilities are in `caps`. Callers read them and assume
 * nothing. Wrappers (trace:, fault:) are backends that pass calls on; MOEPAGER_BACKEND=trace:host
 * names a chain. Callers serialise calls on one backend, except where an operation says otherwise.
 */
enum mp_tier_kind { MP_TIER_DEVICE, MP_TIER_HOST, MP_TIER_FILE, MP_TIER_KIND_COUNT };

const char *mp_tier_kind_name(enum mp_tier_kind kind);

/* How the pieces of a unit stand in a slot; see vmm/space/space.h. */
enum mp_layout { MP_LAYOUT_FILE, MP_LAYOUT_PACKED, MP_LAYOUT_COUNT };

struct mp_backend_caps {
    uint64_t granule_bytes;     /* frame sizes are multiples of it; a power of two */
    uint64_t alias_align_bytes; /* every alias is a multiple of it; a power of two >= 4096 */
    uint64_t frame_bytes_max;
    uint32_t frames_max;
    unsigned tiers;       /* bit (1 << kind): frames can be made in this tier */
    unsigned layouts;     /* bit (1 << layout): compute accepts it */
    bool cpu_access;      /* the CPU may read and write through aliases */
    bool file_target;     /* files may be read straight into device aliases */
    bool windows;         /* window_*() work: a unit can keep one address for its lifetime */
    bool parallel_frames; /* frame_create() may be called by several threads at once */
    bool collapse;        /* pages of frames become huge ones by MADV_COLLAPSE, and should */
};

struct mp_frame {
    uint64_t handle; /* the backend's own; 0 is no frame */
    void *alias;
    uint64_t bytes;
    enum mp_tier_kind tier;
};

struct mp_backend;

/* A stream: a queue of copies between aliases, executed in order and in parallel with everything
 * else. It has MP_STREAM_EVENTS events, numbered from 0. Private to the backend. */
struct mp_stream;

#define MP_STREAM_EVENTS 8

/* Direction of a copy between tiers. */
enum mp_copy { MP_COPY_TO_DEVICE, MP_COPY_TO_HOST, MP_COPY_ON_DEVICE, MP_COPY_COUNT };

struct mp_backend_config {
    int numa_node; /* where host memory goes; -1: anywhere */
    bool huge_pages;
    unsigned device; /* number of the CUDA device, from 0 */

    /* host: alignment of aliases, a power of two; 0: a page. */
    uint64_t align_bytes;

    /* host: frames are parts of one memory file of this size, so that their pages can also be
     * mapped at other addresses (mp_backend_host_file()); align_bytes is then ignored. 0: anonymous
     * memory. */
    uint64_t memory_file_bytes;

    /* cuda: do not try to allocate memory by handle on a NUMA node, because the driver may crash
     * (engine/probe/probe.h tests it); host frames are then ordinary memory that the driver pins.
     */
    bool no_host_handles;
};

struct mp_backend_ops {
    const char *name;    /* "host"; as in MOEPAGER_BACKEND */
    const char *summary; /* one line, for `moepager info` */
    bool wrapper;        /* wraps another backend of a chain */

    /* Required. `inner` is the wrapped backend, which the wrapper then owns and closes; NULL for a
     * backend that wraps none. */
    enum mp_status (*open)(const struct mp_backend_config *config, struct mp_backend *inner,
                           struct mp_backend **backend_p);
    void (*close)(struct mp_backend *backend);

    /* Required. Free and total bytes of a tier. */
    enum mp_status (*memory_info)(struct mp_backend *backend, enum mp_tier_kind tier,
                                  uint64_t *free_bytes_p, uint64_t *total_bytes_p);

    /* Required. `bytes` is a multiple of the granule. MP_ERR_NO_SPACE: the tier has too little free
     * memory; nothing was allocated. The contents of a new frame are undefined. */
    enum mp_status (*frame_create)(struct mp_backend *backend, enum mp_tier_kind tier,
                                   uint64_t bytes, struct mp_frame *frame_p);
    void (*frame_destroy)(struct mp_backend *backend, struct mp_frame *frame);

    /*
     * Copies between the aliases of any two tiers; NULL if caps.file_target is set, because files
     * are then read directly into the device tier. One thread at a time may use a stream. Different
     * streams may be used in parallel, also with calls for frames and windows.
     *
     * stream_copy() queues a copy; source and destination must stay valid until an event recorded
     * after it has been reached. event_record() queues an event; event_wait() sleeps until the
     * stream has reached it, event_query() says whether it has. MP_ERR_DEVICE from either: a copy
     * queued before the event failed, or something else on the device did; nothing queued since the
     * last event that was reached counts as done. event_elapsed(): the time between two events that
     * were reached, by the device's clock. stream_close() waits for queued copies, unless the
     * device is lost.
     */
    enum mp_status (*stream_open)(struct mp_backend *backend, struct mp_stream **stream_p);
    void (*stream_close)(struct mp_backend *backend, struct mp_stream *stream);
    enum mp_status (*stream_copy)(struct mp_backend *backend, struct mp_stream *stream,
                                  enum mp_copy copy, void *dst, const void *src, uint64_t bytes);
    enum mp_status (*event_record)(struct mp_backend *backend, struct mp_stream *stream,
                                   unsigned event);
    enum mp_status (*event_wait)(struct mp_backend *backend, struct mp_stream *stream,
                                 unsigned event);
    enum mp_status (*event_query)(struct mp_backend *backend, struct mp_stream *stream,
                                  unsigned event, bool *reached_p);
    enum mp_status (*event_elapsed)(struct mp_backend *backend, struct mp_stream *stream,
                                    unsigned from, unsigned to, uint64_t *ns_p);

    /* Optional. True once the device is lost for good: every call then fails, and memory that was
     * passed to copies may still be in use. Any thread. */
    bool (*lost)(struct mp_backend *backend);

    /* Optional. Bytes of frames and addresses that could not be released; they are never reused.
     * Any thread. */
    uint64_t (*lost_bytes)(struct mp_backend *backend);

    /* Optional; NULL means true. True if the device can read all host frames created so far. */
    bool (*reads_host)(struct mp_backend *backend);

    /*
     * Windows, if caps.windows is set: addresses at which frames are mapped in addition to their
     * alias. Host frames are mapped for the CPU too (frames without a handle: MP_ERR_DEVICE).
     * `bytes` and places are multiples of alias_align_bytes. map: a whole frame, at a place where
     * nothing is mapped; MP_ERR_BUSY: mapping failed and could not be undone, so the place is lost.
     * unmap: exactly the range of one map; the caller guarantees that no pending work can touch it.
     * If unmap fails, the place is lost: it is counted, and the caller never maps there again.
     * window_free: nothing is mapped in the range, or what was is lost. One thread at a time; safe
     * in parallel with all other calls.
     */
    enum mp_status (*window_reserve)(struct mp_backend *backend, uint64_t bytes, void **address_p);
    void (*window_free)(struct mp_backend *backend, void *address, uint64_t bytes);
    enum mp_status (*window_map)(struct mp_backend *backend, void *place,
                                 const struct mp_frame *frame);
    enum mp_status (*window_unmap)(struct mp_backend *backend, void *place, uint64_t bytes);
};

/* Common head of every backend; the implementation embeds it as its first member. */
struct mp_backend {
    const struct mp_backend_ops *ops;
    struct mp_backend_caps caps;
};

/*
 * Open a chain such as "host", "trace:host" or "fault:trace:host"; the last name is the real
 * backend. MP_ERR_CONFIG for an unknown name, with the list of names.
 */
enum mp_status mp_backend_open(const char *chain, const struct mp_backend_config *config,
                               struct mp_backend **backend_p) MP_MUST_CHECK;

/* Close the whole chain. NULL is allowed. */
void mp_backend_close(struct mp_backend *backend);

/* Built-in backends and wrappers in the order in which they are listed; NULL-terminated. */
extern const struct mp_backend_ops *const mp_backends[];

extern const struct mp_backend_ops mp_backend_host;
extern const struct mp_backend_ops mp_backend_cuda;
extern const struct mp_backend_ops mp_backend_trace;
extern const struct mp_backend_ops mp_backend_fault;

/*
 * The memory file of a host backend that was opened with memory_file_bytes, and the offset in it of
 * `address`, an address inside a frame. -1: there is no memory file, or the address is not in it.
 * The backend owns the descriptor.
 */
int mp_backend_host_file(const struct mp_backend *backend, const void *address, uint64_t *offset_p);

/* Simulated memory without contents; only for spaces whose reader has a virtual link. Static, not
 * available in chains, needs no close. */
struct mp_backend *mp_backend_sim(void);

/*
 * Control of the fault wrapper: pass on the next `countdown` fallible calls, then fail one call
 * (`once`) or all later ones. countdown < 0 switches it off. Returns the number of calls since the
 * last set.
 */
uint64_t mp_backend_fault_set(struct mp_backend *fault_backend, int64_t countdown, bool once,
                              enum mp_status status);

#endif
