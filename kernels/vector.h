/*
 * The kernels, once, over the vectors of the file that includes this one (at its end; there is no
 * other use and hence no guard). It defines vec, LANES, the v_ and w_ operations, and
 *
 *   TILE_ROWS_OF_4  rows of a tile of 4 tokens, a divisor of TILE_ROWS: 4 times as many sums must
 *                   fit into the registers
 *   VECTOR_KERNELS  the table to define, VECTOR_NAME its name
 *
 * Exactness. An element-wise kernel uses the same vector operations for whole vectors and, with
 * masked loads and stores, for the last few elements. A dot product always is one vector of
 * partial sums that steps through the columns in order, lane i taking columns i, i + LANES, ...,
 * and one v_sum() at the end, whatever the tile it is part of. So tiles may be cut anywhere.
 * Compilers must not reassociate or contract: no -ffast-math, -ffp-contract=off.
 */

#define TILE_ROWS 6   /* with one or two tokens */
#define TILE_TOKENS 4 /* not more: rows that are a multiple of 4 KiB apart share cache sets */
#define CACHE_LINE_BYTES 64
#define X_TILE_BYTES ((size_t)256 << 10) /* activations kept in the second level cache */

/*
 * Tiles are functions of constant size, wholly unrolled, with their sums in registers. Instrumented
 * builds keep the loops instead: compilers need many minutes for the unrolled checks.
 */
#if MP_KERNELS_LOOPS
#define TILE static __attribute__((noinline))
#define UNROLL
#else
#define TILE INLINE
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
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

/* mp_wtype_bytes() as a constant. */
INLINE size_t type_bytes(enum mp_wtype type)
{
    return type == MP_WTYPE_F32 ? 4 : 2;
}

/* One whole vector of columns: acc[r * tokens + t] += w[r][c..] * x[t][c..], lane by lane. */
TILE void tile_step(vec *acc, const struct product *p, const unsigned char *w, const float *x,
                    enum mp_wtype type, size_t c, int rows, int tokens)
{
    UNROLL
    for (int r = 0; r < rows; r++) {
        vec a = w_load(w + (size_t)r * p->w_row_bytes + c * type_bytes(type), type);

        UNROLL
        for (int t = 0; t < tokens; t++)
            acc[r * tokens + t] =
                v_fma(a, v_load(x + (size_t)t * p->x_stride + c), acc[r * tokens + t]);
    }
}

/*
 * acc[r * tokens + t] += w[r][0..cols) * x[t][0..cols), lane by lane. The same columns of the
 * rows that come next are prefetched: hardware does not see through the short rows of experts. A
 * prefetch cannot fault, so it may run over the end.
 */
TILE void tile_dot(vec *acc, const struct product *p, const unsigned char *w, const float *x,
                   enum mp_wtype type, size_t cols, int rows, int tokens)
{
    size_t c = 0, line = CACHE_LINE_BYTES / type_bytes(type);

    for (; c + line <= cols; c += line) {
        uintptr_t next = (uintptr_t)w + (size_t)rows * p->w_row_bytes + c * type_bytes(type);

        UNROLL
        for (int r = 0; r < rows; r++)
            _mm_prefetch((const void *)(next + (size_t)r * p->w_row_bytes), _MM_HINT_T0);
        UNROLL
        for (size_t i = 0; i < line; i += LANES)
            tile_step(acc, p, w, x, type, c + i, rows, tokens);
    }
    for (; c + LANES <= cols; c += LANES)
        tile_step(acc, p, w, x, type, c, rows, tokens);
    if (c == cols)
        return;
    UNROLL
    for (int r = 0; r < rows; r++) {
        vec a = w_load_n(w + (size_t)r * p->w_row_bytes + c * type_bytes(type), type, cols - c);

        UNROLL
        for (int t = 0; t < tokens; t++)
            acc[r * tokens + t] =
                v_fma(a, v_load_n(x + (size_t)t * p->x_stride + c, cols - c), acc[r * tokens + t]);
    }
}

/* sums[i] += v_sum(acc[i]): the same additions, four vectors at a time. */
TILE void add_sums(float *sums, const vec *acc, int count)
{
    int i = 0;

    UNROLL
    for (; i + 4 <= count; i += 4)
        _mm_storeu_ps(sums + i, _mm_add_ps(_mm_loadu_ps(sums + i), v_sum4(acc + i)));
    UNROLL
    for (; i < count; i++)
        sums[i] += v_sum(acc[i]);
}

