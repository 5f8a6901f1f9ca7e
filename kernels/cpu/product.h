/*
 * Matrix products, for kernels/cpu/vector.h. Activations are packed first: columns in the order in
 * which weights come out of registers, the tokens of one tile side by side. So a tile reads them in
 * one stream, and activations that lie a power of two apart do not fall into one set of a cache.
 *
 * Exactness. A product is a sum of blocks of columns, in order. A block's sum is one vector of
 * partial sums that steps through the columns in order, always the same ones in the same lane,
 * and whose lanes are added in the order of v_sum() at the end, whatever the tile it is part of. So
 * tiles may be cut anywhere.
 *
 *   w_load        one of the two vectors of STEP_COLS columns of weights, numbered by `half`
 *   x_split       the activations that belong to half 0 and half 1
 *   BF16_PAIRS    1: the file multiplies pairs of BF16, and defines the five functions below that
 *                 say how a step is multiplied
 *   TILE_TOKENS   tokens of the widest tile, 4 or 8
 *   TILE_ROWS_OF  rows of a tile by its tokens: rows * tokens sums must fit into the registers
 *   IN_ORDER      does this processor read memory fastest from end to end, and on its own? Else in
 *                 streams of rows that stand apart, fetched ahead
 */
#define STEP_COLS (2 * (size_t)LANES)
#define BLOCK_COLS 512 /* of a partial sum of matmul; twice as many where pairs are multiplied */
#define FEW 4
#define ROW_BLOCK 96    /* rows whose blocks stay in the second level cache */
#define RUN_TOKENS 64   /* tokens that are packed together */
#define CONVERT_ROWS 16 /* rows that become float together */

/* The buffer on the stack for them; the second level cache has room for it. */
#define PACK_FLOATS ((size_t)RUN_TOKENS * BLOCK_COLS)

/* How far ahead of the weights in use, in bytes of its row, the stream of a row is fetched. */
#define STREAM_AHEAD 512

/* Of packed activations of one token: beside weights they stay in the first level cache. */
#define NEAR_BYTES ((size_t)15 << 10)

#define CACHE_LINE_BYTES 64

/* Halves of a step: of pairs, all 2 * LANES columns are one vector. */
INLINE int halves_of(enum mp_wtype type)
{
    return BF16_PAIRS && type == MP_WTYPE_BF16 ? 1 : 2;
}

#if !BF16_PAIRS
INLINE vec w_part(const unsigned char *p, enum mp_wtype type, int half)
{
    return w_load(p, type, half);
}

INLINE vec w_part_n(const unsigned char *p, enum mp_wtype type, int half, size_t n)
{
    return w_load_n(p, type, half, n);
}

INLINE vec w_fma(vec w, vec x, vec sum, enum mp_wtype type)
{
    (void)type;
    return v_fma(w, x, sum);
}

INLINE void x_parts(vec *a, vec *b, enum mp_wtype type)
{
    if (type == MP_WTYPE_BF16)
        x_split(a, b);
}
#endif

struct product {
    float *y;
    size_t y_stride;
    const unsigned char *w;
    size_t w_row_bytes;
    const float *x;
    size_t x_stride;
    size_t rows, cols, tokens;
    size_t block_cols; /* columns of one partial sum */
    int accumulate;
};

/* The packed activations of tokens [t, t + tokens) and columns [c, c + cols). Those of the tile
 * that begins with token t + i are at x + i * width. */
struct panel {
    float *x;
    size_t t, tokens, c, cols;
    size_t width; /* of a token: cols in whole steps, as floats */
};

/* What a tile fetches besides its own weights: STREAM_AHEAD bytes on, where its rows stand far
 * apart, into the first level cache; or the next tile, whose rows begin where its own end, into the
 * second. */
enum ahead { NOTHING, A_STREAM, A_TILE };

/* Bytes of one element of the types that have tiles, as a constant. */
INLINE size_t type_bytes(enum mp_wtype type)
{
    return type == MP_WTYPE_F32 ? 4 : 2;
}

/* Floats of packed activations of `cols` columns, whole steps. */
INLINE size_t packed_floats(enum mp_wtype type, size_t cols)
{
    return cols / 2 * (size_t)halves_of(type);
}

