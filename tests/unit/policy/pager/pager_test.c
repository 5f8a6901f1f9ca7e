/*
 * The pager over a real space: what is loaded, handed out, kept and counted, by the number.
 */
#include "policy/pager/pager.h"
#include "tests/unit/policy/pager/two_layers.h"

#include "policy/builtins.h"
#include "tests/support/fault/wrap.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

static char warning[1024];
static unsigned warnings;

static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    if (level == MP_LOG_WARN && strstr(line, "pager") != NULL) {
        warnings++;
        snprintf(warning, sizeof(warning), "%s", line);
    }
}

static void more_needs_than_slots_come_in_waves(void)
{
    const struct world_options options = { .layers = 1, .experts = 12, .top_k = 2, .slots = 4 };
    struct world w;

    world_open(&options, &w);
    world_run(&w, 0, ids, 12);
    CHECK_EQ(w.counters.loads, 12);
    CHECK_EQ(w.counters.load_bytes, 12 * UB);
    CHECK_EQ(w.counters.misses, 12);
    CHECK_EQ(w.counters.hits, 0);
    CHECK_EQ(w.counters.evictions, 8);
    CHECK(w.counters.resident_peak_bytes <= 4 * UB);
    world_run(&w, 0, ids, 12); /* four stayed, and none of them is evicted before it was used */
    CHECK_EQ(w.counters.hits, 4);
    CHECK_EQ(w.counters.loads, 20);
    CHECK_EQ(w.counters.prefetch_bytes, 0);
    world_close(&w);
}

static void resident_needs_come_first(void)
{
    static const uint32_t warm[] = { 3, 5 }, all[] = { 1, 3, 5, 7 };
    struct world_options options = { .layers = 1, .experts = 12, .top_k = 2, .slots = 6 };

    for (unsigned deterministic = 0; deterministic < 2; deterministic++) {
        struct mp_ready ready;
        struct world w;

        options.deterministic = deterministic != 0;
        world_open(&options, &w);
        world_run(&w, 0, warm, 2);
        CHECK_EQ(world_begin(&w, 0, all, 4), MP_OK);
        world_wait_until_idle(&w); /* the cold ones are complete too */
        for (uint32_t i = 0; i < 4; i++) {
            static const uint32_t order[] = { 1, 2, 0, 3 };

            CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
            CHECK_EQ(ready.need, order[i]);
        }
        for (uint32_t i = 0; i < 4; i++)
            mp_pager_done(w.pager, i);
        CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
        CHECK_EQ(ready.need, MP_NEED_NONE);
        mp_pager_end(w.pager);
        CHECK_EQ(w.counters.hits, 2);
        CHECK_EQ(w.counters.misses, 4);
        world_close(&w);
    }
}

