/*
 * Prism's placement (III-C): Algorithm 1 gives every server a number of experts of each layer, in
 * proportion to the entropy of what the server chose there; Algorithm 2 takes the most used ones
 * and then sees to it that every expert is somewhere.
 *
 * Departures from the printed algorithms, all of them needed:
 *   - a layer's number is at most E, and at least 1 where the server can hold one of each layer;
 *     slots that rounding down leaves go to the largest fractions. Printed, they are lost;
 *   - a layer gives experts away only while it has more than E. Printed, two layers below E can
 *     pass one expert back and forth, and Algorithm 2 then never ends;
 *   - duplicates and unassigned experts are found anew after every replacement. Printed, they are
 *     found once per round, and the last copy of an expert can be replaced;
 *   - without any count, the entropies are equal.
 * Lemma 1 and Theorem 1 of the paper are not relied on.
 *
 * With E experts in a layer: O(servers * E^2) per layer, and O(servers * E) per expert that no
 * server chose.
 */
#include <math.h>

#include "policy/place/place_int.h"

/* ---- Algorithm 1; count[n * layers + l] is N of server n and layer l ---- */

/* v[l] := the entropy in bits of what server n chose in layer l, or 1 everywhere. Returns the
 * sum. */
static double entropies(const struct mp_place_facts *facts, uint32_t n, double *v)
{
    double sum = 0;

    for (uint32_t l = 0; l < facts->layers; l++) {
        const double *f = facts->tokens + ((size_t)n * facts->layers + l) * facts->experts;
        double all = 0;

        v[l] = 0;
        for (uint32_t e = 0; e < facts->experts; e++)
            all += f[e];
        for (uint32_t e = 0; e < facts->experts; e++) {
            if (f[e] > 0)
                v[l] -= f[e] / all * log2(f[e] / all);
        }
        sum += v[l];
    }
    if (sum > 0)
        return sum;
    for (uint32_t l = 0; l < facts->layers; l++)
        v[l] = 1;
    return facts->layers;
}

/* The layer with the most experts, the lower one if equal. */
static uint32_t fullest(const uint32_t *number, uint32_t layers)
{
    uint32_t best = 0;

    for (uint32_t l = 1; l < layers; l++) {
        if (number[l] > number[best])
            best = l;
    }
    return best;
}

/* Step 1 for one server. */
static void share_out(const struct mp_place_facts *facts, struct mp_placement *placement,
                      uint32_t n)
{
    const uint32_t room = mp_place_room(facts, n), layers = facts->layers;
    uint32_t *number = placement->count + (size_t)n * layers;
    double *share = placement->value;
    const double sum = entropies(facts, n, share);
    uint32_t used = 0;

    for (uint32_t l = 0; l < layers; l++) {
        const double q = room * share[l] / sum, whole = floor(q);

        number[l] = whole < facts->experts ? (uint32_t)whole : facts->experts;
        if (number[l] == 0 && room >= layers)
            number[l] = 1;
        share[l] = q - whole;
        placement->order[l] = l;
        used += number[l];
    }
    for (; used > room; used--)
        number[fullest(number, layers)]--;
    mp_place_sort(placement->order, layers, share);
    for (uint32_t i = 0; used < room; i = (i + 1) % layers) {
        if (number[placement->order[i]] < facts->experts) {
            number[placement->order[i]]++;
            used++;
        }
    }
}

/* Step 2: every server in turn, the largest first, gives one from the fullest layer to layer `to`,
 * if it has one there. The sum of all layers is at least L * E, so while one layer is below E the
 * fullest is above, and some server has what it needs. */
static void fill_layer(const struct mp_place_facts *facts, struct mp_placement *placement,
                       const uint32_t *servers, uint32_t *sums, uint32_t to)
{
    for (uint32_t i = 0; sums[to] < facts->experts; i = (i + 1) % facts->servers) {
        uint32_t *number = placement->count + (size_t)servers[i] * facts->layers;
        const uint32_t from = fullest(sums, facts->layers);

        if (number[from] == 0 || number[to] == facts->experts)
            continue;
        number[from]--;
        number[to]++;
        sums[from]--;
        sums[to]++;
    }
}

static void cover_layers(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    uint32_t *sums = placement->order, *servers = placement->order + facts->layers;

    for (uint32_t n = 0; n < facts->servers; n++) {
        servers[n] = n;
        placement->value[n] = mp_place_room(facts, n);
    }
    mp_place_sort(servers, facts->servers, placement->value);
    for (uint32_t l = 0; l < facts->layers; l++) {
        sums[l] = 0;
        for (uint32_t n = 0; n < facts->servers; n++)
            sums[l] += placement->count[(size_t)n * facts->layers + l];
    }
    for (uint32_t l = 0; l < facts->layers; l++)
        fill_layer(facts, placement, servers, sums, l);
}

/* ---- Algorithm 2; device[] is 1 for what a server keeps, until it is packed ---- */

