/*
 * Kernels that do what others do one by one, run on the CPU: a norm with the products that read it,
 * a router with all that follows from it. Every bit is that of the kernels one by one.
 */
#include "tests/unit/kernels/cuda/cuda_run.h"

/* tokens rows of x, normed by the kernel that only does that */
static float *normed(const struct mp_cuda_normed *in)
{
    float *out = operand((size_t)in->tokens * in->cols * sizeof(*out));
    const struct mp_cuda_rmsnorm p = { in->x,    in->norm, at(out), in->cols, in->tokens,
                                       in->cols, in->cols, in->eps, 0 };

    launch(MP_CUDA_KERNEL_rmsnorm, &p);
    return out;
}

static void multiplied(enum mp_wtype type, const struct mp_cuda_part *part, const float *x,
                       uint32_t cols, uint32_t tokens, float *y)
{
    const struct mp_cuda_matmul p = { .w = part->w,
                                      .x = at(x),
                                      .y = at(y),
                                      .bias = part->bias,
                                      .type = type,
                                      .rows = part->rows,
                                      .cols = cols,
                                      .tokens = tokens,
                                      .w_stride = cols,
                                      .x_stride = cols,
                                      .y_stride = part->rows };

    launch(mp_cuda_gemv(type, tokens), &p);
}

static struct mp_cuda_normed input(uint32_t cols, uint32_t tokens)
{
    return (struct mp_cuda_normed){
        at(floats((size_t)tokens * cols)), at(floats(cols)), cols, tokens, 1e-6f, 0
    };
}

static void project_of(enum mp_wtype type, uint32_t cols, uint32_t tokens, const uint32_t rows[3])
{
    struct mp_cuda_project p = { .in = input(cols, tokens) };
    const float *x;

    for (unsigned i = 0; i < 3; i++) {
        if (rows[i] > 0)
            p.part[i] = (struct mp_cuda_part){
                .w = at(weights(type, (size_t)rows[i] * cols)),
                .y = at(operand((size_t)tokens * rows[i] * sizeof(float))),
                .bias = i == 1 ? at(floats(rows[i])) : 0,
                .rows = rows[i],
            };
    }
    launch(mp_cuda_project(type, tokens), &p);
    x = normed(&p.in);
    for (unsigned i = 0; i < 3; i++) {
        const size_t count = (size_t)tokens * rows[i];
        float *want;

        if (count == 0)
            continue;
        want = operand(count * sizeof(*want));
        multiplied(type, &p.part[i], x, cols, tokens, want);
        CHECK(memcmp(want, (const float *)(uintptr_t)p.part[i].y, count * sizeof(*want)) == 0);
    }
    free_operands();
}

/* Columns shared out and not, aligned operands and others, one matrix to three. */
static void project(void)
{
    static const uint32_t rows[][3] = { { 40, 8, 8 }, { 130, 3, 0 }, { 7, 0, 0 } };
    static const uint32_t cols[] = { 264, 1032, 33 };

    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (uint32_t tokens = 1; tokens <= 8; tokens += tokens < 3 ? 1 : 5 - tokens % 2)
            for (size_t i = 0; i < LEN(rows); i++)
                project_of((enum mp_wtype)type, cols[(i + tokens) % LEN(cols)], tokens, rows[i]);
    }
}

/* Space for what comes of a router, and where it is. */
static struct mp_cuda_route outputs(const struct mp_cuda_route *of)
{
    const uint32_t E = of->experts, T = of->in.tokens, R = of->choose.top_k;
    struct mp_cuda_route r = *of;
    uint32_t *turn = operand(sizeof(*turn));

    *turn = 0;
    r.turn = at(turn);
    r.out = at(operand((size_t)T * of->in.cols * sizeof(float)));
    r.kept = at(operand((size_t)T * of->in.cols * sizeof(float)));
    r.scores = at(operand((size_t)T * E * sizeof(float)));
    if (of->next.w != 0)
        r.next.scores = at(operand((size_t)T * E * sizeof(float)));
    r.choose.scores = r.scores;
    r.choose.expert = r.list.expert = at(operand((size_t)T * R * sizeof(uint32_t)));
    r.choose.weight = at(operand((size_t)T * R * sizeof(float)));
    r.list.work = at(operand(r.list.works * sizeof(struct mp_cuda_expert)));
    r.list.row = at(operand((size_t)T * R * sizeof(uint32_t)));
    r.list.misses = at(operand(sizeof(uint32_t)));
    return r;
}

static void next_router(enum mp_wtype type, const struct mp_cuda_route *r)
{
    const struct mp_cuda_part part = { r->next.w, r->next.scores, 0, r->experts, 0 };
    const struct mp_cuda_softmax softmax = { r->next.scores, r->experts, r->in.tokens, r->experts,
                                             0 };
    struct mp_cuda_normed in = r->in;

    in.norm = r->next.norm;
    multiplied(type, &part, normed(&in), in.cols, in.tokens, (float *)(uintptr_t)r->next.scores);
    launch(MP_CUDA_KERNEL_softmax, &softmax);
}

