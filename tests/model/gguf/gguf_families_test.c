/*
 * Families whose GGUF files are built otherwise than their directories: latent attention in two
 * tensors, delta networks with heads in turns, gate and up in one tensor, divisors of frequencies.
 * The same model gives the same bits; what is broken is refused with a line that names it; every
 * call fails once.
 */
#include <math.h>

#include "tests/model/fails.h"
#include "tests/model/gguf/twin_runs.h"
#include "tests/model/harness.h"
#include "tests/model/rewrite.h"
#include "tests/support/fault/wrap.h"
#include "vmm/format/gguf.h"

static const char *const no_biases[] = { "\"attention_bias\": true", "\"attention_bias\": false",
                                         NULL };

/* Layers of two kinds. */
static void gemma4_gives_the_same_bits(void)
{
    static const char *const pairs[] = { "\"attention_bias\": true", "\"attention_bias\": false",
                                         "\"linear\"", "\"default\"", NULL };

    twin_check(DATA "gemma4_text-a", "gemma4", NULL, NULL);
    twin_check(DATA "gemma4_text-b", "gemma4", twin_config(DATA "gemma4_text-b", pairs), NULL);
}

/* Some converters write them so for any family. */
static void gate_and_up_may_be_one_tensor(void)
{
    const struct twin_how how = { .fused = true };

    twin_check(QWEN3, "qwen3moe", NULL, &how);
    twin_check(DATA "deepseek-a", "deepseek", NULL, &how);
}

static void delta_networks_give_the_same_bits(void)
{
    /* As files can say: the second layer has no experts there, and weights are divided. */
    static const char *const one[] = { "\"attention_bias\": true",
                                       "\"attention_bias\": false",
                                       "\"num_hidden_layers\": 4",
                                       "\"num_hidden_layers\": 1",
                                       "\"norm_topk_prob\": false",
                                       "\"norm_topk_prob\": true",
                                       "[\n    1\n  ]",
                                       "[]",
                                       NULL };
    const char *next = DATA "qwen3_next-b", *newer = DATA "qwen3_5_moe_text-b";

    for (unsigned older = 0; older < 2; older++) {
        const struct twin_how how = { .whole_latent = older > 0 };

        twin_check(DATA "qwen3_next-a", "qwen3next", NULL, &how);
        twin_check(next, "qwen3next", twin_config(next, one), &how);
    }
    twin_check(DATA "qwen3_5_moe_text-a", "qwen35moe", NULL, NULL);
    twin_check(newer, "qwen35moe", twin_config(newer, no_biases), NULL);
}

static void short_convolutions_give_the_same_bits(void)
{
    twin_check(DATA "lfm2_moe-a", "lfm2moe", NULL, NULL);
}

static void latent_attention_gives_the_same_bits(void)
{
    for (unsigned older = 0; older < 2; older++) {
        const struct twin_how how = { .whole_latent = older > 0 };

        twin_check(DATA "deepseek_v2-b", "deepseek2", NULL, &how);
        twin_check(DATA "deepseek_v3-a", "deepseek2", NULL, &how);
        twin_check(DATA "deepseek_v3-b", "deepseek2", NULL, &how);
        twin_check(DATA "glm4_moe_lite-a", "deepseek2", NULL, &how);
    }
}

/* A larger model in F32, in which blocks of Q8_0 hold what makes keys and values exactly: whole
 * numbers with a largest one of 127 in each. */
