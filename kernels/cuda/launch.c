/* How kernels are launched: names, sizes and grids, from the cuts of kernels/cuda/tiles.h. */
#include "kernels/cuda/cuda_kernels.h"

#include <stddef.h>

#include "kernels/cpu/types.h"
#include "kernels/cuda/tiles.h"

_Static_assert(MP_CUDA_KERNEL_embed == 0, "kernel 0 multiplies nothing");
_Static_assert(sizeof(((struct mp_cuda_sample_part *)NULL)->place) ==
                   MP_SAMPLE_LISTED * sizeof(uint64_t),
               "a place for each listed token");

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

/* The kernels of one type, by the end of their names; those for fewer tokens first. */
struct kernels_of {
    enum mp_cuda_kernel gemv[4], project[4], route[4], experts_up[5], experts_down[5];
    enum mp_cuda_kernel attend;
    struct mp_cuda_type type;
};

#define FOUR(kernel, type)                                                       \
    {                                                                            \
        MP_CUDA_KERNEL_##kernel##1_##type, MP_CUDA_KERNEL_##kernel##2_##type,    \
            MP_CUDA_KERNEL_##kernel##4_##type, MP_CUDA_KERNEL_##kernel##8_##type \
    }
#define EXPERTS(kernel, type)                                                     \
    {                                                                             \
        MP_CUDA_KERNEL_##kernel##1_##type, MP_CUDA_KERNEL_##kernel##2_##type,     \
            MP_CUDA_KERNEL_##kernel##4_##type, MP_CUDA_KERNEL_##kernel##8_##type, \
            MP_CUDA_KERNEL_##kernel##_##type                                      \
    }
