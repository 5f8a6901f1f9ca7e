/*
 * The bounds of an engine's device, on the driver without one (tests/device/fakecuda): what graphs
 * may compute for nothing, how many there are, and how many batches of an executor are under way.
 */
#include <stdlib.h>

#include "engine/forward/cuda/device_graph.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/harness.h"
#include "tests/support/test.h"

#define MODEL "tests/data/models/mixtral-tiny"

/* `count` tokens of one sequence, from its first position; logits of the last. */
static void forward(struct harness *h, uint32_t count)
{
    static const uint32_t token[] = { 3, 14, 15, 9 }, sequence[4], position[] = { 0, 1, 2, 3 };
    static const uint8_t want[] = { 0, 0, 0, 1 };
    const struct mp_batch batch = { .count = count,
                                    .token = token,
                                    .sequence = sequence,
                                    .position = position,
                                    .want = want + 4 - count };
    const float *logits;

    CHECK_EQ(mp_forward(h->engine, &batch, &logits), MP_OK);
}

struct done {
    uint64_t waits; /* of the step's thread */
    uint64_t graphs, segments, thrown;
};

/* What one step of one token took. */
static struct done step(struct harness *h)
{
    const struct mp_device_graph_counts before = mp_device_graphs_counted(h->engine->device);
    struct mp_device_graph_counts now;
    const uint64_t waits_before = h->engine->device->seen_count;
    struct done done;

    forward(h, 1);
    now = mp_device_graphs_counted(h->engine->device);
    done =
        (struct done){ h->engine->device->seen_count - waits_before, now.replays - before.replays,
                       now.segments - before.segments, now.thrown - before.thrown };
    CHECK_EQ(now.complete - before.complete, done.graphs && done.thrown == 0);
    return done;
}

static void check_step(struct harness *h, struct done want)
{
    const struct done got = step(h);

    CHECK_EQ(got.waits, want.waits);
    CHECK_EQ(got.graphs, want.graphs);
    CHECK_EQ(got.segments, want.segments);
    CHECK_EQ(got.thrown, want.thrown);
}

/* 8 MoE layers; with two slots no layer's experts are there when its turn comes. A graph may have 4
 * times as many layers as go without a miss: 8 before anything is known, which halves with every
 * miss, until the host drives all. A quarter of them without a miss, and the rest is a graph. */
static void what_graphs_throw_away_is_bounded(void)
{
    struct harness_options options = harness_defaults("models/tiny-moe");
    struct mp_space_plan plan;
    struct harness h;

    options.backend = "cuda";
    options.graphs = true;
    options.deterministic = true;
    options.policies.profile = "lru";
    plan = harness_plan(&options, NULL);
    options.budget_bytes = plan.smallest_bytes;
    harness_open(&options, &h);
    CHECK(h.engine->device->graphs != NULL);
    check_step(&h, (struct done){ 9, 1, 2, 8 + 7 + 6 });
    for (unsigned i = 0; i < 5; i++)
        check_step(&h, (struct done){ 9, 0, 0, 0 });
    CHECK_EQ(mp_engine_set_budget(h.engine, plan.full_bytes / 2), MP_OK); /* enough for a token */
    check_step(&h, (struct done){ 9, 0, 0, 0 });
    check_step(&h, (struct done){ 2 + 1, 0, 1, 0 });
    for (unsigned i = 0; i < 3; i++)
        check_step(&h, (struct done){ 1, 1, 0, 0 });
    h.engine->device->graphs->usual = 0;
    h.engine->device->graphs->run = 2;
    check_step(&h, (struct done){ 1, 1, 0, 0 });
    h.engine->device->graphs->run = 1;
    check_step(&h, (struct done){ 1 + 1, 0, 1, 0 });
    CHECK_EQ(mp_engine_set_budget(h.engine, options.budget_bytes), MP_OK);
    CHECK_EQ(step(&h).graphs, 1);
    harness_close(&h);
    check_nothing_lives();
}

static void plan_in_place(struct mp_policy *policy, const struct mp_assign_facts *facts,
                          uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = MP_GPU_IN_PLACE;
}

