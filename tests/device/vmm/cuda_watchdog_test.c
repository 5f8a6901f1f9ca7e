/*
 * A driver that does not return: reported once, after the limit, by name; from then on nobody calls
 * it any more, and what ends leaves the device alone. Slow calls are no hang.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/backend/backend.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/backend/cuda/cuda_watchdog.h"

#define GRANULE (UINT64_C(2) << 20)
#define LIMIT_S 1
#define LONG_S 60 /* no thread of a busy machine waits so long for a processor */

static const struct mp_backend_config anywhere = { .numa_node = -1 };
static _Atomic(unsigned) reported;
static struct mp_error reported_error;                       /* before `reported` is raised */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER; /* lines come from any thread */
static char logged[512];

static void report(const struct mp_error *error)
{
    reported_error = *error;
    atomic_fetch_add(&reported, 1);
}

static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    pthread_mutex_lock(&log_lock);
    mp_test_expected_errors += level == MP_LOG_ERROR;
    if (level == MP_LOG_ERROR && logged[0] == '\0')
        snprintf(logged, sizeof(logged), "%s", line);
    pthread_mutex_unlock(&log_lock);
}

static bool was_logged(const char *part)
{
    bool found;

    pthread_mutex_lock(&log_lock);
    found = strstr(logged, part) != NULL;
    pthread_mutex_unlock(&log_lock);
    return found;
}

static void sleep_ms(unsigned ms)
{
    const struct timespec time = { ms / 1000, (long)(ms % 1000) * 1000000 };

    nanosleep(&time, NULL);
}

static uint64_t now_ms(void)
{
    return mp_clock_now_ns(mp_clock_monotonic()) / 1000000;
}

static struct mp_backend *open_cuda(void)
{
    struct mp_backend *backend = NULL;

    CHECK_EQ(mp_backend_open("cuda", &anywhere, &backend), MP_OK);
    return backend;
}

struct maker {
    struct mp_backend *backend;
    struct mp_frame frame;
    enum mp_status status;
    struct mp_error error;
};

static void *make_frame(void *ctx)
{
    struct maker *maker = ctx;

    maker->status =
        maker->backend->ops->frame_create(maker->backend, MP_TIER_DEVICE, GRANULE, &maker->frame);
    maker->error = *mp_error_last();
    return NULL;
}

