/*
 * Derives from a probe the costs for policies and the choice of addressing.
 */
#include <math.h>

#include "engine/gpu/executors.h"
#include "engine/probe/probe.h"

/* In ns, at most eleven days: what a cache's file says may be anything. */
static uint64_t whole_ns(double ns)
{
    return (uint64_t)fmin(ns, 1e15);
}

/* fixed + n token through the times of 1 and 8 tokens, scaled to the expert's bytes. */
static void fit(const struct mp_probe *probe, enum mp_probe_item one, enum mp_probe_item eight,
                double scale, struct mp_executor *executor)
{
    const double a = probe->value[one] * scale * 1e3, b = probe->value[eight] * scale * 1e3;
    const double token = b > a ? (b - a) / 7 : 0;

    if (isnan(a) || isnan(b))
        return;
    executor->token_ns = whole_ns(token);
    executor->fixed_ns = whole_ns(a - token > 1 ? a - token : 1);
}

/* us of `bytes`, on the line between the sizes that were measured around it; of less than the
 * smallest on that from zero_us, or, if that is NaN, as the smallest; of more than the largest per
 * byte. NaN: no size was measured. */
static double of_size(const double sizes[3], const double us[3], double zero_us, double bytes)
{
    double below = 0, below_us = zero_us, beyond_us = NAN;

    for (unsigned i = 0; i < 3; i++) {
        if (isnan(us[i]))
            continue;
        if (bytes <= sizes[i])
            return isnan(below_us)
                       ? us[i]
                       : below_us + (us[i] - below_us) * (bytes - below) / (sizes[i] - below);
        below = sizes[i];
        below_us = us[i];
        beyond_us = us[i] * bytes / sizes[i];
    }
    return beyond_us;
}

/* us of copying a unit to the device among others: the link cuts it into chunks of 4 MiB
 * (vmm/space/space_host.c), and a smaller one is a chunk. */
static double copy_us(const struct mp_probe *probe, double bytes)
{
    static const double sizes[3] = { 256 << 10, 1 << 20, 4 << 20 };
    double us[3];

    for (unsigned i = 0; i < 3; i++) {
        const double gbps = probe->value[MP_PROBE_COPY_256K_1 + 2 * i];

        us[i] = gbps > 0 ? sizes[i] / gbps / 1e3 : NAN;
    }
    return of_size(sizes, us, 0, bytes);
}

void mp_probe_costs(const struct mp_probe *probe, uint64_t expert_bytes, uint32_t slices,
                    struct mp_costs *costs)
{
    const double probed_bytes = (double)mp_probe_expert_bytes(&probe->shape);
    const double scale = (double)expert_bytes / probed_bytes;
    const double load_us = copy_us(probe, (double)expert_bytes / slices) * slices;
    struct mp_executor *cpu = &costs->executors[MP_GPU_CPU];

    *costs = mp_gpu_costs();
    if (!isnan(load_us))
        costs->load_ns = whole_ns(load_us * 1e3);
    fit(probe, MP_PROBE_CPU_1, MP_PROBE_CPU_8, scale, cpu);
    fit(probe, MP_PROBE_EXPERT_1, MP_PROBE_EXPERT_8, scale, &costs->executors[MP_GPU_DEVICE]);
    fit(probe, MP_PROBE_IN_PLACE_1, MP_PROBE_IN_PLACE_8, scale, &costs->executors[MP_GPU_IN_PLACE]);
    if (cpu->fixed_ns > 0 && probe->value[MP_PROBE_HANDOFF] > 0)
        cpu->handoff_ns = whole_ns(probe->value[MP_PROBE_HANDOFF] * 1e3);
}

/* us of taking one frame of the i-th size away and putting it there, idle or busy, what is more. */
static double remap_us(const struct mp_probe *probe, unsigned i)
{
    const double *idle = &probe->value[MP_PROBE_MAP_2M + 3 * i];
    const double sum = idle[0] + idle[1] + idle[2], busy = probe->value[MP_PROBE_REMAP_BUSY_2M + i];

    return isnan(sum) || busy > sum ? busy : sum;
}

double mp_probe_remap_share(const struct mp_probe *probe, uint64_t unit_bytes)
{
    static const double sizes[3] = { 2 << 20, 16 << 20, 64 << 20 };
    const double us[3] = { remap_us(probe, 0), remap_us(probe, 1), remap_us(probe, 2) };
    const double bytes = (double)unit_bytes;

    return bytes > 0 ? of_size(sizes, us, NAN, bytes) / copy_us(probe, bytes) : NAN;
}
