/*
 * Logits against those of Hugging Face transformers in float32, teacher-forced: the prompt and 16
 * further tokens, one sequence ("b1") and four of different lengths together ("b4"), for each
 * fixture directory. tests/data/models/README.md says where the expected values come from.
 *
 * Variants: cpu, with each kernel implementation and one or two threads; own, the kernels of a CUDA
 * device, here the driver without one (tests/device/fakecuda); cublas, where the stand-in for that
 * library (tests/device/fakecublas) multiplies dense weights with more than 8 tokens, and rounds
 * activations to the type of the weights. That is no longer the reference's arithmetic: errors are
 * bounded by the rounding, and a router may choose otherwise where two experts are close. tensor:
 * the same with the device's kernels for tensor cores. assign: with experts that assign policies
 * give to the CPU beside the device.
 */
#include "tests/device/fakecuda/client.h"
#include "tests/model/families.h"
#include "tests/model/harness.h"
#include "tests/support/executors.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
/* Of the assign policies that are tried; each takes the thread sanitizer about a minute. */
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define ASSIGN_MAX 2u
#else
#define ASSIGN_MAX UINT32_MAX
#endif

#define STEPS 16
#define DATA "tests/data/models/"

struct model {
    const char *path, *expect; /* directories */
};

#define X(name) { DATA name, DATA name "/expect" },

static const struct model models[] = { { "models/tiny-moe", DATA "tiny-moe-expect" },
                                       { DATA "mixtral-tiny", DATA "mixtral-tiny/expect" },
                                       { DATA "qwen2moe-tiny", DATA "qwen2moe-tiny/expect" },
                                       { DATA "qwen3moe-tiny", DATA "qwen3moe-tiny/expect" },
                                       { DATA "qwen3moe-tiny-nonorm",
                                         DATA "qwen3moe-tiny-nonorm/expect" },
                                       DEVICE_FAMILY_FIXTURES(X) };

/* Of the CPU only. */
static const struct model families[] = { CPU_FAMILY_FIXTURES(X) };

#undef X

/* Rows where the router may choose another expert are close: there nothing is compared. */
struct tally {
    double bound;   /* largest error of a row */
    float margin;   /* of the router, below which a row is close */
    bool rounds;    /* then a row is close where its error is beyond the bound */
    size_t percent; /* most rows that may be close */

    size_t rows, close_rows;
    double worst;       /* of the other rows */
    uint64_t elsewhere; /* experts that the CPU computed beside a device */
};

static const struct tally in_float32 = { .bound = 1e-4, .margin = 1e-5f, .percent = 1 };
static const struct tally in_bf16 = { .bound = 2e-2, .rounds = true, .percent = 10 };

static void read_array(const char *dir, const char *batch, const char *name, struct npy *npy)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s_%s.npy", dir, batch, name);
    CHECK(npy_read(path, npy));
}

static void compare(size_t vocab, const struct npy *want, const struct npy *margin,
                    const float *got, struct tally *tally)
{
    CHECK_EQ(want->dims[2], vocab);
    for (size_t row = 0; row < want->dims[0] * want->dims[1]; row++) {
        const double error = npy_error(got + row * vocab, want->f32 + row * vocab, vocab);

        tally->rows++;
        if (tally->rounds ? error > tally->bound : margin->f32[row] < tally->margin) {
            tally->close_rows++;
            continue;
        }
        if (!(error <= tally->bound)) {
            fprintf(stderr, "row %zu: error %g exceeds %g\n", row, error, tally->bound);
            exit(1);
        }
        if (error > tally->worst)
            tally->worst = error;
    }
}

/* One batch; sequences and ctx of `options` are the batch's. */
static void check(const struct model *model, const char *batch, struct harness_options options,
                  struct tally *tally)
{
    struct npy tokens, lens, logits, margin;
    struct harness h;
    float *got;

    read_array(model->expect, batch, "tokens", &tokens);
    read_array(model->expect, batch, "lens", &lens);
    read_array(model->expect, batch, "logits", &logits);
    read_array(model->expect, batch, "margin", &margin);
    CHECK_EQ(logits.dims[1], STEPS + 1);

    options.sequences = (uint32_t)tokens.dims[0];
    options.ctx = (uint32_t)tokens.dims[1];
    harness_open(&options, &h);
    got = calloc(logits.count, sizeof(float));
    CHECK(got != NULL);
    CHECK_EQ(harness_run(&h, tokens.i32, tokens.dims[1], lens.i32, options.sequences, STEPS, got),
             MP_OK);
    compare(h.model.vocab, &logits, &margin, got, tally);
    CHECK_EQ(mp_engine_counters(h.engine)->invalid_decisions, 0);
    tally->elsewhere += mp_engine_counters(h.engine)->elsewhere;
    free(got);
    harness_close(&h);
    if (options.backend != NULL)
        check_nothing_lives();
    npy_free(&tokens);
    npy_free(&lens);
    npy_free(&logits);
    npy_free(&margin);
}

