/*
 * A pager that does not page, for `bench_plain`: the engine with weights in plain memory. All units
 * are read before the first token into the same slots; a layer's needs are pointers out of a table.
 * No unit has a state, nothing is leased, counted or asked of a policy. What the pager costs when
 * everything is resident is the difference (tools/bench/pager_overhead). Linked in place of
 * policy/pager/pager.c.
 */
#include "policy/pager/pager.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/error.h"

struct mp_pager {
    struct mp_pager_config config;
    const void *(*pieces)[MP_UNIT_PIECES_MAX]; // (units)
    uint32_t units, loaded;
    uint32_t layer, need_count, next_need;
    uint32_t *experts; // (experts): of the open layer's needs
};

static enum mp_status load_all(struct mp_pager *pager)
{
    struct mp_space *space = pager->config.space;
    enum mp_status status = MP_OK;

    for (uint32_t u = 0; u < pager->units && status == MP_OK; u++)
        status = mp_space_load(space, u, MP_PRIORITY_DEMAND);
    for (uint32_t u = 0; u < pager->units && status == MP_OK; u++) {
        status = mp_space_wait(space, u);
        if (status == MP_OK)
            status = mp_space_lease(space, u, pager->pieces[u]);
        pager->loaded += status == MP_OK;
    }
    if (status == MP_ERR_NO_SPACE)
        return mp_fail(MP_ERR_CONFIG, "E_BENCH", "plain memory needs --budget all");
    return status;
}

void mp_pager_fit_shape(const struct mp_space *space, struct mp_shape *shape)
{
    struct mp_space_plan plan;

    mp_space_get_plan(space, &plan);
    shape->slots = plan.slots;
    shape->expert_bytes = plan.slot_bytes_max;
}

enum mp_status mp_pager_create(const struct mp_pager_config *config, struct mp_pager **pager_p)
{
    struct mp_pager *pager = calloc(1, sizeof(*pager));
    enum mp_status status;

    if (pager == NULL)
        return mp_fail_no_memory("the pager", sizeof(*pager));
    pager->config = *config;
    pager->units = mp_space_unit_count(config->space);
    pager->pieces = calloc(pager->units, sizeof(*pager->pieces));
    pager->experts = calloc(config->shape.experts, sizeof(*pager->experts));
    if (pager->pieces == NULL || pager->experts == NULL)
        status = mp_fail_no_memory("the pager's tables", pager->units * sizeof(*pager->pieces));
    else if (config->shape.slices > 1)
        status = mp_fail(MP_ERR_CONFIG, "E_BENCH", "plain memory needs experts in one piece");
    else
        status = load_all(pager);
    if (status != MP_OK) {
        mp_pager_destroy(pager);
        return status;
    }
    *pager_p = pager;
    return MP_OK;
}

void mp_pager_destroy(struct mp_pager *pager)
{
    if (pager == NULL)
        return;
    for (uint32_t u = 0; u < pager->loaded; u++)
        mp_space_release(pager->config.space, u);
    free(pager->pieces);
    free(pager->experts);
    free(pager);
}

void mp_pager_scores(struct mp_pager *pager, uint32_t layer, uint32_t tokens, uint32_t k,
                     const float *scores, const uint32_t *chosen)
{
    (void)pager, (void)layer, (void)tokens, (void)k, (void)scores, (void)chosen;
}

enum mp_status mp_pager_begin(struct mp_pager *pager, uint32_t layer, const struct mp_need *needs,
                              uint32_t count)
{
    pager->layer = layer;
    pager->need_count = count;
    pager->next_need = 0;
    for (uint32_t i = 0; i < count; i++)
        pager->experts[i] = needs[i].expert;
    return MP_OK;
}

enum mp_status mp_pager_next_now(struct mp_pager *pager, struct mp_ready *ready_p)
{
    ready_p->need = MP_NEED_NONE;
    if (pager->next_need < pager->need_count) {
        const uint32_t expert = pager->experts[pager->next_need];

        ready_p->need = pager->next_need++;
        memcpy(ready_p->pieces, pager->pieces[pager->layer * pager->config.shape.experts + expert],
               sizeof(ready_p->pieces));
    }
    return MP_OK;
}

