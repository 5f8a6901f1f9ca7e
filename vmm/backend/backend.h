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
 * Granule, alignment, layouts, limits and abilities are in `caps` and are asked for, never assumed.
 * Wrappers (trace:, fault:) are backends that pass calls on; MOEPAGER_BACKEND=trace:host names a
 * chain. Callers serialise calls on one backend, except where an operation says otherwise.
 */
enum mp_tier_kind { MP_TIER_DEVICE, MP_TIER_HOST, MP_TIER_FILE, MP_TIER_KIND_COUNT };

const char *mp_tier_kind_name(enum mp_tier_kind kind);

/* How the pieces of a unit stand in a slot; see vmm/space/space.h. */
enum mp_layout { MP_LAYOUT_FILE, MP_LAYOUT_PACKED, MP_LAYOUT_COUNT };

struct mp_backend_caps {
    uint64_t granule_bytes;     /* frame sizes are multiples; a power of two */
    uint64_t alias_align_bytes; /* every alias is a multiple; a power of two >= 4096 */
    uint64_t frame_bytes_max;
    uint32_t frames_max;
    unsigned tiers;       /* bit (1 << kind): frames can be made in this tier */
    unsigned layouts;     /* bit (1 << layout): compute accepts it */
    bool cpu_access;      /* the CPU may read and write through aliases */
    bool file_target;     /* files may be read straight into device aliases */
    bool windows;         /* window_*() work: a unit can have an address of its own for life */
    bool parallel_frames; /* frame_create() may be called by several threads at once */
};

struct mp_frame {
    uint64_t handle; /* the backend's own; 0 is no frame */
    void *alias;
    uint64_t bytes;
    enum mp_tier_kind tier;
};

struct mp_backend;

/* A stream: a queue of copies between aliases, done in order beside everything else. It has
 * MP_STREAM_EVENTS events, numbered from 0. The backend's own. */
struct mp_stream;

#define MP_STREAM_EVENTS 8

/* From which tier to which a copy goes. */
enum mp_copy { MP_COPY_TO_DEVICE, MP_COPY_TO_HOST, MP_COPY_ON_DEVICE, MP_COPY_COUNT };

struct mp_backend_config {
    int numa_node; /* where host memory goes; -1: anywhere */
    bool huge_pages;
    unsigned device; /* number of the CUDA device, from 0 */

    /* host: aliases are multiples of this; a power of two, 0: of a page. */
    uint64_t align_bytes;

    /* host: frames are parts of one memory file with room for so many bytes, so that their pages
     * can be mapped at other addresses too (mp_backend_host_file()); huge_pages and align_bytes
     * say nothing then. 0: anonymous memory. */
    uint64_t memory_file_bytes;

    /* cuda: memory by handle on a NUMA node is not even tried, because the driver may break down in
     * it (engine/probe/probe.h finds out); host frames are memory of ours that it pins. */
    bool no_host_handles;
};

struct mp_backend_ops {
    const char *name;    /* "host"; as in MOEPAGER_BACKEND */
    const char *summary; /* one line, for `moepager info` */
    bool wrapper;        /* stands before another backend in a chain */

    /* Required. `inner` is the wrapped backend for wrappers (owned from then on, also closed by
     * close) and NULL for others. */
    enum mp_status (*open)(const struct mp_backend_config *config, struct mp_backend *inner,
                           struct mp_backend **backend_p);
    void (*close)(struct mp_backend *backend);

    /* Required. Bytes that a tier could still give, and has in all. */
    enum mp_status (*memory_info)(struct mp_backend *backend, enum mp_tier_kind tier,
                                  uint64_t *free_bytes_p, uint64_t *total_bytes_p);

    /* Required. `bytes` is a multiple of the granule. MP_ERR_NO_SPACE: the tier cannot give that
     * much; nothing was kept. A frame's contents are undefined until something is copied in. */
    enum mp_status (*frame_create)(struct mp_backend *backend, enum mp_tier_kind tier,
                                   uint64_t bytes, struct mp_frame *frame_p);
    void (*frame_destroy)(struct mp_backend *backend, struct mp_frame *frame);

    /*
     * Copies; NULL where caps.file_target says that files are read into the device tier. A stream
     * is used by one thread at a time, several streams by several threads, also beside calls for
     * frames and windows. Between the aliases of any two tiers.
     *
     * stream_copy() queues; what it was given stays as it is until an event recorded behind it was
     * waited for. event_record() puts an event behind all that was queued; event_wait() blocks
     * until the stream has reached it. MP_ERR_DEVICE from wait: a copy queued before it failed, or
     * something else on the device did; nothing queued since the last good wait counts as done.
     * stream_close() waits for what is queued, unless the device is lost.
     */
    enum mp_status (*stream_open)(struct mp_backend *backend, struct mp_stream **stream_p);
    void (*stream_close)(struct mp_backend *backend, struct mp_stream *stream);
    enum mp_status (*stream_copy)(struct mp_backend *backend, struct mp_stream *stream,
                                  enum mp_copy copy, void *dst, const void *src, uint64_t bytes);
    enum mp_status (*event_record)(struct mp_backend *backend, struct mp_stream *stream,
                                   unsigned event);
    enum mp_status (*event_wait)(struct mp_backend *backend, struct mp_stream *stream,
                                 unsigned event);

    /* Optional: has the device been lost for good? Then every call fails, and nobody knows what of
     * the memory that copies were given is still in use. From any thread. */
    bool (*lost)(struct mp_backend *backend);

    /* Optional. Bytes of frames and addresses that could not be given back, and are not used again.
     * From any thread. */
    uint64_t (*lost_bytes)(struct mp_backend *backend);

    /* Optional, NULL: yes. Can the device read all host frames that were made so far? */
    bool (*reads_host)(struct mp_backend *backend);

    /*
     * Windows, with caps.windows: addresses at which frames are mapped besides their alias, those
     * of the host for the CPU too (but not frames without a handle: MP_ERR_DEVICE). `bytes` and
     * places are multiples of alias_align_bytes. map: where nothing is mapped, a whole frame;
     * MP_ERR_BUSY: it failed and could not be undone either, so the place is lost. unmap: exactly
     * what one map covered; the caller knows that no work that could touch it is unfinished. When
     * an unmap fails the place is lost: it is counted and never mapped again by the caller.
     * window_free: nothing is mapped any more, or was lost. Safe beside all other calls, one thread
     * at a time.
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

/* Built-in backends and wrappers in listing order; NULL-terminated. */
extern const struct mp_backend_ops *const mp_backends[];

extern const struct mp_backend_ops mp_backend_host;
extern const struct mp_backend_ops mp_backend_cuda;
extern const struct mp_backend_ops mp_backend_trace;
extern const struct mp_backend_ops mp_backend_fault;

/*
 * The memory file of a host backend that was opened with memory_file_bytes, and where in it the
 * byte at `address` lies, which is an alias or inside of a frame. -1: it has none, or that is not
 * in it. The descriptor is the backend's.
 */
int mp_backend_host_file(const struct mp_backend *backend, const void *address, uint64_t *offset_p);

/* Simulated memory that holds nothing; only for spaces whose reader has a virtual link. Static, in
 * no chain, needs no close. */
struct mp_backend *mp_backend_sim(void);

/*
 * The fault wrapper's control: let the next `countdown` calls that can fail pass, then fail one
 * (once) or all from then on. countdown < 0 switches it off. Returns calls counted since the last
 * set.
 */
uint64_t mp_backend_fault_set(struct mp_backend *fault_backend, int64_t countdown, bool once,
                              enum mp_status status);

#endif
