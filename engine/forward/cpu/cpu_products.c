/*
 * Matrix products and feed-forward networks over the pool.
 *
 * All rows of a list of matrices are cut into parts, and each thread begins with a run of them: so
 * one network or all ready experts of a layer are two jobs, each thread reads memory in order, and
 * others take the last parts of a delayed thread. The kernels guarantee that bits do not depend on
 * the split (kernels/cpu/kernels.h).
 */
#include <math.h>
#include <string.h>

#include "engine/forward/cpu/cpu_int.h"

/* Below this many multiply-adds a job runs on the calling thread: waking others costs more. */
#define ALONE 20000

/* Rows of a part are a multiple of these, so that kernels can group rows: of the second where a
 * thread has few rows. */
#define ROW_GROUP 48
#define ROW_GROUP_FEW 6

/* Groups of a part where there are enough rows. Beginning a part takes time, in which memory waits;
 * so with few tokens it has many bytes. With many tokens packing them anew costs more. */
#define GROUPS_FEW 2
#define GROUPS_MAX 4
#define PART_BYTES (512 * 1024)
#define MANY_TOKENS 8

/* Rows of one part, where `matrices` of `rows` each are multiplied with `tokens`. */
static size_t part_rows(const struct mp_engine *engine, size_t matrices, size_t rows,
                        size_t row_bytes, size_t tokens)
{
    const size_t threads = mp_pool_threads(engine->config.pool);
    const size_t share = (matrices * rows + threads - 1) / threads;
    size_t groups = GROUPS_MAX;

    if (tokens < MANY_TOKENS)
        groups = GROUPS_FEW + PART_BYTES / (ROW_GROUP * (row_bytes + 1));

    if (share < ROW_GROUP * 2 && tokens < MANY_TOKENS)
        return (share + ROW_GROUP_FEW - 1) / ROW_GROUP_FEW * ROW_GROUP_FEW;
    while (groups > 1 && share < groups * ROW_GROUP * 4)
        groups--;
    return groups * ROW_GROUP;
}

static void run_parts(struct mp_engine *engine, size_t work,
                      void (*fn)(void *ctx, uint64_t part, unsigned thread), void *ctx,
                      uint64_t parts)
{
    if (work >= ALONE)
        mp_pool_run_dynamic(engine->config.pool, fn, ctx, parts);
    if (work < ALONE) {
        for (uint64_t part = 0; part < parts; part++)
            fn(ctx, part, 0);
    }
}

void mp_cpu_each_token(struct mp_engine *engine,
                       void (*fn)(void *ctx, uint64_t token, unsigned thread), void *ctx,
                       size_t tokens)
{
    run_parts(engine, tokens < MANY_TOKENS ? 0 : ALONE, fn, ctx, tokens);
}

static void multiply_rows(struct mp_engine *engine, const struct mp_product *p, size_t first,
                          size_t end, size_t tokens)
{
    const char *w = (const char *)p->w->data + mp_wtype_bytes(p->w->type, first * p->w->cols);

    engine->config.kernels->matmul(p->y + first, p->y_stride, w, p->w->type, p->w->cols, p->x,
                                   p->x_stride, end - first, p->w->cols, tokens);
    if (p->bias != NULL) {
        for (size_t t = 0; t < tokens; t++) {
            for (size_t r = first; r < end; r++)
                p->y[t * p->y_stride + r] += p->bias[r];
        }
    }
}

struct multiply_job {
    struct mp_engine *engine;
    const struct mp_product *list;
    size_t count, tokens, part_rows;
};

/* The rows of all products stand one after the other; part i takes its share of them. */
static void multiply_part(void *ctx, uint64_t part, unsigned thread)
{
    const struct multiply_job *job = ctx;
    const size_t first = part * job->part_rows, end = first + job->part_rows;
    size_t base = 0;

    (void)thread;
    for (size_t i = 0; i < job->count; i++) {
        const size_t rows = job->list[i].w->rows;
        const size_t a = first > base ? first - base : 0;
        const size_t b = end > base ? (end - base < rows ? end - base : rows) : 0;

        if (a < b)
            multiply_rows(job->engine, &job->list[i], a, b, job->tokens);
        base += rows;
    }
}

