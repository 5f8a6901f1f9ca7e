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

/* fixed + n token through the times of 1 and 8 tokens, scaled to the unit's bytes. */
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

void mp_probe_costs(const struct mp_probe *probe, uint64_t unit_bytes, struct mp_costs *costs)
{
    const double probed_bytes = 6.0 * probe->shape.hidden * probe->shape.channels;
    const double scale = (double)unit_bytes / probed_bytes;
    const double gbps = probe->value[MP_PROBE_COPY_4M_1];
    struct mp_executor *cpu = &costs->executors[MP_GPU_CPU];

    *costs = mp_gpu_costs();
    if (gbps > 0)
        costs->load_ns = whole_ns((double)unit_bytes / gbps);
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
    const double gbps = probe->value[MP_PROBE_COPY_4M_1], bytes = (double)unit_bytes;
    double below = 0, below_us = NAN, us = NAN;

    /* On the line between its neighbours; beyond the largest, as that is per byte. */
    for (unsigned i = 0; i < 3; i++) {
        const double here_us = remap_us(probe, i);

        if (isnan(here_us))
            continue;
        if (bytes <= sizes[i]) {
            us = isnan(below_us)
                     ? here_us
                     : below_us + (here_us - below_us) * (bytes - below) / (sizes[i] - below);
            break;
        }
        below = sizes[i];
        below_us = here_us;
        us = here_us * bytes / sizes[i];
    }
    return gbps > 0 && bytes > 0 ? us / (bytes / gbps / 1e3) : NAN;
}
