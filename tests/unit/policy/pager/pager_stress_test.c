/*
 * Random needs, prefetches and aborts, under every evict policy and under a set that decides
 * nonsense. Whatever the policies say: every need is handed out exactly once with the right bytes,
 * the pager's own check holds after every layer, and no layer is left unfinished.
 *
 *     policy_pager_stress_test [layers to run [seed]]
 */
#include <inttypes.h>

#include "policy/builtins.h"
#include "tests/support/log_guard.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/random.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define LAYERS 4
#define EXPERTS 16
#define UNITS (LAYERS * EXPERTS) /* as policies count them: whole experts */

/* The malicious set. It keeps track of nothing but what the pager must report truthfully. */
static bool known_resident[UNITS];
static uint32_t last_victim;

static void checked_insert(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    (void)policy;
    (void)now;
    CHECK(unit < UNITS && !known_resident[unit]);
    known_resident[unit] = true;
}

static void checked_remove(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    (void)policy;
    (void)now;
    CHECK(unit < UNITS && known_resident[unit]);
    known_resident[unit] = false;
}

static uint32_t pick_nonsense(struct mp_policy *policy, const struct mp_evict_query *query)
{
    (void)policy;
    for (uint32_t u = 0; u < UNITS; u++)
        CHECK(!query->evictable[u] || known_resident[u]);
    switch (random_below(6)) {
    case 0: return UNITS + random_below(1000); /* out of range */
    case 1: return last_victim;                /* the same again */
    case 2: return MP_EXPERT_NONE;
    case 3: return query->for_id; /* cannot be resident */
    default:
        last_victim = random_below(UNITS); /* whoever, leased or not */
        return last_victim;
    }
}

static uint32_t pick_none_forever(struct mp_policy *policy, const struct mp_evict_query *query)
{
    (void)policy;
    (void)query;
    return MP_EXPERT_NONE;
}

static uint32_t pick_the_same_forever(struct mp_policy *policy, const struct mp_evict_query *query)
{
    (void)policy;
    (void)query;
    return 0;
}

static bool admit_at_random(struct mp_policy *policy, uint32_t unit, uint32_t tokens, uint64_t now)
{
    (void)policy;
    (void)unit;
    (void)tokens;
    (void)now;
    return random_below(3) != 0;
}

static uint32_t slices_of(const struct world *w)
{
    return w->shape.slices > 1 ? w->shape.slices : 1;
}

/* The unit of the space for what was handed out. */
static uint32_t unit_of(const struct world *w, uint32_t layer, const uint32_t *experts,
                        uint32_t need)
{
    const uint32_t slices = slices_of(w);

    return (layer * EXPERTS + experts[need / slices]) * slices + need % slices;
}

struct totals {
    uint64_t layers, needs, aborts, busy;
};

/* Hand out with up to `held_max` leases in hand, given back in random order. */
static void hand_out(struct world *w, uint32_t layer, const uint32_t *experts, uint32_t count,
                     bool give_up, struct totals *totals)
{
    const uint32_t slices = slices_of(w), parts = count * slices;
    struct mp_ready held[6];
    uint32_t held_count = 0, handed = 0, stop_after = give_up ? random_below(parts + 1) : parts + 1;
    const uint32_t held_max = 1 + random_below(5);
    uint32_t given[EXPERTS] = { 0 }; /* slices of each */

    while (handed < stop_after) {
        enum mp_status status = MP_ERR_BUSY;
        struct mp_ready ready;
        uint32_t unit;

        if (held_count < held_max)
            status = mp_pager_next(w->pager, &ready);
        if (status == MP_ERR_BUSY) {
            const uint32_t i = random_below(held_count);

            CHECK(held_count > 0); /* progress: without a lease it is never busy */
            CHECK(world_pieces_are_right(w, unit_of(w, layer, experts, held[i].need),
                                         held[i].pieces));
            mp_pager_done(w->pager, held[i].need);
            held[i] = held[--held_count];
            totals->busy++;
            continue;
        }
        if (status != MP_OK)
            fprintf(stderr, "%s\n", mp_error_last()->text);
        CHECK_EQ(status, MP_OK);
        if (ready.need == MP_NEED_NONE)
            break;
        CHECK(ready.need < parts);
        CHECK_EQ(ready.need % slices, given[ready.need / slices]);
        given[ready.need / slices]++;
        unit = unit_of(w, layer, experts, ready.need);
        CHECK(world_pieces_are_right(w, unit, ready.pieces));
        held[held_count++] = ready;
        handed++;
        CHECK_EQ(mp_space_leases(w->space, unit), 1);
    }
    if (give_up) {
        mp_pager_abort(w->pager);
        totals->aborts++;
        return;
    }
    while (held_count > 0) {
        CHECK(world_pieces_are_right(w, unit_of(w, layer, experts, held[held_count - 1].need),
                                     held[held_count - 1].pieces));
        mp_pager_done(w->pager, held[--held_count].need);
    }
    CHECK_EQ(handed, parts);
    mp_pager_end(w->pager);
}

