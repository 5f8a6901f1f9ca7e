/* Which memory a launch of each kernel may touch, from its parameters alone. */
#include <string.h>

#include "kernels/cuda/tiles.h"
#include "kernels/cpu/kernels.h"
#include "tests/device/simt/table.h"

/* Where ranges of one launch go. */
struct out {
    mp_simt_emit *emit;
    void *ctx;
};

static bool range(const struct out *out, uint64_t address, uint64_t bytes, bool write)
{
    return bytes == 0 || out->emit(out->ctx, address, bytes, write);
}

static bool floats(const struct out *out, uint64_t address, uint64_t count, bool write)
{
    return range(out, address, count * sizeof(float), write);
}

/* `rows` rows of `width` elements, `stride` apart. */
static void rows(const struct out *out, uint64_t address, uint64_t count, uint64_t stride,
                 uint64_t width, uint64_t element_bytes, bool write)
{
    if (count > 0 && width > 0)
        (void)range(out, address, ((count - 1) * stride + width) * element_bytes, write);
}

static uint64_t type_bytes(int type, uint64_t elements)
{
    return mp_wtype_bytes((enum mp_wtype)type, elements);
}

static void matmul(const struct mp_cuda_matmul *p, int type, const struct out *out)
{
    if (p->rows > 0 && p->cols > 0)
        (void)range(out, p->w, type_bytes(type, (p->rows - 1) * (uint64_t)p->w_stride + p->cols),
                    false);
    rows(out, p->x, p->tokens, p->x_stride, p->cols, sizeof(float), false);
    if (p->bias != 0 && p->tokens > 0)
        (void)floats(out, p->bias, p->rows, false);
    rows(out, p->y, p->tokens, p->y_stride, p->rows, sizeof(float), true);
}

static void normed(const struct mp_cuda_normed *in, const struct out *out)
{
    (void)floats(out, in->x, (uint64_t)in->tokens * in->cols, false);
    (void)floats(out, in->norm, in->cols, false);
}

static void project(const struct mp_cuda_project *p, int type, const struct out *out)
{
    normed(&p->in, out);
    for (unsigned i = 0; i < 3; i++) {
        const struct mp_cuda_part *part = &p->part[i];

        (void)range(out, part->w, type_bytes(type, (uint64_t)part->rows * p->in.cols), false);
        if (part->bias != 0)
            (void)floats(out, part->bias, part->rows, false);
        (void)floats(out, part->y, (uint64_t)p->in.tokens * part->rows, true);
    }
}

static void embed(const struct mp_cuda_embed *p, const struct out *out)
{
    const uint64_t row_bytes = type_bytes((int)p->type, p->width);

    if (range(out, p->token, p->tokens * sizeof(uint32_t), false)) {
        for (uint32_t t = 0; t < p->tokens; t++) {
            const uint32_t token = ((const uint32_t *)(uintptr_t)p->token)[t];

            if (token < p->vocab)
                (void)range(out, p->table + token * row_bytes, row_bytes, false);
        }
    }
    (void)floats(out, p->x, (uint64_t)p->tokens * p->width, true);
}

static void rmsnorm(const struct mp_cuda_rmsnorm *p, const struct out *out)
{
    rows(out, p->x, p->tokens, p->x_stride, p->width, sizeof(float), false);
    (void)floats(out, p->w, p->tokens > 0 ? p->width : 0, false);
    rows(out, p->out, p->tokens, p->out_stride, p->width, sizeof(float), true);
}

/* Rows [first, first + count) of a sequence in a cache; `width`: bytes of a row. */
static void cached(const struct out *out, uint64_t cache, uint64_t sequence, uint64_t ctx,
                   uint64_t first, uint64_t count, uint64_t width, bool write)
{
    (void)range(out, cache + (sequence * ctx + first) * width, count * width, write);
}

