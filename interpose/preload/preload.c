/*
 * The start of libmoepager_preload.so, and what opens the interposer beside it.
 */
#include "interpose/preload/preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/auxv.h>

#include "vmm/base/compiler.h"
#include "vmm/base/log.h"
#include "vmm/options/opt.h"

#define INTERPOSER_NAME "libmoepager_interpose.so"

struct mp_paged_span mp_preload_span;

struct preload_config {
    char budget[64];
};

static const struct mp_opt preload_opts[] = {
    MP_OPT_TEXT("BUDGET", struct preload_config, budget, "", "RAM for experts; empty: no paging."),
    MP_OPT_END,
};

static bool is_on;
static _Atomic(const struct mp_interposer *) interposer;

/* A privileged program is left alone. The environment is looked at once, here. */
__attribute__((constructor)) static void start(void)
{
    struct preload_config config;

    mp_preload_find_real();
    if (getauxval(AT_SECURE) != 0)
        return;
    mp_opt_load(preload_opts, "MOEPAGER_", &config);
    is_on = config.budget[0] != '\0';
}

bool mp_preload_is_on(void)
{
    return is_on;
}

const struct mp_interposer *mp_preload_opened(void)
{
    return atomic_load_explicit(&interposer, memory_order_acquire);
}

/* The interposer lies beside this library. RTLD_LOCAL: nothing of it is seen by the program. */
static void *open_library(void)
{
    char path[PATH_MAX];
    const char *slash;
    Dl_info info;
    void *handle;
    size_t bytes;

    if (dladdr(&mp_preload_span, &info) == 0 || info.dli_fname == NULL)
        return NULL;
    slash = strrchr(info.dli_fname, '/');
    bytes = slash == NULL ? 0 : (size_t)(slash + 1 - info.dli_fname);
    if (bytes + sizeof(INTERPOSER_NAME) > sizeof(path))
        return NULL;
    memcpy(path, info.dli_fname, bytes);
    memcpy(path + bytes, INTERPOSER_NAME, sizeof(INTERPOSER_NAME));
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        mp_log_warn("preload", "experts are not paged: %s", dlerror());
    return handle;
}

void *mp_preload_symbol(const char *name)
{
    void *handle = open_library();

    return handle != NULL ? dlsym(handle, name) : NULL;
}

static const struct mp_interposer *find_interposer(void)
{
    const struct mp_interposer *const *opened = mp_preload_symbol(MP_INTERPOSE_SYMBOL);

    if (opened != NULL && (*opened)->abi == MP_INTERPOSE_ABI)
        return *opened;
    if (opened != NULL)
        mp_log_warn("preload", "experts are not paged: %s is of another version", INTERPOSER_NAME);
    return NULL;
}

static void open_once(void)
{
    const struct mp_interposer *opened = find_interposer();
    const struct mp_host host = {
        .real = mp_preload_real,
        .span = &mp_preload_span,
        .find = mp_preload_find,
    };

    if (opened != NULL && opened->start(&host))
        atomic_store_explicit(&interposer, opened, memory_order_release);
}

const struct mp_interposer *mp_preload_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (!is_on)
        return NULL;
    pthread_once(&once, open_once);
    return mp_preload_opened();
}
