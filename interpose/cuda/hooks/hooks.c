/*
 * What stands behind a hook of the runtime, and when the interposer is opened.
 *
 * Programs call from thousands of places (each kernel's stub is one), so what was found for a place
 * is kept in a table; a place that finds the table full is looked up each time.
 */
#include "interpose/cuda/hooks/hooks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "interpose/preload/preload.h"
#include "vmm/base/compiler.h"
#include "vmm/base/log.h"
#include "vmm/options/opt.h"

#define PLACES 16384u
#define PROBES 16u

static struct {
    _Atomic(uintptr_t) key; /* of a place and a function; 0: free. Release after `real` */
    _Atomic(void *) real;
} places[PLACES];

static _Thread_local unsigned depth;
static _Atomic(const struct mp_gpu_interposer *) active;

static const char *const names[] = {
#define X(name) #name,
    MP_RT_HOOK_MAP(X)
#undef X
};

static void *const hooks[] = {
#define X(name) (void *)name,
    MP_RT_HOOK_MAP(X)
#undef X
};

void *mp_hook_find(const void *site, const char *name)
{
    return mp_preload_find(site, name);
}

static bool are_in_one_module(const void *a, const void *b)
{
    Dl_info of_a, of_b;

    return a != NULL && dladdr(a, &of_a) != 0 && dladdr(b, &of_b) != 0 &&
           of_a.dli_fbase == of_b.dli_fbase;
}

/* A caller that has a function of that name itself is another preloaded library, which has handed
 * the call on: it must not get it back. */
static void *find(enum mp_rt_hook hook, const void *site)
{
    void *found;

    mp_hook_enter(); /* no lookup of ours finds a hook */
    found = mp_preload_find_behind(site, names[hook], hooks[hook]);
    if (are_in_one_module(found, site))
        found = dlsym(RTLD_NEXT, names[hook]);
    mp_hook_leave();
    return are_in_one_module(found, site) ? NULL : found;
}

void *mp_hook_behind(enum mp_rt_hook hook, const void *site)
{
    const uintptr_t key = ((uintptr_t)site * 64 + hook) | 1;
    const size_t first = (size_t)((key * 0x9e3779b97f4a7c15u) >> 40);
    void *real;

    for (unsigned p = 0; p < PROBES; p++) {
        const size_t at = (first + p) % PLACES;
        uintptr_t known = atomic_load_explicit(&places[at].key, memory_order_acquire);

        if (known == key) {
            real = atomic_load_explicit(&places[at].real, memory_order_acquire);
            return real != NULL ? real : find(hook, site);
        }
        if (known != 0)
            continue;
        real = find(hook, site);
        if (real != NULL && atomic_compare_exchange_strong(&places[at].key, &known, key))
            atomic_store_explicit(&places[at].real, real, memory_order_release);
        return real;
    }
    return find(hook, site);
}

/* ---- the interposer */

static bool is_wanted(void)
{
    struct {
        char budget[64];
    } config;
    const struct mp_opt opts[] = {
        { .name = "GPU_BUDGET",
          .dfl = "auto",
          .kind = MP_OPT_STRING,
          .max = sizeof(config.budget) },
        MP_OPT_END,
    };

    mp_opt_load(opts, "MOEPAGER_", &config);
    return config.budget[0] != '\0' && strcmp(config.budget, "auto") != 0;
}

/* A child that was forked cannot use the device. */
static void in_child(void)
{
    atomic_store(&active, NULL);
    depth = 0;
}

static void open_once(void)
{
    const struct mp_gpu_interposer *const *opened;

    if (!is_wanted())
        return;
    opened = mp_preload_symbol(MP_GPU_SYMBOL);
    if (opened == NULL || (*opened)->abi != MP_GPU_ABI) {
        mp_log_warn("gpu", "nothing is done for the device: the interposer is of another version");
        return;
    }
    if ((*opened)->start() && pthread_atfork(NULL, NULL, in_child) == 0)
        atomic_store_explicit(&active, *opened, memory_order_release);
}

const struct mp_gpu_interposer *mp_hook_gpu_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (depth > 0)
        return NULL;
    mp_hook_enter();
    pthread_once(&once, open_once);
    mp_hook_leave();
    return mp_hook_gpu();
}

const struct mp_gpu_interposer *mp_hook_gpu(void)
{
    return depth > 0 ? NULL : atomic_load_explicit(&active, memory_order_acquire);
}

const struct mp_gpu_interposer *mp_hook_gpu_nested(void)
{
    return atomic_load_explicit(&active, memory_order_acquire);
}

void mp_hook_unmapped(size_t bytes)
{
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_nested();

    if (gpu != NULL && bytes >= MP_GPU_UNMAPPED_MIN)
        gpu->unmapped();
}

void mp_hook_enter(void)
{
    depth++;
}

void mp_hook_leave(void)
{
    depth--;
}

bool mp_hook_is_nested(void)
{
    return depth > 0;
}