static void place(const struct mp_cuda_place *p, const struct out *out)
{
    const uint64_t T = p->tokens, D = p->head_dim, K = p->kv_heads * D;
    const uint64_t width = mp_wtype_bytes((enum mp_wtype)p->type, K);
    const uint32_t *position = (const uint32_t *)(uintptr_t)p->position;
    const uint32_t *sequence = (const uint32_t *)(uintptr_t)p->sequence;
    const bool known = range(out, p->position, T * sizeof(*position), false);

    (void)floats(out, p->q, T * p->heads * D, true);
    (void)floats(out, p->k, T * K, false);
    (void)floats(out, p->v, T * K, false);
    if (p->q_norm != 0)
        (void)floats(out, p->q_norm, D, false);
    if (p->k_norm != 0)
        (void)floats(out, p->k_norm, D, false);
    if (!range(out, p->sequence, T * sizeof(*sequence), false) || !known)
        return;
    for (uint64_t t = 0; t < T; t++) {
        (void)floats(out, p->cosine + position[t] * (D / 2) * sizeof(float), D / 2, false);
        (void)floats(out, p->sine + position[t] * (D / 2) * sizeof(float), D / 2, false);
        cached(out, p->k_cache, sequence[t], p->ctx, position[t], 1, width, true);
        cached(out, p->v_cache, sequence[t], p->ctx, position[t], 1, width, true);
    }
}

static void attention(const struct mp_cuda_attend *p, const struct out *out, enum mp_wtype type)
{
    const uint64_t T = p->tokens, D = p->head_dim, width = mp_wtype_bytes(type, p->kv_heads * D);
    const uint32_t *position = (const uint32_t *)(uintptr_t)p->position;
    const uint32_t *sequence = (const uint32_t *)(uintptr_t)p->sequence;
    const bool known = range(out, p->position, T * sizeof(*position), false);

    if (p->part != 0) {
        (void)range(out, p->part, mp_cuda_attend_part_bytes(p), true);
        (void)range(out, p->turn, T * p->heads * sizeof(uint32_t), true);
    }
    (void)floats(out, p->out, T * p->heads * D, true);
    (void)floats(out, p->q, T * p->heads * D, false);
    if (!range(out, p->sequence, T * sizeof(*sequence), false) || !known)
        return;
    for (uint64_t t = 0; t < T; t++) {
        cached(out, p->k_cache, sequence[t], p->ctx, 0, position[t] + (uint64_t)1, width, false);
        cached(out, p->v_cache, sequence[t], p->ctx, 0, position[t] + (uint64_t)1, width, false);
    }
}

/* The matrix that has no order, row by row. */
static void scattered(const struct mp_cuda_rows *p, uint64_t at, uint32_t divisor, bool write,
                      const struct out *out)
{
    const uint64_t row_bytes = p->width * sizeof(float);

    if (!range(out, p->row, p->rows * sizeof(uint32_t), false))
        return;
    for (uint32_t r = 0; r < p->rows; r++)
        (void)range(out, at + ((const uint32_t *)(uintptr_t)p->row)[r] / divisor * row_bytes,
                    row_bytes, write);
}

static void gather_rows(const struct mp_cuda_rows *p, const struct out *out)
{
    scattered(p, p->from, p->top_k, false, out);
    (void)floats(out, p->to, (uint64_t)p->rows * p->width, true);
}

static void scatter_rows(const struct mp_cuda_rows *p, const struct out *out)
{
    scattered(p, p->to, 1, true, out);
    (void)floats(out, p->from, (uint64_t)p->rows * p->width, false);
}

static void silu_mul(const struct mp_cuda_silu_mul *p, const struct out *out)
{
    (void)floats(out, p->up, p->count, false);
    (void)floats(out, p->gate, p->count, true);
}

