/*
 * Products by the kernels for tensor cores (MOEPAGER_CUDA_GEMM=tensor) on the driver without a
 * device, where mma.sync is made after its documentation: logits near those of the other kernels,
 * the same bits at each budget, addressing and residency, with graphs and without, and whoever
 * reads the experts; nobody gets them who has not asked for them, and a device that cannot have
 * them says so (variant "old").
 */
#include <math.h>

#include "engine/forward/cuda/device.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/harness.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define MODEL "tests/data/models/qwen3moe-tiny"
#define STEPS 1
#define VOCAB 160
#define LOGITS (4 * (STEPS + 1) * VOCAB)

static struct npy tokens, lens;
static struct mp_assign_ops plan;

static struct harness_options with(enum mp_gemm_choice gemm)
{
    struct harness_options options = harness_defaults(MODEL);

    options.backend = "cuda";
    options.sequences = (uint32_t)tokens.dims[0];
    options.ctx = (uint32_t)tokens.dims[1];
    options.policies.profile = "lru";
    options.gemm = gemm;
    options.deterministic = true;
    return options;
}

/* Every other expert is read in place. */
static void plan_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                        uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = facts->experts[i] % 2 ? MP_GPU_IN_PLACE : MP_GPU_DEVICE;
}

static enum mp_status run(const struct harness_options *options, bool planned, float *logits)
{
    enum mp_status status;
    struct harness h;

    harness_open(options, &h);
    CHECK_EQ(h.model.vocab, VOCAB);
    if (planned) {
        plan = *h.engine->policies.assign_ops;
        plan.assign = plan_assign;
        h.engine->policies.assign_ops = &plan;
    }
    memset(logits, 0, LOGITS * sizeof(*logits));
    status =
        harness_run(&h, tokens.i32, tokens.dims[1], lens.i32, options->sequences, STEPS, logits);
    harness_close(&h);
    check_nothing_lives();
    return status;
}

static void values_are_near_those_of_the_other_kernels(void)
{
    static float own[LOGITS], tensor[LOGITS];
    struct harness_options options = with(MP_GEMM_OWN);
    double worst = 0;

    CHECK_EQ(run(&options, false, own), MP_OK);
    options.gemm = MP_GEMM_TENSOR;
    CHECK_EQ(run(&options, false, tensor), MP_OK);
    for (size_t i = 0; i < LOGITS; i++)
        worst = fmax(worst, fabs((double)tensor[i] - (double)own[i]));
    fprintf(stderr, "    worst difference %.2g\n", worst);
    CHECK(worst < 0.1 && worst > 1e-4);
}

/* Their module is loaded for those who ask for it; a kernel that fails where it is launched says
 * that it is. */
static void they_run_where_they_are_wanted_alone(void)
{
    static const char *const kernels[] = { "later:mp_tensor_bf16", "later:mp_tensor_up_bf16",
                                           "later:mp_tensor_down_bf16" };
    static const enum mp_gemm_choice others[] = { MP_GEMM_OWN, MP_GEMM_AUTO };
    struct harness_options options = with(MP_GEMM_TENSOR);
    static float logits[LOGITS];
    struct harness h;

    for (size_t i = 0; i < MP_ARRAY_LEN(kernels); i++) {
        fake_api.reset();
        fake_api.fail(kernels[i], 0, 1, false);
        CHECK_EQ(run(&options, false, logits), MP_ERR_DEVICE);
        CHECK_EQ(fake_api.calls("cuModuleLoadDataEx"), 2);
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(others); i++) {
        fake_api.reset();
        options.gemm = others[i];
        harness_open(&options, &h);
        CHECK_EQ(fake_api.calls("cuModuleLoadDataEx"), 1);
        harness_close(&h);
    }
}

static void bits_do_not_depend_on_budgets(void)
{
    static float want[LOGITS], got[LOGITS];
    struct harness_options options = with(MP_GEMM_TENSOR);
    const struct mp_space_plan space = harness_plan(&options, NULL);

    CHECK_EQ(run(&options, false, want), MP_OK);
    for (unsigned way = 0; way < HARNESS_WAYS; way++) {
        harness_way(&options, &space, way);
        CHECK_EQ(run(&options, !options.graphs, got), MP_OK);
        if (memcmp(want, got, sizeof(want)) != 0) {
            fprintf(stderr, "other bits in way %u\n", way);
            exit(1);
        }
    }
    mp_gpu_configure(&(struct mp_gpu_config){ .pdl = 0 });
}

static void a_driver_that_refuses_them_is_an_error(void)
{
    const struct harness_options options = with(MP_GEMM_TENSOR);
    struct harness h;

    fake_api.fail("cuModuleLoadDataEx", 1, 209, false);
    CHECK(harness_try_open(&options, &h) != MP_OK);
    CHECK_STR(mp_error_last()->code, "E_CUDA");
    fake_api.reset();
    check_nothing_lives();
}

static void an_old_device_says_that_it_has_none(void)
{
    struct harness_options options = with(MP_GEMM_TENSOR);
    struct harness h;

    CHECK_EQ(harness_try_open(&options, &h), MP_ERR_UNSUPPORTED);
    CHECK_STR(mp_error_last()->code, "E_TENSOR_OFF");
    CHECK(strstr(mp_error_last()->text, "compute capability 7.5") != NULL);
    check_nothing_lives();
    options.gemm = MP_GEMM_OWN;
    harness_open(&options, &h);
    harness_close(&h);
    check_nothing_lives();
}

int main(int argc, char **argv)
{
    const bool old = argc > 1 && strcmp(argv[1], "old") == 0;

    CHECK_EQ(setenv("FAKECUDA_GRANULE", "4096", 1), 0);
    if (old)
        CHECK_EQ(setenv("FAKECUDA_CAPABILITY", "75", 1), 0);
    find_fake();
    CHECK(npy_read(MODEL "/expect/b4_tokens.npy", &tokens));
    CHECK(npy_read(MODEL "/expect/b4_lens.npy", &lens));
    if (old) {
        RUN(an_old_device_says_that_it_has_none);
        return 0;
    }
    RUN(values_are_near_those_of_the_other_kernels);
    RUN(they_run_where_they_are_wanted_alone);
    RUN(bits_do_not_depend_on_budgets);
    RUN(a_driver_that_refuses_them_is_an_error);
    return 0;
}
