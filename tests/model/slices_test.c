/*
 * Experts in slices, end to end: repacked and back byte for byte, the same bits at every budget and
 * under every profile, those of whole experts where slices end at the kernels' blocks, and what is
 * refused.
 */
#include "engine/model/slices.h"

#include <sys/stat.h>

#include "kernels/cpu/kernels.h"
#include "tests/model/fails.h"
#include "tests/model/harness.h"
#include "tests/model/repack_check.h"
#include "tests/model/tiny_model.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

#define PROMPT 6
#define STEPS 6
#define SEQUENCES 2

/* A name in the directory of this test that was not given before. */
static const char *fresh(void)
{
    static char paths[64][sizeof(test_tmpdir_path) + 32];
    static unsigned count;

    CHECK(count < 64);
    snprintf(paths[count], sizeof(paths[0]), "%s/d%u", test_tmpdir(), count);
    return paths[count++];
}

/* ---- a model with wide experts and random weights */

#define WIDE_FFN 1280 /* five blocks of 256 */
#define WIDE_HIDDEN 32
#define WIDE_EXPERTS 4

static uint64_t random_state = 7;

static float random_weight(float scale)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((float)(random_state >> 40) / (float)(1 << 24) - 0.5f) * scale;
}

/* A tensor of the header with `data` NULL, else its bytes. */
static void put_tensor(FILE *header, FILE *data, const char *name, uint64_t rows, uint64_t cols,
                       uint64_t *at)
{
    const uint64_t count = rows * (cols > 0 ? cols : 1);

    if (cols > 0)
        fprintf(header, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%llu,%llu],", *at > 0 ? ',' : '{',
                name, (unsigned long long)rows, (unsigned long long)cols);
    else
        fprintf(header, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%llu],", name,
                (unsigned long long)rows);
    fprintf(header, "\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at,
            (unsigned long long)(*at + count * 4));
    *at += count * 4;
    for (uint64_t i = 0; i < count; i++) {
        const float value = cols > 0 ? random_weight(0.4f) : 1 + random_weight(0.2f);

        fwrite(&value, sizeof(value), 1, data);
    }
}

static void put_layer(FILE *header, FILE *data, unsigned layer, uint64_t *at)
{
    static const struct {
        const char *name;
        unsigned rows, cols;
    } parts[] = {
        { "self_attn.q_proj.weight", 32, WIDE_HIDDEN },
        { "self_attn.k_proj.weight", 16, WIDE_HIDDEN },
        { "self_attn.v_proj.weight", 16, WIDE_HIDDEN },
        { "self_attn.o_proj.weight", WIDE_HIDDEN, 32 },
        { "self_attn.q_norm.weight", 16, 0 },
        { "self_attn.k_norm.weight", 16, 0 },
        { "input_layernorm.weight", WIDE_HIDDEN, 0 },
        { "post_attention_layernorm.weight", WIDE_HIDDEN, 0 },
        { "mlp.gate.weight", WIDE_EXPERTS, WIDE_HIDDEN },
    };
    char name[96];

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        snprintf(name, sizeof(name), "model.layers.%u.%s", layer, parts[i].name);
        put_tensor(header, data, name, parts[i].rows, parts[i].cols, at);
    }
    for (unsigned e = 0; e < WIDE_EXPERTS; e++) {
        static const char *const pieces[] = { "gate_proj", "up_proj", "down_proj" };

        for (unsigned p = 0; p < 3; p++) {
            snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.%s.weight", layer, e,
                     pieces[p]);
            put_tensor(header, data, name, p == 2 ? WIDE_HIDDEN : WIDE_FFN,
                       p == 2 ? WIDE_FFN : WIDE_HIDDEN, at);
        }
    }
}

