/*
 * Several policies at once, the best of which is followed. Each has a ghost (policy/evict/ghost.h):
 * the experts that it would hold if it had all slots to itself. Six move experts on demand:
 * next-use (leads first), layer-lfu, layer-lru, lcp, lru, ema. Three place them: the hottest ones
 * (of a calibration at first, then of what was counted so far), whole layers, and the hottest ones
 * lately. What each layer would have taken with what a ghost holds is computed from what work costs
 * (policy/assign/plan.h: loads, device and CPU side by side; where costs are not known, a miss is 1
 * and all else nothing), and so is what it took with what is really resident, the link being as
 * busy as prefetches and swaps have made it. Nothing is resident at its first use, so what a
 * calibration places has no start over what is loaded on demand.
 *
 * The leader is changed when another ghost has been cheaper by HYSTERESIS percent of loading what
 * it holds and the leader's does not, and by two standard deviations of the loads of the leader's
 * ghost, since the leader was last as good (a one-sided sum: it never falls below 0); and to one of
 * the first two that place also when what is really paid exceeds that ghost by HYSTERESIS percent
 * of loading all slots, whether loads ahead or changes of mind are to blame. Each time the latter
 * happens it takes twice as much to leave static placement again.
 *
 * The victim is the oldest expert that the leader's ghost does not hold, else the leader's own.
 * While one leads that places experts, those of it that are absent are loaded behind all else, a
 * few after each layer; a demand takes none of its experts but waits, and prefetches of others are
 * refused.
 *
 * Where another executor computes without a load, what it computes would never become resident. So,
 * if that is a helper, or one that reads over the link and computes most of what is absent,
 * after each layer that no placement leads the likeliest absent expert comes in, behind all other
 * reads, if it was used lately (half is forgotten in 7 tokens), and for one that is at most half as
 * likely; and the least likely is the victim. Where the router's scores are given, likelihood is a
 * sum of several guesses, weighed by how right they have been (policy/evict/likely.h).
 *
 * Why that is never much worse than the best of the ghosts, on demand loads alone. While a ghost is
 * followed, a miss that is not also the ghost's loads one of its experts in place of one that it
 * does not hold, so there are at most `slots` of them after each change of the leader; between
 * changes no other ghost was cheaper than the leader by more than the hysteresis h. With S changes:
 *
 *     cost <= cost of the best ghost + (S + 1) * (h * slots loads + most expensive batch)
 *             + S * slots loads + 2 * sqrt((S + 1) * loads) loads
 *
 * A placement is looked at again every 16 tokens, which is a change too if it leads; an expert
 * replaces another one only if its count is larger by more than chance (a standard deviation).
 * Where something is loaded on demand it leaves slots for what passes through, as many as a token
 * has experts but a quarter at most. docs/policies.md has what this comes to, and what no such rule
 * can promise.
 *
 * Ours, after set duelling (Qureshi et al., ISCA 2007) and follow-the-leader with switching costs.
 * A layer costs O(uses log experts) for each ghost; pick O(residents that the leader would not
 * hold).
 */
#include "policy/builtins.h"

#include "policy/hot.h"
#include "policy/evict/shadow.h"

#define BEST_HYSTERESIS 150 /* percent */
#define SWAPS_MAX 2u        /* after one layer */
#define BETTER 2            /* times as likely as what leaves */

struct shadow_config {
    uint64_t hysteresis;
};

static const struct mp_opt shadow_opts[] = {
    MP_OPT(MP_OPT_U64, "HYSTERESIS", struct shadow_config, hysteresis, "100", 1, 1000,
           "How much cheaper another policy must have been before evict policy shadow follows it, "
           "in percent of loading what a change would bring in."),
    MP_OPT_END,
};

static void shadow_take(struct mp_policy *policy, const struct mp_shape *shape,
                        struct mp_arena *arena)
{
    struct mp_shadow *shadow = (struct mp_shadow *)policy;
    const size_t experts = shape->experts, ids = shadow->ids;

