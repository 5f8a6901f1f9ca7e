/*
 * DALI Alg. 2, workload-aware replacement: in windows of W steps each layer sums up how many tokens
 * chose each expert (eq. 12). At the end of a window the U cold experts with the highest sums come
 * in for the U residents with the lowest, and the sums start anew. In between residents stay: use
 * it with admit policy `window` and partition `random`.
 *
 * W = 4 as in the paper; U = 8 for DeepSeek-V2-Lite and Qwen3-30B-A3B, 1 for Mixtral (figure 12,
 * appendix A.6). The policy does not know the model: layers of at most 8 experts get 1, others 8.
 *
 * Departures. As printed, line 9 (i mod W == 0) ends a window after the first token; here it ends
 * after every W-th step, (i + 1) mod W == 0. Line 11 takes the top U of the residents too; the text
 * says lowest. A swap whose newcomer has no more tokens than what it replaces is not made: it would
 * move bytes for nothing. Prompts count as one step, and the end of a text is not known here. Ties
 * go to the lower expert.
 *
 * The pager needs slots beside the residents, for what is loaded on demand or ahead. Residents are
 * those that came first or by a swap (`planned`); the others leave before them, the one not used
 * for longest first, and a prefetch never takes a planned one's slot. A layer with fewer planned
 * ones than its part (mp_residents_planned()) fills up at the ends of windows.
 */
#include "policy/builtins.h"

#include <string.h>

#include "policy/residents.h"
#include "policy/sorter.h"

#define FEW_EXPERTS 8 /* Mixtral's */
#define PLANNED (UINT64_C(1) << 62)

struct workload_config {
    uint64_t w, u;
};

static const struct mp_opt workload_opts[] = {
    MP_OPT(MP_OPT_U64, "W", struct workload_config, w, "4", 1, 1000000,
           "Steps after which evict policy workload changes the residents of a layer."),
    MP_OPT(MP_OPT_U64, "U", struct workload_config, u, "0", 0, 4096,
           "Residents of a layer that evict policy workload changes at once; 0: 1 in layers of up "
           "to 8 experts, 8 in larger ones."),
    MP_OPT_END,
};

struct workload {
    struct mp_sorter sorter;
    struct mp_residents residents;
    uint64_t w, u, uses, now;
    uint32_t *planned_max; // (layers)
    uint32_t *planned;     // (layers): how many
    uint64_t *steps;       // (layers): of the window
    uint64_t *tokens;      // (layers * experts): of the window, s in the paper
    uint64_t *key;         // (layers * experts): PLANNED + tokens, or order of last use
    uint64_t *stamp;       // (layers * experts): order of last use
    uint64_t *accessed;    // (layers * experts): time of last use
    uint8_t *expected;     // (layers * experts): does a swap bring it in?
};

static void workload_take(struct mp_policy *policy, const struct mp_shape *shape,
                          struct mp_arena *arena)
{
    struct workload *self = (struct workload *)policy;
    const size_t ids = (size_t)shape->layers * shape->experts;

    mp_sorter_take(policy, shape, arena);
    mp_residents_take(&self->residents, shape, arena);
    self->planned_max = mp_arena_take(arena, shape->layers, sizeof(uint32_t));
    self->planned = mp_arena_take(arena, shape->layers, sizeof(uint32_t));
    self->steps = mp_arena_take(arena, shape->layers, sizeof(uint64_t));
    self->tokens = mp_arena_take(arena, ids, sizeof(uint64_t));
    self->key = mp_arena_take(arena, ids, sizeof(uint64_t));
    self->stamp = mp_arena_take(arena, ids, sizeof(uint64_t));
    self->accessed = mp_arena_take(arena, ids, sizeof(uint64_t));
    self->expected = mp_arena_take(arena, ids, 1);
}

static enum mp_status workload_create(const void *config_, const struct mp_shape *shape,
                                      struct mp_policy **policy_p)
{
    const struct workload_config *config = config_;
    const uint64_t by_size = shape->experts <= FEW_EXPERTS ? 1 : 8;
    struct workload draft = {
        .sorter.super.info = &mp_evict_workload.info,
        .w = config != NULL ? config->w : 4,
        .u = config != NULL && config->u > 0 ? config->u : by_size,
    };
    enum mp_status status =
        mp_policy_make(&draft.sorter.super, sizeof(draft), workload_take, shape, policy_p);

    if (status != MP_OK)
        return status;
    for (uint32_t l = 0; l < shape->layers; l++)
        ((struct workload *)*policy_p)->planned_max[l] = mp_residents_planned(shape, l);
    return MP_OK;
}

static bool is_planned(const struct workload *self, uint32_t id)
{
    return self->key[id] & PLANNED;
}

static void plan(struct workload *self, uint32_t id)
{
    if (is_planned(self, id))
        return;
    self->planned[id / self->residents.experts]++;
    self->key[id] = PLANNED + self->tokens[id];
}

