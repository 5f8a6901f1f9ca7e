#ifndef MP_OPTIONS_GPU_WINDOW_OPTIONS_H
#define MP_OPTIONS_GPU_WINDOW_OPTIONS_H

#include "vmm/options/opt.h"

/*
 * The option table of windows under other CUDA programs (interpose/cuda). It is here because two
 * clients that do not include each other use it: the preloaded library reads it, `moepager preload`
 * shows it and passes it on.
 */
struct mp_gpu_window_config {
    struct mp_share budget;      /* of the device's memory; auto: no windows */
    struct mp_share host_budget; /* of the memory available in the machine or control group */
    uint64_t window_bytes, unit_bytes;
    uint64_t moves;
    uint64_t managed;
    char evict[32];
};

/* It fills struct mp_gpu_window_config; list it with the prefix "MOEPAGER_". */
extern const struct mp_opt mp_gpu_window_opts[];

#endif
