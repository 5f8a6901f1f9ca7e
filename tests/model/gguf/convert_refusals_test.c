/*
 * `repack --type`: what cannot be written, and broken importance matrices, are refused with a line;
 * importance changes the tensors that it names and no others; every call fails once.
 */
#include <math.h>
#include <unistd.h>

#include "tests/model/fails.h"
#include "tests/model/gguf/convert.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/gguf.h"
#include "vmm/format/gguf.h"

static void check_refused(const struct mp_convert_config *config, enum mp_status status,
                          const char *code, const char *part)
{
    struct mp_convert_report report;

    mp_error_clear();
    CHECK_EQ(mp_convert(config, &report), status);
    CHECK_STR(mp_error_last()->code, code);
    if (strstr(mp_error_last()->text, part) == NULL) {
        fprintf(stderr, "%s\n", mp_error_last()->text);
        exit(1);
    }
}

static void what_cannot_be_written(void)
{
    const char *out = in_tmpdir("never.gguf"), *file = in_tmpdir("there.gguf");
    struct mp_convert_config config = job(TINY, out, "q9");

    check_refused(&config, MP_ERR_CONFIG, "E_USAGE", "--type 'q9' is none of f32, f16, bf16, q8_0");
    config.type = "q8_0";
    config.model = DATA "deepseek_v2-a";
    check_refused(&config, MP_ERR_MODEL, "E_UNSUPPORTED", "family DeepseekV2ForCausalLM");
    config.model = DATA "qwen3moe-tiny-nonorm"; /* has a layer without experts */
    check_refused(
        &config, MP_ERR_MODEL, "E_UNSUPPORTED",
        "'model.layers.0.mlp.gate_proj.weight' has no place in a GGUF file of 'qwen3moe'");
    config.model = TINY;
    config.out = test_tmpdir();
    check_refused(&config, MP_ERR_CONFIG, "E_REPACK_TARGET", "is a directory");
    convert(TINY, file, "q8_0");
    config.out = file;
    config.force = false;
    check_refused(&config, MP_ERR_CONFIG, "E_REPACK_TARGET", "is there already");
    config.model = file;
    config.force = true;
    check_refused(&config, MP_ERR_CONFIG, "E_REPACK_TARGET", "a file of the model itself");
    config.model = TINY;
    config.imatrix = file;
    check_refused(&config, MP_ERR_CONFIG, "E_REPACK_TARGET", "is the importance matrix");
    config.imatrix = NULL;
    config.model = file;
    config.out = out;
    check_refused(&config, MP_ERR_MODEL, "E_UNSUPPORTED", "only plain numbers are quantised");
    CHECK_EQ(access(out, F_OK), -1);
}

/* Found when the header is read again: that family's files have no key for it. */
static void what_gguf_cannot_say(void)
{
    static const struct {
        const char *from, *to, *part;
    } cases[] = {
        { "\"norm_topk_prob\":true", "\"norm_topk_prob\":false",
          "what this model has: weights of experts divided by their sum" },
        { "\"head_dim\":32",
          "\"head_dim\":32,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}",
          "what this model has: scaled positions" },
        { "\"head_dim\":32",
          "\"head_dim\":32,\"use_sliding_window\":true,\"sliding_window\":64,"
          "\"max_window_layers\":0",
          "what this model has: a sliding window" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const char *found = strstr(config_256, cases[i].from);
        const char *out = in_tmpdir("said.gguf");
        struct mp_convert_config config = job(NULL, out, "q8_0");
        char name[32], text[1024];

        CHECK(found != NULL);
        snprintf(name, sizeof(name), "said%zu", i);
        config.model = in_tmpdir(name);
        snprintf(text, sizeof(text), "%.*s%s%s", (int)(found - config_256), config_256, cases[i].to,
                 found + strlen(cases[i].from));
        rewrite_model(QWEN3, config.model, text, fill);
        check_refused(&config, MP_ERR_MODEL, "E_UNSUPPORTED", cases[i].part);
        CHECK_EQ(access(out, F_OK), -1);
    }
}

static void weights_are_finite(void)
{
    const char *model, *out = in_tmpdir("infinite.gguf");
    struct mp_convert_config config;

    bad = INFINITY;
    model = model_256("infinite");
    bad = 0;
    config = job(model, out, "q4_k");
    check_refused(&config, MP_ERR_MODEL, "E_CONVERT_VALUE",
                  "row 0 of what becomes 'token_embd.weight' has a number that is not finite");
    CHECK_EQ(access(out, F_OK), -1);
}

static bool cancel(void *context, uint64_t done, uint64_t total)
{
    CHECK(done <= total);
    return ++*(unsigned *)context < 3;
}

static void an_interruption_leaves_nothing(void)
{
    unsigned calls = 0;
    const struct mp_progress progress = { cancel, &calls };
    const char *out = in_tmpdir("canceled.gguf");
    struct mp_convert_config config = job(TINY, out, "q8_0");

    config.progress = &progress;
    check_refused(&config, MP_ERR_CANCELED, "E_CANCELED", "nothing was written");
    CHECK_EQ(access(out, F_OK), -1);
}

/* ---- importance matrices */

#define WEIGHED "blk.0.attn_q.weight"

/* The older form: one entry of 256 numbers for one tensor, unless changed. */
struct list {
    uint32_t count, length, calls, values;
    const char *name;
    float first;
    size_t cut_bytes; /* from the end */
};

static const struct list whole = { 1, sizeof(WEIGHED) - 1, 2, 256, WEIGHED, 1, 0 };

static const char *write_list(const struct list *list)
{
    const char *path = in_tmpdir("weights.dat");
    char bytes[2048];
    float values[256];
    size_t used = 0;
    FILE *file = fopen(path, "wb");

    for (size_t i = 0; i < 256; i++)
        values[i] = i % 16 == 3 ? 100 : 1;
    values[0] = list->first;
    memcpy(bytes, &list->count, 4);
    memcpy(bytes + 4, &list->length, 4);
    memcpy(bytes + 8, list->name, strlen(list->name));
    used = 8 + strlen(list->name);
    memcpy(bytes + used, &list->calls, 4);
    memcpy(bytes + used + 4, &list->values, 4);
    memcpy(bytes + used + 8, values, sizeof(values));
    used += 8 + sizeof(values) - list->cut_bytes;
    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, used, file), used);
    CHECK_EQ(fclose(file), 0);
    return path;
}

