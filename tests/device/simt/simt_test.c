/*
 * The emulation of a block's threads (tests/device/simt): what barriers, shuffles and votes give,
 * in each order of threads; what it refuses; several host threads at once.
 */
#include <pthread.h>

#include "tests/device/simt/simt_thread.h"
#include "tests/support/test.h"

#define THREADS 200 /* not whole warps */

struct params {
    uint32_t *out;
    uint32_t mode;
};

static const char *run(void (*body)(const void *), uint32_t *out, uint32_t mode, uint32_t blocks,
                       uint32_t threads, uint32_t shared_bytes)
{
    const struct params p = { out, mode };

    return mp_simt_run(body, &p, 1024, (struct mp_simt_dim){ blocks, 1, 1 },
                       (struct mp_simt_dim){ threads, 1, 1 }, shared_bytes);
}

/* Each thread reads what its neighbour wrote before the barrier, three times. */
static void body_barrier(const void *at)
{
    const struct params *p = at;
    uint32_t *shared = mp_simt_now->shared, thread = mp_simt_now->thread;
    uint32_t value = thread + 1000 * mp_simt_now->block.x;

    for (int i = 0; i < 3; i++) {
        shared[thread] = value;
        mp_simt_barrier();
        value = shared[(thread + 1) % mp_simt_now->threads] + 1;
        mp_simt_barrier();
    }
    p->out[mp_simt_now->block.x * mp_simt_now->threads + thread] = value;
}

static void barrier(void)
{
    uint32_t out[3 * THREADS];

    CHECK(run(body_barrier, out, 0, 3, THREADS, THREADS * 4) == NULL);
    for (uint32_t i = 0; i < 3 * THREADS; i++)
        CHECK_EQ(out[i], (i % THREADS + 3) % THREADS + 1000 * (i / THREADS) + 3);
}

/* Shared memory does not hold what the block before left. */
static void body_shared(const void *at)
{
    const struct params *p = at;
    uint32_t *shared = mp_simt_now->shared;

    p->out[mp_simt_now->block.x] = shared[5];
    shared[5] = 1;
}

static void shared_memory(void)
{
    uint32_t out[3];

    CHECK(run(body_shared, out, 0, 3, 1, 24) == NULL);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(out[i], 0xa5a5a5a5u);
}

/* Many exchanges one after another: each sees the value of its own round. */
static void body_exchange(const void *at)
{
    const struct params *p = at;
    const uint32_t thread = mp_simt_now->thread, lane = thread % 32;
    uint32_t sum = 0;

    for (uint32_t i = 0; i < 40; i++) {
        const uint32_t got = mp_simt_exchange(thread * 100 + i, (lane ^ i) % 32);

        sum += got == (thread - lane + (lane ^ i) % 32) * 100 + i;
        sum += mp_simt_vote(lane % 3 == i % 3) ==
               (i % 3 == 0 ? 0x49249249u : (i % 3 == 1 ? 0x92492492u : 0x24924924u));
    }
    p->out[thread] = sum;
}

static void exchange(void)
{
    uint32_t out[192];

    CHECK(run(body_exchange, out, 0, 1, 192, 0) == NULL);
    for (uint32_t i = 0; i < 192; i++)
        CHECK_EQ(out[i], 80);
}

/* The same with several values at once, read in any order before the next round. */
static void body_gather(const void *at)
{
    const struct params *p = at;
    const uint32_t thread = mp_simt_now->thread;
    uint32_t words[MP_SIMT_WORDS], sum = 0;

    if (p->mode == 1 && thread == 40)
        return;
    for (uint32_t i = 0; i < 20; i++) {
        const uint32_t(*of)[MP_SIMT_WORDS];

        for (uint32_t k = 0; k < MP_SIMT_WORDS; k++)
            words[k] = thread * 1000 + i * MP_SIMT_WORDS + k;
        of = mp_simt_gather(words);
        for (uint32_t k = 0; k < 32 * MP_SIMT_WORDS; k++)
            sum += of[k / MP_SIMT_WORDS][k % MP_SIMT_WORDS] ==
                   (thread / 32 * 32 + k / MP_SIMT_WORDS) * 1000 + i * MP_SIMT_WORDS +
                       k % MP_SIMT_WORDS;
    }
    p->out[thread] = sum;
}

