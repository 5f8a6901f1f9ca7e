/*
 * Evict policies: hand-made sequences with the expected victims worked out in comments, what holds
 * for all of them, and that none beats the offline optimum.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "policy/builtins.h"
#include "policy/residents.h"
#include "tests/support/random.h"
#include "tests/support/test.h"

#define LAYERS 3
#define EXPERTS 8
#define UNITS (LAYERS * EXPERTS)

static uint64_t random_state = 20240702;

/* A policy, and the facts that the pager would keep. */
struct bench {
    const struct mp_evict_ops *ops;
    struct mp_policy *policy;
    uint64_t now;
    uint8_t evictable[UNITS];
};

static void bench_init(struct bench *bench, const struct mp_evict_ops *ops, uint32_t slots,
                       uint64_t seed)
{
    const struct mp_shape shape = {
        .layers = LAYERS,
        .experts = EXPERTS,
        .top_k = 2,
        .tokens_max = 4,
        .slots = slots,
        .seed = seed,
    };

    static _Alignas(16) char config[1024]; /* the policy's defaults */

    CHECK(ops->info.config_size <= sizeof(config));
    if (ops->info.opts != NULL)
        CHECK_EQ(mp_opt_load(ops->info.opts, "UNSET_", config), 0);
    memset(bench, 0, sizeof(*bench));
    bench->ops = ops;
    CHECK_EQ(ops->create(ops->info.opts != NULL ? config : NULL, &shape, &bench->policy), MP_OK);
    CHECK(bench->policy->info == &ops->info);
}

static void bench_fini(struct bench *bench)
{
    bench->ops->destroy(bench->policy);
}

static void access_unit(struct bench *bench, uint32_t unit)
{
    if (bench->ops->on_access != NULL)
        bench->ops->on_access(bench->policy, unit, 1, ++bench->now);
}

static void insert(struct bench *bench, uint32_t unit)
{
    bench->ops->on_insert(bench->policy, unit, bench->now);
    bench->evictable[unit] = 1;
}

static void take_away(struct bench *bench, uint32_t unit)
{
    bench->ops->on_remove(bench->policy, unit, bench->now);
    bench->evictable[unit] = 0;
}

/* Asked twice: the result must be the same. */
static uint32_t pick(struct bench *bench, uint32_t for_id, uint32_t scope_layer)
{
    const struct mp_evict_query query = { .for_id = for_id,
                                          .scope_layer = scope_layer,
                                          .experts = EXPERTS,
                                          .evictable = bench->evictable };
    const uint32_t unit = bench->ops->pick(bench->policy, &query);

    CHECK_EQ(bench->ops->pick(bench->policy, &query), unit);
    CHECK(unit == MP_EXPERT_NONE || mp_evict_allows(&query, unit));
    return unit;
}

static void load(struct bench *bench, uint32_t unit)
{
    access_unit(bench, unit);
    insert(bench, unit);
}

static void lru_takes_the_oldest_use(void)
{
    struct bench b;

    bench_init(&b, &mp_evict_lru, 4, 0);
    CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), MP_EXPERT_NONE); /* nothing is resident */
    load(&b, 5);
    load(&b, 17);
    load(&b, 2);
    load(&b, 8);
    CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), 5);
    access_unit(&b, 5); /* order of last use: 17 2 8 5 */
    CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), 17);
    CHECK_EQ(pick(&b, 9, 0), 2); /* layer 0 holds 5 and 2 */
    CHECK_EQ(pick(&b, 9, 1), 8);
    b.evictable[17] = 0; /* leased */
    CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), 2);
    CHECK_EQ(pick(&b, 9, 2), MP_EXPERT_NONE);
    b.evictable[17] = 1;
    take_away(&b, 17);
    access_unit(&b, 17); /* used, but no longer resident */
    CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), 2);
    insert(&b, 17); /* coming back is the newest: 2 8 5 17 */
    take_away(&b, 2);
    take_away(&b, 8);
    CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), 5);
    bench_fini(&b);
}

