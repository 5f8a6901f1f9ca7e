#ifndef MP_OPTIONS_GPU_WINDOW_OPTIONS_H
#define MP_OPTIONS_GPU_WINDOW_OPTIONS_H

#include "vmm/options/opt.h"

/*
 * The option table of windows under CUDA programs that are not ours (interpose/cuda). It stands
 * here because two clients that do not know each other use it: the preloaded library reads it, the
 * program shows it and hands it on (moepager preload).
 */
struct mp_gpu_window_config {
    struct mp_share budget;      /* of the device's memory; auto: no windows */
    struct mp_share host_budget; /* of the memory that the machine, or its control group, leaves */
    uint64_t window_bytes, unit_bytes;
    uint64_t moves;
    uint64_t managed;
    char evict[32];
};

/* It fills struct mp_gpu_window_config; list it with the prefix "MOEPAGER_". */
extern const struct mp_opt mp_gpu_window_opts[];

#endif
