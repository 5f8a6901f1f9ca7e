/*
 * Placements on 10,000 random cases, and on small ones that were worked out by hand.
 */
#include <math.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/random.h"
#include "tests/support/test.h"
#include "tests/unit/policy/place/place_world.h"
#include "vmm/base/error.h"

static uint64_t random_state = 21;

#define CASES 10000

static uint32_t refusals, placements;

/* Counts of one of four kinds: none, equal, drawn, and steep ones. */
static double draw_count(uint32_t kind)
{
    switch (kind) {
    case 0: return 0;
    case 1: return 3;
    case 2: return random_below(5);
    default: return random_below(3) == 0 ? exp((double)random_below(20)) : 0;
    }
}

/* At least as many steps as the busiest expert has calls, and sometimes as many; or not known. */
static double draw_steps(const struct place_world *w, uint32_t n)
{
    const uint32_t ids = w->facts.layers * w->facts.experts;
    double most = 0;

    for (uint32_t u = 0; u < ids; u++)
        most = w->calls[n * ids + u] > most ? w->calls[n * ids + u] : most;
    return random_below(8) == 0 ? 0 : most + random_below(3);
}

static void draw_world(struct place_world *w)
{
    const uint32_t layers = 1 + random_below(6), experts = 1 + random_below(WORLD_IDS / layers);
    const uint32_t servers = 1 + random_below(WORLD_SERVERS), ids = layers * experts;
    const uint32_t room = 1 + 3 * ids / servers;
    static const uint32_t none[WORLD_SERVERS];
    uint32_t devices = 0;

    world_init(w, layers, experts, servers, none);
    w->facts.seed = random_below(1000);
    for (uint32_t n = 0; n < servers; n++) {
        const uint32_t kind = random_below(4);

        for (uint32_t last = devices + 1 + random_below(4); devices < last; devices++)
            w->slots[devices] = random_below(random_below(2) ? room : 4);
        w->first_device[n + 1] = devices;
        w->page_s[n] = random_below(8) == 0 ? -1 : (double)random_below(10);
        w->copy_s[n] = random_below(10);
        for (uint32_t u = 0; u < ids; u++) {
            w->tokens[n * ids + u] = draw_count(kind);
            w->calls[n * ids + u] = ceil(w->tokens[n * ids + u] / 2);
        }
        w->steps[n] = draw_steps(w, n);
    }
    w->facts.steps = random_below(2) ? w->steps : NULL;
    for (uint32_t i = 0; i < servers * servers; i++) {
        w->call_s[i] = random_below(20);
        w->token_s[i] = random_below(3);
    }
}

static uint64_t room_of(const struct place_world *w)
{
    const uint32_t ids = w->facts.layers * w->facts.experts;
    uint64_t room = 0;

    for (uint32_t n = 0; n < w->facts.servers; n++) {
        uint32_t own = 0;

        for (uint32_t d = w->first_device[n]; d < w->first_device[n + 1]; d++)
            own += w->slots[d];
        room += own < ids ? own : ids;
    }
    return room;
}

static uint64_t kept_of(const struct place_world *w, const struct mp_placement *p)
{
    uint64_t kept = 0;

    for (uint32_t u = 0; u < w->facts.layers * w->facts.experts; u++)
        kept += p->copies[u];
    return kept;
}

/* Every expert somewhere, no capacity exceeded, the same again for the same facts; a refusal names
 * both numbers. Those that duplicate leave no slot empty. */
static void check_one(const struct place_world *w, const struct mp_place_ops *ops,
                      struct mp_placement *p, struct mp_placement *again)
{
    const uint32_t ids = w->facts.layers * w->facts.experts;
    const bool covers = mp_place_covers(ops, &w->facts);
    const uint64_t room = room_of(w);
    char need[96];

