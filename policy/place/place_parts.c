/*
 * What several placements do: orders, random choices, and the devices of one server.
 */
#include "policy/place/place_int.h"

#include <string.h>

#include "vmm/base/assert.h"

void mp_place_add_up(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const uint32_t ids = mp_place_ids(facts);

    memset(placement->total, 0, ids * sizeof(*placement->total));
    for (uint32_t n = 0; n < facts->servers; n++) {
        for (uint32_t u = 0; u < ids; u++)
            placement->total[u] += facts->tokens[(size_t)n * ids + u];
    }
}

static bool before(uint32_t a, uint32_t b, const double *value)
{
    return value[a] > value[b] || (value[a] == value[b] && a < b);
}

static void sink(uint32_t *ids, uint32_t at, uint32_t count, const double *value)
{
    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= count)
            return;
        if (child + 1 < count && before(ids[child], ids[child + 1], value))
            child++;
        if (before(ids[child], ids[at], value))
            return;

        const uint32_t moved = ids[at];

        ids[at] = ids[child];
        ids[child] = moved;
        at = child;
    }
}

/* A heap sort, because qsort() has no argument for the values. */
void mp_place_sort(uint32_t *ids, uint32_t count, const double *value)
{
    for (uint32_t i = count / 2; i-- > 0;)
        sink(ids, i, count, value);
    for (uint32_t i = count; i-- > 1;) {
        const uint32_t last = ids[0];

        ids[0] = ids[i];
        ids[i] = last;
        sink(ids, 0, i, value);
    }
}

void mp_place_shuffle(uint32_t *ids, uint32_t count, uint64_t *random)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t j = mp_place_draw(random, i + 1);

        ids[i] = ids[j];
        ids[j] = i;
    }
}

uint32_t mp_place_draw_device(const struct mp_place_facts *facts,
                              const struct mp_placement *placement, uint64_t *random)
{
    const uint32_t devices = mp_place_devices(facts);
    uint64_t all = 0, drawn;

    for (uint32_t d = 0; d < devices; d++)
        all += placement->free[d];
    mp_assert(all > 0);
    drawn = mp_policy_mix((*random)++) % all;
    for (uint32_t d = 0;; d++) {
        if (drawn < placement->free[d])
            return d;
        drawn -= placement->free[d];
    }
}

void mp_place_pack(const struct mp_place_facts *facts, struct mp_placement *placement,
                   uint32_t server, const uint32_t *ids, uint32_t count)
{
    const double *tokens = facts->tokens + (size_t)server * mp_place_ids(facts);

    for (uint32_t i = 0; i < count; i++) {
        uint32_t best = UINT32_MAX;

        for (uint32_t d = facts->first_device[server]; d < facts->first_device[server + 1]; d++) {
            if (placement->free[d] > 0 &&
                (best == UINT32_MAX ||
                 placement->load[d] * facts->slots[best] < placement->load[best] * facts->slots[d]))
                best = d;
        }
        placement->load[best] += tokens[ids[i]];
        mp_place_put(facts, placement, best, ids[i]);
    }
}

void mp_place_own(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const uint32_t ids = mp_place_ids(facts);

    for (uint32_t n = 0; n < facts->servers; n++) {
        for (uint32_t u = 0; u < ids; u++)
            placement->order[u] = u;
        mp_place_sort(placement->order, ids, facts->tokens + (size_t)n * ids);
        mp_place_pack(facts, placement, n, placement->order, mp_place_room(facts, n));
    }
}

void mp_place_scatter(const struct mp_place_facts *facts, struct mp_placement *placement,
                      uint64_t *random)
{
    const uint32_t ids = mp_place_ids(facts);

    mp_place_shuffle(placement->order, ids, random);
    for (uint32_t i = 0; i < ids; i++)
        mp_place_put(facts, placement, mp_place_draw_device(facts, placement, random),
                     placement->order[i]);
}
