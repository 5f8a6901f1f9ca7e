/*
 * Models with quantised weights, from the file to the logits: for each type a GGUF file of random
 * blocks gives the same bits at every budget, with any number of threads and however the prompt is
 * cut and batched; its numbers are those of plain C, and of the same values stored as floats but
 * for what rounding activations to 8 bits takes; types may differ by matrix and by layer. On a
 * device, whose kernels round no activations, the bits are those of the same values stored as
 * floats; it refuses by name what it has no kernels for. With those for tensor cores, which round
 * weights and activations to F16, logits are near those, and of the same bits at every budget.
 */
#include <math.h>

#include "engine/forward/cuda/device.h"
#include "engine/model/types.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/fails.h"
#include "tests/model/gguf/to_gguf.h"
#include "tests/model/harness.h"
#include "tests/model/rewrite.h"
#include "tests/support/tmpdir.h"

#define SOURCE "tests/data/models/qwen3moe-tiny"
#define PROMPT 9
#define STEPS 4
#define VOCAB 160

/* The number of layers is put in. */
static const char config_form[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"vocab_size\":160,\"hidden_size\":256,"
    "\"num_hidden_layers\":%u,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":32,"
    "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":256,"
    "\"norm_topk_prob\":true,\"max_position_embeddings\":512,\"rope_theta\":1000000.0,"
    "\"rms_norm_eps\":1e-6,\"bos_token_id\":157,\"eos_token_id\":159,"
    "\"tie_word_embeddings\":false}";

static const int32_t tokens[PROMPT + STEPS] = { 5, 70, 33, 91, 42, 8, 64, 12, 7, 90, 11, 3, 150 };

/* What make_blocks() fills matrices with; a second type for some of odd layers, as quantisers
 * choose them; MP_WTYPE_COUNT: of none. */
static enum mp_wtype type_now, down_type_now, up_type_now = MP_WTYPE_COUNT,
                                              router_type_now = MP_WTYPE_COUNT;
static bool as_floats;
static uint32_t layers_now = 4, steps_now = STEPS; /* fewer on a device, which takes its time */
static uint32_t lcg;

static unsigned char next_byte(void)
{
    lcg = lcg * 1664525 + 1013904223;
    return (unsigned char)(lcg >> 24);
}

/*
 * Random blocks whose 16-bit floats have small exponents, so that a layer changes the stream by
 * little: else one rounding more or less chooses other experts. Embeddings are 16 times as large.
 */
static void fill_blocks(unsigned char *p, enum mp_wtype type, size_t count, bool embedding)
{
    const struct mp_wtype_info *info = mp_wtype_info(type);
    const bool k = info->block_elements == 256;
    const unsigned exponent = (k                                                  ? 1
                               : type == MP_WTYPE_Q8_0 || type == MP_WTYPE_IQ4_NL ? 2
                                                                                  : 5) +
                              (embedding ? 4 : 0);
    const size_t half = type == MP_WTYPE_Q2_K   ? 80
                        : type == MP_WTYPE_Q3_K ? 108
                        : type == MP_WTYPE_Q6_K ? 208
                                                : 0;
    const bool two = type == MP_WTYPE_Q4_1 || type == MP_WTYPE_Q5_1 || type == MP_WTYPE_Q2_K ||
                     type == MP_WTYPE_Q4_K || type == MP_WTYPE_Q5_K;

    for (size_t at = 0; at < count / info->block_elements * info->block_bytes;
         at += info->block_bytes) {
        for (size_t i = 0; i < info->block_bytes; i++)
            p[at + i] = next_byte();
        for (size_t i = half + 1; i < half + (two ? 4 : 2); i += 2)
            p[at + i] = (unsigned char)((p[at + i] & 0x83) | exponent << 2);
        if (type == MP_WTYPE_MXFP4)
            p[at] = (unsigned char)(117 + p[at] % 4 + (embedding ? 4 : 0));
    }
}

static bool ends_in(const struct rewritten *tensor, const char *tail)
{
    const size_t length = strlen(tensor->name), bytes = strlen(tail);

    return length >= bytes && strcmp(tensor->name + length - bytes, tail) == 0;
}

static void put_floats(struct rewritten *tensor, const float *values, size_t count)
{
    free(tensor->data);
    tensor->bytes = count * sizeof(*values);
    tensor->data = malloc(tensor->bytes);
    CHECK(tensor->data != NULL);
    memcpy(tensor->data, values, tensor->bytes);
    tensor->dtype = "F32";
}

static void put_vector(struct rewritten *tensor, size_t count)
{
    float values[256];

    for (size_t i = 0; i < count; i++)
        values[i] = 0.5f + (float)next_byte() / 256;
    tensor->shape[0] = count;
    put_floats(tensor, values, count);
}

static void put_blocks(struct rewritten *tensor, enum mp_wtype type)
{
    const size_t count = tensor->shape[0] * tensor->shape[1];
    unsigned char *blocks = malloc(mp_wtype_bytes(type, count));
    float *values = malloc(count * sizeof(*values));

    CHECK(blocks != NULL && values != NULL);
    fill_blocks(blocks, type, count, strstr(tensor->name, "embed") != NULL);
    if (as_floats) {
        mp_wtype_info(type)->convert(values, blocks, count);
        put_floats(tensor, values, count);
        free(blocks);
    } else {
        free(tensor->data);
        tensor->data = blocks;
        tensor->bytes = mp_wtype_bytes(type, count);
        tensor->dtype = mp_dtype_name(mp_dtype_of(type));
    }
    free(values);
}

static void make_blocks(struct rewritten *tensor)
{
    const bool kv = ends_in(tensor, "k_proj.weight") || ends_in(tensor, "v_proj.weight");
    const bool odd =
        strstr(tensor->name, "layers.1.") != NULL || strstr(tensor->name, "layers.3.") != NULL;

    lcg = 1; /* the same whatever the order of tensors */
    for (const char *c = tensor->name; *c != '\0'; c++)
        lcg = (lcg ^ (unsigned char)*c) * 16777619;
    if (tensor->dims == 1) {
        put_vector(tensor,
                   ends_in(tensor, "q_norm.weight") || ends_in(tensor, "k_norm.weight") ? 32 : 256);
        return;
    }
    tensor->shape[1] = 256;
    if (ends_in(tensor, "mlp.gate.weight") && router_type_now != MP_WTYPE_COUNT) {
        put_blocks(tensor, router_type_now);
        return;
    }
    if (ends_in(tensor, "mlp.gate.weight")) {
        float router[8 * 256];

        for (size_t i = 0; i < 8 * 256; i++)
            router[i] = ((float)next_byte() - 127.5f) / 2048;
        put_floats(tensor, router, 8 * 256);
        return;
    }
    if (strstr(tensor->name, "embed") == NULL && strstr(tensor->name, "lm_head") == NULL)
        tensor->shape[0] = kv ? 128 : 256;
    if (odd && (ends_in(tensor, "down_proj.weight") || ends_in(tensor, "v_proj.weight")))
        put_blocks(tensor, down_type_now);
    else if (ends_in(tensor, "up_proj.weight") && up_type_now != MP_WTYPE_COUNT)
        put_blocks(tensor, up_type_now);
    else
        put_blocks(tensor, type_now);
}

/* A file of these types; `floats`: of their values. */
static const char *model_of(enum mp_wtype type, enum mp_wtype down, bool floats)
{
    static unsigned count;
    static char dir[sizeof(test_tmpdir_path) + 32], path[4][sizeof(dir) + 8];
    struct to_gguf job = { .model = dir, .arch = "qwen3moe", .align_bytes = 32, .parts = 1 };
    char config[sizeof(config_form) + 16];

    snprintf(config, sizeof(config), config_form, layers_now);
    snprintf(dir, sizeof(dir), "%s/m%u", test_tmpdir(), count);
    job.path = path[count % 4];
    snprintf(path[count % 4], sizeof(path[0]), "%s.gguf", dir);
    count++;
    type_now = type;
    down_type_now = down;
    as_floats = floats;
    rewrite_model(SOURCE, dir, config, make_blocks);
    to_gguf(&job);
    return job.path;
}

/* Of one sequence, or of three with shorter prompts, of which the first is that one. */
static void logits_of(const struct harness_options *options, uint32_t sequences, float *logits)
{
    static const int32_t lens[3] = { PROMPT, PROMPT - 4, 1 };
    int32_t all[3 * (PROMPT + STEPS)];
    float *out = malloc(sequences * (steps_now + 1) * VOCAB * sizeof(*out));
    struct harness_options own = *options;
    struct harness h;

    CHECK(out != NULL);
    for (size_t i = 0; i < MP_ARRAY_LEN(all); i++)
        all[i] = tokens[i % (PROMPT + STEPS)];
    own.sequences = sequences;
    harness_open(&own, &h);
    CHECK_EQ(h.model.vocab, VOCAB);
    CHECK_EQ(harness_run(&h, all, PROMPT + STEPS, lens, sequences, steps_now, out), MP_OK);
    harness_close(&h);
    memcpy(logits, out, (steps_now + 1) * VOCAB * sizeof(*out));
    free(out);
}

static void check_same(const struct harness_options *options, uint32_t sequences, const float *want)
{
    float got[(STEPS + 1) * VOCAB];

    logits_of(options, sequences, got);
    CHECK(memcmp(want, got, (steps_now + 1) * VOCAB * sizeof(*got)) == 0);
}

/* Largest difference, as a share of the largest value. */
static double distance(const float *a, const float *b)
{
    double off = 0, largest = 0;

    for (size_t i = 0; i < (steps_now + 1) * VOCAB; i++) {
        CHECK(isfinite(a[i]) && isfinite(b[i]));
        off = fmax(off, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    CHECK(largest > 0);
    return off / largest;
}

/* want: logits that no budget, no number of threads and no cut of the prompt changes. */
static void check_bits(struct harness_options options, float *want)
{
    const struct mp_space_plan plan = harness_plan(&options, NULL);

    logits_of(&options, 1, want);
    for (unsigned i = 0; i < 4; i++) { /* every budget with other threads and chunks */
        options.budget_bytes =
            plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * i / 3;
        options.threads = 1 + i % 3;
        options.tokens_max = i == 0 ? 1 : i == 1 ? 4 : 512;
        check_same(&options, 1, want);
        options.tokens_max = i % 2 == 0 ? 5 : 512;
        check_same(&options, 3, want);
    }
}

/* One type of each kind that tiles tell apart: blocks of 32 or 256, scales of 32 or 16 columns,
 * with or without what is added. */
static bool is_kind(enum mp_wtype type)
{
    return type == MP_WTYPE_Q8_0 || type == MP_WTYPE_Q4_1 || type == MP_WTYPE_Q4_K ||
           type == MP_WTYPE_IQ4_XS || type == MP_WTYPE_Q6_K || type == MP_WTYPE_Q2_K;
}

/* Class amx has bits of its own, which keep as well. */
static void check_tiles(struct harness_options options, enum mp_wtype type, const float *want)
{
    static float tiles[(STEPS + 1) * VOCAB];

    options.kernels = "amx";
    if (mp_kernels_find(options.kernels) == NULL || !is_kind(type))
        return;
    check_bits(options, tiles);
    fprintf(stderr, ", amx %.1e", distance(tiles, want));
    CHECK(distance(tiles, want) < 2e-2);
}

static void check_model(enum mp_wtype type, enum mp_wtype down)
{
    static float want[(STEPS + 1) * VOCAB], other[(STEPS + 1) * VOCAB];
    struct harness_options options = harness_defaults(model_of(type, down, false));
    double off;

    check_bits(options, want);
    options.kernels = "ref";
    logits_of(&options, 1, other);
    off = distance(want, other);
    fprintf(stderr, "  %s, %s: plain C %.1e", mp_wtype_name(type), mp_wtype_name(down), off);
    CHECK(off < 2e-2); /* a last bit may round an activation to the next step, and so on */
    options.kernels = NULL;
    check_tiles(options, type, want);
    options.kernels = "ref";
    options.model = model_of(type, down, true);
    logits_of(&options, 1, other);
    off = distance(want, other);
    fprintf(stderr, ", floats %.1e\n", off);
    CHECK(off > 1e-6 && off < 0.1);
}

static void every_type_runs(void)
{
    for (int type = MP_WTYPE_PLAIN_COUNT; type < MP_WTYPE_COUNT; type++)
        check_model((enum mp_wtype)type, (enum mp_wtype)type);
}

/* As quantisers mix them: other down projections and values in some layers, so slots of two sizes.
 */
static void types_differ_by_matrix_and_layer(void)
{
    check_model(MP_WTYPE_Q4_K, MP_WTYPE_Q6_K);
    check_model(MP_WTYPE_Q2_K, MP_WTYPE_Q8_0);
}

/* ---- on a device */

static struct harness_options on_device(const char *model)
{
    struct harness_options options = harness_defaults(model);

    options.backend = "cuda";
    options.tokens_max = 5;
    options.graphs = true;
    options.policies.profile = "lru";
    return options;
}

/* The logits of blocks are those of the floats that they stand for, bit by bit: with the least
 * budget and the greatest, with graphs and without, alone and in a batch, the prompt in parts. */
static void check_device(enum mp_wtype type, enum mp_wtype down)
{
    static float want[(STEPS + 1) * VOCAB], cpu[(STEPS + 1) * VOCAB];
    const char *blocks = model_of(type, down, false), *values = model_of(type, down, true);
    struct harness_options options = on_device(values), host = harness_defaults(values);
    struct mp_space_plan plan;
    double exact, rounded;

    logits_of(&options, 1, want);
    host.kernels = "ref";
    logits_of(&host, 1, cpu);
    exact = distance(want, cpu);
    host.kernels = NULL;
    host.model = options.model = blocks;
    logits_of(&host, 1, cpu);
    rounded = distance(want, cpu);
    fprintf(stderr, "  %s, %s: from floats on the CPU %.1e, from blocks there %.1e\n",
            mp_wtype_name(type), mp_wtype_name(down), exact, rounded);
    CHECK(exact < 1e-5);                    /* sums in another order */
    CHECK(rounded > 1e-5 && rounded < 0.1); /* activations that are rounded there */
    plan = harness_plan(&options, NULL);
    options.budget_bytes = plan.smallest_bytes;
    check_same(&options, 1, want);
    if (type == down)
        return;
    options.budget_bytes = plan.full_bytes;
    options.graphs = false;
    options.tokens_max = 4;
    check_same(&options, 3, want);
}

static void devices_have_the_bits_of_floats(void)
{
    check_device(MP_WTYPE_Q8_0, MP_WTYPE_Q8_0);
    check_device(MP_WTYPE_MXFP4, MP_WTYPE_MXFP4);
    check_device(MP_WTYPE_Q4_K, MP_WTYPE_Q6_K);
    check_device(MP_WTYPE_Q4_0, MP_WTYPE_Q5_0);
    check_device(MP_WTYPE_IQ4_XS, MP_WTYPE_Q5_K);
    check_device(MP_WTYPE_Q2_K, MP_WTYPE_Q3_K);
    check_device(MP_WTYPE_Q4_1, MP_WTYPE_Q5_1);
    check_device(MP_WTYPE_IQ4_NL, MP_WTYPE_IQ4_NL);
    check_device(MP_WTYPE_IQ2_XXS, MP_WTYPE_IQ2_XS);
    check_device(MP_WTYPE_IQ3_XXS, MP_WTYPE_IQ3_S);
    check_device(MP_WTYPE_IQ2_S, MP_WTYPE_IQ2_S);
}

/* Steps are graphs also where layers are of different types. */
static void graphs_take_types_that_differ_by_layer(void)
{
    const struct harness_options options = on_device(model_of(MP_WTYPE_Q4_K, MP_WTYPE_Q6_K, false));
    static const int32_t lens[1] = { 1 };
    float logits[(STEPS + 1) * VOCAB];
    struct harness h;

    harness_open(&options, &h);
    CHECK_EQ(harness_run(&h, tokens, PROMPT + STEPS, lens, 1, STEPS, logits), MP_OK);
    CHECK(mp_device_graphs_counted(h.engine->device).complete > 0);
    harness_close(&h);
}

static void check_ways(enum mp_wtype type, enum mp_wtype down)
{
    static float want[(STEPS + 1) * VOCAB];
    struct harness_options options = on_device(model_of(type, down, false));
    const struct mp_space_plan plan = harness_plan(&options, NULL);
    struct fakecuda_work work;

    options.tokens_max = 512;
    logits_of(&options, 1, want);
    fake_api.reset();
    for (unsigned way = 0; way < HARNESS_WAYS; way++) {
        harness_way(&options, &plan, way);
        options.tokens_max = way % 3 == 0 ? 5 : 512;
        check_same(&options, way % 5 == 0 ? 3 : 1, want);
    }
    mp_gpu_configure(&(struct mp_gpu_config){ .pdl = 0 });
    fake_api.work(&work);
    CHECK(work.early > 0);
    CHECK(fake_api.calls("cuGraphLaunch") > 0);
    CHECK(harness_plan(&options, NULL).window_bytes > 0); /* of the last way */
}

static void no_way_of_a_device_changes_bits(void)
{
    check_ways(MP_WTYPE_Q8_0, MP_WTYPE_Q8_0);
    check_ways(MP_WTYPE_Q4_K, MP_WTYPE_Q6_K);
}

static void check_refused(enum mp_wtype type, const char *text)
{
    char model[sizeof(test_tmpdir_path) + 40] = "";
    struct harness_options options;
    struct harness h;

    snprintf(model, sizeof(model), "%s", model_of(type, type, false));
    if (router_type_now != MP_WTYPE_COUNT) /* the directory: files have routers in F32 */
        *strstr(model, ".gguf") = '\0';
    options = on_device(model);
    CHECK_FAILS(harness_try_open(&options, &h), MP_ERR_MODEL, "E_UNSUPPORTED", text);
}

static void devices_refuse_gates_that_are_no_ups_and_routers(void)
{
    up_type_now = MP_WTYPE_Q4_K;
    check_refused(MP_WTYPE_Q8_0, "the model has experts whose gates are q8_0 and whose ups are "
                                 "q4_k, devices need one type for both; use --device cpu");
    up_type_now = MP_WTYPE_COUNT;
    router_type_now = MP_WTYPE_Q8_0;
    check_refused(MP_WTYPE_Q8_0, "the model has routers of type q8_0, for which devices have no "
                                 "kernels; use --device cpu");
    router_type_now = MP_WTYPE_COUNT;
}

/* ---- on tensor cores */

/* So many that some experts have more than 8 rows, and others have not. */
#define LONG_PROMPT 32

/* Of a long prompt and a step. */
static enum mp_status long_logits(const struct harness_options *options, float *logits)
{
    static const int32_t lens[1] = { LONG_PROMPT };
    int32_t all[LONG_PROMPT + 1];
    enum mp_status status;
    struct harness h;

    for (size_t i = 0; i < MP_ARRAY_LEN(all); i++)
        all[i] = tokens[i % (PROMPT + STEPS)];
    harness_open(options, &h);
    status = harness_run(&h, all, LONG_PROMPT + 1, lens, 1, 1, logits);
    harness_close(&h);
    return status;
}

static struct harness_options on_tensor_cores(const char *model)
{
    struct harness_options options = on_device(model);

    options.tokens_max = 512;
    options.gemm = MP_GEMM_TENSOR;
    return options;
}

/* Near the kernels that round nothing; the same bits at each budget, with graphs and without. */
static void check_tensor(enum mp_wtype type, enum mp_wtype down)
{
    static float own[2 * VOCAB], want[2 * VOCAB], got[2 * VOCAB];
    struct harness_options options = on_tensor_cores(model_of(type, down, false));
    const struct mp_space_plan plan = harness_plan(&options, NULL);
    double off;

    CHECK_EQ(long_logits(&options, want), MP_OK);
    options.gemm = MP_GEMM_OWN;
    CHECK_EQ(long_logits(&options, own), MP_OK);
    off = distance(want, own);
    fprintf(stderr, "  %s, %s: from the kernels in F32 %.1e\n", mp_wtype_name(type),
            mp_wtype_name(down), off);
    CHECK(off > 1e-6 && off < 2e-3);
    options.gemm = MP_GEMM_TENSOR;
    options.graphs = false;
    options.budget_bytes = plan.smallest_bytes;
    CHECK_EQ(long_logits(&options, got), MP_OK);
    CHECK(memcmp(want, got, sizeof(want)) == 0);
    if (type == down)
        return;
    options.graphs = true;
    options.budget_bytes = (plan.smallest_bytes + plan.full_bytes) / 2;
    CHECK_EQ(long_logits(&options, got), MP_OK);
    CHECK(memcmp(want, got, sizeof(want)) == 0);
}

static void tensor_cores_are_near_the_other_kernels(void)
{
    check_tensor(MP_WTYPE_Q8_0, MP_WTYPE_Q8_0);
    check_tensor(MP_WTYPE_MXFP4, MP_WTYPE_MXFP4);
    check_tensor(MP_WTYPE_Q4_K, MP_WTYPE_Q6_K);
    check_tensor(MP_WTYPE_Q4_0, MP_WTYPE_Q5_0);
    check_tensor(MP_WTYPE_IQ4_XS, MP_WTYPE_Q5_K);
    check_tensor(MP_WTYPE_Q2_K, MP_WTYPE_Q3_K);
    check_tensor(MP_WTYPE_Q4_1, MP_WTYPE_Q5_1);
    check_tensor(MP_WTYPE_IQ4_NL, MP_WTYPE_IQ4_NL);
    check_tensor(MP_WTYPE_IQ2_XXS, MP_WTYPE_IQ2_XS);
    check_tensor(MP_WTYPE_IQ3_XXS, MP_WTYPE_IQ3_S);
    check_tensor(MP_WTYPE_IQ2_S, MP_WTYPE_IQ2_S);
}

/* A kernel that fails where it is launched says that it is. */
static bool is_launched(const struct harness_options *options, const char *kernel)
{
    float logits[2 * VOCAB];
    char plan[64];
    bool launched;

    snprintf(plan, sizeof(plan), "later:mp_%s", kernel);
    fake_api.reset();
    fake_api.fail(plan, 0, 1, false);
    launched = long_logits(options, logits) != MP_OK;
    fake_api.reset();
    return launched;
}

/* Many tokens and experts with many rows by tensor cores, each product by the kernel of its type;
 * experts with few rows, and steps of one token, by the others. Modules are loaded for those who
 * ask for them. */
static void tensor_cores_are_used_where_they_are_wanted(void)
{
    static const char *const always[] = { "experts_up8_q4_k", "experts_down8_q4_k",
                                          "experts_down8_q6_k", "gemv1_q4_k" };
    static const char *const own[] = { "gemm_q4_k", "gemm_q6_k", "experts_up_q4_k",
                                       "experts_down_q4_k", "experts_down_q6_k" };
    static const char *const tensor[] = { "tensor_q4_k", "tensor_q6_k", "tensor_up_q4_k",
                                          "tensor_down_q4_k", "tensor_down_q6_k" };
    struct harness_options options = on_tensor_cores(model_of(MP_WTYPE_Q4_K, MP_WTYPE_Q6_K, false));
    static const enum mp_gemm_choice choices[] = { MP_GEMM_TENSOR, MP_GEMM_OWN, MP_GEMM_AUTO };
    struct harness h;

    for (size_t c = 0; c < MP_ARRAY_LEN(choices); c++) {
        const bool wants = choices[c] == MP_GEMM_TENSOR;

        options.gemm = choices[c];
        fake_api.reset();
        harness_open(&options, &h); /* the main module, one of each type, and tensor cores' */
        CHECK_EQ(fake_api.calls("cuModuleLoadDataEx"), wants ? 6 : 3);
        harness_close(&h);
        if (choices[c] == MP_GEMM_AUTO)
            continue;
        for (size_t i = 0; i < MP_ARRAY_LEN(tensor); i++) {
            CHECK_EQ(is_launched(&options, tensor[i]), wants);
            CHECK_EQ(is_launched(&options, own[i]), !wants);
        }
        for (size_t i = 0; i < MP_ARRAY_LEN(always) && wants; i++)
            CHECK(is_launched(&options, always[i]));
    }
}

static void a_driver_that_refuses_those_of_a_type_is_an_error(void)
{
    const struct harness_options options =
        on_tensor_cores(model_of(MP_WTYPE_Q8_0, MP_WTYPE_Q8_0, false));
    struct harness h;

    fake_api.reset();
    fake_api.fail("cuModuleLoadDataEx", 3, 209, false);
    CHECK(harness_try_open(&options, &h) != MP_OK);
    CHECK_STR(mp_error_last()->code, "E_CUDA");
    fake_api.reset();
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "tensor") == 0) {
        find_fake();
        layers_now = 2;
        steps_now = 1;
        RUN(tensor_cores_are_near_the_other_kernels);
        RUN(tensor_cores_are_used_where_they_are_wanted);
        RUN(a_driver_that_refuses_those_of_a_type_is_an_error);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "ways") == 0) {
        CHECK_EQ(setenv("FAKECUDA_GRANULE", "16384", 1), 0); /* windows need units not smaller */
        find_fake();
        layers_now = 2;
        steps_now = 2;
        RUN(no_way_of_a_device_changes_bits);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "cuda") == 0) {
        layers_now = 2;
        steps_now = 2;
        RUN(devices_have_the_bits_of_floats);
        RUN(graphs_take_types_that_differ_by_layer);
        RUN(devices_refuse_gates_that_are_no_ups_and_routers);
        return 0;
    }
    RUN(every_type_runs);
    RUN(types_differ_by_matrix_and_layer);
    return 0;
}
