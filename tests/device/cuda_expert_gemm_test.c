/*
 * Experts with many rows by cuBLAS, here by what stands for it (tests/device/fakecublas), on the
 * driver without a device: values near those of the kernels, and bits that do not depend on
 * budgets, addressings or on which of the device's two ways reads the weights.
 */
#include <math.h>

#include "engine/forward/cuda/device.h"
#include "tests/model/harness.h"
#include "tests/model/repack_check.h"
#include "tests/device/fakecublas/client.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

#define MODEL "tests/data/models/qwen3moe-tiny"
#define STEPS 2
#define VOCAB 160
#define LOGITS (4 * (STEPS + 1) * VOCAB)

static struct npy tokens, lens;
static struct mp_assign_ops plan;
static uint32_t plan_to = MP_GPU_DEVICE;

static struct harness_options many(const char *model)
{
    struct harness_options options = harness_defaults(model);

    options.backend = "cuda";
    options.sequences = (uint32_t)tokens.dims[0];
    options.ctx = (uint32_t)tokens.dims[1];
    options.policies.profile = "lru";
    options.gemm = MP_GEMM_CUBLAS;
    options.deterministic = true;
    return options;
}

/* Every other expert is read in place, the rest goes to plan_to; or all do if that is the CPU. */
static void plan_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                        uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = facts->experts[i] % 2 && plan_to != MP_GPU_CPU ? MP_GPU_IN_PLACE : plan_to;
}

static enum mp_status run(const struct harness_options *options, bool planned, float *logits,
                          struct mp_space_plan *space)
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
    if (space != NULL)
        mp_engine_plan(h.engine, space);
    memset(logits, 0, LOGITS * sizeof(*logits));
    status =
        harness_run(&h, tokens.i32, tokens.dims[1], lens.i32, options->sequences, STEPS, logits);
    harness_close(&h);
    check_nothing_lives();
    return status;
}

