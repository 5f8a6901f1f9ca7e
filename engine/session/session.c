/*
 * Opens and closes everything that a run needs, in order. Generates nothing.
 */
#include "engine/session/session.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "engine/model/drafting.h"
#include "engine/session/draft/head.h"
#include "engine/session/draft/model.h"
#include "engine/session/memory_plan.h"
#include "engine/forward/forced_routing.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/topo/pci_link.h"

#define CTX_DEFAULT 4096u

/* The CPU's threads and memory are those next to the device, where there is one. */
static unsigned choose_node(const struct mp_session *s)
{
    struct mp_pci_link link;

    if (!s->device.cuda)
        return mp_topology_device_node(s->topology);
    mp_pci_link_read("", s->device.device.pci, &link);
    return mp_topology_near_node(s->topology, s->device.device.pci,
                                 link.numa_node >= 0 ? link.numa_node
                                                     : s->device.device.host_numa_id);
}

static void use_machine(const struct mp_session *of, struct mp_session *s)
{
    s->guest = true;
    s->device = of->device;
    s->topology = of->topology;
    s->node = of->node;
    s->pool = of->pool;
}

static enum mp_status open_machine(const struct mp_settings *settings, struct mp_session *s)
{
    enum mp_status status = mp_device_choose(&settings->run, &s->device);
    const struct mp_topology_source source = { .no_devices = !s->device.cuda };

    if (status == MP_OK)
        status = mp_topology_load(&source, &s->topology);
    if (status != MP_OK)
        return status;
    s->node = choose_node(s);
    return mp_pool_create(&settings->pool, s->topology, s->node, &s->pool);
}

/* The class that the settings name; of `auto` the one that is tried first. */
static enum mp_math class_of(uint64_t choice, bool cuda)
{
    if (choice == MP_MATH_CHOICE_AMX)
        return MP_MATH_AMX;
    if (choice == MP_MATH_CHOICE_NATIVE || (choice == MP_MATH_CHOICE_AUTO && !cuda))
        return MP_MATH_NATIVE;
    return MP_MATH_F32;
}

/* The CPU's kernels of that class; NULL: there are none here. */
static const struct mp_kernels *kernels_of(uint64_t choice, bool cuda)
{
    const struct mp_kernels *kernels = mp_kernels_of(class_of(choice, cuda));

    if (kernels == NULL && choice != MP_MATH_CHOICE_NATIVE && choice != MP_MATH_CHOICE_AMX)
        kernels = mp_kernels_best();
    return kernels;
}

static enum mp_status choose_kernels(const struct mp_settings *settings, struct mp_session *s)
{
    const char *name = settings->run.kernels;
    const uint64_t math = settings->run.math;
    const struct mp_kernels *kernels =
        name[0] == '\0' ? kernels_of(math, s->device.cuda) : mp_kernels_find(name);
    char quoted[MP_QUOTE_BYTES];

    if (kernels == NULL && name[0] == '\0' && math == MP_MATH_CHOICE_AMX)
        return mp_fail(MP_ERR_CONFIG, "E_KERNELS",
                       "math amx: this CPU has no AMX with BF16 and INT8 tiles, or the system does "
                       "not lend them; native and f32 are the others");
    if (kernels == NULL && name[0] == '\0')
        return mp_fail(
            MP_ERR_CONFIG, "E_KERNELS",
            "math native: this CPU does not multiply BF16 (AVX512-BF16; BF16 on ARM); f32 runs "
            "here");
    if (kernels == NULL)
        return mp_fail(
            MP_ERR_CONFIG, "E_KERNELS",
            "no kernels '%s' on this CPU; known are amx, avx512bf16, avx512, avx2 and ref, and "
            "moepager info says which ones run here",
            mp_quote(quoted, name, strlen(name)));
    if (math != MP_MATH_CHOICE_AUTO && kernels->math != class_of(math, s->device.cuda))
        return mp_fail(MP_ERR_CONFIG, "E_KERNELS", "kernels %s are of class %s, but math is %s",
                       kernels->name, mp_math_name(kernels->math),
                       mp_math_name(class_of(math, s->device.cuda)));
    s->engine_config.kernels = kernels;
    return MP_OK;
}