/* The same as a GGUF file. */
static const char *write_gguf_list(void)
{
    const char *path = in_tmpdir("weights.gguf");

    gguf_begin(1, 0);
    gguf_tensor(WEIGHED ".in_sum2", 256, 1, 0, 0);
    gguf_data(256 * 4);
    for (size_t i = 0; i < 256; i++) {
        const float value = i % 16 == 3 ? 100 : 1;

        memcpy(gguf_out + gguf_used - 1024 + 4 * i, &value, 4);
    }
    gguf_save(path);
    return path;
}

static void weights_change_what_they_name(void)
{
    const char *model = model_256("weighed"), *without = in_tmpdir("without.gguf");
    const char *with = in_tmpdir("with.gguf"), *gguf_with = in_tmpdir("with2.gguf");
    struct mp_convert_config config = job(model, with, "q4_k");
    struct mp_convert_report report;
    struct mp_gguf *x, *y;

    convert(model, without, "q4_k");
    config.imatrix = write_list(&whole);
    CHECK_EQ(mp_convert(&config, &report), MP_OK);
    CHECK_EQ(report.weighed, 1);
    config.out = gguf_with;
    config.imatrix = write_gguf_list();
    CHECK_EQ(mp_convert(&config, &report), MP_OK);
    check_same_file(with, gguf_with);
    CHECK_EQ(mp_gguf_open(without, &x), MP_OK);
    CHECK_EQ(mp_gguf_open(with, &y), MP_OK);
    for (size_t i = 0; i < mp_gguf_count(x); i++) {
        const struct mp_gguf_tensor *t = mp_gguf_tensor(x, i);
        char *p = malloc(t->bytes), *q = malloc(t->bytes);

        CHECK(p != NULL && q != NULL);
        CHECK_EQ(mp_files_read(mp_gguf_files(x), 0, t->offset_bytes, t->bytes, p), MP_OK);
        CHECK_EQ(mp_files_read(mp_gguf_files(y), 0, t->offset_bytes, t->bytes, q), MP_OK);
        CHECK_EQ(memcmp(p, q, t->bytes) == 0, strcmp(t->name, WEIGHED) != 0);
        free(p);
        free(q);
    }
    mp_gguf_close(x);
    mp_gguf_close(y);
}