/* The outputs of rows [r0, r0 + rows) and tokens [t0, t0 + tokens). */
TILE void tile(const struct product *p, enum mp_wtype type, size_t r0, size_t t0, int rows,
               int tokens)
{
    const unsigned char *w = p->w + r0 * p->w_row_bytes;
    const float *x = p->x + t0 * p->x_stride;
    float *y = p->y + t0 * p->y_stride + r0;
    float sums[TILE_ROWS * TILE_TOKENS];

    UNROLL
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++)
            sums[r * tokens + t] = p->accumulate ? y[(size_t)t * p->y_stride + (size_t)r] : 0;
    for (size_t c = 0; c < p->cols; c += p->block_cols) {
        size_t cols = p->cols - c < p->block_cols ? p->cols - c : p->block_cols;
        vec acc[TILE_ROWS * TILE_TOKENS];

        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int t = 0; t < tokens; t++)
                acc[r * tokens + t] = v_set1(0);
        }
        tile_dot(acc, p, w + c * type_bytes(type), x + c, type, cols, rows, tokens);
        add_sums(sums, acc, rows * tokens);
    }
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++)
            y[(size_t)t * p->y_stride + (size_t)r] = sums[r * tokens + t];
}

/* `rows` rows (TILE_ROWS or 1) by the tokens [t, end): the rows stay in the first level cache. */
TILE void row_block(const struct product *p, enum mp_wtype type, size_t r, size_t t, size_t end,
                    int rows)
{
    int part = rows == TILE_ROWS ? TILE_ROWS_OF_4 : rows;

    for (; end - t >= 4; t += 4)
        for (int i = 0; i < rows; i += part)
            tile(p, type, r + (size_t)i, t, part, 4);
    if (end - t >= 2) {
        tile(p, type, r, t, rows, 2);
        t += 2;
    }
    if (end - t >= 1)
        tile(p, type, r, t, rows, 1);
}

/*
 * Tokens are taken in runs whose activations stay in cache; each run reads every weight once from
 * memory, row block by row block.
 */