#define KERNELS_OF(name, ...)                                                                 \
    {                                                                                         \
        .gemv = FOUR(gemv, name), .project = FOUR(project, name), .route = FOUR(route, name), \
        .experts_up = EXPERTS(experts_up, name), .experts_down = EXPERTS(experts_down, name), \
        .attend = MP_CUDA_KERNEL_attend_##name,                                               \
        .type = { .gemm = MP_CUDA_KERNEL_gemm_##name, __VA_ARGS__ },                          \
    }

#define NONE MP_CUDA_KERNEL_COUNT
#define EXACT .round = NONE, .tensor = NONE, .tensor_up = NONE, .tensor_down = NONE
#define TENSOR(name)                                                                      \
    .tensor = MP_CUDA_KERNEL_tensor_##name, .tensor_up = MP_CUDA_KERNEL_tensor_up_##name, \
    .tensor_down = MP_CUDA_KERNEL_tensor_down_##name
#define ROUNDED(name) .round = MP_CUDA_KERNEL_round_##name, TENSOR(name)

/* Eight tokens at most are those of four, or of two, at a time. */
#define ONE_OR_MORE(kernel, type)                                                \
    {                                                                            \
        MP_CUDA_KERNEL_##kernel##1_##type, MP_CUDA_KERNEL_##kernel##8_##type,    \
            MP_CUDA_KERNEL_##kernel##8_##type, MP_CUDA_KERNEL_##kernel##8_##type \
    }
#define ONE_OR_MORE_ROWS(kernel, type)                                            \
    {                                                                             \
        MP_CUDA_KERNEL_##kernel##1_##type, MP_CUDA_KERNEL_##kernel##8_##type,     \
            MP_CUDA_KERNEL_##kernel##8_##type, MP_CUDA_KERNEL_##kernel##8_##type, \
            MP_CUDA_KERNEL_##kernel##_##type                                      \
    }
#define QUANTISED(TYPE, name)                                      \
    [MP_WTYPE_##TYPE] = {                                          \
        .gemv = ONE_OR_MORE(gemv, name),                           \
        .project = ONE_OR_MORE(project, name),                     \
        .route = { NONE, NONE, NONE, NONE },                       \
        .experts_up = ONE_OR_MORE_ROWS(experts_up, name),          \
        .experts_down = ONE_OR_MORE_ROWS(experts_down, name),      \
        .attend = NONE,                                            \
        .type = { .gemm = MP_CUDA_KERNEL_gemm_##name,              \
                  .round = NONE,                                   \
                  TENSOR(name),                                    \
                  .image = mp_cuda_##name##_image,                 \
                  .tensor_image = mp_cuda_tensor_##name##_image,   \
                  .first = MP_CUDA_KERNEL_gemv1_##name,            \
                  .end = MP_CUDA_KERNEL_experts_down_##name + 1 }, \
    },

static const struct kernels_of types[MP_WTYPE_COUNT] = { [MP_WTYPE_F32] = KERNELS_OF(f32, EXACT),
                                                         [MP_WTYPE_BF16] =
                                                             KERNELS_OF(bf16, ROUNDED(bf16)),
                                                         [MP_WTYPE_F16] =
                                                             KERNELS_OF(f16, ROUNDED(f16)),
                                                         MP_CUDA_QUANT_MAP(QUANTISED) };

const struct mp_cuda_type *mp_cuda_type(uint32_t type)
{
    /* No type has kernel 0 for its products: that is another one. */
    return type < MP_WTYPE_COUNT && types[type].type.gemm != 0 ? &types[type].type : NULL;
}

static enum mp_cuda_kernel for_tokens(const enum mp_cuda_kernel kernels[4], uint32_t tokens)
{
    return kernels[tokens <= 1 ? 0 : tokens == 2 ? 1 : tokens <= 4 ? 2 : 3];
}

enum mp_cuda_kernel mp_cuda_gemv(uint32_t type, uint32_t tokens)
{
    return for_tokens(types[type].gemv, tokens);
}

enum mp_cuda_kernel mp_cuda_project(uint32_t type, uint32_t tokens)
{
    return for_tokens(types[type].project, tokens);
}

enum mp_cuda_kernel mp_cuda_route(uint32_t type, uint32_t tokens)
{
    return for_tokens(types[type].route, tokens);
}

static enum mp_cuda_kernel for_rows(const enum mp_cuda_kernel kernels[5], uint32_t rows_max)
{
    return rows_max > MP_TILE_TOKENS ? kernels[4] : for_tokens(kernels, rows_max);
}

enum mp_cuda_kernel mp_cuda_experts_up(uint32_t type, uint32_t rows_max)
{
    return for_rows(types[type].experts_up, rows_max);
}

enum mp_cuda_kernel mp_cuda_experts_down(uint32_t type, uint32_t rows_max)
{
    return for_rows(types[type].experts_down, rows_max);
}

enum mp_cuda_kernel mp_cuda_attend(uint32_t type)
{
    return types[type].attend;
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
    return (uint64_t)p->tokens * p->heads * MP_ATTEND_PARTS_OF(p->ctx) *
           (MP_ATTEND_HEAD + p->head_dim) * sizeof(float);
}

uint64_t mp_cuda_sample_part_bytes(const struct mp_cuda_sample *p)
{
    return (uint64_t)p->tokens * MP_SAMPLE_BLOCKS(p->vocab) * sizeof(struct mp_cuda_sample_part);
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
    return grid_of(MP_GEMV_BLOCKS(p->rows, p->cols), p->tokens > 0, 1, MP_GEMV_WARPS * MP_LANES,
                   MP_GEMV_SHARED);
}

static struct mp_cuda_grid gemm(const struct mp_cuda_matmul *p)
{
    return grid_of(parts(p->rows, MP_GEMM_WARPS * MP_TILE_ROWS), parts(p->tokens, MP_TILE_TOKENS),
                   1, MP_GEMM_WARPS * MP_LANES, 0);
}

static struct mp_cuda_grid tensor(const struct mp_cuda_matmul *p)
{
    return grid_of(parts(p->rows, MP_TENSOR_ROWS), parts(p->tokens, MP_TENSOR_TOKENS), 1,
                   MP_TENSOR_WARPS * MP_LANES, MP_TENSOR_SHARED);
}

static struct mp_cuda_grid project(const struct mp_cuda_project *p)
{
    uint32_t blocks = 0;

    for (unsigned i = 0; i < 3; i++)
        blocks += MP_GEMV_BLOCKS(p->part[i].rows, p->in.cols);
    return grid_of(blocks, p->in.tokens > 0, 1, MP_GEMV_WARPS * MP_LANES, MP_PROJECT_SHARED);
}

static struct mp_cuda_grid route(const struct mp_cuda_route *p)
{
    return grid_of(MP_GEMV_BLOCKS(p->experts, p->in.cols) * (p->next.w != 0 ? 2 : 1),
                   p->in.tokens > 0, 1, MP_GEMV_WARPS * MP_LANES, MP_ROUTE_SHARED);
}

/* Tiles of tokens of one expert beyond these come one after another in a block. */
#define EXPERT_TILES_MAX 64

static struct mp_cuda_grid experts(const struct mp_cuda_experts *p, uint32_t rows, uint32_t each)
{
    uint32_t tiles = parts(p->rows_max, MP_TILE_TOKENS);

    tiles = tiles < EXPERT_TILES_MAX ? tiles : EXPERT_TILES_MAX;
    return grid_of(parts(rows, each), p->works, tiles, MP_EXPERT_WARPS * MP_LANES, 0);
}

static struct mp_cuda_grid tensor_experts(const struct mp_cuda_experts *p, uint32_t rows,
                                          uint32_t each)
{
    return grid_of(parts(rows, each), p->works, parts(p->rows_max, MP_TENSOR_TOKENS),
                   MP_TENSOR_WARPS * MP_LANES, MP_TENSOR_SHARED);
}

static struct mp_cuda_grid place(const struct mp_cuda_place *p)
{
    return grid_of(parts(p->heads + 2 * p->kv_heads, MP_PLACE_WARPS), p->tokens, 1,
                   MP_PLACE_WARPS * MP_LANES, 0);
}

static struct mp_cuda_grid attend(const struct mp_cuda_attend *p)
{
    const uint32_t per = p->kv_heads > 0 ? p->heads / p->kv_heads : 1;

    return grid_of(p->tokens * p->kv_heads * MP_ATTEND_GROUPS(per, p->head_dim),
                   p->part != 0 ? MP_ATTEND_PARTS_OF(p->ctx) : 1, 1, MP_ATTEND_WARPS * MP_LANES,
                   MP_ATTEND_SHARED(per, p->head_dim));
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
    case MP_CUDA_KERNEL_silu_mul: return each(((const struct mp_cuda_silu_mul *)params)->count, 1);
    case MP_CUDA_KERNEL_combine: return each(combine->hidden, combine->tokens);
    case MP_CUDA_KERNEL_top_k: return row_warps(((const struct mp_cuda_top_k *)params)->tokens);
    case MP_CUDA_KERNEL_resolve:
        return grid_of(1, 1, 1, parts(resolve->experts, MP_LANES) * MP_LANES, MP_RESOLVE_SHARED);
    case MP_CUDA_KERNEL_argmax:
        return grid_of(argmax->tokens, 1, 1, MP_ARGMAX_THREADS, MP_ARGMAX_SHARED);
    case MP_CUDA_KERNEL_sample_list:
    case MP_CUDA_KERNEL_sample:
        return grid_of(MP_SAMPLE_BLOCKS(sample->vocab), sample->tokens, 1, MP_ARGMAX_THREADS,
                       MP_SAMPLE_SHARED);
    case MP_CUDA_KERNEL_round_bf16:
    case MP_CUDA_KERNEL_round_f16: return each(round->width, round->tokens);
    case MP_CUDA_KERNEL_gather_rows:
    case MP_CUDA_KERNEL_scatter_rows: return each(rows->width, rows->rows);
    case MP_CUDA_KERNEL_read: return grid_of(read->blocks, 1, 1, MP_READ_THREADS, MP_READ_SHARED);
    default: return grid_of(1, 1, 1, 1, 0); /* spin */
    }
}

/* Kernels of a quantised type, and those of one type for tensor cores, cut their work as those of
 * BF16 do. */
static enum mp_cuda_kernel plain_of(enum mp_cuda_kernel kernel)
{
#define X(name, params) MP_CUDA_KERNEL_##name,
    static const enum mp_cuda_kernel plain[] = { MP_CUDA_QUANT_KERNELS(X, bf16) };
    static const enum mp_cuda_kernel tensor[] = { MP_CUDA_TENSOR_KERNELS(X, bf16) };
#undef X

    if (kernel >= MP_CUDA_TENSOR_FIRST)
        return tensor[(kernel - MP_CUDA_TENSOR_FIRST) % (sizeof(tensor) / sizeof(tensor[0]))];
    if (kernel >= MP_CUDA_QUANT_FIRST)
        return plain[(kernel - MP_CUDA_QUANT_FIRST) % (sizeof(plain) / sizeof(plain[0]))];
    return kernel;
}

struct mp_cuda_grid mp_cuda_kernel_grid(enum mp_cuda_kernel kernel, const void *params)
{
    const struct mp_cuda_experts *list = params;

    kernel = plain_of(kernel);
    if (kernel >= MP_CUDA_KERNEL_gemv1_f32 && kernel <= MP_CUDA_KERNEL_gemv8_f16)
        return gemv(params);
    if (kernel >= MP_CUDA_KERNEL_gemm_f32 && kernel <= MP_CUDA_KERNEL_gemm_f16)
        return gemm(params);
    if (kernel == MP_CUDA_KERNEL_tensor_bf16)
        return tensor(params);
    if (kernel == MP_CUDA_KERNEL_tensor_up_bf16)
        return tensor_experts(list, list->channels, MP_TENSOR_CHANNELS);
    if (kernel == MP_CUDA_KERNEL_tensor_down_bf16)
        return tensor_experts(list, list->hidden, MP_TENSOR_ROWS);
    if (kernel >= MP_CUDA_KERNEL_project1_f32 && kernel <= MP_CUDA_KERNEL_project8_f16)
        return project(params);
    if (kernel >= MP_CUDA_KERNEL_route1_f32 && kernel <= MP_CUDA_KERNEL_route8_f16)
        return route(params);
    if (kernel >= MP_CUDA_KERNEL_experts_up1_f32 && kernel <= MP_CUDA_KERNEL_experts_up_f16)
        return experts(list, list->channels, MP_EXPERT_UP_CHANNELS);
    if (kernel >= MP_CUDA_KERNEL_experts_down1_f32 && kernel <= MP_CUDA_KERNEL_experts_down_f16)
        return experts(list, list->hidden, MP_EXPERT_DOWN_ROWS);
    if (kernel >= MP_CUDA_KERNEL_attend_f32 && kernel <= MP_CUDA_KERNEL_attend_f16)
        return attend(params);
    return kernel == MP_CUDA_KERNEL_place ? place(params) : small(kernel, params);
}
