/*
 * The kernels in vectors of 8 floats on ARM, every product in F32.
 */
#include "kernels/cpu/neon.h"

#define VECTOR_NAME "neon"
#define VECTOR_KERNELS mp_kernels_neon
#define BF16_PAIRS 0

#include "kernels/cpu/vector.h"