static enum mp_status choose_kv_type(const struct mp_settings *settings, struct mp_session *s)
{
    static const enum mp_wtype types[MP_KV_TYPE_COUNT] = {
        [MP_KV_TYPE_F32] = MP_WTYPE_F32,
        [MP_KV_TYPE_F16] = MP_WTYPE_F16,
        [MP_KV_TYPE_BF16] = MP_WTYPE_BF16,
        [MP_KV_TYPE_Q8_0] = MP_WTYPE_Q8_0,
    };

    s->engine_config.kv_type = types[settings->run.kv_type];
    if (s->device.cuda && s->engine_config.kv_type == MP_WTYPE_Q8_0)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_KV_TYPE",
                       "KV cache of type %s: a GPU has f32, f16 and bf16; --device cpu has all",
                       mp_wtype_name(s->engine_config.kv_type));
    return MP_OK;
}

/* The engine's configuration but for weights, files and budget. */
static enum mp_status fill_config(const struct mp_settings *settings,
                                  const struct mp_session_config *config, struct mp_session *s)
{
    const struct mp_run_settings *run = &settings->run;
    const uint32_t positions = s->model.positions_max;
    const uint64_t guesses = config->drafts ? run->draft_tokens : 0;
    const uint64_t wanted = config->sequences * (1 + guesses);
    const uint64_t prefill = run->prefill_tokens;
    struct mp_engine_config *e = &s->engine_config;
    enum mp_status status;

    *e = (struct mp_engine_config){
        .model = &s->model,
        .sequences = config->sequences,
        .ctx = run->ctx != 0 ? (uint32_t)run->ctx
                             : (positions < CTX_DEFAULT ? positions : CTX_DEFAULT),
        .tokens_max = (uint32_t)(prefill > wanted ? prefill : wanted),
        .wanted_max = (uint32_t)wanted,
        .kv_small_pages = config->memory_bytes > 0,
        .backend = s->device.backend,
        .backend_config = { .numa_node = (int)s->topology->nodes[s->node].os_index,
                            .huge_pages = run->huge_pages,
                            .device = s->device.ordinal },
        .graphs = run->graphs,
        .gemm = (enum mp_gemm_choice)settings->gemm.choice,
        .host_residency = (enum mp_host_residency)run->residency,
        .addressing = run->addressing == MP_RUN_ADDRESSING_AUTO
                          ? MP_ADDRESSING_TABLE
                          : (enum mp_addressing)run->addressing,
        .io_mode = (enum mp_io_mode)settings->io.mode,
        .populate = run->populate,
        .reader = mp_io_reader_config(&settings->io, NULL, config->clock, NULL),
        .lookahead = (uint32_t)run->lookahead,
        .llapor_learns = run->llapor_learn,
        .deterministic = run->deterministic,
        .seed = run->seed,
        .pool = s->pool,
        .clock = config->clock,
        .timeline = config->timeline,
        .routed = config->routed,
        .routed_ctx = config->routed_ctx,
        .decision_log = config->decision_log,
        .observer = config->observer,
        .cancel = config->cancel,
    };
    status = choose_kv_type(settings, s);
    return status == MP_OK ? choose_kernels(settings, s) : status;
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
static enum mp_status open_sidecars(const struct mp_run_settings *run,
                                    const struct mp_session_config *config, struct mp_session *s)
{
    const int model_fd = mp_checkpoint_dir_fd(s->checkpoint);
    enum mp_status status = MP_OK;
    char heat_path[PATH_MAX];
    struct mp_model_id id;
    const char *path;
    int dir_fd;

    if (mp_sidecar_locate(run->calibration, model_fd, MP_CALIBRATION_NAME, &dir_fd, &path)) {
        mp_model_id_make(&s->model, s->weights, &id);
        status = mp_calibration_load(dir_fd, path, &id, &s->calibration);
    }
    if (status == MP_OK &&
        mp_heat_map_locate(run->heat_map, config->model, heat_path, sizeof(heat_path))) {
        mp_model_id_make(&s->model, s->weights, &id);
        status = mp_heat_map_open(heat_path, &id, &s->heat_map);
    }
    if (status == MP_OK &&
        mp_sidecar_locate(run->llapor, model_fd, MP_LLAPOR_NAME, &dir_fd, &path)) {
        mp_model_id_make(&s->model, s->weights, &id);
        status = mp_llapor_load(dir_fd, path, &id, &s->llapor);
    }
    if (status == MP_OK && run->lookahead > 0 &&
        mp_sidecar_locate(run->token_heat, model_fd, MP_TOKEN_HEAT_NAME, &dir_fd, &path)) {
        mp_model_id_make(&s->model, s->weights, &id);
        status = mp_token_heat_load(dir_fd, path, &id, s->model.vocab, &s->token_heat);
    }
    return status;
}

/* Before memory is planned: the addressing may depend on it. */
static void read_facts(const struct mp_run_settings *run, const struct mp_session_config *config,
                       struct mp_session *s)
{
    struct mp_weights *outline = NULL;
    struct mp_probe_shape shape;

    if (!s->device.cuda)
        return;
    /* The plan, which comes next, says what is wrong with them. */
    if (mp_weights_describe(s->checkpoint, &s->model, &outline) != MP_OK)
        mp_error_clear();
    shape = mp_device_facts_shape(&s->model, outline);
    mp_weights_destroy(outline);
    mp_device_facts_read(run, &s->device, &shape, config->probe && !config->plan_only,
                         mp_policies_want_costs(&s->engine_config.policies), &s->facts);
    s->engine_config.backend_config.no_host_handles = s->facts.no_host_handles;
}

static bool wants_drafts(const struct mp_settings *settings, const struct mp_session_config *config)
{
    return config->drafts && settings->run.draft_tokens > 0;
}

/* A layer of the model itself drafts; that is asked for as a draft model. */
static enum mp_status check_head(const struct mp_session_config *config, const struct mp_session *s)
{
    if (!config->drafts)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_DRAFT",
                       "--draft-model " MP_DRAFT_HEAD_NAME
                       ": only what generates text has the states that this layer takes");
    if (!mp_drafting_there(s->checkpoint, &s->model))
        return mp_fail(MP_ERR_CONFIG, "E_DRAFT",
                       "--draft-model " MP_DRAFT_HEAD_NAME
                       ": the model's files have no layer that drafts tokens; leave the option "
                       "out, or name a model (./" MP_DRAFT_HEAD_NAME " is a directory)");
    if (s->device.cuda)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_DRAFT",
                       "--draft-model " MP_DRAFT_HEAD_NAME ": only --device cpu has it");
    return MP_OK;
}

