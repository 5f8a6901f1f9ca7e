/*
 * What a CUDA driver returns for calls on the edge of what is allowed, one line each: "case:
 * CODE_NAME". The output of a real driver belongs under tests/data/driver/; tools/gpu/run compares
 * with what is there. Where the fake one is stricter, it says so here with a second name.
 *
 * Usage: driver_codes [ORDINAL]. 77: there is no driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/error.h"
#include "vmm/backend/cuda/cuda_driver.h"

static const struct mp_cuda *cuda;
static const struct mp_cu_calls *call;
static mp_cu_device device;
static size_t granule;

static void say(const char *what, mp_cu_result result)
{
    const char *name = NULL;

    if (call->error_name(result, &name) != MP_CU_SUCCESS || name == NULL)
        name = "(no name)";
    printf("%s: %s\n", what, name);
}

static struct mp_cu_allocation allocation(int type, int id)
{
    struct mp_cu_allocation a;

    memset(&a, 0, sizeof(a));
    a.type = MP_CU_ALLOCATION_PINNED;
    a.location.type = type;
    a.location.id = id;
    return a;
}

static struct mp_cu_access access_of(int type, int id)
{
    struct mp_cu_access a;

    memset(&a, 0, sizeof(a));
    a.location.type = type;
    a.location.id = id;
    a.flags = MP_CU_ACCESS_READ_WRITE;
    return a;
}

/* Making memory. */
static void creations(void)
{
    const struct mp_cu_allocation on_device = allocation(MP_CU_LOCATION_DEVICE, device);
    const struct mp_cu_allocation numa = allocation(MP_CU_LOCATION_HOST_NUMA, 0);
    const struct mp_cu_allocation nowhere = allocation(MP_CU_LOCATION_HOST_NUMA, -1);
    const struct mp_cu_allocation current = allocation(MP_CU_LOCATION_HOST_NUMA_CURRENT, 0);
    const struct {
        const char *what;
        const struct mp_cu_allocation *allocation;
        size_t bytes;
    } cases[] = {
        { "create device, a granule", &on_device, granule },
        { "create device, half a granule", &on_device, granule / 2 },
        { "create device, 0 bytes", &on_device, 0 },
        { "create device, 1 EiB", &on_device, (size_t)1 << 60 },
        { "create host node 0", &numa, granule },
        { "create host node -1", &nowhere, granule },
        { "create host node of the thread", &current, granule },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mp_cu_handle handle = 0;
        const mp_cu_result result = call->create(&handle, cases[i].bytes, cases[i].allocation, 0);

        say(cases[i].what, result);
        if (result == MP_CU_SUCCESS)
            say("  release", call->release(handle));
    }
    printf("granule: %zu\n", granule);
}

/* Mapping it. `at` has room for four granules, `handle` two. */
static void mappings(mp_cu_ptr at, mp_cu_handle handle)
{
    const struct mp_cu_access on_device = access_of(MP_CU_LOCATION_DEVICE, device);
    const struct mp_cu_access host = access_of(MP_CU_LOCATION_HOST_NUMA, 0);
    const size_t two = 2 * granule;

    say("map at offset of a granule", call->map(at, granule, granule, handle, 0));
    say("map less than the handle", call->map(at, granule, 0, handle, 0));
    say("unmap it", call->unmap(at, granule));
    say("map beyond the reservation", call->map(at + 3 * granule, two, 0, handle, 0));
    say("map not aligned", call->map(at + 4096, two, 0, handle, 0));
    say("map where nothing is reserved", call->map(at + (UINT64_C(1) << 40), two, 0, handle, 0));
    say("map", call->map(at, two, 0, handle, 0));
    say("map again on top", call->map(at, two, 0, handle, 0));
    say("map the same handle elsewhere", call->map(at + two, two, 0, handle, 0));
    say("set access of what is mapped twice", call->set_access(at, 2 * two, &on_device, 1));
    say("set host access of device memory", call->set_access(at, two, &host, 1));
    say("set access of half a mapping", call->set_access(at, granule, &on_device, 1));
    say("unmap half of a mapping", call->unmap(at, granule));
    say("unmap both mappings at once", call->unmap(at, 2 * two));
    say("unmap the first, if it is still there", call->unmap(at, two));
    say("unmap the second, if it is still there", call->unmap(at + two, two));
    say("unmap where nothing is mapped", call->unmap(at, two));
    say("set access where nothing is mapped", call->set_access(at, two, &on_device, 1));
    say("free half of the reservation", call->address_free(at, two));
}

