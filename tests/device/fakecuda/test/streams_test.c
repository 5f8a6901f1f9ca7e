/*
 * The fake driver itself: streams, events, copies, launches, and every law about their order. What
 * it does not see cannot be proved with it, so each law is broken here once.
 *
 * Each variant is another way in which the streams lag behind.
 */
#include <unistd.h>

#include "tests/device/fakecuda/test/small_kernels.h"
#include "tests/support/log_guard.h"

/* ---- what works */

static void copies_and_launches_run_in_order(void)
{
    uint32_t *words = (uint32_t *)host;

    for (uint32_t i = 0; i < BYTES / 4; i++)
        words[i] = i;
    OK(cu.copy_to_device(dev, host, BYTES, a));
    for (uint32_t i = 0; i < 100; i++)
        OK(launch_add(a, i % 2 ? dev2 : dev, i % 2 ? dev : dev2, i));
    OK(cu.copy_on_device(dev2, dev, BYTES, a));
    OK(cu.copy_to_host(host2, dev2, BYTES, a));
    OK(cu.event_record(event, a));
    while (cu.event_query(event) == MP_CU_ERROR_NOT_READY)
        usleep(100);
    for (uint32_t i = 0; i < BYTES / 4; i++)
        CHECK_EQ(((uint32_t *)host2)[i], i + 4950);
    OK(cu.set_bytes(dev, 7, BYTES, a));
    OK(cu.copy_to_host(host2, dev, BYTES, a));
    OK(cu.stream_synchronize(a));
    CHECK(host2[0] == 7 && host2[BYTES - 1] == 7);
    check_no_violation();
}

static void events_order_streams(void)
{
    mp_cu_event back;

    OK(cu.event_create(&back, 0));
    for (unsigned i = 0; i < 50; i++) {
        OK(cu.set_bytes(dev, (unsigned char)i, BYTES, a));
        OK(cu.event_record(event, a));
        OK(cu.stream_wait_event(b, event, 0));
        OK(launch_add(b, dev, dev2, 1));
        OK(cu.event_record(back, b));
        OK(cu.stream_wait_event(a, back, 0));
        OK(cu.copy_to_host(host, dev2, BYTES, a));
        OK(cu.event_record(event, a));
        OK(cu.event_synchronize(event));
        CHECK_EQ(host[0], (unsigned char)(i + 1));
    }
    OK(cu.event_destroy(back));
    check_no_violation();
}

static void clocks_are_read(void)
{
    const double begun = seconds();
    mp_cu_event start, end;
    float ms = -1;

    OK(cu.event_create(&start, 0));
    OK(cu.event_create(&end, 0));
    CHECK_EQ(cu.event_elapsed(&ms, start, end), MP_CU_ERROR_INVALID_HANDLE);
    OK(cu.event_record(start, a));
    OK(cu.event_synchronize(start));
    usleep(3000);
    OK(cu.event_record(end, a));
    OK(cu.event_synchronize(end));
    OK(cu.event_elapsed(&ms, start, end));
    CHECK(ms >= 2.99f);
    CHECK((double)ms <= 1e3 * (seconds() - begun) + 0.01);
    OK(cu.event_elapsed(&ms, end, start));
    CHECK(ms <= -2.99f);
    CHECK_EQ(cu.event_elapsed(&ms, event, end), MP_CU_ERROR_INVALID_HANDLE); /* has no time */
    OK(cu.event_destroy(start));
    OK(cu.event_destroy(end));
    check_no_violation();
}

static void parameters_are_copied_at_launch(void)
{
    struct add_params p = { dev, dev2, BYTES / 4, 5 };

    fake_api.stall(true);
    OK(cu.set_bytes(dev, 0, BYTES, a));
    OK(launch(add, a, &p));
    memset(&p, 0xff, sizeof(p));
    CHECK_EQ(cu.stream_query(a), MP_CU_ERROR_NOT_READY);
    fake_api.stall(false);
    OK(cu.copy_to_host(host, dev2, BYTES, a));
    OK(cu.stream_synchronize(a));
    CHECK_EQ(*(uint32_t *)host, 5);
    check_no_violation();
}

static void images_are_read(void)
{
    mp_cu_function f;
    mp_cu_module m;

    CHECK_EQ(cu.module_load(&m, "no image", 0, NULL, NULL), 200);
    CHECK_EQ(cu.module_function(&f, module, "mp_test_ad"), MP_CU_ERROR_NOT_FOUND);
    check_no_violation();
    CHECK_EQ(cu.module_function(&f, module, "nobody"), MP_CU_ERROR_NOT_FOUND);
    check_violation("what the entry nobody");
    CHECK_EQ(cu.launch(add, 0, 1, 1, 32, 1, 1, 0, a, NULL, NULL), MP_CU_ERROR_INVALID_VALUE);
    CHECK_EQ(cu.function_set(add, MP_CU_FUNCTION_SHARED_BYTES_MAX, BYTES), MP_CU_SUCCESS);
    CHECK_EQ(cu.function_set(add, MP_CU_FUNCTION_SHARED_BYTES_MAX, -1), MP_CU_ERROR_INVALID_VALUE);
    check_no_violation();
}

