/*
 * Products with quantised weights: every variant against a sum in double, with the same bits in all
 * variants and all cuts; the ends of all fields; no access outside the operands; the self-test.
 */
#include "tests/unit/kernels/blocks.h"

struct problem {
    const struct mp_wtype_info *info;
    enum mp_wtype type;
    size_t rows, cols, tokens, w_row_bytes, x_stride, y_stride;
    struct guarded w_mem, x_mem, y_mem;
};

static struct problem problem_create(enum mp_wtype type, size_t rows, size_t cols, size_t tokens,
                                     size_t gap)
{
    struct problem p = { mp_wtype_info(type), type,       rows,  cols,  tokens, 0,
                         cols + gap,          rows + gap, { 0 }, { 0 }, { 0 } };
    const size_t blocks = cols / p.info->block_elements;

    p.w_row_bytes = (blocks + gap) * p.info->block_bytes;
    p.w_mem = guarded_alloc((rows - 1) * p.w_row_bytes + blocks * p.info->block_bytes);
    p.x_mem = guarded_alloc(((tokens - 1) * p.x_stride + cols) * 4);
    p.y_mem = guarded_alloc(((tokens - 1) * p.y_stride + rows) * 4);
    memset(p.w_mem.p, 0xFF, p.w_mem.bytes);
    memset(p.x_mem.p, 0xFF, p.x_mem.bytes);
    for (size_t r = 0; r < rows; r++)
        random_blocks((unsigned char *)p.w_mem.p + r * p.w_row_bytes, type, blocks);
    for (size_t t = 0; t < tokens; t++)
        fill_random((float *)p.x_mem.p + t * p.x_stride, cols, 3);
    return p;
}

static void problem_destroy(struct problem *p)
{
    guarded_free(&p->w_mem);
    guarded_free(&p->x_mem);
    guarded_free(&p->y_mem);
}

static struct mp_quant_product product_of(const struct problem *p, size_t block_cols,
                                          int accumulate)
{
    return (struct mp_quant_product){
        .y = p->y_mem.p,
        .y_stride = p->y_stride,
        .w = p->w_mem.p,
        .w_row_bytes = p->w_row_bytes,
        .x = p->x_mem.p,
        .x_stride = p->x_stride,
        .rows = p->rows,
        .cols = p->cols,
        .tokens = p->tokens,
        .block_cols = block_cols,
        .accumulate = accumulate,
    };
}

/* Each y against the sum in double over rounded activations; `start` is what y held. */
static void check_values(const struct problem *p, float start)
{
    const size_t block = p->info->x_block;
    float *w = malloc(p->cols * sizeof(*w));
    double *x = malloc(p->cols * p->tokens * sizeof(*x));

    CHECK(w != NULL && x != NULL);
    for (size_t t = 0; t < p->tokens; t++) {
        for (size_t c = 0; c < p->cols; c += block)
            mp_quant_rounded(x + t * p->cols + c, (const float *)p->x_mem.p + t * p->x_stride + c,
                             p->info, block);
    }
    for (size_t r = 0; r < p->rows; r++) {
        p->info->convert(w, (const unsigned char *)p->w_mem.p + r * p->w_row_bytes, p->cols);
        for (size_t t = 0; t < p->tokens; t++) {
            const float got = ((const float *)p->y_mem.p)[t * p->y_stride + r];
            double sum = (double)start, magnitude = fabs((double)start);

            for (size_t c = 0; c < p->cols; c++) {
                sum += (double)w[c] * x[t * p->cols + c];
                magnitude += fabs((double)w[c] * x[t * p->cols + c]);
            }
            /* Of Q2_K and Q4_1 what is added and what is subtracted exceed what is left. */
            CHECK(fabs((double)got - sum) <= 64 * 0x1p-24 * (magnitude + 1));
        }
    }
    free(w);
    free(x);
}

static void fill_y(const struct problem *p, float value)
{
    for (size_t i = 0; i < p->y_mem.bytes / 4; i++)
        ((float *)p->y_mem.p)[i] = value;
}

