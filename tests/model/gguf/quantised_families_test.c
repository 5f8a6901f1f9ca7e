/*
 * Families with quantised weights: a model of rows that are whole blocks, as a directory of floats
 * and as GGUF files. The file of floats gives the directory's bits. The file of blocks is near the
 * same numbers stored as floats in the file, but for what rounding activations to 8 bits takes, and
 * about what the directory gives, so that a row or a column in another place shows; its bits are
 * the same with little memory, with other threads, and however prompts are cut and batched. Files
 * that `repack` writes of the directory are about as near.
 *
 * Rows of the KV cache are then whole blocks, too: with a cache of Q8_0 the directory is near what
 * it gives with floats, and its bits depend on as little.
 */
#include <math.h>

#include "tests/model/gguf/convert.h"
#include "tests/model/gguf/twin_runs.h"
#include "tests/model/harness.h"

#define TOKENS 14

/* A dimension of tensors whose names have this part (NULL: of all; dim -1: any dimension). The
 * first that fits counts; others stay. */
struct resize {
    const char *part;
    int dim;
    uint64_t from, to;
};

struct family {
    const char *model, *arch, *changes;
    struct resize resizes[12];
};

static const struct family families[] = {
    { "qwen3_5_moe_text-a",
      "qwen35moe",
      "{\"hidden_size\":256,\"head_dim\":64,\"moe_intermediate_size\":256,"
      "\"shared_expert_intermediate_size\":256,\"linear_key_head_dim\":64,"
      "\"linear_value_head_dim\":64}",
      { { NULL, -1, 40, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 56, 256 },
        { NULL, -1, 128, 512 },
        { NULL, -1, 64, 256 },
        { NULL, -1, 32, 128 },
        { NULL, -1, 16, 64 },
        { NULL, -1, 80, 512 },
        { NULL, -1, 48, 256 },
        { NULL, -1, 12, 64 } } },
    { "qwen3_next-a",
      "qwen3next",
      "{\"hidden_size\":256,\"head_dim\":64,\"moe_intermediate_size\":256,"
      "\"shared_expert_intermediate_size\":256,\"linear_key_head_dim\":64,"
      "\"linear_value_head_dim\":64}",
      { { NULL, -1, 40, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 56, 256 },
        { "in_proj_qkvz", -1, 128, 768 },
        { NULL, -1, 128, 512 },
        { NULL, -1, 64, 256 },
        { NULL, -1, 32, 128 },
        { NULL, -1, 16, 64 },
        { NULL, -1, 80, 512 },
        { NULL, -1, 48, 256 },
        { NULL, -1, 12, 64 } } },
    { "gpt_oss-a",
      "gpt-oss",
      "{\"hidden_size\":256,\"head_dim\":64,\"intermediate_size\":256}",
      { { NULL, -1, 40, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 48, 512 },
        { NULL, -1, 64, 256 },
        { NULL, -1, 32, 128 } } },
    { "deepseek_v2-a",
      "deepseek2",
      "{\"hidden_size\":256,\"intermediate_size\":256,\"moe_intermediate_size\":256,"
      "\"kv_lora_rank\":256,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":32,\"v_head_dim\":32,"
      "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":32,\"beta_slow\":1,"
      "\"mscale\":0.707,\"mscale_all_dim\":0.707,\"original_max_position_embeddings\":128}}",
      { { "kv_a_proj", 0, 40, 288 },
        { NULL, -1, 40, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 72, 256 },
        { "kv_b_proj", 0, 112, 256 },
        { "shared_experts", -1, 48, 512 },
        { "o_proj", -1, 48, 128 },
        { NULL, -1, 96, 256 },
        { NULL, -1, 32, 256 } } },
    { "deepseek_v3-b",
      "deepseek2",
      "{\"hidden_size\":256,\"intermediate_size\":256,\"moe_intermediate_size\":256,"
      "\"kv_lora_rank\":256,\"q_lora_rank\":256,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":32,"
      "\"v_head_dim\":32}",
      { { "shared_experts.down", 1, 48, 512 },
        { "shared_experts.gate", 0, 48, 512 },
        { "shared_experts.up", 0, 48, 512 },
        { "kv_a_proj", -1, 24, 288 },
        { "kv_b_proj", 0, 96, 384 },
        { "q_b_proj", 0, 60, 384 },
        { "o_proj", 1, 60, 192 },
        { NULL, -1, 48, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 20, 256 } } },
    { "glm4_moe-a",
      "glm4moe",
      "{\"hidden_size\":256,\"head_dim\":64,\"intermediate_size\":256,"
      "\"moe_intermediate_size\":256}",
      { { NULL, -1, 40, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 72, 256 },
        { NULL, -1, 64, 256 },
        { NULL, -1, 32, 128 },
        { NULL, -1, 16, 64 } } },
    { "gemma4_text-a",
      "gemma4",
      "{\"hidden_size\":256,\"head_dim\":32,\"global_head_dim\":64,\"intermediate_size\":256,"
      "\"moe_intermediate_size\":256,\"attention_bias\":false}",
      { { NULL, -1, 40, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 48, 512 },
        { NULL, -1, 56, 256 },
        { NULL, -1, 16, 32 },
        { NULL, -1, 32, 64 },
        { NULL, -1, 64, 128 },
        { NULL, -1, 128, 256 } } },
    { "mixtral-tiny",
      "llama",
      "{\"hidden_size\":256,\"intermediate_size\":512}",
      { { NULL, -1, 40, 256 }, { NULL, -1, 136, 512 }, { NULL, -1, 20, 128 } } },
    { "qwen2moe-tiny",
      "qwen2moe",
      "{\"hidden_size\":256,\"num_hidden_layers\":1,\"mlp_only_layers\":[],"
      "\"num_attention_heads\":4,\"moe_intermediate_size\":256,"
      "\"shared_expert_intermediate_size\":512,\"bos_token_id\":1,\"eos_token_id\":2}",
      { { NULL, -1, 40, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 136, 512 },
        { "self_attn", 0, 8, 64 } } },
    { "olmoe-a",
      "olmoe",
      "{\"hidden_size\":256,\"intermediate_size\":256}",
      { { NULL, -1, 40, 256 }, { NULL, -1, 24, 256 } } },
    { "granitemoe-a",
      "granitemoe",
      "{\"hidden_size\":256,\"intermediate_size\":256}",
      { { NULL, -1, 40, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 48, 512 },
        { NULL, -1, 20, 128 } } },
    { "lfm2_moe-a",
      "lfm2moe",
      "{\"hidden_size\":256,\"intermediate_size\":512,\"moe_intermediate_size\":256}",
      { { NULL, -1, 40, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 72, 512 },
        { NULL, -1, 120, 768 },
        { NULL, -1, 20, 128 },
        { NULL, -1, 10, 64 } } },
    { "minimax_m2-a",
      "minimax-m2",
      "{\"hidden_size\":256,\"intermediate_size\":256,\"head_dim\":64,\"rotary_dim\":32}",
      { { NULL, -1, 40, 256 },
        { NULL, -1, 24, 256 },
        { NULL, -1, 64, 256 },
        { NULL, -1, 32, 128 } } },
};