static void fill_latent(struct rewritten *tensor)
{
    const bool q = strstr(tensor->name, "q_proj") != NULL;
    const bool o = strstr(tensor->name, "o_proj") != NULL;
    const bool kv = strstr(tensor->name, "kv_b_proj") != NULL;
    size_t count = 1;
    float *out;

    tensor->shape[0] = q ? 160 : kv ? 256 : tensor->shape[0];
    tensor->shape[1] = o ? 128 : tensor->shape[1];
    for (uint32_t d = 0; d < tensor->dims; d++)
        count *= tensor->shape[d];
    out = malloc(count * sizeof(*out));
    CHECK(out != NULL);
    if (!q && !o && !kv) {
        memcpy(out, tensor->data, tensor->bytes < 4 * count ? tensor->bytes : 4 * count);
        if (tensor->bytes < 4 * count)
            mp_kernels_ref.convert(out, tensor->data, MP_WTYPE_BF16, count);
    }
    for (size_t i = 0; i < count && (q || o || kv); i++) {
        const int number = (int)((i * 2654435761u >> 7) % 253) - 126;
        const bool first = kv && (i / 32 % 64 == 0 || (i / 32 % 64 >= 32 && i % 32 == 0));

        out[i] = (first ? 127 : (float)number) / (kv ? 512 : 1024);
    }
    free(tensor->data);
    tensor->data = out;
    tensor->bytes = 4 * count;
    tensor->dtype = "F32";
}

/* The matrix of keys is multiplied as it stands, with activations of 8 bits. */
static void blocks_of_latent_attention_stay_near(void)
{
    static const char *const pairs[] = { "\"qk_nope_head_dim\": 16", "\"qk_nope_head_dim\": 32",
                                         "\"v_head_dim\": 16", "\"v_head_dim\": 32", NULL };
    const char *twin = in_tmpdir("blocks");
    struct to_gguf job = plain(twin, "deepseek2", in_tmpdir("blocks.gguf"));
    double squares = 0, errors = 0;
    size_t bytes, count;
    float *want, *got;

    rewrite_model(DATA "deepseek_v3-a", twin, twin_config(DATA "deepseek_v3-a", pairs),
                  fill_latent);
    want = twin_logits(twin, UINT64_MAX, &bytes);
    job.latent_blocks = true;
    to_gguf(&job);
    got = twin_logits(job.path, UINT64_MAX, &count);
    CHECK_EQ(count, bytes);
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        squares += (double)want[i] * want[i];
        errors += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    }
    CHECK(errors > 0 && sqrt(errors / squares) < 0.03);
    free(want);
    free(got);
}

/* ---- divisors of frequencies */

#define HALF 8 /* of a head */

/* As converters compute them from llama3's scaling. */
static void llama3_divisors(float *out)
{
    const double factor = 8, slow = 1, fast = 4, original = 64;

    for (unsigned i = 0; i < HALF; i++) {
        const double wave = 6.283185307179586 * pow(1e6, i / (double)HALF);
        const double part = (original / wave - slow) / (fast - slow);

        out[i] = (float)(wave < original / fast   ? 1
                         : wave > original / slow ? factor
                                                  : 1 / ((1 - part) / factor + part));
    }
}

/* The same as a list in config.json gives the same bits; llama3's scaling gives nearly the same. */
static void divisors_give_the_same_bits(void)
{
    char list[256] = "", scaling[768];
    float divisors[HALF];
    const struct twin_how how = { .divisors = divisors };
    const char *pairs[] = { "\"rope_scaling\": null", scaling, NULL };
    struct to_gguf job = plain(QWEN3, "qwen3moe", in_tmpdir("llama3.gguf"));
    const char *twin = in_tmpdir("llama3");
    size_t bytes, count;
    float *want, *got;

    llama3_divisors(divisors);
    CHECK(divisors[0] == 1 && divisors[HALF - 1] == 8 && divisors[1] > 1 && divisors[1] < 8);
    for (unsigned i = 0; i < HALF; i++)
        snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%.9g", i > 0 ? ", " : "",
                 (double)divisors[i]);
    snprintf(scaling, sizeof(scaling),
             "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [%s], \"long_factor\": "
             "[%s], \"original_max_position_embeddings\": 512, \"attention_factor\": 1}",
             list, list);
    twin_check(QWEN3, "qwen3moe", twin_config(QWEN3, pairs), &how);

    snprintf(scaling, sizeof(scaling),
             "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
             "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}");
    twin_directory(QWEN3, twin, twin_config(QWEN3, pairs));
    job.model = twin;
    job.divisors = divisors;
    to_gguf(&job);
    want = twin_logits(twin, UINT64_MAX, &bytes);
    got = twin_logits(job.path, UINT64_MAX, &count);
    CHECK_EQ(count, bytes);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        CHECK(fabsf(got[i] - want[i]) < 1e-4f);
    free(want);
    free(got);
}

