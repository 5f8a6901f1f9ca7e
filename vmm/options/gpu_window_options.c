/*
 * The option table of windows under CUDA programs: names, defaults and help.
 */
#include "vmm/options/gpu_window_options.h"

const struct mp_opt mp_gpu_window_opts[] = {
    MP_OPT_PART(
        "GPU_BUDGET", struct mp_gpu_window_config, budget, "auto",
        "Preloaded, device memory that a CUDA program's large allocations may take: a size, "
        "a share of the device, or all; what is beyond becomes windows over device and "
        "host memory. With auto nothing is changed."),
    MP_OPT_PART("GPU_HOST_BUDGET", struct mp_gpu_window_config, host_budget, "50%",
                "Preloaded, pinned host memory for windows: a size, or a share of what the machine "
                "and its control group leave when the first one is made."),
    MP_OPT(MP_OPT_BYTES, "GPU_WINDOW", struct mp_gpu_window_config, window_bytes, "64MiB", 1 << 16,
           UINT64_C(1) << 40, "Preloaded, least bytes of an allocation that may become a window."),
    MP_OPT(MP_OPT_BYTES, "GPU_UNIT", struct mp_gpu_window_config, unit_bytes, "8MiB", 1 << 16,
           UINT64_C(1) << 30, "Preloaded, bytes of a window that move together."),
    MP_OPT(MP_OPT_U64, "GPU_MOVES", struct mp_gpu_window_config, moves, "8", 0, 4096,
           "Preloaded, most swaps of two units when the device is found idle; 0: none move."),
    MP_OPT(MP_OPT_BOOL, "GPU_MANAGED", struct mp_gpu_window_config, managed, "on", 0, 1,
           "Preloaded, managed memory for a large allocation that neither the device nor a window "
           "can hold, instead of none."),
    MP_OPT_TEXT("GPU_EVICT", struct mp_gpu_window_config, evict, "lfru",
                "Preloaded, policy that chooses which unit of a window leaves the device."),
    MP_OPT_END
};
