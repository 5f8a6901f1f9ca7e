/*
 * Repacked models: the same logits bit for bit, the same tensors byte for byte, every expert one
 * aligned run and one read; what is resumed, refused and replaced.
 */
#include "engine/repack/repack.h"
#include "tests/model/repack/models.h"

#include <sys/stat.h>

#include "tests/model/fails.h"
#include "tests/model/families.h"
#include "tests/model/harness.h"
#include "tests/model/repack_check.h"
#include "tests/model/tiny_model.h"
#include "tests/support/npy.h"
#include "tests/support/tmpdir.h"
#include "vmm/backend/backend.h"
#include "vmm/space/space_layout.h"

#define STEPS 16

static float *logits_of(const char *dir, const char *expect, uint64_t budget_bytes,
                        enum mp_io_mode io_mode, size_t *bytes_p)
{
    struct harness_options options = harness_defaults(dir);
    struct npy tokens, lens;
    char path[512];
    struct harness h;
    float *logits;

    snprintf(path, sizeof(path), "%s/b4_tokens.npy", expect);
    CHECK(npy_read(path, &tokens));
    snprintf(path, sizeof(path), "%s/b4_lens.npy", expect);
    CHECK(npy_read(path, &lens));
    options.sequences = (uint32_t)tokens.dims[0];
    options.ctx = (uint32_t)tokens.dims[1];
    options.budget_bytes = budget_bytes;
    options.io_mode = io_mode;
    harness_open(&options, &h);
    *bytes_p = tokens.dims[0] * (STEPS + 1) * h.model.vocab * sizeof(float);
    logits = calloc(1, *bytes_p);
    CHECK(logits != NULL);
    CHECK_EQ(
        harness_run(&h, tokens.i32, tokens.dims[1], lens.i32, options.sequences, STEPS, logits),
        MP_OK);
    harness_close(&h);
    npy_free(&tokens);
    npy_free(&lens);
    return logits;
}

static uint64_t smallest_budget(const char *model)
{
    const struct harness_options options = harness_defaults(model);

    return harness_plan(&options, NULL).smallest_bytes;
}

static void check_logits(const char *a, const char *b, const char *expect)
{
    size_t a_bytes, b_bytes;
    float *want = logits_of(a, expect, UINT64_MAX, MP_IO_AUTO, &a_bytes);

    for (unsigned i = 0; i < 3; i++) {
        const uint64_t budget = i == 0 ? UINT64_MAX : smallest_budget(b);
        float *got = logits_of(b, expect, budget, i == 2 ? MP_IO_BUFFERED : MP_IO_AUTO, &b_bytes);

        CHECK_EQ(a_bytes, b_bytes);
        CHECK(memcmp(want, got, a_bytes) == 0);
        free(got);
    }
    free(want);
}

static void same_bits_and_tensors_in_one_file_and_in_several(void)
{
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        for (unsigned several = 0; several < 2; several++) {
            struct mp_repack_config config = repack_config(models[m].model, fresh());
            struct mp_repack_report report;

            if (several)
                config.shard_bytes = models[m].small_shard_bytes;
            report = repack_must(&config);
            CHECK((report.shards > 2) == several);
            CHECK_EQ(report.shards_kept, 0);
            CHECK_EQ(report.reads_after, report.experts);
            CHECK(dir_has(config.out, "model.safetensors") == !several);
            CHECK(dir_has(config.out, "model.safetensors.index.json") == several);
            CHECK_EQ(dir_count(config.out), report.shards + several + report.files_copied);
            CHECK(report.files_copied >= 1 && dir_has(config.out, "config.json"));
            check_repacked(models[m].model, config.out);
            check_logits(models[m].model, config.out, models[m].expect);
        }
    }
}

