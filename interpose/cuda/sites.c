/*
 * Allocation sites, by unwinding.
 */
#define UNW_LOCAL_ONLY
#include <libunwind.h>

#include <dlfcn.h>
#include <string.h>

#include "interpose/cuda/sites.h"
#include "vmm/base/compiler.h"
#include "vmm/base/lock.h"

#define DEPTH 24
#define SITES_MAX 1024

/* What registers memory, maps it in other processes, or reads it over a network. */
static const char *const left_alone[] = {
    "libnccl", "libnvshmem", "libcufile",  "libucp",    "libuct",    "libucs",
    "libmpi",  "libibverbs", "libmscclpp", "libgdrapi", "libfabric",
};

static struct mp_mutex lock = MP_MUTEX_INIT(MP_LOCK_LEAF, "sites");
static struct site {
    uint64_t number;
    const char *library;
} sites[SITES_MAX] MP_GUARDED_BY(lock);

static const char *library_of(void *address)
{
    Dl_info info;
    const char *name;

    if (dladdr(address, &info) == 0 || info.dli_fname == NULL)
        return NULL;
    name = strrchr(info.dli_fname, '/');
    name = name != NULL ? name + 1 : info.dli_fname;
    for (size_t i = 0; i < MP_ARRAY_LEN(left_alone); i++) {
        if (strncmp(name, left_alone[i], strlen(left_alone[i])) == 0)
            return left_alone[i];
    }
    return NULL;
}

uint64_t mp_site_look(bool *left_alone_p, const char **library_p)
{
    void *addresses[DEPTH];
    const int count = unw_backtrace(addresses, DEPTH);
    uint64_t number = 0xcbf29ce484222325u;
    const char *library = NULL;
    struct site *site;
    bool known;

    *left_alone_p = false;
    *library_p = NULL;
    if (count <= 0)
        return 0;
    for (int i = 0; i < count; i++)
        number = (number ^ (uintptr_t)addresses[i]) * 0x100000001b3u;
    number |= 1;
    site = &sites[(number >> 32) % SITES_MAX];
    mp_lock(&lock);
    known = site->number == number;
    library = known ? site->library : NULL;
    mp_unlock(&lock);
    for (int i = 0; i < count && !known && library == NULL; i++)
        library = library_of(addresses[i]);
    mp_lock(&lock);
    *site = (struct site){ number, library };
    mp_unlock(&lock);
    *left_alone_p = library != NULL;
    *library_p = library;
    return number;
}