static void device_memory_is_the_devices(void)
{
    int pipe_ends[2];

    if (fake_api.keys() == 0)
        return; /* the CPU cannot know who touches it */
    CHECK_EQ(pipe(pipe_ends), 0);
    CHECK_EQ(write(pipe_ends[1], (void *)(uintptr_t)dev, 8), -1);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
}

/* ---- what is forbidden */

static void a_race_is_seen_though_it_does_not_show(void)
{
    OK(cu.set_bytes(dev, 1, BYTES, a));
    fake_api.settle(); /* it is done */
    OK(launch_add(b, dev, dev2, 1));
    check_violation("nothing orders");
    wait_for_all();

    OK(cu.set_bytes(dev, 1, BYTES, a));
    OK(cu.stream_synchronize(a)); /* the host orders them */
    OK(launch_add(b, dev, dev2, 1));
    OK(cu.copy_to_host(host, dev, BYTES, a)); /* two that read */
    wait_for_all();
    check_no_violation();

    OK(launch_add(a, dev, dev2, 1));
    OK(cu.set_bytes(dev, 1, BYTES, b)); /* written under a reader */
    check_violation("nothing orders");
    wait_for_all();
}

static void an_event_of_before_orders_nothing_after(void)
{
    OK(cu.event_record(event, a));
    OK(cu.set_bytes(dev, 1, BYTES, a));
    OK(cu.stream_wait_event(b, event, 0));
    OK(launch_add(b, dev, dev2, 1));
    check_violation("nothing orders");
    wait_for_all();
}

static void two_addresses_of_one_memory_are_one(void)
{
    struct mp_cu_allocation allocation = { .type = MP_CU_ALLOCATION_PINNED,
                                           .location = { MP_CU_LOCATION_DEVICE, 0 } };
    struct mp_cu_access access = { { MP_CU_LOCATION_DEVICE, 0 }, MP_CU_ACCESS_READ_WRITE };
    mp_cu_ptr at;
    mp_cu_handle handle;

    OK(cu.address_reserve(&at, 2 * GRANULE, 0, 0, 0));
    OK(cu.create(&handle, GRANULE, &allocation, 0));
    OK(cu.map(at, GRANULE, 0, handle, 0));
    OK(cu.map(at + GRANULE, GRANULE, 0, handle, 0));
    OK(cu.set_access(at, 2 * GRANULE, &access, 1));
    OK(cu.set_bytes(at, 3, BYTES, a));
    OK(cu.stream_synchronize(a));
    OK(cu.copy_to_host(host, at + GRANULE, BYTES, a));
    OK(cu.stream_synchronize(a));
    CHECK_EQ(host[BYTES - 1], 3);
    check_no_violation();

    OK(launch_add(a, at, dev, 1));
    OK(cu.set_bytes(at + GRANULE + 4096, 3, 4, b));
    check_violation("nothing orders");
    wait_for_all();

    OK(cu.set_bytes(at, 3, BYTES, a));
    fake_api.settle();
    OK(cu.unmap(at, GRANULE)); /* nobody has waited */
    check_violation("unmap of");
    wait_for_all();
    OK(cu.unmap(at + GRANULE, GRANULE));
    OK(cu.release(handle));
    OK(cu.address_free(at, 2 * GRANULE));
    fake_api.reset();
}

/* The window: unmapped and mapped anew between launch and execution. */
static void another_generation_is_not_read(bool by_table)
{
    struct mp_cu_allocation allocation = { .type = MP_CU_ALLOCATION_PINNED,
                                           .location = { MP_CU_LOCATION_DEVICE, 0 } };
    struct mp_cu_access access = { { MP_CU_LOCATION_DEVICE, 0 }, MP_CU_ACCESS_READ_WRITE };
    mp_cu_handle first, second;
    mp_cu_ptr at;

    OK(cu.address_reserve(&at, GRANULE, 0, 0, 0));
    OK(cu.create(&first, GRANULE, &allocation, 0));
    OK(cu.create(&second, GRANULE, &allocation, 0));
    OK(cu.map(at, GRANULE, 0, first, 0));
    OK(cu.set_access(at, GRANULE, &access, 1));
    memcpy(host, &at, sizeof(at));
    OK(cu.copy_to_device(dev, host, 8, a));
    fake_api.stall(true);
    if (by_table)
        OK(launch_follow(a, dev, dev2));
    else
        OK(launch_add(a, at, dev2, 1));
    OK(cu.unmap(at, GRANULE));
    if (by_table)
        check_no_violation(); /* what the table says is not known yet */
    else
        check_violation("unmap of");
    OK(cu.map(at, GRANULE, 0, second, 0));
    OK(cu.set_access(at, GRANULE, &access, 1));
    fake_api.stall(false);
    OK(cu.stream_synchronize(a));
    check_violation("was mapped after it had been queued");
    OK(cu.unmap(at, GRANULE));
    OK(cu.release(first));
    OK(cu.release(second));
    OK(cu.address_free(at, GRANULE));
    check_no_violation();
}