/* A latent of 48 numbers and a rotated key of 16 are two blocks, of which one holds both. */
static const struct family latent_in_blocks = {
    "deepseek_v2-a",
    "deepseek2",
    "{\"kv_lora_rank\":48,\"qk_rope_head_dim\":16}",
    { { "kv_a_proj", 0, 40, 64 },
      { "kv_a_layernorm", -1, 32, 48 },
      { "kv_b_proj", 1, 32, 48 },
      { "q_proj", 0, 96, 128 } },
};

static const struct family *family_now;
static enum mp_wtype kv_type = MP_WTYPE_F32;
static uint32_t lcg;

static float next(void) /* -0.5 to 0.5 */
{
    lcg = lcg * 1664525 + 1013904223;
    return (float)(lcg >> 8) * 0x1p-24f - 0.5f;
}

static uint64_t resized(const struct rewritten *tensor, uint32_t d)
{
    for (const struct resize *r = family_now->resizes; r->from != 0; r++) {
        if ((r->part == NULL || strstr(tensor->name, r->part) != NULL) &&
            (r->dim < 0 || r->dim == (int)d) && tensor->shape[d] == r->from)
            return r->to;
    }
    return tensor->shape[d];
}

/* Vectors go on like the source's. Matrices are random ones whose products are as large. */
static void enlarge(struct rewritten *tensor)
{
    const bool vector = tensor->dims == 1 || strstr(tensor->name, "bias") != NULL;
    const bool across = tensor->dims == 3 && strcmp(family_now->arch, "gpt-oss") == 0;
    const uint32_t in = across ? 1 : tensor->dims - 1;
    const uint64_t old_in = tensor->shape[in];
    size_t old_count = 1, count = 1;
    const float *old;
    double squares = 0;
    float *data, scale;

    rewrite_as_f32(tensor);
    old = tensor->data;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        old_count *= tensor->shape[d];
        tensor->shape[d] = resized(tensor, d);
        count *= tensor->shape[d];
    }
    for (size_t i = 0; i < old_count; i++)
        squares += (double)old[i] * old[i];
    scale =
        (float)sqrt(12 * squares / (double)old_count * (double)old_in / (double)tensor->shape[in]);
    if (strstr(tensor->name, "embed") != NULL)
        scale = (float)sqrt(12 * squares / (double)old_count);
    lcg = 1; /* the same whatever the order of tensors */
    for (const char *c = tensor->name; *c != '\0'; c++)
        lcg = (lcg ^ (unsigned char)*c) * 16777619;
    data = malloc(count * sizeof(*data));
    CHECK(data != NULL);
    for (size_t i = 0; i < count; i++)
        data[i] = vector ? old[i % old_count] * (1 + next() / 2) : scale * next();
    free(tensor->data);
    tensor->data = data;
    tensor->bytes = count * sizeof(*data);
}

