/*
 * What hooks call: allocations, copies, launches, waits.
 *
 * An allocation that fits into the budget of its device is the program's own. What does not fit is
 * a window: its units lie on the device as far as the budget goes, the rest in host memory, at the
 * addresses that the program got. When the device is found idle after a wait, units that are
 * worth more on the device change places with others.
 */
#include "interpose/cuda/gpu.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "interpose/cuda/gpu_state.h"
#include "interpose/cuda/identity.h"
#include "interpose/cuda/objects.h"
#include "interpose/cuda/sites.h"
#include "interpose/cuda/work.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/options/log_options.h"

/* Smaller copies are not looked up: no expert is that small. */
#define IDENTITY_BYTES_MIN 4096u

/* Weights have come to a window since the last wait: what it holds is not known before the last
 * has. Relaxed: late is early enough. */
static _Atomic(bool) loading;

static pid_t process; /* that began; 0: none did */

static _Atomic(const char *) aside; /* why no window is made any more, or NULL */

static bool start(void)
{
    static struct mp_log_config log;

    mp_opt_load(mp_log_opts, "MOEPAGER_", &log);
    mp_log_init(&log);
    mp_opt_load(mp_gpu_window_opts, "MOEPAGER_", &mp_gpu_config);
    process = getpid();
    return true;
}

static uint64_t bytes_min(void)
{
    return mp_gpu_config.window_bytes;
}

static void stand_aside(const char *why)
{
    const char *none = NULL;

    if (atomic_compare_exchange_strong(&aside, &none, why))
        mp_log_warn("gpu", "no windows are made from now on: %s", why);
}

/* ---- allocations */

static bool is_left_alone(void)
{
    const char *library;
    bool left_alone;

    if (atomic_load(&aside) != NULL || mp_work_is_captured())
        return true;
    (void)mp_site_look(&left_alone, &library);
    if (left_alone)
        mp_log_once(MP_LOG_INFO, "gpu", "what %s allocates is left alone", library);
    return left_alone;
}

static bool make_window(struct mp_gpu_device *gpu, uint64_t bytes, void **address_p)
{
    const uint64_t taken = atomic_load_explicit(&gpu->taken_bytes, memory_order_relaxed);
    uint64_t device_room, host_room, budget;
    enum mp_status status;

    /* Two units always: one to be spare, and one that it can change places with. */
    mp_tiers_room(gpu->tiers, &device_room, &host_room);
    budget = gpu->budget_bytes > taken ? gpu->budget_bytes - taken : 0;
    if (budget < 2 * gpu->unit_bytes)
        budget = 2 * gpu->unit_bytes;
    mp_tiers_set_device_budget(gpu->tiers, budget);
    status = mp_tiers_reserve(gpu->tiers, bytes, address_p);
    if (status != MP_OK) {
        mp_log_once(MP_LOG_WARN, "gpu",
                    "an allocation of %" PRIu64 " bytes is left to the program: %s; the host "
                    "budget has %" PRIu64 " bytes left, raise MOEPAGER_GPU_HOST_BUDGET",
                    bytes,
                    status == MP_ERR_NO_SPACE && mp_error_last()->text[0] == '\0'
                        ? "both budgets together do not hold it"
                        : mp_error_last()->text,
                    host_room);
        return false;
    }
    mp_log_debug("gpu", "a window of %" PRIu64 " bytes at %p", bytes, *address_p);
    return true;
}

static bool fits(struct mp_gpu_device *gpu, uint64_t bytes)
{
    const uint64_t taken = atomic_load_explicit(&gpu->taken_bytes, memory_order_relaxed);
    struct mp_tiers_stats stats;
    uint64_t used;

    mp_tiers_get_stats(gpu->tiers, &stats);
    used = taken + stats.device_units * gpu->unit_bytes;
    return used <= gpu->budget_bytes && bytes <= gpu->budget_bytes - used;
}

static bool allocate(int device, uint64_t bytes, bool failed, void **address_p)
{
    const struct mp_error before = *mp_error_last();
    struct mp_gpu_context kept;
    struct mp_gpu_device *gpu;
    bool made = false;

    if (is_left_alone())
        return false;
    mp_gpu_context_keep(&kept);
    mp_error_clear();
    gpu = mp_gpu_device_open(device);
    if (gpu != NULL && (failed || !fits(gpu, bytes)))
        made = make_window(gpu, bytes, address_p);
    mp_error_set(&before);
    mp_gpu_context_restore(&kept);
    return made;
}

static bool manages(void)
{
    return mp_gpu_config.managed != 0 && atomic_load(&aside) == NULL;
}

static bool holds(const void *address)
{
    return mp_gpu_device_holding(address) != NULL;
}

