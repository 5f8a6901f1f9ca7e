/*
 * The width of an expert's slices. engine/repack writes them.
 */
#include "engine/model/slices.h"

#include <stddef.h>

#include "kernels/cpu/kernels.h"

/* Blocks, and what copies and kernels like, may cost an eighth of the room. */
#define WASTE_DENOMINATOR 8

bool mp_ffn_slices_make(uint32_t ffn, uint32_t count, struct mp_ffn_slices *slices_p)
{
    static const uint32_t grains[] = { MP_KERNEL_BLOCK_COLS, 16, 1 };

    if (count > 0) {
        for (size_t i = count == 1 ? 2 : 0; i < sizeof(grains) / sizeof(grains[0]); i++) {
            const uint32_t least = ffn / count + (ffn % count != 0);
            const uint64_t width = ((uint64_t)least + grains[i] - 1) / grains[i] * grains[i];
            const bool wasteful = (width * count - ffn) * WASTE_DENOMINATOR > ffn;

            if ((count - 1) * width < ffn && (!wasteful || grains[i] == 1)) {
                *slices_p =
                    (struct mp_ffn_slices){ .count = count, .width = (uint32_t)width, .ffn = ffn };
                return true;
            }
        }
    }
    return false;
}

bool mp_ffn_slices_exact(const struct mp_ffn_slices *slices)
{
    return slices->count == 1 || slices->width % MP_KERNEL_BLOCK_COLS == 0;
}