/* ---- runs */

struct run {
    uint64_t budget_bytes;
    uint32_t tokens_max, threads, sequences;
};

static const struct run whole = { UINT64_MAX, 512, 1, 1 };

static enum mp_status set_kv_type(void *ctx, struct mp_engine_config *config)
{
    (void)ctx;
    config->kv_type = kv_type;
    return MP_OK;
}

/* Of one sequence, or of the first one of three. The caller frees them. */
static float *logits_of(const char *model, struct run run, size_t *count_p)
{
    static const int32_t tokens[TOKENS] = { 5, 66, 33, 61, 42, 8, 64, 12, 7, 60, 11, 3, 50, 29 };
    static const int32_t lens[3] = { TOKENS - STEPS, TOKENS - STEPS - 3, 1 };
    struct harness_options options = harness_defaults(model);
    int32_t all[3 * TOKENS];
    struct harness h;
    float *logits;

    for (size_t i = 0; i < MP_ARRAY_LEN(all); i++)
        all[i] = tokens[i % TOKENS];
    options.budget_bytes = run.budget_bytes;
    options.tokens_max = run.tokens_max;
    options.threads = run.threads;
    options.sequences = run.sequences;
    options.before_engine = set_kv_type;
    harness_open(&options, &h);
    *count_p = (size_t)h.model.vocab * (STEPS + 1);
    logits = malloc(run.sequences * *count_p * sizeof(*logits));
    CHECK(logits != NULL);
    CHECK_EQ(harness_run(&h, all, TOKENS, lens, run.sequences, STEPS, logits), MP_OK);
    harness_close(&h);
    return logits;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/*
 * The length of the difference of a token's logits, as a share of their length: that of a token in
 * the middle. What is wrong is so for all tokens; rounding has some of them choose other experts.
 */
static double distance(const float *a, const float *b, size_t count)
{
    const size_t width = count / (STEPS + 1);
    double rows[STEPS + 1];

    for (size_t r = 0; r <= STEPS; r++, a += width, b += width) {
        double off = 0, all = 0;

        for (size_t i = 0; i < width; i++) {
            CHECK(isfinite(a[i]) && isfinite(b[i]));
            off += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            all += (double)b[i] * b[i];
        }
        CHECK(all > 0);
        rows[r] = sqrt(off / all);
    }
    qsort(rows, STEPS + 1, sizeof(*rows), by_size);
    return rows[STEPS / 2];
}

/* From what the directory gives. */
static double distance_of(const char *model, const float *want, size_t want_count)
{
    size_t count;
    float *got = logits_of(model, whole, &count);
    const double off = distance(got, want, want_count);

    CHECK_EQ(count, want_count);
    free(got);
    return off;
}

static void check_bits(const char *model, const float *want, size_t bytes)
{
    const struct harness_options options = harness_defaults(model);
    const struct mp_space_plan plan = harness_plan(&options, NULL);
    const uint64_t middle = (plan.smallest_bytes + plan.full_bytes) / 2;
    const struct run runs[] = { { plan.smallest_bytes, 5, 2, 1 },
                                { middle, 1, 1, 1 },
                                { middle, 4, 2, 3 },
                                { UINT64_MAX, 512, 2, 3 } };

    for (size_t i = 0; i < MP_ARRAY_LEN(runs); i++) {
        size_t count;
        float *got = logits_of(model, runs[i], &count);

        if (memcmp(got, want, bytes) != 0) {
            fprintf(stderr, "%s: other logits in run %zu\n", model, i);
            exit(1);
        }
        free(got);
    }
}

/* ---- files */

static enum mp_wtype small_blocks(const char *name, uint64_t cols)
{
    (void)name;
    return cols % 32 == 0 ? MP_WTYPE_Q8_0 : MP_WTYPE_F32;
}

/* As quantisers mix them; where rows are no blocks of 256 those of 32 stand in. */
static enum mp_wtype large_blocks(const char *name, uint64_t cols)
{
    const bool better = strstr(name, "down") != NULL || strstr(name, "attn_v") != NULL ||
                        strncmp(name, "output", 6) == 0;
    const bool odd = strncmp(name, "blk.1.", 6) == 0;

    if (cols % 256 == 0)
        return better && !odd ? MP_WTYPE_Q6_K : MP_WTYPE_Q4_K;
    return cols % 32 == 0 ? MP_WTYPE_Q5_0 : MP_WTYPE_F32;
}

/* Experts of MXFP4, and the rest of Q5_K. */
static enum mp_wtype four_bits(const char *name, uint64_t cols)
{
    if (strstr(name, "_exps") != NULL && cols % 32 == 0)
        return MP_WTYPE_MXFP4;
    return cols % 256 == 0 ? MP_WTYPE_Q5_K : cols % 32 == 0 ? MP_WTYPE_Q8_0 : MP_WTYPE_F32;
}

static const struct mix {
    enum mp_wtype (*type_of)(const char *name, uint64_t cols);
    double limit; /* of the distance from the directory; one matrix in another order: beyond it */
} mixes[] = { { small_blocks, 0.06 }, { large_blocks, 0.5 }, { four_bits, 0.5 } };

static void check_mix(const char *model, const struct mix *mix, const float *want, size_t count)
{
    struct to_gguf job = plain(model, family_now->arch, in_tmpdir("blocks.gguf"));
    double rounded, whole_way;
    float *floats, *got;
    size_t got_count;

    job.type_of = mix->type_of;
    job.as_floats = true;
    to_gguf(&job);
    floats = logits_of(job.path, whole, &got_count);
    CHECK_EQ(got_count, count);
    job.as_floats = false;
    to_gguf(&job);
    got = logits_of(job.path, whole, &got_count);
    CHECK_EQ(got_count, count);
    rounded = distance(got, floats, count);
    whole_way = distance(got, want, count);
    fprintf(stderr, "; floats %.1e, directory %.1e", rounded, whole_way);
    CHECK(rounded > 1e-3 && rounded < 0.15);
    CHECK(whole_way < mix->limit);
    check_bits(job.path, got, count * sizeof(*got));
    free(got);
    free(floats);
}

static void check_repack(const char *model, const char *type, double limit, const float *want,
                         size_t count)
{
    const char *path = in_tmpdir("repacked.gguf");
    double off;

    (void)convert(model, path, type);
    off = distance_of(path, want, count);
    fprintf(stderr, "; repack %s %.1e", type, off);
    CHECK(off < limit);
}

/* Where few tokens choose other experts a hundredth, else as far as other roundings are. */
static void check_cache(const char *model, const float *want, size_t count)
{
    size_t got_count;
    double off;
    float *got;

    kv_type = MP_WTYPE_Q8_0;
    got = logits_of(model, whole, &got_count);
    CHECK_EQ(got_count, count);
    off = distance(got, want, count);
    fprintf(stderr, "; cache q8_0 %.1e", off);
    CHECK(off > 0 && off < 0.1);
    check_bits(model, got, count * sizeof(*got));
    free(got);
    kv_type = MP_WTYPE_F32;
}

static void make_larger(const struct family *family, const char *model)
{
    char source[PATH_BYTES], *config;

    family_now = family;
    snprintf(source, sizeof(source), DATA "%s", family->model);
    config = twin_changed_config(source, family->changes);
    rewrite_model(source, model, config, enlarge);
    free(config);
    fprintf(stderr, "  %s", family->model);
}

static void check_family(const struct family *family)
{
    const char *model = in_tmpdir(family->model);
    struct to_gguf job = plain(model, family->arch, in_tmpdir("floats.gguf"));
    size_t count;
    float *want;

    make_larger(family, model);
    want = logits_of(model, whole, &count);
    to_gguf(&job);
    check_bits(job.path, want, count * sizeof(*want));
    for (size_t i = 0; i < MP_ARRAY_LEN(mixes); i++)
        check_mix(model, &mixes[i], want, count);
    check_repack(model, "q8_0", mixes[0].limit, want, count);
    check_repack(model, "q4_k_m", mixes[1].limit, want, count);
    check_cache(model, want, count);
    fprintf(stderr, "\n");
    free(want);
}

static void every_family_runs(void)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(families); i++)
        check_family(&families[i]);
}

static void a_latent_and_a_key_share_a_block(void)
{
    const char *model = in_tmpdir("latent");
    size_t count;
    float *want;

    make_larger(&latent_in_blocks, model);
    want = logits_of(model, whole, &count);
    check_cache(model, want, count);
    fprintf(stderr, "\n");
    free(want);
}

int main(void)
{
    const struct mp_pool_config one = { .threads = 1 };

    CHECK_EQ(mp_pool_create(&one, NULL, MP_TOPOLOGY_ANY_NODE, &pool), MP_OK);
    RUN(every_family_runs);
    RUN(a_latent_and_a_key_share_a_block);
    mp_pool_destroy(pool);
    return 0;
}