enum mp_status mp_pager_next_early(struct mp_pager *pager, struct mp_ready *ready_p)
{
    return mp_pager_next_now(pager, ready_p);
}

enum mp_status mp_pager_next(struct mp_pager *pager, struct mp_ready *ready_p)
{
    return mp_pager_next_now(pager, ready_p);
}

enum mp_status mp_pager_next_or(struct mp_pager *pager, const struct mp_interrupt *interrupt,
                                struct mp_ready *ready_p)
{
    (void)interrupt;
    return mp_pager_next_now(pager, ready_p);
}

void mp_pager_wake(struct mp_pager *pager)
{
    (void)pager;
}

void mp_pager_done(struct mp_pager *pager, uint32_t need)
{
    (void)pager, (void)need;
}

void mp_pager_end(struct mp_pager *pager)
{
    (void)pager;
}

void mp_pager_settle(struct mp_pager *pager)
{
    (void)pager;
}

void mp_pager_pause(struct mp_pager *pager)
{
    (void)pager;
}

void mp_pager_abort(struct mp_pager *pager)
{
    (void)pager;
}

uint32_t mp_pager_prefetch_room(const struct mp_pager *pager, uint32_t layer)
{
    (void)pager, (void)layer;
    return 0;
}

void mp_pager_foresee(struct mp_pager *pager, uint32_t layer, const uint32_t *experts,
                      uint32_t count)
{
    (void)pager, (void)layer, (void)experts, (void)count;
}

void mp_pager_prefetch(struct mp_pager *pager, uint32_t layer, const uint32_t *experts,
                       uint32_t count)
{
    (void)pager, (void)layer, (void)experts, (void)count;
}

enum mp_status mp_pager_set_budget(struct mp_pager *pager, uint64_t budget_bytes)
{
    (void)pager, (void)budget_bytes;
    return mp_fail(MP_ERR_CONFIG, "E_BENCH", "plain memory has no budget");
}

uint64_t mp_pager_unused_bytes(const struct mp_pager *pager)
{
    (void)pager;
    return 0;
}

void mp_pager_residents(struct mp_pager *pager, uint32_t layer, bool on_the_way, uint8_t *resident)
{
    (void)layer, (void)on_the_way;
    memset(resident, 1, pager->config.shape.experts);
}

uint64_t mp_pager_load_ns(const struct mp_pager *pager)
{
    (void)pager;
    return 0;
}

bool mp_pager_find(struct mp_pager *pager, uint32_t unit, const void *piece_p[MP_UNIT_PIECES_MAX])
{
    (void)pager, (void)unit, (void)piece_p;
    return false;
}

bool mp_pager_lease_host(struct mp_pager *pager, uint32_t unit,
                         const void *piece_p[MP_UNIT_PIECES_MAX])
{
    (void)pager, (void)unit, (void)piece_p;
    return false;
}

void mp_pager_release_host(struct mp_pager *pager, uint32_t unit)
{
    (void)pager, (void)unit;
}

bool mp_pager_arrivals(const struct mp_pager *pager, uint32_t layer, const uint8_t *resident,
                       uint64_t first_ns, uint64_t unit_ns, uint64_t *arrival_ns)
{
    (void)pager;
    (void)layer;
    (void)resident;
    (void)first_ns;
    (void)unit_ns;
    (void)arrival_ns;
    return false;
}

bool mp_pager_is_deterministic(const struct mp_pager *pager)
{
    (void)pager;
    return false;
}

uint32_t mp_pager_reading(const struct mp_pager *pager)
{
    (void)pager;
    return 0;
}

uint32_t mp_pager_slots(const struct mp_pager *pager)
{
    return pager->config.shape.slots;
}

uint32_t mp_pager_quota(const struct mp_pager *pager, uint32_t layer)
{
    (void)pager, (void)layer;
    return MP_LAYER_ANY;
}

uint32_t mp_pager_retained(const struct mp_pager *pager, uint32_t layer)
{
    (void)pager, (void)layer;
    return 1;
}

bool mp_pager_check(struct mp_pager *pager)
{
    (void)pager;
    return true;
}
