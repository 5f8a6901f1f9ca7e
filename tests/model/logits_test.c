/*
 * Logits on the CPU against Hugging Face's (tests/model/logits_check.h), for each fixture
 * directory, kernel implementation and number of threads.
 */
#include "tests/model/logits_check.h"
#include "tests/support/test.h"

static void check_one(const struct logits_model *model, const char *batch, const char *kernels,
                      uint32_t threads, uint32_t tokens_max, struct logits_tally *tally)
{
    struct harness_options options = harness_defaults(model->model);

    options.tokens_max = tokens_max;
    options.threads = threads;
    options.kernels = kernels;
    logits_check(model, batch, options, tally);
}

static void logits_equal_the_reference(void)
{
    for (size_t m = 0; m < LOGITS_MODELS; m++) {
        const struct logits_model *model = &logits_models[m];
        struct logits_tally tally = logits_tally_exact();

        for (size_t k = 0; mp_kernels_names[k] != NULL; k++) {
            if (mp_kernels_find(mp_kernels_names[k]) == NULL)
                continue;
            check_one(model, "b1", mp_kernels_names[k], 1, 64, &tally);
            check_one(model, "b4", mp_kernels_names[k], 2, 64, &tally);
            check_one(model, "b4", mp_kernels_names[k], 1, 5, &tally);
        }
        logits_judge(model, &tally);
    }
}

int main(void)
{
    RUN(logits_equal_the_reference);
    return 0;
}