/* Files that multiply sines and cosines, and divide no frequency. */
static void a_magnitude_gives_the_same_bits(void)
{
    static const char *const pairs[] = {
        "\"rope_scaling\": null",
        "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1, 1, 1, 1, 1], "
        "\"long_factor\": [1, 1, 1, 1, 1, 1, 1, 1], \"attention_factor\": 1.25}",
        NULL
    };
    struct to_gguf job = plain(QWEN3, "qwen3moe", in_tmpdir("large.gguf"));
    const char *twin = in_tmpdir("large"), *model = in_tmpdir("not-large");
    size_t bytes, count;
    float *want, *got;

    twin_directory(QWEN3, twin, twin_config(QWEN3, pairs));
    want = twin_logits(twin, UINT64_MAX, &bytes);
    twin_directory(QWEN3, model, NULL);
    job.model = model;
    job.change =
        (struct gguf_change){ "qwen3moe.rope.scaling.attn_factor", MP_GGUF_F32, 1.25, NULL };
    to_gguf(&job);
    got = twin_logits(job.path, UINT64_MAX, &count);
    CHECK_EQ(count, bytes);
    CHECK(memcmp(got, want, bytes) == 0);
    free(want);
    free(got);
}

/* ---- refusals */

struct refusal {
    const char *model, *arch;
    struct gguf_change change;
    const char *code, *part;
};

static void check_refused(const struct refusal *refusal, const float *divisors,
                          const char *const *lists)
{
    struct to_gguf job = plain(refusal->model, refusal->arch, in_tmpdir("wrong.gguf"));
    struct harness_options options = harness_defaults(job.path);
    struct harness h;

    job.change = refusal->change;
    job.divisors = divisors;
    for (size_t i = 0; lists != NULL && i < MP_ARRAY_LEN(job.lists); i++)
        job.lists[i] = lists[i];
    to_gguf(&job);
    CHECK_EQ(harness_try_open(&options, &h), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, refusal->code);
    if (strstr(mp_error_last()->text, refusal->part) == NULL)
        CHECK_STR(mp_error_last()->text, refusal->part);
}

#define V3 DATA "deepseek_v3-b", "deepseek2"
#define NEXT DATA "qwen3_next-a", "qwen3next"
#define GEMMA DATA "gemma4_text-a", "gemma4"
#define U32 MP_GGUF_U32
#define LEFT_OUT -1

