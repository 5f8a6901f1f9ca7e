/*
 * From the files to the MoE step: backend <- space <- policies <- pager <- step.
 */
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "engine/forward/engine_int.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

static enum mp_status make_space(struct mp_engine *engine)
{
    const struct mp_engine_config *c = &engine->config;
    const struct mp_space_config space_config = {
        .backend = engine->backend,
        .files = c->files,
        .units = c->weights->units,
        .unit_count = c->weights->unit_count,
        .budget_bytes = c->budget_bytes,
        .host_budget_bytes = c->host_budget_bytes,
        .host_residency = c->host_residency,
        .addressing = c->addressing,
        .io_mode = c->io_mode,
        .populate = c->populate,
        .reader = c->reader,
        .spin = c->spin,
        .clock = c->clock,
        .timeline = c->timeline,
        .counters = &engine->counters,
    };
    enum mp_status status = mp_space_create(&space_config, &engine->space);

    if (status != MP_OK)
        return status;
    engine->shape = (struct mp_shape){
        .layers = c->model->moe_layers,
        .experts = c->model->experts,
        .top_k = c->model->experts_per_token,
        .tokens_max = c->tokens_max,
        .seed = c->seed,
        .calibration = c->calibration != NULL ? &c->calibration->facts : NULL,
        .slices = c->weights->slices.count,
        .costs =
            engine->device != NULL || !c->deterministic || c->peers != NULL ? &engine->costs : NULL,
    };
    mp_pager_fit_shape(engine->space, &engine->shape);
    if (engine->shape.slices == 1 && strcmp(c->policies.name, "moepic") == 0)
        mp_log_info("engine", "profile moepic: the model's experts are whole; with slices "
                              "(moepager repack --slices 4) it keeps a part of more of them");
    return MP_OK;
}

/* Not where host memory could not be pinned. */
static bool reads_host(struct mp_backend *backend)
{
    return backend->ops->reads_host == NULL || backend->ops->reads_host(backend);
}

/* Which experts an exclusive host tier holds at a moment follows from the timing of copies. */
static enum mp_status check_residency(const struct mp_engine_config *c)
{
    const char *assign = c->policies.policy[MP_POLICY_ASSIGN];

    if (!c->deterministic || c->host_residency != MP_HOST_EXCLUSIVE || !strcmp(assign, "gpu-only"))
        return MP_OK;
    return mp_fail(
        MP_ERR_CONFIG, "E_RESIDENCY",
        "--deterministic with --residency exclusive: what assign policy '%s' can give to "
        "the CPU would depend on timing; use --residency inclusive or --assign gpu-only",
        assign);
}

/* Policies that would decide by costs, in a run that neither knows nor measures them. */
static void warn_unknown_costs(const struct mp_engine *engine)
{
    const struct mp_engine_config *c = &engine->config;

    if (c->deterministic && (engine->shape.costs == NULL || engine->costs.load_ns == 0) &&
        mp_policies_want_costs(&c->policies))
        mp_log_info("engine",
                    "profile %s asks what work costs, which is not known: a deterministic run does "
                    "not measure it%s",
                    c->policies.name, engine->device != NULL ? ", moepager probe does" : "");
}

static enum mp_status make_policies(struct mp_engine *engine)
{
    const struct mp_engine_config *c = &engine->config;
    enum mp_status status =
        mp_policies_create(&c->policies, &engine->shape, c->option_groups, &engine->policies);

    if (status == MP_OK)
        status = mp_engine_predict_create(engine);
    if (status != MP_OK || c->decision_log == NULL)
        return status;
    status = mp_decisions_create(c->decision_log, &c->policies, &engine->shape, c->option_groups,
                                 &engine->decisions);
    if (status == MP_OK)
        mp_decisions_record(engine->decisions, &engine->policies);
    return status;
}

static enum mp_status make_pager(struct mp_engine *engine)
{
    const struct mp_engine_config *c = &engine->config;
    struct mp_pager_config config = {
        .space = engine->space,
        .shape = engine->shape,
        .policies = &engine->policies,
        .clock = c->clock,
        .counters = &engine->counters,
        .timeline = c->timeline,
        .deterministic = c->deterministic,
    };

    if (c->heat_map != NULL)
        config.first = mp_heat_map_hottest(c->heat_map, &config.first_count);
    return mp_pager_create(&config, &engine->pager);
}

static enum mp_status make_step(struct mp_engine *engine)
{
    const struct mp_engine_config *c = &engine->config;
    const struct mp_step_config config = {
        .pager = engine->pager,
        .policies = &engine->policies,
        .shape = engine->shape,
        .ops = &engine->step_ops,
        .ctx = engine,
        .executors = engine->compute->executors,
        .costs = engine->shape.costs,
        .clock = c->clock,
        .counters = &engine->counters,
        .timeline = c->timeline,
    };

    mp_engine_fill_step_ops(engine);
    return mp_step_create(&config, &engine->step);
}

static enum mp_status start_device(struct mp_engine *engine)
{
    enum mp_status status = mp_device_start(engine->device);

    if (status == MP_OK)
        status = mp_device_graphs_create(engine->device);
    /* Who may compute an expert depends on whether the host tier has it yet. */
    if (status == MP_OK && engine->config.deterministic)
        mp_space_wait_filled(engine->space);
    return status;
}

enum mp_status mp_engine_make_paging(struct mp_engine *engine)
{
    enum mp_status status = engine->device != NULL ? check_residency(&engine->config) : MP_OK;

    if (status == MP_OK)
        status = make_space(engine);
    if (status != MP_OK)
        return status;
    status = mp_engine_peers_create(engine);
    if (status != MP_OK)
        return status;
    if (engine->device != NULL)
        mp_device_list_executors(engine->device, reads_host(engine->backend));
    warn_unknown_costs(engine);
    status = make_policies(engine);
    if (status == MP_OK)
        status = make_pager(engine);
    if (status == MP_OK)
        status = make_step(engine);
    if (status == MP_OK && engine->device != NULL)
        status = start_device(engine);
    return status;
}

/* What only the CPU has been taught is refused here, by name. */
static enum mp_status open_device(struct mp_engine *engine)
{
    const char *beyond = mp_model_config_beyond(engine->config.model);

    if (beyond != NULL)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "the model has %s, which devices do not compute; use --device cpu", beyond);
    return mp_device_open(engine, &engine->device);
}

/* Memory of tiers, and of the device that computes where the CPU cannot. */
enum mp_status mp_engine_open_backend(struct mp_engine *engine)
{
    const struct mp_engine_config *c = &engine->config;
    enum mp_status status = mp_backend_open(c->backend, &c->backend_config, &engine->backend);

    if (status == MP_OK && mp_device_needed(engine->backend))
        status = open_device(engine);
    engine->compute = engine->device != NULL ? &engine->device->compute : &engine->cpu;
    return status;
}
