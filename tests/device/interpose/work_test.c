/*
 * When is a device idle, so that the meaning of addresses may change? Asked on the driver without a
 * device, where streams stand still as long as the test wants.
 */
#include "interpose/cuda/work.h"

#include <pthread.h>

#include "interpose/cuda/cudart_abi.h"
#include "tests/device/fakecuda/test/two_streams.h"
#include "tests/support/log_guard.h"

#define BYTES 65536u

static const struct mp_cuda *driver;

static void queue_work(mp_cu_stream stream)
{
    mp_work_begin(stream, MP_GPU_LEGACY);
    OK(cu.set_bytes(stream == a ? dev : dev2, 1, BYTES, stream));
    mp_work_end();
}

static void check_quiet(bool quiet)
{
    const bool stopped = mp_work_stop();

    if (stopped)
        mp_work_go();
    CHECK_EQ(stopped, quiet);
}

static void wait_for(bool all, void *stream, enum mp_gpu_default meaning)
{
    struct mp_gpu_wait wait;

    mp_work_wait_begins(&wait);
    mp_work_waited(&wait, all, stream, meaning);
}

static void set_up(void)
{
    open_streams(BYTES);
    CHECK_EQ(mp_cuda_get(&driver), MP_OK);
    check_quiet(false); /* nothing is known of the driver */
    mp_work_open(driver, context);
    mp_work_stream_made(a);
    mp_work_stream_made(b);
    mp_work_stream_made(b); /* known already */
    check_quiet(true);
}

/* ---- */

static void every_stream_is_asked(void)
{
    fake_api.stall(true);
    queue_work(b);
    check_quiet(false);
    fake_api.stall(false);
    OK(cu.stream_synchronize(b));
    check_quiet(true);
    check_no_violation();
}

static void nothing_is_quiet_under_capture(void)
{
    mp_work_capture(true);
    CHECK(mp_work_is_captured());
    check_quiet(false);
    mp_work_capture(true);
    mp_work_capture(false);
    check_quiet(false);
    mp_work_capture(false);
    mp_work_capture(false); /* one that nobody saw begin */
    CHECK(!mp_work_is_captured());
    check_quiet(true);
}

static void what_a_stream_had_when_it_ended_counts(void)
{
    mp_cu_stream busy, idle;
    struct mp_gpu_wait wait;

    OK(cu.stream_create(&idle, MP_CU_STREAM_NON_BLOCKING, 0));
    OK(cu.stream_create(&busy, MP_CU_STREAM_NON_BLOCKING, 0));
    mp_work_stream_made(idle);
    mp_work_stream_made(busy);
    mp_work_stream_ends(idle);
    check_quiet(true);
    fake_api.stall(true);
    mp_work_begin(busy, MP_GPU_LEGACY);
    OK(cu.set_bytes(dev, 2, BYTES, busy));
    mp_work_end();
    mp_work_wait_begins(&wait); /* a wait that began before it ended says nothing of it */
    mp_work_stream_ends(busy);
    fake_api.stall(false);
    OK(cu.stream_synchronize(busy));
    check_quiet(false);
    mp_work_waited(&wait, true, NULL, MP_GPU_LEGACY);
    check_quiet(false);
    wait_for(false, a, MP_GPU_LEGACY);
    check_quiet(false);
    wait_for(true, NULL, MP_GPU_LEGACY);
    check_quiet(true);
    /* One that nobody saw made may have had anything. */
    mp_work_stream_ends(busy);
    check_quiet(false);
    wait_for(true, NULL, MP_GPU_LEGACY);
    check_quiet(true);
    OK(cu.stream_destroy(busy));
    OK(cu.stream_destroy(idle));
    check_no_violation();
}

/* Threads' own default streams cannot be asked about from elsewhere. */
static void *use_own_stream(void *waits)
{
    mp_work_begin(NULL, MP_GPU_PER_THREAD);
    mp_work_end();
    mp_work_begin(MP_RT_STREAM_PER_THREAD, MP_GPU_LEGACY);
    mp_work_end();
    check_quiet(false);
    if (waits != NULL) {
        wait_for(false, a, MP_GPU_LEGACY); /* another one */
        check_quiet(false);
        wait_for(false, MP_RT_STREAM_PER_THREAD, MP_GPU_LEGACY);
        check_quiet(true);
    }
    return NULL;
}

static void in_thread(void *(*run)(void *), void *arg)
{
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, run, arg), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void *check_context(void *run)
{
    void *(*function)(void *);

    memcpy(&function, &run, sizeof(run));
    OK(cu.context_set(context));
    return function(&driver);
}

static void threads_own_streams_are_waited_for_by_them(void)
{
    struct mp_gpu_wait wait;

    mp_work_sees_driver();
    OK(cu.context_set(context));
    use_own_stream(&driver);
    in_thread(check_context, (void *)use_own_stream);
    check_quiet(true);
    /* A thread that ends without waiting: only a wait for the device helps, that began later. */
    mp_work_wait_begins(&wait);
    use_own_stream(NULL);
    mp_work_waited(&wait, true, NULL, MP_GPU_LEGACY);
    check_quiet(false);
    wait_for(true, NULL, MP_GPU_LEGACY);
    check_quiet(true);
    wait_for(false, NULL, MP_GPU_PER_THREAD); /* has nothing to see */
    check_quiet(true);
}