static void prefetch_at_random(struct world *w)
{
    uint32_t predicted[3 * EXPERTS];
    const uint32_t count = random_below(3 * EXPERTS), target = random_below(LAYERS + 1);

    for (uint32_t i = 0; i < count; i++)
        predicted[i] = random_below(20) == 0 ? random_below(UINT32_MAX) : random_below(EXPERTS);
    mp_pager_prefetch(w->pager, target, predicted, count);
}

static void check_accounts(const struct world *w, uint64_t needs)
{
    const struct mp_counters *c = &w->counters;

    CHECK_EQ(c->hits + c->misses, needs);
    CHECK(c->partial_hits <= c->misses);
    CHECK(c->prefetch_unused_bytes <= c->prefetch_bytes);
    CHECK(c->prefetch_used + c->prefetch_canceled <= c->prefetch_issued);
    /* What is in the tier came from a load or from a prefetch, and what left was evicted. */
    CHECK_EQ(c->load_bytes + c->prefetch_bytes, c->resident_bytes + c->evicted_bytes);
}

static void run_layers(struct world *w, unsigned layers)
{
    struct totals totals = { 0 };

    for (; totals.layers < layers; totals.layers++) {
        const uint32_t layer =
            random_below(8) == 0 ? random_below(LAYERS) : (uint32_t)(totals.layers % LAYERS);
        const uint32_t dense = 1 + random_below(6);
        uint32_t experts[EXPERTS], count = 0;

        for (uint32_t e = 0; e < EXPERTS; e++) {
            if (random_below(dense) == 0)
                experts[count++] = e;
        }
        if (random_below(4) == 0)
            prefetch_at_random(w);
        CHECK_EQ(world_begin(w, layer, experts, count), MP_OK);
        totals.needs += count;
        CHECK(mp_pager_check(w->pager));
        if (random_below(2))
            prefetch_at_random(w);
        hand_out(w, layer, experts, count, random_below(12) == 0, &totals);
        CHECK(mp_pager_check(w->pager));
        for (uint32_t u = 0; u < w->unit_count; u++)
            CHECK_EQ(mp_space_leases(w->space, u), 0);
        check_accounts(w, totals.needs);
    }
    fprintf(stderr,
            "    %" PRIu64 " needs, %" PRIu64 " hits, %" PRIu64 " loads, %" PRIu64
            " prefetches (%" PRIu64 " used, %" PRIu64 " canceled), %" PRIu64 " aborts, %" PRIu64
            " busy, %" PRIu64 " invalid decisions\n",
            totals.needs, w->counters.hits, w->counters.loads, w->counters.prefetch_issued,
            w->counters.prefetch_used, w->counters.prefetch_canceled, totals.aborts, totals.busy,
            w->counters.invalid_decisions);
    CHECK(totals.aborts > 0 && totals.busy > 0 && w->counters.misses > 0);
}

