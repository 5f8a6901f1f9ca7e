/*
 * Layouts and size of the KV cache, copies inside it, and pages of it that go back. Its memory is
 * part of the state.
 */
#include "engine/forward/kv.h"

#include <string.h>
#include <sys/mman.h>

#include "engine/forward/engine_int.h"
#include "engine/forward/recurrent.h"
#include "vmm/base/error.h"

#define PAGE 4096u

/* Of one position: bytes of all heads of layer `layer`, and 0 without attention. */
static uint64_t layer_bytes(const struct mp_engine_config *config, uint32_t layer)
{
    const struct mp_model_config *m = config->model;

    return m->linear[layer] ? 0
                            : (uint64_t)mp_layer_kv_heads(m, layer) *
                                  mp_wtype_bytes(config->kv_type, mp_layer_head_dim(m, layer));
}

enum mp_status mp_kv_check(const struct mp_engine_config *config)
{
    const struct mp_model_config *m = config->model;
    const size_t block = mp_wtype_info(config->kv_type)->block_elements;

    for (uint32_t i = 0; i < m->layers; i++) {
        if (!m->linear[i] && mp_layer_head_dim(m, i) % block != 0)
            return mp_fail(MP_ERR_UNSUPPORTED, "E_KV_TYPE",
                           "KV cache of type %s: heads of layer %u have %u elements, need a "
                           "multiple of %zu; f16 and bf16 take any",
                           mp_wtype_name(config->kv_type), i, mp_layer_head_dim(m, i), block);
    }
    return MP_OK;
}

void mp_kv_shape(const struct mp_engine_config *config, uint64_t dims[4])
{
    dims[0] = 0;
    for (uint32_t i = 0; i < config->model->layers; i++)
        dims[0] += layer_bytes(config, i);
    dims[1] = config->sequences;
    dims[2] = config->ctx;
    dims[3] = 1;
}

struct mp_kv mp_kv_layout(const struct mp_engine_config *config, enum mp_kv_order order)
{
    struct mp_kv kv = {
        .model = config->model, .order = order, .ctx = config->ctx, .type = config->kv_type
    };
    size_t at = 0;

    for (uint32_t i = 0; i < config->model->layers; i++) {
        kv.first[i] = at;
        at += layer_bytes(config, i) * config->sequences * config->ctx;
    }
    return kv;
}

static uint64_t in_pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Of one layer's keys, or values: as many runs as heads, each `stride` from the last one. A run
 * that does not begin with a page has parts of two more. */
static uint64_t runs_bytes(uint64_t run, uint64_t stride, uint64_t heads, uint64_t first)
{
    const uint64_t border = stride % PAGE != 0 || first % PAGE != 0 ? PAGE : 0;
    const uint64_t apart = heads * (in_pages(run) + border),
                   whole = in_pages(heads * stride) + border;

    return apart < whole ? apart : whole;
}

uint64_t mp_kv_sequence_bytes(const struct mp_engine_config *config, uint32_t positions)
{
    const struct mp_model_config *m = config->model;
    const struct mp_kv kv = mp_kv_layout(config, MP_KV_BY_HEAD);
    uint64_t bytes = 0;

    for (uint32_t layer = 0; positions > 0 && layer < m->layers; layer++) {
        const uint64_t row = mp_kv_row_bytes(&kv, layer);

        if (!m->linear[layer])
            bytes +=
                (m->kv_rank > 0 ? 1 : 2) * runs_bytes(positions * row, kv.ctx * row,
                                                      mp_layer_kv_heads(m, layer), kv.first[layer]);
    }
    return bytes;
}

/* A head's keys, or its values, of positions that follow each other. */
struct run {
    uint8_t *at;
    size_t bytes;
    size_t sequence_bytes; /* to the same run of the next sequence */
};

/* Call fn for the runs of `count` positions of a sequence, where positions are adjacent
 * (MP_KV_BY_HEAD). Values may be parts of the keys. */