static void one_by_one(enum mp_wtype type, struct mp_cuda_route *r)
{
    const struct mp_cuda_part part = { r->w, r->scores, 0, r->experts, 0 };
    const struct mp_cuda_softmax softmax = { r->scores, r->experts, r->in.tokens, r->experts, 0 };
    const float *x = normed(&r->in);

    r->out = at(x);
    multiplied(type, &part, x, r->in.cols, r->in.tokens, (float *)(uintptr_t)r->scores);
    launch(MP_CUDA_KERNEL_softmax, &softmax);
    launch(MP_CUDA_KERNEL_top_k, &r->choose);
    launch(MP_CUDA_KERNEL_resolve, &r->list);
}

static void same_bytes(uint64_t a, uint64_t b, size_t bytes)
{
    CHECK(memcmp((const void *)(uintptr_t)a, (const void *)(uintptr_t)b, bytes) == 0);
}

static void route_of(enum mp_wtype type, uint32_t experts, uint32_t cols, uint32_t tokens,
                     uint32_t top_k, bool next)
{
    const uint32_t ranks = tokens * top_k, works = ranks < experts ? ranks : experts;
    struct mp_cuda_place_of *table = operand(experts * sizeof(*table));
    struct mp_cuda_route of = {
        .in = input(cols, tokens),
        .w = at(weights(type, (size_t)experts * cols)),
        .choose = { .experts = experts, .top_k = top_k, .tokens = tokens },
        .list = { .table = at(table),
                  .experts = experts,
                  .top_k = top_k,
                  .tokens = tokens,
                  .channels = 77,
                  .works = works },
        .experts = experts,
    };
    struct mp_cuda_route a, b;

    if (next) {
        of.next.w = at(weights(type, (size_t)experts * cols));
        of.next.norm = at(floats(cols));
    }
    a = outputs(&of);
    b = outputs(&of);
    for (uint32_t e = 0; e < experts; e++)
        table[e] = (struct mp_cuda_place_of){ 16 * e, 16 * e + 1, 16 * e + 2, e % 4 != 1 };
    launch(mp_cuda_route(type, tokens), &a);
    one_by_one(type, &b);
    if (next) {
        next_router(type, &b);
        same_bytes(a.next.scores, b.next.scores, (size_t)tokens * experts * sizeof(float));
    }
    same_bytes(a.out, b.out, (size_t)tokens * cols * sizeof(float));
    same_bytes(a.kept, a.in.x, (size_t)tokens * cols * sizeof(float));
    same_bytes(a.scores, b.scores, (size_t)tokens * experts * sizeof(float));
    same_bytes(a.choose.expert, b.choose.expert, ranks * sizeof(uint32_t));
    same_bytes(a.choose.weight, b.choose.weight, ranks * sizeof(float));
    same_bytes(a.list.misses, b.list.misses, sizeof(uint32_t));
    for (uint32_t i = 0; i < works; i++) {
        const struct mp_cuda_expert *got =
            (const struct mp_cuda_expert *)(uintptr_t)a.list.work + i;
        const struct mp_cuda_expert *want =
            (const struct mp_cuda_expert *)(uintptr_t)b.list.work + i;

        CHECK_EQ(got->count, want->count);
        if (got->count > 0)
            CHECK(memcmp(got, want, sizeof(*got)) == 0);
        for (uint32_t r = 0; r < got->count; r++)
            CHECK_EQ(((const uint32_t *)(uintptr_t)a.list.row)[got->first + r],
                     ((const uint32_t *)(uintptr_t)b.list.row)[got->first + r]);
    }
    CHECK_EQ(*(const uint32_t *)(uintptr_t)a.turn, 0);
    free_operands();
}

/* Scores alone: nothing else is touched. */
static void scores_alone(void)
{
    const uint32_t experts = 9, cols = 40;
    float *out = operand(cols * sizeof(float)), *scores = operand(experts * sizeof(float));
    uint32_t *turn = operand(sizeof(*turn));
    struct mp_cuda_route r = { .in = input(cols, 1),
                               .w = at(weights(MP_WTYPE_BF16, (size_t)experts * cols)),
                               .out = at(out),
                               .scores = at(scores),
                               .turn = at(turn),
                               .experts = experts };
    double sum = 0;

    *turn = 0;
    launch(MP_CUDA_KERNEL_route1_bf16, &r);
    for (uint32_t e = 0; e < experts; e++)
        sum += (double)scores[e];
    CHECK(fabs(sum - 1) < 1e-5);
    free_operands();
}

static void route(void)
{
    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (int next = 0; next < 2; next++) {
            route_of((enum mp_wtype)type, 8, 1032, 1, 2, next);
            route_of((enum mp_wtype)type, 33, 33, 5, 4, next);
            route_of((enum mp_wtype)type, 16, 264, 2, 4, next);
            route_of((enum mp_wtype)type, 16, 264, 3 + (uint32_t)next, 4, next);
            route_of((enum mp_wtype)type, 128, 40, 8, 8, next);
        }
    }
    route_of(MP_WTYPE_BF16, 300, 40, 2, 6, false); /* more than a block has threads */
    scores_alone();
}

int main(void)
{
    each_order("project", project);
    each_order("route", route);
    return 0;
}