/* Of each family; or a line that says why not. */
static void families_repack_to_the_same_bits(void)
{
    static const char *const families[] = {
#define X(name) "tests/data/models/" name,
        FAMILY_FIXTURES(X)
#undef X
    };

    for (size_t m = 0; m < MP_ARRAY_LEN(families); m++) {
        struct mp_repack_config config = repack_config(families[m], fresh());
        struct mp_repack_report report;
        char expect[128];

        snprintf(expect, sizeof(expect), "%s/expect", families[m]);
        if (strstr(families[m], "gpt_oss") != NULL) {
            CHECK_FAILS(mp_repack(&config, &report), MP_ERR_MODEL, "E_UNSUPPORTED",
                        "experts in transposed matrices, as directories of this family have them, "
                        "are not repacked; --type mxfp4 --to safetensors rounds them, --type bf16 "
                        "writes a GGUF file");
            continue;
        }
        report = repack_must(&config);
        CHECK_EQ(report.reads_after, report.experts);
        check_repacked(families[m], config.out);
        check_logits(families[m], config.out, expect);
    }
}

static void a_repacked_model_repacks_to_itself(void)
{
    struct mp_repack_config config = repack_config(models[2].model, fresh());
    const char *first = config.out;

    repack_must(&config);
    config.model = first;
    config.out = fresh();
    repack_must(&config);
    check_same_dirs(first, config.out);
}

/* A file holds what fills it to the last byte. */
static void files_are_filled_to_the_last_byte(void)
{
    struct mp_repack_config config = repack_config(models[2].model, fresh());
    struct mp_repack_report report = repack_must(&config);
    const uint64_t all_bytes = report.expert_bytes + report.other_bytes + report.pad_bytes;

    CHECK_EQ(report.shards, 1);
    config.shard_bytes = all_bytes;
    config.out = fresh();
    report = repack_must(&config);
    CHECK_EQ(report.shards, 1);
    config.shard_bytes = all_bytes - 1;
    config.out = fresh();
    CHECK_EQ(repack_must(&config).shards, 2);
}

/* Pieces that fill their blocks and touch are one read, as the report counts those of a model. */
static void pieces_that_touch_are_one_read(void)
{
    struct mp_repack_config config = repack_config(models[4].model, fresh());
    struct mp_repack_report report = repack_must(&config);

    CHECK_EQ(report.expert_bytes / report.experts % (3 * MP_REPACK_ALIGN), 0);
    config.model = config.out;
    config.out = fresh();
    report = repack_must(&config);
    CHECK_EQ(report.reads_before, report.experts);
    CHECK_EQ(report.read_bytes_before, report.expert_bytes);
}

/* How the space would read this model: requests of all units, and whether AUTO reads directly. */
static void read_plan(const char *dir, enum mp_io_mode mode, uint32_t *requests_p, bool *direct_p,
                      bool *can_direct_p)
{
    const struct mp_backend_config backend_config = { .numa_node = -1 };
    struct mp_backend *backend;
    struct mp_space_layout layout;
    uint32_t align = 0;
    struct opened o;

    open_model(dir, &o);
    CHECK_EQ(mp_backend_open("host", &backend_config, &backend), MP_OK);
    const struct mp_space_config config = { .backend = backend,
                                            .files = mp_checkpoint_files(o.checkpoint),
                                            .units = o.weights->units,
                                            .unit_count = o.weights->unit_count,
                                            .budget_bytes = UINT64_MAX,
                                            .io_mode = mode };
    CHECK_EQ(mp_space_layout_init(&config, &layout), MP_OK);
    *requests_p = 0;
    for (uint32_t i = 0; i < layout.unit_count; i++) {
        *requests_p += layout.units[i].extent_count;
        if (layout.plan.direct && layout.units[i].extent_count == 1)
            CHECK_EQ(layout.units[i].extents[0].offset_bytes % MP_REPACK_ALIGN, 0);
    }
    *direct_p = layout.plan.direct;
    *can_direct_p = mp_files_direct_fd(mp_checkpoint_files(o.checkpoint), 0, &align) >= 0;
    mp_space_layout_fini(&layout);
    mp_backend_close(backend);
    close_model(&o);
}