/* A layer that a policy gives to others is none that a graph could have done. */
static void graphs_that_policies_refuse_are_not_tried_for_ever(void)
{
    struct harness_options options = harness_defaults(MODEL);
    struct mp_assign_ops plan;
    struct harness h;

    options.backend = "cuda";
    options.graphs = true;
    options.policies.profile = "lru";
    harness_open(&options, &h);
    mp_space_wait_filled(h.engine->space);
    for (unsigned i = 0; i < 4; i++)
        forward(&h, 1);
    CHECK_EQ(step(&h).graphs, 1);
    plan = *h.engine->policies.assign_ops;
    plan.assign = plan_in_place;
    h.engine->policies.assign_ops = &plan;
    CHECK(step(&h).thrown > 0);
    for (unsigned i = 0; i < 4; i++)
        forward(&h, 1);
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(step(&h).thrown, 0);
    harness_close(&h);
    check_nothing_lives();
}

/* There is a bound for how many segments are graphs; the others are queued kernel by kernel. */
static void segments_are_captured_up_to_a_bound(void)
{
    struct harness_options options = harness_defaults("models/tiny-moe");
    struct harness h;

    options.backend = "cuda";
    options.graphs = true;
    options.policies.profile = "lru";
    options.budget_bytes = harness_plan(&options, NULL).smallest_bytes;
    harness_open(&options, &h);
    h.engine->device->graphs->captured = 63; /* of 64 */
    forward(&h, 1);
    CHECK_EQ(mp_device_graphs_counted(h.engine->device).segments, 2);
    fake_api.reset();
    forward(&h, 1);
    CHECK_EQ(fake_api.calls("cuStreamBeginCapture_v2"), 2); /* the whole step, and one */
    CHECK_EQ(h.engine->device->graphs->captured, 64);
    harness_close(&h);
    check_nothing_lives();
}

/* ---- attention, split */

static uint64_t blocks(uint32_t ctx, uint32_t tokens)
{
    struct harness_options options = harness_defaults("models/tiny-moe");
    struct harness h;
    struct fakecuda_work work;

    options.backend = "cuda";
    options.ctx = ctx;
    harness_open(&options, &h);
    forward(&h, tokens); /* now the experts are resident */
    fake_api.reset();
    forward(&h, tokens);
    fake_api.work(&work);
    harness_close(&h);
    check_nothing_lives();
    return work.blocks;
}

/* Four blocks instead of one in each of 8 layers: from 1024 positions on, where there are fewer
 * than twice the processors. Without that the model has 2 for a token, of two heads each, and the
 * device 4 processors. */
static void few_heads_split_attention_to_a_long_context(void)
{
    CHECK_EQ(blocks(1024, 1), blocks(1023, 1) + 8 * 2 * 3);
    CHECK_EQ(blocks(1024, 4), blocks(1023, 4));
}

/* ---- batches of an executor */

static _Atomic bool got_batch;

static void *take_batch(void *queue)
{
    CHECK(mp_device_next_batch(queue) == &((struct mp_device_queue *)queue)->batches[0]);
    atomic_store(&got_batch, true);
    return NULL;
}

/* Sixteen batches may be under way, each with a place of its own; the next one waits for the end of
 * the first. The queues' threads have been stopped, so no batch ends by itself. */
static void a_queue_takes_sixteen_batches_over(void)
{
    struct harness_options options = harness_defaults(MODEL);
    struct mp_device_queue *queue;
    struct mp_device *device;
    struct harness h;
    pthread_t thread;

    options.backend = "cuda";
    harness_open(&options, &h);
    device = h.engine->device;
    mp_device_stop(device);
    queue = &device->queues[0];
    CHECK_EQ(queue->taken, queue->done);
    for (uint32_t i = 0; i < 16; i++) {
        CHECK(mp_device_next_batch(queue) == &queue->batches[i]);
        mp_device_hand_over(queue);
    }
    CHECK_EQ(pthread_create(&thread, NULL, take_batch, queue), 0);
    usleep(50000);
    CHECK(!atomic_load(&got_batch));
    mp_lock(&device->lock);
    queue->done++;
    mp_cond_broadcast(&device->ended_some);
    mp_unlock(&device->lock);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(atomic_load(&got_batch));
    queue->done = queue->taken;
    queue->watched = false;
    harness_close(&h);
    check_nothing_lives();
}

int main(void)
{
    setenv("FAKECUDA_GRANULE", "4096", 1); /* else the smallest budget holds all of the model */
    find_fake();
    RUN(what_graphs_throw_away_is_bounded);
    RUN(graphs_that_policies_refuse_are_not_tried_for_ever);
    RUN(segments_are_captured_up_to_a_bound);
    RUN(few_heads_split_attention_to_a_long_context);
    RUN(a_queue_takes_sixteen_batches_over);
    return 0;
}
