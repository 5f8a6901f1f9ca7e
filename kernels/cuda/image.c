/* kernels/cuda/kernels.ptx and tensor.ptx, which tools/make_ptx writes, as strings. */
#include "kernels/cuda/cuda_kernels.h"

#define TEXT(name, path)                             \
    __asm__(".section .rodata\n"                     \
            ".globl " #name "\n"                     \
            ".hidden " #name "\n"                    \
            ".type " #name ", %object\n" #name ":\n" \
            ".incbin \"" path "\"\n"                 \
            ".byte 0\n"                              \
            ".size " #name ", . - " #name "\n"       \
            ".previous\n")
TEXT(mp_cuda_image, MP_CUDA_PTX "/kernels.ptx");
TEXT(mp_cuda_tensor_image, MP_CUDA_PTX "/tensor.ptx");
