/*
 * Experts in MXFP4 whose nibbles and scales are apart, as in gpt-oss's own checkpoints: logits
 * against transformers', the same bits at every budget, and files that are refused. The bits of the
 * same model as a GGUF file: gguf_test.
 */
#include <sys/stat.h>

#include "engine/repack/repack.h"
#include "tests/model/fails.h"
#include "tests/model/harness.h"
#include "tests/model/rewrite.h"
#include "tests/support/npy.h"
#include "tests/support/tmpdir.h"

#define MODEL "tests/data/models/gpt_oss-mxfp4"
#define STEPS 16

/* Activations are rounded to 8 bits, which transformers does not do: errors of rows, relative to
 * the largest logit. Blocks in another order give errors of about 1. */
#define WORST 0.1
#define MEAN 0.03

static const char config[] =
    "{\"architectures\":[\"GptOssForCausalLM\"],\"vocab_size\":97,\"hidden_size\":64,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
    "\"num_local_experts\":4,\"num_experts_per_tok\":2,\"intermediate_size\":%u,"
    "\"attention_bias\":true,\"sliding_window\":8,\"max_position_embeddings\":512,"
    "\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
    "\"quantization_config\":{\"quant_method\":\"mxfp4\"}}";

static void read_array(const char *batch, const char *name, struct npy *npy)
{
    char path[512];

    snprintf(path, sizeof(path), MODEL "/expect/%s_%s.npy", batch, name);
    CHECK(npy_read(path, npy));
}

struct errors {
    double worst, sum;
    size_t rows;
};

/* Logits of one batch; with the smallest budget they are the same bits as with all experts. */
static void check_batch(const char *batch, struct harness_options options, struct errors *errors)
{
    struct npy tokens, lens, logits;
    float *got[2];

    read_array(batch, "tokens", &tokens);
    read_array(batch, "lens", &lens);
    read_array(batch, "logits", &logits);
    options.sequences = (uint32_t)tokens.dims[0];
    options.ctx = (uint32_t)tokens.dims[1];
    for (int small = 0; small < 2; small++) {
        struct harness h;

        options.budget_bytes = small ? harness_plan(&options, NULL).smallest_bytes : UINT64_MAX;
        options.threads = small ? 2 : 1;
        harness_open(&options, &h);
        got[small] = calloc(logits.count, sizeof(float));
        CHECK(got[small] != NULL);
        CHECK_EQ(harness_run(&h, tokens.i32, tokens.dims[1], lens.i32, options.sequences, STEPS,
                             got[small]),
                 MP_OK);
        harness_close(&h);
    }
    CHECK(memcmp(got[0], got[1], logits.count * sizeof(float)) == 0);
    for (size_t row = 0; row < logits.dims[0] * logits.dims[1]; row++) {
        const double error = npy_error(got[0] + row * logits.dims[2],
                                       logits.f32 + row * logits.dims[2], logits.dims[2]);

        errors->worst = error > errors->worst ? error : errors->worst;
        errors->sum += error;
        errors->rows++;
    }
    free(got[0]);
    free(got[1]);
    npy_free(&tokens);
    npy_free(&lens);
    npy_free(&logits);
}

static void logits_are_those_of_transformers(void)
{
    for (size_t k = 0; mp_kernels_names[k] != NULL; k++) {
        struct harness_options options = harness_defaults(MODEL);
        struct errors errors = { .rows = 0 };

        options.kernels = mp_kernels_names[k];
        if (mp_kernels_find(options.kernels) == NULL)
            continue;
        options.tokens_max = 64;
        check_batch("b1", options, &errors);
        check_batch("b4", options, &errors);
        options.tokens_max = 5;
        check_batch("b4", options, &errors);
        fprintf(stderr, "    %s: worst error %.2g, mean %.2g\n", options.kernels, errors.worst,
                errors.sum / (double)errors.rows);
        CHECK(errors.worst < WORST && errors.sum / (double)errors.rows < MEAN);
    }
}

/* ---- refusals */

static enum { SHAPE, DTYPE, MISSING } fault;

static void damage(struct rewritten *tensor)
{
    if (strcmp(tensor->name, "model.layers.1.mlp.experts.down_proj_scales") != 0)
        return;
    if (fault == SHAPE) {
        tensor->shape[1] /= 2;
        tensor->shape[2] *= 2;
    } else if (fault == DTYPE) {
        tensor->dtype = "I8";
    } else {
        strcat(tensor->name, "x");
    }
}

/* Biases of 33 channels. */
static void widen(struct rewritten *tensor)
{
    if (strstr(tensor->name, "gate_up_proj_bias") == NULL)
        return;
    free(tensor->data);
    tensor->shape[1] = 66;
    tensor->bytes = tensor->shape[0] * tensor->shape[1] * 2;
    tensor->data = calloc(1, tensor->bytes);
    CHECK(tensor->data != NULL);
}

static void check_refused(unsigned ffn, void (*change)(struct rewritten *tensor), const char *code,
                          const char *part)
{
    static unsigned count;
    char path[sizeof(test_tmpdir_path) + 32], text[sizeof(config) + 16];
    struct harness_options options;
    struct harness h;

    snprintf(path, sizeof(path), "%s/m%u", test_tmpdir(), count++);
    snprintf(text, sizeof(text), config, ffn);
    rewrite_model(MODEL, path, text, change);
    options = harness_defaults(path);
    CHECK_EQ(harness_try_open(&options, &h), MP_ERR_MODEL);
    if (strcmp(mp_error_last()->code, code) != 0 || strstr(mp_error_last()->text, part) == NULL) {
        fprintf(stderr, "%s: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
}

static void damaged_files_are_refused(void)
{
    fault = SHAPE;
    check_refused(32, damage, "E_TENSOR_SHAPE",
                  "tensor 'model.layers.1.mlp.experts.down_proj_scales': got shape [4, 32, 2], "
                  "config.json needs [4, 64, 1]");
    fault = DTYPE;
    check_refused(32, damage, "E_TENSOR_DTYPE", "got I8, need U8 as MXFP4 has");
    fault = MISSING;
    check_refused(32, damage, "E_TENSOR_MISSING",
                  "tensor 'model.layers.1.mlp.experts.down_proj_scales' is missing");
    check_refused(33, widen, "E_CONFIG", "experts in MXFP4 of 33 channels and a hidden_size of 64");
}

static void repack_refuses_them(void)
{
    char out[sizeof(test_tmpdir_path) + 32];
    struct mp_repack_config job = { .model = MODEL, .out = out };
    struct mp_repack_report report;

    snprintf(out, sizeof(out), "%s/repacked", test_tmpdir());
    CHECK_FAILS(mp_repack(&job, &report), MP_ERR_MODEL, "E_UNSUPPORTED",
                "experts in MXFP4, as directories of this family have them, are not repacked; "
                "--type bf16 writes a GGUF file that has the same");
}

int main(void)
{
    RUN(logits_are_those_of_transformers);
    RUN(damaged_files_are_refused);
    RUN(repack_refuses_them);
    return 0;
}
