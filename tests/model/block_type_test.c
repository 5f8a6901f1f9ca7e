/*
 * A number type whose blocks are 32 elements in 34 bytes, made up here and known to no file of the
 * program: its tables are asked through the linker. A model of such weights goes from its file
 * through plan, slots and products, at every budget, and gives the bits of the same values stored
 * as floats; in slices it gives those of the whole; devices, which have no kernels for it, refuse
 * it.
 */
#include <math.h>

#include "engine/model/types.h"
#include "engine/repack/repack.h"
#include "tests/model/fails.h"
#include "tests/model/harness.h"
#include "tests/model/repack_check.h"
#include "tests/model/rewrite.h"
#include "tests/support/tmpdir.h"

#define MODEL "models/tiny-moe"
#define BLOCK 32u
#define BLOCK_BYTES 34u
#define TEST_DTYPE ((enum mp_dtype)MP_DTYPE_COUNT)
#define TEST_WTYPE ((enum mp_wtype)MP_WTYPE_COUNT)

#define PROMPT 6
#define STEPS 5

/* ---- the type: a BF16 scale, then 32 signed bytes */

static void convert(float *dst, const void *src, size_t count)
{
    const unsigned char *from = src;

    CHECK_EQ(count % BLOCK, 0);
    for (size_t i = 0; i < count; i++) {
        const unsigned char *block = from + i / BLOCK * BLOCK_BYTES;
        const uint32_t bits = (uint32_t)block[1] << 24 | (uint32_t)block[0] << 16;
        float scale;

        memcpy(&scale, &bits, sizeof(scale));
        dst[i] = scale * (float)(signed char)block[2 + i % BLOCK];
    }
}

static const struct mp_wtype_info test_wtype = { "t34", BLOCK, BLOCK_BYTES, convert, 0 };
static const struct mp_dtype_info test_dtype = { "T34", BLOCK, BLOCK_BYTES, 0, 0 };

const struct mp_wtype_info *__real_mp_wtype_info(enum mp_wtype type);
const struct mp_wtype_info *__wrap_mp_wtype_info(enum mp_wtype type);
const struct mp_dtype_info *__real_mp_dtype_info(enum mp_dtype dtype);
const struct mp_dtype_info *__wrap_mp_dtype_info(enum mp_dtype dtype);
bool __real_mp_dtype_find(const char *name, enum mp_dtype *dtype_p);
bool __wrap_mp_dtype_find(const char *name, enum mp_dtype *dtype_p);
bool __real_mp_wtype_of(enum mp_dtype dtype, enum mp_wtype *type_p);
bool __wrap_mp_wtype_of(enum mp_dtype dtype, enum mp_wtype *type_p);
enum mp_dtype __real_mp_dtype_of(enum mp_wtype type);
enum mp_dtype __wrap_mp_dtype_of(enum mp_wtype type);

const struct mp_wtype_info *__wrap_mp_wtype_info(enum mp_wtype type)
{
    return type == TEST_WTYPE ? &test_wtype : __real_mp_wtype_info(type);
}

const struct mp_dtype_info *__wrap_mp_dtype_info(enum mp_dtype dtype)
{
    return dtype == TEST_DTYPE ? &test_dtype : __real_mp_dtype_info(dtype);
}

bool __wrap_mp_dtype_find(const char *name, enum mp_dtype *dtype_p)
{
    if (name == NULL || strcmp(name, test_dtype.name) != 0)
        return __real_mp_dtype_find(name, dtype_p);
    *dtype_p = TEST_DTYPE;
    return true;
}

bool __wrap_mp_wtype_of(enum mp_dtype dtype, enum mp_wtype *type_p)
{
    if (dtype != TEST_DTYPE)
        return __real_mp_wtype_of(dtype, type_p);
    *type_p = TEST_WTYPE;
    return true;
}

