/*
 * EPLB (DeepSeek's expert parallelism load balancer), made for unequal servers as in Prism, IV-A.
 * Busy experts get more copies: each further copy goes to the expert with the most tokens per copy.
 * Then, the busiest copy first, copies go to the device with the least load per slot. Load is in
 * tokens of all servers; which server asks plays no part.
 *
 * Layer by layer; a layer has an equal share of all slots, of every device as equal a share as
 * whole slots allow. A server keeps an expert once. Ours: a copy for which no server is left goes
 * to the next expert. Per layer: O(copies * (devices + experts)).
 */
#include "policy/place/place_int.h"

/* number[d] := slots of device d for the layer. All slots are numbered through, and slot i belongs
 * to layer i mod L: as slots of a server follow each other, it has at most E of a layer, and the
 * layer has at least E in all. */
static void share_slots(const struct mp_place_facts *facts, struct mp_placement *placement,
                        uint32_t layer)
{
    const uint32_t layers = facts->layers;
    uint64_t first = 0;

    for (uint32_t n = 0; n < facts->servers; n++) {
        uint32_t left = mp_place_room(facts, n);

        for (uint32_t d = facts->first_device[n]; d < facts->first_device[n + 1]; d++) {
            const uint32_t slots = facts->slots[d] < left ? facts->slots[d] : left;
            const uint64_t end = first + slots;

            placement->number[d] = (uint32_t)((end + layers - 1 - layer) / layers -
                                              (first + layers - 1 - layer) / layers);
            first = end;
            left -= slots;
        }
    }
}

/* The device with the least load per slot that has a slot of the layer and whose server does not
 * keep the expert; UINT32_MAX: none. */
static uint32_t idlest(const struct mp_place_facts *facts, const struct mp_placement *placement,
                       uint32_t id)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t n = 0; n < facts->servers; n++) {
        if (mp_place_keeps(facts, placement, n, id))
            continue;
        for (uint32_t d = facts->first_device[n]; d < facts->first_device[n + 1]; d++) {
            if (placement->number[d] > 0 &&
                (best == UINT32_MAX ||
                 placement->load[d] * facts->slots[best] < placement->load[best] * facts->slots[d]))
                best = d;
        }
    }
    return best;
}

/* value[e] := tokens per copy if the layer's slots are dealt out; returns how many copies there are
 * beside the first ones. */
static uint32_t deal_copies(const struct mp_place_facts *facts, struct mp_placement *placement,
                            uint32_t layer)
{
    const uint32_t devices = mp_place_devices(facts);
    const double *total = placement->total + (size_t)layer * facts->experts;
    uint32_t *copies = placement->order + facts->experts;
    uint32_t slots = 0;

    for (uint32_t d = 0; d < devices; d++)
        slots += placement->number[d];
    for (uint32_t e = 0; e < facts->experts; e++) {
        copies[e] = 1;
        placement->value[e] = total[e];
    }
    for (uint32_t i = facts->experts; i < slots; i++) {
        uint32_t best = UINT32_MAX;

        for (uint32_t e = 0; e < facts->experts; e++) {
            if (copies[e] < facts->servers &&
                (best == UINT32_MAX || placement->value[e] > placement->value[best]))
                best = e;
        }
        copies[best]++;
        placement->value[best] = total[best] / copies[best];
    }
    return slots - facts->experts;
}

static void put(const struct mp_place_facts *facts, struct mp_placement *placement, uint32_t device,
                uint32_t id)
{
    placement->number[device]--;
    placement->load[device] += placement->value[id % facts->experts];
    mp_place_put(facts, placement, device, id);
}

/* First copies in falling order of load, so that every expert is somewhere; then each further one
 * to the expert with the most tokens per copy for which a server is left. */
static void place_layer(const struct mp_place_facts *facts, struct mp_placement *placement,
                        uint32_t layer)
{
    const uint32_t first = layer * facts->experts, experts = facts->experts;
    uint32_t more = deal_copies(facts, placement, layer);

    for (uint32_t e = 0; e < experts; e++)
        placement->order[e] = e;
    mp_place_sort(placement->order, experts, placement->value);
    for (uint32_t i = 0; i < experts; i++) {
        const uint32_t id = first + placement->order[i];

        put(facts, placement, idlest(facts, placement, id), id);
    }
    for (; more > 0; more--) {
        uint32_t best = UINT32_MAX, device = 0;
        double most = -1;

        for (uint32_t u = first; u < first + experts; u++) {
            const double load = placement->total[u] / placement->copies[u];
            const uint32_t d = load > most ? idlest(facts, placement, u) : UINT32_MAX;

            if (d != UINT32_MAX) {
                best = u;
                device = d;
                most = load;
            }
        }
        put(facts, placement, device, best);
    }
}

static void eplb_place(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    mp_place_add_up(facts, placement);
    for (uint32_t l = 0; l < facts->layers; l++) {
        share_slots(facts, placement, l);
        place_layer(facts, placement, l);
    }
}

const struct mp_place_ops mp_place_eplb = {
    .name = "eplb",
    .summary = "EPLB: busy experts have more copies, load spread over devices",
    .calls = true,
    .migrates = true,
    .place = eplb_place,
};
