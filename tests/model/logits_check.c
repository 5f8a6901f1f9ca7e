#include "tests/model/logits_check.h"

#include "tests/support/npy.h"
#include "tests/support/test.h"

#define STEPS 16

#define DATA "tests/data/models/"
const struct logits_model logits_models[LOGITS_MODELS] = {
    { DATA "mixtral-tiny", DATA "mixtral-tiny/expect" },
    { DATA "qwen2moe-tiny", DATA "qwen2moe-tiny/expect" },
    { DATA "qwen3moe-tiny", DATA "qwen3moe-tiny/expect" },
    { DATA "qwen3moe-tiny-nonorm", DATA "qwen3moe-tiny-nonorm/expect" },
    { "models/tiny-moe", DATA "tiny-moe-expect" },
};

static void read_array(const char *dir, const char *batch, const char *name, struct npy *npy)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s_%s.npy", dir, batch, name);
    CHECK(npy_read(path, npy));
}

static void compare(size_t vocab, const struct npy *want, const struct npy *margin,
                    const float *got, struct logits_tally *tally)
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

struct logits_tally logits_tally_exact(void)
{
    return (struct logits_tally){ .bound = 1e-4, .margin = 1e-5f, .percent = 1 };
}

void logits_check(const struct logits_model *model, const char *batch,
                  struct harness_options options, struct logits_tally *tally)
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
    free(got);
    harness_close(&h);
    npy_free(&tokens);
    npy_free(&lens);
    npy_free(&logits);
    npy_free(&margin);
}

void logits_judge(const struct logits_model *model, const struct logits_tally *tally)
{
    fprintf(stderr, "    %s: %zu rows, %zu with a close router, worst error %.2g\n", model->model,
            tally->rows, tally->close_rows, tally->worst);
    CHECK(tally->close_rows * 100 <= tally->rows * tally->percent);
}