/* What one entry of a list of experts touches. */
static void expert(const struct mp_cuda_experts *p, const struct mp_cuda_expert *e, int type,
                   bool is_up, const struct out *out)
{
    const uint32_t *row = (const uint32_t *)(uintptr_t)p->row + e->first;
    const uint64_t act = p->act + (uint64_t)e->first * p->channels * sizeof(float);
    const uint64_t bytes = type_bytes(type, (uint64_t)e->channels * p->hidden);

    rows(out, act, e->count, p->channels, e->channels, sizeof(float), is_up);
    if (is_up) {
        (void)range(out, e->gate, bytes, false);
        (void)range(out, e->up, bytes, false);
    } else {
        (void)range(out, e->down, bytes, false);
    }
    if (!range(out, p->row + e->first * sizeof(*row), e->count * sizeof(*row), false))
        return;
    for (uint32_t i = 0; i < e->count; i++) {
        if (is_up)
            (void)floats(out, p->x + (uint64_t)(row[i] / p->top_k) * p->x_stride * sizeof(float),
                         p->hidden, false);
        else
            (void)floats(out, p->rank + (uint64_t)row[i] * p->hidden * sizeof(float), p->hidden,
                         true);
    }
}

static void experts(const struct mp_cuda_experts *p, int type, bool is_up, const struct out *out)
{
    const struct mp_cuda_expert *work = (const struct mp_cuda_expert *)(uintptr_t)p->work;

    if (!range(out, p->work, p->works * sizeof(*work), false))
        return;
    for (uint32_t i = 0; i < p->works; i++) {
        if (work[i].count > 0)
            expert(p, &work[i], type, is_up, out);
    }
}

static void combine(const struct mp_cuda_combine *p, const struct out *out)
{
    const uint64_t T = p->tokens, H = p->hidden;

    (void)floats(out, p->rank, T * p->top_k * H, false);
    (void)floats(out, p->weight, T * p->top_k, false);
    if (p->shared != 0)
        (void)floats(out, p->shared, T * H, false);
    if (p->gate != 0)
        (void)floats(out, p->gate, T, false);
    (void)floats(out, p->x, T * H, true);
}

static void top_k(const struct mp_cuda_top_k *p, const struct out *out)
{
    (void)floats(out, p->scores, (uint64_t)p->tokens * p->experts, false);
    (void)range(out, p->expert, (uint64_t)p->tokens * p->top_k * sizeof(uint32_t), true);
    (void)floats(out, p->weight, (uint64_t)p->tokens * p->top_k, true);
}

static void resolve(const struct mp_cuda_resolve *p, const struct out *out)
{
    const uint64_t ranks = (uint64_t)p->tokens * p->top_k;

    (void)range(out, p->expert, ranks * sizeof(uint32_t), false);
    (void)range(out, p->table, p->experts * sizeof(struct mp_cuda_place_of), false);
    (void)range(out, p->work, p->works * sizeof(struct mp_cuda_expert), true);
    (void)range(out, p->row, ranks * sizeof(uint32_t), true);
    (void)range(out, p->misses, sizeof(uint32_t), true);
    if (p->chosen != 0)
        (void)range(out, p->chosen, p->experts * sizeof(uint32_t), true);
}

static void route(const struct mp_cuda_route *p, int type, const struct out *out)
{
    const uint64_t T = p->in.tokens, H = p->in.cols;

    normed(&p->in, out);
    (void)range(out, p->w, type_bytes(type, (uint64_t)p->experts * H), false);
    (void)floats(out, p->out, T * H, true);
    if (p->kept != 0)
        (void)floats(out, p->kept, T * H, true);
    (void)floats(out, p->scores, T * p->experts, true);
    (void)range(out, p->turn, sizeof(uint32_t), true);
    if (p->next.w != 0) {
        (void)range(out, p->next.w, type_bytes(type, (uint64_t)p->experts * H), false);
        (void)floats(out, p->next.norm, H, false);
        (void)floats(out, p->next.scores, T * p->experts, true);
    }
    if (p->choose.top_k == 0)
        return;
    top_k(&p->choose, out);
    resolve(&p->list, out);
}

static void argmax(const struct mp_cuda_argmax *p, const struct out *out)
{
    (void)floats(out, p->logits, (uint64_t)p->tokens * p->vocab, false);
    (void)range(out, p->token, p->tokens * sizeof(uint32_t), true);
}

