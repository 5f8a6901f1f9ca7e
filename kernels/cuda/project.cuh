/*
 * Products of a norm's result with 1 to 8 tokens: up to three matrices in one launch. Each block
 * computes the factors of the norm for itself, from the same sums as mp_rmsnorm.
 */
#ifndef MP_PROJECT_CUH
#define MP_PROJECT_CUH

#include "kernels/cuda/gemv.cuh"

/* In shared memory: the factors of the tokens' norms, and the sums that they come of; what the
 * block multiplies, so that it takes no registers. */
struct mp_norms {
    float scale[MP_TILE_TOKENS];
    float part[MP_TILE_TOKENS * MP_NORM_PARTS];
    struct mp_gemv gemv;
};

_Static_assert(sizeof(struct mp_norms) <= MP_PROJECT_SHARED - MP_GEMV_SHARED, "shared memory");

MP_DEVICE void mp_norms_fill(struct mp_norms *norms, const struct mp_cuda_normed *in)
{
    MP_NO_UNROLL
    for (uint32_t t = 0; t < in->tokens; t++)
        mp_norm_parts(norms->part + t * MP_NORM_PARTS,
                      (const MP_GLOBAL float *)in->x + (uint64_t)t * in->cols, in->cols);
    mp_sync();
    if (mp_thread() < in->tokens)
        norms->scale[mp_thread()] =
            mp_norm_of(norms->part + mp_thread() * MP_NORM_PARTS, in->cols, in->eps);
    mp_sync();
}

/* The product of a matrix with them, once they are filled. */
MP_DEVICE void mp_part_gemv(struct mp_norms *norms, const struct mp_cuda_normed *in,
                            const struct mp_cuda_part *part)
{
    struct mp_gemv g;

    g.m.w = part->w;
    g.m.x = in->x;
    g.m.y = part->y;
    g.m.bias = part->bias;
    g.m.rows = part->rows;
    g.m.cols = g.m.w_stride = g.m.x_stride = in->cols;
    g.m.tokens = in->tokens;
    g.m.y_stride = part->rows;
    g.m.accumulate = 0;
    g.norm = (const MP_GLOBAL float *)in->norm;
    g.scale = norms->scale;
    norms->gemv = g; /* by every thread, the same */
}

/* Behind what mp_gemv_block() uses of shared memory. */
MP_DEVICE struct mp_norms *mp_norms_shared(void)
{
    return (struct mp_norms *)((char *)mp_shared() + MP_GEMV_SHARED);
}

MP_DEVICE void mp_project(const struct mp_cuda_project *p, const int type, const int tokens)
{
    const uint32_t first = MP_GEMV_BLOCKS(p->part[0].rows, p->in.cols);
    const uint32_t second = first + MP_GEMV_BLOCKS(p->part[1].rows, p->in.cols);
    struct mp_norms *norms = mp_norms_shared();
    struct mp_cuda_part part = p->part[0];
    uint32_t block = mp_block_x();

    if (block >= second) {
        part = p->part[2];
        block -= second;
    } else if (block >= first) {
        part = p->part[1];
        block -= first;
    }
    mp_part_gemv(norms, &p->in, &part);
    mp_norms_fill(norms, &p->in);
    mp_gemv_block(&norms->gemv, type, 1, tokens, block);
}

#define MP_PROJECT(name, type, tokens)                                               \
    MP_KERNEL(mp_project##tokens##_##name, mp_cuda_project, MP_GEMV_WARPS *MP_LANES, \
              MP_GEMV_RESIDENT(type, 1, tokens))                                     \
    {                                                                                \
        mp_project(&p, type, tokens);                                                \
    }

#endif
