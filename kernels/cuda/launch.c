/* How kernels are launched: names, sizes and grids, from the cuts of kernels/cuda/tiles.h. */
#include "kernels/cuda/cuda_kernels.h"

#include <stddef.h>

#include "kernels/cpu/types.h"
#include "kernels/cuda/tiles.h"

_Static_assert(MP_CUDA_KERNEL_embed == 0, "kernel 0 multiplies nothing");

static const char *const names[MP_CUDA_KERNEL_COUNT] = {
#define X(name, params) "mp_" #name,
    MP_CUDA_KERNEL_MAP(X)
#undef X
};

static const uint32_t bytes[MP_CUDA_KERNEL_COUNT] = {
#define X(name, params) sizeof(struct params),
    MP_CUDA_KERNEL_MAP(X)
#undef X
};

/* The kernels of one type, by the end of their names. */
#define KERNELS_OF(type, rounding)                                                      \
    {                                                                                   \
        .gemv = MP_CUDA_KERNEL_gemv_##type, .gemm = MP_CUDA_KERNEL_gemm_##type,         \
        .project = MP_CUDA_KERNEL_project_##type, .route = MP_CUDA_KERNEL_route_##type, \
        .experts_up = MP_CUDA_KERNEL_experts_up_##type,                                 \
        .experts_down = MP_CUDA_KERNEL_experts_down_##type, .round = rounding           \
    }

static const struct mp_cuda_type types[MP_WTYPE_COUNT] = {
    [MP_WTYPE_F32] = KERNELS_OF(f32, MP_CUDA_KERNEL_COUNT),
    [MP_WTYPE_BF16] = KERNELS_OF(bf16, MP_CUDA_KERNEL_round_bf16),
    [MP_WTYPE_F16] = KERNELS_OF(f16, MP_CUDA_KERNEL_round_f16),
};

const struct mp_cuda_type *mp_cuda_type(uint32_t type)
{
    /* No type has kernel 0 for its products: that is another one. */
    return type < MP_WTYPE_COUNT && types[type].gemv != 0 ? &types[type] : NULL;
}

const char *mp_cuda_kernel_name(enum mp_cuda_kernel kernel)
{
    return (unsigned)kernel < MP_CUDA_KERNEL_COUNT ? names[kernel] : NULL;
}

uint32_t mp_cuda_kernel_bytes(enum mp_cuda_kernel kernel)
{
    return (unsigned)kernel < MP_CUDA_KERNEL_COUNT ? bytes[kernel] : 0;
}

uint64_t mp_cuda_attend_part_bytes(const struct mp_cuda_attend *p)
{
    return (uint64_t)p->tokens * p->heads * MP_ATTEND_STREAMS * (MP_ATTEND_HEAD + p->head_dim) *
           sizeof(float);
}

/* Blocks for `count` things, `each` of them a block. */
static uint32_t parts(uint64_t count, uint32_t each)
{
    return (uint32_t)((count + each - 1) / each);
}

static struct mp_cuda_grid grid_of(uint32_t x, uint32_t y, uint32_t z, uint32_t threads,
                                   uint32_t shared_bytes)
{
    struct mp_cuda_grid grid = { x, y, z, threads, shared_bytes };

    if (x == 0 || y == 0 || z == 0)
        grid.x = grid.y = grid.z = 0;
    return grid;
}

static struct mp_cuda_grid gemv(const struct mp_cuda_matmul *p)
{
    const uint32_t each = MP_GEMV_WARPS * MP_GEMV_ROWS(p->rows, p->tokens);

    return grid_of(parts(p->rows, each), p->tokens > 0, 1, MP_GEMV_WARPS * MP_LANES, 0);
}

static struct mp_cuda_grid gemm(const struct mp_cuda_matmul *p)
{
    return grid_of(parts(p->rows, MP_GEMM_WARPS * MP_TILE_ROWS), parts(p->tokens, MP_TILE_TOKENS),
                   1, MP_GEMM_WARPS * MP_LANES, 0);
}

static struct mp_cuda_grid project(const struct mp_cuda_project *p)
{
    const uint32_t tokens = p->in.tokens;
    uint32_t blocks = 0;

    for (unsigned i = 0; i < 3; i++)
        blocks += MP_GEMV_BLOCKS(p->part[i].rows, tokens);
    return grid_of(blocks, tokens > 0, 1, MP_GEMV_WARPS * MP_LANES, MP_PROJECT_SHARED);
}

static struct mp_cuda_grid route(const struct mp_cuda_route *p)
{
    return grid_of(parts(p->experts, MP_GEMV_WARPS), p->in.tokens > 0, 1, MP_GEMV_WARPS * MP_LANES,
                   MP_ROUTE_SHARED);
}

/* Tiles of tokens of one expert beyond these come one after another in a block. */
#define EXPERT_TILES_MAX 64

static struct mp_cuda_grid experts(const struct mp_cuda_experts *p, uint32_t rows, uint32_t each)
{
    uint32_t tiles = parts(p->rows_max, MP_TILE_TOKENS);

    tiles = tiles < EXPERT_TILES_MAX ? tiles : EXPERT_TILES_MAX;
    return grid_of(parts(rows, each), p->works, tiles, MP_EXPERT_WARPS * MP_LANES, 0);
}

static struct mp_cuda_grid place(const struct mp_cuda_place *p)
{
    return grid_of(parts(p->heads + 2 * p->kv_heads, MP_PLACE_WARPS), p->tokens, 1,
                   MP_PLACE_WARPS * MP_LANES, 0);
}