    if (covers && room < ids) {
        CHECK_EQ(mp_place(ops, &w->facts, p), MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_PLACE_ROOM");
        snprintf(need, sizeof(need), "together keep %llu experts, need all %u of the model",
                 (unsigned long long)room, ids);
        CHECK(strstr(mp_error_last()->text, need) != NULL);
        CHECK(strstr(mp_error_last()->text, ops->name) != NULL);
        CHECK_EQ(kept_of(w, p), 0);
        mp_error_clear();
        refusals++;
        return;
    }
    CHECK_EQ(mp_place(ops, &w->facts, p), MP_OK);
    CHECK_EQ(mp_place_check(&w->facts, p, covers), MP_OK);
    if (!strcmp(ops->name, "uniform") || !strcmp(ops->name, "smartmoe") ||
        !strcmp(ops->name, "naive"))
        CHECK_EQ(kept_of(w, p), ids);
    else
        CHECK_EQ(kept_of(w, p), room);
    CHECK_EQ(mp_place(ops, &w->facts, again), MP_OK);
    CHECK(memcmp(p->device, again->device, (size_t)w->facts.servers * ids * sizeof(*p->device)) ==
          0);
    CHECK(!mp_place_adopts(ops, &w->facts, p, again, 300));
    placements++;
}

static void random_cases_keep_every_promise(void)
{
    for (uint32_t i = 0; i < CASES; i++) {
        struct place_world w;
        struct mp_placement p, again;
        const struct mp_place_ops *ops;

        draw_world(&w);
        CHECK_EQ(mp_placement_init(&p, &w.facts), MP_OK);
        CHECK_EQ(mp_placement_init(&again, &w.facts), MP_OK);
        for (size_t k = 0; (ops = mp_place_builtin(k)) != NULL; k++)
            check_one(&w, ops, &p, &again);
        mp_placement_fini(&again);
        mp_placement_fini(&p);
    }
    fprintf(stderr, "  %u placements, %u refusals\n", placements, refusals);
    CHECK(placements > 4 * CASES && refusals > CASES / 2);
}

/* A check that finds nothing is none. */
static void a_broken_placement_is_found(void)
{
    static const uint32_t slots[2] = { 2, 2 };
    struct place_world w;
    struct mp_placement p;

    world_init(&w, 1, 3, 2, slots);
    CHECK_EQ(mp_placement_init(&p, &w.facts), MP_OK);
    CHECK_EQ(mp_place(mp_place_find("redundance"), &w.facts, &p), MP_OK);
    w.slots[0] = 1;
    CHECK_EQ(mp_place_check(&w.facts, &p, true), MP_ERR_INVALID);
    w.slots[0] = 2;
    p.copies[1]++;
    CHECK_EQ(mp_place_check(&w.facts, &p, true), MP_ERR_INVALID);
    p.copies[1]--;
    p.device[0] = 2;
    CHECK_EQ(mp_place_check(&w.facts, &p, true), MP_ERR_INVALID);
    memset(p.device, 0, 6 * sizeof(*p.device));
    memset(p.copies, 0, 3 * sizeof(*p.copies));
    CHECK_EQ(mp_place_check(&w.facts, &p, false), MP_OK);
    CHECK_EQ(mp_place_check(&w.facts, &p, true), MP_ERR_INVALID);
    mp_error_clear();
    mp_placement_fini(&p);
}

/*
 * Two layers of 4, two servers with 5 and 4 slots.
 * Server 0: layer 0 all on one expert (0 bits), layer 1 on four equally (2 bits): q = 0 and 5.
 *   N = 0 and 4; a server with 5 slots has one of each layer: 1 and 4.
 * Server 1: 1 bit (two equal) and 1 bit: q = 2 and 2.
 * Sums 3 and 6: layer 0 lacks one. The larger server gives one of layer 1: 2 and 3; 2 and 2.
 * Layer 0: server 0 takes 0 and, of the unused 1 2 3, what the cluster uses most: 2. Server 1 takes
 *   2 and 3. Missing: 1. Copies of 2 on both; fewest duplicates 1 each, so server 0 gives 2 for 1.
 * Layer 1: server 0 takes 5 6 4 (equal in use; the cluster uses 5 and 6 more), server 1 takes 5 6.
 *   Missing: 7. Both have two duplicates; server 0 prefers 5 to 6 (lower), so 6 leaves for 7.
 */
static void prism_is_the_one_worked_out_by_hand(void)
{
    static const uint32_t slots[2] = { 5, 4 };
    static const double first[8] = { 9, 0, 0, 0, 1, 1, 1, 1 };
    static const double second[8] = { 0, 0, 3, 3, 0, 2, 2, 0 };
    struct place_world w;
    struct mp_placement p;

    world_init(&w, 2, 4, 2, slots);
    world_count(&w, 0, first);
    world_count(&w, 1, second);
    CHECK_EQ(mp_placement_init(&p, &w.facts), MP_OK);
    CHECK_EQ(mp_place(mp_place_find("prism"), &w.facts, &p), MP_OK);
    CHECK_EQ(world_kept(&w, &p, 0), 1 << 0 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7);
    CHECK_EQ(world_kept(&w, &p, 1), 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6);
    mp_placement_fini(&p);
}

/* Within a server the busiest go to different devices, to the larger one more. */
static void devices_of_a_server_share_its_load(void)
{
    static const uint32_t slots[1] = { 0 };
    static const double counts[4] = { 8, 7, 2, 1 };
    struct place_world w;
    struct mp_placement p;

    world_init(&w, 1, 4, 1, slots);
    world_count(&w, 0, counts);
    w.first_device[1] = 2;
    w.slots[0] = w.slots[1] = 2;
    CHECK_EQ(mp_placement_init(&p, &w.facts), MP_OK);
    CHECK_EQ(mp_place(mp_place_find("prism"), &w.facts, &p), MP_OK);
    CHECK(p.device[0] == 1 && p.device[1] == 2 && p.device[2] == 2 && p.device[3] == 1);
    mp_placement_fini(&p);
}

/* EPLB, one layer of 4 with 12 4 4 4 tokens, three servers of 2: 12 becomes 6 6, then 4 4 4. */
static void eplb_copies_the_busiest(void)
{
    static const uint32_t slots[3] = { 2, 2, 2 };
    static const double counts[4] = { 12, 4, 4, 4 };
    struct place_world w;
    struct mp_placement p;

    world_init(&w, 1, 4, 3, slots);
    world_count(&w, 0, counts);
    CHECK_EQ(mp_placement_init(&p, &w.facts), MP_OK);
    CHECK_EQ(mp_place(mp_place_find("eplb"), &w.facts, &p), MP_OK);
    CHECK(p.copies[0] == 3 && p.copies[1] == 1 && p.copies[2] == 1 && p.copies[3] == 1);
    mp_placement_fini(&p);
}

/* Uniform and SmartMoE: as many of a layer on each device. SmartMoE: the two busiest apart. */
static void even_placements_are_even(void)
{
    static const uint32_t slots[2] = { 4, 4 };
    static const double counts[8] = { 9, 8, 1, 1, 1, 1, 8, 9 };
    struct place_world w;
    struct mp_placement p;

    world_init(&w, 2, 4, 2, slots);
    world_count(&w, 0, counts);
    CHECK_EQ(mp_placement_init(&p, &w.facts), MP_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mp_place(mp_place_find(i ? "smartmoe" : "uniform"), &w.facts, &p), MP_OK);
        CHECK_EQ(__builtin_popcountll(world_kept(&w, &p, 0) & 15), 2);
        CHECK_EQ(__builtin_popcountll(world_kept(&w, &p, 1) & 15), 2);
    }
    CHECK(world_kept(&w, &p, 0) % 4 == 1 || world_kept(&w, &p, 0) % 4 == 2);
    CHECK(world_kept(&w, &p, 0) >> 6 == 1 || world_kept(&w, &p, 0) >> 6 == 2);
    mp_placement_fini(&p);
}