/* A handle outlives its release while it is mapped. */
static void lifetimes(mp_cu_ptr at)
{
    const struct mp_cu_allocation on_device = allocation(MP_CU_LOCATION_DEVICE, device);
    const struct mp_cu_access access = access_of(MP_CU_LOCATION_DEVICE, device);
    mp_cu_stream stream = NULL;
    mp_cu_handle handle = 0;
    uint64_t word = UINT64_C(0x0123456789abcdef), back = 0;
    void *pinned = NULL;

    say("create", call->create(&handle, granule, &on_device, 0));
    say("map", call->map(at, granule, 0, handle, 0));
    say("release while mapped", call->release(handle));
    say("release again", call->release(handle));
    say("set access after release", call->set_access(at, granule, &access, 1));
    say("stream", call->stream_create(&stream, MP_CU_STREAM_NON_BLOCKING, 0));
    say("pinned", call->host_alloc(&pinned, 4096, 0));
    memcpy(pinned, &word, sizeof(word));
    say("copy there", call->copy_to_device(at, pinned, sizeof(word), stream));
    say("wait", call->stream_synchronize(stream));
    memset(pinned, 0, sizeof(word));
    say("copy back", call->copy_to_host(pinned, at, sizeof(word), stream));
    say("wait", call->stream_synchronize(stream));
    memcpy(&back, pinned, sizeof(back));
    printf("contents: %s\n", back == word ? "kept" : "LOST");
    say("free the reservation while mapped", call->address_free(at, 4 * granule));
    say("unmap", call->unmap(at, granule));
    say("copy to what is unmapped", call->copy_to_device(at, pinned, sizeof(word), stream));
    say("wait", call->stream_synchronize(stream));
    say("free pinned", call->host_free(pinned));
    say("destroy stream", call->stream_destroy(stream));
}

/* Streams, events and modules without work. */
static void objects(void)
{
    mp_cu_stream stream = NULL;
    mp_cu_event event = NULL;
    mp_cu_module module = NULL;
    mp_cu_graph graph = NULL;
    int capturing = -1;
    float ms;

    say("event", call->event_create(&event, 0));
    say("query an event never recorded", call->event_query(event));
    say("wait for an event never recorded", call->event_synchronize(event));
    say("time between events never recorded", call->event_elapsed(&ms, event, event));
    say("stream", call->stream_create(&stream, MP_CU_STREAM_NON_BLOCKING, 0));
    say("query an idle stream", call->stream_query(stream));
    say("end a capture that did not begin", call->capture_end(stream, &graph));
    say("begin a capture", call->capture_begin(stream, MP_CU_CAPTURE_RELAXED));
    say("is it capturing", call->capturing(stream, &capturing));
    printf("capturing: %d\n", capturing);
    say("synchronize under capture", call->stream_synchronize(stream));
    say("end the capture", call->capture_end(stream, &graph));
    say("load a module of rubbish", call->module_load(&module, "rubbish", 0, NULL, NULL));
    say("copy of 0 bytes", call->copy_to_device(0, &ms, 0, stream));
    say("free address 0", call->free(0));
    say("allocate 0 bytes", call->alloc(&(mp_cu_ptr){ 0 }, 0));
    say("destroy event", call->event_destroy(event));
    say("destroy stream", call->stream_destroy(stream));
}

int main(int argc, char **argv)
{
    const int ordinal = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0;
    struct mp_cu_allocation on_device;
    mp_cu_context context = NULL;
    mp_cu_handle handle = 0;
    mp_cu_ptr at = 0;

    if (mp_cuda_get(&cuda) != MP_OK) {
        fprintf(stderr, "driver_codes: %s\n", mp_error_last()->text);
        return 77;
    }
    call = &cuda->call;
    say("device beyond the last", call->device_get(&device, 4096));
    say("device", call->device_get(&device, ordinal));
    say("create without a context",
        call->create(&handle, 1u << 21, &(struct mp_cu_allocation){ 0 }, 0));
    if (call->context_retain(&context, device) != MP_CU_SUCCESS ||
        call->context_set(context) != MP_CU_SUCCESS) {
        fprintf(stderr, "driver_codes: no context\n");
        return 1;
    }
    on_device = allocation(MP_CU_LOCATION_DEVICE, device);
    say("granularity", call->granularity(&granule, &on_device, MP_CU_GRANULARITY_MINIMUM));
    creations();
    say("reserve four granules", call->address_reserve(&at, 4 * granule, granule, 0, 0));
    say("reserve 0 bytes", call->address_reserve(&(mp_cu_ptr){ 0 }, 0, 0, 0, 0));
    say("create two granules", call->create(&handle, 2 * granule, &on_device, 0));
    mappings(at, handle);
    say("release", call->release(handle));
    objects();
    lifetimes(at); /* the last: it may leave an error that every later call gets */
    say("free the reservation", call->address_free(at, 4 * granule));
    say("release the context", call->context_release(device));
    return 0;
}