static void check_shape(const struct mp_quant *quant, enum mp_wtype type, size_t rows, size_t cols,
                        size_t tokens, size_t gap)
{
    struct problem p = problem_create(type, rows, cols, tokens, gap);
    struct mp_quant_product product = product_of(&p, MP_QUANT_PART_COLS, 0);

    fill_y(&p, NAN);
    quant->multiply[type](&product);
    check_values(&p, 0);
    product = product_of(&p, MP_KERNEL_BLOCK_COLS, 1);
    fill_y(&p, 0.5f);
    quant->multiply[type](&product);
    check_values(&p, 0.5f);
    problem_destroy(&p);
}

/* What cuts of a product are compared with, by `blocked` and type: once it is there. */
enum { CUT_ROWS = 35, CUT_TOKENS = 37, CUT_COLS = 1536 };
static float cuts[2][MP_WTYPE_COUNT][CUT_TOKENS * CUT_ROWS];
static int have_cuts[2][MP_WTYPE_COUNT];

/* Products of class amx as a variant, with bits of its own. */
static void amx_multiply(const struct mp_quant_product *p, enum mp_wtype type)
{
    const struct mp_kernels *k = mp_kernels_find("amx");
    const struct mp_wtype_info *info = mp_wtype_info(type);
    const size_t w_stride = p->w_row_bytes / info->block_bytes * info->block_elements;

    if (p->block_cols == MP_KERNEL_BLOCK_COLS)
        k->matmul_blocked(p->y, p->y_stride, p->w, type, w_stride, p->x, p->x_stride, p->rows,
                          p->cols, p->tokens, p->accumulate);
    else
        k->matmul(p->y, p->y_stride, p->w, type, w_stride, p->x, p->x_stride, p->rows, p->cols,
                  p->tokens);
}

