/*
 * The policy that people copy is complete, does what its comments say, and runs in a pager.
 */
#include "policy/template.h"

#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/test.h"

struct config {
    uint64_t newest_first;
};

static uint32_t pick(struct mp_policy *policy, const uint8_t *evictable, uint32_t scope_layer)
{
    const struct mp_evict_query query = {
        .for_id = 7, .scope_layer = scope_layer, .experts = 4, .evictable = evictable
    };
    const uint32_t unit = mp_evict_template.pick(policy, &query);

    CHECK_EQ(mp_evict_template.pick(policy, &query), unit);
    return unit;
}

static void evicts_in_order_of_loading(void)
{
    const struct mp_shape shape = { .layers = 2, .experts = 4, .top_k = 1, .slots = 4 };

    for (unsigned newest_first = 0; newest_first < 2; newest_first++) {
        const struct config config = { .newest_first = newest_first };
        uint8_t evictable[8] = { 0 };
        struct mp_policy *policy;

        CHECK_EQ(mp_evict_template.info.config_size, sizeof(config));
        CHECK_EQ(mp_evict_template.create(&config, &shape, &policy), MP_OK);
        CHECK(policy->info == &mp_evict_template.info);
        CHECK_EQ(pick(policy, evictable, MP_LAYER_ANY), MP_EXPERT_NONE);
        mp_evict_template.on_insert(policy, 5, 1);
        mp_evict_template.on_insert(policy, 0, 1);
        mp_evict_template.on_insert(policy, 3, 2);
        evictable[5] = evictable[0] = evictable[3] = 1;
        CHECK_EQ(pick(policy, evictable, MP_LAYER_ANY), newest_first ? 3 : 5);
        CHECK_EQ(pick(policy, evictable, 0), newest_first ? 3 : 0);
        evictable[newest_first ? 3 : 5] = 0; /* leased */
        CHECK_EQ(pick(policy, evictable, MP_LAYER_ANY), 0);
        mp_evict_template.on_remove(policy, 0, 2);
        evictable[0] = 0;
        evictable[3] = evictable[5] = 1;
        mp_evict_template.on_insert(policy, 0, 3);
        evictable[0] = 1;
        CHECK_EQ(pick(policy, evictable, MP_LAYER_ANY), newest_first ? 0 : 5);
        mp_evict_template.destroy(policy);
    }
}

static void runs_in_a_pager(void)
{
    static const uint32_t a[] = { 0, 1, 2 }, b[] = { 1, 2, 3 };
    const struct world_options options = { .layers = 2, .experts = 4, .top_k = 2, .slots = 5 };
    const struct config config = { .newest_first = 0 };
    struct mp_policy *lru, *fifo;
    struct world w;

    world_open(&options, &w);
    CHECK_EQ(mp_evict_template.create(&config, &w.shape, &fifo), MP_OK);
    lru = w.policies.evict;
    w.policies.evict = fifo;
    w.policies.evict_ops = &mp_evict_template;
    for (unsigned round = 0; round < 10; round++) {
        for (uint32_t l = 0; l < 2; l++)
            world_run(&w, l, round % 2 ? a : b, 3);
    }
    CHECK_EQ(w.counters.invalid_decisions, 0);
    CHECK_EQ(w.counters.hits + w.counters.misses, 60);
    CHECK(w.counters.hits > 0);
    mp_pager_destroy(w.pager);
    w.pager = NULL;
    mp_evict_template.destroy(fifo);
    w.policies.evict = lru;
    w.policies.evict_ops = (const void *)lru->info;
    world_close(&w);
}

int main(void)
{
    CHECK_EQ(mp_policy_check(MP_POLICY_EVICT, &mp_evict_template.info), MP_OK);
    CHECK(mp_policy_find(MP_POLICY_EVICT, mp_evict_template.info.name) == NULL); /* not listed */
    world_prepare();
    RUN(evicts_in_order_of_loading);
    RUN(runs_in_a_pager);
    return 0;
}
