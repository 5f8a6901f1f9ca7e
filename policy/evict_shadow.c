/*
 * Several policies at once, the best of which is followed. Each of layer-lru, lfu, lcp and a static
 * placement keeps a ghost: the set of units that it would hold if it had all slots to itself. Every
 * use is put to all ghosts; a miss of a ghost counts with what it would have cost. The leader is
 * changed when another ghost has been cheaper by HYSTERESIS percent of refilling all slots since
 * the leader was last as good (a one-sided sum: it never falls below 0). The victim is the oldest
 * unit that the leader's ghost does not hold, else the leader's own.
 *
 * Why that is never much worse than the best of the ghosts. While a ghost is followed, a miss that
 * is not also the ghost's loads one of its units in place of one that it does not hold, so there
 * are at most `slots` of them after each change of the leader; and between changes no other ghost
 * was cheaper than the leader by more than the hysteresis h. With S changes, on demand loads alone
 * and equal costs:
 *
 *     misses <= misses of the best ghost + (S + 1) * (h * slots + most units of one batch)
 *               + S * slots
 *
 * The static ghost holds the hottest units: those of a calibration at first, and of what was
 * counted so far after 64, 128, 256, ... batches of each layer (each new choice is a change in the
 * sum above). It leaves slots for what passes through, as many as a token has experts but a quarter
 * at most. It loads nothing, so its miss costs what the CPU needs, where that is known and less
 * than a load. When it takes the lead that is said once: paging does not pay here.
 *
 * Ours, after set duelling (Qureshi et al., ISCA 2007) and follow-the-leader with switching costs.
 * on_access: a search of each ghost's units for each of its misses; pick O(residents).
 */
#include "policy/builtins.h"

#include <stdlib.h>
#include <string.h>

#include "policy/hot.h"
#include "policy/residents.h"
#include "policy/sorter.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define GHOSTS 4u
#define STATIC 3u
#define FIRST_CHOICE 64u

struct shadow_config {
    uint64_t hysteresis;
};

static const struct mp_opt shadow_opts[] = {
    MP_OPT(MP_OPT_U64, "HYSTERESIS", struct shadow_config, hysteresis, "100", 1, 1000,
           "How much cheaper another policy must have been before evict policy shadow follows it, "
           "in percent of loading all slots."),
    MP_OPT_END,
};

struct ghost {
    const struct mp_evict_ops *ops; /* NULL: the static one */
    struct mp_policy *policy;
    uint8_t *held;      // (units)
    uint8_t *evictable; // (units): held and not used by the present batch
    uint32_t count;
    uint64_t cost; /* of the present batch */
    uint64_t lead; /* how much cheaper than the leader it has been */
};

struct shadow {
    struct mp_policy super;
    struct mp_residents residents;
    struct ghost ghosts[GHOSTS];
    const struct mp_costs *costs;
    uint32_t units, slots, leader, changes;
    uint32_t placed;     /* units of the static ghost */
    uint64_t hysteresis; /* percent */
    uint64_t *stamp;     // (units): order of last use
    uint64_t *count;     // (units): batches that used it
    uint32_t *order;     // (units): scratch
    uint32_t *batch;     // (units): used by the present batch
    uint32_t batch_count;
    uint64_t uses, now, batches, choose_at;
    bool said;
};

static void shadow_destroy(struct mp_policy *policy)
{
    struct shadow *shadow = (struct shadow *)policy;

    for (uint32_t g = 0; g < GHOSTS; g++) {
        struct ghost *ghost = &shadow->ghosts[g];

        if (ghost->policy != NULL)
            ghost->ops->destroy(ghost->policy);
        free(ghost->held);
        free(ghost->evictable);
    }
    mp_residents_fini(&shadow->residents);
    free(shadow->stamp);
    free(shadow->count);
    free(shadow->order);
    free(shadow->batch);
    free(shadow);
}

static enum mp_status create_ghost(struct ghost *ghost, const struct mp_evict_ops *ops,
                                   const struct mp_shape *shape)
{
    const size_t units = (size_t)shape->layers * shape->experts;
    char prefix[MP_POLICY_PREFIX_BYTES];
    void *config = NULL;
    enum mp_status status;

    ghost->ops = ops;
    ghost->held = calloc(units, 1);
    ghost->evictable = calloc(units, 1);
    if (ghost->held == NULL || ghost->evictable == NULL)
        return mp_fail_no_memory("evict policy 'shadow'", units * 2);
    if (ops == NULL)
        return MP_OK;
    if (ops->info.config_size > 0) {
        config = calloc(1, ops->info.config_size);
        if (config == NULL)
            return mp_fail_no_memory("evict policy 'shadow'", ops->info.config_size);
        mp_policy_prefix(&ops->info, prefix);
        mp_opt_load(ops->info.opts, prefix, config);
    }
    status = ops->create(config, shape, &ghost->policy);
    free(config);
    return status;
}