/*
 * Two servers with one slot each, experts a and b. Server 0 calls a 5 times and b 4, server 1 calls
 * a 3 times. Asking costs 1 s, reading 10 s. Copies one by one: a on server 0 saves 50 + 3 * 9 =
 * 77, on server 1 30 + 45 = 75; then b on server 1 saves 4 * 9 = 36, a there 3. C(P) is 4 + 3.
 * Prism's, b on server 0 and a on server 1, is 5. If reading costs 0.5 s, nobody asks: a on server
 * 0, then on server 1 saves 1.5, b there nothing.
 */
static void united_weighs_asking_against_reading(void)
{
    static const uint32_t slots[2] = { 1, 1 };
    static const double first[2] = { 5, 4 }, second[2] = { 3, 0 };
    const struct mp_place_ops *united = mp_place_find("united");
    struct place_world w;
    struct mp_placement p;

    world_init(&w, 1, 2, 2, slots);
    world_count(&w, 0, first);
    world_count(&w, 1, second);
    CHECK_EQ(mp_placement_init(&p, &w.facts), MP_OK);
    CHECK_EQ(mp_place(united, &w.facts, &p), MP_OK);
    CHECK(world_kept(&w, &p, 0) == 2 && world_kept(&w, &p, 1) == 1);
    CHECK(fabs(mp_place_cost_s(united, &w.facts, &p, 1) - 5) < 1e-9);
    w.page_s[0] = w.page_s[1] = 0.5;
    CHECK_EQ(mp_place(united, &w.facts, &p), MP_OK);
    CHECK(world_kept(&w, &p, 0) == 1 && world_kept(&w, &p, 1) == 1);
    CHECK(fabs(mp_place_cost_s(united, &w.facts, &p, 1) - 2) < 1e-9);
    w.page_s[0] = -1; /* it has to ask: both experts must be kept */
    CHECK_EQ(mp_place(united, &w.facts, &p), MP_OK);
    CHECK(p.copies[0] == 1 && p.copies[1] == 1);
    mp_placement_fini(&p);
}