static void leases_of_the_caller_are_not_waited_for(void)
{
    const struct world_options options = { .layers = 1, .experts = 4, .top_k = 1, .slots = 2 };
    struct mp_ready ready[3];
    struct world w;

    world_open(&options, &w);
    CHECK_EQ(world_begin(&w, 0, ids, 3), MP_OK);
    CHECK_EQ(mp_pager_next(w.pager, &ready[0]), MP_OK);
    CHECK_EQ(mp_pager_next(w.pager, &ready[1]), MP_OK);
    mp_error_clear();
    CHECK_EQ(mp_pager_next(w.pager, &ready[2]), MP_ERR_BUSY);
    CHECK_EQ(mp_error_last()->status, MP_OK);
    CHECK(world_pieces_are_right(&w, ready[0].need, ready[0].pieces)); /* still there */
    CHECK(world_pieces_are_right(&w, ready[1].need, ready[1].pieces));
    mp_pager_done(w.pager, ready[0].need);
    CHECK_EQ(mp_pager_next(w.pager, &ready[2]), MP_OK);
    CHECK_EQ(ready[2].need, 2);
    CHECK(world_pieces_are_right(&w, 2, ready[2].pieces));
    mp_pager_done(w.pager, ready[1].need);
    mp_pager_done(w.pager, 2);
    mp_pager_end(w.pager);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

static void abort_gives_leases_back(void)
{
    struct mp_ready ready;
    struct world w;

    world_open(&two_layers, &w);
    world_run(&w, 0, ids, 4);
    CHECK_EQ(world_begin(&w, 0, ids, 8), MP_OK);
    CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
    CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
    mp_pager_done(w.pager, ready.need);
    mp_pager_abort(w.pager);
    CHECK(mp_pager_check(w.pager));
    for (uint32_t u = 0; u < w.unit_count; u++)
        CHECK_EQ(mp_space_leases(w.space, u), 0);
    for (unsigned i = 0; i < 3; i++) {
        world_run(&w, 1, ids, 8);
        world_run(&w, 0, ids, 8);
    }
    world_close(&w);
}

static void a_failed_read_is_reported_and_can_be_tried_again(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = FAULT_BIT(pread) };
    struct mp_error error;
    struct world w;

    world_open(&two_layers, &w);
    world_run(&w, 0, ids, 2);
    fault_begin(&plan);
    CHECK_EQ(world_begin(&w, 0, ids, 4), MP_OK);
    CHECK_EQ(world_finish(&w, 0, ids, 4), MP_ERR_IO);
    CHECK(fault_end() > 0);
    error = *mp_error_last();
    CHECK(strstr(error.text, "weights-0.bin") != NULL);
    mp_pager_abort(w.pager);
    CHECK_STR(mp_error_last()->text, error.text);
    CHECK(mp_pager_check(w.pager));
    world_run(&w, 0, ids, 4);
    CHECK_EQ(w.counters.load_bytes, 4 * UB);
    world_close(&w);
}

static void size_classes_do_not_hold_each_other_up(void)
{
    static const uint32_t three_small_one_middle[] = { 0, 3, 6, 7 };
    struct world_options options = {
        .layers = 3, .experts = 12, .top_k = 2, .slots = 0, .sizes = 3
    };
    uint8_t resident[12];

    for (unsigned deterministic = 0; deterministic < 2; deterministic++) {
        struct world w;

        options.deterministic = deterministic != 0;
        world_open(&options, &w);
        CHECK_EQ(mp_space_class_count(w.space), 3);
        CHECK_EQ(w.shape.slots, 6);
        CHECK_EQ(world_begin(&w, 0, three_small_one_middle, 4), MP_OK);
        mp_pager_residents(w.pager, 0, true, resident); /* or on the way */
        CHECK(resident[0] && resident[3] && !resident[6] && resident[7]);
        CHECK_EQ(world_finish(&w, 0, three_small_one_middle, 4), MP_OK);
        for (unsigned round = 0; round < 4; round++) {
            for (uint32_t l = 0; l < 3; l++) {
                CHECK_EQ(world_begin(&w, l, ids, 12), MP_OK);
                mp_pager_prefetch(w.pager, (l + 1) % 3, ids + round, 4);
                CHECK_EQ(world_finish(&w, l, ids, 12), MP_OK);
                CHECK(mp_pager_check(w.pager));
            }
        }
        CHECK_EQ(w.counters.hits + w.counters.misses, 4 + 144);
        CHECK_EQ(w.counters.invalid_decisions, 0);
        world_close(&w);
    }
}

static void quota_of_everything(struct mp_policy *policy, const struct mp_shape *shape,
                                uint32_t *quota)
{
    (void)policy;
    for (uint32_t l = 0; l < shape->layers; l++)
        quota[l] = shape->slots;
}

