#include "engine/session.h"

#include <inttypes.h>
#include <string.h>

#include "engine/route_from.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/pci_link.h"

/* Left for stacks, libraries, tokenizer and the page cache when a budget is chosen automatically.
 */
#define MARGIN_BYTES (256u << 20)

#define CTX_DEFAULT 4096u

/* The CPU's threads and memory are those next to the device, where there is one. */
static unsigned choose_node(const struct mp_session *s)
{
    struct mp_pci_link link = { .numa_node = -1 };

    if (s->device.cuda)
        mp_pci_link_read("", s->device.device.pci, &link);
    for (unsigned i = 0; i < s->topology->node_count && link.numa_node >= 0; i++) {
        if (s->topology->nodes[i].os_index == (unsigned)link.numa_node &&
            s->topology->nodes[i].memory_allowed && s->topology->nodes[i].core_count > 0)
            return i;
    }
    return mp_topology_device_node(s->topology);
}

static enum mp_status open_machine(const struct mp_settings *settings, struct mp_session *s)
{
    enum mp_status status = mp_topology_load(NULL, &s->topology);

    if (status == MP_OK)
        status = mp_device_choose(&settings->run, &s->device);
    if (status != MP_OK)
        return status;
    s->node = choose_node(s);
    return mp_pool_create(&settings->pool, s->topology, s->node, &s->pool);
}

static enum mp_status choose_kernels(const struct mp_settings *settings, struct mp_session *s)
{
    const char *name = settings->run.kernels;
    char quoted[MP_QUOTE_BYTES];

    s->engine_config.kernels = name[0] == '\0' ? mp_kernels_best() : mp_kernels_find(name);
    if (s->engine_config.kernels == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_KERNELS",
                       "no kernels '%s' on this CPU; known are avx512, avx2 and ref, and moepager "
                       "info says which ones run here",
                       mp_quote(quoted, name, strlen(name)));
    return MP_OK;
}

/* The engine's configuration but for weights, files and budget. */
static enum mp_status fill_config(const struct mp_settings *settings,
                                  const struct mp_session_config *config, struct mp_session *s)
{
    const struct mp_run_settings *run = &settings->run;
    const uint32_t positions = s->model.positions_max;
    const uint64_t prefill = run->prefill_tokens;
    struct mp_engine_config *e = &s->engine_config;

    *e = (struct mp_engine_config){
        .model = &s->model,
        .sequences = config->sequences,
        .ctx = run->ctx != 0 ? (uint32_t)run->ctx
                             : (positions < CTX_DEFAULT ? positions : CTX_DEFAULT),
        .tokens_max = (uint32_t)(prefill > config->sequences ? prefill : config->sequences),
        .backend = s->device.backend,
        .backend_config = { .numa_node = (int)s->topology->nodes[s->node].os_index,
                            .huge_pages = run->huge_pages,
                            .device = s->device.ordinal },
        .graphs = run->graphs,
        .gemm = (enum mp_gemm_choice)settings->gemm.choice,
        .host_residency = (enum mp_host_residency)run->residency,
        .addressing = (enum mp_addressing)run->addressing,
        .io_mode = (enum mp_io_mode)settings->io.mode,
        .populate = run->populate,
        .reader = mp_io_reader_config(&settings->io, NULL, config->clock, NULL),
        .deterministic = run->deterministic,
        .seed = run->seed,
        .pool = s->pool,
        .clock = config->clock,
        .timeline = config->timeline,
        .routed = config->routed,
        .routed_ctx = config->routed_ctx,
        .decision_log = config->decision_log,
        .watch = config->watch,
        .cancel = config->cancel,
    };
    return choose_kernels(settings, s);
}

/* The experts are read in the slices that they are stored in. */
static enum mp_status check_slices(const struct mp_run_settings *run, const char *model,
                                   const struct mp_weights *outline)
{
    char quoted[MP_QUOTE_BYTES];

    if (run->slices == 0 || run->slices == outline->slices.count)
        return MP_OK;
    return mp_fail(
        MP_ERR_CONFIG, "E_SLICES",
        "--slices %" PRIu64 ": the experts of '%s' are stored in %" PRIu32
        "; write a copy with: moepager repack --model DIR --slices %" PRIu64 " --out NEW",
        run->slices, mp_quote(quoted, model, strlen(model)), outline->slices.count, run->slices);
}

/* Sizes of the model and of its slots, before anything large is read. */
static enum mp_status measure(const struct mp_run_settings *run, const char *model,
                              struct mp_session *s)
{
    struct mp_memory_plan *m = &s->memory;
    struct mp_backend *backend = NULL;
    struct mp_weights *outline = NULL;
    struct mp_space_plan plan;
    enum mp_status status;

