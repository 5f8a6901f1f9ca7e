/* kernels/cuda/kernels.ptx, which tools/make_ptx writes, as a string. */
#include "kernels/cuda/cuda_kernels.h"

__asm__(".section .rodata\n"
        ".globl mp_cuda_image\n"
        ".hidden mp_cuda_image\n"
        ".type mp_cuda_image, %object\n"
        "mp_cuda_image:\n"
        ".incbin \"" MP_CUDA_PTX "\"\n"
        ".byte 0\n"
        ".size mp_cuda_image, . - mp_cuda_image\n"
        ".previous\n");
