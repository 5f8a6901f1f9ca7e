/*
 * Residents stay. What is loaded before the first layer (the first residents that a partition
 * names: PreScope's hot table, whole layers) never leaves by choice. Without any, whatever comes
 * first stays, until only the buffer slots are left. All else comes and goes in the remaining
 * slots, oldest use first; a demand waits for one of them rather than take a resident.
 *
 * PreScope 4.1: "never replaced"; Fiddler, llama.cpp and KTransformers likewise.
 * on_insert, on_remove and on_access O(1), pick O(residents).
 */
#include "policy/builtins.h"

#include "policy/hot.h"
#include "policy/residents.h"

enum { NAMED = 1, STAYS = 2 }; /* of an expert: was a first resident; is one that does not leave */

struct keep {
    struct mp_policy super;
    struct mp_residents residents;
    uint64_t *key;  // (ids): order of last use; UINT64_MAX for those that stay
    uint8_t *flags; // (ids)
    uint64_t uses;
    uint32_t staying, room; /* experts with STAYS; as many as may have it without being named */
    bool named;             /* there are first residents */
};

static void keep_take(struct mp_policy *policy, const struct mp_shape *shape,
                      struct mp_arena *arena)
{
    struct keep *keep = (struct keep *)policy;
    const size_t ids = (size_t)shape->layers * shape->experts;

    mp_residents_take(&keep->residents, shape, arena);
    keep->key = mp_arena_take(arena, ids, sizeof(*keep->key));
    keep->flags = mp_arena_take(arena, ids, 1);
}

static enum mp_status keep_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    const uint32_t buffers = mp_buffer_slots(shape);
    struct keep draft = {
        .super.info = &mp_evict_none.info,
        .room = shape->slots > buffers ? shape->slots - buffers : 0,
    };

    (void)config;
    return mp_policy_make(&draft.super, sizeof(draft), keep_take, shape, policy_p);
}

static void keep_on_insert(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct keep *keep = (struct keep *)policy;

    mp_residents_add(&keep->residents, id);
    keep->key[id] = ++keep->uses;
    if (now == 0) {
        keep->named = true;
        keep->flags[id] |= NAMED;
    }
    if ((keep->flags[id] & NAMED) || (!keep->named && keep->staying < keep->room)) {
        keep->flags[id] |= STAYS;
        keep->key[id] = UINT64_MAX;
        keep->staying++;
    }
}

static void keep_on_remove(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct keep *keep = (struct keep *)policy;

    (void)now;
    mp_residents_remove(&keep->residents, id);
    if (keep->flags[id] & STAYS) {
        keep->flags[id] &= NAMED;
        keep->staying--;
    }
}

static void keep_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct keep *keep = (struct keep *)policy;

    (void)tokens;
    (void)now;
    if (!(keep->flags[id] & STAYS))
        keep->key[id] = ++keep->uses;
}

static uint32_t keep_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct keep *keep = (const struct keep *)policy;
    const uint32_t id = mp_residents_min(&keep->residents, query, MP_LAYER_ANY, keep->key, NULL);

    return id != MP_EXPERT_NONE && (keep->flags[id] & STAYS) ? MP_EXPERT_NONE : id;
}

const struct mp_evict_ops mp_evict_none = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "none",
              .summary = "residents stay, only what was loaded beside them leaves" },
    .create = keep_create,
    .destroy = mp_policy_free,
    .per_layer = true, /* nothing is replaced, so there is no order to be trapped by */
    .waits = true,
    .on_insert = keep_on_insert,
    .on_remove = keep_on_remove,
    .on_access = keep_on_access,
    .pick = keep_pick,
};