enum mp_dtype __wrap_mp_dtype_of(enum mp_wtype type)
{
    return type == TEST_WTYPE ? TEST_DTYPE : __real_mp_dtype_of(type);
}

/* ---- models of it */

static void encode_block(unsigned char *block, const float *values)
{
    float largest = 0, scale;
    uint32_t bits;

    for (uint32_t i = 0; i < BLOCK; i++)
        largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest;
    scale = largest / 100;
    memcpy(&bits, &scale, sizeof(bits));
    bits &= 0xffff0000;
    memcpy(&scale, &bits, sizeof(scale));
    block[0] = (unsigned char)(bits >> 16);
    block[1] = (unsigned char)(bits >> 24);
    for (uint32_t i = 0; i < BLOCK; i++)
        block[2 + i] = (unsigned char)(signed char)(scale > 0 ? lrintf(values[i] / scale) : 0);
}

static bool is_matrix(const struct rewritten *tensor)
{
    return tensor->dims == 2 && tensor->shape[1] % BLOCK == 0;
}

/* Matrices become T34. */
static void to_blocks(struct rewritten *tensor)
{
    const size_t count = tensor->shape[0] * tensor->shape[1];
    unsigned char *blocks;
    float *values;

    if (!is_matrix(tensor))
        return;
    CHECK_STR(tensor->dtype, "BF16");
    values = malloc(count * sizeof(*values));
    blocks = malloc(count / BLOCK * BLOCK_BYTES);
    CHECK(values != NULL && blocks != NULL);
    mp_kernels_ref.convert(values, tensor->data, MP_WTYPE_BF16, count);
    for (size_t b = 0; b < count / BLOCK; b++)
        encode_block(blocks + b * BLOCK_BYTES, values + b * BLOCK);
    free(values);
    free(tensor->data);
    tensor->data = blocks;
    tensor->bytes = count / BLOCK * BLOCK_BYTES;
    tensor->dtype = "T34";
}

/* Matrices become the floats that their blocks stand for. */
static void to_floats(struct rewritten *tensor)
{
    const size_t count = tensor->shape[0] * tensor->shape[1];
    float *values;

    if (!is_matrix(tensor))
        return;
    to_blocks(tensor);
    values = malloc(count * sizeof(*values));
    CHECK(values != NULL);
    convert(values, tensor->data, count);
    free(tensor->data);
    tensor->data = values;
    tensor->bytes = count * sizeof(*values);
    tensor->dtype = "F32";
}

static const char *fresh(void)
{
    static char paths[16][sizeof(test_tmpdir_path) + 32];
    static unsigned count;

    CHECK(count < 16);
    snprintf(paths[count], sizeof(paths[0]), "%s/m%u", test_tmpdir(), count);
    return paths[count++];
}

static const char *model_of(void (*change)(struct rewritten *tensor))
{
    const char *out = fresh();

    rewrite_model(MODEL, out, NULL, change);
    return out;
}

static float *logits_of(const struct harness_options *options, size_t *bytes_p)
{
    static const int32_t tokens[PROMPT + STEPS] = { 5, 700, 33, 1999, 42, 8, 64, 120, 7, 900, 11 };
    static const int32_t lens[1] = { PROMPT };
    struct harness h;
    float *logits;

    harness_open(options, &h);
    *bytes_p = (size_t)h.model.vocab * (STEPS + 1) * sizeof(*logits);
    logits = malloc(*bytes_p);
    CHECK(logits != NULL);
    CHECK_EQ(harness_run(&h, tokens, PROMPT + STEPS, lens, 1, STEPS, logits), MP_OK);
    harness_close(&h);
    return logits;
}

/* ---- tests */

