/*
 * The fake driver itself: calls that fail when a test wants it, at once or later, at one place of
 * the program or with what would undo them, and a device that is lost.
 *
 * Each variant is another way in which the streams lag behind.
 */
#include <pthread.h>

#include "tests/device/fakecuda/test/small_kernels.h"
#include "tests/support/log_guard.h"

static void a_copy_fails_later(void)
{
    fake_api.fail("later:cuMemcpyHtoDAsync_v2", 1, MP_CU_ERROR_UNKNOWN, false);
    OK(cu.copy_to_device(dev, host, BYTES, a));
    OK(cu.event_record(event, a));
    OK(cu.event_synchronize(event));
    OK(cu.copy_to_device(dev, host, BYTES, a));
    OK(cu.event_record(event, a));
    CHECK_EQ(cu.event_synchronize(event), MP_CU_ERROR_UNKNOWN);
    CHECK_EQ(cu.event_query(event), MP_CU_ERROR_UNKNOWN);
    OK(cu.stream_synchronize(a)); /* it was reported */

    OK(cu.set_bytes(dev2, 5, BYTES, a)); /* what is queued behind is not done, */
    OK(cu.stream_synchronize(a));
    fake_api.fail("later:cuMemcpyHtoDAsync_v2", 0, MP_CU_ERROR_UNKNOWN, false);
    OK(cu.copy_to_device(dev, host, BYTES, a));
    OK(cu.event_record(event, a));
    OK(cu.stream_wait_event(b, event, 0)); /* on streams that wait for it neither, */
    OK(launch_add(b, dev, dev2, 1));
    CHECK_EQ(cu.stream_synchronize(b), MP_CU_ERROR_UNKNOWN);
    CHECK_EQ(cu.stream_synchronize(a), MP_CU_ERROR_UNKNOWN);
    OK(cu.copy_to_host(host2, dev2, BYTES, a)); /* and what comes later is */
    OK(cu.stream_synchronize(a));
    CHECK_EQ(host2[0], 5);

    fake_api.fail("later:mp_test_add", 0, MP_CU_ERROR_LAUNCH_FAILED, false);
    OK(launch_add(a, dev, dev2, 1));
    CHECK_EQ(cu.stream_synchronize(a), MP_CU_ERROR_LAUNCH_FAILED);
    CHECK_EQ(cu.stream_synchronize(b), MP_CU_ERROR_LAUNCH_FAILED); /* the device is lost */
    fake_api.lose(0);
    wait_for_all();
    check_no_violation();
    fake_api.reset();
}

static void *wait_for_event(void *ctx)
{
    (void)ctx;
    CHECK_EQ(cu.context_set(context), MP_CU_SUCCESS);
    CHECK_EQ(cu.event_synchronize(event), MP_CU_ERROR_UNKNOWN);
    CHECK_EQ(cu.stream_synchronize(a), MP_CU_SUCCESS); /* it has got the error */
    return NULL;
}

/* Another thread gets the error between two operations of which the second needs the first:
 * neither is done. */
