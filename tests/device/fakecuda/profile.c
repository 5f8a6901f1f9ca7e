/*
 * How long calls, copies and kernels take on some machine, by numbers that others have measured
 * there. It is for trying out what depends on proportions; it proves nothing about a device.
 */
#include <string.h>
#include <time.h>

#include "tests/device/fakecuda/stream.h"

struct profile {
    const char *name;
    double copy_gbs, in_place_gbs, memory_gbs; /* link by copies and by kernels; device memory */
    double launch_us;                          /* on the device */
};

static const struct profile profiles[] = {
    { "3090", 22.8, 8.5, 936, 4 },
    { "h100", 55, 35.2, 3350, 4 },
    { "blackwell", 52, 51, 672, 4 }, /* RTX PRO 4000, PCIe 5 x16 */
};

static const struct {
    enum fake_call call;
    uint64_t ns;
} call_times[] = {
    { FAKE_CALL_cuMemAddressReserve, 2000 },
    { FAKE_CALL_cuMemCreate, 29200 },
    { FAKE_CALL_cuMemMap, 1900 },
    { FAKE_CALL_cuMemSetAccess, 36800 },
    { FAKE_CALL_cuMemUnmap, 34300 },
    { FAKE_CALL_cuMemRelease, 24000 },
    { FAKE_CALL_cuMemAddressFree, 1600 },
    { FAKE_CALL_cuMemGetInfo_v2, 8000 },
    { FAKE_CALL_cuLaunchKernel, 2500 },
    { FAKE_CALL_cuLaunchKernelEx, 2500 },
    { FAKE_CALL_cuMemcpyHtoDAsync_v2, 2300 },
    { FAKE_CALL_cuMemcpyDtoHAsync_v2, 2300 },
};

static const struct profile *profile; /* NULL: none */
static uint64_t link_free_ns[2];      /* to the device, to the host */

void fake_profile_choose(const char *name)
{
    if (name != NULL) {
        for (size_t i = 0; i < sizeof(profiles) / sizeof(profiles[0]); i++) {
            if (strcmp(profiles[i].name, name) == 0)
                profile = &profiles[i];
        }
    }
}

static void sleep_until(uint64_t ns)
{
    const struct timespec until = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

void fake_profile_call(enum fake_call call)
{
    const uint64_t now = profile != NULL ? fake_time_ns() : 0;

    if (profile != NULL) {
        for (size_t i = 0; i < sizeof(call_times) / sizeof(call_times[0]); i++) {
            if (call_times[i].call == call)
                sleep_until(now + call_times[i].ns);
        }
    }
}

static uint64_t kernel_ns(const struct profile *p, const struct fake_op *op)
{
    double in_place = 0, memory = 0;

    for (size_t i = 0; i < op->access_count; i++) {
        if (op->accesses[i].host_memory)
            in_place += (double)op->accesses[i].bytes;
        else
            memory += (double)op->accesses[i].bytes;
    }
    return (uint64_t)(1000 * p->launch_us + in_place / p->in_place_gbs + memory / p->memory_gbs);
}

void fake_profile_wait(const struct fake_op *op, uint64_t began_ns)
{
    const struct profile *p = profile;
    uint64_t end_ns = began_ns;

    if (p == NULL || (op->kind != FAKE_COPY && op->kind != FAKE_FILL && op->kind != FAKE_KERNEL))
        return;
    if (op->kind == FAKE_KERNEL) {
        end_ns += kernel_ns(p, op);
    } else if (op->kind == FAKE_COPY && op->access_count > 0 &&
               op->accesses[0].host_memory != op->accesses[op->access_count - 1].host_memory) {
        /* One engine for each direction: copies of several streams follow one another. */
        uint64_t *free_ns = &link_free_ns[!op->accesses[0].host_memory];

        if (end_ns < *free_ns)
            end_ns = *free_ns;
        end_ns += (uint64_t)((double)op->bytes / p->copy_gbs);
        *free_ns = end_ns;
    } else {
        end_ns += (uint64_t)((double)op->bytes / p->memory_gbs);
    }
    pthread_mutex_unlock(&fake.lock);
    sleep_until(end_ns);
    pthread_mutex_lock(&fake.lock);
}