/* Tokens of the next tile when `left` remain. */
INLINE size_t tile_tokens(size_t left)
{
    if (left >= TILE_TOKENS)
        return TILE_TOKENS;
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* One half of one step: acc[r * tokens + t] += w[r][..] * x[t][..], lane by lane. */
TILE void tile_step(vec *acc, const unsigned char *w, size_t w_row_bytes, const float *x,
                    enum mp_wtype type, int half, int rows, int tokens)
{
    vec a[TILE_ROWS_MAX];

    UNROLL
    for (int r = 0; r < rows; r++)
        a[r] = w_part(w + (size_t)r * w_row_bytes, type, half);
    UNROLL
    for (int t = 0; t < tokens; t++) {
        vec b = v_load_once(x + (size_t)t * LANES);

        UNROLL
        for (int r = 0; r < rows; r++)
            acc[r * tokens + t] = w_fma(a[r], b, acc[r * tokens + t], type);
    }
}

/*
 * acc[r * tokens + t] += w[r][0..cols) * x[t][0..cols), lane by lane. What comes next is
 * prefetched (A_STREAM, A_TILE): hardware does not see through the short rows of experts. A
 * prefetch cannot fault, so it may run over the end. Only tiles of one row can have columns that
 * are no whole steps: that keeps the registers of the others free of them.
 */
TILE void tile_dot(vec *acc, const unsigned char *w, size_t w_row_bytes, enum ahead ahead,
                   const float *x, enum mp_wtype type, size_t cols, int rows, int tokens)
{
    const size_t step_bytes = STEP_COLS * type_bytes(type);

    for (; cols >= STEP_COLS; cols -= STEP_COLS) {
        UNROLL
        for (int r = 0; r < rows && ahead != NOTHING; r++) {
            const uintptr_t next = (uintptr_t)w + (size_t)r * w_row_bytes +
                                   (ahead == A_STREAM ? STREAM_AHEAD : (size_t)rows * w_row_bytes);

            UNROLL
            for (size_t i = 0; i < step_bytes; i += CACHE_LINE_BYTES) {
                if (ahead == A_STREAM)
                    __builtin_prefetch((const void *)(next + i));
                else
                    __builtin_prefetch((const void *)(next + i), 0, 2);
            }
        }
        tile_step(acc, w, w_row_bytes, x, type, 0, rows, tokens);
        if (halves_of(type) == 2)
            tile_step(acc, w, w_row_bytes, x + tokens * LANES, type, 1, rows, tokens);
        w += step_bytes;
        x += (size_t)tokens * packed_floats(type, STEP_COLS);
    }
    if (rows > 1 || cols == 0)
        return;
    UNROLL
    for (int half = 0; half < halves_of(type); half++) {
        vec a = w_part_n(w, type, half, cols);

        UNROLL
        for (int t = 0; t < tokens; t++)
            acc[t] = w_fma(a, v_load(x + (half * tokens + t) * LANES), acc[t], type);
    }
}

/*
 * out[i] = v_sum(acc[i]) for i < count <= LANES, by the same additions: each fold adds the halves
 * of two vectors, so that the number of the vector becomes a part of the number of the lane.
 */
TILE void add_lanes(float *out, vec *acc, int count)
{
    UNROLL
    for (int level = 0, n = count; 1 << level < LANES; level++, n = (n + 1) / 2) {
        UNROLL
        for (int i = 0; i < (n + 1) / 2; i++)
            acc[i] = v_fold(acc[2 * i], acc[2 * i + 1 < n ? 2 * i + 1 : 2 * i], level);
    }
    v_store_folded(out, acc[0]);
}

/* Columns [c, c + cols) of the panel, one partial sum at most, are added to the outputs of rows
 * r, r + apart, .. and of the tile at token t of the panel. */
TILE void tile(const struct product *p, const struct panel *q, enum mp_wtype type, size_t r,
               size_t apart, enum ahead ahead, size_t t, size_t c, size_t cols, int rows,
               int tokens)
{
    const unsigned char *w = p->w + r * p->w_row_bytes + (q->c + c) * type_bytes(type);
    const float *x = q->x + t * q->width + packed_floats(type, c) * (size_t)tokens;
    float *y = p->y + (q->t + t) * p->y_stride + r;
    const int add = p->accumulate || q->c + c > 0;
    float sums[TILE_SUMS_MAX];
    vec acc[TILE_SUMS_MAX];

    UNROLL
    for (int i = 0; i < rows * tokens; i++)
        acc[i] = v_set1(0);
    tile_dot(acc, w, apart * p->w_row_bytes, ahead, x, type, cols, rows, tokens);
    UNROLL
    for (int i = 0; i < rows * tokens; i += LANES)
        add_lanes(sums + i, acc + i, rows * tokens - i < LANES ? rows * tokens - i : LANES);
    for (int i = 0; i < tokens; i++) {
        for (int j = 0; j < rows; j++) {
            float *to = y + (size_t)i * p->y_stride + (size_t)j * apart;

            *to = (add ? *to : 0) + sums[j * tokens + i];
        }
    }
}

/* The same for `count` such rows. */
TILE void column(const struct product *p, const struct panel *q, enum mp_wtype type, size_t r,
                 size_t count, size_t apart, enum ahead ahead, size_t t, size_t c, size_t cols,
                 int tokens)
{
    const int rows = TILE_ROWS_OF(tokens);
    size_t i = 0;

    if (cols % STEP_COLS == 0) {
        for (; i + (size_t)rows <= count; i += (size_t)rows)
            tile(p, q, type, r + i * apart, apart, ahead, t, c, cols, rows, tokens);
    }
    for (; i < count; i++)
        tile(p, q, type, r + i * apart, apart, ahead, t, c, cols, 1, tokens);
}

/* One partial sum of `count` rows for all tokens of the panel. */
TILE void row_block(const struct product *p, const struct panel *q, enum mp_wtype type, size_t r,
                    size_t count, size_t apart, enum ahead ahead, size_t c, size_t cols)
{
    size_t t = 0;

    for (; t + TILE_TOKENS <= q->tokens; t += TILE_TOKENS)
        column(p, q, type, r, count, apart, ahead, t, c, cols, TILE_TOKENS);
    if (TILE_TOKENS > 4 && t + 4 <= q->tokens) {
        column(p, q, type, r, count, apart, ahead, t, c, cols, 4);
        t += 4;
    }
    if (t + 2 <= q->tokens) {
        column(p, q, type, r, count, apart, ahead, t, c, cols, 2);
        t += 2;
    }
    if (t < q->tokens)
        column(p, q, type, r, count, apart, ahead, t, c, cols, 1);
}

/* All columns of the panel for rows r, r + apart, .., column block by column block. */
TILE void multiply_rows(const struct product *p, const struct panel *q, enum mp_wtype type,
                        size_t r, size_t count, size_t apart, enum ahead ahead)
{
    size_t c = 0;

    do {
        row_block(p, q, type, r, count, apart, ahead, c, min_size(q->cols - c, p->block_cols));
    } while ((c += p->block_cols) < q->cols);
}

/* All rows for a panel of one token, one after the other; nothing is fetched. */
TILE void rows_in_order(const struct product *p, const struct panel *q, enum mp_wtype type)
{
    for (size_t r = 0; r < p->rows; r++) {
        const unsigned char *w = p->w + r * p->w_row_bytes + q->c * type_bytes(type);
        float *y = p->y + q->t * p->y_stride + r;
        int add = p->accumulate || q->c > 0;
        size_t c = 0;

        do {
            const size_t cols = min_size(q->cols - c, p->block_cols);
            float sums[TILE_SUMS_MAX];
            vec acc = v_set1(0);

            tile_dot(&acc, w + c * type_bytes(type), 0, NOTHING, q->x + packed_floats(type, c),
                     type, cols, 1, 1);
            add_lanes(sums, &acc, 1);
            *y = (add ? *y : 0) + sums[0];
            add = 1;
        } while ((c += p->block_cols) < q->cols);
    }
}

/* Functions of their own, so that each has all registers for its loop. */
#define IN_ORDER_OF(TYPE, name)                                                    \
    static __attribute__((noinline)) void name##_in_order(const struct product *p, \
                                                          const struct panel *q)   \
    {                                                                              \
        rows_in_order(p, q, MP_WTYPE_##TYPE);                                      \
    }
IN_ORDER_OF(F32, f32)
IN_ORDER_OF(BF16, bf16)
IN_ORDER_OF(F16, f16)

/* Two vectors from `cols` floats, the missing ones zero. */
INLINE void pack_step(float *to, size_t between, const float *from, enum mp_wtype type, size_t cols)
{
    vec a, b;

    if (cols >= STEP_COLS) {
        a = v_load(from);
        b = v_load(from + LANES);
    } else {
        a = cols >= LANES ? v_load(from) : v_load_n(from, cols);
        b = cols > LANES ? v_load_n(from + LANES, cols - LANES) : v_set1(0);
    }
    x_parts(&a, &b, type);
    v_store(to, a);
    if (halves_of(type) == 2)
        v_store(to + between, b);
}

INLINE void pack(const struct product *p, const struct panel *q, enum mp_wtype type)
{
    for (size_t t = 0, tokens; t < q->tokens; t += tokens) {
        tokens = tile_tokens(q->tokens - t);
        for (size_t i = 0; i < tokens; i++) {
            const float *from = p->x + (q->t + t + i) * p->x_stride + q->c;
            float *to = q->x + t * q->width + i * LANES;

            for (size_t c = 0; c < q->cols; c += STEP_COLS)
                pack_step(to + packed_floats(type, c) * tokens, tokens * LANES, from + c, type,
                          q->cols - c);
        }
    }
}

/*
 * All rows for one panel, in blocks. With many tokens the activations of a tile stay in the first
 * level cache and the weights of a block in the second. With few, the rows of a tile stand far
 * apart, so that a block is read as that many streams from end to end, which is the fastest way to
 * read memory, also where rows are short; but for IN_ORDER, with one token: one row after the
 * other, or one tile after the other where activations do not stay in the first level cache.
 */
TILE void multiply_panel(const struct product *p, const struct panel *q, enum mp_wtype type)
{
    const size_t tile_rows = TILE_ROWS_OF(tile_tokens(q->tokens));
    const int in_order = q->tokens == 1 && IN_ORDER;

    if (in_order && q->width * sizeof(*q->x) <= NEAR_BYTES) {
        if (type == MP_WTYPE_F32)
            f32_in_order(p, q);
        else if (type == MP_WTYPE_BF16)
            bf16_in_order(p, q);
        else
            f16_in_order(p, q);
        return;
    }
    for (size_t r = 0, rows; r < p->rows; r += rows) {
        rows = min_size(p->rows - r, in_order ? tile_rows : ROW_BLOCK);
        if (in_order || q->tokens > FEW) {
            multiply_rows(p, q, type, r, rows, 1, A_TILE);
            continue;
        }
        for (size_t i = 0; i < rows / tile_rows; i++)
            multiply_rows(p, q, type, r + i, tile_rows, rows / tile_rows, A_STREAM);
        for (size_t i = rows / tile_rows * tile_rows; i < rows; i++)
            multiply_rows(p, q, type, r + i, 1, 1, A_STREAM);
    }
}

TILE void multiply(const struct product *p, enum mp_wtype type)
{
    _Alignas(64) float packed[PACK_FLOATS];
    struct panel q = { .x = packed };

    for (; q.t < p->tokens; q.t += q.tokens) {
        size_t most;

        q.tokens = min_size(p->tokens - q.t, RUN_TOKENS);
        most = PACK_FLOATS * 2 / (size_t)halves_of(type) / q.tokens / p->block_cols * p->block_cols;
        q.c = 0;
        do {
            q.cols = min_size(p->cols - q.c, most);
            q.width = packed_floats(type, (q.cols + STEP_COLS - 1) / STEP_COLS * STEP_COLS);
            if (MP_DEBUG_CHECKS && q.tokens * q.width > PACK_FLOATS)
                __builtin_trap(); /* and not somewhere behind the buffer */
            pack(p, &q, type);
            multiply_panel(p, &q, type);
        } while ((q.c += q.cols) < p->cols);
    }
}

static void multiply_f32(const struct product *p)
{
    multiply(p, MP_WTYPE_F32);
}

static void multiply_bf16(const struct product *p)
{
    multiply(p, MP_WTYPE_BF16);
}

static void multiply_f16(const struct product *p)
{
    multiply(p, MP_WTYPE_F16);
}

/* The types that have a loop of their own here. */
static void (*const multiply_of[MP_WTYPE_COUNT])(const struct product *p) = {
    [MP_WTYPE_F32] = multiply_f32,
    [MP_WTYPE_BF16] = multiply_bf16,
    [MP_WTYPE_F16] = multiply_f16,
};

/*
 * The others: a few rows become float at a time, a number of partial sums of them. A call that ends
 * at a multiple of block_cols gives the same bits as one over all columns.
 */
static void multiply_converted(const struct product *p, const struct mp_wtype_info *type)
{
    float w[CONVERT_ROWS * BLOCK_COLS];

    for (size_t r = 0; r < p->rows; r += CONVERT_ROWS) {
        struct product part = *p;

        part.w = (const void *)w;
        part.y = p->y + r;
        part.rows = min_size(p->rows - r, CONVERT_ROWS);
        for (size_t c = 0; c == 0 || c < p->cols; c += BLOCK_COLS) {
            part.cols = min_size(p->cols - c, BLOCK_COLS);
            part.w_row_bytes = part.cols * sizeof(*w);
            for (size_t i = 0; i < part.rows; i++)
                type->convert(w + i * part.cols,
                              p->w + (r + i) * p->w_row_bytes +
                                  c / type->block_elements * type->block_bytes,
                              part.cols);
            part.x = p->x + c;
            part.accumulate = p->accumulate || c > 0;
            multiply_f32(&part);
        }
    }
}

/* Quantised weights, by the fastest variant that goes with these kernels. */
static void multiply_quantised(const struct product *p, enum mp_wtype type)
{
    const struct mp_quant *quant = mp_quant_best(VECTOR_QUANT);
    const struct mp_quant_product product = {
        .y = p->y,
        .y_stride = p->y_stride,
        .w = p->w,
        .w_row_bytes = p->w_row_bytes,
        .x = p->x,
        .x_stride = p->x_stride,
        .rows = p->rows,
        .cols = p->cols,
        .tokens = p->tokens,
        .block_cols = p->block_cols == BLOCK_COLS ? MP_QUANT_PART_COLS : p->block_cols,
        .accumulate = p->accumulate,
    };

    if (quant != NULL)
        quant->multiply[type](&product);
    else
        mp_quant_multiply_ref(&product, type);
}

static void multiply_any(const struct product *p, enum mp_wtype type)
{
    const struct mp_wtype_info *info = mp_wtype_info(type);

    if (info->x_block != 0)
        multiply_quantised(p, type);
    else if ((unsigned)type < MP_WTYPE_COUNT && multiply_of[type] != NULL)
        multiply_of[type](p);
    else
        multiply_converted(p, info);
}

static void v_matmul(float *y, size_t y_stride, const void *w, enum mp_wtype type, size_t w_stride,
                     const float *x, size_t x_stride, size_t rows, size_t cols, size_t tokens)
{
    struct product p = { .y = y,
                         .y_stride = y_stride,
                         .w = w,
                         .w_row_bytes = mp_wtype_bytes(type, w_stride),
                         .x = x,
                         .x_stride = x_stride,
                         .rows = rows,
                         .cols = cols,
                         .tokens = tokens,
                         .block_cols = BLOCK_COLS * 2 / (size_t)halves_of(type) };

    multiply_any(&p, type);
}

static void v_matmul_blocked(float *y, size_t y_stride, const void *w, enum mp_wtype type,
                             size_t w_stride, const float *x, size_t x_stride, size_t rows,
                             size_t cols, size_t tokens, int accumulate)
{
    struct product p = { .y = y,
                         .y_stride = y_stride,
                         .w = w,
                         .w_row_bytes = mp_wtype_bytes(type, w_stride),
                         .x = x,
                         .x_stride = x_stride,
                         .rows = rows,
                         .cols = cols,
                         .tokens = tokens,
                         .block_cols = MP_KERNEL_BLOCK_COLS,
                         .accumulate = accumulate };

    multiply_any(&p, type);
}