static void lfu_takes_the_rarest_then_the_oldest(void)
{
    struct bench b;

    bench_init(&b, &mp_evict_lfu, 4, 0);
    load(&b, 1);
    load(&b, 2);
    load(&b, 3);
    access_unit(&b, 1);
    access_unit(&b, 1);
    access_unit(&b, 2); /* counts: 1 -> 3, 2 -> 2, 3 -> 1 */
    CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), 3);
    access_unit(&b, 3); /* 2 and 3 have 2; 2 was used before 3 */
    CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), 2);
    access_unit(&b, 2); /* 3 is rarest again */
    take_away(&b, 3);
    load(&b, 3); /* the count survived and is 3 now, like that of 1 and 2; 1 is oldest */
    CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), 1);
    insert(&b, 20); /* never needed: a prefetch */
    CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), 20);
    bench_fini(&b);
}

static void layer_policies_take_from_who_has_too_much(void)
{
    static const struct mp_evict_ops *const both[] = { &mp_evict_layer_lru, &mp_evict_layer_lfu };

    for (size_t i = 0; i < 2; i++) {
        struct bench b;

        /* 7 slots for 3 layers: shares of 3, 2, 2. */
        bench_init(&b, both[i], 7, 0);
        load(&b, 16); /* layer 2 */
        load(&b, 0);  /* layer 0 */
        load(&b, 1);
        load(&b, 2);
        load(&b, 8); /* layer 1 */
        load(&b, 9);
        load(&b, 10);
        /* Layer 0 has its share: it gives up its own oldest, though 16 is older. */
        CHECK_EQ(pick(&b, 3, MP_LAYER_ANY), 0);
        /* Layer 2 is below its share: layer 1 exceeds its own by one. */
        CHECK_EQ(pick(&b, 17, MP_LAYER_ANY), 8);
        /* Layer 1 has its share and gives up its own. */
        CHECK_EQ(pick(&b, 11, MP_LAYER_ANY), 8);
        /* Nothing of layer 1 may go: the oldest anywhere. */
        b.evictable[8] = b.evictable[9] = b.evictable[10] = 0;
        CHECK_EQ(pick(&b, 17, MP_LAYER_ANY), 16);
        /* The pager's scope is obeyed before everything else. */
        CHECK_EQ(pick(&b, 17, 0), 0);
        CHECK_EQ(pick(&b, 17, 1), MP_EXPERT_NONE);
        bench_fini(&b);
    }
}

static void the_layer_that_exceeds_most_gives_first(void)
{
    struct bench b;

    /* 6 slots: shares of 2. Layer 1 holds 4, layer 2 holds 3. */
    bench_init(&b, &mp_evict_layer_lru, 6, 0);
    for (uint32_t u = 16; u < 19; u++)
        load(&b, u);
    for (uint32_t u = 8; u < 12; u++)
        load(&b, u);
    CHECK_EQ(pick(&b, 0, MP_LAYER_ANY), 8);
    take_away(&b, 8); /* both exceed by one: the lower number */
    CHECK_EQ(pick(&b, 0, MP_LAYER_ANY), 9);
    take_away(&b, 9);
    CHECK_EQ(pick(&b, 0, MP_LAYER_ANY), 16);
    bench_fini(&b);
}

static void layers_without_a_share_take_from_others(void)
{
    struct bench b;

    /* 2 slots for 3 layers: shares of 1, 1, 0. */
    bench_init(&b, &mp_evict_layer_lru, 2, 0);
    load(&b, 8);
    load(&b, 0);
    /* Layer 2 is entitled to nothing and nobody exceeds: the oldest. */
    CHECK_EQ(pick(&b, 16, MP_LAYER_ANY), 8);
    take_away(&b, 8);
    load(&b, 16);
    /* Layer 1 is below its share, layer 2 exceeds its. */
    CHECK_EQ(pick(&b, 8, MP_LAYER_ANY), 16);
    /* Layer 2 holds at least its share of none. */
    CHECK_EQ(pick(&b, 17, MP_LAYER_ANY), 16);
    bench_fini(&b);
}