static void broken_files_are_refused_by_name(void)
{
    static const struct refusal cases[] = {
        { V3, { "deepseek2.attention.kv_lora_rank", U32, 0, NULL }, "E_CONFIG", "need 2 to 768" },
        { V3, { "deepseek2.attention.kv_lora_rank", U32, 21, NULL }, "E_CONFIG", "even numbers" },
        { V3, { "deepseek2.rope.dimension_count", U32, 3, NULL }, "E_CONFIG", "even numbers" },
        { V3, { "deepseek2.attention.key_length_mla", U32, 4, NULL }, "E_CONFIG", "got 4, need 5" },
        { V3,
          { "deepseek2.attention.value_length_mla", LEFT_OUT, 0, NULL },
          "E_GGUF_KEY",
          "value_length_mla" },
        { V3, { "deepseek2.attention.q_lora_rank", U32, 0, NULL }, "E_TENSOR_SHAPE", "attn_q" },
        { V3, { "deepseek2.expert_gating_func", U32, 3, NULL }, "E_CONFIG", "need 1 to 2" },
        { V3,
          { "deepseek2.rope.scaling.yarn_log_multiplier", LEFT_OUT, 0, NULL },
          "E_GGUF_KEY",
          "yarn_log_multiplier" },
        { V3,
          { "deepseek2.rope.scaling.attn_factor", MP_GGUF_F32, 2, NULL },
          "E_UNSUPPORTED",
          "attn_factor" },
        { NEXT, { "qwen3next.ssm.inner_size", U32, 47, NULL }, "E_CONFIG", "heads of delta" },
        { NEXT, { "qwen3next.ssm.group_count", U32, 3, NULL }, "E_CONFIG", "heads of delta" },
        { NEXT, { "qwen3next.ssm.conv_kernel", U32, 1, NULL }, "E_CONFIG", "need 2 to 64" },
        { NEXT, { "qwen3next.ssm.state_size", U32, 9, NULL }, "E_TENSOR_SHAPE", "attn_qkv" },
        { NEXT,
          { "qwen3next.attention.recurrent_layers", U32, 2, NULL },
          "E_CONFIG",
          "got 2, need 0 to 1" },
        { GEMMA,
          { "gemma4.attention.sliding_window_pattern", U32, 3, NULL },
          "E_UNSUPPORTED",
          "a list of all layers" },
        { GEMMA, { "gemma4.attention.head_count_kv", U32, 3, NULL }, "E_CONFIG", "heads in" },
        { GEMMA, { "gemma4.rope.dimension_count", U32, 8, NULL }, "E_UNSUPPORTED", "a wide head" },
        { GEMMA,
          { "gemma4.attention.value_length", U32, 30, NULL },
          "E_UNSUPPORTED",
          "values as long as keys" },
        { GEMMA,
          { "gemma4.embedding_length_per_layer_input", U32, 8, NULL },
          "E_UNSUPPORTED",
          "no embeddings of each layer" },
        { GEMMA,
          { "gemma4.attention.shared_kv_layers", U32, 1, NULL },
          "E_UNSUPPORTED",
          "keys and values of each layer" },
        { GEMMA, { "gemma4.attention.sliding_window", LEFT_OUT, 0, NULL }, "E_GGUF_KEY", "window" },
    };
    static const struct refusal freqs[] = {
        { QWEN3, "qwen3moe", { NULL, 0, 0, NULL }, "E_CONFIG", "got 0, need numbers of at least" },
        { QWEN3,
          "qwen3moe",
          { "qwen3moe.rope.scaling.factor", MP_GGUF_F32, 2, NULL },
          "E_UNSUPPORTED",
          "one kind of scaling" },
    };
    float divisors[HALF] = { 1, 1, 0, 1, 1, 1, 1, 1 };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++)
        check_refused(&cases[i], NULL, NULL);
    check_refused(&freqs[0], divisors, NULL);
    divisors[2] = 1;
    check_refused(&freqs[1], divisors, NULL);
}