static void each_run(const struct mp_engine *engine, uint32_t sequence, uint32_t first,
                     uint32_t count, void (*fn)(void *ctx, const struct run *run), void *ctx)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_kv *kv = &engine->compute->kv;

    for (uint32_t layer = 0; layer < m->layers; layer++) {
        const size_t row = mp_kv_row_bytes(kv, layer), heads = mp_layer_kv_heads(m, layer);
        struct run run = { .bytes = count * row, .sequence_bytes = heads * kv->ctx * row };

        for (uint32_t head = 0; head < heads; head++) {
            const size_t at = mp_kv_at(kv, layer, sequence, head, first);

            run.at = engine->state.k_cache + at;
            fn(ctx, &run);
            if (m->kv_rank != 0)
                continue;
            run.at = engine->state.v_cache + at;
            fn(ctx, &run);
        }
    }
}

static void save_run(void *ctx, const struct run *run)
{
    uint8_t **out = ctx;

    memcpy(*out, run->at, run->bytes);
    *out += run->bytes;
}

static void restore_run(void *ctx, const struct run *run)
{
    const uint8_t **in = ctx;

    memcpy(run->at, *in, run->bytes);
    *in += run->bytes;
}

static void add_run(void *ctx, const struct run *run)
{
    *(uint64_t *)ctx += run->bytes;
}

/* To the sequence that is so many further. */
static void copy_run(void *ctx, const struct run *run)
{
    memcpy(run->at + *(ptrdiff_t *)ctx * (ptrdiff_t)run->sequence_bytes, run->at, run->bytes);
}

bool mp_engine_can_go_back(const struct mp_engine *engine)
{
    return mp_recurrent_layers(engine->config.model) == 0;
}

static bool can_copy(const struct mp_engine *engine)
{
    return engine->device == NULL && mp_engine_can_go_back(engine);
}

bool mp_engine_copy_kv(struct mp_engine *engine, uint32_t from, uint32_t to, uint32_t positions)
{
    ptrdiff_t further = (ptrdiff_t)to - from;

    if (!can_copy(engine))
        return false;
    each_run(engine, from, 0, positions, copy_run, &further);
    return true;
}

uint64_t mp_engine_kv_bytes(const struct mp_engine *engine, uint32_t count)
{
    uint64_t bytes = 0;

    if (can_copy(engine))
        each_run(engine, 0, 0, count, add_run, &bytes);
    return bytes;
}

void mp_engine_save_kv(const struct mp_engine *engine, uint32_t sequence, uint32_t first,
                       uint32_t count, void *out)
{
    each_run(engine, sequence, first, count, save_run, &out);
}

void mp_engine_restore_kv(struct mp_engine *engine, uint32_t sequence, uint32_t first,
                          uint32_t count, const void *in)
{
    each_run(engine, sequence, first, count, restore_run, &in);
}

/* Whole pages between the two; others have bytes of neighbours. */
static void drop_pages(uint8_t *from, uint8_t *end)
{
    const uintptr_t first = in_pages((uintptr_t)from), last = (uintptr_t)end / PAGE * PAGE;

    if (last > first) /* pages that are locked stay: nobody reads them before they are written */
        (void)madvise((void *)first, last - first, MADV_DONTNEED);
}

/* Runs of neighbouring heads are adjacent, so that whole sequences have fewer borders. */
static void drop_rows(uint8_t *cache, const struct mp_kv *kv, uint32_t layer, uint32_t sequence,
                      uint32_t first)
{
    const uint32_t heads = mp_layer_kv_heads(kv->model, layer), parts = first > 0 ? heads : 1;
    const size_t row = mp_kv_row_bytes(kv, layer), bytes = heads / parts * kv->ctx * row;

    for (uint32_t part = 0; part < parts; part++) {
        uint8_t *at = cache + mp_kv_at(kv, layer, sequence, part, 0);

        drop_pages(at + first * row, at + bytes);
    }
}

void mp_engine_drop_kv(struct mp_engine *engine, uint32_t sequence, uint32_t first)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_kv *kv = &engine->compute->kv;

    for (uint32_t layer = 0; engine->device == NULL && layer < m->layers; layer++) {
        if (m->linear[layer])
            continue;
        drop_rows(engine->state.k_cache, kv, layer, sequence, first);
        if (m->kv_rank == 0)
            drop_rows(engine->state.v_cache, kv, layer, sequence, first);
    }
}
