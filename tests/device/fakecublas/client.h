#ifndef MP_FAKECUBLAS_CLIENT_H
#define MP_FAKECUBLAS_CLIENT_H

#include "tests/device/fakecuda/client.h"

/* fakecublas_fail() of the stand-in for cuBLAS (fakecublas.c), which moepager loads. */
static inline bool fake_cublas_fail(const char *name, unsigned nth, int result)
{
    void *library = dlopen("libcublas.so.13", RTLD_NOW);
    int (*fail)(const char *, unsigned, int);
    void *symbol;

    CHECK(library != NULL);
    symbol = fake_symbol(library, "fakecublas_fail");
    memcpy(&fail, &symbol, sizeof(symbol));
    return fail(name, nth, result) != 0;
}

#endif