static void broken_weights_are_refused(void)
{
    static const struct {
        struct list list;
        const char *part;
    } cases[] = {
        { { 0, 19, 2, 256, WEIGHED, 1, 0 }, "a number of weights is out of range" },
        { { 70000, 19, 2, 256, WEIGHED, 1, 0 }, "a number of weights is out of range" },
        { { 2, 19, 2, 256, WEIGHED, 1, 0 }, "it ends too early" },
        { { 1, 0, 2, 256, WEIGHED, 1, 0 }, "a name is too long" },
        { { 1, 1025, 2, 256, WEIGHED, 1, 0 }, "a name is too long" },
        { { 1, 1024, 2, 256, WEIGHED, 1, 500 }, "it ends too early" },
        { { 1, 19, 0x80000000u, 256, WEIGHED, 1, 0 }, "a number of calls is negative" },
        { { 1, 19, 2, 0, WEIGHED, 1, 0 }, "a number of columns is too large" },
        { { 1, 19, 2, 0x7fffffff, WEIGHED, 1, 0 }, "a number of columns is too large" },
        { { 1, 19, 2, 257, WEIGHED, 1, 0 }, "it ends too early" },
        { { 1, 19, 2, 256, WEIGHED, 1, 1 }, "it ends too early" },
        { { 1, 19, 2, 256, WEIGHED, 1, 1024 + 5 }, "it ends too early" },
        { { 1, 19, 2, 255, WEIGHED, 1, 0 }, "has 255 numbers for 'blk.0.attn_q.weight', need 256" },
        { { 1, 19, 2, 256, WEIGHED, -1, 0 }, "negative or not finite" },
        { { 1, 19, 2, 256, WEIGHED, NAN, 0 }, "negative or not finite" },
        { { 1, 19, 2, 256, WEIGHED, INFINITY, 0 }, "negative or not finite" },
    };
    char model[PATH_BYTES], out[PATH_BYTES];
    struct mp_convert_config config;

    snprintf(model, sizeof(model), "%s", model_256("broken"));
    snprintf(out, sizeof(out), "%s", in_tmpdir("broken.gguf"));
    config = job(model, out, "q4_k");
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        config.imatrix = write_list(&cases[i].list);
        check_refused(&config, MP_ERR_MODEL, "E_IMATRIX", cases[i].part);
    }
    config.imatrix = in_tmpdir("nowhere");
    check_refused(&config, MP_ERR_IO, "E_OPEN", "nowhere");
}

/* ---- failures */

static const char *fault_model, *fault_weights, *fault_want;

static void fail_once(const struct fault_plan *plan, void *ctx)
{
    const char *out = in_tmpdir("fault.gguf");
    struct mp_convert_config config = job(fault_model, out, "q8_0");
    struct mp_convert_report report;
    enum mp_status status;

    (void)ctx;
    config.imatrix = fault_weights;
    unlink(out);
    mp_error_clear();
    fault_begin(plan);
    status = mp_convert(&config, &report);
    if (fault_end() == 0)
        CHECK_EQ(status, MP_OK);
    if (status == MP_OK) {
        check_same_file(fault_want, out);
        return;
    }
    /* A file that cannot be opened to look at its first bytes counts as one of another kind. */
    CHECK(status == MP_ERR_NO_MEMORY || status == MP_ERR_IO || status == MP_ERR_MODEL);
    CHECK(mp_error_last()->text[0] != '\0');
    CHECK_EQ(access(out, F_OK), -1);
}

static void every_call_fails_once(void)
{
    static char model[PATH_BYTES], weights[PATH_BYTES], want[PATH_BYTES];
    struct mp_convert_config config;
    struct mp_convert_report report;

    const char *layers = strstr(config_256, "layers\":4");
    char text[1024];

    CHECK(layers != NULL); /* one is enough */
    snprintf(text, sizeof(text), "%.*s1%s", (int)(layers + 8 - config_256), config_256, layers + 9);
    snprintf(model, sizeof(model), "%s", in_tmpdir("fault"));
    rewrite_model(QWEN3, model, text, fill);
    snprintf(weights, sizeof(weights), "%s", write_list(&whole));
    snprintf(want, sizeof(want), "%s", in_tmpdir("fault-want.gguf"));
    fault_model = model;
    fault_weights = weights;
    fault_want = want;
    config = job(model, want, "q8_0");
    config.imatrix = weights;
    CHECK_EQ(mp_convert(&config, &report), MP_OK);
    CHECK(fault_sweep(FAULT_ANY, fail_once, NULL) > 10);
}

int main(void)
{
    const struct mp_pool_config one = { .threads = 1 };

    CHECK_EQ(mp_pool_create(&one, NULL, MP_TOPOLOGY_ANY_NODE, &pool), MP_OK);
    RUN(what_cannot_be_written);
    RUN(what_gguf_cannot_say);
    RUN(weights_are_finite);
    RUN(an_interruption_leaves_nothing);
    RUN(weights_change_what_they_name);
    RUN(broken_weights_are_refused);
    RUN(every_call_fails_once);
    mp_pool_destroy(pool);
    return 0;
}
