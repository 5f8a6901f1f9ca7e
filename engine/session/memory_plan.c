/*
 * How many bytes weights, experts, KV cache and activations get. Allocates none of them.
 */
#include "engine/session/memory_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "engine/forward/kv.h"
#include "engine/model/drafting.h"
#include "engine/session/draft/head.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* Left for stacks, buffers and the page cache when a budget is chosen automatically: 256 MiB, or
 * in a small control group an eighth of what there is. Of addresses it is half: stacks and the
 * allocator's arenas take many more of them than of memory. */
#define MARGIN_BYTES (UINT64_C(256) << 20)
#define MARGIN_PARTS 8
#define MARGIN_PARTS_ADDRESSES 2

/* For prompts that are kept: so much, or such a part of a small machine's RAM. */
#define KEPT_BYTES (UINT64_C(256) << 20)
#define KEPT_PARTS 32

/* With --memory, of what experts do not need at least: the most that sequences have at first. */
#define SEQUENCES_PARTS 4

#define DEVICE_MARGIN_BYTES (UINT64_C(3) << 29)

uint64_t mp_memory_device_margin(uint64_t total_bytes)
{
    const uint64_t share = total_bytes / 20;
    const uint64_t least =
        total_bytes / 4 < DEVICE_MARGIN_BYTES ? total_bytes / 4 : DEVICE_MARGIN_BYTES;

    return share > least ? share : least;
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

/* More of copying a unit than this, and a window is not worth its page tables; more of a frame
 * than that, and its granules are not (as vmm/space/space_budget.c has it). */
#define WINDOW_SHARE 0.05
#define WINDOW_WASTE 0.15

static uint64_t bytes_of(const struct mp_unit *unit)
{
    uint64_t bytes = 0;

    for (uint32_t p = 0; p < unit->piece_count; p++)
        bytes += unit->pieces[p].bytes;
    return bytes;
}

/* The addressing of an engine that may choose, by what was measured here. */
static enum mp_addressing choose_addressing(const struct mp_device_facts *facts,
                                            const struct mp_unit *unit, uint64_t granule_bytes,
                                            char *why, size_t why_bytes)
{
    const uint64_t bytes = bytes_of(unit), rest = bytes % granule_bytes;
    const uint64_t waste = rest > 0 ? granule_bytes - rest : 0;
    const double share = facts->probed ? mp_probe_remap_share(&facts->probe, bytes) : NAN;

    if (isnan(share)) {
        snprintf(why, why_bytes, "auto; moepager probe has not measured mappings");
        return MP_ADDRESSING_TABLE;
    }
    if ((double)waste > WINDOW_WASTE * (double)(bytes + waste)) {
        snprintf(why, why_bytes, "auto; granules would waste %.1f %% of a window",
                 100.0 * (double)waste / (double)(bytes + waste));
        return MP_ADDRESSING_TABLE;
    }
    snprintf(why, why_bytes, "auto; mapping an expert takes %.1f %% of copying it", 100 * share);
    return share <= WINDOW_SHARE ? MP_ADDRESSING_WINDOW : MP_ADDRESSING_TABLE;
}

/* Sizes of units and of the memory they are to go to. */
static enum mp_status ask_backend(const struct mp_run_settings *run, struct mp_session *s,
                                  const struct mp_weights *outline, struct mp_space_plan *plan)
{
    struct mp_engine_config *e = &s->engine_config;
    struct mp_space_config space = {
        .files = mp_checkpoint_files(s->checkpoint),
        .units = outline->units,
        .unit_count = outline->unit_count,
        .budget_bytes = UINT64_MAX,
        .host_budget_bytes = UINT64_MAX,
        .io_mode = e->io_mode,
    };
    struct mp_backend_config config = e->backend_config;
    struct mp_memory_plan *m = &s->memory;
    enum mp_status status;

    config.no_host_handles = true; /* no frame is made */
    status = mp_backend_open(e->backend, &config, &space.backend);

    if (status != MP_OK)
        return status;
    if (s->device.cuda && run->addressing == MP_RUN_ADDRESSING_AUTO && outline->unit_count > 0)
        e->addressing =
            choose_addressing(&s->facts, &outline->units[0], space.backend->caps.granule_bytes,
                              s->addressing, sizeof(s->addressing));
    space.addressing = e->addressing;
    if (s->device.cuda)
        status = space.backend->ops->memory_info(space.backend, MP_TIER_DEVICE,
                                                 &m->device_free_bytes, &m->device_total_bytes);
    if (status == MP_OK)
        status = mp_space_make_plan(&space, plan);
    mp_backend_close(space.backend);
    return status;
}

/* Sizes of the model and of its slots, before anything large is read. */
static enum mp_status measure(const struct mp_run_settings *run, const char *model,
                              struct mp_session *s)
{
    struct mp_memory_plan *m = &s->memory;
    struct mp_weights *outline = NULL;
    struct mp_space_plan plan;
    enum mp_status status = mp_engine_measure(&s->engine_config, &m->kv_bytes, &m->state_bytes);

    if (status == MP_OK)
        status = mp_weights_describe(s->checkpoint, &s->model, &outline);
    if (status == MP_OK)
        status = check_slices(run, model, outline);
    if (status == MP_OK)
        status = ask_backend(run, s, outline, &plan);
    if (status == MP_OK) {
        m->weights_bytes = outline->resident_bytes;
        m->expert_bytes = plan.unit_bytes;
        m->smallest_bytes = plan.smallest_bytes;
        m->full_bytes = plan.full_bytes;
        m->host_full_bytes = plan.host_bytes;
        m->waste_bytes = plan.waste_bytes;
        m->window_bytes = plan.window_bytes;
        m->slices = outline->slices.count;
        m->extra_bytes = s->device.cuda ? mp_device_extra_bytes(&s->engine_config, m->slices) : 0;
        s->direct_io = plan.direct;
    }
    mp_weights_destroy(outline);
    return status;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;

    return mp_add_u64(a, b, &sum) ? sum : UINT64_MAX;
}

/* Of the layer that drafts. Its experts have slots for one token at least. */
static enum mp_status measure_draft(const struct mp_run_settings *run, struct mp_session *s)
{
    struct mp_draft_memory *m = &s->memory.draft;
    struct mp_engine_config engine = s->engine_config;
    struct mp_model_config model = s->model;
    struct mp_weights *outline = NULL;
    uint64_t kv_bytes = 0, state_bytes = 0;
    struct mp_space_plan plan;
    enum mp_status status;

    mp_drafting_config(&model);
    engine.model = &model;
    engine.wanted_max = 0;
    status = mp_engine_measure(&engine, &kv_bytes, &state_bytes);
    if (status == MP_OK)
        status = mp_weights_describe(s->checkpoint, &model, &outline);
    if (status == MP_OK)
        status = ask_backend(run, s, outline, &plan);
    if (status == MP_OK) {
        const uint64_t token_bytes =
            plan.smallest_bytes / 2 * outline->slices.count * model.experts_per_token;

        m->resident_bytes = outline->resident_bytes + mp_draft_head_bytes(&engine);
        m->resident_bytes = add(add(m->resident_bytes, kv_bytes), state_bytes);
        m->expert_bytes = plan.unit_bytes;
        m->full_bytes = plan.full_bytes;
        m->smallest_bytes = token_bytes > plan.smallest_bytes ? token_bytes : plan.smallest_bytes;
        if (m->smallest_bytes > m->full_bytes)
            m->smallest_bytes = m->full_bytes;
    }
    mp_weights_destroy(outline);
    return status;
}

static enum mp_status refuse_budget(const struct mp_share *share, const struct mp_memory_plan *m)
{
    char hint[64] = "raise --budget";

    if (mp_share_seems_percent(share))
        snprintf(hint, sizeof(hint), "did you mean --budget %" PRIu64 "%%?", share->amount);
    return mp_fail(MP_ERR_CONFIG, "E_BUDGET_SMALL",
                   "budget of %" PRIu64 " bytes is below the smallest for this model: need "
                   "%" PRIu64 " (two slots); %s",
                   m->budget_bytes, m->smallest_bytes, hint);
}

/* The budget of a setting, where `available` bytes are to be had; whole where it asks for that. */
static enum mp_status choose_budget(const struct mp_share *share, uint64_t available,
                                    struct mp_memory_plan *m)
{
    m->budget_bytes = mp_share_resolve(share, m->expert_bytes, available);
    if (m->budget_bytes > m->full_bytes || share->kind == MP_SHARE_ALL ||
        (share->kind == MP_SHARE_PPM && share->amount == 1000000))
        m->budget_bytes = m->full_bytes;
    if (m->budget_bytes < m->smallest_bytes && share->kind == MP_SHARE_AUTO)
        m->budget_bytes = m->smallest_bytes;
    if (m->budget_bytes < m->smallest_bytes)
        return refuse_budget(share, m);
    return MP_OK;
}

/* What is left of `room` after `base` and a margin. */
static uint64_t available_bytes(uint64_t room, uint64_t base, uint64_t margin)
{
    const uint64_t all = add(base, margin);

    return room > all ? room - all : 0;
}

/* What of it the experts of the model get: those of a layer that drafts have their share, but no
 * less than they need and no more than all of them. */
static uint64_t divide_available(const struct mp_memory_plan *m, uint64_t bytes)
{
    const double both = (double)m->expert_bytes + (double)m->draft.expert_bytes;
    uint64_t draft = m->draft.full_bytes;

    if ((double)bytes * (double)m->draft.expert_bytes < both * (double)draft)
        draft = (uint64_t)((double)bytes * ((double)m->draft.expert_bytes / both)) + 1;
    if (draft < m->draft.smallest_bytes)
        draft = m->draft.smallest_bytes;
    return bytes > draft ? bytes - draft : 0;
}

static void choose_draft_budget(struct mp_memory_plan *m)
{
    const double share = (double)m->budget_bytes / (double)m->expert_bytes;
    uint64_t bytes = (uint64_t)((double)m->draft.expert_bytes * share);

    if (bytes > m->draft.full_bytes || m->budget_bytes == m->full_bytes)
        bytes = m->draft.full_bytes;
    m->draft.budget_bytes = bytes > m->draft.smallest_bytes ? bytes : m->draft.smallest_bytes;
}

static uint64_t host_margin(const struct mp_memory_room *room)
{
    const bool addresses = room->address_bytes <= room->room_bytes;
    const uint64_t part = room->room_bytes / (addresses ? MARGIN_PARTS_ADDRESSES : MARGIN_PARTS);

    return part < MARGIN_BYTES ? part : MARGIN_BYTES;
}

/* Prompts are kept in what is asked for; else in a share of what there is. */
static uint64_t kept_bytes(uint64_t wanted, uint64_t room)
{
    const uint64_t share = room / KEPT_PARTS < KEPT_BYTES ? room / KEPT_PARTS : KEPT_BYTES;

    return wanted == MP_KEPT_AUTO ? share : wanted;
}

/* An automatic budget that is the smallest one says why. */
static void warn_smallest(const struct mp_memory_plan *m, uint64_t base)
{
    mp_log_warn("plan",
                "--budget auto takes the smallest budget, %" PRIu64 " of %" PRIu64
                " bytes: this process can take %" PRIu64 " bytes of RAM, weights, KV cache and "
                "activations need %" PRIu64 ", and %" PRIu64 " are left for the rest; lower --ctx, "
                "or name a budget",
                m->budget_bytes, m->full_bytes, m->room_bytes, base, m->margin_bytes);
}

/* The device's memory holds budget, weights, cache, activations, and what runs the quicker for
 * them. */
static enum mp_status plan_device(const struct mp_share *share, bool plan_only,
                                  struct mp_memory_plan *m)
{
    const uint64_t base = add(add(m->weights_bytes, m->kv_bytes), m->state_bytes);
    const uint64_t margin = add(m->extra_bytes, mp_memory_device_margin(m->device_total_bytes));
    enum mp_status status =
        choose_budget(share, available_bytes(m->device_free_bytes, base, margin), m);

    if (status == MP_OK && !plan_only &&
        add(add(base, m->budget_bytes), m->extra_bytes) > m->device_free_bytes)
        return mp_fail(MP_ERR_NO_MEMORY, "E_DEVICE_ROOM",
                       "not enough memory on the device: weights %" PRIu64 ", KV cache %" PRIu64
                       ", activations %" PRIu64 ", experts %" PRIu64
                       ", graphs, cuBLAS and rounding %" PRIu64 " bytes, but %" PRIu64
                       " of %" PRIu64 " are free; lower --budget, --ctx or --prefill-tokens, or "
                       "do without: --cuda-gemm own, --graphs=off",
                       m->weights_bytes, m->kv_bytes, m->state_bytes, m->budget_bytes,
                       m->extra_bytes, m->device_free_bytes, m->device_total_bytes);
    return status;
}

/*
 * RAM: weights are read into it before they go to a device, or stay. With a device activations
 * that cross over are pinned beside it, and the host tier takes what can be spared, or what is
 * asked for.
 */
static uint64_t plan_host_tier(const struct mp_share *share, uint64_t base,
                               const struct mp_memory_plan *m)
{
    const uint64_t available = available_bytes(m->room_bytes, base, m->margin_bytes);
    uint64_t bytes = share->kind == MP_SHARE_ALL
                         ? UINT64_MAX
                         : mp_share_resolve(share, m->expert_bytes, available);

    if (share->kind == MP_SHARE_AUTO && bytes >= m->host_full_bytes)
        bytes = UINT64_MAX;
    return bytes;
}

/* RAM that experts do not get. */
static uint64_t host_base(const struct mp_session *session)
{
    const struct mp_memory_plan *m = &session->memory;
    const uint64_t base = add(add(m->weights_bytes, m->state_bytes), m->draft.resident_bytes);

    return session->device.cuda ? base : add(add(base, m->kv_bytes), m->kept_bytes);
}

/* A server of long contexts serves short ones; but nothing if not even those have room. */
static enum mp_status check_sequences(const struct mp_session_config *config,
                                      const struct mp_session *s, uint64_t limit)
{
    const struct mp_memory_plan *m = &s->memory;
    const uint64_t whole = mp_kv_sequence_bytes(&s->engine_config, s->engine_config.ctx);

    if (m->shared_bytes < add(m->smallest_bytes, mp_kv_sequence_bytes(&s->engine_config, 2)))
        return mp_fail(MP_ERR_NO_MEMORY, "E_RAM",
                       "--memory %" PRIu64 ": weights %" PRIu64 ", activations %" PRIu64
                       ", the smallest budget of experts %" PRIu64 ", the KV cache of one answer "
                       "and %" PRIu64 " bytes for the rest are more than %" PRIu64
                       "; lower --prefill-tokens or --batch",
                       config->memory_bytes, m->weights_bytes, m->state_bytes, m->smallest_bytes,
                       m->margin_bytes, limit);
    if (m->shared_bytes - m->smallest_bytes < whole)
        mp_log_warn("plan",
                    "--memory %" PRIu64 ": the KV cache of a context of %u tokens is %" PRIu64
                    " bytes, but beside the smallest budget of experts there are %" PRIu64
                    ": longer prompts and answers are refused",
                    config->memory_bytes, s->engine_config.ctx, whole,
                    m->shared_bytes - m->smallest_bytes);
    return MP_OK;
}

/* Of config->memory_bytes experts get what is left, but for some that prompts begin with, and for
 * one sequence. */
static enum mp_status divide_memory(const struct mp_settings *settings,
                                    const struct mp_session_config *config, struct mp_session *s)
{
    struct mp_memory_plan *m = &s->memory;
    const uint64_t limit =
        config->memory_bytes < m->room_bytes ? config->memory_bytes : m->room_bytes;
    const uint64_t part = limit / MARGIN_PARTS;
    uint64_t spare, left;
    enum mp_status status;

    if (s->device.cuda)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--memory divides RAM, but experts are on a GPU; --budget is for those");
    if (settings->run.budget.kind != MP_SHARE_AUTO)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--memory finds the budget itself; leave out --budget, or --memory");
    m->margin_bytes = part < MARGIN_BYTES ? part : MARGIN_BYTES;
    m->kept_bytes = 0;
    m->shared_bytes =
        available_bytes(limit, add(m->weights_bytes, m->state_bytes), m->margin_bytes);
    status = check_sequences(config, s, limit);
    if (status != MP_OK)
        return status;
    spare = m->shared_bytes - m->smallest_bytes;
    m->sequences_bytes = mp_kv_sequence_bytes(&s->engine_config, s->engine_config.ctx);
    if (m->sequences_bytes > spare / SEQUENCES_PARTS)
        m->sequences_bytes = spare / SEQUENCES_PARTS;
    left = m->shared_bytes - m->sequences_bytes;
    if (left - left / KEPT_PARTS >= m->smallest_bytes)
        m->kept_bytes = left / KEPT_PARTS;
    return choose_budget(&settings->run.budget, left - m->kept_bytes, m);
}

static void read_room(const struct mp_session_config *config, struct mp_session *session)
{
    struct mp_memory_plan *m = &session->memory;
    struct mp_memory_room room;

    mp_memory_room_read("", &room);
    m->room_bytes = room.total_bytes == 0 ? UINT64_MAX : room.room_bytes;
    m->margin_bytes = host_margin(&room);
    m->kept_bytes = session->device.cuda ? 0 : kept_bytes(config->kept_bytes, m->room_bytes);
}

static enum mp_status refuse_room(const struct mp_session *session, uint64_t experts)
{
    const struct mp_memory_plan *m = &session->memory;

    return mp_fail(
        MP_ERR_NO_MEMORY, "E_RAM",
        "not enough RAM: weights %" PRIu64 ", KV cache %" PRIu64 ", activations %" PRIu64
        ", prompts %" PRIu64 ", experts %" PRIu64 " bytes, but this process can take %" PRIu64
        "; lower --%sbudget, --ctx or --prefill-tokens",
        m->weights_bytes + m->draft.resident_bytes, session->device.cuda ? 0 : m->kv_bytes,
        m->state_bytes, m->kept_bytes, experts, m->room_bytes, session->device.cuda ? "host-" : "");
}

enum mp_status mp_memory_plan_make(const struct mp_settings *settings,
                                   const struct mp_session_config *config, bool draft,
                                   struct mp_session *session)
{
    const struct mp_run_settings *run = &settings->run;
    struct mp_memory_plan *m = &session->memory;
    uint64_t experts, available = UINT64_MAX;
    enum mp_status status = measure(run, config->model, session);

    if (status == MP_OK && draft)
        status = measure_draft(run, session);
    if (status != MP_OK)
        return status;
    read_room(config, session);
    if (config->memory_bytes > 0) {
        status = divide_memory(settings, config, session);
        experts = m->budget_bytes;
    } else if (session->device.cuda) {
        status = plan_device(&run->budget, config->plan_only, m);
        experts = plan_host_tier(&run->host_budget, host_base(session), m);
        session->engine_config.host_budget_bytes = experts;
        experts = experts < m->host_full_bytes ? experts : m->host_full_bytes;
    } else {
        available = available_bytes(m->room_bytes, host_base(session), m->margin_bytes);
        available = divide_available(m, available);
        status = choose_budget(&run->budget, available, m);
        if (status == MP_OK)
            choose_draft_budget(m);
        experts = add(m->budget_bytes, m->draft.budget_bytes);
    }
    if (status != MP_OK)
        return status;
    m->total_bytes = config->memory_bytes > 0
                         ? add(add(m->weights_bytes, m->state_bytes), m->shared_bytes)
                         : add(host_base(session), experts);
    if (config->plan_only)
        return MP_OK;
    if (m->total_bytes > m->room_bytes)
        return refuse_room(session, experts);
    if (run->budget.kind == MP_SHARE_AUTO && available < m->smallest_bytes &&
        m->smallest_bytes < m->full_bytes)
        warn_smallest(m, host_base(session));
    return MP_OK;
}