/* The static ghost: the first of order[]. What it lacks must pass through slots that it leaves. */
static void place_static(struct shadow *shadow)
{
    struct ghost *ghost = &shadow->ghosts[STATIC];

    memset(ghost->held, 0, shadow->units);
    for (uint32_t i = 0; i < shadow->placed && i < shadow->units; i++)
        ghost->held[shadow->order[i]] = 1;
}

static enum mp_status fill(struct shadow *shadow, const struct mp_shape *shape)
{
    static const struct mp_evict_ops *const followed[GHOSTS] = { &mp_evict_layer_lru, &mp_evict_lfu,
                                                                 &mp_evict_lcp };
    enum mp_status status = MP_OK;

    for (uint32_t g = 0; g < GHOSTS && status == MP_OK; g++)
        status = create_ghost(&shadow->ghosts[g], followed[g], shape);
    if (status == MP_OK)
        status = mp_residents_init(&shadow->residents, shape);
    if (status != MP_OK)
        return status;
    shadow->stamp = calloc(shadow->units, sizeof(uint64_t));
    shadow->count = calloc(shadow->units, sizeof(uint64_t));
    shadow->batch = calloc(shadow->units, sizeof(uint32_t));
    if (shadow->stamp == NULL || shadow->count == NULL || shadow->batch == NULL)
        return mp_fail_no_memory("evict policy 'shadow'", shadow->units * 20u);
    if (shape->calibration != NULL && shape->calibration->hot != NULL) {
        status = mp_hot_order(shape, &shadow->order);
        if (status == MP_OK)
            place_static(shadow);
        return status;
    }
    shadow->order = calloc(shadow->units, sizeof(uint32_t));
    return shadow->order != NULL ? MP_OK
                                 : mp_fail_no_memory("evict policy 'shadow'", shadow->units * 4u);
}

static enum mp_status shadow_create(const void *config_, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    const struct shadow_config *config = config_;
    struct shadow *shadow = calloc(1, sizeof(*shadow));
    enum mp_status status;
    uint32_t room;

    if (shadow == NULL)
        return mp_fail_no_memory("evict policy 'shadow'", sizeof(*shadow));
    shadow->super.info = &mp_evict_shadow.info;
    shadow->units = shape->layers * shape->experts;
    shadow->slots = shape->slots;
    room = shape->slots / 4 < shape->top_k ? shape->slots / 4 : shape->top_k;
    room = room > 0 ? room : 1;
    shadow->placed = shape->slots > room ? shape->slots - room : 0;
    shadow->costs = shape->costs;
    shadow->hysteresis = config->hysteresis;
    shadow->choose_at = (uint64_t)FIRST_CHOICE * shape->layers;
    status = fill(shadow, shape);
    if (status != MP_OK) {
        shadow_destroy(&shadow->super);
        return status;
    }
    *policy_p = &shadow->super;
    return MP_OK;
}

static uint64_t load_cost(const struct shadow *shadow)
{
    return shadow->costs != NULL && shadow->costs->load_ns > 0 ? shadow->costs->load_ns : 1;
}

/* A static placement has the CPU compute what it lacks, if that is known and quicker. */
static uint64_t static_cost(const struct shadow *shadow, uint32_t tokens)
{
    const uint64_t load = load_cost(shadow);
    uint64_t cpu;

    if (shadow->costs == NULL || shadow->costs->load_ns == 0 ||
        (shadow->costs->cpu_fixed_ns == 0 && shadow->costs->cpu_token_ns == 0))
        return load;
    cpu = shadow->costs->cpu_fixed_ns + shadow->costs->cpu_token_ns * tokens;
    return cpu < load ? cpu : load;
}

static void ghost_load(struct shadow *shadow, struct ghost *ghost, uint32_t unit)
{
    const struct mp_evict_query query = { .for_unit = unit,
                                          .scope_layer = MP_LAYER_ANY,
                                          .experts = shadow->residents.experts,
                                          .evictable = ghost->evictable };

    if (ghost->count == shadow->slots) {
        const uint32_t victim = ghost->ops->pick(ghost->policy, &query);

        if (victim == MP_UNIT_NONE)
            return; /* one batch fills all slots: not kept */
        ghost->held[victim] = ghost->evictable[victim] = 0;
        ghost->count--;
        ghost->ops->on_remove(ghost->policy, victim, shadow->now);
    }
    if (shadow->slots == 0)
        return;
    ghost->held[unit] = 1;
    ghost->count++;
    ghost->ops->on_insert(ghost->policy, unit, shadow->now);
}