TILE void multiply(const struct product *p, enum mp_wtype type)
{
    size_t run = X_TILE_BYTES / sizeof(float) / (p->cols + 1) / TILE_TOKENS * TILE_TOKENS;

    if (run == 0)
        run = TILE_TOKENS;
    for (size_t t = 0; t < p->tokens;) {
        size_t end = p->tokens - t < run ? p->tokens : t + run, r = 0;

        for (; r + TILE_ROWS <= p->rows; r += TILE_ROWS)
            row_block(p, type, r, t, end, TILE_ROWS);
        for (; r < p->rows; r++)
            row_block(p, type, r, t, end, 1);
        t = end;
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

static void multiply_any(const struct product *p, enum mp_wtype type)
{
    if (type == MP_WTYPE_F32)
        multiply_f32(p);
    else if (type == MP_WTYPE_BF16)
        multiply_bf16(p);
    else
        multiply_f16(p);
}

static void v_matmul(float *y, size_t y_stride, const void *w, enum mp_wtype type, size_t w_stride,
                     const float *x, size_t x_stride, size_t rows, size_t cols, size_t tokens)
{
    struct product p = { .y = y,
                         .y_stride = y_stride,
                         .w = w,
                         .w_row_bytes = w_stride * mp_wtype_bytes(type),
                         .x = x,
                         .x_stride = x_stride,
                         .rows = rows,
                         .cols = cols,
                         .tokens = tokens,
                         .block_cols = cols };

    multiply_any(&p, type);
}

static void v_matmul_blocked(float *y, size_t y_stride, const void *w, enum mp_wtype type,
                             size_t w_stride, const float *x, size_t x_stride, size_t rows,
                             size_t cols, size_t tokens, int accumulate)
{
    struct product p = { .y = y,
                         .y_stride = y_stride,
                         .w = w,
                         .w_row_bytes = w_stride * mp_wtype_bytes(type),
                         .x = x,
                         .x_stride = x_stride,
                         .rows = rows,
                         .cols = cols,
                         .tokens = tokens,
                         .block_cols = MP_KERNEL_BLOCK_COLS,
                         .accumulate = accumulate };

    multiply_any(&p, type);
}

INLINE void convert_as(float *dst, const unsigned char *src, enum mp_wtype type, size_t count)
{
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        v_store(dst + i, w_load(src + i * type_bytes(type), type));
    if (i < count)
        v_store_n(dst + i, count - i, w_load_n(src + i * type_bytes(type), type, count - i));
}

static void v_convert(float *dst, const void *src, enum mp_wtype type, size_t count)
{
    if (type == MP_WTYPE_F32)
        convert_as(dst, src, MP_WTYPE_F32, count);
    else if (type == MP_WTYPE_BF16)
        convert_as(dst, src, MP_WTYPE_BF16, count);
    else
        convert_as(dst, src, MP_WTYPE_F16, count);
}

/*
 * exp(x) within 2 units in the last place: x = n ln 2 + r with |r| <= ln 2 / 2, then the Taylor
 * polynomial of e^r, whose first omitted term r^8 / 8! is below 2^-27. ln 2 is split in two so that
 * n times its first part is exact. Beyond the bounds the result is 0 or infinity; min and max
 * are written so that NaN comes through.
 */
INLINE vec v_exp(vec x)
{
    vec n, r, e;

    x = v_min(v_set1(89.0f), v_max(v_set1(-105.0f), x));
    n = v_round(v_mul(x, v_set1(0x1.715476p+0f)));
    r = v_fnma(n, v_set1(0x1.62e4p-1f), x);
    r = v_fnma(n, v_set1(0x1.7f7d1cp-20f), r);
    e = v_set1(1.0f / 5040);
    e = v_fma(e, r, v_set1(1.0f / 720));
    e = v_fma(e, r, v_set1(1.0f / 120));
    e = v_fma(e, r, v_set1(1.0f / 24));
    e = v_fma(e, r, v_set1(1.0f / 6));
    e = v_fma(e, r, v_set1(0.5f));
    e = v_fma(e, r, v_set1(1.0f));
    e = v_fma(e, r, v_set1(1.0f));
    return v_scale(e, n);
}

static void v_rmsnorm(float *out, size_t out_stride, const float *x, size_t x_stride,
                      const float *w, size_t width, size_t tokens, float eps)
{
    size_t whole = width - width % LANES, rest = width % LANES;

    for (size_t t = 0; t < tokens; t++) {
        const float *from = x + t * x_stride;
        float *to = out + t * out_stride;
        vec squares = v_set1(0), scale;

        for (size_t i = 0; i < whole; i += LANES)
            squares = v_fma(v_load(from + i), v_load(from + i), squares);
        if (rest > 0) {
            vec a = v_load_n(from + whole, rest);

            squares = v_fma(a, a, squares);
        }
        scale = v_set1(1 / sqrtf(v_sum(squares) / (float)width + eps));
        for (size_t i = 0; i < whole; i += LANES)
            v_store(to + i, v_mul(v_mul(v_load(from + i), scale), v_load(w + i)));
        if (rest > 0)
            v_store_n(to + whole, rest,
                      v_mul(v_mul(v_load_n(from + whole, rest), scale), v_load_n(w + whole, rest)));
    }
}

/* (a, b) turned by the angle (c, s). */
INLINE void turn(vec *a, vec *b, vec c, vec s)
{
    vec old = *a;

    *a = v_fnma(*b, s, v_mul(old, c));
    *b = v_fma(old, s, v_mul(*b, c));
}

static void v_rope(float *head, const float *cosine, const float *sine, size_t dim)
{
    size_t half = dim / 2, i = 0;
    vec a, b;

    for (; i + LANES <= half; i += LANES) {
        a = v_load(head + i);
        b = v_load(head + half + i);
        turn(&a, &b, v_load(cosine + i), v_load(sine + i));
        v_store(head + i, a);
        v_store(head + half + i, b);
    }
    if (i < half) {
        a = v_load_n(head + i, half - i);
        b = v_load_n(head + half + i, half - i);
        turn(&a, &b, v_load_n(cosine + i, half - i), v_load_n(sine + i, half - i));
        v_store_n(head + i, half - i, a);
        v_store_n(head + half + i, half - i, b);
    }
}

INLINE vec silu(vec a)
{
    vec one = v_set1(1.0f);

    return v_div(a, v_add(one, v_exp(v_sub(v_set1(0), a))));
}

static void v_silu_mul(float *gate, const float *up, size_t count)
{
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        v_store(gate + i, v_mul(silu(v_load(gate + i)), v_load(up + i)));
    if (i < count)
        v_store_n(gate + i, count - i,
                  v_mul(silu(v_load_n(gate + i, count - i)), v_load_n(up + i, count - i)));
}

/* x[i] becomes exp(x[i] - max); returns the sum. NaN is no maximum, but makes the sum NaN. */
static float exp_row(float *x, size_t width)
{
    size_t whole = width - width % LANES, rest = width % LANES;
    vec lowest = v_set1(-INFINITY), zero = v_set1(0), max = lowest, sum = zero, e;

    for (size_t i = 0; i < whole; i += LANES)
        max = v_max(v_load(x + i), max);
    if (rest > 0)
        max = v_max(v_keep_n(v_load_n(x + whole, rest), rest, lowest), max);
    max = v_set1(v_max_lane(max));
    for (size_t i = 0; i < whole; i += LANES) {
        e = v_exp(v_sub(v_load(x + i), max));
        v_store(x + i, e);
        sum = v_add(sum, e);
    }
    if (rest > 0) {
        e = v_exp(v_sub(v_load_n(x + whole, rest), max));
        v_store_n(x + whole, rest, e);
        sum = v_add(sum, v_keep_n(e, rest, zero));
    }
    return v_sum(sum);
}

static void v_softmax(float *x, size_t x_stride, size_t width, size_t tokens)
{
    for (size_t t = 0; t < tokens; t++) {
        float *row = x + t * x_stride;
        vec sum = v_set1(exp_row(row, width));
        size_t i = 0;

        for (; i + LANES <= width; i += LANES)
            v_store(row + i, v_div(v_load(row + i), sum));
        if (i < width)
            v_store_n(row + i, width - i, v_div(v_load_n(row + i, width - i), sum));
    }
}

/* out[0..n) = sum_p weights[p] * v[p][0..n) / sum for n = count * LANES, or the first few lanes. */
INLINE void mix(float *out, const float *weights, const float *v, size_t kv_stride,
                size_t positions, float sum, int count, size_t lanes)
{
    vec acc[8];

    UNROLL
    for (int j = 0; j < count; j++)
        acc[j] = v_set1(0);
    for (size_t p = 0; p < positions; p++) {
        vec weight = v_set1(weights[p]);

        UNROLL
        for (int j = 0; j < count; j++) {
            const float *from = v + p * kv_stride + j * LANES;

            acc[j] = v_fma(weight, lanes == LANES ? v_load(from) : v_load_n(from, lanes), acc[j]);
        }
    }
    UNROLL
    for (int j = 0; j < count; j++) {
        vec result = v_div(acc[j], v_set1(sum));

        if (lanes == LANES)
            v_store(out + j * LANES, result);
        else
            v_store_n(out + j * LANES, lanes, result);
    }
}

static void v_attend(float *out, const float *q, const float *k, const float *v, size_t kv_stride,
                     size_t dim, size_t positions, float scale, float *scores)
{
    size_t i = 0;
    float sum;

    if (positions == 0) {
        for (; i < dim; i++)
            out[i] = 0;
        return;
    }
    v_matmul(scores, 0, k, MP_WTYPE_F32, kv_stride, q, 0, positions, dim, 1);
    for (size_t p = 0; p < positions; p++)
        scores[p] *= scale;
    sum = exp_row(scores, positions);
    for (; i + 8 * LANES <= dim; i += 8 * LANES)
        mix(out + i, scores, v + i, kv_stride, positions, sum, 8, LANES);
    for (; i + LANES <= dim; i += LANES)
        mix(out + i, scores, v + i, kv_stride, positions, sum, 1, LANES);
    if (i < dim)
        mix(out + i, scores, v + i, kv_stride, positions, sum, 1, dim - i);
}

static void v_axpy(float *y, const float *x, float a, size_t count)
{
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        v_store(y + i, v_fma(v_set1(a), v_load(x + i), v_load(y + i)));
    if (i < count)
        v_store_n(y + i, count - i,
                  v_fma(v_set1(a), v_load_n(x + i, count - i), v_load_n(y + i, count - i)));
}

extern const struct mp_kernels VECTOR_KERNELS;
const struct mp_kernels VECTOR_KERNELS = {
    .name = VECTOR_NAME,
    .convert = v_convert,
    .matmul = v_matmul,
    .matmul_blocked = v_matmul_blocked,
    .rmsnorm = v_rmsnorm,
    .rope = v_rope,
    .silu_mul = v_silu_mul,
    .softmax = v_softmax,
    .attend = v_attend,
    .axpy = v_axpy,
};