#define X(TYPE, name, ...)                                         \
    static void amx_##name(const struct mp_quant_product *product) \
    {                                                              \
        amx_multiply(product, MP_WTYPE_##TYPE);                    \
    }
MP_QUANT_MAP(X)
#undef X

#define X(TYPE, name, ...) .multiply[MP_WTYPE_##TYPE] = amx_##name,
static const struct mp_quant amx = { .name = "amx", .kernels = "amx", MP_QUANT_MAP(X) };
#undef X

static void each_type(void (*test)(const struct mp_quant *quant, enum mp_wtype type))
{
    for (size_t i = 0; mp_quant_names[i] != NULL; i++) {
        const struct mp_quant *quant = mp_quant_find(mp_quant_names[i]);

        fprintf(stderr, "  %s%s\n", mp_quant_names[i], quant == NULL ? " (not here)" : "");
        for (int type = MP_WTYPE_PLAIN_COUNT; quant != NULL && type < MP_WTYPE_COUNT; type++)
            test(quant, (enum mp_wtype)type);
    }
    memset(have_cuts, 0, sizeof(have_cuts));
    fprintf(stderr, "  amx%s\n", mp_kernels_find("amx") == NULL ? " (not here)" : "");
    for (int type = MP_WTYPE_PLAIN_COUNT; mp_kernels_find("amx") != NULL && type < MP_WTYPE_COUNT;
         type++)
        test(&amx, (enum mp_wtype)type);
}

static void shapes_of(const struct mp_quant *quant, enum mp_wtype type)
{
    static const size_t rows[] = { 1, 2, 3, 4, 5, 7, 9 }, tokens[] = { 1, 2, 3, 4, 5, 7, 9, 16 };
    const size_t block = mp_wtype_info(type)->block_elements;

    for (size_t r = 0; r < LEN(rows); r++)
        for (size_t t = 0; t < LEN(tokens); t++)
            check_shape(quant, type, rows[r], block * (1 + (r + t) % 3), tokens[t], (r + t) % 2);
    for (size_t blocks = 1; blocks * block <= 2304; blocks += block == 32 ? 7 : 1)
        check_shape(quant, type, 5, blocks * block, 2, 1);
    check_shape(quant, type, 101, 512, 1, 0);
    check_shape(quant, type, 3, 4096 / block * block + block, 20, 0); /* more than one panel */
    check_shape(quant, type, 2, block, 70, 0);
}

static void products_of_all_shapes(void)
{
    each_type(shapes_of);
}

/* Rows, tokens and columns in other cuts: the same bits, and those of the first variant; class amx
 * has its own. */
static void cuts_of(const struct mp_quant *quant, enum mp_wtype type)
{
    enum { ROWS = CUT_ROWS, TOKENS = CUT_TOKENS, COLS = CUT_COLS };

    for (int blocked = 0; blocked < 2; blocked++) {
        struct problem p;
        struct mp_quant_product all, cut;

        lcg = 77;
        p = problem_create(type, ROWS, COLS, TOKENS, 0);
        for (size_t i = 0; i < TOKENS * COLS; i++)
            ((float *)p.x_mem.p)[i] = (float)(next_byte() - 127) / (float)(1 + next_byte() % 9);
        all = product_of(&p, blocked ? MP_KERNEL_BLOCK_COLS : MP_QUANT_PART_COLS, 0);
        quant->multiply[type](&all);
        if (!have_cuts[blocked][type])
            memcpy(cuts[blocked][type], all.y, sizeof(cuts[0][0]));
        have_cuts[blocked][type] = 1;
        CHECK(memcmp(cuts[blocked][type], all.y, sizeof(cuts[0][0])) == 0);
        for (size_t rows = 1; rows <= 17; rows += rows < 5 ? 2 : 12) {
            for (size_t tokens = 1; tokens <= 17; tokens += tokens < 5 ? 1 : 6) {
                fill_y(&p, NAN);
                for (size_t r = 0; r < ROWS; r += rows)
                    for (size_t t = 0; t < TOKENS; t += tokens) {
                        cut = all;
                        cut.y += t * ROWS + r;
                        cut.w += r * cut.w_row_bytes;
                        cut.x += t * COLS;
                        cut.rows = ROWS - r < rows ? ROWS - r : rows;
                        cut.tokens = TOKENS - t < tokens ? TOKENS - t : tokens;
                        quant->multiply[type](&cut);
                    }
                CHECK(memcmp(cuts[blocked][type], all.y, sizeof(cuts[0][0])) == 0);
            }
        }
        for (size_t at = 256; blocked && at < COLS; at += 256) {
            cut = all;
            cut.cols = at;
            quant->multiply[type](&cut);
            cut.w += mp_wtype_bytes(type, at);
            cut.x += at;
            cut.cols = COLS - at;
            cut.accumulate = 1;
            quant->multiply[type](&cut);
            CHECK(memcmp(cuts[1][type], all.y, sizeof(cuts[0][0])) == 0);
        }
        problem_destroy(&p);
    }
}

static void cuts_and_variants_keep_bits(void)
{
    each_type(cuts_of);
}

/* Every byte of the numbers and scales at its ends, activations at theirs: what is whole does not
 * overflow. */
static void extremes_of(const struct mp_quant *quant, enum mp_wtype type)
{
    static const unsigned char bytes[] = { 0x00, 0xff, 0x7f, 0x80, 0xf0, 0x0f, 0x3f, 0xc0 };
    struct problem p = problem_create(type, LEN(bytes), 512, 6, 0);
    int at[2];

    half_fields(type, at);
    for (size_t r = 0; r < LEN(bytes); r++) {
        unsigned char *w = (unsigned char *)p.w_mem.p + r * p.w_row_bytes;

        memset(w, bytes[r], p.w_row_bytes);
        for (size_t b = 0; b < p.w_row_bytes; b += p.info->block_bytes) {
            for (int i = 0; i < 2; i++)
                if (at[i] >= 0)
                    put_half(w + b + at[i], 0x3c00);
            if (type == MP_WTYPE_MXFP4)
                w[b] = 127;
        }
    }
    for (size_t i = 0; i < 6 * 512; i++)
        ((float *)p.x_mem.p)[i] = i / 512 == 0   ? 127.0f
                                  : i / 512 == 1 ? -127.0f
                                  : i / 512 == 2 ? (i % 2 == 0 ? 127.0f : -127.0f)
                                  : i / 512 == 3 ? 0
                                  : i / 512 == 4 ? 1e-42f
                                                 : 3e38f;
    {
        struct mp_quant_product product = product_of(&p, MP_QUANT_PART_COLS, 0);

        p.tokens = product.tokens = 5; /* 3e38 overflows, to infinity or NaN */
        quant->multiply[type](&product);
        check_values(&p, 0);
        product.tokens = 1;
        for (size_t i = 0; i < 512; i += 37) {
            ((float *)p.x_mem.p)[i] = i % 2 == 0 ? NAN : INFINITY;
            quant->multiply[type](&product);
            for (size_t r = 0; r < p.rows; r++)
                CHECK(isnan(product.y[r]));
            ((float *)p.x_mem.p)[i] = 1;
        }
    }
    problem_destroy(&p);
}

static void extremes_do_not_overflow(void)
{
    each_type(extremes_of);
}

/* The kernels take the types: their own choice of a variant, embeddings, plain C. */
static void kernels_multiply(const struct mp_kernels *k)
{
    for (int type = MP_WTYPE_PLAIN_COUNT; type < MP_WTYPE_COUNT; type++) {
        struct problem p = problem_create((enum mp_wtype)type, 6, 768, 3, 0);
        float row[768], want[768];

        fill_y(&p, NAN);
        k->matmul(p.y_mem.p, 6, p.w_mem.p, p.type, 768, p.x_mem.p, 768, 6, 768, 3);
        check_values(&p, 0);
        fill_y(&p, -0.25f);
        k->matmul_blocked(p.y_mem.p, 6, p.w_mem.p, p.type, 768, p.x_mem.p, 768, 6, 768, 3, 1);
        check_values(&p, -0.25f);
        k->convert(row, p.w_mem.p, p.type, 768);
        p.info->convert(want, p.w_mem.p, 768);
        CHECK(memcmp(row, want, sizeof(row)) == 0);
        k->matmul_blocked(p.y_mem.p, 6, p.w_mem.p, p.type, 0, p.x_mem.p, 0, 1, 0, 1, 0);
        CHECK(same(*(float *)p.y_mem.p, 0));
        problem_destroy(&p);
    }
}

static void all_kernels_take_them(void)
{
    each_kernels("quantised", kernels_multiply);
}

static void variants_are_found_by_name(void)
{
    CHECK(mp_quant_find("none") == NULL && mp_quant_find("") == NULL);
    CHECK(mp_quant_best("ref") == NULL && !mp_quant_announced("none"));
    for (size_t i = 0; mp_quant_names[i] != NULL; i++) {
        const struct mp_quant *quant = mp_quant_find(mp_quant_names[i]);

        CHECK((quant != NULL) == mp_quant_announced(mp_quant_names[i])); /* else untested below */
        if (quant == NULL)
            continue;
        CHECK_STR(quant->name, mp_quant_names[i]);
        CHECK(mp_quant_best("avx512") != NULL && mp_quant_best(quant->kernels) != NULL);
        if (strcmp(quant->kernels, "avx512") != 0)
            CHECK_STR(mp_quant_best(quant->kernels)->kernels, quant->kernels);
    }
}

/* A variant that takes one type for another is not used. */
static void the_self_test_sees_each_type(void)
{
    for (size_t i = 0; mp_quant_names[i] != NULL; i++) {
        const struct mp_quant *quant = mp_quant_find(mp_quant_names[i]);

        for (int type = MP_WTYPE_PLAIN_COUNT; quant != NULL && type < MP_WTYPE_COUNT; type++) {
            struct mp_quant broken = *quant;

            CHECK(mp_quant_passes(&broken));
            broken.multiply[type] =
                quant->multiply[type == MP_WTYPE_Q4_0 ? MP_WTYPE_IQ4_NL : type - 1];
            CHECK(!mp_quant_passes(&broken));
        }
    }
}

/* ---- tiles that are wrong */

static const struct mp_quant *honest;
static unsigned spoiled; /* of spoils[] */

/* All products but those of a kind of tile, of a cut or of a mode are right. */
static int spoils_one(const struct mp_quant_product *p, size_t r, size_t t)
{
    return p->tokens == 1 && r < p->rows / 4 * 4 && t == 0;
}

static int spoils_rest_of_one(const struct mp_quant_product *p, size_t r, size_t t)
{
    return p->tokens == 1 && r == p->rows - 1 && t == 0;
}

static int spoils_eight(const struct mp_quant_product *p, size_t r, size_t t)
{
    return t < p->tokens / 8 * 8 && r == 0;
}

static int spoils_four(const struct mp_quant_product *p, size_t r, size_t t)
{
    return p->tokens > 8 && t >= p->tokens / 8 * 8 && t < p->tokens / 4 * 4 && r == 1;
}

static int spoils_four_apart(const struct mp_quant_product *p, size_t r, size_t t)
{
    return p->tokens == 4 && r < p->rows / 2 * 2 && t == 3;
}

static int spoils_two(const struct mp_quant_product *p, size_t r, size_t t)
{
    return p->tokens > 4 && p->tokens % 4 >= 2 && t == p->tokens / 4 * 4 + 1 && r == 0;
}

static int spoils_blocks(const struct mp_quant_product *p, size_t r, size_t t)
{
    return p->block_cols == MP_KERNEL_BLOCK_COLS && !p->accumulate && r + t == 0;
}

static int spoils_accumulated(const struct mp_quant_product *p, size_t r, size_t t)
{
    return p->accumulate && p->tokens == 1 && r + t == 0;
}

static int spoils_many_accumulated(const struct mp_quant_product *p, size_t r, size_t t)
{
    return p->accumulate && p->tokens >= 8 && r + t == 0;
}

static int spoils_last_lane(const struct mp_quant_product *p, size_t r, size_t t)
{
    return p->tokens >= 8 && !p->accumulate && r == 15 && t == 1;
}

static int spoils_few_lanes(const struct mp_quant_product *p, size_t r, size_t t)
{
    return p->tokens >= 8 && r == 16 && t == 7;
}

static int (*const spoils[])(const struct mp_quant_product *p, size_t r, size_t t) = {
    spoils_one,       spoils_rest_of_one, spoils_eight,
    spoils_four,      spoils_four_apart,  spoils_two,
    spoils_blocks,    spoils_accumulated, spoils_many_accumulated,
    spoils_last_lane, spoils_few_lanes,
};

static void spoil(const struct mp_quant_product *p, enum mp_wtype type)
{
    honest->multiply[type](p);
    for (size_t t = 0; t < p->tokens; t++) {
        for (size_t r = 0; r < p->rows; r++) {
            if (spoils[spoiled](p, r, t))
                p->y[t * p->y_stride + r] *= 1.5f;
        }
    }
}

#define X(TYPE, name, ...)                                     \
    static void spoil_##name(const struct mp_quant_product *p) \
    {                                                          \
        spoil(p, MP_WTYPE_##TYPE);                             \
    }
MP_QUANT_MAP(X)
#undef X

/* A variant with a tile of one kind, or a mode, that is wrong for one type is not used. */
static void the_self_test_sees_each_tile(void)
{
#define X(TYPE, name, ...) [MP_WTYPE_##TYPE] = spoil_##name,
    static void (*const wrong[MP_WTYPE_COUNT])(
        const struct mp_quant_product *) = { MP_QUANT_MAP(X) };
#undef X

    for (size_t i = 0; mp_quant_names[i] != NULL; i++) {
        honest = mp_quant_find(mp_quant_names[i]);
        for (spoiled = 0; honest != NULL && spoiled < sizeof(spoils) / sizeof(spoils[0]);
             spoiled++) {
            for (int type = MP_WTYPE_PLAIN_COUNT; type < MP_WTYPE_COUNT; type++) {
                struct mp_quant broken = *honest;

                broken.multiply[type] = wrong[type];
                if (mp_quant_passes(&broken)) {
                    fprintf(stderr, "%s: %s passes with fault %u\n", honest->name,
                            mp_wtype_name((enum mp_wtype)type), spoiled);
                    exit(1);
                }
            }
        }
    }
}

int main(void)
{
    RUN(variants_are_found_by_name);
    RUN(products_of_all_shapes);
    RUN(cuts_and_variants_keep_bits);
    RUN(extremes_do_not_overflow);
    RUN(all_kernels_take_them);
    RUN(the_self_test_sees_each_type);
    RUN(the_self_test_sees_each_tile);
    return 0;
}