/* Recurrent layers cannot forget a guess that was wrong. */
static enum mp_status check_drafts(const struct mp_settings *settings,
                                   const struct mp_session_config *config,
                                   const struct mp_session *s)
{
    if (wants_drafts(settings, config) && s->model.delta.key_heads > 0)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_DRAFT",
                       "models with recurrent layers cannot take back a wrong guess; leave out "
                       "--draft-tokens");
    if (config->drafts && settings->run.draft_model[0] != '\0' && settings->run.draft_tokens == 0)
        return mp_fail(MP_ERR_CONFIG, "E_DRAFT",
                       "--draft-model guesses nothing without --draft-tokens, the most tokens that "
                       "are guessed at a time; 4 is a beginning");
    return mp_draft_head_wanted(&settings->run) && (config->drafts || config->draft_model)
               ? check_head(config, s)
               : MP_OK;
}

/* Before memory is planned: the plan sees what it leaves. */
static enum mp_status open_draft_model(const struct mp_settings *settings,
                                       const struct mp_session_config *config, struct mp_session *s)
{
    if (!(wants_drafts(settings, config) || config->draft_model) ||
        settings->run.draft_model[0] == '\0' || mp_draft_head_wanted(&settings->run) ||
        config->plan_only)
        return MP_OK;
    return mp_draft_model_open(settings, config, s, &s->draft_model);
}

