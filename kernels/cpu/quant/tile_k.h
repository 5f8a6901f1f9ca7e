/*
 * Tiles of product.h for blocks of 256, of few tokens. Each block of a part is a sum of its own.
 */

/* 16-bit lanes for the products of elements [32 j, 32 j + 32) of row r. */
INLINE __m256i scale_k(const struct scales_k *s, enum mp_wtype type, int r, int j)
{
    if (has_pairs_k(type))
        return _mm256_set1_epi32(s[r / 2].pairs[r % 2][j]);
    return _mm256_shuffle_epi8(s[r / 2].scales[r % 2],
                               _mm256_set1_epi16((short)(0x0100 + 0x0202 * j)));
}

/* sum + what elements [32 j, 32 j + 64) of row r, j even, come to with those at q. */
INLINE __m256i add_64(__m256i sum, const struct scales_k *s, int r, int j, const __m256i bytes[2],
                      const signed char *q, enum mp_wtype type)
{
    const __m256i zero = _mm256_setzero_si256();
    const int shift = next_times(type) == 16 ? 12 : 16;

    if (has_neighbours(type)) { /* sums of 4 products of both fit 16 bits, and stand side by side */
        const __m256i a = v_dot(zero, bytes[0], _mm256_load_si256((const void *)q));
        const __m256i b = v_dot(zero, bytes[1], _mm256_load_si256((const void *)(q + 32)));

        return v_add_pairs(sum, _mm256_blend_epi16(a, _mm256_slli_epi32(b, shift), 0xaa),
                           _mm256_set1_epi32(s[r / 2].neighbours[r % 2][j / 2]));
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        const __m256i x = _mm256_load_si256((const void *)(q + 32 * i));

        sum = v_add_pairs(sum,
                          is_signed_k(type) ? _mm256_maddubs_epi16(_mm256_abs_epi8(bytes[i]),
                                                                   _mm256_sign_epi8(x, bytes[i]))
                                            : _mm256_maddubs_epi16(bytes[i], x),
                          scale_k(s, type, r, j + i));
    }
    return sum;
}

/* Whole numbers, of the whole block: whole[r * tokens + t] += w[r] . x[t] */
TILE void add_whole_k(__m256i *whole, const struct scales_k *s, const unsigned char *w,
                      size_t apart_bytes, const struct chunk *x, size_t c, enum mp_wtype type,
                      int rows, int tokens)
{
    UNROLL
    for (int i = 0; i < 4 * rows; i++) {
        const int r = i % rows, j = i / rows * 2;
        const unsigned char *p = w + (size_t)r * apart_bytes;
        const __m256i bytes[2] = { bytes_k(p, type, j), next_bytes_k(p, type, j) };

        UNROLL
        for (int t = 0; t < tokens; t++)
            whole[r * tokens + t] =
                add_64(whole[r * tokens + t], s, r, j, bytes, x[t].q + c + 32 * (size_t)j, type);
    }
}

/* As _mm256_hadd_epi32(). */
INLINE __m256i add_neighbours(__m256i a, __m256i b)
{
    const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);

    return _mm256_castps_si256(
        fold_two(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd), FOLD_SUM));
}

/* Number i: all 8 numbers of a[i]. */
INLINE __m128i add_whole_4(const __m256i *a)
{
    const __m256i b = add_neighbours(add_neighbours(a[0], a[1]), add_neighbours(a[2], a[3]));

    return _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
}

/* The same of up to 8, of which those behind `count` are not read. */
TILE __m256 add_whole(const __m256i *a, int count)
{
    __m256i all[TILE_SUMS_MAX];

    UNROLL
    for (int i = 0; i < TILE_SUMS_MAX; i++)
        all[i] = i < count ? a[i] : _mm256_setzero_si256();
    return _mm256_cvtepi32_ps(
        count <= 4 ? _mm256_zextsi128_si256(add_whole_4(all))
                   : _mm256_inserti128_si256(_mm256_castsi128_si256(add_whole_4(all)),
                                             add_whole_4(all + 4), 1));
}