/* An address within a window is no begin; freeing it is the program's error, and the driver's to
 * report. */
static int owner(const void *address)
{
    struct mp_gpu_device *gpu = mp_gpu_device_holding(address);

    return gpu != NULL && mp_tiers_is_begin(gpu->tiers, address) ? gpu->number : -1;
}

static void release(const void *address)
{
    struct mp_gpu_device *gpu = mp_gpu_device_holding(address);
    struct mp_gpu_context kept;

    if (gpu == NULL)
        return;
    mp_gpu_context_keep(&kept);
    mp_work_close();
    mp_objects_forget((uintptr_t)address, mp_tiers_window_bytes(gpu->tiers, address));
    (void)mp_tiers_free(gpu->tiers, address);
    mp_work_go();
    mp_gpu_context_restore(&kept);
}

static void say(struct mp_gpu_device *gpu, void *ctx)
{
    struct mp_tiers_stats stats;

    (void)ctx;
    mp_tiers_get_stats(gpu->tiers, &stats);
    mp_log_info("gpu",
                "windows %" PRIu64 " made %" PRIu64 " units %" PRIu64 " on the device %" PRIu64
                " moves %" PRIu64 " bytes %" PRIu64 " failed %" PRIu64 " refused %" PRIu64
                " touches %" PRIu64,
                stats.windows, stats.made, stats.units, stats.device_units, stats.moves,
                stats.moved_bytes, stats.failed_moves, stats.refused, stats.touches);
}

/* What is under way there ends. A device's context is the same for all who have it. */
static void forget_work(int device)
{
    const struct mp_cuda *cuda = NULL;
    mp_cu_context context = NULL;
    const bool alone = mp_cuda_get(&cuda) == MP_OK && cuda->devices == 1;
    const bool known =
        !alone && cuda != NULL && cuda->call.context_retain(&context, device) == MP_CU_SUCCESS;

    mp_work_forget(known ? context : NULL, alone);
    if (known)
        (void)cuda->call.context_release(device);
}

static void reset(int device)
{
    struct mp_gpu_device *gpu = mp_gpu_device_at(device);
    const struct mp_error before = *mp_error_last();
    struct mp_gpu_context kept;

    mp_gpu_context_keep(&kept);
    mp_work_close();
    if (gpu != NULL)
        say(gpu, NULL);
    mp_gpu_device_end(device);
    forget_work(device);
    mp_work_go();
    mp_gpu_context_restore(&kept);
    mp_error_set(&before);
}

static void memory_info(int device, size_t *free_bytes, size_t *total_bytes)
{
    struct mp_gpu_device *gpu = mp_gpu_device_open(device);
    uint64_t device_room, host_room;

    if (gpu == NULL || atomic_load(&aside) != NULL)
        return;
    mp_tiers_room(gpu->tiers, &device_room, &host_room);
    if (free_bytes != NULL)
        *free_bytes += host_room;
    if (total_bytes != NULL)
        *total_bytes += gpu->host_bytes;
}

/* ---- what lies where, and what is touched */

static void mark(struct mp_gpu_device *gpu, void *ctx)
{
    const struct mp_object *object = ctx;

    mp_tiers_mark(gpu->tiers, (const void *)object->begin, object->bytes, object->kind);
}

static void note_object(void *ctx, const struct mp_object *object)
{
    struct mp_object copy = *object;

    (void)ctx;
    mp_gpu_each(mark, &copy);
}

static void note_source(void *ctx, char *dst, uint64_t bytes, enum mp_tiers_kind kind,
                        uint64_t stride)
{
    const struct mp_object object = {
        .begin = (uintptr_t)dst, .bytes = bytes, .kind = kind, .stride = stride
    };

    (void)mp_objects_add(&object);
    note_object(ctx, &object);
    if (mp_gpu_device_holding(dst) != NULL)
        atomic_store_explicit(&loading, true, memory_order_relaxed);
}

struct touch {
    const void *address;
    uint64_t bytes;
};

static void touch_one(struct mp_gpu_device *gpu, void *ctx)
{
    const struct touch *touch = ctx;

    mp_tiers_touch(gpu->tiers, touch->address, touch->bytes);
}

static void pin_one(struct mp_gpu_device *gpu, void *ctx)
{
    const struct touch *touch = ctx;

    mp_tiers_pin(gpu->tiers, touch->address, touch->bytes);
}

