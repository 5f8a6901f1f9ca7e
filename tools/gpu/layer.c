#include "tools/gpu/layer.h"

#include "kernels/cuda/works.h"

#define LONG_CONTEXT 1024u /* engine/forward/cuda/device_compute.c */

const struct layer_shape layer_qwen3_30b_a3b = {
    .hidden = 2048,
    .heads = 32,
    .kv_heads = 4,
    .head_dim = 128,
    .experts = 128,
    .top_k = 8,
    .channels = 768,
    .vocab = 151936,
    .tokens = 1,
    .ctx = 4096,
    .positions = 1024,
    .type = MP_WTYPE_BF16,
    .kv_type = MP_WTYPE_F32,
    .processors = 132,
};

/* Rows of weights, in the order in which they lie. */
enum matrix { Q, K, V, O, ROUTER, MATRICES };

static uint64_t matrix_bytes(const struct layer_shape *s, enum matrix matrix)
{
    const uint64_t queries = (uint64_t)s->heads * s->head_dim;
    const uint64_t keys = (uint64_t)s->kv_heads * s->head_dim;
    const uint64_t rows[MATRICES] = { queries, keys, keys, queries, s->experts };

    return mp_wtype_bytes(s->type, rows[matrix] * s->hidden);
}

static uint64_t matrix_at(const struct layer_shape *s, const struct layer_at *at,
                          enum matrix matrix)
{
    uint64_t address = at->weights;

    for (unsigned m = Q; m < (unsigned)matrix; m++)
        address += matrix_bytes(s, (enum matrix)m);
    return address;
}

uint64_t layer_dense_bytes(const struct layer_shape *shape)
{
    return matrix_at(shape, &(struct layer_at){ .weights = 0 }, MATRICES);
}

uint64_t layer_expert_bytes(const struct layer_shape *s)
{
    return 3 * mp_wtype_bytes(s->type, (uint64_t)s->hidden * s->channels);
}

uint64_t layer_bytes(const struct layer_shape *s)
{
    return layer_dense_bytes(s) +
           mp_cuda_works(s->experts, s->top_k, s->tokens) * layer_expert_bytes(s);
}

/* What kernels hand on, for all tokens. */
enum array { QUERY, KEY, VALUE, ATTENDED, NORMED, ACT, RANK, SCORES, CHOSEN, WEIGHT, LIST, ROWS };
#define ARRAYS (ROWS + 1)

static uint64_t array_bytes(const struct layer_shape *s, enum array array)
{
    const uint64_t keys = (uint64_t)s->kv_heads * s->head_dim;
    const uint64_t queries = (uint64_t)s->heads * s->head_dim;
    const uint64_t floats[ARRAYS] = {
        [QUERY] = queries,
        [KEY] = keys,
        [VALUE] = keys,
        [ATTENDED] = queries,
        [NORMED] = s->hidden,
        [ACT] = (uint64_t)s->top_k * s->channels,
        [RANK] = (uint64_t)s->top_k * s->hidden,
        [SCORES] = s->experts,
        [CHOSEN] = s->top_k,
        [WEIGHT] = s->top_k,
        [LIST] = (uint64_t)s->top_k * sizeof(struct mp_cuda_expert) / sizeof(float),
        [ROWS] = s->top_k + 1, /* and a count of misses */
    };

    return (floats[array] * s->tokens * sizeof(float) + 255) / 256 * 256;
}

static uint64_t array_at(const struct layer_shape *s, const struct layer_at *at, enum array array)
{
    uint64_t address = at->state;

    for (unsigned a = QUERY; a < (unsigned)array; a++)
        address += array_bytes(s, (enum array)a);
    return address;
}

uint64_t layer_state_bytes(const struct layer_shape *shape)
{
    return array_at(shape, &(struct layer_at){ .state = 0 }, ARRAYS);
}

static struct mp_cuda_normed normed(const struct layer_shape *s, const struct layer_at *at)
{
    return (struct mp_cuda_normed){
        .x = at->x, .norm = at->norms, .cols = s->hidden, .tokens = s->tokens, .eps = 1e-6f
    };
}

static void project(const struct layer_shape *s, const struct layer_at *at, struct layer_launch *to)
{
    const uint32_t queries = s->heads * s->head_dim, keys = s->kv_heads * s->head_dim;

    to->name = "project";
    to->kernel = mp_cuda_project(s->type, s->tokens);
    to->bytes = matrix_bytes(s, Q) + matrix_bytes(s, K) + matrix_bytes(s, V);
    to->params.project = (struct mp_cuda_project){ .in = normed(s, at) };
    for (unsigned i = 0; i < 3; i++)
        to->params.project.part[i] =
            (struct mp_cuda_part){ .w = matrix_at(s, at, (enum matrix)(Q + i)),
                                   .y = array_at(s, at, (enum array)(QUERY + i)),
                                   .rows = i == 0 ? queries : keys };
}

static void place(const struct layer_shape *s, const struct layer_at *at, struct layer_launch *to)
{
    to->name = "place";
    to->kernel = MP_CUDA_KERNEL_place;
    to->params.place = (struct mp_cuda_place){
        .q = array_at(s, at, QUERY),
        .k = array_at(s, at, KEY),
        .v = array_at(s, at, VALUE),
        .q_norm = at->norms,
        .k_norm = at->norms,
        .cosine = at->rotations,
        .sine = at->rotations,
        .k_cache = at->k_cache,
        .v_cache = at->v_cache,
        .sequence = at->sequence,
        .position = at->position,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .tokens = s->tokens,
        .ctx = s->ctx,
        .eps = 1e-6f,
        .type = s->kv_type,
    };
}

