/*
 * Which functions a program gets that asks for those of CUDA by name; run with moepager preloaded.
 *
 * lookups hooked|plain: are those that have hooks the preloaded library's, or the driver's?
 */
#include <dlfcn.h>
#include <stdbool.h>

#include "interpose/cuda/cudart_calls.h"
#include "tests/support/test.h"

typedef int lookup_fn(const char *name, void **function, int version, unsigned long long flags,
                      int *status);

static void *driver;
static bool hooked;

static void *ask(void *handle, const char *name)
{
    return dlsym(handle, name);
}

/* Is the function in the preloaded library, if it is to be, and else in `library`? */
static void check_place(const void *function, bool has_hook, const char *library)
{
    Dl_info info;

    CHECK(function != NULL && dladdr(function, &info) != 0);
    if (strstr(info.dli_fname, has_hook && hooked ? "libmoepager_preload" : library) == NULL) {
        fprintf(stderr, "%s is in %s\n", info.dli_sname, info.dli_fname);
        exit(1);
    }
}

static void names_with_hooks_give_the_hooks(void)
{
    check_place(ask(driver, "cuMemAlloc_v2"), true, "libcuda");
    check_place(ask(driver, "cuLaunchKernel"), true, "libcuda");
    check_place(ask(driver, "cuMemsetD8Async"), true, "libcuda");
    check_place(ask(driver, "cuGetProcAddress_v2"), true, "libcuda");
    check_place(ask(driver, "cuMemMap"), false, "libcuda");
    check_place(ask(RTLD_DEFAULT, "cudaMalloc"), true, "libcudart");
}

static void what_a_library_lacks_it_does_not_get(void)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);

    CHECK(libc != NULL);
    CHECK(ask(libc, "cuMemAlloc_v2") == NULL);
    CHECK(ask(driver, "cuNothing") == NULL);
    CHECK(ask(driver, "cudaMalloc") == NULL);
    check_place(ask(libc, "malloc"), false, "libc");
    check_place(ask(RTLD_NEXT, "malloc"), false, "libc");
}

static void lookups_go_by_the_function_that_is_given(void)
{
    void *function = ask(driver, "cuGetProcAddress_v2");
    lookup_fn *lookup;
    int status = 9;

    memcpy(&lookup, &function, sizeof(lookup));
    CHECK_EQ(lookup("cuMemAlloc", &function, 12000, 0, &status), 0);
    CHECK_EQ(status, 0);
    CHECK(function == ask(driver, "cuMemAlloc_v2"));
    check_place(function, true, "libcuda");
    CHECK_EQ(lookup("cuMemMap", &function, 12000, 0, NULL), 0);
    check_place(function, false, "libcuda");
    CHECK_EQ(lookup("cuStreamSynchronize", &function, 12000, 2, NULL), 0);
    check_place(function, true, "libcuda");
    CHECK(lookup("cuNothing", &function, 12000, 0, &status) != 0);
    CHECK(function == NULL);
    CHECK(lookup("cuMemAlloc", NULL, 12000, 0, NULL) != 0);
    CHECK_EQ(lookup("cuGetProcAddress", &function, 12000, 0, NULL), 0);
    check_place(function, true, "libcuda");
}

int main(int argc, char **argv)
{
    void *first = NULL;

    CHECK_EQ(argc, 2);
    hooked = strcmp(argv[1], "hooked") == 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != NULL);
    RUN(names_with_hooks_give_the_hooks);
    RUN(what_a_library_lacks_it_does_not_get);
    RUN(lookups_go_by_the_function_that_is_given);
    CHECK_EQ(cudaMalloc(&first, 0), 0);
    return 0;
}