/* Requests that the reader really made for one pass with every expert loaded on demand. */
static struct mp_counters counters_of(const char *dir)
{
    struct harness_options options = harness_defaults(dir);
    static const int32_t tokens[64] = { 5, 77, 901, 14, 300, 44, 1033, 7 };
    const int32_t len = 8;
    struct mp_counters counters;
    struct harness h;
    float *logits;

    options.io_mode = MP_IO_BUFFERED;
    options.policies.profile = "lru";
    harness_open(&options, &h);
    logits = calloc(h.model.vocab, sizeof(float));
    CHECK(logits != NULL);
    CHECK_EQ(harness_run(&h, tokens, 64, &len, 1, 0, logits), MP_OK);
    counters = *mp_engine_counters(h.engine);
    free(logits);
    harness_close(&h);
    return counters;
}

static void a_miss_is_one_aligned_read(void)
{
    struct mp_repack_config config = repack_config(fresh(), fresh());
    struct mp_counters before, after;
    struct mp_repack_report report;
    bool direct, can_direct;
    uint32_t requests;

    write_scattered("models/tiny-moe", config.model);
    report = repack_must(&config);
    check_repacked(config.model, config.out);
    CHECK_EQ(report.experts, 256);
    CHECK_EQ(report.reads_before, 3 * 256);
    CHECK_EQ(report.reads_after, 256);

    read_plan(config.model, MP_IO_AUTO, &requests, &direct, &can_direct);
    CHECK_EQ(requests, 3 * 256);
    CHECK(!direct); /* the slack of three extents is too much */
    read_plan(config.out, MP_IO_AUTO, &requests, &direct, &can_direct);
    CHECK_EQ(requests, 256);
    CHECK_EQ(direct, can_direct);
    if (!can_direct)
        fprintf(stderr, "    no direct reads on this file system: only buffered ones looked at\n");

    before = counters_of(config.model);
    after = counters_of(config.out);
    CHECK(before.loads > 0);
    CHECK_EQ(before.loads, after.loads);
    CHECK_EQ(before.read_requests, 3 * before.loads);
    CHECK_EQ(after.read_requests, after.loads);
    check_logits(config.model, config.out, "tests/data/models/tiny-moe-expect");
}

static void small_experts_are_read_directly(void)
{
    struct mp_repack_config config = repack_config(models[2].model, fresh());
    bool direct, can_direct;
    uint32_t requests;

    read_plan(config.model, MP_IO_AUTO, &requests, &direct, &can_direct);
    CHECK(!direct); /* 5760 bytes in up to three blocks */
    repack_must(&config);
    read_plan(config.out, MP_IO_AUTO, &requests, &direct, &can_direct);
    CHECK_EQ(direct, can_direct);
    CHECK_EQ(requests, 32);
}

static void fused_experts_are_split(void)
{
    static const struct {
        enum tiny_form form;
        const char *gate, *router;
    } forms[] = {
        { TINY_QWEN3_FUSED, "model.layers.1.mlp.experts.2.gate_proj.weight",
          "model.layers.1.mlp.gate.weight" },
        { TINY_MIXTRAL_FUSED, "model.layers.1.block_sparse_moe.experts.2.w1.weight",
          "model.layers.1.block_sparse_moe.gate.weight" },
    };

    for (size_t i = 0; i < 2; i++) {
        struct mp_repack_config config = repack_config(fresh(), fresh());
        struct tiny_model model;
        struct opened o;

        CHECK(mkdir(config.model, 0777) == 0);
        tiny_model_make(&model, forms[i].form);
        for (size_t t = 0; t < model.count; t++) /* the router where the library puts it */
            if (strstr(model.tensors[t].name, "block_sparse_moe.gate") != NULL)
                snprintf(model.tensors[t].name, sizeof(model.tensors[t].name),
                         "model.layers.%c.mlp.gate.weight", model.tensors[t].name[13]);
        tiny_write_config(config.model, forms[i].form);
        tiny_write_shard(config.model, "model.safetensors", &model, 0, model.count, 0);
        CHECK(repack_must(&config).fused);
        open_model(config.out, &o);
        CHECK(mp_checkpoint_find(o.checkpoint, forms[i].gate) != NULL);
        CHECK(mp_checkpoint_find(o.checkpoint, forms[i].router) != NULL);
        CHECK_EQ(o.weights->extra_tensors, 0);
        close_model(&o);
        check_repacked(config.model, config.out);
    }
}

