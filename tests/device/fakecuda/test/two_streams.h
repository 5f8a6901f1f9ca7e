#ifndef MP_FAKECUDA_TWO_STREAMS_H
#define MP_FAKECUDA_TWO_STREAMS_H

#include <time.h>

#include "tests/device/fakecuda/client.h"

/*
 * For the tests of the fake driver itself: a context with two streams, an event, and memory of the
 * host and of the device. One file of a program includes it.
 */
#define OK(call) CHECK_EQ(call, MP_CU_SUCCESS)

static mp_cu_context context;
static mp_cu_stream a, b;
static mp_cu_event event;
static unsigned char *host;
static mp_cu_ptr dev, dev2;

static inline double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void use_device(void)
{
    OK(cu.init(0));
    OK(cu.context_retain(&context, 0));
    OK(cu.context_set(context));
}

static inline void open_streams(size_t bytes)
{
    use_device();
    OK(cu.stream_create(&a, MP_CU_STREAM_NON_BLOCKING, 0));
    OK(cu.stream_create(&b, MP_CU_STREAM_NON_BLOCKING, 0));
    OK(cu.event_create(&event, MP_CU_EVENT_DISABLE_TIMING));
    OK(cu.host_alloc((void **)&host, bytes, MP_CU_HOST_DEVICE_MAP));
    OK(cu.alloc(&dev, bytes));
    OK(cu.alloc(&dev2, bytes));
}

static inline void wait_for_all(void)
{
    OK(cu.stream_synchronize(a));
    OK(cu.stream_synchronize(b));
}

/* All that the program made itself is gone by now. */
static inline void close_streams(void)
{
    OK(cu.free(dev));
    OK(cu.free(dev2));
    OK(cu.host_free(host));
    OK(cu.event_destroy(event));
    OK(cu.stream_destroy(a));
    OK(cu.stream_destroy(b));
    OK(cu.context_release(0));
    check_nothing_lives();
}

#endif
