/*
 * Facts about a device before a run: measured, cached, or unknown. The measurements are those of
 * engine/probe.
 */
#include "engine/session/device_facts.h"

#include <math.h>
#include <string.h>

#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define PROGRAM "/proc/self/exe"

/* Of the first expert of each layer, the types that most have; the first of equals. */
static const struct mp_expert_types *usual_types(const struct mp_model_config *model,
                                                 const struct mp_weights *weights)
{
    const struct mp_expert_types *types = weights->unit_types, *best = NULL;
    uint32_t most = 0;

    for (uint32_t i = 0; i < model->moe_layers; i++) {
        uint32_t count = 0;

        for (uint32_t k = 0; k < model->moe_layers; k++)
            count += mp_expert_types_same(&types[i * model->experts], &types[k * model->experts]);
        if (count > most) {
            most = count;
            best = &types[i * model->experts];
        }
    }
    return best;
}

struct mp_probe_shape mp_device_facts_shape(const struct mp_model_config *model,
                                            const struct mp_weights *weights)
{
    const struct mp_expert_types *usual = weights != NULL ? usual_types(model, weights) : NULL;
    struct mp_probe_shape shape = {
        .hidden = model->hidden,
        .channels = model->expert_ffn,
        .experts = model->experts_per_token,
        .gate = MP_WTYPE_BF16,
        .down = MP_WTYPE_BF16,
    };

    if (usual != NULL) {
        shape.channels = mp_ffn_slices_channels(&weights->slices, 0);
        shape.gate = usual->piece[MP_PIECE_GATE];
        shape.down = usual->piece[MP_PIECE_DOWN];
    }
    if (!mp_probe_shape_fits(&shape))
        shape.gate = shape.down = MP_WTYPE_BF16;
    return shape;
}

static bool find_costs(const struct mp_run_settings *run, const struct mp_device_choice *device,
                       const struct mp_probe_shape *shape, int driver, bool may_measure,
                       struct mp_probe *probe)
{
    if (run->probe == MP_PROBE_OFF)
        return false;
    if (mp_probe_load(run->cache_dir, device->device.uuid, driver, shape, probe))
        return true;
    if (!may_measure || run->probe != MP_PROBE_AUTO)
        return false;
    mp_log_info("probe", "measuring this device once; moepager probe shows what it finds");
    if (mp_probe_run(PROGRAM, device->ordinal, shape, probe) != MP_OK) {
        mp_log_warn("probe", "%s", mp_error_last()->text);
        mp_error_clear();
        return false;
    }
    (void)mp_probe_store(run->cache_dir, probe);
    return true;
}

/* The result has a file of its own, because it does not depend on the shape of experts. */
static bool find_host_numa(const struct mp_run_settings *run, const struct mp_device_choice *device,
                           int driver, bool may_run, struct mp_probe *probe)
{
    const struct mp_probe_shape none = { .hidden = 0 };

    if (mp_probe_load(run->cache_dir, device->device.uuid, driver, &none, probe) &&
        !isnan(probe->value[MP_PROBE_HOST_NUMA]))
        return true;
    if (!may_run)
        return false;
    if (mp_probe_run_host_numa(PROGRAM, device->ordinal, probe) != MP_OK) {
        mp_log_info("probe", "%s", mp_error_last()->text);
        mp_error_clear();
        return false;
    }
    (void)mp_probe_store(run->cache_dir, probe);
    return true;
}

/* May this process try? Where the driver only refuses, it may. */
static bool host_handles_break(const struct mp_probe *probe)
{
    if (probe == NULL) {
        mp_log_info("probe", "whether memory on a NUMA node works here is not known, and not "
                             "tried: host frames are registered memory");
        return true;
    }
    if (probe->value[MP_PROBE_HOST_NUMA] != MP_HOST_NUMA_BREAKS)
        return false;
    mp_log_warn("probe",
                "the driver cannot be trusted with memory on a NUMA node (%s); host frames are "
                "registered memory; moepager probe --fresh tries again",
                probe->trouble);
    return true;
}

void mp_device_facts_read(const struct mp_run_settings *run, const struct mp_device_choice *device,
                          const struct mp_probe_shape *shape, bool may_run, bool want_costs,
                          struct mp_device_facts *facts)
{
    struct mp_probe trial;
    const struct mp_probe *numa = NULL;
    const struct mp_cuda *cuda;

    memset(facts, 0, sizeof(*facts));
    if (mp_cuda_get(&cuda) != MP_OK) {
        mp_error_clear();
        return;
    }
    facts->probed =
        find_costs(run, device, shape, cuda->version, may_run && want_costs, &facts->probe);
    if (find_host_numa(run, device, cuda->version, may_run, &trial))
        numa = &trial;
    facts->no_host_handles = host_handles_break(numa);
}
