/*
 * The laws of a CUDA driver that moepager is built on, each as far as it is documented, with what
 * the result of every call: one line each, "section: call: CODE_NAME". Runs alike on a real driver
 * and on the one of the tests, which is to be no less and no more than the real one here. The
 * output of a real driver belongs under tests/data/driver/laws/; tools/gpu/run compares with what
 * is there.
 *
 * What only the driver of the tests can do is in tests/device/fakecuda/ and skipped here, with the
 * reason.
 *
 * Usage: driver_laws [ORDINAL]. 0: every call succeeded and all contents are right. 1: not so. 77:
 * there is no driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/error.h"
#include "vmm/backend/cuda/cuda_driver.h"

#define BYTES 65536u

static const struct mp_cuda *cuda;
static const struct mp_cu_calls *call;
static mp_cu_device device;
static const char *section = "start";
static unsigned wrong;

static mp_cu_stream a, b;
static mp_cu_event mark, join;
static unsigned char *host; /* pinned, two times BYTES */
static mp_cu_ptr dev, dev2;

static void say(const char *what, mp_cu_result result)
{
    const char *name = NULL;

    if (call->error_name(result, &name) != MP_CU_SUCCESS || name == NULL)
        name = "(no name)";
    printf("%s: %s: %s\n", section, what, name);
    wrong += result != MP_CU_SUCCESS;
}

#define DO(name, ...) say(#name, call->name(__VA_ARGS__))

static void holds(const char *what, bool right)
{
    printf("%s: %s: %s\n", section, what, right ? "yes" : "NO");
    wrong += !right;
}

/* The host writes `value` to device memory, or finds it there. */
static void put(mp_cu_ptr to, unsigned char value)
{
    memset(host, value, BYTES);
    DO(copy_to_device, to, host, BYTES, a);
    DO(stream_synchronize, a);
}

static void find(const char *what, mp_cu_ptr from, unsigned char value)
{
    unsigned same = 0;

    memset(host + BYTES, 0, BYTES);
    DO(copy_to_host, host + BYTES, from, BYTES, a);
    DO(stream_synchronize, a);
    for (unsigned i = 0; i < BYTES; i++)
        same += host[BYTES + i] == value;
    holds(what, same == BYTES);
}

static void open_all(void)
{
    DO(stream_create, &a, MP_CU_STREAM_NON_BLOCKING, 0);
    DO(stream_create, &b, MP_CU_STREAM_NON_BLOCKING, 0);
    DO(event_create, &mark, MP_CU_EVENT_DISABLE_TIMING);
    DO(event_create, &join, MP_CU_EVENT_DISABLE_TIMING);
    DO(host_alloc, (void **)&host, 2 * BYTES, 0);
    DO(alloc, &dev, BYTES);
    DO(alloc, &dev2, BYTES);
}

static void close_all(void)
{
    DO(free, dev);
    DO(free, dev2);
    DO(host_free, host);
    DO(event_destroy, mark);
    DO(event_destroy, join);
    DO(stream_destroy, a);
    DO(stream_destroy, b);
}

/* Granularity, map, setAccess, unmap; a handle at two addresses; one call over two mappings; and a
 * graph that reads an address under which the memory changes between replays. */
static void memory(void)
{
    struct mp_cu_allocation allocation;
    struct mp_cu_access access;
    mp_cu_handle one = 0, two = 0;
    mp_cu_graph_exec exec = NULL;
    mp_cu_graph graph = NULL;
    mp_cu_ptr at = 0;
    size_t least = 0, granule = 0;

    section = "memory";
    memset(&allocation, 0, sizeof(allocation));
    memset(&access, 0, sizeof(access));
    allocation.type = MP_CU_ALLOCATION_PINNED;
    allocation.location.type = access.location.type = MP_CU_LOCATION_DEVICE;
    allocation.location.id = access.location.id = device;
    access.flags = MP_CU_ACCESS_READ_WRITE;
    DO(granularity, &least, &allocation, MP_CU_GRANULARITY_MINIMUM);
    DO(granularity, &granule, &allocation, MP_CU_GRANULARITY_RECOMMENDED);
    holds("the recommended granule is a multiple of the least",
          least > 0 && granule > 0 && granule % least == 0 && granule >= BYTES);
    if (granule == 0)
        return;
    DO(address_reserve, &at, 3 * granule, 0, 0, 0);
    DO(create, &one, granule, &allocation, 0);
    DO(create, &two, granule, &allocation, 0);
    DO(map, at, granule, 0, one, 0);
    DO(map, at + granule, granule, 0, two, 0);
    DO(set_access, at, 2 * granule, &access, 1); /* over both */
    put(at, 1);
    put(at + granule, 2);
    DO(map, at + 2 * granule, granule, 0, one, 0);
    DO(set_access, at + 2 * granule, granule, &access, 1);
    find("a handle is the same memory at both addresses", at + 2 * granule, 1);
    DO(copy_on_device, dev, at + granule - BYTES / 2, BYTES, a); /* across two mappings */
    DO(stream_synchronize, a);

    section = "graph over memory";
    DO(capture_begin, a, MP_CU_CAPTURE_THREAD_LOCAL);
    DO(copy_on_device, dev, at, BYTES, a);
    DO(capture_end, a, &graph);
    DO(graph_instantiate, &exec, graph, 0);
    DO(graph_destroy, graph);
    DO(graph_launch, exec, a);
    find("a replay reads what is mapped", dev, 1);
    DO(unmap, at, granule);
    DO(unmap, at + granule, granule);
    DO(map, at, granule, 0, two, 0);
    DO(set_access, at, granule, &access, 1);
    find("unmapping keeps the contents", at, 2);
    DO(graph_launch, exec, a);
    find("a replay reads what is mapped there now", dev, 2);
    DO(graph_exec_destroy, exec);

    section = "memory";
    DO(release, one);
    find("a handle that was released lives while it is mapped", at + 2 * granule, 1);
    DO(unmap, at + 2 * granule, granule);
    DO(unmap, at, granule);
    DO(release, two);
    DO(address_free, at, 3 * granule);
}