/* Its experts have a share of the budget, which is known when memory is planned. */
static enum mp_status plan_memory(const struct mp_settings *settings,
                                  const struct mp_session_config *config, struct mp_session *s)
{
    const bool head = wants_drafts(settings, config) && mp_draft_head_wanted(&settings->run);
    enum mp_status status = mp_memory_plan_make(settings, config, head, s);

    if (status == MP_OK && head && !config->plan_only)
        status = mp_draft_head_open(settings, config, s, &s->draft_model);
    return status;
}

static void start_live(const struct mp_settings *settings, const struct mp_session_config *config,
                       struct mp_session *s)
{
    struct mp_live_facts facts = {
        .command = config->command,
        .model = config->model,
        .started_ns = mp_clock_now_ns(config->clock),
        .budget_bytes = s->memory.budget_bytes,
        .expert_bytes = s->memory.expert_bytes,
        .weights_bytes = s->memory.weights_bytes,
    };

    if (config->command == NULL)
        return;
    mp_counters_reset(&facts.counters);
    s->live = mp_live_start(&settings->live, &facts, config->clock);
    s->engine_config.live = s->live;
}

static enum mp_status open_model(const struct mp_settings *settings,
                                 const struct mp_session_config *config, struct mp_session *s)
{
    enum mp_status status = mp_checkpoint_open(config->model, &s->checkpoint);

    if (status == MP_OK)
        status = mp_model_config_load(s->checkpoint, &s->model);
    if (status == MP_OK && config->drafting)
        mp_drafting_config(&s->model);
    if (status == MP_OK)
        status = check_drafts(settings, config, s);
    if (status == MP_OK)
        status = open_tokenizer(config, s);
    if (status == MP_OK)
        status = open_draft_model(settings, config, s);
    if (status == MP_OK && s->draft_model != NULL)
        status = mp_draft_model_check(s->draft_model, s);
    if (status == MP_OK)
        status = fill_config(settings, config, s);
    if (status == MP_OK)
        status = mp_settings_policies(settings, &s->engine_config.policies);
    if (status == MP_OK && config->forced_routing != NULL && !config->plan_only)
        status =
            mp_forced_routing_load(config->forced_routing, s->model.moe_layers, s->model.experts,
                                   s->model.experts_per_token, &s->forced_routing);
    if (status == MP_OK) {
        read_facts(&settings->run, config, s);
        status = plan_memory(settings, config, s);
    }
    if (status == MP_OK && !config->plan_only && config->before_load != NULL)
        status = config->before_load(config->before_load_ctx);
    if (status == MP_OK && !config->plan_only) {
        start_live(settings, config, s);
        status = load_weights(config, s);
    }
    if (status == MP_OK && !config->plan_only && !config->no_sidecars)
        status = open_sidecars(&settings->run, config, s);
    return status;
}

static enum mp_status open_engine(const struct mp_settings *settings,
                                  const struct mp_session_config *config, struct mp_session *s)
{
    enum mp_status status = MP_OK;

    s->engine_config.weights = s->weights;
    s->engine_config.files = mp_checkpoint_files(s->checkpoint);
    s->engine_config.budget_bytes = s->memory.budget_bytes;
    s->engine_config.option_groups = settings->groups;
    s->engine_config.calibration = s->calibration;
    s->engine_config.llapor = s->llapor;
    s->engine_config.token_heat = s->token_heat;
    s->engine_config.heat_map = s->heat_map;
    s->engine_config.forced_routing = s->forced_routing;
    if (config->before_engine != NULL)
        status = config->before_engine(config->before_engine_ctx, &s->engine_config);
    return status == MP_OK ? mp_engine_create(&s->engine_config, &s->engine) : status;
}