void mp_cpu_multiply(struct mp_engine *engine, const struct mp_product *list, size_t count,
                     size_t tokens)
{
    struct multiply_job job = { .engine = engine, .list = list, .count = count, .tokens = tokens };
    size_t work = 0, rows = 0;

    for (size_t i = 0; i < count; i++) {
        rows += list[i].w->rows;
        work += list[i].w->rows * list[i].w->cols * tokens;
    }
    job.part_rows =
        part_rows(engine, 1, rows, mp_wtype_bytes(list[0].w->type, list[0].w->cols), tokens);
    run_parts(engine, work, multiply_part, &job, (rows + job.part_rows - 1) / job.part_rows);
}

void mp_cpu_multiply_alone(struct mp_engine *engine, const struct mp_product *list, size_t count,
                           size_t tokens)
{
    for (size_t i = 0; i < count; i++)
        multiply_rows(engine, &list[i], 0, list[i].w->rows, tokens);
}

struct ffn_job {
    struct mp_engine *engine;
    const struct mp_ffn_work *list;
    size_t part_rows, parts_each;
};

/* [*first_p, *end_p) of `rows` for one part of one network; false: nothing is left for it. */
static bool find_rows(const struct ffn_job *job, uint64_t part, size_t rows, size_t *first_p,
                      size_t *end_p)
{
    const size_t end = (part % job->parts_each + 1) * job->part_rows;

    *first_p = part % job->parts_each * job->part_rows;
    *end_p = end < rows ? end : rows;
    return *first_p < rows;
}

/* Rows of the network's gate or up with its input. */
static void multiply_piece(const struct mp_ffn_work *work, struct mp_engine *engine, unsigned piece,
                           size_t first, size_t end, unsigned thread)
{
    const struct mp_ffn *ffn = &work->ffn;
    const bool up = piece == MP_PIECE_UP;
    const struct mp_product product = {
        up ? &ffn->up : &ffn->gate, NULL,           work->x, ffn->gate.cols,
        up ? work->up : work->gate, ffn->gate.rows,
    };

    if (ffn->scales != NULL)
        mp_cpu_apart_up(engine, work, piece, first, end, thread);
    else if (ffn->transposed)
        mp_cpu_transposed_up(engine, work, piece, first, end, thread);
    else
        multiply_rows(engine, &product, first, end, work->tokens);
}

static void add_bias(float *y, const float *bias, size_t step, size_t first, size_t end)
{
    for (size_t r = first; bias != NULL && r < end; r++)
        y[r] += bias[r * step];
}

static float at_most(float value, float limit)
{
    return value > limit ? limit : value; /* NaN stays */
}

#define ROOT_2_PI 0.7978845608028654f

static void gelu_mul(float *gate, const float *up, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float g = gate[i];

        gate[i] = 0.5f * g * (1 + tanhf(ROOT_2_PI * (g + 0.044715f * g * g * g))) * up[i];
    }
}