static void copies(const struct mp_gpu_copy *copy)
{
    struct touch dst = { copy->dst, copy->bytes }, src = { copy->src, copy->bytes };
    const struct mp_error before = *mp_error_last();

    if (copy->bytes >= IDENTITY_BYTES_MIN && copy->src != NULL) {
        if (copy->from_host)
            mp_identity_find(copy->src, copy->bytes, copy->dst, note_source, NULL);
        else
            mp_objects_copy((uintptr_t)copy->dst, (uintptr_t)copy->src, copy->bytes, note_object,
                            NULL);
    }
    if (copy->src != NULL)
        mp_gpu_each(touch_one, &src);
    /* A graph that is launched later may remember what memory it copied from and to. */
    if (mp_work_is_captured()) {
        mp_gpu_each(pin_one, &dst);
        mp_gpu_each(pin_one, &src);
    }
    mp_error_set(&before);
}

static uint64_t part(const struct mp_gpu_copy *copy, uint64_t done)
{
    const void *sides[2] = { (const char *)copy->dst + done,
                             copy->src != NULL ? (const char *)copy->src + done : NULL };
    uint64_t bytes = copy->bytes - done;

    for (int s = 0; s < 2; s++) {
        struct mp_gpu_device *gpu = sides[s] != NULL ? mp_gpu_device_holding(sides[s]) : NULL;
        uint64_t run = bytes;

        if (gpu == NULL)
            continue;
        (void)mp_tiers_run(gpu->tiers, sides[s], bytes, &run);
        bytes = run < bytes ? run : bytes;
    }
    return bytes;
}

/* A kernel that is given the begin of all experts of a layer reads few of them, and nobody here
 * knows which; one that is given an expert reads that, and one that is given another tensor all of
 * it. */
static void touch_address(uintptr_t address)
{
    struct touch touch = { (const void *)address, 1 };
    struct mp_object object;

    if (mp_objects_find(address, &object)) {
        const uint64_t at = address - object.begin;

        if (object.stride == 0 || object.stride >= object.bytes)
            touch.bytes = object.bytes - at;
        else if (at == 0)
            return;
        else if (at % object.stride == 0)
            touch.bytes = object.stride;
    }
    mp_gpu_each(touch_one, &touch);
}

static void parameter(const void *data, size_t bytes)
{
    mp_work_sees_driver();
    for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
        uintptr_t word;

        memcpy(&word, (const char *)data + at, sizeof(word));
        if (word != 0 && mp_gpu_device_holding((const void *)word) != NULL)
            touch_address(word);
    }
}

/* ---- waits */

struct wants {
    bool any;
};

static void ask_wants(struct mp_gpu_device *gpu, void *ctx)
{
    struct wants *wants = ctx;

    wants->any |= mp_tiers_wants(gpu->tiers);
}

static void move(struct mp_gpu_device *gpu, void *ctx)
{
    (void)ctx;
    (void)mp_tiers_move(gpu->tiers, (unsigned)mp_gpu_config.moves);
}

static void waited(const struct mp_gpu_wait *wait, bool all, void *stream,
                   enum mp_gpu_default meaning)
{
    const struct mp_error before = *mp_error_last();
    struct wants wants = { false };
    struct mp_gpu_context kept;

    mp_work_waited(wait, all, stream, meaning);
    mp_gpu_each(ask_wants, &wants);
    if (!wants.any || mp_gpu_config.moves == 0 ||
        atomic_exchange_explicit(&loading, false, memory_order_relaxed))
        return;
    mp_gpu_context_keep(&kept);
    if (kept.known && kept.context != NULL && mp_work_stop()) {
        mp_gpu_each(move, NULL);
        mp_work_go();
    }
    mp_gpu_context_restore(&kept);
    mp_error_set(&before);
}

/* ---- the end */

/* The driver may be gone by now: nothing is given back. A child that was forked has no windows, and
 * locks that threads held which it does not have. */
__attribute__((destructor)) static void end(void)
{
    if (getpid() == process)
        mp_gpu_each(say, NULL);
}

const struct mp_gpu_interposer mp_gpu_interposer_table = {
    .abi = MP_GPU_ABI,
    .start = start,
    .bytes_min = bytes_min,
    .allocate = allocate,
    .took = mp_gpu_taken_add,
    .manages = manages,
    .owner = owner,
    .release = release,
    .holds = holds,
    .gives = mp_gpu_taken_remove,
    .reset = reset,
    .memory_info = memory_info,
    .begin = mp_work_begin,
    .end = mp_work_end,
    .copies = copies,
    .part = part,
    .parameter = parameter,
    .stream_made = mp_work_stream_made,
    .stream_ends = mp_work_stream_ends,
    .capture = mp_work_capture,
    .wait_begins = mp_work_wait_begins,
    .waited = waited,
    .unmapped = mp_identity_unmapped,
    .stand_aside = stand_aside,
};
