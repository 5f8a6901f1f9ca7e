/* Encoders without vectors, for any processor. */
#include "kernels/cpu/quant/encode_int.h"

#define VARIANT mp_encode_plain
#define VARIANT_NAME "plain"
#define INLINE static inline

#define LANES 1

typedef float vec;

INLINE vec v_set1(float a)
{
    return a;
}

INLINE vec v_load(const float *p)
{
    return *p;
}

INLINE void v_store(float *p, vec a)
{
    *p = a;
}

INLINE vec v_max(vec a, vec b)
{
    return a > b ? a : b;
}

INLINE vec v_min(vec a, vec b)
{
    return a < b ? a : b;
}

INLINE vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return a < b ? yes : no;
}

#include "kernels/cpu/quant/encode_blocks.h"