static void workload_on_insert(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct workload *self = (struct workload *)policy;

    mp_residents_add(&self->residents, id);
    self->key[id] = self->stamp[id] = ++self->uses;
    /* Before the first layer only the partition's first residents come. */
    if (now == 0 || self->expected[id])
        plan(self, id);
    self->expected[id] = 0;
}

static void workload_on_remove(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct workload *self = (struct workload *)policy;

    (void)now;
    mp_residents_remove(&self->residents, id);
    if (is_planned(self, id))
        self->planned[id / self->residents.experts]--;
    self->key[id] = 0;
}

static void workload_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct workload *self = (struct workload *)policy;

    self->now = self->accessed[id] = now;
    self->stamp[id] = ++self->uses;
    self->tokens[id] += tokens;
    self->key[id] = is_planned(self, id) ? PLANNED + self->tokens[id] : self->stamp[id];
}

static uint32_t workload_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct workload *self = (const struct workload *)policy;
    const uint32_t id =
        mp_residents_min(&self->residents, query, MP_LAYER_ANY, self->key, self->stamp);
    const bool demand = self->now > 0 && self->accessed[query->for_id] == self->now;

    return id != MP_EXPERT_NONE && is_planned(self, id) && !demand ? MP_EXPERT_NONE : id;
}

/* The cold experts of the layer by descending sums; returns how many have a sum at all. */
static uint32_t sort_cold(struct workload *self, uint32_t layer)
{
    const uint32_t experts = self->residents.experts;
    uint32_t count = 0;

    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t id = layer * experts + e;
        const bool cold = self->residents.place[id] == MP_EXPERT_NONE;

        self->sorter.key[e] = cold ? self->tokens[id] : 0;
        count += self->sorter.key[e] > 0;
    }
    mp_sorter_sort(self->sorter.order, experts, self->sorter.key);
    return count;
}

/* The resident of the layer with the lowest sum that may leave and is not in swaps[] already. */
static uint32_t lowest_resident(const struct workload *self, const struct mp_evict_query *query,
                                const struct mp_swap *swaps, uint32_t count)
{
    const uint32_t first = query->scope_layer * self->residents.experts;
    uint32_t best = MP_EXPERT_NONE;

    for (uint32_t id = first; id < first + self->residents.experts; id++) {
        bool taken = false;

        if (self->residents.place[id] == MP_EXPERT_NONE || !mp_evict_allows(query, id) ||
            (best != MP_EXPERT_NONE && self->tokens[id] >= self->tokens[best]))
            continue;
        for (uint32_t i = 0; i < count; i++)
            taken = taken || swaps[i].out == id;
        if (!taken)
            best = id;
    }
    return best;
}

/* Residents that are left over from guesses become planned while the layer has room for more. */
static void adopt(struct workload *self, uint32_t layer)
{
    const uint32_t first = layer * self->residents.experts;

    for (uint32_t id = first; id < first + self->residents.experts; id++) {
        if (self->residents.place[id] != MP_EXPERT_NONE &&
            self->planned[layer] < self->planned_max[layer])
            plan(self, id);
    }
}

static uint32_t workload_replace(struct mp_policy *policy, const struct mp_evict_query *query,
                                 uint64_t now, struct mp_swap *swaps, uint32_t max)
{
    struct workload *self = (struct workload *)policy;
    const uint32_t layer = query->scope_layer, experts = self->residents.experts;
    uint32_t cold, count = 0, added = 0;

    if (++self->steps[layer] < self->w)
        return 0;
    (void)now;
    self->steps[layer] = 0;
    memset(self->expected + (size_t)layer * experts, 0, experts);
    adopt(self, layer);
    cold = sort_cold(self, layer);
    for (; count < cold && count < self->u && count < max; count++) {
        const uint32_t in = layer * experts + self->sorter.order[count];
        uint32_t out = MP_EXPERT_NONE;

        if (self->planned[layer] + added < self->planned_max[layer] &&
            self->residents.count + added < self->residents.slots) {
            added++;
        } else {
            out = lowest_resident(self, query, swaps, count);
            if (out == MP_EXPERT_NONE || self->tokens[out] >= self->tokens[in])
                break;
        }
        swaps[count] = (struct mp_swap){ .in = in, .out = out };
        self->expected[in] = 1;
    }
    for (uint32_t id = layer * experts; id < (layer + 1) * experts; id++) {
        self->tokens[id] = 0;
        if (is_planned(self, id))
            self->key[id] = PLANNED;
    }
    return count;
}

const struct mp_evict_ops mp_evict_workload = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "workload",
              .summary = "residents change by workload at the ends of windows (DALI Alg. 2)",
              .opts = workload_opts,
              .config_size = sizeof(struct workload_config) },
    .create = workload_create,
    .destroy = mp_policy_free,
    .per_layer = true,
    .on_insert = workload_on_insert,
    .on_remove = workload_on_remove,
    .on_access = workload_on_access,
    .pick = workload_pick,
    .replace = workload_replace,
};
