/*
 * The fake driver itself: graphs, what a capture forbids, profiles of machines, processes that
 * share a device, children of fork().
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cpu/types.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/device/fakecuda/test/two_streams.h"
#include "tests/support/log_guard.h"
#include "tests/support/tmpdir.h"

#define BYTES 65536u
#define MIB (1u << 20)
#define IMAGES (2 + 2 * MP_WTYPE_COUNT)

static mp_cu_event join;

static void set_up(void)
{
    open_streams(MIB);
    OK(cu.event_create(&join, MP_CU_EVENT_DISABLE_TIMING));
}

static void tear_down(void)
{
    wait_for_all();
    OK(cu.event_destroy(join));
    close_streams();
}

/* ---- graphs */

/* Two branches of one graph that write the same memory. */
static void branches_are_ordered_by_their_edges(void)
{
    for (int joined = 0; joined < 2; joined++) {
        mp_cu_graph_exec exec;
        mp_cu_graph graph;

        OK(cu.capture_begin(a, MP_CU_CAPTURE_THREAD_LOCAL));
        OK(cu.event_record(event, a));
        OK(cu.stream_wait_event(b, event, 0));
        OK(cu.set_bytes(dev, 1, BYTES, b));
        OK(cu.event_record(join, b));
        if (joined)
            OK(cu.stream_wait_event(a, join, 0));
        OK(cu.set_bytes(dev, 2, BYTES, a));
        if (!joined)
            OK(cu.stream_wait_event(a, join, 0));
        OK(cu.set_bytes(dev, 3, 1, a)); /* behind both */
        OK(cu.capture_end(a, &graph));
        OK(cu.graph_instantiate(&exec, graph, 0));
        OK(cu.graph_destroy(graph));
        OK(cu.graph_launch(exec, a));
        if (!joined)
            check_violation("in branches of one graph");
        wait_for_all();
        check_no_violation();
        OK(cu.graph_exec_destroy(exec));
    }
}

static void a_graph_is_captured_and_replayed(void)
{
    mp_cu_graph_exec exec;
    mp_cu_graph graph;
    int status;

    memset(host, 1, BYTES);
    OK(cu.capture_begin(a, MP_CU_CAPTURE_THREAD_LOCAL));
    OK(cu.capturing(a, &status));
    CHECK_EQ(status, MP_CU_CAPTURE_ACTIVE);
    OK(cu.copy_to_device(dev, host, BYTES, a));
    OK(cu.event_record(event, a));
    OK(cu.stream_wait_event(b, event, 0)); /* a branch on another stream */
    OK(cu.copy_on_device(dev2, dev, BYTES, b));
    OK(cu.event_record(join, b));
    OK(cu.stream_wait_event(a, join, 0));
    OK(cu.set_bytes(dev, 9, 1, a));
    OK(cu.capture_end(a, &graph));
    OK(cu.capturing(a, &status));
    CHECK_EQ(status, MP_CU_CAPTURE_NONE);
    OK(cu.graph_instantiate(&exec, graph, 0));
    OK(cu.graph_destroy(graph));
    for (unsigned i = 0; i < 3; i++) {
        memset(host, (int)i + 1, BYTES);
        OK(cu.graph_launch(exec, a));
        OK(cu.copy_to_host(host + BYTES, dev2, BYTES, a));
        OK(cu.stream_synchronize(a));
        CHECK_EQ(host[2 * BYTES - 1], i + 1);
    }
    OK(cu.graph_launch(exec, a));
    fake_api.settle();
    OK(cu.graph_exec_destroy(exec));
    check_violation("a graph is destroyed");
    wait_for_all();
    CHECK_EQ(cu.graph_launch(exec, a), MP_CU_ERROR_INVALID_HANDLE);
    check_violation("was destroyed");
}

static void begin(int mode)
{
    OK(cu.capture_begin(a, mode));
    OK(cu.copy_to_device(dev, host, BYTES, a));
}

static void end_is(mp_cu_result expected)
{
    mp_cu_graph graph;

    CHECK_EQ(cu.capture_end(a, &graph), expected);
    if (expected == MP_CU_SUCCESS)
        OK(cu.graph_destroy(graph));
}