static void sample_list(const struct mp_cuda_sample *p, const struct out *out)
{
    (void)floats(out, p->logits, (uint64_t)p->tokens * p->vocab, false);
    (void)range(out, p->part, mp_cuda_sample_part_bytes(p), true);
}

static void sample(const struct mp_cuda_sample *p, const struct out *out)
{
    sample_list(p, out);
    (void)range(out, p->turn, p->tokens * sizeof(uint32_t), true);
    (void)range(out, p->uniform, p->tokens * sizeof(uint32_t), false);
    (void)range(out, p->token, p->tokens * sizeof(uint32_t), true);
}

static void round_all(const struct mp_cuda_round *p, const struct out *out)
{
    rows(out, p->x, p->tokens, p->x_stride, p->width, sizeof(float), false);
    (void)range(out, p->to, (uint64_t)p->tokens * p->width * sizeof(uint16_t), true);
}

static void read_all(const struct mp_cuda_read *p, const struct out *out)
{
    (void)range(out, p->src, p->bytes, false);
    (void)range(out, p->sum, p->blocks * sizeof(uint64_t), true);
}

uint64_t mp_simt_idle_blocks(const struct mp_simt_kernel *kernel, const void *params,
                             struct mp_simt_dim grid)
{
    const struct mp_cuda_experts *p = params;
    const struct mp_cuda_expert *work;
    uint64_t idle = 0;

    if (strncmp(kernel->name, "mp_experts_", 11) != 0)
        return 0;
    work = (const struct mp_cuda_expert *)(uintptr_t)p->work;
    for (uint32_t i = 0; i < p->works; i++) {
        const uint32_t tiles = (work[i].count + MP_TILE_TOKENS - 1) / MP_TILE_TOKENS;

        idle += (uint64_t)grid.x * (tiles < grid.z ? grid.z - tiles : 0);
    }
    return idle;
}

uint64_t mp_simt_idle_attend(const struct mp_simt_kernel *kernel, const void *params,
                             struct mp_simt_dim grid)
{
    const struct mp_cuda_attend *p = params;
    const uint32_t *position;
    uint64_t idle = 0;

    if (strncmp(kernel->name, "mp_attend_", 10) != 0 || p->tokens == 0)
        return 0;
    position = (const uint32_t *)(uintptr_t)p->position;
    for (uint32_t t = 0; t < p->tokens; t++) {
        const uint32_t parts = MP_ATTEND_PARTS_OF(position[t] + 1);

        idle += (uint64_t)grid.x / p->tokens * (parts < grid.y ? grid.y - parts : 0);
    }
    return idle;
}

/* TOUCHES(kernel, struct of its parameters, what to do with `p` and `out`) */
#define TOUCHES(kernel, params, call)                                                   \
    void mp_simt_touches_##kernel(const void *params_at, mp_simt_emit *emit, void *ctx) \
    {                                                                                   \
        const struct out out_now = { emit, ctx }, *out = &out_now;                      \
        const struct params *p = params_at;                                             \
                                                                                        \
        (void)p;                                                                        \
        (void)out;                                                                      \
        call;                                                                           \
    }
TOUCHES(embed, mp_cuda_embed, embed(p, out))
TOUCHES(rmsnorm, mp_cuda_rmsnorm, rmsnorm(p, out))
#define TOUCHES_FEW(TYPE, name)                                                             \
    TOUCHES(gemv1_##name, mp_cuda_matmul, matmul(p, MP_WTYPE_##TYPE, out))                  \
    TOUCHES(gemv8_##name, mp_cuda_matmul, matmul(p, MP_WTYPE_##TYPE, out))                  \
    TOUCHES(gemm_##name, mp_cuda_matmul, matmul(p, MP_WTYPE_##TYPE, out))                   \
    TOUCHES(project1_##name, mp_cuda_project, project(p, MP_WTYPE_##TYPE, out))             \
    TOUCHES(project8_##name, mp_cuda_project, project(p, MP_WTYPE_##TYPE, out))             \
    TOUCHES(experts_up1_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, true, out))    \
    TOUCHES(experts_up8_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, true, out))    \
    TOUCHES(experts_up_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, true, out))     \
    TOUCHES(experts_down1_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, false, out)) \
    TOUCHES(experts_down8_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, false, out)) \
    TOUCHES(experts_down_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, false, out))