static void events(void)
{
    mp_cu_event start = NULL, end = NULL;
    float ms = -1;

    section = "events";
    DO(event_create, &start, 0);
    DO(event_create, &end, 0);
    DO(event_record, start, a);
    DO(set_bytes, dev, 7, BYTES, a);
    DO(event_record, mark, a);
    DO(stream_wait_event, b, mark, 0);
    DO(copy_on_device, dev2, dev, BYTES, b);
    DO(event_record, join, b);
    DO(stream_wait_event, a, join, 0);
    DO(event_record, end, a);
    DO(event_synchronize, end);
    DO(event_query, join);
    DO(stream_query, a);
    DO(event_elapsed, &ms, start, end);
    holds("time does not run backwards", ms >= 0);
    find("an event orders two streams", dev2, 7);
    DO(event_destroy, start);
    DO(event_destroy, end);
}

/* A branch on another stream, replayed with other contents of the source each time. */
static void graphs(void)
{
    mp_cu_graph_exec exec = NULL;
    mp_cu_graph graph = NULL;
    int status = -1;

    section = "graphs";
    DO(capture_begin, a, MP_CU_CAPTURE_THREAD_LOCAL);
    DO(capturing, a, &status);
    holds("a capture is active", status == MP_CU_CAPTURE_ACTIVE);
    DO(copy_to_device, dev, host, BYTES, a);
    DO(event_record, mark, a);
    DO(stream_wait_event, b, mark, 0);
    DO(copy_on_device, dev2, dev, BYTES, b);
    DO(event_record, join, b);
    DO(stream_wait_event, a, join, 0);
    DO(set_bytes, dev, 9, BYTES, a);
    DO(capture_end, a, &graph);
    DO(capturing, a, &status);
    holds("and then none is", status == MP_CU_CAPTURE_NONE);
    DO(graph_instantiate, &exec, graph, 0);
    DO(graph_destroy, graph);
    for (unsigned char i = 1; i < 4; i++) {
        memset(host, i, BYTES);
        DO(graph_launch, exec, a);
        find("a replay reads the source anew", dev2, i);
    }
    find("and does its work in order", dev, 9);
    DO(graph_exec_destroy, exec);
}

static void skipped(void)
{
    static const char *const tests[][2] = {
        { "failures_test", "calls and operations are made to fail" },
        { "machine_test",
          "profiles of machines, processes that share made-up memory; what a capture "
          "forbids would be reported as violations (codes: driver_codes)" },
        { "streams_test", "streams are stalled and seeded; violations end the program" },
    };

    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        printf("skipped: tests/device/fakecuda/test/%s: only the driver of the tests: %s\n",
               tests[i][0], tests[i][1]);
}

int main(int argc, char **argv)
{
    const int ordinal = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0;
    mp_cu_context context = NULL;

    if (mp_cuda_get(&cuda) != MP_OK) {
        fprintf(stderr, "driver_laws: %s\n", mp_error_last()->text);
        return 77;
    }
    call = &cuda->call;
    DO(device_get, &device, ordinal);
    DO(context_retain, &context, device);
    DO(context_set, context);
    if (wrong == 0)
        open_all();
    if (wrong == 0) {
        memory();
        events();
        graphs();
        section = "end";
        close_all();
    }
    DO(context_release, device);
    skipped();
    printf("%u wrong\n", wrong);
    return wrong > 0;
}
