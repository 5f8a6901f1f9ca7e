/*
 * Hooks of the functions of ggml by which a program copies experts to a device itself: what it
 * reads to the host before (the router's ids), and the copies.
 */
#include "interpose/preload/preload.h"
#include "vmm/base/compiler.h"

#define SITE __builtin_return_address(0)

/* `real`: what is behind this hook for its caller. */
#define REAL(type, label, ...)                                                  \
    static struct mp_hooked hooked = { .name = #label, .hook = (void *)label }; \
    type (*const real)(__VA_ARGS__) = (type(*)(__VA_ARGS__))mp_preload_behind(&hooked, SITE)

/* The interposer, where something is paged. */
static const struct mp_interposer *paging(void)
{
    const struct mp_interposer *interposer = mp_preload_opened();

    return interposer != NULL &&
                   atomic_load_explicit(&mp_preload_span.end, memory_order_acquire) != 0
               ? interposer
               : NULL;
}

/* What the thread has begun to read, and has not waited for. */
static _Thread_local struct {
    const void *backend, *tensor, *data;
    size_t bytes;
} reading;

MOEPAGER_API void ggml_backend_tensor_get_async(void *backend, const void *tensor, void *data,
                                                size_t offset_bytes, size_t bytes);

void ggml_backend_tensor_get_async(void *backend, const void *tensor, void *data,
                                   size_t offset_bytes, size_t bytes)
{
    REAL(void, ggml_backend_tensor_get_async, void *, const void *, void *, size_t, size_t);

    if (real == NULL)
        return;
    real(backend, tensor, data, offset_bytes, bytes);
    reading.backend = offset_bytes == 0 && paging() != NULL ? backend : NULL;
    reading.tensor = tensor;
    reading.data = data;
    reading.bytes = bytes;
}

MOEPAGER_API void ggml_backend_tensor_get(const void *tensor, void *data, size_t offset_bytes,
                                          size_t bytes);

void ggml_backend_tensor_get(const void *tensor, void *data, size_t offset_bytes, size_t bytes)
{
    REAL(void, ggml_backend_tensor_get, const void *, void *, size_t, size_t);
    const struct mp_interposer *interposer = paging();

    if (real == NULL)
        return;
    real(tensor, data, offset_bytes, bytes);
    if (interposer != NULL && offset_bytes == 0)
        interposer->ids_read(SITE, tensor, data, bytes);
}

/* Where the thread has queued copies of experts, and not waited since. */
static _Thread_local const void *copying;

/* What was read is there now, and what was copied. */
MOEPAGER_API void ggml_backend_synchronize(void *backend);

void ggml_backend_synchronize(void *backend)
{
    REAL(void, ggml_backend_synchronize, void *);
    const struct mp_interposer *interposer = paging();

    if (real == NULL)
        return;
    real(backend);
    if (interposer != NULL && reading.backend == backend && backend != NULL)
        interposer->ids_read(SITE, reading.tensor, reading.data, reading.bytes);
    if (reading.backend == backend)
        reading.backend = NULL;
    if (interposer != NULL && copying == backend && backend != NULL)
        interposer->synchronized(backend, false);
    if (copying == backend)
        copying = NULL;
}

typedef void set_async_fn(void *backend, void *tensor, const void *data, size_t offset_bytes,
                          size_t bytes);

struct setting {
    set_async_fn *real;
    void *backend, *tensor;
    size_t offset_bytes;
};

static void set_part(void *ctx, const void *from, size_t at, size_t bytes)
{
    const struct setting *setting = ctx;

    setting->real(setting->backend, setting->tensor, from, setting->offset_bytes + at, bytes);
}

MOEPAGER_API void ggml_backend_tensor_set_async(void *backend, void *tensor, const void *data,
                                                size_t offset_bytes, size_t bytes);

void ggml_backend_tensor_set_async(void *backend, void *tensor, const void *data,
                                   size_t offset_bytes, size_t bytes)
{
    REAL(void, ggml_backend_tensor_set_async, void *, void *, const void *, size_t, size_t);
    const struct mp_interposer *interposer = paging();
    struct setting setting = { real, backend, tensor, offset_bytes };
    const struct mp_copy_call copy = { backend, data, bytes, set_part, &setting };

    if (real == NULL)
        return;
    if (interposer != NULL && mp_paged_span_touches(&mp_preload_span, data, bytes)) {
        copying = backend;
        if (interposer->copy(SITE, &copy))
            return;
    }
    real(backend, tensor, data, offset_bytes, bytes);
}

MOEPAGER_API void ggml_backend_free(void *backend);

void ggml_backend_free(void *backend)
{
    REAL(void, ggml_backend_free, void *);
    const struct mp_interposer *interposer = paging();

    if (real == NULL)
        return;
    if (interposer != NULL && backend != NULL)
        interposer->synchronized(backend, true);
    real(backend);
}

/*
 * Called for each host weight of a part of the graph that another backend computes. Where the
 * program's own callback does not copy what is needed, the scheduler copies all of it.
 */
typedef bool copy_callback(void *backend, const void *src, void *dst, void *graph, void *data);

#define SCHEDULERS_MAX 64

struct chained {
    _Atomic(void *) sched; /* NULL: free */
    copy_callback *own;
    void *data;
};

static struct chained places[SCHEDULERS_MAX];

/* NULL: there are too many. */
static struct chained *place_of(void *sched)
{
    for (size_t i = 0; i < SCHEDULERS_MAX; i++) {
        void *known = NULL;

        if (atomic_compare_exchange_strong(&places[i].sched, &known, sched) || known == sched)
            return &places[i];
    }
    return NULL;
}

void mp_preload_forget_copies(void *scheduler)
{
    for (size_t i = 0; i < SCHEDULERS_MAX; i++) {
        void *known = scheduler;

        (void)atomic_compare_exchange_strong(&places[i].sched, &known, NULL);
    }
}

static bool copied(void *backend, const void *src, void *dst, void *graph, void *data)
{
    const struct chained *chained = data;
    const bool done = chained->own(backend, src, dst, graph, chained->data);
    const struct mp_interposer *interposer = paging();

    if (!done && interposer != NULL)
        interposer->whole((const void *)chained->own, src);
    return done;
}

MOEPAGER_API void ggml_backend_sched_set_copy_callback(void *sched, copy_callback *callback,
                                                       void *data);

void ggml_backend_sched_set_copy_callback(void *sched, copy_callback *callback, void *data)
{
    REAL(void, ggml_backend_sched_set_copy_callback, void *, copy_callback *, void *);
    struct chained *chained = NULL;

    if (real == NULL)
        return;
    if (callback != NULL && paging() != NULL)
        chained = place_of(sched);
    if (chained == NULL) {
        real(sched, callback, data);
        return;
    }
    chained->own = callback;
    chained->data = data;
    real(sched, copied, chained);
}
