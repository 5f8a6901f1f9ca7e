/*
 * The bounds of an engine's device, on the driver without one (tests/device/fakecuda): how many
 * steps the host drives after a miss, and how many batches of an executor are under way.
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
    static const uint32_t token[] = { 3, 14 }, sequence[] = { 0, 0 }, position[] = { 0, 1 };
    static const uint8_t want[] = { 0, 1 };
    const struct mp_batch batch = { .count = count,
                                    .token = token,
                                    .sequence = sequence,
                                    .position = position,
                                    .want = want + 2 - count };
    const float *logits;

    CHECK_EQ(mp_forward(h->engine, &batch, &logits), MP_OK);
}

/* Steps up to the next one that is tried as a graph; that one is not counted. */
static uint32_t steps_by_host(struct harness *h)
{
    const uint64_t before = mp_device_graphs_counted(h->engine->device).replays;
    uint32_t steps = 0;

    for (;;) {
        forward(h, 1);
        if (mp_device_graphs_counted(h->engine->device).replays > before)
            return steps;
        steps++;
    }
}

/* With two slots no layer's experts are there when its turn comes. */
static void a_graph_is_tried_again_after_1_2_4_to_64_steps(void)
{
    static const uint32_t pauses[] = { 0, 1, 2, 4, 8, 16, 32, 64, 64 };
    struct harness_options options = harness_defaults(MODEL);
    struct harness h;

    options.backend = "cuda";
    options.graphs = true;
    options.deterministic = true;
    options.policies.profile = "lru";
    options.budget_bytes = harness_plan(&options, NULL).smallest_bytes;
    harness_open(&options, &h);
    CHECK(h.engine->device->graphs != NULL);
    for (size_t i = 0; i < MP_ARRAY_LEN(pauses); i++)
        CHECK_EQ(steps_by_host(&h), pauses[i]);
    CHECK_EQ(mp_device_graphs_counted(h.engine->device).complete, 0);

    /* One step without a miss, and there is no pause any more; the next miss begins anew. */
    CHECK_EQ(mp_engine_set_budget(h.engine, UINT64_MAX), MP_OK);
    CHECK_EQ(steps_by_host(&h), 64);
    CHECK_EQ(mp_device_graphs_counted(h.engine->device).complete, 1);
    CHECK_EQ(steps_by_host(&h), 0);
    CHECK_EQ(mp_device_graphs_counted(h.engine->device).complete, 2);
    CHECK_EQ(mp_engine_set_budget(h.engine, options.budget_bytes), MP_OK);
    CHECK_EQ(steps_by_host(&h), 0);
    CHECK_EQ(steps_by_host(&h), 1);
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

/* Four blocks to a head instead of one in each of 8 layers: from 1024 positions on, with fewer
 * heads than twice the processors. The model has 4 heads, the device 4 processors. */
static void few_heads_split_attention_to_a_long_context(void)
{
    CHECK_EQ(blocks(1024, 1), blocks(1023, 1) + 8 * 4 * 3);
    CHECK_EQ(blocks(1024, 2), blocks(1023, 2));
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
    harness_close(&h);
    check_nothing_lives();
}

int main(void)
{
    setenv("FAKECUDA_GRANULE", "4096", 1); /* else the smallest budget holds all of the model */
    find_fake();
    RUN(a_graph_is_tried_again_after_1_2_4_to_64_steps);
    RUN(few_heads_split_attention_to_a_long_context);
    RUN(a_queue_takes_sixteen_batches_over);
    return 0;
}