#define TOUCHES_PLAIN(TYPE, name)                                                           \
    TOUCHES_FEW(TYPE, name)                                                                 \
    TOUCHES(gemv2_##name, mp_cuda_matmul, matmul(p, MP_WTYPE_##TYPE, out))                  \
    TOUCHES(gemv4_##name, mp_cuda_matmul, matmul(p, MP_WTYPE_##TYPE, out))                  \
    TOUCHES(project2_##name, mp_cuda_project, project(p, MP_WTYPE_##TYPE, out))             \
    TOUCHES(project4_##name, mp_cuda_project, project(p, MP_WTYPE_##TYPE, out))             \
    TOUCHES(experts_up2_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, true, out))    \
    TOUCHES(experts_up4_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, true, out))    \
    TOUCHES(experts_down2_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, false, out)) \
    TOUCHES(experts_down4_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, false, out)) \
    TOUCHES(route1_##name, mp_cuda_route, route(p, MP_WTYPE_##TYPE, out))                   \
    TOUCHES(route2_##name, mp_cuda_route, route(p, MP_WTYPE_##TYPE, out))                   \
    TOUCHES(route4_##name, mp_cuda_route, route(p, MP_WTYPE_##TYPE, out))                   \
    TOUCHES(route8_##name, mp_cuda_route, route(p, MP_WTYPE_##TYPE, out))
TOUCHES_PLAIN(F32, f32)
TOUCHES_PLAIN(BF16, bf16)
TOUCHES_PLAIN(F16, f16)
MP_CUDA_QUANT_MAP(TOUCHES_FEW)
TOUCHES(place, mp_cuda_place, place(p, out))
TOUCHES(attend_f32, mp_cuda_attend, attention(p, out, MP_WTYPE_F32))
TOUCHES(attend_bf16, mp_cuda_attend, attention(p, out, MP_WTYPE_BF16))
TOUCHES(attend_f16, mp_cuda_attend, attention(p, out, MP_WTYPE_F16))
TOUCHES(softmax, mp_cuda_softmax,
        rows(out, p->x, p->tokens, p->stride, p->width, sizeof(float), true))
TOUCHES(silu_mul, mp_cuda_silu_mul, silu_mul(p, out))
TOUCHES(combine, mp_cuda_combine, combine(p, out))
TOUCHES(top_k, mp_cuda_top_k, top_k(p, out))
TOUCHES(resolve, mp_cuda_resolve, resolve(p, out))
TOUCHES(argmax, mp_cuda_argmax, argmax(p, out))
TOUCHES(sample_list, mp_cuda_sample, sample_list(p, out))
TOUCHES(sample, mp_cuda_sample, sample(p, out))
TOUCHES(round_bf16, mp_cuda_round, round_all(p, out))
TOUCHES(round_f16, mp_cuda_round, round_all(p, out))
TOUCHES(gather_rows, mp_cuda_rows, gather_rows(p, out))
TOUCHES(scatter_rows, mp_cuda_rows, scatter_rows(p, out))
TOUCHES(read, mp_cuda_read, read_all(p, out))
TOUCHES(spin, mp_cuda_spin, (void)p)
#define TOUCHES_TENSOR(TYPE, name)                                                     \
    TOUCHES(tensor_##name, mp_cuda_matmul, matmul(p, MP_WTYPE_##TYPE, out))            \
    TOUCHES(tensor_up_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, true, out)) \
    TOUCHES(tensor_down_##name, mp_cuda_experts, experts(p, MP_WTYPE_##TYPE, false, out))
TOUCHES_TENSOR(BF16, bf16)
TOUCHES_TENSOR(F16, f16)
MP_CUDA_QUANT_MAP(TOUCHES_TENSOR)
