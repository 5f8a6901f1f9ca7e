/* Broken rules abort, so each is broken in a child process. Needs MP_DEBUG_CHECKS for those. */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "vmm/base/assert.h"
#include "vmm/base/clock.h"
#include "vmm/base/lock.h"

static struct mp_mutex outer = MP_MUTEX_INIT(MP_LOCK_POLICY, "outer");
static struct mp_mutex inner = MP_MUTEX_INIT(MP_LOCK_TIER, "inner");
static struct mp_mutex other = MP_MUTEX_INIT(MP_LOCK_TIER, "other");

static void expect_abort(void (*function)(void))
{
    int result = 0;
    pid_t child;

    if (!mp_debug_checks)
        return;
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const struct rlimit none = { 0, 0 };

        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        function();
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &result, 0), child);
    CHECK(WIFSIGNALED(result));
    CHECK_EQ(WTERMSIG(result), SIGABRT);
}

static void take_inner_first(void)
{
    mp_lock(&inner);
    mp_lock(&outer);
}

static void take_two_of_a_rank(void)
{
    mp_lock(&inner);
    mp_lock(&other);
}

static void unlock_what_is_free(void)
{
    mp_unlock(&inner);
}

static void assert_what_is_not_held(void)
{
    mp_lock(&outer);
    mp_assert_held(&inner);
}

static void wait_for_a_device_under_a_lock(void)
{
    mp_lock(&inner);
    mp_assert_none_held();
}

static void wait_with_an_inner_lock(void)
{
    struct mp_cond cond;

    mp_cond_init(&cond);
    mp_lock(&outer);
    mp_lock(&inner);
    mp_cond_wait_for(&cond, &outer, 1);
}

static void fail_an_assertion(void)
{
    mp_assert(outer.rank == MP_LOCK_LEAF);
}

static void locks_nest_from_outer_to_inner(void)
{
    mp_assert_none_held();
    mp_lock(&outer);
    mp_lock(&inner);
    mp_assert_held(&outer);
    mp_assert_held(&inner);
    mp_unlock(&outer); /* in any order */
    mp_assert_held(&inner);
    mp_unlock(&inner);
    mp_assert_none_held();
}

static void broken_rules_abort(void)
{
    expect_abort(take_inner_first);
    expect_abort(take_two_of_a_rank);
    expect_abort(unlock_what_is_free);
    expect_abort(assert_what_is_not_held);
    expect_abort(wait_for_a_device_under_a_lock);
    expect_abort(wait_with_an_inner_lock);
    expect_abort(fail_an_assertion);
}

struct shared {
    struct mp_mutex mutex;
    struct mp_cond cond;
    unsigned count;
};

static void *count_up(void *arg)
{
    struct shared *shared = arg;

    for (int i = 0; i < 1000; i++) {
        mp_lock(&shared->mutex);
        shared->count++;
        mp_cond_signal(&shared->cond);
        mp_unlock(&shared->mutex);
    }
    return NULL;
}

static void threads_exclude_and_wake_each_other(void)
{
    struct shared shared = { .count = 0 };
    pthread_t threads[4];

    mp_mutex_init(&shared.mutex, MP_LOCK_LEAF, "shared");
    mp_cond_init(&shared.cond);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, count_up, &shared), 0);
    mp_lock(&shared.mutex);
    while (shared.count < 4000)
        mp_cond_wait(&shared.cond, &shared.mutex);
    mp_assert_held(&shared.mutex);
    mp_unlock(&shared.mutex);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);

    mp_lock(&shared.mutex);
    while (mp_cond_wait_for(&shared.cond, &shared.mutex, 1000))
        ; /* it may wake without a cause, but not for ever */
    mp_cond_broadcast(&shared.cond);
    mp_unlock(&shared.mutex);
    mp_cond_fini(&shared.cond);
    mp_mutex_fini(&shared.mutex);
}

static void the_clock_never_goes_back(void)
{
    struct mp_clock *clock = mp_clock_monotonic();
    const uint64_t before = mp_clock_now_ns(clock);

    CHECK(mp_clock_now_ns(clock) >= before && before > 0);
}

int main(void)
{
    RUN(locks_nest_from_outer_to_inner);
    RUN(broken_rules_abort);
    RUN(threads_exclude_and_wake_each_other);
    RUN(the_clock_never_goes_back);
    return 0;
}
