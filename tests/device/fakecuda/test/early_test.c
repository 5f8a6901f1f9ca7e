/*
 * What the driver without a device says of programmatic dependent launch: of texts that it must not
 * load, and of launches whose order nobody keeps.
 */
#include "tests/device/fakecuda/simt.h"
#include "tests/device/fakecuda/test/two_streams.h"

#define BYTES 4096u
#define INVALID_IMAGE 200
#define HEAD "//\n.version 7.8\n.target sm_90\n.address_size 64\n"
#define WAIT "\tgriddepcontrol.wait;\n"
#define LOAD "\tld.global.u32 \t%r1, [%rd1];\n"

static const char *nothing_run(const void *params, struct mp_simt_dim grid,
                               struct mp_simt_dim block, uint32_t shared_bytes)
{
    (void)params;
    (void)grid;
    (void)block;
    (void)shared_bytes;
    return NULL;
}

static void nothing_touches(const void *params, mp_simt_emit *emit, void *ctx)
{
    (void)params;
    (void)emit;
    (void)ctx;
}

#define ENTRY(name, code) ".visible .entry " name "(\n\t.param .u64 p\n)\n{\n" code "\tret;\n}\n"

static const char *const names[] = { "mp_test_good", "mp_test_none", "mp_test_reads",
                                     "mp_test_guarded", "mp_test_comment" };
static const char image[] =
    HEAD ENTRY("mp_test_good", "\tld.param.u64 \t%rd1, [p];\n\tst.shared.u32 \t[%r2], %r3;\n"
                               "\tprefetch.global.L2 [%rd1];\n" WAIT LOAD)
        ENTRY("mp_test_none", LOAD) ENTRY("mp_test_reads", LOAD WAIT)
            ENTRY("mp_test_guarded", "\t@%p1 st.global.u32 \t[%rd1], %r1;\n" WAIT)
                ENTRY("mp_test_comment", "\t//>griddepcontrol.wait;\n" LOAD);

static mp_cu_module module;
static mp_cu_function good, none, reads, guarded, comment;

static mp_cu_result launch(mp_cu_function function, int id, int programmatic)
{
    const struct mp_cu_launch_attribute attribute = { .id = id,
                                                      .value.programmatic = programmatic };
    const struct mp_cu_launch_config config = { 1, 1, 1, 1, 1, 1, 0, a, &attribute, 1 };
    uint64_t p = 0;
    void *list[] = { &p };

    return cu.launch_ex(&config, function, list, NULL);
}

static mp_cu_result early(mp_cu_function function)
{
    return launch(function, MP_CU_LAUNCH_PROGRAMMATIC, 1);
}

static void late(mp_cu_function function)
{
    OK(launch(function, MP_CU_LAUNCH_PROGRAMMATIC, 0));
}

static void set_up(void)
{
    mp_cu_function *const functions[] = { &good, &none, &reads, &guarded, &comment };
    static struct mp_simt_kernel kernels[5];

    open_streams(BYTES);
    for (size_t i = 0; i < 5; i++) {
        kernels[i] = (struct mp_simt_kernel){ names[i], 8, nothing_run, nothing_touches };
        fake_api.kernel(&kernels[i]);
    }
    OK(cu.module_load(&module, image, 0, NULL, NULL));
    for (size_t i = 0; i < 5; i++)
        OK(cu.module_function(functions[i], module, names[i]));
}

static void one_behind_another_is_counted(void)
{
    struct fakecuda_work work;

    late(good);
    OK(early(good));
    OK(early(good));
    late(good);
    fake_api.work(&work);
    CHECK_EQ(work.kernels, 4);
    CHECK_EQ(work.early, 2);
    OK(cu.stream_synchronize(a));
    check_no_violation();
}

static void a_kernel_waits_before_it_touches_memory(void)
{
    mp_cu_function const wrong[] = { none, reads, guarded, comment };
    static const char *const texts[] = {
        "mp_test_none may begin early, and has no griddepcontrol.wait",
        "mp_test_reads touches memory before its griddepcontrol.wait",
        "mp_test_guarded touches memory before its griddepcontrol.wait",
        "mp_test_comment may begin early, and has no griddepcontrol.wait",
    };

    for (size_t i = 0; i < 4; i++) {
        late(good);
        check_no_violation();
        OK(early(wrong[i]));
        check_violation(texts[i]);
    }
    OK(cu.stream_synchronize(a));
}

/* Nothing, a copy, an event, a kernel that does not wait itself, a graph. */
static void there_is_a_kernel_to_wait_for(void)
{
    static const char text[] = "mp_test_good may begin early behind what is no kernel that waits";
    mp_cu_graph_exec exec;
    mp_cu_graph graph;

    late(good);
    OK(cu.copy_to_device(dev, host, BYTES, a));
    OK(early(good));
    check_violation(text);
    OK(cu.event_record(event, a));
    OK(early(good));
    check_violation(text);
    late(none);
    OK(early(good));
    check_violation(text);
    OK(cu.stream_synchronize(a));
    OK(cu.capture_begin(a, MP_CU_CAPTURE_THREAD_LOCAL));
    OK(early(good));
    check_violation(text);
    OK(early(good));
    check_no_violation();
    OK(cu.capture_end(a, &graph));
    OK(cu.graph_instantiate(&exec, graph, 0));
    OK(cu.graph_launch(exec, a));
    OK(early(good));
    check_violation(text);
    OK(cu.stream_synchronize(a));
    OK(cu.graph_exec_destroy(exec));
    OK(cu.graph_destroy(graph));
}

static void an_unknown_attribute_is_invalid(void)
{
    CHECK_EQ(launch(good, 7, 1), MP_CU_ERROR_INVALID_VALUE);
    CHECK_EQ(cu.launch_ex(NULL, good, NULL, NULL), MP_CU_ERROR_INVALID_VALUE);
    check_no_violation();
}

static void a_text_that_waits_is_of_its_version_and_target(void)
{
    static const char *const wrong[] = {
        ".version 7.4\n.target sm_90\n" ENTRY("mp_test_good", WAIT),
        ".version 7.8\n.target sm_75\n" ENTRY("mp_test_good", WAIT),
        ".version 7.8\n.target sm_100\n" ENTRY("mp_test_good", WAIT),
    };
    mp_cu_module m;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK_EQ(cu.module_load(&m, wrong[i], 0, NULL, NULL), INVALID_IMAGE);
    check_no_violation();
}

int main(void)
{
    find_fake();
    set_up();
    RUN(one_behind_another_is_counted);
    RUN(a_kernel_waits_before_it_touches_memory);
    RUN(there_is_a_kernel_to_wait_for);
    RUN(an_unknown_attribute_is_invalid);
    RUN(a_text_that_waits_is_of_its_version_and_target);
    OK(cu.stream_synchronize(a));
    OK(cu.module_unload(module));
    close_streams();
    return 0;
}
