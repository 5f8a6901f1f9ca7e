/*
 * What a token's path does not do: no allocation, whether experts are read or not, by the caller or
 * by a helper; and no lock where nothing is read, since only the reader has one.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/engine/harness.h"
#include "tests/test.h"

#define PROMPT 16
#define STEPS 32

static _Atomic unsigned allocations, locks;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
int __real_posix_memalign(void **memory_p, size_t align, size_t bytes);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
int __wrap_posix_memalign(void **memory_p, size_t align, size_t bytes);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);

void *__wrap_malloc(size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_aligned_alloc(align, bytes);
}

int __wrap_posix_memalign(void **memory_p, size_t align, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_posix_memalign(memory_p, align, bytes);
}

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

static struct mp_counters steps_counted(struct harness *h)
{
    const struct mp_counters before = *mp_engine_counters(h->engine);

    atomic_store(&allocations, 0);
    atomic_store(&locks, 0);
    feed(h, PROMPT, STEPS, 1);
    return mp_counters_since(mp_engine_counters(h->engine), &before);
}

static void open_engine(uint64_t budget_bytes, const char *profile, struct harness *h)
{
    struct harness_options options = harness_defaults("models/tiny-moe");

    options.budget_bytes = budget_bytes;
    options.policies.profile = profile;
    options.threads = 2;
    atomic_store(&allocations, 0);
    harness_open(&options, h);
    CHECK(atomic_load(&allocations) > 0); /* they are counted */
    feed(h, 0, PROMPT, PROMPT);
}

static void with_all_experts_resident(void)
{
    struct mp_counters steps;
    unsigned quiet = 0;
    struct harness h;

    open_engine(UINT64_MAX, "gate-ema", &h);
    /* Guesses are read for some steps more; none is on its way behind steps without a read. */
    for (unsigned tries = 0; quiet < 2; tries++) {
        CHECK(tries < 100);
        steps = steps_counted(&h);
        quiet = steps.read_requests == 0 ? quiet + 1 : 0;
    }
    CHECK_EQ(steps.misses, 0);
    CHECK_EQ(atomic_load(&allocations), 0);
    CHECK_EQ(atomic_load(&locks), 0);
    harness_close(&h);
}

static void with_experts_read(void)
{
    static const char *const profiles[] = { "gate-ema", "gate-lru", "lru" };
    const struct harness_options options = harness_defaults("models/tiny-moe");
    const struct mp_space_plan plan = harness_plan(&options, NULL);

    for (size_t i = 0; i < sizeof(profiles) / sizeof(profiles[0]); i++) {
        struct mp_counters steps;
        struct harness h;

        open_engine(plan.full_bytes / 4, profiles[i], &h);
        steps = steps_counted(&h);
        CHECK(steps.loads > 0 && steps.read_requests > 0);
        CHECK_EQ(atomic_load(&allocations), 0);
        CHECK(atomic_load(&locks) > 0); /* these too */
        harness_close(&h);
    }
}

int main(void)
{
    RUN(with_all_experts_resident);
    RUN(with_experts_read);
    return 0;
}