static void misuse_is_refused(void)
{
    static const struct mp_need descending[] = { { 3, 1, false }, { 2, 1, false } },
                                twice[] = { { 3, 1, false }, { 3, 1, false } },
                                beyond[] = { { 8, 1, false } }, fine[] = { { 1, 1, false } };
    static const uint32_t wild[] = { 8, UINT32_MAX, 1 };
    static struct mp_partition_ops greedy;
    struct mp_pager_config config;
    struct mp_pager *pager = NULL;
    struct mp_ready ready;
    struct world w;

    world_open(&two_layers, &w);
    CHECK_EQ(mp_pager_next(w.pager, &ready), MP_ERR_INVALID);
    CHECK_EQ(mp_pager_begin(w.pager, 2, fine, 1), MP_ERR_INVALID);
    CHECK_EQ(mp_pager_begin(w.pager, 0, descending, 2), MP_ERR_INVALID);
    CHECK_EQ(mp_pager_begin(w.pager, 0, twice, 2), MP_ERR_INVALID);
    CHECK_EQ(mp_pager_begin(w.pager, 0, beyond, 1), MP_ERR_INVALID);
    CHECK_EQ(mp_pager_begin(w.pager, 0, NULL, 0), MP_OK);
    CHECK_EQ(mp_pager_begin(w.pager, 1, fine, 1), MP_ERR_INVALID); /* one is open */
    mp_pager_prefetch(w.pager, 1, wild, 3);
    CHECK_EQ(w.counters.invalid_decisions, 2);
    CHECK_EQ(w.counters.prefetch_issued, 1);
    CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
    CHECK_EQ(ready.need, MP_NEED_NONE);
    mp_pager_end(w.pager);
    world_run(&w, 0, ids, 2);

    config = w.config;
    CHECK_EQ(mp_pager_create(&config, &pager), MP_ERR_INVALID);
    CHECK_STR(mp_error_last()->code, "E_PAGER_SPACE");
    config.shape.layers = 3;
    CHECK_EQ(mp_pager_create(&config, &pager), MP_ERR_INVALID);
    CHECK_STR(mp_error_last()->code, "E_PAGER_SHAPE");
    world_close(&w);

    world_open(&two_layers, &w);
    greedy = mp_partition_uniform;
    greedy.quota = quota_of_everything;
    w.policies.partition_ops = &greedy;
    CHECK_EQ(mp_pager_create(&w.config, &pager), MP_ERR_INVALID);
    CHECK_STR(mp_error_last()->code, "E_PARTITION");
    CHECK(pager == NULL);
    w.policies.partition_ops = &mp_partition_global;
    world_close(&w);
    mp_pager_destroy(NULL);
}

/* A clock by which each read takes `read_ns`: readers ask when it starts and when it ends. */
struct read_clock {
    struct mp_clock super;
    pthread_t owner;
    _Atomic uint64_t now_ns, read_ns;
};

static uint64_t read_clock_now(struct mp_clock *clock)
{
    struct read_clock *reads = (struct read_clock *)clock;

    if (!pthread_equal(pthread_self(), reads->owner))
        reads->now_ns += reads->read_ns;
    return reads->now_ns;
}

/* Shorter reads count by half, longer ones by a 32nd; a load is that of all slices. */
static void the_time_of_a_load_follows_the_shortest_reads(void)
{
    static const uint64_t read_ns[] = { 3200, 1600, 5600, 2500 };
    static const uint64_t load_ns[] = { 3200, 2400, 2500, 2500 };

    for (uint32_t slices = 1; slices <= 2; slices++) {
        struct read_clock clock = { .super = { read_clock_now }, .owner = pthread_self() };
        const struct world_options options = { .layers = 1,
                                               .experts = 8,
                                               .top_k = 1,
                                               .slices = slices,
                                               .slots = 8,
                                               .reads_clock = &clock.super };
        struct world w;

        world_open(&options, &w);
        CHECK_EQ(mp_pager_load_ns(w.pager), 0);
        for (uint32_t i = 0; i < (slices == 1 ? 4 : 1); i++) {
            clock.read_ns = read_ns[i];
            world_run(&w, 0, &ids[i], 1);
            CHECK_EQ(mp_pager_load_ns(w.pager), slices * load_ns[i]);
        }
        world_close(&w);
    }
}

int main(void)
{
    mp_log_set_sink(keep_line, NULL);
    world_prepare();
    RUN(more_needs_than_slots_come_in_waves);
    RUN(resident_needs_come_first);
    RUN(leases_of_the_caller_are_not_waited_for);
    RUN(abort_gives_leases_back);
    RUN(a_failed_read_is_reported_and_can_be_tried_again);
    RUN(size_classes_do_not_hold_each_other_up);
    RUN(misuse_is_refused);
    RUN(the_time_of_a_load_follows_the_shortest_reads);
    return 0;
}