static void *stop_from_elsewhere(void *ctx)
{
    (void)ctx;
    OK(cu.context_set(context));
    check_quiet(false);
    return NULL;
}

static void gate_is_not_closed_under_a_call(void)
{
    mp_work_begin(a, MP_GPU_LEGACY);
    in_thread(stop_from_elsewhere, NULL);
    mp_work_end();
    check_quiet(true);
    mp_work_close();
    in_thread(stop_from_elsewhere, NULL);
    mp_work_go();
}

static void a_query_that_fails_is_no_end(void)
{
    fake_api.fail("cuStreamQuery", 1, MP_CU_ERROR_INVALID_VALUE, false);
    check_quiet(false);
    check_quiet(true);
}

/* What a device had when it was reset is over, whatever it was. */
static void a_device_that_was_reset_is_quiet(void)
{
    mp_work_stream_made((void *)(uintptr_t)0x100000); /* would be asked for nothing */
    check_quiet(false);
    fake_api.reset(); /* which is a violation */
    mp_work_stream_ends((void *)(uintptr_t)0x200000);
    mp_work_capture(true);
    mp_work_begin(NULL, MP_GPU_PER_THREAD);
    mp_work_end();
    mp_work_close();
    mp_work_forget(context, true);
    mp_work_go();
    check_quiet(true);
    CHECK(!mp_work_is_captured());
    mp_work_open(driver, context);
    mp_work_stream_made(a);
    mp_work_stream_made(b);
    every_stream_is_asked();
}

/* Of two devices: what the other has stays, whether it is busy or not. */
static void a_reset_of_one_device_forgets_nothing_of_others(void)
{
    mp_cu_context other;
    mp_cu_stream gone;

    OK(cu.context_retain(&other, 1));
    OK(cu.context_set(other));
    OK(cu.stream_create(&gone, MP_CU_STREAM_NON_BLOCKING, 0));
    mp_work_stream_made(gone);
    mp_work_open(driver, other);
    OK(cu.context_set(context));
    check_quiet(true);
    fake_api.stall(true);
    queue_work(b);
    mp_work_close();
    mp_work_forget(other, false);
    mp_work_go();
    OK(cu.stream_destroy(gone)); /* what asks for it now asks for nothing */
    OK(cu.context_release(1));
    check_quiet(false);
    fake_api.stall(false);
    OK(cu.stream_synchronize(b));
    check_quiet(true);
    every_stream_is_asked();
    /* A capture may be of either. */
    mp_work_capture(true);
    mp_work_close();
    mp_work_forget(other, false);
    mp_work_go();
    CHECK(mp_work_is_captured());
    mp_work_capture(false);
    check_quiet(true);
    check_no_violation();
}

/* Of the device that is reset or of another one: it cannot be asked any more. */
static void a_stream_that_may_be_anywhere_is_never_quiet(void)
{
    mp_cu_stream stream;

    OK(cu.stream_create(&stream, MP_CU_STREAM_NON_BLOCKING, 0));
    OK(cu.context_set(NULL));
    mp_work_stream_made(stream);
    OK(cu.context_set(context));
    check_quiet(true);
    mp_work_close();
    mp_work_forget((mp_cu_context)(uintptr_t)0x100000, false);
    mp_work_go();
    check_quiet(false);
    OK(cu.stream_destroy(stream));
}

static void more_streams_than_are_known_are_never_quiet(void)
{
    for (uintptr_t s = 0; s < 1100; s++)
        mp_work_stream_made((void *)(0x100000 + s));
    check_quiet(false); /* and the streams made up here are not asked */
}

/* The argument: what stays for good, and so cannot be tried before anything else. */
int main(int argc, char **argv)
{
    setenv("FAKECUDA_VERBOSE", "1", 0);
    setenv("FAKECUDA_DEVICES", "2", 1);
    find_fake();
    set_up();
    CHECK_EQ(argc, 2);
    if (strcmp(argv[1], "unknown") == 0) {
        RUN(a_stream_that_may_be_anywhere_is_never_quiet);
        close_streams();
        return 0;
    }
    RUN(every_stream_is_asked);
    RUN(nothing_is_quiet_under_capture);
    RUN(what_a_stream_had_when_it_ended_counts);
    RUN(threads_own_streams_are_waited_for_by_them);
    RUN(gate_is_not_closed_under_a_call);
    RUN(a_query_that_fails_is_no_end);
    RUN(a_device_that_was_reset_is_quiet);
    RUN(a_reset_of_one_device_forgets_nothing_of_others);
    RUN(more_streams_than_are_known_are_never_quiet);
    close_streams();
    return 0;
}
