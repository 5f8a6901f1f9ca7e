/*
 * Logits of the engine on a CUDA device, here the driver without one (tests/device/fakecuda),
 * against Hugging Face transformers in float32, teacher-forced, for each fixture directory: the
 * bound and the cases are those of tests/model/logits_test.c, which holds the CPU's kernels to the
 * same values (tests/model/logits_check.h).
 *
 * Variant cublas: the stand-in for that library (tests/device/fakecublas) multiplies dense weights
 * with more than 8 tokens, and rounds activations to the type of the weights. That is no longer the
 * reference's arithmetic: errors are bounded by the rounding, and a router may choose otherwise
 * where two experts are close, in at most one row of ten.
 *
 * Rows whose router margin is under 1e-5 may legitimately choose another expert; they are counted
 * apart and may be at most 1 %.
 */
#include "tests/model/logits_check.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/test.h"

static bool cublas;

static void check_one(const struct logits_model *model, const char *batch, uint32_t tokens_max,
                      struct logits_tally *tally)
{
    struct harness_options options = harness_defaults(model->model);

    options.backend = "cuda";
    options.gemm = cublas ? MP_GEMM_CUBLAS : MP_GEMM_OWN;
    options.tokens_max = tokens_max;
    logits_check(model, batch, options, tally);
    check_nothing_lives();
}

static void logits_on_the_device_equal_the_reference(void)
{
    double worst = 0;

    for (size_t m = 0; m < LOGITS_MODELS; m++) {
        const struct logits_model *model = &logits_models[m];
        struct logits_tally tally = logits_tally_exact();

        if (cublas)
            tally = (struct logits_tally){ .bound = 2e-2, .rounds = true, .percent = 10 };
        check_one(model, "b1", 64, &tally);
        check_one(model, "b4", 64, &tally);
        check_one(model, "b4", 5, &tally);
        logits_judge(model, &tally);
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