static const char *write_wide_model(void)
{
    const char *dir = fresh();
    char *header = NULL, *data = NULL, path[4200];
    size_t header_bytes = 0, data_bytes = 0;
    FILE *text = open_memstream(&header, &header_bytes);
    FILE *bytes = open_memstream(&data, &data_bytes);
    uint64_t at = 0, length;
    FILE *file;

    CHECK(mkdir(dir, 0777) == 0);
    put_tensor(text, bytes, "model.embed_tokens.weight", 48, WIDE_HIDDEN, &at);
    put_tensor(text, bytes, "model.norm.weight", WIDE_HIDDEN, 0, &at);
    for (unsigned l = 0; l < 2; l++)
        put_layer(text, bytes, l, &at);
    fputc('}', text);
    CHECK(fclose(text) == 0 && fclose(bytes) == 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    file = fopen(path, "wb");
    CHECK(file != NULL);
    length = header_bytes;
    fwrite(&length, sizeof(length), 1, file);
    fwrite(header, 1, header_bytes, file);
    fwrite(data, 1, data_bytes, file);
    CHECK(fclose(file) == 0);
    free(header);
    free(data);
    tiny_write_text(dir, "config.json",
                    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
                    "\"hidden_act\":\"silu\",\"hidden_size\":32,\"intermediate_size\":64,"
                    "\"moe_intermediate_size\":1280,\"num_hidden_layers\":2,"
                    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
                    "\"num_experts\":4,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,"
                    "\"vocab_size\":48,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,"
                    "\"rope_theta\":10000.0,\"tie_word_embeddings\":true,"
                    "\"decoder_sparse_step\":1,\"mlp_only_layers\":[]}");
    return dir;
}

/* ---- running */

/* What policies can know of the machine was measured, unless that is not wanted. */
static void check_costs(const struct harness *h, const struct mp_counters *counters)
{
    const struct mp_costs *costs = mp_engine_shape(h->engine)->costs;

    CHECK((costs == NULL) == h->config.deterministic);
    if (costs == NULL)
        return;
    CHECK(counters->loads == 0 || counters->hits + counters->misses == 0 || costs->load_ns > 0);
    CHECK(costs->executors[MP_EXECUTOR_HOME].fixed_ns > 0 && costs->layer_ns > 0);
    CHECK_EQ(costs->executor_count, 1);
}

static float *logits_of(const struct harness_options *options, size_t *bytes_p,
                        struct mp_counters *counters_p)
{
    static const int32_t lens[SEQUENCES] = { PROMPT, PROMPT - 2 };
    int32_t tokens[SEQUENCES][PROMPT + STEPS];
    struct harness h;
    float *logits;

    harness_open(options, &h);
    for (int s = 0; s < SEQUENCES; s++) {
        for (int i = 0; i < PROMPT + STEPS; i++)
            tokens[s][i] = (int32_t)((7 * i + 13 * s + i * i) % (int)h.model.vocab);
    }
    *bytes_p = (size_t)SEQUENCES * (STEPS + 1) * h.model.vocab * sizeof(float);
    logits = calloc(1, *bytes_p);
    CHECK(logits != NULL);
    CHECK_EQ(harness_run(&h, tokens[0], PROMPT + STEPS, lens, SEQUENCES, STEPS, logits), MP_OK);
    CHECK(mp_pager_check(mp_engine_pager(h.engine)));
    CHECK_EQ(mp_engine_shape(h.engine)->slices, h.weights->slices.count);
    *counters_p = *mp_engine_counters(h.engine);
    check_costs(&h, counters_p);
    harness_close(&h);
    return logits;
}

static struct harness_options options_of(const char *dir)
{
    struct harness_options options = harness_defaults(dir);

    options.sequences = SEQUENCES;
    options.ctx = PROMPT + STEPS;
    return options;
}

/* Budgets from two slices to everything, policies, threads: one result, `want` if given. */
static void check_bits(const char *dir, const float *want, const char *kernels)
{
    static const char *const profiles[] = { "lru", "moepic", "smoe" };
    struct harness_options options = options_of(dir);
    const struct mp_space_plan plan = harness_plan(&options, NULL);
    uint64_t partial = 0, prefetched = 0;
    struct mp_counters counters;
    size_t bytes, more;
    float *all;

    options.kernels = kernels;
    all = logits_of(&options, &bytes, &counters);
    if (want != NULL)
        CHECK(memcmp(all, want, bytes) == 0);
    for (unsigned i = 0; i < 4; i++) {
        for (unsigned p = 0; p < sizeof(profiles) / sizeof(profiles[0]); p++) {
            float *got;

            options.budget_bytes =
                plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * i / 3;
            options.policies.profile = profiles[p];
            options.policies.policy[MP_POLICY_ROUTE] = "exact";
            options.threads = 1 + i % 2;
            options.no_uring = i % 3 == 2;
            options.deterministic = i == 1;
            got = logits_of(&options, &more, &counters);
            CHECK_EQ(bytes, more);
            if (memcmp(got, all, bytes) != 0)
                fprintf(stderr, "%s, budget %u, profile %s\n", dir, i, profiles[p]);
            CHECK(memcmp(got, all, bytes) == 0);
            CHECK(counters.resident_peak_bytes <= options.budget_bytes);
            CHECK_EQ(counters.invalid_decisions, 0);
            partial += counters.partial_hits;
            prefetched += counters.prefetch_used;
            free(got);
        }
    }
    CHECK((partial > 0) == dir_has(dir, MP_SLICED_CONFIG));
    CHECK(prefetched > 0);
    free(all);
}

static const char *repack(const char *model, uint32_t slices, bool *exact_p)
{
    struct mp_repack_config config = repack_config(model, fresh());
    struct mp_repack_report report;

    config.slices = slices;
    report = repack_must(&config);
    CHECK_EQ(report.slices, slices);
    CHECK(dir_has(config.out, "config.json") == (slices == 1));
    CHECK(dir_has(config.out, MP_SLICED_CONFIG) == (slices > 1));
    if (exact_p != NULL)
        *exact_p = report.exact;
    return config.out;
}

/* ---- tests */

static void widths_are_what_they_should_be(void)
{
    static const struct {
        uint32_t ffn, count, width;
        bool possible, exact;
    } cases[] = {
        { 14336, 8, 1792, true, true },
        { 14336, 16, 896, true, false },
        { 768, 3, 256, true, true },
        { 768, 2, 384, true, false },
        { 1408, 2, 768, true, true },
        { 1408, 4, 352, true, false },
        { 96, 16, 6, true, false },
        { 96, 2, 48, true, false },
        { 5, 4, 2, false, false },
        { 5, 5, 1, true, false },
        { 3, 4, 1, false, false },
        { 256, 1, 256, true, true },
        { 100, 1, 100, true, true },
        { 1048576, 16, 65536, true, true },
        { 1280, 5, 256, true, true },
        /* An eighth of the room is lost, and a little more. */
        { 2048, 3, 768, true, true },
        { 2023, 3, 688, true, false },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mp_slices slices;
        uint32_t sum = 0;

        CHECK_EQ(mp_slices_make(cases[i].ffn, cases[i].count, &slices), cases[i].possible);
        if (!cases[i].possible)
            continue;
        CHECK_EQ(slices.width, cases[i].width);
        CHECK_EQ(mp_slices_exact(&slices), cases[i].exact);
        for (uint32_t s = 0; s < slices.count; s++) {
            CHECK_EQ(mp_slices_first(&slices, s), sum);
            CHECK(mp_slices_channels(&slices, s) > 0);
            sum += mp_slices_channels(&slices, s);
        }
        CHECK_EQ(sum, cases[i].ffn);
    }
}

/* All models of the tests into slices, into other slices, and back. */
static void repacked_back_it_is_the_ordinary_model(void)
{
    static const struct {
        const char *model;
        uint32_t slices, others;
    } cases[] = {
        { "models/tiny-moe", 4, 16 },
        { "tests/data/models/mixtral-tiny", 2, 3 },
        { "tests/data/models/qwen2moe-tiny", 3, 2 },
        { "tests/data/models/qwen3moe-tiny-nonorm", 2, 4 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *plain = repack(cases[i].model, 1, NULL);
        const char *sliced = repack(cases[i].model, cases[i].slices, NULL);
        const char *others = repack(cases[i].model, cases[i].others, NULL);
        struct opened o;

        check_same_dirs(plain, repack(sliced, 1, NULL));
        check_same_dirs(others, repack(sliced, cases[i].others, NULL));
        check_same_dirs(sliced, repack(sliced, cases[i].slices, NULL));
        check_same_dirs(sliced, repack(plain, cases[i].slices, NULL));
        open_model(sliced, &o);
        CHECK_EQ(o.weights->slices.count, cases[i].slices);
        CHECK_EQ(o.weights->extra_tensors, 0);
        CHECK_EQ(o.weights->unit_count,
                 o.model.moe_layers * o.model.experts * o.weights->slices.count);
        for (uint32_t u = 0; u < o.weights->unit_count; u++)
            CHECK_EQ(o.weights->units[u].pieces[0].offset_bytes % MP_REPACK_ALIGN, 0);
        close_model(&o);
    }
}

static void bits_do_not_depend_on_the_budget(void)
{
    static const uint32_t slices[] = { 2, 4, 16 };

    for (size_t i = 0; i < sizeof(slices) / sizeof(slices[0]); i++)
        check_bits(repack("models/tiny-moe", slices[i], NULL), NULL, NULL);
}

/* Slices that end at blocks give the bits of whole experts, the others nearly. */
static void bits_are_those_of_whole_experts(void)
{
    static const char *const kernels[] = { "ref", NULL };
    static const uint32_t slices[] = { 5, 2, 3, 4 };
    const char *model = write_wide_model();

    for (size_t k = 0; k < 2; k++) {
        struct harness_options options = options_of(model);
        struct mp_counters counters;
        float *whole, *got;
        size_t bytes;

        options.kernels = kernels[k];
        whole = logits_of(&options, &bytes, &counters);
        for (size_t i = 0; i < sizeof(slices) / sizeof(slices[0]); i++) {
            bool exact;
            const char *dir = repack(model, slices[i], &exact);

            CHECK_EQ(exact, slices[i] == 5);
            if (k == 1 && slices[i] >= 4)
                check_bits(dir, exact ? whole : NULL, kernels[k]);
            options.model = dir;
            got = logits_of(&options, &bytes, &counters);
            CHECK(!exact || memcmp(got, whole, bytes) == 0);
            for (size_t v = 0; v < bytes / sizeof(float); v++)
                CHECK(got[v] - whole[v] < 1e-3f && whole[v] - got[v] < 1e-3f);
            free(got);
        }
        free(whole);
    }
}

static void what_cannot_be_is_refused(void)
{
    struct mp_repack_config config = repack_config("models/tiny-moe", fresh());
    struct mp_repack_report report;

    config.slices = 17;
    CHECK_FAILS(mp_repack(&config, &report), MP_ERR_CONFIG, "E_SLICES",
                "experts of 96 channels cannot have 17 slices, at most 16 that all have some; "
                "choose another --slices");
    config.slices = 15; /* of 7 channels, and none left for the last */
    CHECK_FAILS(mp_repack(&config, &report), MP_ERR_CONFIG, "E_SLICES",
                "experts of 96 channels cannot have 15 slices, at most 16 that all have some; "
                "choose another --slices");
    CHECK(!dir_has(config.out, ""));
}

/* With --force a model is replaced by one of the other kind: no configuration of the old one stays
 * that others could take for the model's. */
/* Experts of 5 channels in slices of 3 and 2, of which the last slice of all has another type. */
static void slices_of_two_types_are_refused(void)
{
    static const char *const pieces[] = { "gate_proj", "up_proj", "down_proj" };
    const char *dir = fresh();
    struct tiny_model model;
    struct opened o;
    size_t kept = 0;

    tiny_model_make(&model, TINY_QWEN3);
    for (size_t t = 0; t < model.count; t++)
        if (strstr(model.tensors[t].name, ".experts.") == NULL)
            model.tensors[kept++] = model.tensors[t];
    model.count = kept;
    for (unsigned i = 0; i < 2 * 3 * 2 * 3; i++) {
        const uint64_t channels = i / 3 % 2 == 0 ? 3 : 2;
        struct tiny_tensor *tensor = &model.tensors[model.count++];

        *tensor =
            (struct tiny_tensor){ .dtype = i == 35 ? "BF16" : "F32",
                                  .dims = 2,
                                  .shape = { i % 3 < 2 ? channels : 8, i % 3 < 2 ? 8 : channels } };
        snprintf(tensor->name, sizeof(tensor->name),
                 "model.layers.%u.mlp.experts.%u.slices.%u.%s.weight", i / 18, i / 6 % 3, i / 3 % 2,
                 pieces[i % 3]);
    }
    CHECK(mkdir(dir, 0777) == 0);
    tiny_write_config(dir, TINY_QWEN3);
    tiny_write_shard(dir, "model.safetensors", &model, 0, model.count, 0);
    memset(&o, 0, sizeof(o));
    CHECK_EQ(mp_checkpoint_open(dir, &o.checkpoint), MP_OK);
    CHECK_EQ(mp_model_config_load(o.checkpoint, &o.model), MP_OK);
    CHECK_FAILS(mp_weights_describe(o.checkpoint, &o.model, &o.weights), MP_ERR_MODEL,
                "E_TENSOR_DTYPE",
                "tensor 'model.layers.1.mlp.experts.2.slices.1.down_proj.weight': got bf16, need "
                "f32 as in the first slice of the same expert");
    mp_checkpoint_close(o.checkpoint);
}

static void replacing_leaves_one_configuration(void)
{
    struct mp_repack_config config = repack_config("models/tiny-moe", fresh());
    static const uint32_t slices[] = { 1, 4, 2, 1 };

    config.force = true;
    for (size_t i = 0; i < 4; i++) {
        struct opened o;

        config.slices = slices[i];
        repack_must(&config);
        CHECK(dir_has(config.out, "config.json") == (slices[i] == 1));
        CHECK(dir_has(config.out, MP_SLICED_CONFIG) == (slices[i] > 1));
        open_model(config.out, &o);
        CHECK_EQ(o.weights->slices.count, slices[i]);
        close_model(&o);
    }
}

int main(void)
{
    /* Partition fixed-point then thinks again after every token, with what was measured. */
    CHECK_EQ(setenv("MOEPAGER_FIXED_POINT_TAU", "1", 1), 0);
    mp_test_drop_log(); /* budgets under one token cycle are warned of, rightly */
    RUN(widths_are_what_they_should_be);
    RUN(repacked_back_it_is_the_ordinary_model);
    RUN(bits_do_not_depend_on_the_budget);
    RUN(bits_are_those_of_whole_experts);
    RUN(what_cannot_be_is_refused);
    RUN(slices_of_two_types_are_refused);
    RUN(replacing_leaves_one_configuration);
    return 0;
}