static void generations_are_distinguished(void)
{
    another_generation_is_not_read(false);
    another_generation_is_not_read(true);
}

static void a_hole_is_a_fault_that_stays(void)
{
    mp_cu_ptr at;

    OK(cu.address_reserve(&at, GRANULE, 0, 0, 0));
    CHECK_EQ(cu.set_bytes(at, 1, 16, a), MP_CU_ERROR_INVALID_VALUE); /* a copy is refused */
    check_violation("writes");
    memcpy(host, &at, sizeof(at));
    OK(cu.copy_to_device(dev, host, 8, a));
    OK(launch_follow(a, dev, dev2));
    CHECK_EQ(cu.stream_synchronize(a), MP_CU_ERROR_ILLEGAL_ADDRESS);
    check_violation("a hole");
    CHECK_EQ(cu.set_bytes(dev, 1, 16, b), MP_CU_ERROR_ILLEGAL_ADDRESS);
    fake_api.lose(0);
    wait_for_all();
    CHECK_EQ(launch(liar, a, &at), MP_CU_SUCCESS); /* the CPU catches what was not said */
    CHECK_EQ(cu.stream_synchronize(a), MP_CU_ERROR_ILLEGAL_ADDRESS);
    check_violation("touched");
    fake_api.lose(0);
    wait_for_all();
    OK(cu.address_free(at, GRANULE));
    check_no_violation();
}

static void memory_in_use_is_not_given_back(void)
{
    mp_cu_ptr more;
    void *pinned;

    OK(cu.alloc(&more, BYTES));
    OK(cu.set_bytes(more, 1, BYTES, a));
    fake_api.settle();
    OK(cu.free(more));
    check_violation("free of");
    wait_for_all();
    OK(cu.host_alloc(&pinned, BYTES, 0));
    OK(cu.copy_to_host(pinned, dev, BYTES, a));
    fake_api.settle();
    OK(cu.host_free(pinned));
    check_violation("free of");
    wait_for_all();
}

static void the_host_keeps_its_hands_off(void)
{
    memset(host, 1, BYTES);
    fake_api.stall(true);
    OK(cu.copy_to_device(dev, host, BYTES, a));
    memset(host, 2, BYTES);
    fake_api.stall(false);
    OK(cu.stream_synchronize(a));
    check_violation("was changed after");

    memset(host2, 1, BYTES);
    fake_api.stall(true);
    OK(cu.copy_to_host(host2, dev, BYTES, a));
    CHECK_EQ(host2[5], 0xdb); /* who looks too early sees rubbish */
    fake_api.stall(false);
    OK(cu.stream_synchronize(a));
    CHECK_EQ(host2[5], 2);

    CHECK_EQ(cu.copy_to_device(dev, image, 8, a), MP_CU_ERROR_INVALID_VALUE);
    check_violation("not pinned");
}

static void objects_in_use_are_not_destroyed(void)
{
    mp_cu_stream c;
    mp_cu_event e;
    mp_cu_module m;
    mp_cu_function f;
    struct add_params p = { dev, dev2, 4, 1 };

    OK(cu.stream_create(&c, MP_CU_STREAM_NON_BLOCKING, 0));
    OK(cu.event_create(&e, MP_CU_EVENT_DISABLE_TIMING));
    OK(cu.module_load(&m, image, 0, NULL, NULL));
    OK(cu.module_function(&f, m, "mp_test_add"));
    OK(cu.set_bytes(dev, 1, BYTES, c));
    OK(launch(f, c, &p));
    OK(cu.event_record(e, c));
    fake_api.settle();
    OK(cu.event_destroy(e));
    check_violation("an event is destroyed");
    OK(cu.module_unload(m));
    check_violation("a module is unloaded");
    OK(cu.stream_destroy(c));
    check_violation("is destroyed with work");
    CHECK_EQ(cu.stream_synchronize(c), MP_CU_ERROR_INVALID_HANDLE);
    check_violation("was destroyed");
    CHECK_EQ(cu.event_record(e, a), MP_CU_ERROR_INVALID_HANDLE);
    check_violation("was destroyed");
    fake_api.settle();
    OK(cu.stream_create(&c, MP_CU_STREAM_NON_BLOCKING, 0)); /* the place is used again */
    OK(cu.stream_synchronize(c));
    OK(cu.stream_destroy(c));
    check_no_violation();
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    RUN(copies_and_launches_run_in_order);
    RUN(events_order_streams);
    RUN(clocks_are_read);
    RUN(parameters_are_copied_at_launch);
    RUN(images_are_read);
    RUN(device_memory_is_the_devices);
    RUN(a_race_is_seen_though_it_does_not_show);
    RUN(an_event_of_before_orders_nothing_after);
    RUN(two_addresses_of_one_memory_are_one);
    RUN(generations_are_distinguished);
    RUN(a_hole_is_a_fault_that_stays);
    RUN(memory_in_use_is_not_given_back);
    RUN(the_host_keeps_its_hands_off);
    RUN(objects_in_use_are_not_destroyed);
    tear_down();
    return 0;
}