/*
 * Two layers of two experts, each chosen in every second of 8 steps; two servers with two slots. A
 * message takes 1 s. With one expert of each layer, half of the steps send a message for a layer: 8
 * * 1/2 * 2 layers = 8 s for each server. With a whole layer at each, the other one's takes
 * 8 * (1 - 1/4) = 6 s. As long as steps are not known every call is a message: 8 s both. Where
 * nothing is known, it is whole layers, too.
 */
static void united_counts_messages(void)
{
    static const uint32_t slots[2] = { 2, 2 };
    static const double calls[4] = { 4, 4, 4, 4 }, steps[2] = { 8, 8 };
    const struct mp_place_ops *united = mp_place_find("united");
    const struct mp_place_ops *prism = mp_place_find("prism");
    struct place_world w;
    struct mp_placement p;

    world_init(&w, 2, 2, 2, slots);
    CHECK_EQ(mp_placement_init(&p, &w.facts), MP_OK);
    CHECK_EQ(mp_place(united, &w.facts, &p), MP_OK);
    CHECK(world_kept(&w, &p, 0) == 3 && world_kept(&w, &p, 1) == 12);
    world_count(&w, 0, calls);
    world_count(&w, 1, calls);
    CHECK(fabs(mp_place_cost_s(united, &w.facts, &p, 1) - 16) < 1e-9);
    w.facts.steps = steps;
    CHECK_EQ(mp_place(prism, &w.facts, &p), MP_OK);
    CHECK(fabs(mp_place_cost_s(united, &w.facts, &p, 1) - 16) < 1e-9);
    CHECK_EQ(mp_place(united, &w.facts, &p), MP_OK);
    CHECK(world_kept(&w, &p, 0) == 3 && world_kept(&w, &p, 1) == 12);
    CHECK(fabs(mp_place_cost_s(united, &w.facts, &p, 1) - 12) < 1e-9);
    w.page_s[0] = w.page_s[1] = 0.5; /* reading both experts takes 4 * 2 * 0.5 s */
    CHECK(fabs(mp_place_cost_s(united, &w.facts, &p, 1) - 8) < 1e-9);
    mp_placement_fini(&p);
}