static void must_run(const struct harness_options *options, bool planned, float *logits,
                     struct mp_space_plan *space)
{
    if (run(options, planned, logits, space) != MP_OK) {
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
}

static void values_are_near_those_of_the_kernels(void)
{
    static float own[LOGITS], by_cublas[LOGITS];
    struct harness_options options = many(MODEL);
    double worst = 0;

    must_run(&options, false, by_cublas, NULL);
    options.gemm = MP_GEMM_OWN;
    must_run(&options, false, own, NULL);
    for (size_t i = 0; i < LOGITS; i++)
        worst = fmax(worst, fabs((double)by_cublas[i] - (double)own[i]));
    fprintf(stderr, "    worst difference %.2g\n", worst);
    CHECK(worst < 0.1);
}

static void who_computes_follows_from_the_choice_alone(void)
{
    static float logits[LOGITS];
    struct harness_options options = many(MODEL);

    fake_api.fail("later:mp_scatter_rows", 3, 1, false);
    CHECK_EQ(run(&options, false, logits, NULL), MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_CUDA");
    fake_api.reset();
    options.gemm = MP_GEMM_OWN;
    fake_api.fail("later:mp_scatter_rows", 3, 1, false);
    must_run(&options, false, logits, NULL);
    fake_api.reset();
}

/* False: the run makes no product of that number. Else it failed as it must. */
static bool product_fails(const struct harness_options *options, unsigned number)
{
    static float logits[LOGITS];
    enum mp_status status;

    (void)fake_cublas_fail("cublasGemmEx", number, 13);
    status = run(options, true, logits, NULL);
    if (!fake_cublas_fail("", 0, 0))
        return false;
    CHECK_EQ(status, MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_CUBLAS");
    return true;
}

/* How many products a run makes, by halving. */
static unsigned products_of(const struct harness_options *options)
{
    unsigned low = 0, high = 1024;

    while (low < high) {
        const unsigned middle = (low + high) / 2;

        if (product_fails(options, middle))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Any product fails, those of experts among them; the next run is right again. */
static void products_of_experts_fail_too(void)
{
    static float want[LOGITS], got[LOGITS];
    struct harness_options options = many(MODEL);
    unsigned all, others;

    must_run(&options, true, want, NULL);
    all = products_of(&options);
    plan_to = MP_GPU_CPU;
    others = products_of(&options);
    plan_to = MP_GPU_DEVICE;
    fprintf(stderr, "    %u products, %u of them of experts\n", all, all - others);
    CHECK(all >= others + 6);
    for (unsigned k = 0; k < all; k += 9)
        CHECK(product_fails(&options, k));
    must_run(&options, true, got, NULL);
    CHECK(memcmp(want, got, sizeof(want)) == 0);
}

/* After the start nothing of the device is asked for, whichever stream multiplies first. */
static void all_memory_is_taken_at_the_start(void)
{
    static float logits[LOGITS];
    struct harness_options options = many(MODEL);
    struct harness h;

    harness_open(&options, &h);
    plan = *h.engine->policies.assign_ops;
    plan.assign = plan_assign;
    h.engine->policies.assign_ops = &plan;
    fake_api.fail("cuMemAlloc_v2", 0, MP_CU_ERROR_OUT_OF_MEMORY, true);
    CHECK_EQ(
        harness_run(&h, tokens.i32, tokens.dims[1], lens.i32, options.sequences, STEPS, logits),
        MP_OK);
    fake_api.reset();
    harness_close(&h);
    check_nothing_lives();
}

/* Each allocation of the start finds no room. What cuBLAS would have taken is done without, and
 * given back, where nobody insists on it; all else is an error of a start that leaves nothing. */
static void without_room_for_cublas_the_kernels_multiply(void)
{
    static float want[LOGITS], got[LOGITS];
    struct harness_options options = many(MODEL);
    unsigned without = 0;

    options.gemm = MP_GEMM_OWN;
    must_run(&options, false, want, NULL);
    options.gemm = MP_GEMM_AUTO;
    for (unsigned n = 0;; n++) {
        struct harness h = { 0 };
        enum mp_status status;
        uint64_t made;

        mp_error_clear();
        fake_api.reset();
        made = fake_api.calls("cuMemAlloc_v2");
        fake_api.fail("cuMemAlloc_v2", n, MP_CU_ERROR_OUT_OF_MEMORY, false);
        status = harness_try_open(&options, &h);
        made = fake_api.calls("cuMemAlloc_v2") - made;
        fake_api.reset();
        if (status != MP_OK) {
            CHECK_EQ(status, MP_ERR_NO_SPACE);
        } else if (h.engine->device->gemm != NULL &&
                   strcmp(mp_gemm_name(h.engine->device->gemm), "own") == 0) {
            without++;
            CHECK_EQ(h.engine->device->gemm_x, 0);
            CHECK_EQ(h.engine->device->gemm_up, 0);
            CHECK_EQ(harness_run(&h, tokens.i32, tokens.dims[1], lens.i32, options.sequences, STEPS,
                                 got),
                     MP_OK);
            CHECK(memcmp(want, got, sizeof(want)) == 0);
        }
        if (status == MP_OK)
            harness_close(&h);
        check_nothing_lives();
        if (made <= n)
            break;
    }
    /* Twice when it is tried, twice for each stream, two buffers. */
    CHECK_EQ(without, 8);
}

static void bits_do_not_depend_on_budgets(const char *model)
{
    static float want[LOGITS], got[LOGITS];
    struct harness_options options = many(model);
    struct mp_space_plan space;

    must_run(&options, false, want, &space);
    for (unsigned i = 0; i < 6; i++) {
        options.budget_bytes =
            space.smallest_bytes + (space.full_bytes - space.smallest_bytes) * (i / 2) / 3;
        options.addressing = i & 1 ? MP_ADDRESSING_WINDOW : MP_ADDRESSING_TABLE;
        must_run(&options, i >= 4, got, NULL);
        CHECK(memcmp(want, got, sizeof(want)) == 0);
    }
}

static void bits_of_whole_experts_do_not_depend_on_budgets(void)
{
    bits_do_not_depend_on_budgets(MODEL);
}

static void bits_of_slices_do_not_depend_on_budgets(void)
{
    char dir[4200] = "";
    struct mp_repack_config config = repack_config(MODEL, dir);

    snprintf(dir, sizeof(dir), "%s/sliced", test_tmpdir());
    config.slices = 2;
    CHECK_EQ(repack_must(&config).slices, 2);
    bits_do_not_depend_on_budgets(dir);
}

int main(void)
{
    CHECK_EQ(setenv("FAKECUDA_GRANULE", "4096", 1), 0);
    find_fake();
    CHECK(npy_read(MODEL "/expect/b4_tokens.npy", &tokens));
    CHECK(npy_read(MODEL "/expect/b4_lens.npy", &lens));
    RUN(values_are_near_those_of_the_kernels);
    RUN(who_computes_follows_from_the_choice_alone);
    RUN(products_of_experts_fail_too);
    RUN(all_memory_is_taken_at_the_start);
    RUN(without_room_for_cublas_the_kernels_multiply);
    RUN(bits_of_whole_experts_do_not_depend_on_budgets);
    RUN(bits_of_slices_do_not_depend_on_budgets);
    return 0;
}