static void a_capture_forbids_what_waits_or_allocates(void)
{
    mp_cu_ptr more;
    void *pinned;

    begin(MP_CU_CAPTURE_THREAD_LOCAL);
    CHECK_EQ(cu.stream_synchronize(a), 900);
    check_violation("while a stream is captured");
    end_is(901);
    begin(MP_CU_CAPTURE_THREAD_LOCAL);
    CHECK_EQ(cu.alloc(&more, BYTES), 900);
    check_violation("cuMemAlloc_v2 while a stream is captured");
    end_is(901);
    begin(MP_CU_CAPTURE_THREAD_LOCAL);
    CHECK_EQ(cu.stream_query(a), 900);
    check_violation("is asked while");
    end_is(901);
    begin(MP_CU_CAPTURE_RELAXED);
    OK(cu.host_alloc(&pinned, BYTES, 0));
    OK(cu.host_free(pinned));
    OK(cu.stream_synchronize(b));
    end_is(MP_CU_SUCCESS);
    begin(MP_CU_CAPTURE_RELAXED);
    CHECK_EQ(cu.stream_synchronize(a), 900);
    check_violation("is waited for while");
    end_is(901);
    begin(MP_CU_CAPTURE_RELAXED);
    CHECK_EQ(cu.unmap(dev, BYTES), 900);
    check_violation("cuMemUnmap while a stream is captured");
    end_is(901);
    begin(MP_CU_CAPTURE_THREAD_LOCAL);
    OK(cu.event_record(event, a));
    CHECK_EQ(cu.event_query(event), 900);
    check_violation("an event of a capture");
    end_is(MP_CU_SUCCESS);
    CHECK_EQ(cu.capture_end(a, &(mp_cu_graph){ NULL }), MP_CU_ERROR_ILLEGAL_STATE);
    check_no_violation();
}

static void branches_must_come_back(void)
{
    begin(MP_CU_CAPTURE_THREAD_LOCAL);
    OK(cu.event_record(event, a));
    OK(cu.stream_wait_event(b, event, 0));
    OK(cu.set_bytes(dev2, 1, BYTES, b));
    end_is(904);
    check_no_violation();
    OK(cu.set_bytes(dev2, 1, BYTES, b)); /* and are free again */
    OK(cu.event_record(event, b));
    begin(MP_CU_CAPTURE_THREAD_LOCAL);
    CHECK_EQ(cu.stream_wait_event(a, event, 0), 905);
    check_violation("outside of the capture");
    end_is(MP_CU_SUCCESS);
    wait_for_all();
    check_no_violation();
}

/* What a graph touches counts from its launch, as for launches one by one. */
static void a_graph_keeps_the_laws_of_its_parts(void)
{
    mp_cu_graph_exec exec;
    mp_cu_graph graph;
    mp_cu_ptr more;

    OK(cu.alloc(&more, BYTES));
    OK(cu.capture_begin(a, MP_CU_CAPTURE_THREAD_LOCAL));
    OK(cu.set_bytes(more, 1, BYTES, a));
    OK(cu.capture_end(a, &graph));
    OK(cu.graph_instantiate(&exec, graph, 0));
    OK(cu.graph_destroy(graph));
    OK(cu.graph_launch(exec, a));
    OK(cu.set_bytes(more, 2, BYTES, b));
    check_violation("nothing orders");
    wait_for_all();
    OK(cu.graph_launch(exec, a));
    wait_for_all();
    OK(cu.free(more));
    CHECK_EQ(cu.graph_launch(exec, a), MP_CU_ERROR_INVALID_VALUE);
    check_violation("a hole");
    OK(cu.graph_exec_destroy(exec));
}

/* ---- the project's kernels */