/*
 * Each server uses only what the other keeps: 12 calls in 2 s at 1 s each, so C(P) is 6 s per
 * second. After the change both servers have what they use: C(P') = 0. Two experts arrive, 2 s
 * each: 4 s. The change pays after 2 / 3 s, and not at that horizon itself.
 */
static void a_placement_is_adopted_when_it_pays(void)
{
    static const uint32_t slots[2] = { 1, 1 };
    static const double uses[2][2] = { { 0, 6 }, { 6, 0 } };
    const struct mp_place_ops *prism = mp_place_find("prism");
    struct place_world w;
    struct mp_placement from, to;

    world_init(&w, 1, 2, 2, slots);
    CHECK_EQ(mp_placement_init(&from, &w.facts), MP_OK);
    CHECK_EQ(mp_placement_init(&to, &w.facts), MP_OK);
    CHECK_EQ(mp_place(prism, &w.facts, &from), MP_OK); /* knows nothing: 0 and 1 by number */
    world_count(&w, 0, uses[0]);
    world_count(&w, 1, uses[1]);
    w.facts.seconds = 2;
    CHECK_EQ(world_kept(&w, &from, 0), 2);
    memset(from.device, 0, 4 * sizeof(*from.device));
    from.device[0] = from.device[3] = 1;
    CHECK_EQ(mp_place(prism, &w.facts, &to), MP_OK);
    CHECK(world_kept(&w, &to, 0) == 2 && world_kept(&w, &to, 1) == 1);
    CHECK(fabs(mp_place_cost_s(prism, &w.facts, &from, 1) - 6) < 1e-9);
    CHECK(mp_place_cost_s(prism, &w.facts, &to, 1) == 0);
    CHECK(mp_place_copy_s(&w.facts, &from, &to) == 4);
    CHECK(!mp_place_adopts(prism, &w.facts, &from, &to, 0.6));
    CHECK(!mp_place_adopts(prism, &w.facts, &from, &to, 2.0 / 3));
    CHECK(mp_place_adopts(prism, &w.facts, &from, &to, 0.7));
    mp_placement_fini(&to);
    mp_placement_fini(&from);
}

/* Asking costs per call and per token, of the cheapest holder; nobody has it: lost. */
static void misses_take_the_cheapest_way(void)
{
    static const uint32_t slots[3] = { 1, 1, 1 };
    static const double none[1] = { 0 };
    const struct mp_place_ops *local = mp_place_find("local"), *naive = mp_place_find("naive");
    struct place_world w;
    struct mp_placement p;

    world_init(&w, 1, 1, 3, slots);
    world_count(&w, 1, none);
    w.calls[0] = 2;
    w.tokens[0] = 7;
    w.call_s[1] = 3;
    w.call_s[2] = 1;
    w.token_s[1] = 0.5;
    w.token_s[2] = 1;
    CHECK_EQ(mp_placement_init(&p, &w.facts), MP_OK);
    CHECK(mp_place_cost_s(naive, &w.facts, &p, 1) == 2 * MP_PLACE_LOST_S);
    CHECK(mp_place_cost_s(local, &w.facts, &p, 1) == 20);
    p.device[1] = 1;
    CHECK(mp_place_cost_s(naive, &w.facts, &p, 1) == 9.5);
    p.device[2] = 1;
    CHECK(mp_place_cost_s(naive, &w.facts, &p, 1) == 9);
    p.device[0] = 1;
    CHECK(mp_place_cost_s(naive, &w.facts, &p, 1) == 0);
    mp_placement_fini(&p);
}