static void rows_are_counted_in_blocks(void)
{
    uint64_t bytes = 7;

    CHECK_EQ(mp_wtype_bytes(TEST_WTYPE, 96), 102);
    CHECK(mp_dtype_bytes(TEST_DTYPE, 96, &bytes));
    CHECK_EQ(bytes, 102);
    CHECK(
        !mp_dtype_bytes(TEST_DTYPE, 16, &bytes)); /* 17 bytes would be whole, half a block is not */
    CHECK(!mp_dtype_bytes(TEST_DTYPE, UINT64_MAX / BLOCK * BLOCK, &bytes));
    CHECK_EQ(bytes, 102);
}

static void the_tables_agree(void)
{
    for (int i = 0; i <= MP_WTYPE_COUNT; i++) {
        const enum mp_dtype dtype = mp_dtype_of((enum mp_wtype)i);
        enum mp_wtype back;

        CHECK(mp_wtype_of(dtype, &back));
        CHECK_EQ(back, i);
        CHECK_EQ(mp_dtype_info(dtype)->block_elements, mp_wtype_info(back)->block_elements);
        CHECK_EQ(mp_dtype_info(dtype)->block_bytes, mp_wtype_info(back)->block_bytes);
        CHECK_EQ(MP_KERNEL_BLOCK_COLS % mp_wtype_info(back)->block_elements, 0);
    }
}

/* Every implementation, every way of cutting rows and tokens: the bits of the floats. */
static void products_have_the_bits_of_floats(void)
{
    enum { ROWS = 37, COLS = 1056, TOKENS = 9 };
    static float values[ROWS * COLS], x[TOKENS * COLS], want[TOKENS * ROWS], got[TOKENS * ROWS];
    static unsigned char blocks[ROWS * COLS / BLOCK * BLOCK_BYTES];

    for (size_t i = 0; i < ROWS * COLS; i++)
        values[i] = (float)((int)(i * 7919 % 255) - 127) / 64;
    for (size_t i = 0; i < TOKENS * COLS; i++)
        x[i] = (float)((int)(i * 104729 % 1001) - 500) / 300;
    for (size_t b = 0; b < ROWS * COLS / BLOCK; b++)
        encode_block(blocks + b * BLOCK_BYTES, values + b * BLOCK);
    convert(values, blocks, ROWS * COLS);
    for (size_t n = 0; mp_kernels_names[n] != NULL; n++) {
        const struct mp_kernels *k = mp_kernels_find(mp_kernels_names[n]);

        if (k == NULL)
            continue;
        k->matmul(want, ROWS, values, MP_WTYPE_F32, COLS, x, COLS, ROWS, COLS, TOKENS);
        k->matmul(got, ROWS, blocks, TEST_WTYPE, COLS, x, COLS, ROWS, COLS, TOKENS);
        CHECK(memcmp(want, got, sizeof(want)) == 0);
        k->matmul_blocked(want, ROWS, values, MP_WTYPE_F32, COLS, x, COLS, ROWS, COLS, TOKENS, 0);
        k->matmul_blocked(got, ROWS, blocks, TEST_WTYPE, COLS, x, COLS, ROWS, 512, TOKENS, 0);
        k->matmul_blocked(got, ROWS, blocks + 512 / BLOCK * BLOCK_BYTES, TEST_WTYPE, COLS, x + 512,
                          COLS, ROWS, COLS - 512, TOKENS, 1);
        CHECK(memcmp(want, got, sizeof(want)) == 0);
        k->convert(got, blocks, TEST_WTYPE, 64);
        CHECK(memcmp(values, got, 64 * sizeof(float)) == 0);
    }
}

static void a_model_has_the_bits_of_its_floats(void)
{
    const char *blocks = model_of(to_blocks), *floats = model_of(to_floats);

    for (size_t n = 0; mp_kernels_names[n] != NULL; n++) {
        struct harness_options options = harness_defaults(floats);
        struct mp_space_plan plan;
        float *want, *got;
        size_t bytes, more;

        if (mp_kernels_find(mp_kernels_names[n]) == NULL)
            continue;
        options.kernels = mp_kernels_names[n];
        want = logits_of(&options, &bytes);
        options.model = blocks;
        plan = harness_plan(&options, NULL);
        for (unsigned i = 0; i < 3; i++) {
            options.budget_bytes =
                plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * i / 2;
            options.threads = 1 + i % 2;
            got = logits_of(&options, &more);
            CHECK_EQ(more, bytes);
            CHECK(memcmp(want, got, bytes) == 0);
            free(got);
        }
        free(want);
    }
}