    mp_ghost_facts_take(&shadow->facts, shape, arena);
    mp_likely_take(&shadow->chances, shape, &shadow->facts, arena);
    for (uint32_t g = 0; g < MP_SHADOW_GHOSTS; g++)
        mp_ghost_take(&shadow->ghosts[g],
                      g < MP_SHADOW_STATIC ? (enum mp_ghost_kind)g : MP_GHOST_STATIC,
                      &shadow->facts, arena);
    mp_residents_take(&shadow->residents, shape, arena);
    mp_residents_take(&shadow->strange, shape, arena);
    shadow->stamp = mp_arena_take(arena, ids, sizeof(uint64_t));
    shadow->order = mp_arena_take(arena, ids, sizeof(uint32_t));
    shadow->asked = mp_arena_take(arena, ids, sizeof(uint64_t));
    shadow->key = mp_arena_take(arena, ids, sizeof(uint64_t));
    shadow->recent = mp_arena_take(arena, ids, sizeof(double));
    shadow->likely = mp_arena_take(arena, ids, sizeof(double));
    shadow->batch = mp_arena_take(arena, experts, sizeof(uint32_t));
    shadow->tokens = mp_arena_take(arena, experts, sizeof(uint32_t));
    shadow->actual = mp_arena_take(arena, experts, 1);
    shadow->sorter.order = mp_arena_take(arena, experts, sizeof(uint32_t));
    shadow->sorter.key = mp_arena_take(arena, experts, sizeof(uint64_t));
    shadow->resident = mp_arena_take(arena, experts, 1);
    shadow->executors = mp_arena_take(arena, experts, sizeof(uint32_t));
}

static enum mp_status create(const struct mp_policy_info *info, uint64_t hysteresis,
                             const struct mp_shape *shape, const struct mp_costs *costs,
                             struct mp_policy **policy_p)
{
    const uint32_t quarter = shape->slots / 4 < shape->top_k ? shape->slots / 4 : shape->top_k;
    const uint32_t room = quarter > 2 ? quarter : 2;
    struct mp_shadow draft = {
        .super.info = info,
        .ids = shape->layers * shape->experts,
        .room = room,
        .placed = shape->slots > room ? shape->slots - room : 0,
        .costs = costs,
        .hysteresis = hysteresis,
        .patience = 1,
        .weight = 1,
        .likely_weight = 1,
        .likely_min = 2.5 * shape->top_k / shape->experts,
        .settled = true,
        .choose_at = (uint64_t)MP_SHADOW_TOKENS * shape->layers,
    };
    struct mp_shadow *shadow;
    struct mp_policy *policy;
    enum mp_status status =
        mp_policy_make(&draft.super, sizeof(draft), shadow_take, shape, &policy);

    if (status != MP_OK)
        return status;
    shadow = (struct mp_shadow *)policy;
    mp_likely_begin(&shadow->chances, shape->calibration != NULL ? shape->calibration->hot : NULL);
    if (shape->calibration != NULL && shape->calibration->hot != NULL) {
        status = mp_hot_order(shape, shadow->order);
        if (status != MP_OK) {
            mp_policy_free(policy);
            return status;
        }
        mp_shadow_place_first(shadow);
    }
    *policy_p = policy;
    return MP_OK;
}

static enum mp_status shadow_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    return create(&mp_evict_shadow.info, ((const struct shadow_config *)config)->hysteresis, shape,
                  shape->costs, policy_p);
}

static enum mp_status best_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    (void)config;
    return create(&mp_evict_best.info, BEST_HYSTERESIS, shape, NULL, policy_p);
}

static void shadow_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct mp_shadow *shadow = (struct mp_shadow *)policy;
    const uint32_t experts = shadow->facts.experts;
    const bool again = shadow->asked[id] == now + 1 && shadow->now == now;
    const bool other = shadow->batch_count > 0 && shadow->batch[0] / experts != id / experts;

    if (shadow->now != now || shadow->batch_count == experts || again || other)
        mp_shadow_turn(shadow, now);
    shadow->batch[shadow->batch_count] = id;
    shadow->tokens[shadow->batch_count] = tokens;
    shadow->actual[shadow->batch_count++] = shadow->residents.place[id] != MP_EXPERT_NONE;
    shadow->asked[id] = now + 1;
    shadow->stamp[id] = ++shadow->stamps;
}

static void shadow_on_scores(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                             const float *scores, const uint32_t *chosen, uint64_t now)
{
    struct mp_shadow *shadow = (struct mp_shadow *)policy;

    (void)k;
    (void)chosen;
    (void)now;
    mp_shadow_settle(shadow); /* by the scores that its batch had */
    mp_ghost_facts_scores(&shadow->facts, layer, tokens, scores);
    mp_likely_scores(&shadow->chances, layer, tokens, scores);
}