/* A block may have what its architecture has; 48 KiB always. */
static void shared_memory_has_an_end(void)
{
    static const struct {
        const char *capability;
        int bytes;
    } most[] = { { "75", 64 << 10 }, { "86", 99 << 10 }, { "80", 163 << 10 } };
    struct mp_cuda_spin p = { 1 };
    void *parameters[] = { &p };
    mp_cu_function spin;
    mp_cu_module module;

    OK(cu.module_load(&module, mp_cuda_image, 0, NULL, NULL));
    OK(cu.module_function(&spin, module, "mp_spin"));
    for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
        const int bytes = most[i].bytes;

        if (strcmp(getenv("FAKECUDA_CAPABILITY"), most[i].capability) != 0)
            continue;
        CHECK_EQ(cu.launch(spin, 1, 1, 1, 1, 1, 1, (48 << 10) + 1, a, parameters, NULL),
                 MP_CU_ERROR_INVALID_VALUE);
        CHECK_EQ(cu.function_set(spin, MP_CU_FUNCTION_SHARED_BYTES_MAX, bytes + 1),
                 MP_CU_ERROR_INVALID_VALUE);
        OK(cu.function_set(spin, MP_CU_FUNCTION_SHARED_BYTES_MAX, bytes));
        OK(cu.launch(spin, 1, 1, 1, 1, 1, 1, (unsigned)bytes, a, parameters, NULL));
        OK(cu.stream_synchronize(a));
    }
    OK(cu.module_unload(module));
    check_no_violation();
}

/* Number of the image that a kernel is in: that of all devices, of tensor cores, of types, and of
 * these for tensor cores. */
static unsigned image_of(int kernel)
{
    for (uint32_t type = 0; type < MP_WTYPE_COUNT; type++) {
        const struct mp_cuda_type *of = mp_cuda_type(type);

        if (of != NULL && of->image != NULL && kernel >= (int)of->first && kernel < (int)of->end)
            return 2 + type;
        if (of != NULL && of->tensor_image != NULL && kernel >= (int)of->tensor &&
            kernel <= (int)of->tensor_down)
            return 2 + MP_WTYPE_COUNT + type;
    }
    return kernel < MP_CUDA_TENSOR_FIRST ? 0 : 1;
}

static void the_images_hold_every_kernel(void)
{
    mp_cu_function functions[MP_CUDA_KERNEL_COUNT];
    const char *images[IMAGES] = { mp_cuda_image, mp_cuda_tensor_image };
    mp_cu_module modules[IMAGES] = { NULL };
    struct mp_cuda_rmsnorm p = { .x = dev, .w = dev2, .out = dev, .width = 4, .tokens = 2 };
    const struct mp_cuda_grid g = mp_cuda_kernel_grid(MP_CUDA_KERNEL_rmsnorm, &p);
    float *x = (float *)host;
    void *parameters[] = { &p };

    for (uint32_t type = 0; type < MP_WTYPE_COUNT; type++) {
        const struct mp_cuda_type *of = mp_cuda_type(type);

        images[2 + type] = of != NULL ? of->image : NULL;
        images[2 + MP_WTYPE_COUNT + type] = of != NULL ? of->tensor_image : NULL;
    }
    for (unsigned i = 0; i < IMAGES; i++) {
        if (images[i] != NULL)
            OK(cu.module_load(&modules[i], images[i], 0, NULL, NULL));
    }
    for (int k = 0; k < MP_CUDA_KERNEL_COUNT; k++)
        OK(cu.module_function(&functions[k], modules[image_of(k)],
                              mp_cuda_kernel_name((enum mp_cuda_kernel)k)));
    for (unsigned i = 1; i < IMAGES; i++) {
        if (modules[i] != NULL)
            OK(cu.module_unload(modules[i]));
    }
    p.x_stride = p.out_stride = 4;
    for (int i = 0; i < 8; i++)
        x[i] = i < 4 ? 2 : -4;
    for (int i = 8; i < 12; i++)
        x[i] = (float)i;
    OK(cu.copy_to_device(dev, x, 32, a));
    OK(cu.copy_to_device(dev2, x + 8, 16, a));
    OK(cu.launch(functions[MP_CUDA_KERNEL_rmsnorm], g.x, g.y, g.z, g.threads, 1, 1, g.shared_bytes,
                 a, parameters, NULL));
    OK(cu.copy_to_host(x + 16, dev, 32, a));
    OK(cu.stream_synchronize(a));
    for (int i = 0; i < 8; i++)
        CHECK(x[16 + i] == (i < 4 ? 1.0f : -1.0f) * (float)(8 + i % 4));
    OK(cu.module_unload(modules[0]));
    check_no_violation();
}

/* ---- how long things take */