/* Number r * tokens + t: all 4 numbers of half r % 2 of a[r / 2 * tokens + t]. */
TILE __m256 add_halves(const __m256i *a, int rows, int tokens)
{
    const int count = (rows + 1) / 2 * tokens;
    const __m256i b = add_neighbours(a[0], a[count > 1 ? 1 : 0]);
    const __m256i c = count > 2 ? add_neighbours(a[2], a[3]) : b;
    __m256i all = add_neighbours(b, c);

    if (tokens == 2)
        all = _mm256_permute4x64_epi64(all, 0x08);
    else if (tokens == 1)
        all = _mm256_zextsi128_si256(
            _mm_unpacklo_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
    return _mm256_cvtepi32_ps(all);
}

/* Number r * tokens + t: d, or dmin, of row r times the scale of token t. */
TILE __m256 scaled_d(const struct scales_k *s, const struct chunk *x, size_t c, int dmin, int rows,
                     int tokens)
{
    float all[TILE_SUMS_MAX] = { 0 };

    if (rows == 4 && tokens == 1) {
        const __m128 two = _mm_loadu_ps(s[0].d[0]), others = _mm_loadu_ps(s[1].d[0]);

        return _mm256_zextps128_ps256(
            _mm_mul_ps(dmin ? _mm_shuffle_ps(two, others, 0xdd) : _mm_shuffle_ps(two, others, 0x88),
                       _mm_set1_ps(x->scales[c / 256])));
    }
    UNROLL
    for (int i = 0; i < rows * tokens; i++)
        all[i] = s[i / tokens / 2].d[i / tokens % 2][dmin] * x[i % tokens].scales[c / 256];
    return set_8(all);
}

/* Sum r * tokens + t: w[r] . x[t] of one block. */
TILE __m256 block_k(const struct scales_k *s, const unsigned char *w, size_t apart_bytes,
                    const struct chunk *x, size_t c, enum mp_wtype type, int rows, int tokens)
{
    const int at_once = has_6_bits(type) ? 2 : 1, count = rows * tokens;
    __m256i whole[TILE_SUMS_MAX], mins[TILE_SUMS_MAX];
    __m256 sum;

    if (mins_of(type) != MINS_NONE) {
        UNROLL
        for (int i = 0; i < (rows + at_once - 1) / at_once * tokens; i++) {
            const int r = i / tokens * at_once;

            mins[i] = _mm256_madd_epi16(s[r / 2].mins[r % 2],
                                        load_32((const void *)(x[i % tokens].sums + c / 16)));
        }
    }
    UNROLL
    for (int i = 0; i < count; i++)
        whole[i] = mins_of(type) == MINS_WHOLE ? _mm256_sub_epi32(_mm256_setzero_si256(), mins[i])
                                               : _mm256_setzero_si256();
    add_whole_k(whole, s, w, apart_bytes, x, c, type, rows, tokens);
    sum = _mm256_mul_ps(add_whole(whole, count), scaled_d(s, x, c, 0, rows, tokens));
    if (mins_of(type) != MINS_SCALED)
        return sum;
    return _mm256_fnmadd_ps(has_6_bits(type) ? add_halves(mins, rows, tokens)
                                             : add_whole(mins, count),
                            scaled_d(s, x, c, 1, rows, tokens), sum);
}

/* One y for each of some rows and tokens. Scales come first: each takes many steps, one after the
 * other, but those of several blocks go side by side. */
TILE void part_k(float *sums, const struct tiles *p, const unsigned char *w, const struct chunk *x,
                 size_t c, size_t cols, enum mp_wtype type, int rows, int tokens)
{
    const size_t bytes = block_bytes_of(type), apart_bytes = p->w_apart_bytes, units = cols / 256;
    struct scales_k s[UNITS_MAX][(TILE_ROWS_MAX + 1) / 2];
    __m256 of[UNITS_MAX];

    for (size_t u = 0; u < units; u++) {
        UNROLL
        for (int r = 0; r < rows; r += 2) {
            const unsigned char *a = w + (size_t)r * apart_bytes + u * bytes;

            scales_of_rows(a, rows > 1 ? a + apart_bytes : NULL, type, &s[u][r / 2]);
        }
    }
    for (size_t u = 0; u < UNITS_MAX; u++)
        of[u] = _mm256_setzero_ps();
    for (size_t u = 0; u < units; u++, w += bytes) {
        fetch(1, w, apart_bytes, p->ahead, bytes, rows);
        of[u] = block_k(s[u], w, apart_bytes, x, c + u * 256, type, rows, tokens);
    }
    _mm256_store_ps(sums, add_units(of[0], of[1], of[2], of[3]));
}
