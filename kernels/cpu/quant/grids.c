/* The grids of kernels/cpu/quant/grids.h for products and decoders on the CPU. */
#include "kernels/cpu/quant/quant.h"

#define MP_GRID(name, entries) const uint16_t mp_quant_grid_##name[entries]
#include "kernels/cpu/quant/grids.h"
#undef MP_GRID