static void a_call_that_hangs_is_reported_once_and_the_device_left_alone(void)
{
    struct maker maker = { .backend = open_cuda() };
    struct mp_stream *stream = NULL;
    struct mp_frame frame;
    uint64_t calls, begin_ms;
    pthread_t thread;

    CHECK_EQ(maker.backend->ops->frame_create(maker.backend, MP_TIER_DEVICE, GRANULE, &frame),
             MP_OK);
    CHECK_EQ(maker.backend->ops->stream_open(maker.backend, &stream), MP_OK);
    fake_api.fail("cuMemCreate", 0, FAKECUDA_HANGS, false);
    begin_ms = now_ms();
    CHECK_EQ(pthread_create(&thread, NULL, make_frame, &maker), 0);
    while (atomic_load(&reported) == 0)
        sleep_ms(20);
    CHECK(now_ms() - begin_ms >= 1000 * LIMIT_S);
    CHECK_EQ(atomic_load(&reported), 1);
    CHECK_STR(reported_error.code, "E_CUDA_HANG");
    CHECK_EQ(reported_error.status, MP_ERR_DEVICE);
    CHECK(strstr(reported_error.text, "device 0 not responding for 1 s in cuMemCreate;") != NULL);

    /* The others hear it at once, from a driver that is not called. */
    calls = fake_api.calls(NULL);
    CHECK_EQ(maker.backend->ops->event_record(maker.backend, stream, 0), MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_CUDA_HANG");
    CHECK(maker.backend->ops->lost(maker.backend));
    maker.backend->ops->stream_close(maker.backend, stream);
    maker.backend->ops->frame_destroy(maker.backend, &frame);
    CHECK_EQ(fake_api.calls(NULL), calls);

    fake_api.stall(false); /* it comes back after all: too late */
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(maker.status, MP_ERR_DEVICE);
    CHECK_STR(maker.error.code, "E_CUDA_HANG");
    mp_backend_close(maker.backend);
    CHECK_EQ(fake_api.calls(NULL), calls);
    sleep_ms(1500);
    CHECK_EQ(atomic_load(&reported), 1);
    check_no_violation();
}

#define SLOW_CALLS 4
#define SLOW_MS 300

/* Ends each stand still a while after the call that it holds has begun. */
static void *let_go(void *ctx)
{
    const uint64_t before = *(const uint64_t *)ctx;

    for (unsigned i = 0; i < SLOW_CALLS; i++) {
        while (fake_api.calls("cuMemCreate") <= before + i)
            sleep_ms(1);
        sleep_ms(SLOW_MS);
        fake_api.stall(false);
    }
    return NULL;
}

/* Each is shorter than the limit, all of them together are not; nor is time outside of calls. */
static void slow_calls_are_no_hang(void)
{
    struct maker maker = { .backend = open_cuda() };
    uint64_t before = fake_api.calls("cuMemCreate"), longest_ms = 0;
    pthread_t thread;

    _Static_assert(SLOW_MS < 1000 * LIMIT_S && SLOW_CALLS * SLOW_MS > 1000 * LIMIT_S, "see above");
    CHECK_EQ(pthread_create(&thread, NULL, let_go, &before), 0);
    for (unsigned i = 0; i < SLOW_CALLS; i++) {
        const uint64_t begin_ms = now_ms();

        fake_api.fail("cuMemCreate", 0, FAKECUDA_HANGS, false);
        make_frame(&maker);
        if (now_ms() - begin_ms > longest_ms)
            longest_ms = now_ms() - begin_ms;
        if (longest_ms >= 1000 * LIMIT_S)
            SKIP("this machine is so busy that slow calls last as long as those that hang");
        CHECK_EQ(maker.status, MP_OK);
        maker.backend->ops->frame_destroy(maker.backend, &maker.frame);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    sleep_ms(1500);
    mp_backend_close(maker.backend);
    CHECK_EQ(atomic_load(&reported), 0);
    check_nothing_lives();
}

/* More threads than there are places to write in, one after the other and at once. */
static void threads_come_and_go(void)
{
    struct mp_backend *backend = open_cuda();
    struct maker makers[16];
    pthread_t threads[16];

    for (unsigned round = 0; round < 50; round++) {
        for (unsigned i = 0; i < 16; i++) {
            makers[i] = (struct maker){ .backend = backend };
            CHECK_EQ(pthread_create(&threads[i], NULL, make_frame, &makers[i]), 0);
        }
        for (unsigned i = 0; i < 16; i++) {
            CHECK_EQ(pthread_join(threads[i], NULL), 0);
            CHECK_EQ(makers[i].status, MP_OK);
            backend->ops->frame_destroy(backend, &makers[i].frame);
        }
    }
    mp_backend_close(backend);
    CHECK_EQ(atomic_load(&reported), 0);
    check_nothing_lives();
}

static void without_a_listener_the_log_has_it(void)
{
    struct maker maker = { .backend = open_cuda() };
    pthread_t thread;

    fake_api.fail("cuMemCreate", 0, FAKECUDA_HANGS, false);
    CHECK_EQ(pthread_create(&thread, NULL, make_frame, &maker), 0);
    while (!was_logged("error[E_CUDA_HANG]"))
        sleep_ms(20);
    fake_api.stall(false);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_STR(maker.error.code, "E_CUDA_HANG");
    CHECK(was_logged("error[E_CUDA_HANG]: device 0 not responding for 1 s in cuMemCreate"));
    mp_backend_close(maker.backend);
}

static void unwatched_calls_are_the_drivers_own(void)
{
    const struct mp_cuda *cuda = NULL;

    CHECK_EQ(mp_cuda_get(&cuda), MP_OK);
    CHECK(memcmp(&cuda->call, &cu, sizeof(cu)) == 0);
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "hang";

    mp_log_set_sink(keep_line, NULL);
    find_fake();
    if (strcmp(variant, "off") == 0) {
        RUN(unwatched_calls_are_the_drivers_own);
        return 0;
    }
    mp_cuda_watchdog_set(strcmp(variant, "threads") == 0 ? LONG_S : LIMIT_S,
                         strcmp(variant, "log") == 0 ? NULL : report);
    if (strcmp(variant, "log") == 0) {
        RUN(without_a_listener_the_log_has_it);
    } else if (strcmp(variant, "threads") == 0) {
        RUN(threads_come_and_go);
    } else {
        RUN(slow_calls_are_no_hang);
        RUN(a_call_that_hangs_is_reported_once_and_the_device_left_alone);
    }
    return 0;
}