/* One list for all contexts, or two; and what longrope does not go with. */
static void broken_lists_are_refused_by_name(void)
{
#define SCALING "qwen3moe.rope.scaling."
    static const float divisors[HALF] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    static const struct {
        const char *lists[3];
        struct gguf_change change;
        const char *code, *part;
    } cases[] = {
        { { MP_DIVISORS_LONG_NAME }, { NULL, 0, 0, NULL }, "E_CONFIG", "got one of two lists" },
        { { MP_DIVISORS_SHORT_NAME },
          { SCALING "type", MP_GGUF_STRING, 0, "longrope" },
          "E_CONFIG",
          "got one of two lists, need either 'rope_freqs.weight' or both" },
        { { MP_DIVISORS_NAME, MP_DIVISORS_SHORT_NAME, MP_DIVISORS_LONG_NAME },
          { NULL, 0, 0, NULL },
          "E_CONFIG",
          "got all three" },
        { { MP_DIVISORS_NAME },
          { SCALING "type", MP_GGUF_STRING, 0, "longrope" },
          "E_CONFIG",
          "got no lists of 'longrope'" },
        { { MP_DIVISORS_SHORT_NAME, MP_DIVISORS_LONG_NAME },
          { SCALING "factor", MP_GGUF_F32, 2, NULL },
          "E_UNSUPPORTED",
          "one kind of scaling" },
        { { MP_DIVISORS_SHORT_NAME, MP_DIVISORS_LONG_NAME },
          { SCALING "original_context_length", MP_GGUF_U32, 0, NULL },
          "E_CONFIG",
          "original_context_length" },
    };
    static const struct refusal others[] = {
        { V3,
          { "deepseek2.rope.scaling.type", MP_GGUF_STRING, 0, "longrope" },
          "E_UNSUPPORTED",
          "supports 1 with 'longrope'" },
        { GEMMA,
          { "gemma4.rope.scaling.type", MP_GGUF_STRING, 0, "longrope" },
          "E_UNSUPPORTED",
          "heads of one size" },
        { GEMMA,
          { "gemma4.rope.scaling.attn_factor", MP_GGUF_F32, 2, NULL },
          "E_UNSUPPORTED",
          "supports 1 only" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const struct refusal refusal = { QWEN3, "qwen3moe", cases[i].change, cases[i].code,
                                         cases[i].part };

        check_refused(&refusal, divisors, cases[i].lists);
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(others); i++)
        check_refused(&others[i], NULL, NULL);
}

/* ---- every call */

static void body(const struct fault_plan *plan, void *path)
{
    struct mp_checkpoint *checkpoint = NULL;
    struct mp_weights *weights = NULL;
    struct mp_model_config config;
    enum mp_status status;
    uint64_t failures;

    mp_error_clear();
    fault_begin(plan);
    status = mp_checkpoint_open(path, &checkpoint);
    if (status == MP_OK)
        status = mp_model_config_load(checkpoint, &config);
    if (status == MP_OK)
        status = mp_weights_load(checkpoint, &config, NULL, NULL, &weights);
    failures = fault_end();
    mp_weights_destroy(weights);
    mp_checkpoint_close(checkpoint);
    if (status == MP_OK)
        return;
    CHECK(failures > 0);
    CHECK(status == MP_ERR_NO_MEMORY || status == MP_ERR_IO);
    CHECK(mp_error_last()->text[0] != '\0');
}

static void every_call_fails_once(void)
{
    static const char *const models[][2] = { { DATA "deepseek_v3-a", "deepseek2" },
                                             { DATA "qwen3_5_moe_text-a", "qwen35moe" },
                                             { DATA "gemma4_text-a", "gemma4" } };

    fault_sweep_briefly(true);
    for (size_t i = 0; i < MP_ARRAY_LEN(models); i++) {
        struct to_gguf job = plain(models[i][0], models[i][1], in_tmpdir("fault.gguf"));

        to_gguf(&job);
        CHECK(fault_sweep(FAULT_ANY, body, (void *)(uintptr_t)job.path) > 0);
    }
}

int main(void)
{
    RUN(gemma4_gives_the_same_bits);
    RUN(gate_and_up_may_be_one_tensor);
    RUN(delta_networks_give_the_same_bits);
    RUN(short_convolutions_give_the_same_bits);
    RUN(latent_attention_gives_the_same_bits);
    RUN(blocks_of_latent_attention_stay_near);
    RUN(divisors_give_the_same_bits);
    RUN(a_magnitude_gives_the_same_bits);
    RUN(broken_lists_are_refused_by_name);
    RUN(broken_files_are_refused_by_name);
    RUN(every_call_fails_once);
    return 0;
}
