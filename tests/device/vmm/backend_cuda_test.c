/*
 * The CUDA backend on the driver without a device (tests/device/fakecuda): frames of both tiers,
 * every driver call failed once and for good, also while undoing, devices that are missing or lost.
 *
 * Each variant is a machine, given to the fake by its environment.
 */
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/device/fakecuda/fakecuda.h"
#include "tests/device/vmm/backend_cuda.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/backend/backend.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* ---- a good machine */

static void facts_are_the_devices(void)
{
    const struct mp_cuda *cuda = NULL;
    struct mp_cuda_device device;

    CHECK_EQ(mp_cuda_get(&cuda), MP_OK);
    CHECK_EQ(cuda->devices, 1);
    CHECK_EQ(cuda->version, 13000);
    CHECK_EQ(mp_cuda_describe(cuda, 0, &device), MP_OK);
    CHECK_STR(device.name, "Fake device 0");
    CHECK_STR(device.pci, "0000:1a:00.0");
    CHECK_STR(device.uuid, "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
    CHECK_EQ(device.memory_bytes, 128 * MIB);
    CHECK_EQ(device.capability, 90);
    CHECK(device.vmm && !device.integrated);
    CHECK_EQ(mp_cuda_describe(cuda, 1, &device), MP_ERR_DEVICE);
    CHECK(strstr(mp_error_last()->text, "CUDA_ERROR_INVALID_DEVICE (101)") != NULL);
}

static void results_become_statuses(void)
{
    static const struct {
        int result;
        enum mp_status status;
        bool sticky;
    } cases[] = {
        { 0, MP_OK, false },
        { 1, MP_ERR_DEVICE, false },
        { 2, MP_ERR_NO_SPACE, false },
        { 214, MP_ERR_DEVICE, true },
        { 700, MP_ERR_DEVICE, true },
        { 719, MP_ERR_DEVICE, true },
        { 800, MP_ERR_UNSUPPORTED, false },
        { 801, MP_ERR_UNSUPPORTED, false },
        { 12345, MP_ERR_DEVICE, false },
    };
    const struct mp_cuda *cuda = NULL;

    CHECK_EQ(mp_cuda_get(&cuda), MP_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_EQ(mp_cuda_check(cuda, cases[i].result, "cuMemMap", "a frame"), cases[i].status);
        CHECK_EQ(mp_cuda_is_sticky(cases[i].result), cases[i].sticky);
    }
    CHECK_STR(mp_error_last()->text, "cuMemMap of a frame: unknown result (12345): unknown result");
}

static void frames_come_and_go(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame device, host;
    uint64_t free_bytes, total_bytes;
    struct fakecuda_live live;

    CHECK_EQ(backend->caps.granule_bytes, GRANULE);
    CHECK(!backend->caps.cpu_access && !backend->caps.file_target);
    CHECK_EQ(mp_backend_cuda.frame_create(backend, MP_TIER_DEVICE, 4 * GRANULE, &device), MP_OK);
    CHECK_EQ(mp_backend_cuda.frame_create(backend, MP_TIER_HOST, 2 * GRANULE, &host), MP_OK);
    CHECK_EQ((uintptr_t)device.alias % GRANULE, 0);
    CHECK_EQ(device.tier, MP_TIER_DEVICE);
    CHECK_EQ(device.bytes, 4 * GRANULE);
    memset(host.alias, 7, host.bytes); /* the CPU may */
    fake_api.live(&live);
    CHECK_EQ(live.mappings, 2);
    CHECK_EQ(live.device_bytes, 4 * GRANULE);
    CHECK_EQ(live.host_bytes[0], 2 * GRANULE);
    CHECK_EQ(backend->ops->memory_info(backend, MP_TIER_DEVICE, &free_bytes, &total_bytes), MP_OK);
    CHECK_EQ(total_bytes, 128 * MIB);
    CHECK_EQ(free_bytes, 120 * MIB);
    CHECK_EQ(backend->ops->memory_info(backend, MP_TIER_HOST, &free_bytes, &total_bytes), MP_OK);
    CHECK(total_bytes > 0);
    CHECK_EQ(backend->ops->memory_info(backend, MP_TIER_FILE, &free_bytes, &total_bytes),
             MP_ERR_INVALID);
    backend->ops->frame_destroy(backend, &device);
    CHECK_EQ(device.handle, 0);
    backend->ops->frame_destroy(backend, &host);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* D1: memory ends at the k-th frame; all before it stay whole and come back. */
static void a_full_device_says_so(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame frames[80];
    unsigned made = 0;

    while (backend->ops->frame_create(backend, MP_TIER_DEVICE, GRANULE, &frames[made]) == MP_OK)
        made++;
    CHECK_EQ(made, 64);
    CHECK_EQ(mp_error_last()->status, MP_ERR_NO_SPACE);
    CHECK_STR(mp_error_last()->code, "E_CUDA_MEMORY");
    backend->ops->frame_destroy(backend, &frames[--made]);
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, GRANULE, &frames[made++]), MP_OK);
    while (made > 0)
        backend->ops->frame_destroy(backend, &frames[--made]);
    mp_backend_close(backend);
    check_nothing_lives();
}

