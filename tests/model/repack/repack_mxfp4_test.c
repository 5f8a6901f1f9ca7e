/*
 * `repack --type mxfp4 --to safetensors`: experts of gpt-oss in plain numbers become those of its
 * own checkpoints. The blocks are those of a GGUF file of the same type, byte for byte, by its own
 * writer; the directory has the bits of the GGUF file that is made of it; any part of a tensor can
 * be read alone; what has no such form is refused.
 */
#include <jansson.h>
#include <math.h>

#include "engine/repack/repack_int.h"
#include "tests/model/fails.h"
#include "tests/model/gguf/convert.h"
#include "tests/model/gguf/twin_runs.h"
#include "tests/model/repack_check.h"
#include "tests/support/fault/wrap.h"
#include "vmm/format/gguf.h"

#define SOURCE DATA "gpt_oss-mxfp4"
#define HIDDEN 64
#define CHANNELS 32
#define EXPERTS 4

static const char config[] =
    "{\"architectures\":[\"GptOssForCausalLM\"],\"vocab_size\":97,\"hidden_size\":64,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
    "\"num_local_experts\":4,\"num_experts_per_tok\":2,\"intermediate_size\":32,"
    "\"attention_bias\":true,\"sliding_window\":8,\"max_position_embeddings\":512,"
    "\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"rope_theta\":150000.0}";

static bool infinite; /* one weight of the models that are made */

/* The fixture's experts become plain numbers, transposed; its scales a tensor that nothing uses. */
static void make_plain(struct rewritten *tensor)
{
    const bool down = strstr(tensor->name, "down_proj_blocks") != NULL;
    char *blocks = strstr(tensor->name, "_blocks");
    uint32_t lcg = down ? 7 : 5;
    size_t count;
    float *data;

    rewrite_as_f32(tensor);
    if (strstr(tensor->name, "_scales") != NULL)
        memcpy(tensor->name, "unused", 6);
    if (blocks == NULL)
        return;
    *blocks = '\0';
    tensor->dtype = "F32";
    tensor->dims = 3;
    tensor->shape[0] = EXPERTS;
    tensor->shape[1] = down ? CHANNELS : HIDDEN;
    tensor->shape[2] = down ? HIDDEN : 2 * CHANNELS;
    count = EXPERTS * tensor->shape[1] * tensor->shape[2];
    data = malloc(count * sizeof(*data));
    CHECK(data != NULL);
    for (size_t i = 0; i < count; i++) {
        lcg = lcg * 1664525 + 1013904223;
        data[i] = ((float)(lcg >> 8) * 0x1p-24f - 0.5f) * (i % 5 == 0 ? 0.5f : 0.1f);
    }
    if (infinite)
        data[count - 1] = INFINITY;
    free(tensor->data);
    tensor->data = data;
    tensor->bytes = count * sizeof(*data);
}

static const char *plain_model(const char *name)
{
    const char *model = in_tmpdir(name);

    rewrite_model(SOURCE, model, config, make_plain);
    return model;
}

static struct mp_repack_config mxfp4(const char *model, const char *out)
{
    struct mp_repack_config made = repack_config(model, out);

    made.mxfp4 = true;
    return made;
}

/* The bytes of all experts of both files. */
static void check_same_experts(const char *a, const char *b)
{
    struct mp_gguf *x, *y;
    unsigned compared = 0;

    CHECK_EQ(mp_gguf_open(a, &x), MP_OK);
    CHECK_EQ(mp_gguf_open(b, &y), MP_OK);
    for (size_t i = 0; i < mp_gguf_count(x); i++) {
        const struct mp_gguf_tensor *t = mp_gguf_tensor(x, i), *u = mp_gguf_find(y, t->name);
        char *p = malloc(t->bytes), *q = malloc(t->bytes);

        CHECK(p != NULL && q != NULL && u != NULL);
        if (strstr(t->name, "_exps.weight") != NULL) {
            CHECK_STR(t->type->name, "MXFP4");
            CHECK_EQ(t->bytes, u->bytes);
            CHECK_EQ(mp_files_read(mp_gguf_files(x), 0, t->offset_bytes, t->bytes, p), MP_OK);
            CHECK_EQ(mp_files_read(mp_gguf_files(y), 0, u->offset_bytes, t->bytes, q), MP_OK);
            CHECK(memcmp(p, q, t->bytes) == 0);
            compared++;
        }
        free(p);
        free(q);
    }
    CHECK_EQ(compared, 6);
    mp_gguf_close(x);
    mp_gguf_close(y);
}

