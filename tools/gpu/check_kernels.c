/*
 * Every kernel that production runs, on the device that is there, with production's strides,
 * against the same source on the CPU: all bits of all results must be equal (tools/gpu/check.h).
 * Kernels for tensor cores, whose sums are the hardware's, are held against sums in double within
 * the tolerance of kernels/cuda/cuda_kernels.h; where the device has none, they are left out.
 * What the source computes is held against sums in double by the tests
 * (tests/unit/kernels/cuda/cuda_*_test.c), not here.
 *
 * Usage: check_kernels [ORDINAL] [--few | --open | --only KERNEL]. One line per kernel, then "N
 * cases, M wrong".
 * --few: small shapes only, for tools that make each of them much slower. --open: nothing is
 * checked; it says how long the device and the kernels took to open, and from which image they are.
 * --only: small shapes of this kernel. 0: none is wrong; 1; 77: there is no driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpu/check.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"

static int report_open(unsigned ordinal)
{
    struct mp_clock *clock = mp_clock_monotonic();
    const uint64_t start_ns = mp_clock_now_ns(clock);
    struct mp_gpu *gpu = NULL;
    const enum mp_status status = mp_gpu_open(ordinal, &gpu);

    if (status != MP_OK) {
        fprintf(stderr, "check_kernels: %s\n", mp_error_last()->text);
        return status == MP_ERR_UNSUPPORTED ? 77 : 1;
    }
    printf("{\"open_ms\": %.1f, \"image\": \"%s\", \"capability\": %d}\n",
           (double)(mp_clock_now_ns(clock) - start_ns) / 1e6, mp_gpu_image(gpu),
           mp_gpu_device(gpu)->capability);
    mp_gpu_close(gpu);
    return 0;
}

int main(int argc, char **argv)
{
    const unsigned ordinal = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    const bool few = argc > 2 && strcmp(argv[2], "--few") == 0;
    const char *only = argc > 3 && strcmp(argv[2], "--only") == 0 ? argv[3] : NULL;
    const bool small = few || only != NULL;
    struct check *check = NULL;
    enum mp_status status;
    bool good;

    mp_gpu_configure_from_environment();
    if (argc > 2 && strcmp(argv[2], "--open") == 0)
        return report_open(ordinal);
    status = check_open(ordinal, only, &check);
    if (status != MP_OK) {
        fprintf(stderr, "check_kernels: %s\n", mp_error_last()->text);
        return status == MP_ERR_UNSUPPORTED ? 77 : 1;
    }
    check_matmuls(check, small);
    check_experts(check, small);
    check_layers(check, small);
    check_attention(check, small);
    check_choices(check, small);
    good = check_report(check);
    check_close(check);
    return good ? 0 : 1;
}
