/* The table MP_SIMT_TABLE of MP_SIMT_KERNELS, whose bodies stand above; at the end of a file, hence
 * no guard. */
#include "tests/device/simt/table.h"

#define X(kernel, params)                                                                  \
    static const char *kernel##_run(const void *p, struct mp_simt_dim grid,                \
                                    struct mp_simt_dim block, uint32_t shared_bytes)       \
    {                                                                                      \
        return mp_simt_run(mp_##kernel##_enter, p, mp_##kernel##_threads_max, grid, block, \
                           shared_bytes);                                                  \
    }
MP_SIMT_KERNELS(X)
#undef X

const struct mp_simt_kernel MP_SIMT_TABLE[] = {
#define X(kernel, params) \
    { "mp_" #kernel, sizeof(struct params), kernel##_run, mp_simt_touches_##kernel },
    MP_SIMT_KERNELS(X)
#undef X
        { .name = NULL },
};