/* True if server n prefers id a to b: used more by it, then by all, then lower. */
static bool prefers(const struct mp_place_facts *facts, const struct mp_placement *placement,
                    uint32_t n, uint32_t a, uint32_t b)
{
    const double *f = facts->tokens + (size_t)n * mp_place_ids(facts);

    if (f[a] != f[b])
        return f[a] > f[b];
    if (placement->total[a] != placement->total[b])
        return placement->total[a] > placement->total[b];
    return a < b;
}

/* The unassigned expert of the layer that server n uses most or, if `spare`, the expert that it
 * uses least among those of which it has a copy that is not the only one. */
static uint32_t choose(const struct mp_place_facts *facts, const struct mp_placement *placement,
                       uint32_t n, uint32_t layer, bool spare)
{
    const uint32_t first = layer * facts->experts;
    uint32_t best = MP_EXPERT_NONE;

    for (uint32_t u = first; u < first + facts->experts; u++) {
        if (spare ? placement->copies[u] < 2 || !mp_place_keeps(facts, placement, n, u)
                  : placement->copies[u] > 0)
            continue;
        if (best == MP_EXPERT_NONE || prefers(facts, placement, n, u, best) != spare)
            best = u;
    }
    return best;
}

/* order[] := the servers, those with the fewest duplicates in the layer first. */
static void sort_by_spare(const struct mp_place_facts *facts, struct mp_placement *placement,
                          uint32_t layer)
{
    const uint32_t first = layer * facts->experts;

    for (uint32_t n = 0; n < facts->servers; n++) {
        placement->order[n] = n;
        placement->value[n] = 0;
        for (uint32_t u = first; u < first + facts->experts; u++)
            placement->value[n] -=
                placement->copies[u] > 1 && mp_place_keeps(facts, placement, n, u);
    }
    mp_place_sort(placement->order, facts->servers, placement->value);
}

/* In a round every server that has a duplicate, at that moment, gives one for an unassigned expert.
 * The layer has at least E copies, so as long as one is unassigned there is a duplicate. */
static void cover_experts(const struct mp_place_facts *facts, struct mp_placement *placement,
                          uint32_t layer)
{
    const uint32_t ids = mp_place_ids(facts), first = layer * facts->experts;
    uint32_t missing = 0;

    for (uint32_t u = first; u < first + facts->experts; u++)
        missing += placement->copies[u] == 0;
    while (missing > 0) {
        sort_by_spare(facts, placement, layer);
        for (uint32_t i = 0; i < facts->servers && missing > 0; i++) {
            const uint32_t n = placement->order[i];
            const uint32_t in = choose(facts, placement, n, layer, false);
            const uint32_t out = choose(facts, placement, n, layer, true);

            if (out == MP_EXPERT_NONE)
                continue;
            placement->device[(size_t)n * ids + in] = 1;
            placement->copies[in]++;
            placement->device[(size_t)n * ids + out] = 0;
            placement->copies[out]--;
            missing--;
        }
    }
}

/* The most used ones: count[] experts of every layer of server n. */
static void take_most_used(const struct mp_place_facts *facts, struct mp_placement *placement,
                           uint32_t n)
{
    const uint32_t ids = mp_place_ids(facts);
    uint16_t *kept = placement->device + (size_t)n * ids;

    for (uint32_t l = 0; l < facts->layers; l++) {
        uint32_t *order = placement->order;

        for (uint32_t e = 0; e < facts->experts; e++) {
            const uint32_t u = l * facts->experts + e;
            uint32_t at = e;

            for (; at > 0 && prefers(facts, placement, n, u, order[at - 1]); at--)
                order[at] = order[at - 1];
            order[at] = u;
        }
        for (uint32_t i = 0; i < placement->count[(size_t)n * facts->layers + l]; i++) {
            kept[order[i]] = 1;
            placement->copies[order[i]]++;
        }
    }
}

static void pack(const struct mp_place_facts *facts, struct mp_placement *placement, uint32_t n)
{
    const uint32_t ids = mp_place_ids(facts);
    uint16_t *kept = placement->device + (size_t)n * ids;
    uint32_t count = 0;

    for (uint32_t u = 0; u < ids; u++) {
        if (kept[u] == 0)
            continue;
        placement->order[count++] = u;
        placement->copies[u]--; /* mp_place_pack() counts it again */
        kept[u] = 0;
    }
    mp_place_sort(placement->order, count, facts->tokens + (size_t)n * ids);
    mp_place_pack(facts, placement, n, placement->order, count);
}

static void prism_place(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    mp_place_add_up(facts, placement);
    for (uint32_t n = 0; n < facts->servers; n++)
        share_out(facts, placement, n);
    cover_layers(facts, placement);
    for (uint32_t n = 0; n < facts->servers; n++)
        take_most_used(facts, placement, n);
    for (uint32_t l = 0; l < facts->layers; l++)
        cover_experts(facts, placement, l);
    for (uint32_t n = 0; n < facts->servers; n++)
        pack(facts, placement, n);
}

const struct mp_place_ops mp_place_prism = {
    .name = "prism",
    .summary = "Prism: shares by entropy, the most used experts, every one somewhere",
    .calls = true,
    .migrates = true,
    .place = prism_place,
};