static void attend(const struct layer_shape *s, const struct layer_at *at, struct layer_launch *to)
{
    struct mp_cuda_attend *p = &to->params.attend;

    to->name = "attend";
    to->kernel = mp_cuda_attend(s->kv_type);
    to->bytes = 2 * mp_wtype_bytes(s->kv_type,
                                   (uint64_t)s->tokens * s->positions * s->kv_heads * s->head_dim);
    *p = (struct mp_cuda_attend){
        .q = array_at(s, at, QUERY),
        .out = array_at(s, at, ATTENDED),
        .k_cache = at->k_cache,
        .v_cache = at->v_cache,
        .sequence = at->sequence,
        .position = at->position,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .tokens = s->tokens,
        .ctx = s->ctx,
        .scale = 0.1f,
    };
    if (s->ctx >= LONG_CONTEXT && mp_cuda_kernel_grid(to->kernel, p).x < 2 * s->processors) {
        p->part = at->part;
        p->turn = at->turn + s->heads * sizeof(uint32_t); /* the first row: route() */
    }
}

static struct mp_cuda_matmul product(const struct layer_shape *s, uint64_t w, uint64_t x,
                                     uint64_t y, uint32_t rows, uint32_t cols)
{
    return (struct mp_cuda_matmul){
        .w = w,
        .x = x,
        .y = y,
        .type = s->type,
        .rows = rows,
        .cols = cols,
        .tokens = s->tokens,
        .w_stride = cols,
        .x_stride = cols,
        .y_stride = rows,
    };
}

static void output(const struct layer_shape *s, const struct layer_at *at, struct layer_launch *to)
{
    to->name = "o-projection";
    to->kernel = mp_cuda_gemv(s->type, s->tokens);
    to->bytes = matrix_bytes(s, O);
    to->params.matmul = product(s, matrix_at(s, at, O), array_at(s, at, ATTENDED), at->x, s->hidden,
                                s->heads * s->head_dim);
    to->params.matmul.accumulate = 1;
}

static void route(const struct layer_shape *s, const struct layer_at *at, struct layer_launch *to)
{
    const uint64_t chosen = array_at(s, at, CHOSEN), rows = array_at(s, at, ROWS);
    const uint64_t scores = array_at(s, at, SCORES);

    to->name = "route";
    to->kernel = mp_cuda_route(s->type, s->tokens);
    to->bytes = matrix_bytes(s, ROUTER);
    to->params.route = (struct mp_cuda_route){
        .in = normed(s, at),
        .w = matrix_at(s, at, ROUTER),
        .out = array_at(s, at, NORMED),
        .scores = scores,
        .turn = at->turn,
        .choose = { .scores = scores,
                    .expert = chosen,
                    .weight = array_at(s, at, WEIGHT),
                    .experts = s->experts,
                    .top_k = s->top_k,
                    .tokens = s->tokens },
        .list = { .expert = chosen,
                  .table = at->table,
                  .work = array_at(s, at, LIST),
                  .row = rows,
                  .misses = rows + (uint64_t)s->tokens * s->top_k * sizeof(uint32_t),
                  .experts = s->experts,
                  .top_k = s->top_k,
                  .tokens = s->tokens,
                  .channels = s->channels,
                  .works = mp_cuda_works(s->experts, s->top_k, s->tokens) },
        .experts = s->experts,
    };
}

static void experts(const struct layer_shape *s, const struct layer_at *at, struct layer_launch *up,
                    struct layer_launch *down)
{
    const uint32_t works = mp_cuda_works(s->experts, s->top_k, s->tokens);

    up->name = "experts_up";
    up->kernel = mp_cuda_experts_up(s->type, s->tokens);
    up->bytes = works * layer_expert_bytes(s) / 3 * 2;
    down->name = "experts_down";
    down->kernel = mp_cuda_experts_down(s->type, s->tokens);
    down->bytes = works * layer_expert_bytes(s) / 3;
    up->params.experts = down->params.experts = (struct mp_cuda_experts){
        .work = at->work,
        .row = at->row,
        .x = array_at(s, at, NORMED),
        .act = array_at(s, at, ACT),
        .rank = array_at(s, at, RANK),
        .type = s->type,
        .works = works,
        .hidden = s->hidden,
        .channels = s->channels,
        .top_k = s->top_k,
        .x_stride = s->hidden,
        .rows_max = s->tokens,
    };
}

static void combine(const struct layer_shape *s, const struct layer_at *at, struct layer_launch *to)
{
    to->name = "combine";
    to->kernel = MP_CUDA_KERNEL_combine;
    to->params.combine = (struct mp_cuda_combine){
        .x = at->x,
        .rank = array_at(s, at, RANK),
        .weight = array_at(s, at, WEIGHT),
        .hidden = s->hidden,
        .top_k = s->top_k,
        .tokens = s->tokens,
        .normalise = 1,
    };
}

void layer_launches(const struct layer_shape *shape, const struct layer_at *at,
                    struct layer_launch list[LAYER_LAUNCHES])
{
    for (unsigned i = 0; i < LAYER_LAUNCHES; i++)
        list[i] = (struct layer_launch){ .bytes = 0 };
    project(shape, at, &list[0]);
    place(shape, at, &list[1]);
    attend(shape, at, &list[2]);
    output(shape, at, &list[3]);
    route(shape, at, &list[4]);
    experts(shape, at, &list[5], &list[6]);
    combine(shape, at, &list[7]);
}

struct layer_launch layer_head(const struct layer_shape *s, const struct layer_at *at,
                               uint64_t logits)
{
    return (struct layer_launch){
        .name = "head",
        .kernel = mp_cuda_gemv(s->type, s->tokens),
        .bytes = mp_wtype_bytes(s->type, (uint64_t)s->vocab * s->hidden),
        .params.matmul = product(s, at->weights, at->x, logits, s->vocab, s->hidden),
    };
}
