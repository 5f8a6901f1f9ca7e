/*
 * Logits of the engine on a CUDA device, here the driver without one (tests/fakecuda), against
 * Hugging Face transformers in float32, teacher-forced, for each fixture directory: the bound and
 * the cases are those of tests/engine/logits_test.c, which holds the CPU's kernels to the same
 * values.
 *
 * Variant cublas: the stand-in for that library (tests/fakecublas) multiplies dense weights with
 * more than 8 tokens, and rounds activations to the type of the weights. That is no longer the
 * reference's arithmetic: errors are bounded by the rounding, and a router may choose otherwise
 * where two experts are close, in at most one row of ten.
 *
 * Rows whose router margin is under 1e-5 may legitimately choose another expert; they are counted
 * apart and may be at most 1 %.
 */
#include "tests/engine/harness.h"
#include "tests/fakecuda/client.h"
#include "tests/npy.h"
#include "tests/test.h"

#define STEPS 16
#define BOUND 1e-4
#define BOUND_ROUNDED 2e-2

static bool cublas;

static const struct {
    const char *model, *expect;
} models[] = {
    { "tests/data/models/mixtral-tiny", "tests/data/models/mixtral-tiny/expect" },
    { "tests/data/models/qwen2moe-tiny", "tests/data/models/qwen2moe-tiny/expect" },
    { "tests/data/models/qwen3moe-tiny", "tests/data/models/qwen3moe-tiny/expect" },
    { "tests/data/models/qwen3moe-tiny-nonorm", "tests/data/models/qwen3moe-tiny-nonorm/expect" },
    { "models/tiny-moe", "tests/data/models/tiny-moe-expect" },
};

static void read_array(const char *dir, const char *batch, const char *name, struct npy *npy)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s_%s.npy", dir, batch, name);
    CHECK(npy_read(path, npy));
}

struct tally {
    size_t rows, close_rows;
    double worst;
};

static void compare(const struct harness *h, const struct npy *want, const struct npy *margin,
                    const float *got, struct tally *tally)
{
    const size_t vocab = h->model.vocab;

    for (size_t row = 0; row < want->dims[0] * want->dims[1]; row++) {
        const double error = npy_error(got + row * vocab, want->f32 + row * vocab, vocab);

        tally->rows++;
        if (cublas ? error > BOUND_ROUNDED : margin->f32[row] < 1e-5f) {
            tally->close_rows++;
            continue;
        }
        if (!(error <= (cublas ? BOUND_ROUNDED : BOUND))) {
            fprintf(stderr, "row %zu: error %g exceeds %g\n", row, error, BOUND);
            exit(1);
        }
        if (error > tally->worst)
            tally->worst = error;
    }
}

static void check_one(size_t m, const char *batch, uint32_t tokens_max, struct tally *tally)
{
    struct harness_options options = harness_defaults(models[m].model);
    struct npy tokens, lens, logits, margin;
    struct harness h;
    float *got;

    read_array(models[m].expect, batch, "tokens", &tokens);
    read_array(models[m].expect, batch, "lens", &lens);
    read_array(models[m].expect, batch, "logits", &logits);
    read_array(models[m].expect, batch, "margin", &margin);
    options.backend = "cuda";
    options.gemm = cublas ? MP_GEMM_CUBLAS : MP_GEMM_OWN;
    options.sequences = (uint32_t)tokens.dims[0];
    options.tokens_max = tokens_max;
    options.ctx = (uint32_t)tokens.dims[1];
    harness_open(&options, &h);
    got = calloc(logits.count, sizeof(float));
    CHECK(got != NULL);
    CHECK_EQ(harness_run(&h, tokens.i32, tokens.dims[1], lens.i32, options.sequences, STEPS, got),
             MP_OK);
    compare(&h, &logits, &margin, got, tally);
    free(got);
    harness_close(&h);
    check_nothing_lives();
    npy_free(&tokens);
    npy_free(&lens);
    npy_free(&logits);
    npy_free(&margin);
}

static void logits_on_the_device_equal_the_reference(void)
{
    double worst = 0;

    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        struct tally tally = { 0 };

        check_one(m, "b1", 64, &tally);
        check_one(m, "b4", 64, &tally);
        check_one(m, "b4", 5, &tally);
        fprintf(stderr, "    %s: %zu rows, %zu with a close router, worst error %.2g\n",
                models[m].model, tally.rows, tally.close_rows, tally.worst);
        CHECK(tally.close_rows * 100 <= tally.rows * (cublas ? 10 : 1));
        worst = tally.worst > worst ? tally.worst : worst;
    }
    CHECK(!cublas || worst > 1e-3); /* so it was not the kernels */
    CHECK(fake_api.calls("cuLaunchKernel") > 1000);
}

int main(int argc, char **argv)
{
    cublas = argc > 1 && strcmp(argv[1], "cublas") == 0;
    find_fake();
    RUN(logits_on_the_device_equal_the_reference);
    return 0;
}