    status = mp_engine_measure(&s->engine_config, &m->kv_bytes, &m->state_bytes);
    if (status == MP_OK)
        status = mp_weights_describe(s->checkpoint, &s->model, &outline);
    if (status == MP_OK)
        status = check_slices(run, model, outline);
    if (status == MP_OK)
        status =
            mp_backend_open(s->engine_config.backend, &s->engine_config.backend_config, &backend);
    if (status == MP_OK) {
        const struct mp_space_config space = {
            .backend = backend,
            .files = mp_checkpoint_files(s->checkpoint),
            .units = outline->units,
            .unit_count = outline->unit_count,
            .budget_bytes = UINT64_MAX,
            .host_budget_bytes = UINT64_MAX,
            .io_mode = s->engine_config.io_mode,
        };

        status = mp_space_make_plan(&space, &plan);
    }
    if (status == MP_OK) {
        m->weights_bytes = outline->resident_bytes;
        m->expert_bytes = plan.unit_bytes;
        m->smallest_bytes = plan.smallest_bytes;
        m->full_bytes = plan.full_bytes;
        m->slices = outline->slices.count;
        s->direct_io = plan.direct;
    }
    mp_backend_close(backend);
    mp_weights_destroy(outline);
    return status;
}

/* What the run takes, against what there is; chooses the budget. A plan alone may exceed it: who
 * asks for the sizes of a model that is too large for the machine is to be told them. */
static enum mp_status plan_memory(const struct mp_settings *settings,
                                  const struct mp_session_config *config, struct mp_session *s)
{
    const struct mp_share *share = &settings->run.budget;
    struct mp_memory_plan *m = &s->memory;
    struct mp_memory_room room;
    uint64_t base, spare;
    enum mp_status status = measure(&settings->run, config->model, s);

    if (status != MP_OK)
        return status;
    mp_memory_room_read("", &room);
    m->room_bytes = room.total_bytes == 0 ? UINT64_MAX : room.room_bytes;
    if (!mp_add_u64(m->weights_bytes, m->kv_bytes, &base) ||
        !mp_add_u64(base, m->state_bytes, &base))
        base = UINT64_MAX;
    spare = m->room_bytes > base ? m->room_bytes - base : 0;
    spare = spare > MARGIN_BYTES ? spare - MARGIN_BYTES : 0;

    s->engine_config.host_budget_bytes =
        settings->run.host_budget.kind == MP_SHARE_ALL
            ? UINT64_MAX
            : mp_share_resolve(&settings->run.host_budget, m->expert_bytes, spare);
    m->budget_bytes = mp_share_resolve(share, m->expert_bytes, spare);
    if (m->budget_bytes > m->full_bytes || share->kind == MP_SHARE_ALL ||
        (share->kind == MP_SHARE_PPM && share->amount == 1000000))
        m->budget_bytes = m->full_bytes;
    if (m->budget_bytes < m->smallest_bytes && share->kind == MP_SHARE_AUTO)
        m->budget_bytes = m->smallest_bytes;
    if (m->budget_bytes < m->smallest_bytes)
        return mp_fail(MP_ERR_CONFIG, "E_BUDGET_SMALL",
                       "budget of %" PRIu64 " bytes is below the smallest for this model: need "
                       "%" PRIu64 " (two slots); raise --budget",
                       m->budget_bytes, m->smallest_bytes);
    if (!mp_add_u64(base, m->budget_bytes, &m->total_bytes))
        m->total_bytes = UINT64_MAX;
    if (m->total_bytes > m->room_bytes && !config->plan_only)
        return mp_fail(
            MP_ERR_NO_MEMORY, "E_RAM",
            "not enough RAM: weights %" PRIu64 ", KV cache %" PRIu64 ", activations %" PRIu64
            ", experts %" PRIu64 " bytes, but this process can take %" PRIu64
            "; lower --budget, --ctx or --prefill-tokens",
            m->weights_bytes, m->kv_bytes, m->state_bytes, m->budget_bytes, m->room_bytes);
    return MP_OK;
}

static enum mp_status open_tokenizer(const struct mp_session_config *config, struct mp_session *s)
{
    enum mp_status status;

    if (!config->tokenizer)
        return MP_OK;
    status = mp_tokenizer_load(config->model, &s->tokenizer);
    return status == MP_OK ? mp_tokenizer_check_rows(s->tokenizer, s->model.vocab) : status;
}

static enum mp_status load_weights(const struct mp_session_config *config, struct mp_session *s)
{
    const struct mp_weights_io io = {
        .direct = s->engine_config.io_mode != MP_IO_BUFFERED,
        .reader = s->engine_config.reader,
    };

    return mp_weights_load(s->checkpoint, &s->model, &io, config->progress, &s->weights);
}

