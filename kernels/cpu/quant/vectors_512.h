/*
 * What lanes.h is written with, 16 lanes.
 */
#include <string.h>

#define LANES 16

typedef __m512i v_ints;
typedef __m512 v_floats;

INLINE v_ints vi_zero(void)
{
    return _mm512_setzero_si512();
}

INLINE v_ints vi_load(const void *p)
{
    return _mm512_load_si512(p);
}

/* The 4 bytes at p in all lanes. */
INLINE v_ints vi_spread(const void *p)
{
    int32_t bits;

    memcpy(&bits, p, sizeof(bits));
    return _mm512_set1_epi32(bits);
}

INLINE v_ints vi_add(v_ints a, v_ints b)
{
    return _mm512_add_epi32(a, b);
}

INLINE v_ints vi_sub(v_ints a, v_ints b)
{
    return _mm512_sub_epi32(a, b);
}

INLINE v_ints vi_mul(v_ints a, v_ints b)
{
    return _mm512_mullo_epi32(a, b);
}

/* sum + the products of 4 bytes; those of a are not negative. */
INLINE v_ints vi_dot(v_ints sum, v_ints a, v_ints b)
{
    return _mm512_dpbusd_epi32(sum, a, b);
}

/* sum + the products of 2 numbers of 16 bits. */
INLINE v_ints vi_dot_16(v_ints sum, v_ints a, v_ints b)
{
    return _mm512_dpwssd_epi32(sum, a, b);
}

INLINE v_floats vf_zero(void)
{
    return _mm512_setzero_ps();
}

INLINE v_floats vf_of(v_ints a)
{
    return _mm512_cvtepi32_ps(a);
}

INLINE v_floats vf_set(float a)
{
    return _mm512_set1_ps(a);
}

INLINE v_floats vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE void vf_store(float *p, v_floats a)
{
    _mm512_storeu_ps(p, a);
}

INLINE v_floats vf_add(v_floats a, v_floats b)
{
    return _mm512_add_ps(a, b);
}

INLINE v_floats vf_mul(v_floats a, v_floats b)
{
    return _mm512_mul_ps(a, b);
}

INLINE v_floats vf_fma(v_floats a, v_floats b, v_floats c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE v_floats vf_fnma(v_floats a, v_floats b, v_floats c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* Lane r of to[k] is number k of the row that begins r * apart_bytes behind `from`. */
static __attribute__((noinline)) void transpose(void *to, const void *from, size_t apart_bytes)
{
    const unsigned char *p = from;
    v_ints a[LANES], b[LANES];

    UNROLL
    for (int i = 0; i < LANES; i++)
        a[i] = vi_load(p + (size_t)i * apart_bytes);
    UNROLL
    for (int i = 0; i < LANES; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    UNROLL
    for (int i = 0; i < LANES; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        _mm512_store_si512((char *)to + 64 * i, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
        _mm512_store_si512((char *)to + 64 * (i + 8), _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
        _mm512_store_si512((char *)to + 64 * (i + 4),
                           _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
        _mm512_store_si512((char *)to + 64 * (i + 12),
                           _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd));
    }
}