/* As published models say it. */
static void check_config(const char *dir)
{
    char path[PATH_BYTES];
    json_t *root, *old = json_loads(config, 0, NULL);
    const json_t *quantization;

    snprintf(path, sizeof(path), "%s/config.json", dir);
    root = json_load_file(path, 0, NULL);
    quantization = json_object_get(root, "quantization_config");
    CHECK_STR(json_string_value(json_object_get(quantization, "quant_method")), "mxfp4");
    CHECK_EQ(json_array_size(json_object_get(quantization, "modules_to_not_convert")), 4);
    CHECK_EQ(json_object_del(root, "quantization_config"), 0);
    CHECK(json_equal(root, old));
    json_decref(old);
    json_decref(root);
}

static void blocks_are_those_of_gguf_files(void)
{
    const char *model = plain_model("plain"), *out = in_tmpdir("apart");
    const char *direct = in_tmpdir("direct.gguf"), *again = in_tmpdir("again.gguf");
    struct mp_repack_config job = mxfp4(model, out);
    const struct mp_repack_report report = repack_must(&job);
    size_t bytes, more;
    float *want, *got;

    /* Nibbles and scales of two matrices of 64 x 64 and 64 x 32. */
    CHECK_EQ(report.experts, 8);
    CHECK_EQ(report.expert_bytes, 8 * (64 * 64 + 64 * 32) / 32 * 17);
    check_config(out);
    convert(model, direct, "mxfp4");
    CHECK_EQ(convert(out, again, "f32").quantised, 0);
    check_same_experts(direct, again);
    want = twin_logits(out, UINT64_MAX, &bytes);
    got = twin_logits(again, UINT64_MAX, &more);
    CHECK_EQ(bytes, more);
    CHECK(memcmp(want, got, bytes) == 0);
    free(got);
    job.out = in_tmpdir("shards");
    job.shard_bytes = 9000;
    CHECK(repack_must(&job).shards > 3);
    got = twin_logits(job.out, UINT64_MAX, &more);
    CHECK(bytes == more && memcmp(want, got, bytes) == 0);
    free(got);
    free(want);
}

/* Files are written by parts that end anywhere. */
static void any_part_can_be_read(void)
{
    static const uint64_t parts[] = { 1, 7, 16, 31, 333, 4099 };
    const char *model = plain_model("parts");
    struct mp_repack_config settings = mxfp4(model, "unused");
    struct opened opened;
    struct mp_repack_plan plan = { .item_count = 0 };
    struct mp_repack_job job = { .config = &settings, .plan = &plan };
    char *whole = malloc(1 << 16), *part = malloc(1 << 16);

    open_model(model, &opened);
    plan.checkpoint = opened.checkpoint;
    plan.weights = opened.weights;
    CHECK_EQ(mp_repack_plan_make(&plan, &opened.model, &settings), MP_OK);
    CHECK_EQ(plan.expert_items, 8);
    job.cache = malloc(MP_REPACK_BUFFER_BYTES);
    CHECK(job.cache != NULL && whole != NULL && part != NULL);
    for (size_t i = 0; i < plan.expert_items; i++) {
        const struct mp_repack_item *item = &plan.items[i];

        CHECK(item->bytes < 1 << 16);
        CHECK_EQ(mp_repack_read(&job, item, 0, item->bytes, whole), MP_OK);
        for (size_t p = 0; p < MP_ARRAY_LEN(parts); p++) {
            for (uint64_t at = 0; at < item->bytes; at += parts[p]) {
                const uint64_t left = item->bytes - at;

                CHECK_EQ(
                    mp_repack_read(&job, item, at, left < parts[p] ? left : parts[p], part + at),
                    MP_OK);
            }
            CHECK(memcmp(whole, part, item->bytes) == 0);
        }
    }
    free(job.cache);
    free(whole);
    free(part);
    mp_repack_plan_fini(&plan);
    close_model(&opened);
}

