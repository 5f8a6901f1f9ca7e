/*
 * Functions of CUDA that are asked for by name.
 *
 * A runtime asks dlsym() for one function of the driver, and that for all others. Names do not say
 * which of several versions is given, so the real one is asked first, and what it gives decides:
 * the hook of exactly that function, if there is one. A name that begins otherwise is none of ours,
 * and its call goes on to the real dlsym() as it came, so that "the next one" is the caller's next.
 */
#include "interpose/cuda/hooks/hooks.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "vmm/backend/cuda/cuda_abi.h"
#include "vmm/base/compiler.h"

typedef void *dlsym_fn(void *handle, const char *name);
typedef mp_cu_result lookup_v2_fn(const char *name, void **function, int version,
                                  unsigned long long flags, int *status);
typedef mp_cu_result lookup_fn(const char *name, void **function, int version,
                               unsigned long long flags);

dlsym_fn *mp_dlsym_real(void);
void *mp_dlsym_resolve(void *handle, const char *name);
mp_cu_result cuGetProcAddress(const char *name, void **function, int version,
                              unsigned long long flags);
mp_cu_result cuGetProcAddress_v2(const char *name, void **function, int version,
                                 unsigned long long flags, int *status);

/* The versions of dlsym() that C libraries have had, the newest first. */
dlsym_fn *mp_dlsym_real(void)
{
    static const char *const versions[] = { "GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.4",
                                            "GLIBC_2.2.5" };
    static _Atomic(dlsym_fn *) found;
    dlsym_fn *real = atomic_load_explicit(&found, memory_order_relaxed);

    for (size_t v = 0; v < MP_ARRAY_LEN(versions) && real == NULL; v++)
        real = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", versions[v]);
    atomic_store_explicit(&found, real, memory_order_relaxed);
    return real;
}

void *mp_hook_driver(const char *name)
{
    static _Atomic(void *) driver;
    void *library = atomic_load_explicit(&driver, memory_order_relaxed);

    if (library == NULL) { /* only one that the program has */
        library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        atomic_store_explicit(&driver, library, memory_order_relaxed);
    }
    return library != NULL ? mp_dlsym_real()(library, name) : NULL;
}

/* ---- what is handed out */

static bool is_name_of_cuda(const char *name)
{
    return name != NULL && ((name[0] == 'c' && name[1] == 'u' &&
                             (isupper((unsigned char)name[2]) || strncmp(name, "cuda", 4) == 0)) ||
                            strncmp(name, "__cuda", 6) == 0);
}

static void *hook_of_name(const char *name)
{
    if (strcmp(name, "cuGetProcAddress") == 0)
        return (void *)cuGetProcAddress;
    if (strcmp(name, "cuGetProcAddress_v2") == 0)
        return (void *)cuGetProcAddress_v2;
    for (size_t i = 0; i < mp_driver_hook_count; i++) {
        if (strcmp(mp_driver_hooks[i].name, name) == 0)
            return mp_driver_hooks[i].hook;
    }
    for (size_t i = 0; i < mp_gate_hook_count; i++) {
        if (strcmp(mp_gate_hooks[i].name, name) == 0)
            return mp_gate_hooks[i].hook;
    }
#define X(hooked)                   \
    if (strcmp(#hooked, name) == 0) \
        return (void *)hooked;
    MP_RT_HOOK_MAP(X)
#undef X
    return NULL;
}

/* The hook of a function of the driver, or itself. */
static void *hook_of_function(void *function)
{
    static const char *const lookups[] = { "cuGetProcAddress", "cuGetProcAddress_v2" };

    for (size_t i = 0; i < MP_ARRAY_LEN(lookups) && function != NULL; i++) {
        if (function == mp_hook_driver(lookups[i]))
            return hook_of_name(lookups[i]);
    }
    for (size_t i = 0; i < mp_driver_hook_count && function != NULL; i++) {
        if (function == mp_driver_hook_behind(i))
            return mp_driver_hooks[i].hook;
    }
    for (size_t i = 0; i < mp_gate_hook_count && function != NULL; i++) {
        if (function == mp_gate_hook_behind(i))
            return mp_gate_hooks[i].hook;
    }
    return function;
}

/* NULL: nothing of ours; the call goes on. */
void *mp_dlsym_resolve(void *handle, const char *name)
{
    void *hook, *real;

    /* Who asks for the next one is a library like ours, and knows what it does. */
    if (handle == RTLD_NEXT || !is_name_of_cuda(name) || mp_hook_is_nested())
        return NULL;
    hook = hook_of_name(name);
    real = hook != NULL ? mp_dlsym_real()(handle, name) : NULL;
    return real != NULL ? hook : NULL; /* a library without it does not get it from us */
}

#if defined(__x86_64__)
/* dlsym(): the caller's return address must be what the real one sees, so it is jumped to. */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    pushq %rsi\n"
        "    subq $8, %rsp\n"
        "    call mp_dlsym_resolve\n"
        "    testq %rax, %rax\n"
        "    jnz 1f\n"
        "    call mp_dlsym_real\n"
        "    addq $8, %rsp\n"
        "    popq %rsi\n"
        "    popq %rdi\n"
        "    jmp *%rax\n"
        "1:  addq $24, %rsp\n"
        "    ret\n"
        ".size dlsym, . - dlsym\n");
#else
/* Optimised, so that the last call is a jump. */
MOEPAGER_API __attribute__((optimize("O2"))) void *dlsym(void *restrict handle,
                                                         const char *restrict name)
{
    void *hook = mp_dlsym_resolve(handle, name);

    return hook != NULL ? hook : mp_dlsym_real()(handle, name);
}
#endif

MOEPAGER_API mp_cu_result cuGetProcAddress_v2(const char *name, void **function, int version,
                                              unsigned long long flags, int *status)
{
    lookup_v2_fn *real = (lookup_v2_fn *)mp_hook_driver("cuGetProcAddress_v2");
    mp_cu_result result;

    if (real == NULL)
        return MP_CU_ERROR_NOT_INITIALIZED;
    result = real(name, function, version, flags, status);
    if (result == MP_CU_SUCCESS && function != NULL && !mp_hook_is_nested())
        *function = hook_of_function(*function);
    return result;
}

MOEPAGER_API mp_cu_result cuGetProcAddress(const char *name, void **function, int version,
                                           unsigned long long flags)
{
    lookup_fn *real = (lookup_fn *)mp_hook_driver("cuGetProcAddress");
    mp_cu_result result;

    if (real == NULL)
        return MP_CU_ERROR_NOT_INITIALIZED;
    result = real(name, function, version, flags);
    if (result == MP_CU_SUCCESS && function != NULL && !mp_hook_is_nested())
        *function = hook_of_function(*function);
    return result;
}
