/*
 * `repack --type --imatrix`: importance changes the tensors that it names and no others, and makes
 * errors smaller where they count; broken files are refused with a line.
 */
#include <math.h>

#include "kernels/cpu/types.h"
#include "tests/model/gguf/imatrix.h"
#include "tests/support/gguf.h"
#include "vmm/format/gguf.h"

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
    const char *model = model_of_a_layer("weighed"), *without = in_tmpdir("without.gguf");
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

    snprintf(model, sizeof(model), "%s", model_of_a_layer("broken"));
    snprintf(out, sizeof(out), "%s", in_tmpdir("broken.gguf"));
    config = job(model, out, "q4_k");
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        config.imatrix = write_list(&cases[i].list);
        check_refused(&config, MP_ERR_MODEL, "E_IMATRIX", cases[i].part);
    }
    config.imatrix = in_tmpdir("nowhere");
    check_refused(&config, MP_ERR_IO, "E_OPEN", "nowhere");
}

/* ---- GGUF files that are no importance matrices */

#define EXPERTS "blk.0.ffn_gate_exps.weight"

enum { F32 = 0, F16 = 1 }; /* numbers of types in files */

static const char *write_other(const char *name, uint64_t a, uint64_t b, unsigned type, float value)
{
    const char *path = in_tmpdir("other.gguf");
    const uint64_t bytes = a * b * (type == F32 ? 4 : 2);

    gguf_begin(1, 0);
    gguf_tensor(name, a, b, type, 0);
    gguf_data(bytes);
    for (uint64_t i = 0; type == F32 && i < a * b; i++)
        memcpy(gguf_out + gguf_used - bytes + 4 * i, &value, 4);
    gguf_save(path);
    return path;
}

static void broken_gguf_weights_are_refused(void)
{
    static const struct {
        const char *name;
        uint64_t a, b;
        unsigned type;
        float value;
        const char *part;
    } cases[] = {
        { WEIGHED ".in_sum2", 128, 1, F32, 1,
          "has 128 numbers for 'blk.0.attn_q.weight', need 256" },
        { WEIGHED ".in_sum2", 256, 2, F32, 1,
          "has 512 numbers for 'blk.0.attn_q.weight', need 256" },
        { WEIGHED ".in_sum2", 256, 1, F16, 1, "has 0 numbers for 'blk.0.attn_q.weight', need 256" },
        { WEIGHED ".in_sum2", 256, 1, F32, -1, "negative or not finite" },
        { WEIGHED ".in_sum2", 256, 1, F32, NAN, "negative or not finite" },
        { EXPERTS ".in_sum2", 256, 1, F32, 1,
          "has 256 numbers for 'blk.0.ffn_gate_exps.weight', need 2048" },
        { EXPERTS ".in_sum2", 256, 7, F32, 1,
          "has 1792 numbers for 'blk.0.ffn_gate_exps.weight', need 2048" },
        { EXPERTS ".in_sum2", 256, 8, F32, INFINITY, "negative or not finite" },
    };
    char model[PATH_BYTES], out[PATH_BYTES];
    struct mp_convert_config config;

    snprintf(model, sizeof(model), "%s", model_of_a_layer("broken2"));
    snprintf(out, sizeof(out), "%s", in_tmpdir("broken2.gguf"));
    config = job(model, out, "q4_k");
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        config.imatrix =
            write_other(cases[i].name, cases[i].a, cases[i].b, cases[i].type, cases[i].value);
        check_refused(&config, MP_ERR_MODEL, "E_IMATRIX", cases[i].part);
    }
    config.imatrix = write_other(WEIGHED ".in_sum2", 256, 1, F32, 1);
    gguf_used -= 100; /* ends too early */
    gguf_save(config.imatrix);
    check_refused(&config, MP_ERR_MODEL, "E_GGUF_END", "cut short");
}