static struct mp_cuda_grid attend(const struct mp_cuda_attend *p, uint32_t y, uint32_t shared_bytes)
{
    return grid_of(p->tokens * p->heads, y, 1, MP_ATTEND_WARPS * MP_LANES, shared_bytes);
}

/* A thread for each of `count` elements of each of `y` rows. */
static struct mp_cuda_grid each(uint64_t count, uint32_t y)
{
    return grid_of(parts(count, MP_EACH_THREADS), y, 1, MP_EACH_THREADS, 0);
}

static struct mp_cuda_grid row_warps(uint32_t tokens)
{
    return grid_of(parts(tokens, MP_ROW_WARPS), 1, 1, MP_ROW_WARPS * MP_LANES, 0);
}

/* Those whose grid is a line each. */
static struct mp_cuda_grid small(enum mp_cuda_kernel kernel, const void *params)
{
    const struct mp_cuda_embed *embed = params;
    const struct mp_cuda_rmsnorm *rmsnorm = params;
    const struct mp_cuda_combine *combine = params;
    const struct mp_cuda_resolve *resolve = params;
    const struct mp_cuda_argmax *argmax = params;
    const struct mp_cuda_sample *sample = params;
    const struct mp_cuda_round *round = params;
    const struct mp_cuda_rows *rows = params;
    const struct mp_cuda_read *read = params;

    switch (kernel) {
    case MP_CUDA_KERNEL_embed: return each(embed->width, embed->tokens);
    case MP_CUDA_KERNEL_rmsnorm:
        return grid_of(rmsnorm->tokens, 1, 1, MP_NORM_THREADS, MP_NORM_SHARED);
    case MP_CUDA_KERNEL_softmax: return row_warps(((const struct mp_cuda_softmax *)params)->tokens);
    case MP_CUDA_KERNEL_axpy: return each(((const struct mp_cuda_axpy *)params)->count, 1);
    case MP_CUDA_KERNEL_silu_mul: return each(((const struct mp_cuda_silu_mul *)params)->count, 1);
    case MP_CUDA_KERNEL_combine: return each(combine->hidden, combine->tokens);
    case MP_CUDA_KERNEL_top_k: return row_warps(((const struct mp_cuda_top_k *)params)->tokens);
    case MP_CUDA_KERNEL_resolve:
        return grid_of(1, 1, 1, parts(resolve->experts, MP_LANES) * MP_LANES, MP_RESOLVE_SHARED);
    case MP_CUDA_KERNEL_argmax:
        return grid_of(argmax->tokens, 1, 1, MP_ARGMAX_THREADS, MP_ARGMAX_SHARED);
    case MP_CUDA_KERNEL_sample:
        return grid_of(sample->tokens, 1, 1, MP_ARGMAX_THREADS, MP_SAMPLE_SHARED);
    case MP_CUDA_KERNEL_round_bf16:
    case MP_CUDA_KERNEL_round_f16: return each(round->width, round->tokens);
    case MP_CUDA_KERNEL_gather_rows:
    case MP_CUDA_KERNEL_scatter_rows: return each(rows->width, rows->rows);
    case MP_CUDA_KERNEL_read: return grid_of(read->blocks, 1, 1, MP_READ_THREADS, MP_READ_SHARED);
    default: return grid_of(1, 1, 1, 1, 0); /* spin */
    }
}

struct mp_cuda_grid mp_cuda_kernel_grid(enum mp_cuda_kernel kernel, const void *params)
{
    const struct mp_cuda_attend *attention = params;
    const struct mp_cuda_experts *list = params;

    switch (kernel) {
    case MP_CUDA_KERNEL_gemv_f32:
    case MP_CUDA_KERNEL_gemv_bf16:
    case MP_CUDA_KERNEL_gemv_f16: return gemv(params);
    case MP_CUDA_KERNEL_gemm_f32:
    case MP_CUDA_KERNEL_gemm_bf16:
    case MP_CUDA_KERNEL_gemm_f16: return gemm(params);
    case MP_CUDA_KERNEL_project_f32:
    case MP_CUDA_KERNEL_project_bf16:
    case MP_CUDA_KERNEL_project_f16: return project(params);
    case MP_CUDA_KERNEL_route_f32:
    case MP_CUDA_KERNEL_route_bf16:
    case MP_CUDA_KERNEL_route_f16: return route(params);
    case MP_CUDA_KERNEL_experts_up_f32:
    case MP_CUDA_KERNEL_experts_up_bf16:
    case MP_CUDA_KERNEL_experts_up_f16: return experts(list, list->channels, MP_EXPERT_UP_CHANNELS);
    case MP_CUDA_KERNEL_experts_down_f32:
    case MP_CUDA_KERNEL_experts_down_bf16:
    case MP_CUDA_KERNEL_experts_down_f16: return experts(list, list->hidden, MP_EXPERT_DOWN_ROWS);
    case MP_CUDA_KERNEL_place: return place(params);
    case MP_CUDA_KERNEL_attend: return attend(attention, 1, MP_ATTEND_SHARED(attention->head_dim));
    case MP_CUDA_KERNEL_attend_split:
        return attend(attention, MP_ATTEND_SPLIT, MP_ATTEND_SPLIT_SHARED);
    default: return small(kernel, params);
    }
}