/* 64 MiB over a link of 22.8 GB/s take 2.9 ms, also on two streams. */
static void a_profile_takes_its_time(void)
{
    const double start = seconds();

    for (unsigned i = 0; i < 64; i++)
        OK(cu.copy_to_device(i % 2 ? dev : dev2, host, MIB, i % 2 ? a : b));
    wait_for_all();
    CHECK(seconds() - start > 64.0 * MIB / 22.8e9);
    check_no_violation();
}

/* ---- processes */

/* Takes all the memory that it gets, says how much by its exit status, or stays. */
static pid_t take_all(int out, bool stay)
{
    const pid_t child = fork();
    unsigned char taken = 0;
    mp_cu_ptr more;

    CHECK(child >= 0);
    if (child > 0)
        return child;
    find_fake();
    use_device();
    while (cu.alloc(&more, MIB) == MP_CU_SUCCESS)
        taken++;
    CHECK_EQ(write(out, &taken, 1), 1);
    while (stay)
        pause();
    _exit(0);
}

static unsigned taken_by(int in)
{
    unsigned char taken = 0;

    CHECK_EQ(read(in, &taken, 1), 1);
    return taken;
}

/* D15: two processes, one device. Nobody gets what another has; who dies leaves all of it. */
static void processes_share_a_device(void)
{
    char path[4200];
    int ends[2];
    pid_t first, second;

    snprintf(path, sizeof(path), "%s/device", test_tmpdir());
    setenv("FAKECUDA_SHARED", path, 1);
    setenv("FAKECUDA_MEMORY", "67108864", 1);
    CHECK_EQ(pipe(ends), 0);
    first = take_all(ends[1], true);
    CHECK_EQ(taken_by(ends[0]), 64);
    second = take_all(ends[1], false);
    CHECK_EQ(taken_by(ends[0]), 0);
    CHECK_EQ(waitpid(second, NULL, 0), second);
    kill(first, SIGKILL);
    CHECK_EQ(waitpid(first, NULL, 0), first);
    first = take_all(ends[1], true);
    second = take_all(ends[1], true);
    CHECK_EQ(taken_by(ends[0]) + taken_by(ends[0]), 64);
    kill(first, SIGKILL);
    kill(second, SIGKILL);
    CHECK_EQ(waitpid(first, NULL, 0), first);
    CHECK_EQ(waitpid(second, NULL, 0), second);
    close(ends[0]);
    close(ends[1]);
}

/* A child has no driver, also where its parent forked under work. */
static void a_child_has_no_driver(void)
{
    int status = 0;

    for (unsigned i = 0; i < 20; i++) {
        pid_t child;

        OK(cu.set_bytes(dev, 1, MIB, a));
        child = fork();
        CHECK(child >= 0);
        if (child == 0)
            _exit(cu.stream_synchronize(a) == MP_CU_ERROR_NOT_INITIALIZED ? 0 : 1);
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    wait_for_all();
    check_no_violation();
}

/* Who breaks a law has failed, whatever it says itself. */
static void violations_decide_the_exit_status(void)
{
    int status = 0;
    const pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        find_fake();
        set_up();
        OK(cu.set_bytes(dev, 1, MIB, a));
        OK(cu.set_bytes(dev, 1, MIB, b));
        exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 97);
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "graphs";

    if (strcmp(variant, "processes") == 0) {
        RUN(violations_decide_the_exit_status);
        RUN(processes_share_a_device);
        return 0;
    }
    if (strcmp(variant, "profile") == 0)
        setenv("FAKECUDA_PROFILE", "3090", 1);
    if (strncmp(variant, "sm_", 3) == 0)
        setenv("FAKECUDA_CAPABILITY", variant + 3, 1);
    if (strcmp(variant, "no_keys") == 0)
        setenv("FAKECUDA_KEYS", "0", 1);
    find_fake();
    set_up();
    if (strcmp(variant, "profile") == 0) {
        RUN(a_profile_takes_its_time);
    } else if (strncmp(variant, "sm_", 3) == 0) {
        RUN(shared_memory_has_an_end);
    } else {
        RUN(branches_are_ordered_by_their_edges);
        RUN(a_graph_is_captured_and_replayed);
        RUN(a_capture_forbids_what_waits_or_allocates);
        RUN(branches_must_come_back);
        RUN(a_graph_keeps_the_laws_of_its_parts);
        RUN(the_images_hold_every_kernel);
        RUN(a_child_has_no_driver);
    }
    tear_down();
    return 0;
}