static enum mp_status open_drafts(const struct mp_settings *settings,
                                  const struct mp_session_config *config, struct mp_session *s)
{
    struct mp_drafts_config drafts = {
        .source = s->draft_model,
        .sequences = config->sequences,
        .most = (uint32_t)settings->run.draft_tokens,
        /* nothing is read ahead where all experts are resident */
        .ahead =
            s->memory.budget_bytes < s->memory.full_bytes ? (uint32_t)settings->run.lookahead : 0,
        .always = settings->run.deterministic,
    };
    struct mp_draft_source *lookup = NULL;
    enum mp_status status = MP_OK;

    if (!wants_drafts(settings, config))
        return MP_OK;
    if (mp_draft_head_wanted(&settings->run))
        mp_draft_head_share(s->draft_model, s->weights);
    if (drafts.source == NULL || drafts.ahead > 0)
        status = mp_draft_lookup_create(config->sequences, s->engine_config.ctx, &lookup);
    if (status != MP_OK)
        return status;
    if (drafts.source == NULL)
        drafts.source = lookup;
    else
        drafts.quick = lookup;
    status = mp_drafts_create(&drafts, &s->drafts);
    if (status == MP_OK)
        s->draft_model = NULL; /* it has an owner */
    else if (lookup != NULL)
        lookup->ops->destroy(lookup);
    return status;
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
    enum mp_status status = MP_OK;

    memset(session, 0, sizeof(*session));
    if (config->machine != NULL)
        use_machine(config->machine, session);
    else
        status = open_machine(settings, session);
    if (status == MP_OK)
        status = open_model(settings, config, session);
    if (status == MP_OK && !config->plan_only) {
        if (session->facts.probed)
            mp_probe_costs(&session->facts.probe,
                           session->memory.expert_bytes /
                               (session->weights->unit_count / session->weights->slices.count),
                           session->weights->slices.count, &session->engine_config.costs);
        if (!config->no_engine)
            status = open_engine(settings, config, session);
        if (status == MP_OK)
            status = open_drafts(settings, config, session);
    }
    if (status != MP_OK) {
        mp_session_close(session);
        return status;
    }
    if (mp_checkpoint_warning(session->checkpoint) != NULL && !config->drafting)
        mp_log_warn("model", "%s", mp_checkpoint_warning(session->checkpoint));
    if (session->weights != NULL && session->weights->extra_tensors > 0)
        warn_extra(session->weights);
    return MP_OK;
}

enum mp_status mp_session_renew(struct mp_session *session, const struct mp_profile *policies,
                                const struct mp_observer *observer)
{
    mp_engine_destroy(session->engine);
    session->engine = NULL;
    session->engine_config.policies = *policies;
    session->engine_config.observer = observer;
    session->engine_config.decision_log = NULL; /* that of the first engine is closed */
    return mp_engine_create(&session->engine_config, &session->engine);
}

void mp_session_close(struct mp_session *session)
{
    mp_drafts_destroy(session->drafts);
    if (session->draft_model != NULL)
        session->draft_model->ops->destroy(session->draft_model);
    mp_engine_destroy(session->engine);
    mp_live_stop(session->live);
    mp_tokenizer_destroy(session->tokenizer);
    mp_calibration_destroy(session->calibration);
    mp_llapor_destroy(session->llapor);
    mp_token_heat_destroy(session->token_heat);
    mp_heat_map_close(session->heat_map);
    mp_forced_routing_destroy(session->forced_routing);
    mp_weights_destroy(session->weights);
    mp_checkpoint_close(session->checkpoint);
    if (!session->guest) {
        mp_pool_destroy(session->pool);
        mp_topology_destroy(session->topology);
    }
    memset(session, 0, sizeof(*session));
}

uint32_t mp_session_random_token(const struct mp_session *session, uint64_t *state_p)
{
    const uint32_t vocab = session->model.vocab;

    *state_p = *state_p * 6364136223846793005u + 1442695040888963407u;
    return vocab > 1 ? 1 + (uint32_t)((*state_p >> 33) % (vocab - 1)) : 0;
}