/* Only routers of layers that the model has get a new name: names that look alike are any number,
 * and two of them would get the same one. */
static void names_like_those_of_routers_stay(void)
{
    struct mp_repack_config config = repack_config(fresh(), fresh());
    struct tiny_model model;
    struct opened o;

    CHECK(mkdir(config.model, 0777) == 0);
    tiny_model_make(&model, TINY_MIXTRAL_FUSED);
    for (unsigned i = 0; i < 30; i++) {
        struct tiny_tensor *tensor = &model.tensors[model.count++];

        *tensor = (struct tiny_tensor){ .dtype = "U8", .dims = 1, .shape = { 3 } };
        snprintf(tensor->name, sizeof(tensor->name), "model.layers.%0*u.mlp.gate.weight",
                 i < 15 ? (int)i + 2 : 1, i < 15 ? 1 : i);
    }
    tiny_write_config(config.model, TINY_MIXTRAL_FUSED);
    tiny_write_shard(config.model, "model.safetensors", &model, 0, model.count, 0);
    CHECK(repack_must(&config).fused);
    open_model(config.out, &o);
    CHECK_EQ(o.weights->extra_tensors, 30);
    CHECK(mp_checkpoint_find(o.checkpoint, "model.layers.01.mlp.gate.weight") != NULL);
    CHECK(mp_checkpoint_find(o.checkpoint, "model.layers.20.mlp.gate.weight") != NULL);
    close_model(&o);
}

/* Tensors without elements, scalars, other types, names with quotes; none is lost. */
static void odd_tensors_come_along(void)
{
    static const struct tiny_tensor odd[] = {
        { .name = "zz.\\\"quoted\\\\", .dtype = "U8", .dims = 1, .shape = { 3 } },
        { .name = "aa.empty", .dtype = "F16", .dims = 2, .shape = { 0, 7 } },
        { .name = "zz.empty", .dtype = "F32", .dims = 1, .shape = { 0 } },
        { .name = "scalar", .dtype = "BF16", .dims = 0 },
        { .name = "zz.odd", .dtype = "F16", .dims = 1, .shape = { 5 } },
    };
    struct mp_repack_config config = repack_config(fresh(), fresh());
    struct tiny_model model;
    struct opened o;

    CHECK(mkdir(config.model, 0777) == 0);
    tiny_model_make(&model, TINY_QWEN2);
    memmove(&model.tensors[5], &model.tensors[0], model.count * sizeof(model.tensors[0]));
    memcpy(model.tensors, odd, sizeof(odd));
    model.count += 5;
    tiny_write_config(config.model, TINY_QWEN2);
    tiny_write_shard(config.model, "model.safetensors", &model, 0, model.count, 0);
    for (config.shard_bytes = 1; config.shard_bytes < 10000; config.shard_bytes *= 9) {
        config.out = fresh();
        repack_must(&config);
        check_repacked(config.model, config.out);
        open_model(config.out, &o);
        CHECK_EQ(o.weights->extra_tensors, 5);
        close_model(&o);
    }
}

int main(void)
{
    RUN(same_bits_and_tensors_in_one_file_and_in_several);
    RUN(families_repack_to_the_same_bits);
    RUN(a_repacked_model_repacks_to_itself);
    RUN(files_are_filled_to_the_last_byte);
    RUN(pieces_that_touch_are_one_read);
    RUN(a_miss_is_one_aligned_read);
    RUN(small_experts_are_read_directly);
    RUN(fused_experts_are_split);
    RUN(names_like_those_of_routers_stay);
    RUN(odd_tensors_come_along);
    return 0;
}
