/* How long a wait goes on awake: until its time is over, or a processor is wanted. */
#include "tests/support/test.h"
#include "vmm/base/clock.h"
#include "vmm/base/spin.h"

static bool spares(void *ctx)
{
    unsigned *looks = ctx;

    return (*looks)++ < 3;
}

static void without_time_or_a_processor_a_thread_sleeps_at_once(void)
{
    static const struct mp_spin none = { .ns = 0 };
    unsigned looks = 3;
    const struct mp_spin taken = { .ns = UINT64_MAX, .spares = spares, .ctx = &looks };
    struct mp_spin_wait wait = mp_spin_begin(NULL);

    CHECK(!mp_spin_again(&wait));
    wait = mp_spin_begin(&none);
    CHECK(!mp_spin_again(&wait));
    wait = mp_spin_begin(&taken);
    CHECK(!mp_spin_again(&wait));
    CHECK_EQ(looks, 4);
}

static void a_processor_that_is_wanted_ends_the_wait(void)
{
    unsigned looks = 0, times = 0;
    const struct mp_spin spin = { .ns = UINT64_MAX, .spares = spares, .ctx = &looks };
    struct mp_spin_wait wait = mp_spin_begin(&spin);

    while (mp_spin_again(&wait))
        times++;
    CHECK_EQ(times, 3);
}

static void a_wait_ends_when_its_time_is_over(void)
{
    const struct mp_spin spin = { .ns = 2000000 };
    struct mp_clock *clock = mp_clock_monotonic();

    for (unsigned i = 0; i < 2; i++) { /* each has the whole time */
        const uint64_t start_ns = mp_clock_now_ns(clock);
        struct mp_spin_wait wait = mp_spin_begin(&spin);
        unsigned times = 0;

        while (mp_spin_again(&wait))
            times++;
        CHECK(times > 1);
        CHECK(mp_clock_now_ns(clock) - start_ns >= spin.ns);
    }
}

int main(void)
{
    RUN(without_time_or_a_processor_a_thread_sleeps_at_once);
    RUN(a_processor_that_is_wanted_ends_the_wait);
    RUN(a_wait_ends_when_its_time_is_over);
    return 0;
}