static void follow(struct shadow *shadow, uint32_t leader)
{
    shadow->leader = leader;
    shadow->changes++;
    for (uint32_t g = 0; g < GHOSTS; g++)
        shadow->ghosts[g].lead = 0;
    if (leader == STATIC && !shadow->said) {
        shadow->said = true;
        mp_log_info("policy", "moving experts costs more than it saves here: the residents now "
                              "follow a static placement");
    }
}

/* Add up what the batch cost, and change the leader if another one is clearly cheaper. */
static void settle(struct shadow *shadow)
{
    const uint64_t paid = shadow->ghosts[shadow->leader].cost;
    const uint64_t limit = shadow->hysteresis * shadow->slots * load_cost(shadow) / 100;
    uint32_t best = shadow->leader;

    for (uint32_t g = 0; g < GHOSTS; g++) {
        struct ghost *ghost = &shadow->ghosts[g];
        const uint64_t sum = ghost->lead + paid;

        ghost->lead = sum > ghost->cost ? sum - ghost->cost : 0;
        ghost->cost = 0;
        if (ghost->lead > limit && ghost->lead > shadow->ghosts[best].lead)
            best = g;
    }
    if (best != shadow->leader)
        follow(shadow, best);
}

/* A new batch: the last one is settled, its units may leave again. */
static void turn(struct shadow *shadow, uint64_t now)
{
    settle(shadow);
    for (uint32_t i = 0; i < shadow->batch_count; i++) {
        for (uint32_t g = 0; g < GHOSTS; g++)
            shadow->ghosts[g].evictable[shadow->batch[i]] =
                shadow->ghosts[g].held[shadow->batch[i]];
    }
    shadow->batch_count = 0;
    shadow->now = now;
    if (++shadow->batches == shadow->choose_at) {
        shadow->choose_at *= 2;
        mp_sorter_sort(shadow->order, shadow->units, shadow->count);
        place_static(shadow);
        shadow->changes += shadow->leader == STATIC;
    }
}

static void shadow_on_access(struct mp_policy *policy, uint32_t unit, uint32_t tokens, uint64_t now)
{
    struct shadow *shadow = (struct shadow *)policy;

    if (shadow->now != now || shadow->batch_count == shadow->units)
        turn(shadow, now);
    shadow->batch[shadow->batch_count++] = unit;
    shadow->stamp[unit] = ++shadow->uses;
    shadow->count[unit]++;
    for (uint32_t g = 0; g < GHOSTS; g++) {
        struct ghost *ghost = &shadow->ghosts[g];

        if (ghost->ops != NULL)
            ghost->ops->on_access(ghost->policy, unit, tokens, now);
        ghost->evictable[unit] = 0;
        if (ghost->held[unit])
            continue;
        ghost->cost += g == STATIC ? static_cost(shadow, tokens) : load_cost(shadow);
        if (ghost->ops != NULL)
            ghost_load(shadow, ghost, unit);
    }
}

static void shadow_on_insert(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    struct shadow *shadow = (struct shadow *)policy;

    (void)now;
    mp_residents_add(&shadow->residents, unit);
    shadow->stamp[unit] = ++shadow->uses;
}

static void shadow_on_remove(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    (void)now;
    mp_residents_remove(&((struct shadow *)policy)->residents, unit);
}

static uint32_t shadow_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct shadow *shadow = (const struct shadow *)policy;
    const struct ghost *leader = &shadow->ghosts[shadow->leader];
    uint32_t strange = MP_UNIT_NONE, unit;

    for (uint32_t i = 0; i < shadow->residents.count; i++) {
        unit = shadow->residents.unit[i];
        if (!leader->held[unit] && mp_evict_allows(query, unit) &&
            (strange == MP_UNIT_NONE || shadow->stamp[unit] < shadow->stamp[strange]))
            strange = unit;
    }
    if (strange != MP_UNIT_NONE)
        return strange;
    /* All that may go is in the ghost too, so its policy knows it. */
    if (leader->ops != NULL)
        return leader->ops->pick(leader->policy, query);
    return mp_residents_min(&shadow->residents, query, MP_LAYER_ANY, shadow->stamp, NULL);
}

uint32_t mp_evict_shadow_changes(const struct mp_policy *policy)
{
    return ((const struct shadow *)policy)->changes;
}

const struct mp_evict_ops mp_evict_shadow = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "shadow",
              .summary = "follows whichever of several policies would have cost least so far",
              .opts = shadow_opts,
              .config_size = sizeof(struct shadow_config) },
    .create = shadow_create,
    .destroy = shadow_destroy,
    .per_layer = true, /* its first leader keeps the layers apart */
    .on_insert = shadow_on_insert,
    .on_remove = shadow_on_remove,
    .on_access = shadow_on_access,
    .pick = shadow_pick,
};