static void shadow_on_insert(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct mp_shadow *shadow = (struct mp_shadow *)policy;

    mp_residents_add(&shadow->residents, id);
    mp_shadow_refresh(shadow, id);
    shadow->stamp[id] = ++shadow->stamps;
    if (mp_shadow_times_known(shadow) && shadow->asked[id] != now + 1)
        shadow->debt_ns += shadow->costs->load_ns;
}

static void shadow_on_remove(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct mp_shadow *shadow = (struct mp_shadow *)policy;

    (void)now;
    mp_residents_remove(&shadow->residents, id);
    mp_residents_remove(&shadow->strange, id);
}

/* The first to leave of what the leader holds, where all that may go is of that kind. */
static uint32_t leaders_own(const struct mp_shadow *shadow, const struct mp_evict_query *query)
{
    const struct mp_ghost *leader = &shadow->ghosts[shadow->leader];
    uint32_t layer = MP_LAYER_ANY, best = MP_EXPERT_NONE;

    if (leader->kind == MP_GHOST_LAYER_LRU || leader->kind == MP_GHOST_LAYER_LFU)
        layer = mp_residents_victim_layer(&shadow->residents, query);
    for (uint32_t i = 0; i < shadow->residents.count; i++) {
        const uint32_t id = shadow->residents.id[i];

        if ((best != MP_EXPERT_NONE && !mp_ghost_before(leader, id, best)) ||
            (layer != MP_LAYER_ANY && id / query->experts != layer) || !mp_evict_allows(query, id))
            continue;
        best = id;
    }
    return best != MP_EXPERT_NONE
               ? best
               : mp_residents_min(&shadow->residents, query, MP_LAYER_ANY, shadow->stamp, NULL);
}

/* The resident that is least likely to be needed soon, of equal ones the oldest. */
static uint32_t least_likely(const struct mp_shadow *shadow, const struct mp_evict_query *query)
{
    const double *likely = shadow->likely;
    uint32_t best = MP_EXPERT_NONE;

    for (uint32_t i = 0; i < shadow->residents.count; i++) {
        const uint32_t id = shadow->residents.id[i];

        if (best != MP_EXPERT_NONE &&
            (likely[id] > likely[best] ||
             (likely[id] == likely[best] && shadow->stamp[id] > shadow->stamp[best])))
            continue;
        if (mp_evict_allows(query, id))
            best = id;
    }
    return best;
}

static uint32_t shadow_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    struct mp_shadow *shadow = (struct mp_shadow *)policy;
    const bool demand = shadow->asked[query->for_id] == shadow->now + 1;
    const uint32_t slots = shadow->facts.slots;
    uint32_t strange;

    /* A batch is complete before anything follows from it; to settle it twice has no effect. */
    mp_shadow_settle(shadow);
    if (mp_shadow_places(shadow) && !demand && !shadow->ghosts[shadow->leader].held[query->for_id])
        return MP_EXPERT_NONE;
    if (mp_shadow_fills(shadow))
        return least_likely(shadow, query);
    strange = mp_residents_min(&shadow->strange, query, MP_LAYER_ANY, shadow->stamp, NULL);
    if (strange != MP_EXPERT_NONE || (mp_shadow_places(shadow) && shadow->placed < slots))
        return strange;           /* what passes through is in use, and leaves after the layer */
    if (mp_shadow_places(shadow)) /* it was not expected */
        return mp_residents_min(&shadow->residents, query, MP_LAYER_ANY, shadow->stamp, NULL);
    return leaders_own(shadow, query);
}

/* An expert that may go for one of the static placement. */
static uint32_t pick_stranger(const struct mp_shadow *shadow, const struct mp_evict_query *query,
                              const struct mp_swap *swaps, uint32_t count)
{
    struct mp_evict_query wide = *query;
    uint32_t best = MP_EXPERT_NONE;

    if (query->shared)
        wide.scope_layer = MP_LAYER_ANY;
    for (uint32_t i = 0; i < shadow->strange.count; i++) {
        const uint32_t id = shadow->strange.id[i];
        bool taken = false;

        if (!mp_evict_allows(&wide, id) ||
            (best != MP_EXPERT_NONE && shadow->stamp[id] >= shadow->stamp[best]))
            continue;
        for (uint32_t s = 0; s < count; s++)
            taken |= swaps[s].out == id;
        best = taken ? best : id;
    }
    return best;
}