/* Files that were learned from this very model, where they are wanted and exist. */
static enum mp_status open_sidecars(const struct mp_run_settings *run, struct mp_session *s)
{
    const int model_fd = mp_checkpoint_dir_fd(s->checkpoint);
    enum mp_status status = MP_OK;
    struct mp_model_id id;
    const char *path;
    int dir_fd;

    if (mp_sidecar_locate(run->calibration, model_fd, MP_CALIBRATION_NAME, &dir_fd, &path)) {
        mp_model_id_make(&s->model, s->weights, &id);
        status = mp_calibration_load(dir_fd, path, &id, &s->calibration);
    }
    if (status == MP_OK &&
        mp_sidecar_locate(run->llapor, model_fd, MP_LLAPOR_NAME, &dir_fd, &path)) {
        mp_model_id_make(&s->model, s->weights, &id);
        status = mp_llapor_load(dir_fd, path, &id, &s->llapor);
    }
    return status;
}

static enum mp_status open_model(const struct mp_settings *settings,
                                 const struct mp_session_config *config, struct mp_session *s)
{
    enum mp_status status = mp_checkpoint_open(config->model, &s->checkpoint);

    if (status == MP_OK)
        status = mp_model_config_load(mp_checkpoint_dir_fd(s->checkpoint), &s->model);
    if (status == MP_OK)
        status = open_tokenizer(config, s);
    if (status == MP_OK)
        status = fill_config(settings, config, s);
    if (status == MP_OK)
        status = mp_settings_policies(settings, &s->engine_config.policies);
    if (status == MP_OK && config->route_from != NULL && !config->plan_only)
        status = mp_route_from_load(config->route_from, s->model.moe_layers, s->model.experts,
                                    s->model.experts_per_token, &s->route_from);
    if (status == MP_OK)
        status = plan_memory(settings, config, s);
    if (status == MP_OK && !config->plan_only)
        status = load_weights(config, s);
    if (status == MP_OK && !config->plan_only && !config->no_sidecars)
        status = open_sidecars(&settings->run, s);
    return status;
}

static enum mp_status open_engine(const struct mp_settings *settings, struct mp_session *s)
{
    s->engine_config.weights = s->weights;
    s->engine_config.files = mp_checkpoint_files(s->checkpoint);
    s->engine_config.budget_bytes = s->memory.budget_bytes;
    s->engine_config.option_groups = settings->groups;
    s->engine_config.calibration = s->calibration;
    s->engine_config.llapor = s->llapor;
    s->engine_config.route_from = s->route_from;
    return mp_engine_create(&s->engine_config, &s->engine);
}

static void warn_extra(const struct mp_weights *weights)
{
    char quoted[MP_QUOTE_BYTES];

    mp_log_warn("model",
                "%zu tensors are not part of this architecture and were not read, such as "
                "'%s'",
                weights->extra_tensors,
                mp_quote(quoted, weights->extra_name, strlen(weights->extra_name)));
}

enum mp_status mp_session_open(const struct mp_settings *settings,
                               const struct mp_session_config *config, struct mp_session *session)
{
    enum mp_status status;

    memset(session, 0, sizeof(*session));
    status = open_machine(settings, session);
    if (status == MP_OK)
        status = open_model(settings, config, session);
    if (status == MP_OK && !config->plan_only)
        status = open_engine(settings, session);
    if (status != MP_OK) {
        mp_session_close(session);
        return status;
    }
    if (mp_checkpoint_warning(session->checkpoint) != NULL)
        mp_log_warn("model", "%s", mp_checkpoint_warning(session->checkpoint));
    if (session->weights != NULL && session->weights->extra_tensors > 0)
        warn_extra(session->weights);
    return MP_OK;
}

enum mp_status mp_session_renew(struct mp_session *session, const struct mp_profile *policies,
                                const struct mp_watch *watch)
{
    mp_engine_destroy(session->engine);
    session->engine = NULL;
    session->engine_config.policies = *policies;
    session->engine_config.watch = watch;
    session->engine_config.decision_log = NULL; /* that of the first engine is closed */
    return mp_engine_create(&session->engine_config, &session->engine);
}

void mp_session_close(struct mp_session *session)
{
    mp_engine_destroy(session->engine);
    mp_tokenizer_destroy(session->tokenizer);
    mp_calibration_destroy(session->calibration);
    mp_llapor_destroy(session->llapor);
    mp_route_from_destroy(session->route_from);
    mp_weights_destroy(session->weights);
    mp_checkpoint_close(session->checkpoint);
    mp_pool_destroy(session->pool);
    mp_topology_destroy(session->topology);
    memset(session, 0, sizeof(*session));
}
