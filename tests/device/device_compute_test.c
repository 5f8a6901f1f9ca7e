/*
 * The device as a compute (engine/forward/compute.h), here the driver without one
 * (tests/device/fakecuda): the first error of a queued operation is kept, nothing is queued behind
 * it, and it is returned once.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/harness.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

static const uint32_t token = 3, sequence = 0, position = 0;
static const uint8_t want = 1;
static const struct mp_batch batch = {
    .count = 1, .token = &token, .sequence = &sequence, .position = &position, .want = &want
};

static void open_device(struct harness *h)
{
    struct harness_options options = harness_defaults("tests/data/models/qwen2moe-tiny");

    options.backend = "cuda";
    options.graphs = false;
    options.deterministic = true;
    options.policies.policy[MP_POLICY_PREDICT] = "partial";
    harness_open(&options, h);
}

/* ---- single operations */

/* A norm waits for what comes next, which is one that does not read it. */
static void do_norm(struct mp_compute *c)
{
    c->ops->norm(c, MP_ARRAY_XE, MP_ARRAY_X, &c->weights->layers[0].attn_norm);
    c->ops->norm(c, MP_ARRAY_XE, MP_ARRAY_X, &c->weights->layers[0].attn_norm);
}

static void do_project(struct mp_compute *c)
{
    const struct mp_projection q = { .w = &c->weights->layers[0].q,
                                     .in = MP_ARRAY_XE,
                                     .out = MP_ARRAY_Q };

    c->ops->project(c, &q, 1, 1);
}

static void do_store(struct mp_compute *c)
{
    c->ops->store(c, 0);
}

static void do_attend(struct mp_compute *c)
{
    c->ops->attend(c, 0);
}

static void do_pick(struct mp_compute *c)
{
    c->ops->pick(c, &c->weights->final_norm, 1);
}

static void do_router(struct mp_compute *c)
{
    c->ops->router(c, 0, MP_ARRAY_XN, NULL, NULL);
}

static void do_shared(struct mp_compute *c)
{
    c->ops->shared(c, 0);
}

static void do_combine(struct mp_compute *c)
{
    static const float weights[64];

    c->ops->combine(c, 0, weights);
}

static void do_combine_done(struct mp_compute *c)
{
    static const float weights[64];

    c->ops->combine_done(c, 0, weights);
}

static void do_show(struct mp_compute *c)
{
    c->ops->show(c, MP_ARRAY_XN, sizeof(float));
}

static void do_begin(struct mp_compute *c)
{
    c->ops->begin(c, &batch, 1);
}

static void do_embed(struct mp_compute *c)
{
    c->ops->embed(c);
}

static void (*const operations[])(struct mp_compute *) = {
    do_begin, do_embed,  do_norm,   do_project, do_store,        do_attend,
    do_pick,  do_router, do_shared, do_combine, do_combine_done, do_show,
};

static const char *const calls[] = { "cuLaunchKernel", "cuMemcpyHtoDAsync_v2",
                                     "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2",
                                     "cuMemsetD8Async" };

static uint64_t queued(void)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < MP_ARRAY_LEN(calls); i++)
        sum += fake_api.calls(calls[i]);
    return sum;
}

/* Fail the first call of its kind that operation o makes; do all behind it, too. */
static bool fails_once(struct mp_compute *c, size_t o, const char *call)
{
    uint64_t before;

    fake_api.reset();
    fake_api.fail(call, 0, MP_CU_ERROR_OUT_OF_MEMORY, false);
    operations[o](c);
    if (fake_api.calls(call) == 0) {
        CHECK_EQ(c->ops->wait(c), MP_OK);
        return false;
    }
    before = queued();
    for (size_t i = 0; i < MP_ARRAY_LEN(operations); i++)
        operations[i](c);
    CHECK_EQ(queued(), before);
    mp_error_clear();
    CHECK_EQ(c->ops->status(c), MP_ERR_NO_SPACE);
    CHECK(strstr(mp_error_last()->text, "CUDA_ERROR_OUT_OF_MEMORY") != NULL);
    CHECK_EQ(c->ops->status(c), MP_OK);
    operations[o](c);
    CHECK(queued() > before);
    CHECK_EQ(c->ops->wait(c), MP_OK);
    return true;
}

static void an_error_is_kept_and_returned_once(void)
{
    struct harness h;
    unsigned failed = 0;

    fake_api.reset();
    open_device(&h);
    h.engine->batch = &batch;
    h.engine->tokens = batch.count;
    mp_engine_open_layer(h.engine, 0);
    for (size_t o = 0; o < MP_ARRAY_LEN(operations); o++) {
        for (size_t i = 0; i < MP_ARRAY_LEN(calls); i++)
            failed += fails_once(h.engine->compute, o, calls[i]);
    }
    CHECK_EQ(failed, MP_ARRAY_LEN(operations) + 4); /* sums make several kinds */
    harness_close(&h);
    check_nothing_lives();
}

/* ---- a whole step */

/* Whatever is the first to fail: nothing is launched behind it, and the next step is right. */
static void nothing_is_launched_behind_an_error(void)
{
    struct harness h;
    const float *logits;
    float *right;
    uint64_t launches;

    fake_api.reset();
    open_device(&h);
    CHECK_EQ(mp_forward(h.engine, &batch, &logits),
             MP_OK); /* now all of its experts are resident */
    fake_api.reset();
    CHECK_EQ(mp_forward(h.engine, &batch, &logits), MP_OK);
    launches = fake_api.calls("cuLaunchKernel");
    CHECK(launches > 16);
    right = malloc(h.model.vocab * sizeof(float));
    CHECK(right != NULL);
    memcpy(right, logits, h.model.vocab * sizeof(float));
    for (uint64_t k = 0; k < launches; k++) {
        fake_api.reset();
        fake_api.fail("cuLaunchKernel", k, MP_CU_ERROR_OUT_OF_MEMORY, false);
        CHECK_EQ(mp_forward(h.engine, &batch, &logits), MP_ERR_NO_SPACE);
        CHECK_EQ(fake_api.calls("cuLaunchKernel"), k + 1);
        CHECK_EQ(mp_forward(h.engine, &batch, &logits), MP_OK);
        CHECK(memcmp(right, logits, h.model.vocab * sizeof(float)) == 0);
    }
    free(right);
    harness_close(&h);
    check_nothing_lives();
}

int main(void)
{
    find_fake();
    RUN(an_error_is_kept_and_returned_once);
    RUN(nothing_is_launched_behind_an_error);
    return 0;
}
