/*
 * Ours: a server that lacks an expert may ask another server for it or read it, whichever is
 * cheaper, and all that a layer asks of others waits once. Neither Prism, which only asks, nor
 * paging, which only reads, compares the two, and both count experts where messages cost.
 *
 * Of three placements the one with the lowest C(P) (place.h) is taken:
 *   - copies go one by one where they lower C(P) most, for their own server and for all that may
 *     now ask there;
 *   - first whole layers, because a layer of which nothing is missing waits for nobody, then copies
 *     one by one. Also where nothing is known;
 *   - Prism's.
 *
 * C(P) falls by less the more copies there are, so a gain that is found too old is only ever too
 * high: the copy with the largest old gain is looked at again, and taken if it stays largest. Where
 * a server cannot read, every expert has to be somewhere: one without a copy counts as very dear,
 * and the last slots are kept for those.
 *
 * A gain is O(servers); O(servers^2 * experts) for the first ones and, in practice, a few per copy.
 */
#include "policy/place/place_int.h"

/* Well above real costs, and small enough that their differences survive beside it. */
#define UNPLACED_S 1e7

/* A call of `server` pays its share of a message; share[] is that of all calls of the layer. */
static double asking_s(const struct mp_place_facts *facts, const struct mp_placement *placement,
                       uint32_t server, uint32_t holder, uint32_t id)
{
    const size_t at = (size_t)server * mp_place_ids(facts) + id;
    const size_t pair = (size_t)server * facts->servers + holder;
    const double share = placement->share[(size_t)server * facts->layers + id / facts->experts];

    return facts->calls[at] * share * facts->call_s[pair] +
           facts->tokens[at] * facts->token_s[pair];
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
            const double asking = asking_s(facts, placement, n, server, id);

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
        const double asking = n == server ? 0 : asking_s(facts, placement, n, server, id);

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
    const uint32_t ids = mp_place_ids(facts), all = facts->servers * ids;
    uint32_t count = 0;

    for (uint32_t at = 0; at < all; at++) {
        if (placement->device[at] != 0)
            continue;
        placement->order[count++] = at;
        placement->value[at] = gain_s(facts, placement, at / ids, at % ids);
    }
    for (uint32_t i = count / 2; i-- > 0;)
        sink(placement, i, count);
    return count;
}

static void put(const struct mp_place_facts *facts, struct mp_placement *placement, uint32_t device,
                uint32_t server, uint32_t id)
{
    placement->load[device] += facts->tokens[(size_t)server * mp_place_ids(facts) + id];
    mp_place_put(facts, placement, device, id);
    lower_misses(facts, placement, server, id);
}

static void place_copies(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const uint32_t ids = mp_place_ids(facts);
    uint32_t count = fill_heap(facts, placement), unplaced = 0;
    uint64_t left = 0;

    for (uint32_t id = 0; id < ids && mp_place_covers(&mp_place_united, facts); id++)
        unplaced += placement->copies[id] == 0;
    for (uint32_t d = 0; d < mp_place_devices(facts); d++)
        left += placement->free[d];

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
            put(facts, placement, device, server, id);
        }
        placement->order[0] = placement->order[--count];
        if (count > 0)
            sink(placement, 0, count);
    }
}

/* Nothing is kept; what every server would pay for each expert, and for how much of a message. */
static void begin(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const uint32_t ids = mp_place_ids(facts), all = facts->servers * ids;

    mp_place_clear(facts, placement);
    for (uint32_t at = 0; at < all; at++) {
        const double page = facts->page_s[at / ids];

        placement->miss[at] = page < 0 ? UNPLACED_S : facts->calls[at] * page;
    }
    for (uint32_t n = 0; n < facts->servers; n++) {
        for (uint32_t l = 0; l < facts->layers; l++)
            placement->share[(size_t)n * facts->layers + l] =
                mp_place_share(facts, placement, n, l);
    }
}

static uint32_t room_left(const struct mp_place_facts *facts, const struct mp_placement *placement,
                          uint32_t server)
{
    uint32_t left = 0;

    for (uint32_t d = facts->first_device[server]; d < facts->first_device[server + 1]; d++)
        left += placement->free[d];
    return left;
}

/* The server that sends most for a layer and has room for it; of equal ones that with most room.
 * UINT32_MAX: there is none. */
static uint32_t find_home(const struct mp_place_facts *facts, const struct mp_placement *placement,
                          uint32_t layer)
{
    uint32_t best = UINT32_MAX, best_left = 0;
    double most = 0;

    for (uint32_t n = 0; n < facts->servers; n++) {
        const size_t row = (size_t)n * mp_place_ids(facts) + (size_t)layer * facts->experts;
        const uint32_t left = room_left(facts, placement, n);
        double sum = 0;

        if (left < facts->experts)
            continue;
        for (uint32_t e = 0; e < facts->experts; e++)
            sum += facts->calls[row + e] * placement->share[(size_t)n * facts->layers + layer];
        if (best == UINT32_MAX || sum > most || (sum == most && left > best_left)) {
            best = n;
            best_left = left;
            most = sum;
        }
    }
    return best;
}

static void place_layers(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    for (uint32_t l = 0; l < facts->layers; l++) {
        const uint32_t home = find_home(facts, placement, l);

        for (uint32_t e = 0; e < facts->experts && home != UINT32_MAX; e++)
            put(facts, placement, idlest(facts, placement, home), home, l * facts->experts + e);
    }
    place_copies(facts, placement);
}

enum candidate { COPIES, LAYERS, PRISM, CANDIDATES };

static void place_candidate(const struct mp_place_facts *facts, struct mp_placement *placement,
                            enum candidate candidate)
{
    begin(facts, placement);
    switch (candidate) {
    case COPIES: place_copies(facts, placement); break;
    case LAYERS: place_layers(facts, placement); break;
    default: mp_place_prism.place(facts, placement);
    }
}

/* Prism keeps every expert somewhere, whether that is needed or not. */
static bool fits_prism(const struct mp_place_facts *facts)
{
    uint64_t room = 0;

    for (uint32_t n = 0; n < facts->servers; n++)
        room += mp_place_room(facts, n);
    return room >= mp_place_ids(facts);
}

static bool is_known(const struct mp_place_facts *facts)
{
    const size_t all = (size_t)facts->servers * mp_place_ids(facts);
    size_t at = 0;

    while (at < all && facts->calls[at] == 0)
        at++;
    return at < all;
}

static void place_unknown(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const size_t all = (size_t)facts->servers * mp_place_ids(facts);
    struct mp_place_facts equal = *facts;

    for (size_t at = 0; at < all; at++)
        placement->guess[at] = 1;
    equal.tokens = equal.calls = placement->guess;
    place_candidate(&equal, placement, LAYERS);
}

static void united_place(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    enum candidate best = COPIES, last = COPIES;
    double least = 0;

    if (!is_known(facts)) {
        place_unknown(facts, placement);
        return;
    }
    for (enum candidate c = COPIES; c < (fits_prism(facts) ? CANDIDATES : PRISM); c++) {
        double cost;

        place_candidate(facts, placement, c);
        cost = mp_place_cost_s(&mp_place_united, facts, placement, 1);
        if (c == COPIES || cost < least) {
            least = cost;
            best = c;
        }
        last = c;
    }
    if (best != last)
        place_candidate(facts, placement, best);
}

const struct mp_place_ops mp_place_united = {
    .name = "united",
    .summary =
        "ours: copies where they save most, of asking and reading the cheaper; messages count, not experts",
    .pages = true,
    .calls = true,
    .migrates = true,
    .place = united_place,
};