static void bad_sizes_never_reach_the_driver(void)
{
    static const uint64_t bad[] = {
        0,         1, GRANULE - 1, GRANULE + 4096, (UINT64_C(1) << 40) + GRANULE, UINT64_C(1) << 63,
        UINT64_MAX
    };
    struct mp_backend *backend = open_cuda();
    struct mp_frame frame;

    fake_api.reset();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, bad[i], &frame),
                 MP_ERR_INVALID);
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_FILE, GRANULE, &frame), MP_ERR_INVALID);
    CHECK_EQ(fake_api.calls(NULL), 0);
    /* The largest does, and there is not so much memory. */
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, UINT64_C(1) << 40, &frame),
             MP_ERR_NO_SPACE);
    CHECK(fake_api.calls(NULL) > 0);
    mp_backend_close(backend);
    check_nothing_lives();
}

static void a_device_that_is_not_there_is_refused(void)
{
    struct mp_backend_config config = anywhere;
    struct mp_backend *backend = NULL;

    config.device = 1;
    CHECK_EQ(mp_backend_open("cuda", &config, &backend), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CUDA_DEVICE");
    check_nothing_lives();
}

/* The laws that the fake keeps; without them the tests above prove nothing. */
static void the_fake_sees_what_is_forbidden(void)
{
    struct mp_backend *backend = open_cuda();
    const struct mp_cuda *cuda = NULL;
    struct mp_frame frame;
    mp_cu_ptr at;
    char text[256];
    unsigned op;

    CHECK_EQ(mp_cuda_get(&cuda), MP_OK);
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, 2 * GRANULE, &frame), MP_OK);
    at = (uintptr_t)frame.alias;
    CHECK_EQ(cuda->call.unmap(at, GRANULE), MP_CU_ERROR_INVALID_VALUE); /* a part */
    CHECK_EQ(cuda->call.map(at, 2 * GRANULE, 0, frame.handle, 0), MP_CU_ERROR_INVALID_VALUE);
    CHECK_EQ(cuda->call.map(at, GRANULE, GRANULE, frame.handle, 0), MP_CU_ERROR_INVALID_VALUE);
    CHECK_EQ(cuda->call.address_free(at, 2 * GRANULE), MP_CU_ERROR_INVALID_VALUE);
    CHECK_EQ(fake_api.violations(text, sizeof(text)), 1);
    fake_api.reset();

    op = fake_api.begin(at + 4096, 100, false);
    CHECK_EQ(fake_api.violations(NULL, 0), 0);
    backend->ops->frame_destroy(backend, &frame); /* nobody waited */
    CHECK_EQ(fake_api.violations(text, sizeof(text)), 1);
    CHECK(strstr(text, "unmap of") != NULL && strstr(text, "unfinished read") != NULL);
    fake_api.end(op);
    fake_api.reset();

    op = fake_api.begin(at, 16, true);
    CHECK_EQ(fake_api.violations(text, sizeof(text)), 1);
    CHECK(strstr(text, "write of a hole") != NULL);
    CHECK_EQ(cuda->call.memory_info(&(size_t){ 0 }, &(size_t){ 0 }),
             MP_CU_ERROR_ILLEGAL_ADDRESS); /* the context is gone */
    fake_api.end(op);
    fake_api.lose(0);
    fake_api.reset();
    mp_backend_close(backend);
    check_nothing_lives();
}

