/* The work list of experts: which entry is a block's, its rows, where results go. */
#ifndef MP_WORK_CUH
#define MP_WORK_CUH

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/math.cuh"

MP_DEVICE const MP_GLOBAL uint32_t *mp_expert_rows(const struct mp_cuda_experts *p,
                                                   const MP_GLOBAL struct mp_cuda_expert *e)
{
    return (const MP_GLOBAL uint32_t *)p->row + e->first;
}

MP_DEVICE const MP_GLOBAL struct mp_cuda_expert *mp_expert_of(const struct mp_cuda_experts *p)
{
    return (const MP_GLOBAL struct mp_cuda_expert *)p->work + mp_block_y();
}

/* Where in x the input of the expert's row i is. */
MP_DEVICE uint32_t mp_expert_x(const struct mp_cuda_experts *p,
                               const MP_GLOBAL struct mp_cuda_expert *e, uint32_t i)
{
    return mp_expert_rows(p, e)[i] / p->top_k * p->x_stride;
}

MP_DEVICE void mp_expert_act(const struct mp_cuda_experts *p,
                             const MP_GLOBAL struct mp_cuda_expert *e, uint32_t channel, uint32_t i,
                             float gate, float up)
{
    ((MP_GLOBAL float *)p->act)[(uint64_t)(e->first + i) * p->channels + channel] =
        mp_silu(gate) * up;
}

#endif
