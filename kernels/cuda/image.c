/* kernels/cuda/kernels.ptx and the others, which tools/make_ptx writes, as strings. */
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
#define X(TYPE, name)                                           \
    TEXT(mp_cuda_##name##_image, MP_CUDA_PTX "/" #name ".ptx"); \
    TEXT(mp_cuda_tensor_##name##_image, MP_CUDA_PTX "/tensor_" #name ".ptx");
MP_CUDA_QUANT_MAP(X)
#undef X