/*
 * Two servers that use both experts, and a third that alone keeps expert 1 and is gone: it has no
 * slots. What it kept counts for nothing, so the placement without it, in which expert 1 has to be
 * copied, is adopted by each policy.
 */
static void a_server_that_is_gone_keeps_nothing(void)
{
    static const uint32_t slots[3] = { 1, 1, 0 };
    static const double uses[2] = { 3, 3 };
    struct place_world w;
    struct mp_placement from, to;
    const struct mp_place_ops *ops;

    world_init(&w, 1, 2, 3, slots);
    world_count(&w, 0, uses);
    world_count(&w, 1, uses);
    CHECK_EQ(mp_placement_init(&from, &w.facts), MP_OK);
    CHECK_EQ(mp_placement_init(&to, &w.facts), MP_OK);
    for (size_t k = 0; (ops = mp_place_builtin(k)) != NULL; k++) {
        if (!ops->calls || ops->pages)
            continue;
        memset(from.device, 0, 6 * sizeof(*from.device));
        from.device[0] = from.device[2] = from.device[5] = 1; /* 0 on both, 1 on the third */
        w.slots[2] = 1;
        CHECK(fabs(mp_place_cost_s(ops, &w.facts, &from, 1) - 6) < 1e-9);
        w.slots[2] = 0;
        CHECK(fabs(mp_place_cost_s(ops, &w.facts, &from, 1) - 6 * MP_PLACE_LOST_S) < 1e-6);
        CHECK_EQ(mp_place(ops, &w.facts, &to), MP_OK);
        CHECK(world_kept(&w, &to, 0) + world_kept(&w, &to, 1) == 3);
        CHECK(mp_place_adopts(ops, &w.facts, &from, &to, 1));
    }
    /* Nor does it find its own there, if it still asks. */
    world_count(&w, 2, uses);
    CHECK(fabs(mp_place_cost_s(mp_place_find("naive"), &w.facts, &to, 1) - 12) < 1e-9);
    CHECK(mp_place_cost_s(mp_place_find("naive"), &w.facts, &from, 1) > 9 * MP_PLACE_LOST_S - 1);
    mp_placement_fini(&to);
    mp_placement_fini(&from);
}

static void names_are_found_and_memory_may_be_short(void)
{
    static const uint32_t slots[1] = { 1 };
    struct place_world w;
    struct mp_placement p;

    CHECK(mp_place_find("prism") == mp_place_builtin(0));
    CHECK(mp_place_find("prisms") == NULL && mp_place_builtin(99) == NULL);
    for (size_t k = 0; mp_place_builtin(k) != NULL; k++) {
        const struct mp_place_ops *ops = mp_place_builtin(k);

        CHECK(mp_place_find(ops->name) == ops && ops->summary != NULL && ops->place != NULL);
        CHECK(ops->pages || ops->calls);
    }
    world_init(&w, 1, 1, 1, slots);
    fault_nth(FAULT_ALLOCATIONS, 0);
    CHECK_EQ(mp_placement_init(&p, &w.facts), MP_ERR_NO_MEMORY);
    CHECK_EQ(fault_end(), 1);
    mp_placement_fini(&p);
    mp_error_clear();
}

int main(void)
{
    RUN(names_are_found_and_memory_may_be_short);
    RUN(a_broken_placement_is_found);
    RUN(prism_is_the_one_worked_out_by_hand);
    RUN(devices_of_a_server_share_its_load);
    RUN(eplb_copies_the_busiest);
    RUN(even_placements_are_even);
    RUN(united_weighs_asking_against_reading);
    RUN(united_counts_messages);
    RUN(a_placement_is_adopted_when_it_pays);
    RUN(misses_take_the_cheapest_way);
    RUN(a_server_that_is_gone_keeps_nothing);
    RUN(random_cases_keep_every_promise);
    return 0;
}