static void activate(const struct mp_engine *engine, float *gate, const float *up, size_t count)
{
    const struct mp_model_config *m = engine->config.model;

    if (m->activation == MP_ACTIVATION_SILU) {
        engine->config.kernels->silu_mul(gate, up, count);
        return;
    }
    if (m->activation == MP_ACTIVATION_GELU) {
        gelu_mul(gate, up, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const float g = at_most(gate[i], m->act_limit);
        const float u = -at_most(-at_most(up[i], m->act_limit), m->act_limit);

        gate[i] = g / (1 + expf(-m->act_alpha * g)) * (u + 1);
    }
}

/* gate := activation(gate x, up x) for the channels of one part. */
static void ffn_up_part(void *ctx, uint64_t part, unsigned thread)
{
    const struct ffn_job *job = ctx;
    const struct mp_ffn_work *work = &job->list[part / job->parts_each];
    const struct mp_ffn *ffn = &work->ffn;
    const size_t channels = ffn->gate.rows;
    size_t first, end;

    if (!find_rows(job, part, channels, &first, &end))
        return;
    multiply_piece(work, job->engine, MP_PIECE_GATE, first, end, thread);
    multiply_piece(work, job->engine, MP_PIECE_UP, first, end, thread);
    for (size_t t = 0; t < work->tokens; t++) {
        float *gate = work->gate + t * channels, *up = work->up + t * channels;

        add_bias(gate, ffn->gate_bias, ffn->bias_step, first, end);
        add_bias(up, ffn->up_bias, ffn->bias_step, first, end);
        activate(job->engine, gate + first, up + first, end - first);
    }
}

/* Sums begin with the bias, so that they are the same in any number of slices. */
static bool begin_with_bias(const struct mp_ffn_work *work, size_t first, size_t end)
{
    const float *bias = work->ffn.down_bias;

    for (size_t t = 0; bias != NULL && t < work->tokens; t++)
        memcpy(work->y + t * work->ffn.down.rows + first, bias + first,
               (end - first) * sizeof(float));
    return bias != NULL;
}

/* y := down gate for the output rows of one part, in channel blocks of 256, slice after slice. */
static void ffn_down_part(void *ctx, uint64_t part, unsigned thread)
{
    const struct ffn_job *job = ctx;
    const struct mp_ffn_work *work = &job->list[part / job->parts_each];
    const size_t H = work->ffn.down.rows;
    size_t first, end;
    bool add;

    if (work->later || !find_rows(job, part, H, &first, &end))
        return;
    add = work->add || begin_with_bias(work, first, end);
    for (uint32_t s = 0; s <= work->more; s++) {
        const struct mp_view *down = &work[s].ffn.down;

        if (work->ffn.scales != NULL)
            mp_cpu_apart_down(job->engine, work, first, end, add, thread);
        else if (work->ffn.transposed)
            mp_cpu_transposed_down(job->engine, work, first, end, add, thread);
        else
            job->engine->config.kernels->matmul_blocked(
                work->y + first, H,
                (const char *)down->data + mp_wtype_bytes(down->type, first * down->cols),
                down->type, down->cols, work[s].gate, down->cols, end - first, down->cols,
                work->tokens, add || s > 0);
    }
    if (work->rows != NULL) {
        for (size_t t = 0; t < work->tokens; t++)
            memcpy(job->engine->state.rank + mp_engine_rank_row(job->engine, work->rows, t) * H +
                       first,
                   work->y + t * H + first, (end - first) * sizeof(float));
    }
}

/* Prepare a job for matrices of so many rows; returns the number of parts. */
static uint64_t cut(struct ffn_job *job, size_t count, const struct mp_view *w, size_t rows,
                    size_t tokens)
{
    job->part_rows =
        part_rows(job->engine, count, rows, mp_wtype_bytes(w->type, w->cols), tokens / count);
    job->parts_each = (rows + job->part_rows - 1) / job->part_rows;
    return count * job->parts_each;
}

void mp_cpu_ffn(struct mp_engine *engine, const struct mp_ffn_work *list, size_t count)
{
    struct ffn_job job = { .engine = engine, .list = list };
    const size_t width = list[0].ffn.gate.cols;
    size_t tokens = 0, channels = 0, work = 0;
    uint64_t parts;

    for (size_t i = 0; i < count; i++) {
        const size_t rows = list[i].ffn.gate.rows;

        tokens += list[i].tokens;
        channels = rows > channels ? rows : channels;
        work += rows * width * list[i].tokens;
    }
    parts = cut(&job, count, &list[0].ffn.gate, channels, tokens);
    run_parts(engine, work, ffn_up_part, &job, parts);
    parts = cut(&job, count, &list[0].ffn.down, width, tokens);
    run_parts(engine, work, ffn_down_part, &job, parts);
}
