/*
 * Finds the functions that stand behind hooks.
 *
 * For libc the next one in the global order (RTLD_NEXT), which may be another preloaded library's.
 * That misses modules that were opened with RTLD_LOCAL, as ggml's backends are: their calls come to
 * us all the same, because the global order is searched first. There the caller's own module is
 * asked, which stands for itself and all that it was linked with.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/preload/preload.h"
#include "vmm/base/compiler.h"

static void *call_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
}

static int call_munmap(void *at, size_t bytes)
{
    return (int)syscall(SYS_munmap, at, bytes);
}

static void *call_mremap(void *at, size_t bytes, size_t new_bytes, int flags, void *new_at)
{
    return (void *)syscall(SYS_mremap, at, bytes, new_bytes, flags, new_at);
}

static int call_mprotect(void *at, size_t bytes, int prot)
{
    return (int)syscall(SYS_mprotect, at, bytes, prot);
}

static int call_madvise(void *at, size_t bytes, int advice)
{
    return (int)syscall(SYS_madvise, at, bytes, advice);
}

static int call_mlock(const void *at, size_t bytes)
{
    return (int)syscall(SYS_mlock, at, bytes);
}

static int call_mlock2(const void *at, size_t bytes, unsigned flags)
{
    return (int)syscall(SYS_mlock2, at, bytes, flags);
}

static int call_execve(const char *path, char *const argv[], char *const envp[])
{
    return (int)syscall(SYS_execve, path, argv, envp);
}

static int call_execvpe(const char *file, char *const argv[], char *const envp[])
{
    return call_execve(file, argv, envp); /* before libc's is known, without a search */
}

static int call_execv(const char *path, char *const argv[])
{
    return call_execve(path, argv, environ);
}

static int call_execveat(int fd, const char *path, char *const argv[], char *const envp[],
                         int flags)
{
    return (int)syscall(SYS_execveat, fd, path, argv, envp, flags);
}

static int call_fexecve(int fd, char *const argv[], char *const envp[])
{
    return call_execveat(fd, "", argv, envp, AT_EMPTY_PATH);
}

/* Constructors of other libraries may map memory before ours has run. */
struct mp_real mp_preload_real = {
    .mmap = call_mmap,
    .munmap = call_munmap,
    .mremap = call_mremap,
    .mprotect = call_mprotect,
    .madvise = call_madvise,
    .mlock = call_mlock,
    .mlock2 = call_mlock2,
    .execve = call_execve,
    .execv = call_execv,
    .execvp = call_execv,
    .execvpe = call_execvpe,
    .fexecve = call_fexecve,
    .execveat = call_execveat,
};

void mp_preload_find_real(void)
{
    static const struct {
        const char *name;
        void **to;
    } calls[] = {
        { "mmap", (void **)&mp_preload_real.mmap },
        { "munmap", (void **)&mp_preload_real.munmap },
        { "mremap", (void **)&mp_preload_real.mremap },
        { "mprotect", (void **)&mp_preload_real.mprotect },
        { "madvise", (void **)&mp_preload_real.madvise },
        { "mlock", (void **)&mp_preload_real.mlock },
        { "mlock2", (void **)&mp_preload_real.mlock2 },
        { "execve", (void **)&mp_preload_real.execve },
        { "execv", (void **)&mp_preload_real.execv },
        { "execvp", (void **)&mp_preload_real.execvp },
        { "execvpe", (void **)&mp_preload_real.execvpe },
        { "fexecve", (void **)&mp_preload_real.fexecve },
        { "execveat", (void **)&mp_preload_real.execveat },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(calls); i++) {
        void *found = dlsym(RTLD_NEXT, calls[i].name);

        if (found != NULL)
            *calls[i].to = found;
    }
}

struct search {
    const char *name;
    const void *not_this;
    void *found;
};

/* Ask one loaded module. */
static void *ask_module(const char *path, const char *name)
{
    void *handle = path[0] != '\0' ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = NULL;

    if (handle != NULL) {
        found = dlsym(handle, name);
        dlclose(handle); /* its own reference keeps it loaded */
    }
    return found;
}

static int ask_next(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    struct search *search = arg;
    void *found;
    Dl_info self;

    (void)bytes;
    if (dladdr(&mp_preload_real, &self) != 0 && (uintptr_t)self.dli_fbase == info->dlpi_addr)
        return 0; /* our own hook is not it */
    found = ask_module(info->dlpi_name != NULL ? info->dlpi_name : "", search->name);
    if (found != NULL && found != search->not_this)
        search->found = found;
    return search->found != NULL;
}

void *mp_preload_find_behind(const void *site, const char *name, const void *hook)
{
    struct search search = { .name = name, .not_this = hook };
    Dl_info info;
    void *found = NULL;

    if (dladdr(site, &info) != 0 && info.dli_fname != NULL)
        found = ask_module(info.dli_fname, name);
    if (found == NULL || found == hook)
        found = dlsym(RTLD_NEXT, name);
    if (found == NULL || found == hook) {
        dl_iterate_phdr(ask_next, &search);
        found = search.found;
    }
    return found;
}

void *mp_preload_find(const void *site, const char *name)
{
    return mp_preload_find_behind(site, name, NULL);
}

void *mp_preload_behind(struct mp_hooked *hooked, const void *site)
{
    void *real;

    for (size_t i = 0; i < MP_SITES_MAX; i++) {
        struct mp_site *entry = &hooked->sites[i];
        const void *known = atomic_load_explicit(&entry->site, memory_order_acquire);

        if (known == NULL && !atomic_compare_exchange_strong(&entry->site, &known, site))
            known = atomic_load_explicit(&entry->site, memory_order_acquire);
        else if (known == NULL)
            known = site;
        if (known != site)
            continue;
        real = atomic_load_explicit(&entry->real, memory_order_acquire);
        if (real == NULL) {
            real = mp_preload_find_behind(site, hooked->name, hooked->hook);
            atomic_store_explicit(&entry->real, real, memory_order_release);
        }
        return real;
    }
    return mp_preload_find_behind(site, hooked->name, hooked->hook);
}