static struct mp_repack_config repack_of(const char *model, uint32_t slices)
{
    return (struct mp_repack_config){
        .model = model, .out = fresh(), .slices = slices, .shard_bytes = UINT64_MAX
    };
}

static void it_is_cut_into_slices_of_whole_blocks(void)
{
    const char *blocks = model_of(to_blocks);
    struct harness_options options = harness_defaults(blocks);
    struct mp_repack_config whole = repack_of(blocks, 1), cut = repack_of(blocks, 3), back;
    struct mp_repack_config bad = repack_of(blocks, 2);
    struct mp_repack_report report;
    size_t bytes, more;
    float *want, *got;

    CHECK_FAILS(mp_repack(&bad, &report), MP_ERR_CONFIG, "E_SLICES",
                "slices of 48 channels cut blocks of T34, which are 32 channels; choose another "
                "--slices");
    CHECK_EQ(mp_repack(&whole, &report), MP_OK);
    CHECK_EQ(mp_repack(&cut, &report), MP_OK);
    back = repack_of(cut.out, 1);
    CHECK_EQ(mp_repack(&back, &report), MP_OK);
    check_same_dirs(whole.out, back.out);
    want = logits_of(&options, &bytes);
    options.model = whole.out;
    got = logits_of(&options, &more);
    CHECK(memcmp(want, got, bytes) == 0);
    free(got);
    options.model = cut.out; /* 32 channels are no block of the down projection's sums */
    got = logits_of(&options, &more);
    for (size_t i = 0; i < bytes / sizeof(*want); i++)
        CHECK(fabsf(want[i] - got[i]) < 1e-3f);
    free(got);
    free(want);
}

#define DOWN "model.layers.0.mlp.experts.3.down_proj.weight"

/* 40 rows of 24 elements are 30 whole blocks, of which rows are three quarters. */
static void one_tensor_to_blocks(struct rewritten *tensor)
{
    if (strcmp(tensor->name, DOWN) != 0)
        return;
    CHECK_EQ(tensor->shape[0] * tensor->shape[1], 30 * BLOCK);
    tensor->bytes = 30 * BLOCK_BYTES;
    tensor->dtype = "T34";
}

static void a_row_is_whole_blocks(void)
{
    struct harness_options options = harness_defaults(fresh());
    struct harness h;

    rewrite_model("tests/data/models/qwen2moe-tiny", options.model, NULL, one_tensor_to_blocks);
    CHECK_FAILS(harness_try_open(&options, &h), MP_ERR_MODEL, "E_TENSOR_SHAPE",
                "tensor '" DOWN "' in 'model.safetensors': got rows of 24 elements, T34 needs a "
                "multiple of 32");
}

static void a_device_without_kernels_for_it_refuses(void)
{
    struct harness_options options = harness_defaults(model_of(to_blocks));
    struct harness h;

    options.backend = "cuda";
    CHECK_FAILS(harness_try_open(&options, &h), MP_ERR_MODEL, "E_UNSUPPORTED",
                "the model has weights of type t34, for which devices have no kernels; use "
                "--device cpu");
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "cuda") == 0) {
        RUN(a_device_without_kernels_for_it_refuses);
        return 0;
    }
    RUN(rows_are_counted_in_blocks);
    RUN(the_tables_agree);
    RUN(products_have_the_bits_of_floats);
    RUN(a_model_has_the_bits_of_its_floats);
    RUN(it_is_cut_into_slices_of_whole_blocks);
    RUN(a_row_is_whole_blocks);
    return 0;
}