/* The layer's likeliest absent expert, if it is clearly likelier than what would leave for it. */
static uint32_t fill(const struct mp_shadow *shadow, const struct mp_evict_query *query,
                     struct mp_swap *swap)
{
    const uint32_t first = query->scope_layer * query->experts;
    const double *likely = shadow->likely;
    struct mp_evict_query wide = *query;
    uint32_t in = MP_EXPERT_NONE, out = MP_EXPERT_NONE;

    for (uint32_t id = first; id < first + query->experts; id++) {
        if (shadow->residents.place[id] == MP_EXPERT_NONE &&
            (in == MP_EXPERT_NONE || likely[id] > likely[in]))
            in = id;
    }
    if (in == MP_EXPERT_NONE || likely[in] < shadow->likely_min * shadow->likely_weight)
        return 0;
    if (query->shared)
        wide.scope_layer = MP_LAYER_ANY;
    if (shadow->residents.count >= shadow->facts.slots) {
        out = least_likely(shadow, &wide);
        if (out == MP_EXPERT_NONE || likely[in] < BETTER * likely[out])
            return 0;
    }
    *swap = (struct mp_swap){ .in = in, .out = out };
    return 1;
}

/* While one leads that places experts: its absent experts of the layer. */
static uint32_t shadow_replace(struct mp_policy *policy, const struct mp_evict_query *query,
                               uint64_t now, struct mp_swap *swaps, uint32_t max)
{
    struct mp_shadow *shadow = (struct mp_shadow *)policy;
    const uint32_t slots = shadow->facts.slots, held = shadow->residents.count;
    const uint32_t first = query->scope_layer * query->experts;
    const uint8_t *wanted;
    uint32_t left = slots > held ? slots - held : 0, count = 0;

    (void)now;
    mp_shadow_settle(shadow);
    if (mp_shadow_fills(shadow))
        return max > 0 ? fill(shadow, query, swaps) : 0;
    if (!mp_shadow_places(shadow))
        return 0;
    wanted = shadow->ghosts[shadow->leader].held;
    for (uint32_t u = first; u < first + query->experts && count < max && count < SWAPS_MAX; u++) {
        uint32_t out = MP_EXPERT_NONE;

        if (shadow->residents.place[u] != MP_EXPERT_NONE || !wanted[u])
            continue;
        if (left == 0)
            out = pick_stranger(shadow, query, swaps, count);
        if (left == 0 && out == MP_EXPERT_NONE)
            break;
        left -= left > 0;
        swaps[count++] = (struct mp_swap){ .in = u, .out = out };
    }
    return count;
}

static const char *shadow_notice(const struct mp_policy *policy)
{
    const struct mp_shadow *shadow = (const struct mp_shadow *)policy;

    if (mp_shadow_is_static(shadow->leader))
        return "moving experts costs more than it saves here: the residents now follow a static "
               "placement";
    return shadow->was_static ? "moving experts pays: the residents follow what is used" : NULL;
}

uint32_t mp_evict_shadow_changes(const struct mp_policy *policy)
{
    return ((const struct mp_shadow *)policy)->changes;
}

/* What the two have in common. */
#define FUNCTIONS                                                                                \
    .destroy = mp_policy_free, .waits = true, .on_insert = shadow_on_insert,                     \
    .on_remove = shadow_on_remove, .on_access = shadow_on_access, .on_scores = shadow_on_scores, \
    .scores_optional = true, .pick = shadow_pick, .replace = shadow_replace,                     \
    .notice = shadow_notice,                                                                     \
    .per_layer = true /* its first leader gives up what was just used before what comes */

const struct mp_evict_ops mp_evict_shadow = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "shadow",
              .summary = "follows whichever of several policies would have cost least so far",
              .opts = shadow_opts,
              .config_size = sizeof(struct shadow_config),
              .costs = true },
    .create = shadow_create,
    FUNCTIONS,
};

/* The same without costs: a load is 1, and all else nothing. */
const struct mp_evict_ops mp_evict_best = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "best",
              .summary = "follows whichever of several policies would have loaded least so far" },
    .create = best_create,
    FUNCTIONS,
};