static void gather(void)
{
    uint32_t out[64];
    const char *error;

    CHECK(run(body_gather, out, 0, 1, 64, 0) == NULL);
    for (uint32_t i = 0; i < 64; i++)
        CHECK_EQ(out[i], 20 * 32 * MP_SIMT_WORDS);
    error = run(body_gather, out, 1, 1, 64, 0); /* a lane has ended */
    CHECK(error != NULL && strstr(error, "a whole warp is needed") != NULL);
}

/* Threads from 100 on end before a barrier (mode 1); then lanes end one by one while others go on.
 */
static void body_exits(const void *at)
{
    const struct params *p = at;
    const uint32_t thread = mp_simt_now->thread, lane = thread % 32;
    uint32_t others = 0;

    p->out[thread] = 77;
    if (p->mode == 1 && thread >= 100)
        return;
    mp_simt_barrier();
    for (uint32_t i = 0; i < lane; i++) { /* lanes 0 to i have ended */
        others = mp_simt_vote(1);
        if (mp_simt_exchange(7, lane) != 7 || mp_simt_exchange(7, i) == 7)
            others = 0;
    }
    p->out[thread] = others;
}

static void exits(void)
{
    uint32_t out[THREADS];

    for (uint32_t mode = 0; mode < 2; mode++) {
        const uint32_t count = mode == 0 ? THREADS : 100;

        CHECK(run(body_exits, out, mode, 1, THREADS, 0) == NULL);
        for (uint32_t i = 0; i < THREADS; i++) {
            const uint32_t lane = i % 32, lanes = i / 32 == count / 32 ? count % 32 : 32;
            const uint32_t all = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;

            CHECK_EQ(out[i], i >= count ? 77 : (lane == 0 ? 0 : all & ~((1u << lane) - 1)));
        }
    }
}

static void body_stuck(const void *at)
{
    const struct params *p = at;

    if (mp_simt_now->thread % 2 == 0)
        mp_simt_barrier();
    else
        p->out[0] = mp_simt_exchange(1, 0);
}

static void body_trap(const void *at)
{
    (void)at;
    if (mp_simt_now->thread == 33)
        mp_simt_fail("an address");
    mp_simt_barrier();
}

static void refusals(void)
{
    uint32_t out[8] = { 0 };
    const char *error = run(body_stuck, out, 0, 1, 64, 0);

    CHECK(error != NULL && strstr(error, "others for the block") != NULL);
    error = run(body_trap, out, 0, 2, 64, 0);
    CHECK(error != NULL && strstr(error, "block (0, 0, 0), thread 33: an address") != NULL);
    CHECK(run(body_barrier, out, 0, 0, 64, 0) != NULL);
    CHECK(run(body_barrier, out, 0, 1, 1025, 0) != NULL);
    CHECK(run(body_barrier, out, 0, 1, 0, 0) != NULL);
    CHECK(run(body_barrier, out, 0, 1, 32, (227 << 10) + 1) != NULL);
    barrier(); /* and goes on afterwards */
}

static void *many(void *arg)
{
    for (int i = 0; i < 20; i++) {
        mp_simt_set_order((enum mp_simt_order)(i % 3));
        barrier();
        exchange();
        exits();
    }
    return arg;
}

static void host_threads(void)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, many, NULL), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

int main(void)
{
    for (int order = MP_SIMT_FORWARD; order <= MP_SIMT_MIXED; order++) {
        mp_simt_set_order((enum mp_simt_order)order);
        RUN(barrier);
        RUN(shared_memory);
        RUN(exchange);
        RUN(gather);
        RUN(exits);
        RUN(refusals);
    }
    RUN(host_threads);
    return 0;
}
