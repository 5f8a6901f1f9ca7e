/*
 * Ours: a server that lacks an expert may ask another server for it or read it, whichever is
 * cheaper, and a copy is put where it saves the most of that. Neither Prism, which only asks, nor
 * paging, which only reads, compares the two.
 *
 * The cost of a miss is its cheapest way's, C(P) the sum (place.h). The next copy is the one that
 * lowers C(P) most, for its own server and for all that may now ask there. C(P) falls by less the
 * more copies there are, so a gain that is found too old is only ever too high: the copy with the
 * largest old gain is looked at again, and taken if it stays largest. Where a server cannot read,
 * every expert has to be somewhere: one without a copy counts as very dear, and the last slots are
 * kept for those.
 *
 * A gain is O(servers); O(servers^2 * experts) for the first ones and, in practice, a few per copy.
 */
#include "policy/place/place_int.h"

/* Well above real costs, and small enough that their differences survive beside it. */
#define UNPLACED_S 1e7

static double asking_s(const struct mp_place_facts *facts, uint32_t server, uint32_t holder,
                       uint32_t id)
{
    const size_t at = (size_t)server * mp_place_ids(facts) + id;
    const size_t pair = (size_t)server * facts->servers + holder;

    return facts->calls[at] * facts->call_s[pair] + facts->tokens[at] * facts->token_s[pair];
}

/* What a copy of `id` on `server` saves. */
static double gain_s(const struct mp_place_facts *facts, const struct mp_placement *placement,
                     uint32_t server, uint32_t id)
{
    const size_t ids = mp_place_ids(facts);
    double gain = placement->miss[server * ids + id];

    for (uint32_t n = 0; n < facts->servers; n++) {
        const double miss = placement->miss[n * ids + id];

        if (n != server && miss > 0) {
            const double asking = asking_s(facts, n, server, id);

            gain += miss > asking ? miss - asking : 0;
        }
    }
    return gain;
}

static void lower_misses(const struct mp_place_facts *facts, struct mp_placement *placement,
                         uint32_t server, uint32_t id)
{
    const size_t ids = mp_place_ids(facts);

    for (uint32_t n = 0; n < facts->servers; n++) {
        double *miss = &placement->miss[n * ids + id];
        const double asking = n == server ? 0 : asking_s(facts, n, server, id);

        if (asking < *miss)
            *miss = asking;
    }
}

/* order[0..count) is a heap of `at`, the largest value[] first. */
static void sink(struct mp_placement *placement, uint32_t at, uint32_t count)
{
    uint32_t *heap = placement->order;
    const uint32_t moved = heap[at];

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= count)
            break;
        if (child + 1 < count && placement->value[heap[child + 1]] > placement->value[heap[child]])
            child++;
        if (placement->value[heap[child]] <= placement->value[moved])
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* The least loaded device of the server with a free slot; UINT32_MAX: there is none. */
static uint32_t idlest(const struct mp_place_facts *facts, const struct mp_placement *placement,
                       uint32_t server)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t d = facts->first_device[server]; d < facts->first_device[server + 1]; d++) {
        if (placement->free[d] > 0 &&
            (best == UINT32_MAX || placement->load[d] < placement->load[best]))
            best = d;
    }
    return best;
}

static uint32_t fill_heap(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const uint32_t ids = mp_place_ids(facts), count = facts->servers * ids;

    for (uint32_t at = 0; at < count; at++) {
        const double page = facts->page_s[at / ids];

        placement->miss[at] = page < 0 ? UNPLACED_S : facts->calls[at] * page;
    }
    for (uint32_t at = 0; at < count; at++) {
        placement->order[at] = at;
        placement->value[at] = gain_s(facts, placement, at / ids, at % ids);
    }
    for (uint32_t i = count / 2; i-- > 0;)
        sink(placement, i, count);
    return count;
}

static void united_place(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const uint32_t ids = mp_place_ids(facts);
    uint32_t count = fill_heap(facts, placement);
    uint32_t unplaced = mp_place_covers(&mp_place_united, facts) ? ids : 0;
    uint64_t left = 0;

    for (uint32_t n = 0; n < facts->servers; n++)
        left += mp_place_room(facts, n);

    while (count > 0) {
        const uint32_t at = placement->order[0], server = at / ids, id = at % ids;
        const uint32_t device = idlest(facts, placement, server);
        const double gain = gain_s(facts, placement, server, id);

        if (device != UINT32_MAX && gain < placement->value[at]) {
            placement->value[at] = gain;
            sink(placement, 0, count);
            continue;
        }
        if (device != UINT32_MAX && (placement->copies[id] == 0 || left > unplaced)) {
            unplaced -= unplaced > 0 && placement->copies[id] == 0;
            left--;
            placement->load[device] += facts->tokens[at];
            mp_place_put(facts, placement, device, id);
            lower_misses(facts, placement, server, id);
        }
        placement->order[0] = placement->order[--count];
        if (count > 0)
            sink(placement, 0, count);
    }
}

const struct mp_place_ops mp_place_united = {
    .name = "united",
    .summary = "ours: copies go where they save most, of asking and reading the cheaper",
    .pages = true,
    .calls = true,
    .migrates = true,
    .place = united_place,
};