static void a_thread_without_the_error_does_nothing_by_halves(void)
{
    pthread_t thread;

    OK(cu.set_bytes(dev, 1, BYTES, a));
    OK(cu.set_bytes(dev2, 2, BYTES, a));
    OK(cu.stream_synchronize(a));
    fake_api.fail("later:cuMemsetD8Async", 0, MP_CU_ERROR_UNKNOWN, false);
    OK(cu.set_bytes(dev2, 3, BYTES, a));
    OK(cu.event_record(event, a));
    OK(cu.set_bytes(dev2, 4, BYTES, a));
    CHECK_EQ(pthread_create(&thread, NULL, wait_for_event, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    OK(launch_add(a, dev2, dev, 0));
    OK(cu.event_record(event, a));
    OK(cu.stream_wait_event(b, event, 0)); /* nor what another stream does after them */
    OK(cu.set_bytes(dev, 5, BYTES, b));
    CHECK_EQ(cu.stream_synchronize(b), MP_CU_ERROR_UNKNOWN);
    CHECK_EQ(cu.event_synchronize(event), MP_CU_ERROR_UNKNOWN);
    OK(cu.stream_synchronize(a));

    OK(cu.copy_to_host(host, dev, BYTES, a)); /* what comes later is */
    OK(cu.copy_to_host(host2, dev2, BYTES, a));
    OK(cu.stream_synchronize(a));
    CHECK_EQ(host[0], 1);
    CHECK_EQ(host2[0], 2);
    OK(cu.event_record(event, a));
    OK(cu.event_synchronize(event));
    check_no_violation();
    fake_api.reset();
}

/* Two places in the program that make the same call; no tail calls, which would be the caller's. */
static __attribute__((noinline)) mp_cu_result first_place(void)
{
    const mp_cu_result result = cu.stream_query(a);

    __asm__ volatile("" ::: "memory");
    return result;
}

static __attribute__((noinline)) mp_cu_result second_place(void)
{
    const mp_cu_result result = cu.stream_query(a);

    __asm__ volatile("" : : "r"(result) : "memory");
    return result;
}

static void a_place_fails(void)
{
    static struct fakecuda_site sites[1024];
    unsigned count, found = 0;

    for (unsigned i = 0; i < 7; i++)
        CHECK_EQ(first_place() + second_place(), MP_CU_SUCCESS);
    count = fake_api.sites(sites, 1024);
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(sites[i].call, "cuStreamQuery") != 0 || sites[i].calls != 7)
            continue;
        found++;
        fake_api.fail_site(sites[i].address, 0, MP_CU_ERROR_UNKNOWN, false);
        CHECK_EQ(first_place() + second_place(), MP_CU_ERROR_UNKNOWN);
        CHECK_EQ(first_place() + second_place(), MP_CU_SUCCESS);
    }
    CHECK(found == 2);
}

/* D2: the call fails, and so does what would undo it. Then the process starts anew. */
static void what_is_given_back_fails_after_the_first_failure(void)
{
    struct fakecuda_live live;
    mp_cu_ptr at, more;

    OK(cu.alloc(&more, BYTES));
    fake_api.fail_undo(MP_CU_ERROR_UNKNOWN);
    OK(cu.address_reserve(&at, GRANULE, 0, 0, 0));
    OK(cu.address_free(at, GRANULE));
    fake_api.fail("cuMemAddressReserve", 0, MP_CU_ERROR_OUT_OF_MEMORY, false);
    CHECK_EQ(cu.address_reserve(&at, GRANULE, 0, 0, 0), MP_CU_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cu.free(more), MP_CU_ERROR_UNKNOWN);
    OK(cu.set_bytes(dev, 1, BYTES, a));
    fake_api.clear();
    fake_api.live(&live);
    CHECK_EQ(live.allocations + live.pinned + live.streams + live.events + live.modules, 0);
    CHECK_EQ(live.device_bytes, 0);
    set_up();
    OK(cu.set_bytes(dev, 1, BYTES, a));
    wait_for_all();
    check_no_violation();
}

static void a_lost_device_lets_go_of_who_waits(void)
{
    fake_api.stall(true);
    OK(cu.set_bytes(dev, 1, BYTES, a));
    fake_api.lose(MP_CU_ERROR_ECC_UNCORRECTABLE);
    CHECK_EQ(cu.stream_synchronize(a), MP_CU_ERROR_ECC_UNCORRECTABLE);
    fake_api.stall(false);
    fake_api.lose(0);
    wait_for_all();
    check_no_violation();
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    RUN(a_copy_fails_later);
    RUN(a_thread_without_the_error_does_nothing_by_halves);
    RUN(a_place_fails);
    RUN(what_is_given_back_fails_after_the_first_failure);
    RUN(a_lost_device_lets_go_of_who_waits);
    tear_down();
    return 0;
}
