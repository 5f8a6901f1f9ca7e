/*
 * The kernels in vectors of 16 floats, every product in F32.
 */
#include "kernels/cpu/avx512.h"

#define VECTOR_NAME "avx512"
#define VECTOR_KERNELS mp_kernels_avx512
#define BF16_PAIRS 0

#include "kernels/cpu/vector.h"
