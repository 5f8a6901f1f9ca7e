#ifndef MP_KERNEL_AMX_H
#define MP_KERNEL_AMX_H

#include "kernels/cpu/quant/quant.h"

/*
 * Products by AMX: tiles of 16 rows of 64 bytes, which one instruction multiplies with another and
 * adds to a third. Class `amx`: BF16 weights with activations rounded to BF16, quantised weights
 * with activations rounded as in kernels/cpu/quant. Everything else is as in avx512.c, to the bit.
 *
 * Exactness. An element of a tile of sums comes from one row of weights and one token, by the same
 * steps whatever stands beside it; missing rows, tokens and columns are zeros. So bits depend on
 * the values that a sum is made of, as everywhere. A partial sum has 1024 columns, or block_cols.
 *
 *   BF16       the processor adds pair by pair, 32 columns an instruction, in order; it takes
 *              denormals for zeros
 *   quantised  a whole number for each 32 columns, or 16 where scales change as often, is exact;
 *              times the scales of weights and activations it is added to one float, in order
 */

/* Does the processor have BF16 and INT8 tiles, and does the system let this process use them? It is
 * asked for them here: from then on signal frames of the process are larger. */
int mp_amx_runs_here(void);

/* block_cols as for any product: a multiple of 256 that divides MP_QUANT_PART_COLS. */
void mp_amx_multiply_bf16(const struct mp_quant_product *product);
void mp_amx_multiply_quantised(const struct mp_quant_product *product, enum mp_wtype type);

#endif
