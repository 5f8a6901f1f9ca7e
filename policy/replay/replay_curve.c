/*
 * The accounting of the published curves of BigMoeOnEdge: bytes, not slots; what misses becomes
 * resident at once, and room is made after the batch, never of what the batch touched.
 */
#include <string.h>

#include "policy/builtins.h"
#include "policy/replay/replay_int.h"
#include "vmm/base/error.h"

enum kind { BELADY, LRU, LFU, RANDOM, KINDS };

struct curve {
    struct mp_replay_set set;
    enum kind kind;
    uint64_t limit_bytes; /* of a scope */
    uint64_t seed, clock;
};

static void touch(struct curve *curve, const struct mp_replay_use *use)
{
    struct mp_replay_set *set = &curve->set;

    curve->clock++;
    switch (curve->kind) {
    case BELADY: set->key[use->id] = UINT64_MAX - use->next; break;
    case LRU: set->key[use->id] = curve->clock; break;
    case LFU:
        set->key[use->id]++;
        set->second[use->id] = curve->clock;
        break;
    case RANDOM: set->key[use->id] = mp_policy_mix(curve->seed ^ curve->clock); break;
    case KINDS: break;
    }
}

static void replay_group(struct curve *curve, size_t g, uint64_t *scope_bytes,
                         struct mp_replay_result *result)
{
    struct mp_replay_set *set = &curve->set;
    const struct mp_replay_trace *trace = set->trace;
    const struct mp_replay_group *group = &trace->groups[g];
    const uint32_t scope = set->per_layer ? group->layer : 0;

    for (uint32_t i = 0; i < group->count; i++) {
        const struct mp_replay_use *use = &trace->uses[group->first + i];
        const bool hit = mp_replay_holds(set, use->id);

        mp_replay_count(result, trace, group, hit);
        touch(curve, use);
        set->touched[use->id] = (uint32_t)g + 1;
        *scope_bytes += hit ? 0 : trace->layer_bytes[group->layer];
        mp_replay_add(set, use->id);
    }
    while (*scope_bytes > curve->limit_bytes) {
        const uint32_t victim = mp_replay_first(set, scope, (uint32_t)g + 1);

        if (victim == MP_EXPERT_NONE)
            break;
        mp_replay_remove(set, victim);
        *scope_bytes -= trace->layer_bytes[victim / trace->experts];
    }
}

/* Bytes that the scope of group g holds. */
static uint64_t held_bytes(const struct mp_replay_set *set, const uint64_t *global_bytes,
                           uint32_t layer)
{
    return set->per_layer ? set->count[layer] * set->trace->layer_bytes[layer] : *global_bytes;
}

static bool find_kind(const char *name, enum kind *kind_p, bool *per_layer_p)
{
    static const struct {
        const char *name;
        enum kind kind;
        bool per_layer;
    } known[] = {
        { "belady", BELADY, false }, { "lru", LRU, false },      { "lfu", LFU, false },
        { "random", RANDOM, false }, { "layer-lru", LRU, true }, { "layer-lfu", LFU, true },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(known); i++) {
        if (!strcmp(known[i].name, name)) {
            *kind_p = known[i].kind;
            *per_layer_p = known[i].per_layer;
            return true;
        }
    }
    return false;
}

enum mp_status mp_replay_curve(const struct mp_replay_trace *trace,
                               const struct mp_replay_config *config,
                               struct mp_replay_result *result)
{
    struct curve curve = { .seed = config->seed, .limit_bytes = config->budget_bytes };
    uint64_t global_bytes = 0;
    bool per_layer;
    enum mp_status status;

    if (!find_kind(result->evict, &curve.kind, &per_layer))
        return mp_fail(MP_ERR_UNSUPPORTED, "E_REPLAY_NA",
                       "the curve accounting has no '%s'; it has belady, lru, lfu, random, "
                       "layer-lru and layer-lfu",
                       result->evict);
    if (per_layer)
        curve.limit_bytes /= trace->layers;
    status = mp_replay_set_init(&curve.set, trace, per_layer);
    if (status != MP_OK)
        return status;
    result->partition = per_layer ? "uniform" : "global";
    for (size_t g = 0; g < trace->group_count; g++) {
        uint64_t bytes = held_bytes(&curve.set, &global_bytes, trace->groups[g].layer);

        replay_group(&curve, g, &bytes, result);
        global_bytes = bytes;
    }
    mp_replay_set_fini(&curve.set);
    return MP_OK;
}