static void ties_go_to_the_lower_id_whatever_the_order(void)
{
    static const struct mp_shape shape = { .layers = LAYERS, .experts = EXPERTS, .slots = 4 };
    static const uint64_t same[UNITS] = { 0 };
    uint8_t evictable[UNITS];
    const struct mp_evict_query query = {
        .for_id = 0, .scope_layer = MP_LAYER_ANY, .experts = EXPERTS, .evictable = evictable
    };
    struct mp_arena arena = { 0 };
    struct mp_residents set;

    memset(evictable, 1, sizeof(evictable));
    mp_residents_take(&set, &shape, &arena);
    CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
    mp_residents_take(&set, &shape, &arena);
    mp_residents_add(&set, 9);
    mp_residents_add(&set, 4);
    mp_residents_add(&set, 20);
    mp_residents_add(&set, 4); /* no effect */
    CHECK_EQ(set.count, 3);
    CHECK_EQ(mp_residents_min(&set, &query, MP_LAYER_ANY, same, NULL), 4);
    CHECK_EQ(mp_residents_min(&set, &query, MP_LAYER_ANY, same, same), 4);
    CHECK_EQ(mp_residents_min(&set, &query, 2, same, same), 20);
    mp_residents_remove(&set, 4);
    mp_residents_remove(&set, 4); /* no effect */
    CHECK_EQ(set.count, 2);
    CHECK_EQ(mp_residents_min(&set, &query, MP_LAYER_ANY, same, NULL), 9);
    for (uint32_t i = 0; i < set.count; i++)
        CHECK_EQ(set.place[set.id[i]], i);
    CHECK_EQ(set.held[0] + set.held[1] * 10 + set.held[2] * 100, 110);
    free(arena.block);
}

static void random_repeats_with_its_seed_and_spreads(void)
{
    unsigned times[UNITS] = { 0 }, differ = 0;

    for (uint64_t seed = 0; seed < 400; seed++) {
        struct bench a, b;
        uint32_t unit;

        bench_init(&a, &mp_evict_random, 8, seed);
        bench_init(&b, &mp_evict_random, 8, seed);
        for (uint32_t u = 0; u < 8; u++) {
            load(&a, u);
            load(&b, u);
        }
        unit = pick(&a, 9, MP_LAYER_ANY);
        CHECK_EQ(pick(&b, 9, MP_LAYER_ANY), unit);
        times[unit]++;
        take_away(&a, unit);
        insert(&a, unit); /* the same set, but a later choice */
        differ += pick(&a, 9, MP_LAYER_ANY) != unit;
        bench_fini(&a);
        bench_fini(&b);
    }
    /* 400 choices of 8: 50 each expected, deviation 6.6. */
    for (uint32_t u = 0; u < 8; u++)
        CHECK(times[u] > 20 && times[u] < 80);
    CHECK(differ > 300);
}

static const struct mp_evict_ops *evict_ops(size_t i)
{
    return (const void *)mp_policy_builtin(MP_POLICY_EVICT, i);
}

/* Random histories: the result is allowed whenever something is, and NONE only if nothing is, or
 * from a policy that keeps its residents. */
static void every_policy_obeys_the_query(void)
{
    for (size_t i = 0; evict_ops(i) != NULL; i++) {
        bool resident[UNITS] = { false };
        struct bench b;

        bench_init(&b, evict_ops(i), 10, 99);
        for (unsigned step = 0; step < 5000; step++) {
            const uint32_t unit = random_below(UNITS), for_id = random_below(UNITS);
            const uint32_t scope = random_below(2) ? MP_LAYER_ANY : random_below(LAYERS);
            bool any = false;

            switch (random_below(3)) {
            case 0: access_unit(&b, unit); break;
            case 1:
                if (!resident[unit])
                    insert(&b, unit);
                resident[unit] = true;
                break;
            default:
                if (resident[unit])
                    take_away(&b, unit);
                resident[unit] = false;
                break;
            }
            for (uint32_t u = 0; u < UNITS; u++) {
                b.evictable[u] = resident[u] && random_below(4) != 0;
                any = any || (b.evictable[u] && (scope == MP_LAYER_ANY || u / EXPERTS == scope));
            }
            (void)pick(&b, for_id, scope); /* for a guess everything may be kept */
            access_unit(&b, for_id);
            if (pick(&b, for_id, scope) != MP_EXPERT_NONE)
                CHECK(any);
            else
                CHECK(!any || b.ops->waits);
        }
        bench_fini(&b);
    }
}