/* A child of fork() has no driver any more; it gets that as an error and leaves the parent's memory
 * alone. */
static void a_forked_child_is_refused(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame frame;
    int wait_status = 0;
    pid_t child;

    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, GRANULE, &frame), MP_OK);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct mp_frame other;

        _exit(backend->ops->frame_create(backend, MP_TIER_DEVICE, GRANULE, &other) ==
                          MP_ERR_DEVICE &&
                      strstr(mp_error_last()->text, "NOT_INITIALIZED") != NULL
                  ? 0
                  : 1);
    }
    CHECK_EQ(waitpid(child, &wait_status, 0), child);
    CHECK(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0);
    backend->ops->frame_destroy(backend, &frame);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* ---- other machines */

/* D9, HOST_NUMA by trial: an old driver, or a container without the right. */
static void host_frames_fall_back_to_registered_memory(void)
{
    struct mp_backend *backend = open_cuda();
    struct fakecuda_live live;
    struct mp_frame frame;

    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_HOST, GRANULE, &frame), MP_OK);
    memset(frame.alias, 1, frame.bytes);
    fake_api.live(&live);
    CHECK_EQ(live.pinned, 1);
    CHECK_EQ(live.handles, 0);
    fake_api.fail("cuMemHostUnregister", 0, 999, false);
    backend->ops->frame_destroy(backend, &frame); /* is lost, and reported */
    fake_api.live(&live);
    CHECK_EQ(live.pinned, 1);
    mp_backend_close(backend);
}

static void cuda_is_off(const char *why)
{
    struct mp_backend *backend = NULL;
    const struct mp_cuda *cuda = NULL;

    for (unsigned i = 0; i < 2; i++) { /* the result is kept */
        mp_error_clear();
        CHECK_EQ(mp_cuda_get(&cuda), MP_ERR_UNSUPPORTED);
        CHECK_STR(mp_error_last()->code, "E_CUDA_OFF");
        if (strstr(mp_error_last()->text, why) == NULL)
            CHECK_STR(mp_error_last()->text, why);
    }
    CHECK_EQ(mp_backend_open("cuda", &anywhere, &backend), MP_ERR_UNSUPPORTED);
    CHECK(backend == NULL);
}

int main(int argc, char **argv)
{
    const char *machine = argc > 1 ? argv[1] : "";

    mp_log_set_sink(keep_line, NULL);
    setenv("FAKECUDA_MEMORY", "134217728", 1);
    if (strcmp(machine, "no_driver") == 0) {
        cuda_is_off("libcuda.so.1");
        return 0;
    }
    if (strcmp(machine, "no_device") == 0)
        setenv("FAKECUDA_DEVICES", "0", 1);
    if (strcmp(machine, "init_fails") == 0)
        setenv("FAKECUDA_INIT", "100", 1);
    if (strcmp(machine, "version_fails") == 0)
        setenv("FAKECUDA_FAIL", "cuDriverGetVersion,0,100", 1);
    if (strcmp(machine, "count_fails") == 0)
        setenv("FAKECUDA_FAIL", "cuDeviceGetCount,0,100", 1);
    if (strcmp(machine, "no_host_numa") == 0)
        setenv("FAKECUDA_HOST_NUMA", "0", 1);
    if (strcmp(machine, "numa_id_unknown") == 0)
        setenv("FAKECUDA_NUMA_ID", "-1", 1);
    find_fake();
    if (strcmp(machine, "no_device") == 0) {
        cuda_is_off("sees no device");
        return 0;
    }
    if (strstr(machine, "_fails") != NULL) {
        cuda_is_off("CUDA_ERROR_NO_DEVICE");
        return 0;
    }
    if (strcmp(machine, "no_host_numa") == 0) {
        RUN(host_frames_fall_back_to_registered_memory);
        return 0;
    }
    RUN(facts_are_the_devices);
    RUN(results_become_statuses);
    RUN(frames_come_and_go);
    RUN(a_full_device_says_so);
    RUN(bad_sizes_never_reach_the_driver);
    RUN(a_device_that_is_not_there_is_refused);
    RUN(the_fake_sees_what_is_forbidden);
    RUN(a_forked_child_is_refused);
    return 0;
}