static void what_has_no_such_form_is_refused(void)
{
    struct mp_repack_config job = mxfp4(QWEN3, in_tmpdir("refused"));
    struct mp_repack_report report;

    CHECK_FAILS(mp_repack(&job, &report), MP_ERR_MODEL, "E_UNSUPPORTED",
                "directories of the family Qwen3MoeForCausalLM have no experts in MXFP4; --to gguf "
                "writes them so");
    job.model = SOURCE;
    CHECK_FAILS(mp_repack(&job, &report), MP_ERR_MODEL, "E_UNSUPPORTED",
                "the experts of this model are MXFP4 already");
    job.model = DATA "gpt_oss-a";
    CHECK_FAILS(mp_repack(&job, &report), MP_ERR_MODEL, "E_UNSUPPORTED",
                "experts of 24 channels and a hidden_size of 40 have no whole blocks of 32 "
                "weights, as MXFP4 needs");
    infinite = true;
    job.model = plain_model("infinite");
    infinite = false;
    CHECK_FAILS(mp_repack(&job, &report), MP_ERR_MODEL, "E_CONVERT_VALUE",
                "row 255 of what becomes 'model.layers.0.mlp.experts.gate_up_proj_blocks' has a "
                "number that is not finite; the model is damaged");
    CHECK(!dir_has(job.out, "."));
}

/* ---- failures */

static const char *fault_model;

/* What looks like a model is whole: it has been given its names when a last call fails. */
static void check_no_half_model(const char *dir)
{
    struct mp_checkpoint *checkpoint;

    if (!dir_has(dir, "model.safetensors"))
        return;
    CHECK_EQ(mp_checkpoint_open(dir, &checkpoint), MP_OK);
    CHECK_EQ(mp_checkpoint_check_values(checkpoint, NULL), MP_OK);
    mp_checkpoint_close(checkpoint);
}

static void fail_once(const struct fault_plan *plan, void *ctx)
{
    static unsigned count;
    char name[32];
    struct mp_repack_config job;
    struct mp_repack_report report;
    enum mp_status status;

    (void)ctx;
    snprintf(name, sizeof(name), "fault%u", count++);
    job = mxfp4(fault_model, in_tmpdir(name));
    mp_error_clear();
    fault_begin(plan);
    status = mp_repack(&job, &report);
    if (fault_end() == 0)
        CHECK_EQ(status, MP_OK);
    if (status == MP_OK)
        return;
    CHECK(status == MP_ERR_NO_MEMORY || status == MP_ERR_IO);
    CHECK(mp_error_last()->text[0] != '\0');
    check_no_half_model(job.out);
}

static void every_call_fails_once(void)
{
    static char model[PATH_BYTES];

    snprintf(model, sizeof(model), "%s", plain_model("fault"));
    fault_model = model;
    fault_sweep_briefly(true);
    CHECK(fault_sweep(FAULT_ANY, fail_once, NULL) > 10);
}

int main(void)
{
    const struct mp_pool_config one = { .threads = 1 };

    CHECK_EQ(mp_pool_create(&one, NULL, MP_TOPOLOGY_ANY_NODE, &pool), MP_OK);
    RUN(blocks_are_those_of_gguf_files);
    RUN(any_part_can_be_read);
    RUN(what_has_no_such_form_is_refused);
    RUN(every_call_fails_once);
    mp_pool_destroy(pool);
    return 0;
}