#define REQUESTS 3000
#define NEVER UINT32_MAX

/* Hits of the policy on a trace of single requests, all slots of one size, all layers in one. */
static unsigned replay(const struct mp_evict_ops *ops, const uint32_t *trace, uint32_t slots)
{
    unsigned hits = 0, held = 0;
    struct bench b;

    bench_init(&b, ops, slots, 5);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const uint32_t unit = trace[i];

        access_unit(&b, unit);
        if (b.evictable[unit]) {
            hits++;
            continue;
        }
        if (held == slots) {
            const uint32_t victim = pick(&b, unit, MP_LAYER_ANY);

            CHECK(victim != MP_EXPERT_NONE || ops->waits);
            if (victim == MP_EXPERT_NONE)
                continue; /* used, and gone again */
            take_away(&b, victim);
            held--;
        }
        insert(&b, unit);
        held++;
    }
    bench_fini(&b);
    return hits;
}

/* The offline optimum: what is needed last leaves, or is not kept at all. */
static unsigned belady(const uint32_t *trace, uint32_t slots)
{
    static uint32_t next[REQUESTS];
    uint32_t last[UNITS], until[UNITS] = { 0 }; /* next request of a resident */
    bool resident[UNITS] = { false };
    unsigned hits = 0, held = 0;

    memset(last, 0xff, sizeof(last));
    for (uint32_t i = REQUESTS; i-- > 0;) {
        next[i] = last[trace[i]];
        last[trace[i]] = i;
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const uint32_t unit = trace[i];

        if (resident[unit]) {
            hits++;
        } else if (held < slots) {
            resident[unit] = true;
            held++;
        } else {
            uint32_t furthest = unit;

            until[unit] = next[i];
            for (uint32_t u = 0; u < UNITS; u++) {
                if (resident[u] && until[u] > until[furthest])
                    furthest = u;
            }
            resident[furthest] = false;
            resident[unit] = furthest != unit;
        }
        until[unit] = next[i];
    }
    return hits;
}

static void no_policy_beats_the_offline_optimum(void)
{
    static uint32_t trace[REQUESTS];
    unsigned close_calls = 0;

    for (unsigned kind = 0; kind < 24; kind++) {
        const uint32_t units = 2 + random_below(UNITS - 1);

        for (uint32_t i = 0; i < REQUESTS; i++) {
            /* loops, uniform choices, a loop with jumps, a favoured third */
            trace[i] = kind % 4 == 0   ? i % units
                       : kind % 4 == 1 ? random_below(units)
                       : kind % 4 == 2
                           ? (i + (random_below(10) == 0 ? random_below(units) : 0)) % units
                           : random_below(random_below(2) ? units : (units + 2) / 3);
        }
        for (uint32_t slots = 1; slots <= units; slots += 1 + units / 6) {
            const unsigned bound = belady(trace, slots);

            for (size_t i = 0; evict_ops(i) != NULL; i++) {
                const unsigned hits = replay(evict_ops(i), trace, slots);

                CHECK(hits <= bound);
                if (slots >= units && !evict_ops(i)->waits)
                    CHECK_EQ(hits, REQUESTS - units); /* every unit is loaded once */
                else if (kind % 4 == 0 && evict_ops(i) == &mp_evict_lru)
                    CHECK_EQ(hits, 0); /* a loop longer than the slots: the trap of LRU */
                close_calls += bound > 0 && hits * 10 > bound * 9;
            }
            if (kind % 4 == 0 && slots < units)
                CHECK(slots == 1 || bound > 0);
        }
    }
    CHECK(close_calls > 10); /* the bound is not far away from everything */
}

int main(void)
{
    RUN(lru_takes_the_oldest_use);
    RUN(lfu_takes_the_rarest_then_the_oldest);
    RUN(layer_policies_take_from_who_has_too_much);
    RUN(the_layer_that_exceeds_most_gives_first);
    RUN(layers_without_a_share_take_from_others);
    RUN(ties_go_to_the_lower_id_whatever_the_order);
    RUN(random_repeats_with_its_seed_and_spreads);
    RUN(every_policy_obeys_the_query);
    RUN(no_policy_beats_the_offline_optimum);
    return 0;
}