static struct world_options random_options(void)
{
    static const char *const partitions[] = { "global", "uniform", "fixed-point" };
    static const uint32_t slices[] = { 1, 1, 2, 3, 4, 16 };
    const uint32_t parts = slices[random_below(6)];

    return (struct world_options){
        .layers = LAYERS,
        .experts = EXPERTS,
        .top_k = 1 + random_below(4),
        .slices = parts,
        .slots = 2 + random_below(UNITS * parts - 2),
        .sizes = random_below(2) == 0 ? 3 : 1,
        .deterministic = random_below(3) == 0,
        .uring = random_below(2) == 0,
        .seed = random_below(1000),
        .names.policy[MP_POLICY_PARTITION] = partitions[random_below(3)],
    };
}

static void every_builtin(unsigned layers)
{
    const struct mp_policy_info *info;

    for (size_t i = 0; (info = mp_policy_builtin(MP_POLICY_EVICT, i)) != NULL; i++) {
        for (unsigned round = 0; round < 3; round++) {
            struct world_options options = random_options();
            struct world w;

            if (round == 0)
                options.slots = options.sizes > 1 ? 0 : 2; /* the smallest there is */
            options.names.policy[MP_POLICY_EVICT] = info->name;
            world_open(&options, &w);
            fprintf(stderr, "  %s, %u slots for experts of %u slices, %s\n", info->name,
                    options.slots, options.slices, mp_space_reader_engine(w.space));
            run_layers(&w, layers);
            world_close(&w);
        }
    }
}

/* Does any slice of the expert have a slot? */
static bool anything_is_there(const struct world *w, uint32_t whole)
{
    const uint32_t slices = slices_of(w);
    bool any = false;

    for (uint32_t u = whole * slices; u < (whole + 1) * slices; u++) {
        const enum mp_res_state state = mp_space_state(w->space, u);

        any |= state == MP_RES_VALID || state == MP_RES_FILLING;
    }
    return any;
}

static void malicious_sets(unsigned layers)
{
    static uint32_t (*const picks[])(struct mp_policy *, const struct mp_evict_query *) = {
        pick_nonsense, pick_none_forever, pick_the_same_forever
    };

    for (size_t i = 0; i < sizeof(picks) / sizeof(picks[0]); i++) {
        for (unsigned round = 0; round < 4; round++) {
            struct world_options options = random_options();
            struct mp_evict_ops evict = mp_evict_random;
            struct mp_admit_ops admit = mp_admit_always;
            struct world w;

            if (round == 0)
                options.slots = options.sizes > 1 ? 0 : 2;
            options.names.policy[MP_POLICY_EVICT] = "random";
            memset(known_resident, 0, sizeof(known_resident));
            evict.on_insert = checked_insert;
            evict.on_remove = checked_remove;
            evict.on_access = NULL;
            evict.pick = picks[i];
            admit.admit = admit_at_random;
            world_open(&options, &w);
            w.policies.evict_ops = &evict;
            w.policies.admit_ops = &admit;
            fprintf(stderr, "  malicious %zu, %u slots for experts of %u slices, %s\n", i,
                    options.slots, options.slices, mp_space_reader_engine(w.space));
            run_layers(&w, layers);
            for (uint32_t u = 0; u < UNITS; u++)
                CHECK_EQ(known_resident[u], anything_is_there(&w, u));
            CHECK(w.counters.invalid_decisions > 0);
            w.policies.evict_ops = &mp_evict_random;
            world_close(&w);
        }
    }
}

int main(int argc, char **argv)
{
    const unsigned layers = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 300;

    random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : UINT64_C(20240703);
    fprintf(stderr, "%u layers, seed %" PRIu64 "\n", layers, random_state);
    mp_test_drop_log(); /* budgets under one token cycle are warned of, rightly */
    world_prepare();
    every_builtin(layers);
    malicious_sets(layers);
    return 0;
}