static void weights_of_another_model_change_nothing(void)
{
    const char *with = in_tmpdir("foreign.gguf"), *without = in_tmpdir("alone.gguf");
    struct mp_convert_config config = job(model_of_a_layer("foreign"), with, "q4_k");
    struct mp_convert_report report;

    convert(config.model, without, "q4_k");
    config.imatrix = write_other("blk.99.attn_q.weight.in_sum2", 256, 1, F32, 1);
    CHECK_EQ(mp_convert(&config, &report), MP_OK);
    CHECK_EQ(report.weighed, 0);
    check_same_file(with, without);
    /* All columns of all experts alike: each is as if there were no weights, or all zero. */
    config.imatrix = write_other(EXPERTS ".in_sum2", 256, 8, F32, 0);
    CHECK_EQ(mp_convert(&config, &report), MP_OK);
    CHECK_EQ(report.weighed, 1);
}

/* ---- effect */

/* The numbers of a tensor of a file; the caller frees them. */
static float *values_of(const char *path, const char *name, size_t *count_p)
{
    struct mp_gguf *gguf;
    const struct mp_gguf_tensor *tensor;
    enum mp_wtype type = MP_WTYPE_F32;
    char *bytes;
    float *values;

    CHECK_EQ(mp_gguf_open(path, &gguf), MP_OK);
    tensor = mp_gguf_find(gguf, name);
    CHECK(tensor != NULL);
    while (strcasecmp(mp_wtype_name(type), tensor->type->name) != 0)
        type++;
    *count_p =
        tensor->bytes / mp_wtype_info(type)->block_bytes * mp_wtype_info(type)->block_elements;
    bytes = malloc(tensor->bytes);
    values = malloc(*count_p * sizeof(*values));
    CHECK(bytes != NULL && values != NULL);
    CHECK_EQ(mp_files_read(mp_gguf_files(gguf), tensor->file, tensor->offset_bytes, tensor->bytes,
                           bytes),
             MP_OK);
    mp_wtype_info(type)->convert(values, bytes, *count_p);
    mp_gguf_close(gguf);
    free(bytes);
    return values;
}

/* The squared error, as the list of `whole` weighs columns. */
static double weighed_error(const char *path, const char *exact)
{
    size_t count, more;
    float *got = values_of(path, WEIGHED, &count), *want = values_of(exact, WEIGHED, &more);
    double sum = 0;

    CHECK_EQ(count, more);
    for (size_t i = 0; i < count; i++)
        sum += (i % 16 == 3 ? 100.0 : 1.0) * pow((double)got[i] - (double)want[i], 2);
    free(got);
    free(want);
    return sum;
}

/* One column of 16 counts as much as a hundred: what is weighed so becomes less wrong. */
static void errors_become_smaller_where_they_count(void)
{
    static const char *const types[] = { "q8_0", "q6_k", "q5_k", "q4_k",   "q3_k", "q2_k",
                                         "q4_0", "q5_0", "q4_1", "iq4_xs", "mxfp4" };
    char model[PATH_BYTES], exact[PATH_BYTES], with[PATH_BYTES], without[PATH_BYTES];

    snprintf(model, sizeof(model), "%s", model_of_a_layer("effect"));
    snprintf(exact, sizeof(exact), "%s", in_tmpdir("exact.gguf"));
    snprintf(with, sizeof(with), "%s", in_tmpdir("weighed.gguf"));
    snprintf(without, sizeof(without), "%s", in_tmpdir("unweighed.gguf"));
    convert(model, exact, "f32");
    for (size_t i = 0; i < MP_ARRAY_LEN(types); i++) {
        struct mp_convert_config config = job(model, with, types[i]);
        struct mp_convert_report report;
        double ratio;

        convert(model, without, types[i]);
        config.imatrix = write_list(&whole);
        CHECK_EQ(mp_convert(&config, &report), MP_OK);
        ratio = weighed_error(with, exact) / weighed_error(without, exact);
        fprintf(stderr, "    %s: %.3f of the weighed error without\n", types[i], ratio);
        CHECK(ratio < 1);
    }
}

int main(void)
{
    const struct mp_pool_config one = { .threads = 1 };

    CHECK_EQ(mp_pool_create(&one, NULL, MP_TOPOLOGY_ANY_NODE, &pool), MP_OK);
    RUN(weights_change_what_they_name);
    RUN(broken_weights_are_refused);
    RUN(broken_gguf_weights_are_refused);
    RUN(weights_of_another_model_change_nothing);
    RUN(errors_become_smaller_where_they_count);
    mp_pool_destroy(pool);
    return 0;
}
