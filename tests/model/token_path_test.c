/*
 * What a token's path does not do: no allocation, whether experts are read or not, by the caller or
 * by a helper; and no lock where nothing is read, since only the reader has one.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/model/harness.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"

#define PROMPT 16
#define STEPS 32

static const struct fault_plan count_allocations = {
    .mode = FAULT_COUNT,
    .calls = FAULT_BIT(malloc) | FAULT_BIT(calloc) | FAULT_BIT(realloc) | FAULT_BIT(aligned_alloc) |
             FAULT_BIT(posix_memalign) | FAULT_BIT(strdup),
};

static _Atomic unsigned locks;

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    atomic_fetch_add(&locks, 1);
    return __real_pthread_mutex_lock(mutex);
}

/* A prompt of one sequence, then step by step; always the same tokens. */
static void feed(struct harness *h, uint32_t first, uint32_t count, uint32_t at_once)
{
    uint32_t token[PROMPT], position[PROMPT];
    const uint32_t sequence[PROMPT] = { 0 };
    uint8_t want[PROMPT] = { 0 };

    for (uint32_t at = first; at < first + count; at += at_once) {
        const struct mp_batch batch = {
            .count = at_once,
            .token = token,
            .sequence = sequence,
            .position = position,
            .want = want,
        };
        const float *logits;

        for (uint32_t i = 0; i < at_once; i++) {
            token[i] = 5 + (at + i) * 37 % 400;
            position[i] = at + i;
            want[i] = i + 1 == at_once;
        }
        CHECK_EQ(mp_forward(h->engine, &batch, &logits), MP_OK);
    }
}

struct counted {
    struct mp_counters counters;
    uint64_t allocations;
    unsigned locks;
};

static struct counted count_steps(struct harness *h)
{
    const struct mp_counters before = *mp_engine_counters(h->engine);
    struct counted counted;

    fault_begin(&count_allocations);
    atomic_store(&locks, 0); /* counting allocations has a lock of its own */
    feed(h, PROMPT, STEPS, 1);
    counted.locks = atomic_load(&locks);
    fault_end();
    counted.allocations = fault_matched();
    counted.counters = mp_counters_since(mp_engine_counters(h->engine), &before);
    return counted;
}

static void open_engine(uint64_t budget_bytes, const char *profile, struct harness *h)
{
    struct harness_options options = harness_defaults("models/tiny-moe");

    options.budget_bytes = budget_bytes;
    options.policies.profile = profile;
    options.threads = 2;
    fault_begin(&count_allocations);
    harness_open(&options, h);
    fault_end();
    CHECK(fault_matched() > 0); /* they are counted */
    feed(h, 0, PROMPT, PROMPT);
}

static void with_all_experts_resident(void)
{
    struct counted steps;
    struct harness h;

    open_engine(UINT64_MAX, "gate-best", &h);
    /* Guesses are read for some steps more, and on a busy machine one arrives behind steps without
     * a read: a lock of the token's path is taken in all steps. */
    for (unsigned tries = 0; tries == 0 || steps.counters.read_requests > 0 || steps.locks > 0;
         tries++) {
        CHECK(tries < 100);
        steps = count_steps(&h);
    }
    CHECK_EQ(steps.counters.misses, 0);
    CHECK_EQ(steps.allocations, 0);
    harness_close(&h);
}

static void with_experts_read(void)
{
    static const char *const profiles[] = { "gate-best", "gate-ema", "lru" };
    const struct harness_options options = harness_defaults("models/tiny-moe");
    const struct mp_space_plan plan = harness_plan(&options, NULL);

    for (size_t i = 0; i < sizeof(profiles) / sizeof(profiles[0]); i++) {
        struct counted steps;
        struct harness h;

        open_engine(plan.full_bytes / 4, profiles[i], &h);
        steps = count_steps(&h);
        CHECK(steps.counters.loads > 0 && steps.counters.read_requests > 0);
        CHECK_EQ(steps.allocations, 0);
        CHECK(steps.locks > 0); /* these too */
        harness_close(&h);
    }
}

int main(void)
{
    RUN(with_all_experts_resident);
    RUN(with_experts_read);
    return 0;
}