/* One sequence; four; four in batches of 5 tokens. */
static void check_batches(const struct model *model, struct harness_options options,
                          struct tally *tally)
{
    options.tokens_max = 64;
    options.threads = 1;
    check(model, "b1", options, tally);
    options.threads = options.backend == NULL ? 2 : 1;
    check(model, "b4", options, tally);
    if (options.gemm == MP_GEMM_TENSOR)
        return; /* they are for more than 8 tokens */
    options.tokens_max = 5;
    options.threads = 1;
    check(model, "b4", options, tally);
}

static void judge(const struct model *model, const struct tally *tally)
{
    fprintf(stderr, "    %s: %zu rows, %zu with a close router, worst error %.2g\n", model->path,
            tally->rows, tally->close_rows, tally->worst);
    CHECK(tally->close_rows * 100 <= tally->rows * tally->percent);
}

static void check_kernels(const struct model *model)
{
    struct tally tally = in_float32;

    for (size_t k = 0; mp_kernels_names[k] != NULL; k++) {
        struct harness_options options = harness_defaults(model->path);

        options.kernels = mp_kernels_names[k];
        if (mp_kernels_find(options.kernels) != NULL &&
            mp_kernels_find(options.kernels)->math == MP_MATH_F32)
            check_batches(model, options, &tally);
    }
    judge(model, &tally);
}

static void logits_equal_the_reference(void)
{
    for (size_t m = 0; m < MP_ARRAY_LEN(models); m++)
        check_kernels(&models[m]);
}

static void logits_of_families_equal_the_reference(void)
{
    for (size_t m = 0; m < MP_ARRAY_LEN(families); m++)
        check_kernels(&families[m]);
}

/* By the name of what they have not got. */
static void devices_refuse_families(void)
{
    for (size_t m = 0; m < MP_ARRAY_LEN(families); m++) {
        struct harness_options options = harness_defaults(families[m].path);
        struct harness h;

        options.backend = "cuda";
        CHECK_EQ(harness_try_open(&options, &h), MP_ERR_MODEL);
        CHECK_STR(mp_error_last()->code, "E_UNSUPPORTED");
        CHECK(strstr(mp_error_last()->text, "which devices do not compute; use --device cpu"));
    }
}

static enum mp_gemm_choice gemm = MP_GEMM_OWN;

static void logits_on_the_device_equal_the_reference(void)
{
    const bool rounds = gemm != MP_GEMM_OWN;
    /* Those for tensor cores: a model of BF16 and one of F16. */
    const size_t first = gemm == MP_GEMM_TENSOR ? 1 : 0;
    const size_t end = gemm == MP_GEMM_TENSOR ? 3 : MP_ARRAY_LEN(models);
    double worst = 0;

    for (size_t m = first; m < end; m++) {
        struct harness_options options = harness_defaults(models[m].path);
        struct tally tally = rounds ? in_bf16 : in_float32;

        options.backend = "cuda";
        options.gemm = gemm;
        check_batches(&models[m], options, &tally);
        judge(&models[m], &tally);
        worst = tally.worst > worst ? tally.worst : worst;
    }
    CHECK(!rounds || worst > 1e-3); /* so it was not the kernels that do not */
    CHECK(fake_api.calls("cuLaunchKernel") > 100 * (end - first));
}

/* What a load takes is worth weighing against the CPU, so both sides get something. */
static void logits_of_assign_policies_equal_the_reference(void)
{
    static const char *const names[] = { "queue",    "greedy",    "two-pointer",
                                         "presched", "threshold", "resident" };
    const struct model *model = &models[0];
    struct harness_options options = harness_defaults(model->path);

    options.backend = "cuda";
    options.graphs = true;
    options.threads = 2;
    options.policies.profile = "gate-lru";
    options.budget_bytes = harness_plan(&options, NULL).full_bytes / 3;
    options.deterministic = true; /* costs stay as they are */
    options.costs = (struct mp_costs){ TEST_THREE_EXECUTORS,
                                       .load_ns = 4000,
                                       .executors[TEST_CPU].fixed_ns = 3000,
                                       .executors[TEST_CPU].token_ns = 500,
                                       .executors[TEST_DEVICE].fixed_ns = 500,
                                       .executors[TEST_DEVICE].token_ns = 50,
                                       .layer_ns = 5000 };
    for (size_t i = 0; i < MP_ARRAY_LEN(names) && i < ASSIGN_MAX; i++) {
        struct tally tally = in_float32;

        options.policies.policy[MP_POLICY_ASSIGN] = names[i];
        check(model, "b1", options, &tally);
        judge(model, &tally);
        CHECK(tally.elsewhere > 0);
    }
}

int main(int argc, char **argv)
{
    CHECK_EQ(argc, 2);
    if (strcmp(argv[1], "cpu") == 0) {
        RUN(logits_equal_the_reference);
        RUN(logits_of_families_equal_the_reference);
        return 0;
    }
    gemm = strcmp(argv[1], "cublas") == 0   ? MP_GEMM_CUBLAS
           : strcmp(argv[1], "tensor") == 0 ? MP_GEMM_TENSOR
                                            : MP_GEMM_OWN;
    find_fake();
    if (strcmp(argv[1], "assign") == 0) {
        RUN(logits_of_assign_policies_equal_the_reference);
        return 0;
    }
    RUN(logits_on_the_device_equal_the_reference);
    if (gemm == MP_GEMM_OWN)
        RUN(devices_refuse_families);
    return 0;
}
