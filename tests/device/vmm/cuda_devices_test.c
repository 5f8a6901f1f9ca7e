/*
 * Which devices the CUDA backend finds, on the driver without a device. Variants:
 *
 *     by_driver   the node next to the PCI slot is refused, that which the driver names is not
 *     two_nodes   each of two devices is beside a node of its own, both with memory
 *     wrong_node  the driver names a node that the machine does not have
 *     reordered, by_uuid, hidden, wrong    CUDA_VISIBLE_DEVICES
 *     mig         a slice of a device
 *     mps         what a server says that others' faults end
 */
#include "tests/device/fakecuda/client.h"
#include "tests/device/vmm/machines.h"
#include "tests/support/log_guard.h"
#include "vmm/backend/backend.h"
#include "vmm/backend/cuda/cuda_nodes.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

static struct mp_cuda_device describe(unsigned ordinal)
{
    struct mp_cuda_device device;
    const struct mp_cuda *cuda = NULL;

    CHECK_EQ(mp_cuda_get(&cuda), MP_OK);
    CHECK_EQ(mp_cuda_describe(cuda, ordinal, &device), MP_OK);
    return device;
}

static void check_devices(unsigned count)
{
    const struct mp_backend_config beyond = { .numa_node = -1, .device = count };
    const struct mp_cuda *cuda = NULL;
    struct mp_backend *backend = NULL;

    CHECK_EQ(mp_cuda_get(&cuda), MP_OK);
    CHECK_EQ(cuda->devices, count);
    for (unsigned i = 0; i < count; i++) {
        const struct mp_backend_config config = { .numa_node = -1, .device = i };

        CHECK_EQ(mp_backend_open("cuda", &config, &backend), MP_OK);
        mp_backend_close(backend);
    }
    CHECK_EQ(mp_backend_open("cuda", &beyond, &backend), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CUDA_DEVICE");
    check_nothing_lives();
}

/* The slot is beside node 1 of a made-up machine, which has no memory for the driver. */
static void the_drivers_node_is_tried_too(void)
{
    struct mp_backend *backend;
    struct mp_frame frame;
    struct fakecuda_live live;
    int nodes[MP_CUDA_NODES_MAX];
    struct mp_cuda_device device = describe(0);

    CHECK_EQ(mp_cuda_host_nodes(&device, 5, nodes), 2);
    CHECK_EQ(nodes[0], 1);
    CHECK_EQ(nodes[1], 0);
    device.host_numa_id = 1;
    CHECK_EQ(mp_cuda_host_nodes(&device, 5, nodes), 1);
    device.host_numa_id = -1;
    snprintf(device.pci, sizeof(device.pci), "0000:ff:1f.7");
    CHECK_EQ(mp_cuda_host_nodes(&device, 5, nodes), 1);
    CHECK_EQ(nodes[0], 5);
    CHECK_EQ(mp_cuda_host_nodes(&device, -1, nodes), 1);
    CHECK_EQ(nodes[0], 0);

    backend = open_cuda();
    frame = make(backend, MP_TIER_HOST, 2 * MIB);
    fake_api.live(&live);
    CHECK_EQ(live.handles, 1);
    CHECK_EQ(live.pinned, 0);
    backend->ops->frame_destroy(backend, &frame);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* A host frame of a device, mapped into a window too; its bytes are on `node` alone. */
static void check_node(unsigned device, unsigned node)
{
    const struct mp_backend_config config = { .numa_node = -1, .device = device };
    struct mp_backend *backend = NULL;
    struct fakecuda_live live;
    struct mp_frame frame;
    void *window;

    CHECK_EQ(mp_backend_open("cuda", &config, &backend), MP_OK);
    CHECK_EQ(backend->caps.granule_bytes, 4 * MIB);
    frame = make(backend, MP_TIER_HOST, 8 * MIB);
    fake_api.live(&live);
    for (unsigned n = 0; n < FAKECUDA_NODES_MAX; n++)
        CHECK_EQ(live.host_bytes[n], n == node ? 8 * MIB : 0);
    CHECK_EQ(live.pinned, 0);
    memset(frame.alias, 7, frame.bytes);
    CHECK_EQ(backend->ops->window_reserve(backend, frame.bytes, &window), MP_OK);
    CHECK_EQ(backend->ops->window_map(backend, window, &frame), MP_OK);
    CHECK_EQ(((unsigned char *)window)[frame.bytes - 1], 7);
    CHECK_EQ(backend->ops->window_unmap(backend, window, frame.bytes), MP_OK);
    backend->ops->window_free(backend, window, frame.bytes);
    backend->ops->frame_destroy(backend, &frame);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* Of the first device hwloc knows the slot, which counts more than what the driver says; of the
 * second only the driver knows. Memory of a node comes in larger granules than the device's. */
static void each_device_has_memory_of_its_node(void)
{
    CHECK_EQ(describe(0).host_numa_id, 0);
    CHECK_EQ(describe(1).host_numa_id, 2);
    check_node(0, 1);
    check_node(1, 2);
}

/* Frames are memory of ours, anywhere, and copies are right. */
static void a_node_that_is_not_there_is_done_without(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame frame = make(backend, MP_TIER_HOST, 2 * MIB);
    struct fakecuda_live live;

    CHECK_EQ(describe(0).host_numa_id, 63);
    fake_api.live(&live);
    CHECK_EQ(live.handles, 0);
    CHECK_EQ(live.pinned, 1);
    CHECK(backend->ops->reads_host(backend));
    CHECK_EQ(warnings, 0);
    backend->ops->frame_destroy(backend, &frame);
    mp_backend_close(backend);
    check_nothing_lives();
}

static void devices_are_those_that_are_visible(void)
{
    check_devices(2);
    CHECK_STR(describe(0).uuid, "GPU-f2f3f4f5-f6f7-f8f9-fafb-fcfdfeff0001");
    CHECK_STR(describe(0).pci, "0000:1c:00.0");
    CHECK_STR(describe(1).uuid, "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
    CHECK_STR(describe(1).pci, "0000:1a:00.0");
}

static void a_device_is_found_by_its_uuid(void)
{
    check_devices(1);
    CHECK_STR(describe(0).uuid, "GPU-f1f2f3f4-f5f6-f7f8-f9fa-fbfcfdfeff00");
}

static void no_device_is_said_so(void)
{
    const struct mp_cuda *cuda = NULL;

    CHECK_EQ(mp_cuda_get(&cuda), MP_ERR_UNSUPPORTED);
    CHECK_STR(mp_error_last()->code, "E_CUDA_OFF");
    CHECK(strstr(mp_error_last()->text, "CUDA_ERROR_NO_DEVICE") != NULL);
    CHECK(strstr(mp_error_last()->text, "is CUDA_VISIBLE_DEVICES right?") != NULL);
}

static void a_slice_is_a_smaller_device(void)
{
    struct mp_backend *backend;
    struct mp_frame frames[16];
    unsigned made = 0;

    check_devices(1);
    CHECK_STR(describe(0).name, "Fake device 0 MIG 1g.5gb");
    CHECK_STR(describe(0).uuid, "MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
    CHECK_EQ(describe(0).memory_bytes, 16 * MIB);
    backend = open_cuda();
    while (made < 16 &&
           backend->ops->frame_create(backend, MP_TIER_DEVICE, 2 * MIB, &frames[made]) == MP_OK)
        made++;
    CHECK_EQ(made, 8);
    CHECK_STR(mp_error_last()->code, "E_CUDA_MEMORY");
    while (made > 0)
        backend->ops->frame_destroy(backend, &frames[--made]);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* ---- what memory is like */

static void frames_suit_both_granules(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame host = make(backend, MP_TIER_HOST, 4 * MIB);
    struct mp_frame device = make(backend, MP_TIER_DEVICE, 4 * MIB);

    CHECK_EQ(backend->caps.granule_bytes, 4 * MIB);
    CHECK_EQ((uintptr_t)device.alias % (4 * MIB), 0);
    CHECK_EQ(fake_api.calls("cuMemHostRegister_v2"), 0); /* it is a handle */
    backend->ops->frame_destroy(backend, &host);
    backend->ops->frame_destroy(backend, &device);
    mp_backend_close(backend);
    check_nothing_lives();
}

static void a_context_takes_memory(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame frames[64];
    uint64_t free_bytes, total_bytes;
    unsigned made = 0;

    CHECK_EQ(backend->ops->memory_info(backend, MP_TIER_DEVICE, &free_bytes, &total_bytes), MP_OK);
    CHECK_EQ(free_bytes, 28 * MIB);
    CHECK_EQ(total_bytes, 128 * MIB);
    while (made < 64 &&
           backend->ops->frame_create(backend, MP_TIER_DEVICE, 2 * MIB, &frames[made]) == MP_OK)
        made++;
    CHECK_EQ(made, 14);
    while (made > 0)
        backend->ops->frame_destroy(backend, &frames[--made]);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* ---- a server between the program and the device */

static void results_of_a_server_are_passed_on(void)
{
    static const struct {
        int result;
        const char *name, *advice;
        bool sticky;
    } cases[] = {
        { 805, "CUDA_ERROR_MPS_CONNECTION_FAILED (805)", "is the MPS control daemon running",
          false },
        { 806, "CUDA_ERROR_MPS_RPC_FAILURE (806)", "all its clients must exit", true },
        { 807, "CUDA_ERROR_MPS_SERVER_NOT_READY (807)", "all its clients must exit", false },
        { 808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED (808)", "takes no more clients", false },
        { 810, "CUDA_ERROR_MPS_CLIENT_TERMINATED (810)", "all its clients must exit", true },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mp_backend *backend = NULL;
        struct mp_frame frame;
        uint64_t calls;

        /* When the device is opened, and in the middle of things. */
        fake_api.fail("cuDevicePrimaryCtxRetain", 0, cases[i].result, false);
        CHECK_EQ(mp_backend_open("cuda", &anywhere, &backend), MP_ERR_DEVICE);
        CHECK(strstr(mp_error_last()->text, cases[i].name) != NULL);
        CHECK(strstr(mp_error_last()->text, "said by the fake driver") != NULL);
        CHECK(strstr(mp_error_last()->text, cases[i].advice) != NULL);
        backend = open_cuda();
        fake_api.fail("cuMemCreate", 0, cases[i].result, false);
        CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, 2 * MIB, &frame),
                 MP_ERR_DEVICE);
        CHECK(strstr(mp_error_last()->text, cases[i].name) != NULL);
        CHECK_EQ(backend->ops->lost(backend), cases[i].sticky);
        calls = fake_api.calls(NULL);
        mp_backend_close(backend);
        CHECK_EQ(fake_api.calls(NULL) == calls, cases[i].sticky); /* a lost device is left alone */
        fake_api.clear();
    }
}

static void run_variant(const char *variant)
{
    if (strcmp(variant, "by_driver") == 0) {
        RUN(the_drivers_node_is_tried_too);
    } else if (strcmp(variant, "two_nodes") == 0) {
        RUN(each_device_has_memory_of_its_node);
    } else if (strcmp(variant, "wrong_node") == 0) {
        RUN(a_node_that_is_not_there_is_done_without);
    } else if (strcmp(variant, "reordered") == 0) {
        RUN(devices_are_those_that_are_visible);
    } else if (strcmp(variant, "by_uuid") == 0) {
        RUN(a_device_is_found_by_its_uuid);
    } else if (strcmp(variant, "mig") == 0) {
        RUN(a_slice_is_a_smaller_device);
    } else if (strcmp(variant, "granules") == 0) {
        RUN(frames_suit_both_granules);
    } else if (strcmp(variant, "context") == 0) {
        RUN(a_context_takes_memory);
    } else if (strcmp(variant, "mps") == 0) {
        RUN(results_of_a_server_are_passed_on);
    } else {
        RUN(no_device_is_said_so);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *variant, *name, *value;
    } settings[] = {
        { "by_driver", "HWLOC_XMLFILE", "tests/data/topo/gpu-on-node-1.xml" },
        { "by_driver", "HWLOC_THISSYSTEM", "1" },
        { "two_nodes", "HWLOC_XMLFILE", "tests/data/topo/gpu-on-node-1.xml" },
        { "two_nodes", "HWLOC_THISSYSTEM", "1" },
        { "two_nodes", "FAKECUDA_HOST_NODES", "3" },
        { "two_nodes", "FAKECUDA_HOST_GRANULE", "4194304" },
        { "two_nodes", "FAKECUDA_NUMA_ID", "0,2" },
        { "wrong_node", "FAKECUDA_HOST_NODES", "2" },
        { "wrong_node", "FAKECUDA_NUMA_ID", "63" },
        { "reordered", "CUDA_VISIBLE_DEVICES", "2,0,7,1" }, /* a wrong one ends the list */
        { "by_uuid", "CUDA_VISIBLE_DEVICES", "GPU-f1f2f3f4" },
        { "hidden", "CUDA_VISIBLE_DEVICES", "" },
        { "wrong", "CUDA_VISIBLE_DEVICES", "GPU-00000000" },
        { "granules", "FAKECUDA_HOST_GRANULE", "4194304" },
        { "context", "FAKECUDA_CONTEXT", "104857600" },
        { "mig", "FAKECUDA_MIG", "1" },
        { "mig", "CUDA_VISIBLE_DEVICES", "MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf" },
    };
    const char *variant = argc > 1 ? argv[1] : "reordered";

    mp_log_set_sink(keep_line, NULL);
    setenv("FAKECUDA_MEMORY", "134217728", 1);
    setenv("FAKECUDA_DEVICES", "3", 1);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (strcmp(settings[i].variant, variant) == 0)
            setenv(settings[i].name, settings[i].value, 1);
    }
    if (getenv("HWLOC_XMLFILE"))
        unsetenv("HWLOC_COMPONENTS"); /* the file has the PCI slots, to be read */
    find_fake();
    run_variant(variant);
    return 0;
}
