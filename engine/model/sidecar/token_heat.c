/*
 * The file: id (N), seen (N), expert (N, layers * entries), count (the same), all F32, which are
 * exact for whole numbers of this size.
 */
#include "engine/model/sidecar/token_heat.h"

#include <stdlib.h>

#include "engine/model/st_out.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"

struct mp_token_heat {
    uint32_t ids, cols;
    float *id, *seen;      // (ids)
    float *expert, *count; // (ids, cols)
    void *block;
};

static uint32_t cols_of(const struct mp_model_id *id)
{
    const struct mp_heat_shape shape = { .experts = id->experts, .top_k = id->top_k };

    return id->layers * mp_heat_entries(&shape);
}

static void take_arrays(struct mp_token_heat *heat, struct mp_arena *arena)
{
    const uint64_t cells = (uint64_t)heat->ids * heat->cols;

    heat->id = mp_arena_take(arena, heat->ids, sizeof(float));
    heat->seen = mp_arena_take(arena, heat->ids, sizeof(float));
    heat->expert = mp_arena_take(arena, cells, sizeof(float));
    heat->count = mp_arena_take(arena, cells, sizeof(float));
}

static enum mp_status open_arrays(struct mp_token_heat *heat)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    take_arrays(heat, &arena);
    status = mp_arena_open(&arena, "experts by token");
    if (status != MP_OK)
        return status;
    take_arrays(heat, &arena);
    heat->block = arena.block;
    return MP_OK;
}

static enum mp_status read_all(const struct mp_sidecar *sidecar, const struct mp_model_id *id,
                               uint32_t vocab, struct mp_token_heat *heat)
{
    const struct mp_st_tensor *ids = mp_sidecar_find(sidecar, "id");
    enum mp_status status;

    if (ids == NULL || ids->dims != 1 || ids->shape[0] == 0 || ids->shape[0] > MP_HEAT_PLACES_MAX)
        return mp_fail(MP_ERR_MODEL, "E_SIDECAR", "%s: it has no tensor 'id' of 1 to %u token ids",
                       mp_sidecar_name(sidecar), MP_HEAT_PLACES_MAX);
    heat->ids = (uint32_t)ids->shape[0];
    heat->cols = cols_of(id);
    status = open_arrays(heat);
    if (status == MP_OK)
        status = mp_sidecar_read(sidecar, "id", heat->ids, 0, 0, (float)(vocab - 1), heat->id);
    if (status == MP_OK)
        status = mp_sidecar_read(sidecar, "seen", heat->ids, 0, 0, MP_HEAT_SEEN_MAX, heat->seen);
    if (status == MP_OK)
        status = mp_sidecar_read(sidecar, "expert", heat->ids, heat->cols, 0,
                                 (float)(id->experts - 1), heat->expert);
    if (status == MP_OK)
        status = mp_sidecar_read(sidecar, "count", heat->ids, heat->cols, 0, MP_HEAT_SEEN_MAX,
                                 heat->count);
    return status;
}

enum mp_status mp_token_heat_load(int dir_fd, const char *path, const struct mp_model_id *id,
                                  uint32_t vocab, struct mp_token_heat **heat_p)
{
    struct mp_token_heat *heat = calloc(1, sizeof(*heat));
    struct mp_sidecar *sidecar = NULL;
    enum mp_status status;

    if (heat == NULL)
        return mp_fail_no_memory("experts by token", sizeof(*heat));
    status = mp_sidecar_open(dir_fd, path, MP_TOKEN_HEAT_FORMAT, id, &sidecar);
    if (status == MP_OK)
        status = read_all(sidecar, id, vocab, heat);
    mp_sidecar_close(sidecar);
    if (status != MP_OK) {
        mp_token_heat_destroy(heat);
        return status;
    }
    *heat_p = heat;
    return MP_OK;
}

void mp_token_heat_destroy(struct mp_token_heat *heat)
{
    if (heat == NULL)
        return;
    free(heat->block);
    free(heat);
}

void mp_token_heat_give(const struct mp_token_heat *from, struct mp_heat *to)
{
    for (uint32_t i = 0; i < from->ids; i++) {
        const struct mp_heat_row row = { .id = from->id[i],
                                         .seen = from->seen[i],
                                         .expert = from->expert + (size_t)i * from->cols,
                                         .count = from->count + (size_t)i * from->cols };

        mp_heat_put(to, &row);
    }
}

static void copy_rows(const struct mp_heat *from, struct mp_token_heat *to)
{
    to->ids = 0;
    for (uint32_t place = 0; place < mp_heat_places(from); place++) {
        struct mp_heat_row row = { .expert = to->expert + (size_t)to->ids * to->cols,
                                   .count = to->count + (size_t)to->ids * to->cols };

        if (!mp_heat_get(from, place, &row))
            continue;
        to->id[to->ids] = row.id;
        to->seen[to->ids++] = row.seen;
    }
}

static enum mp_status write_rows(const char *path, const struct mp_token_heat *heat,
                                 const struct mp_model_id *id, uint64_t tokens)
{
    const uint64_t N = heat->ids, C = heat->cols;
    const struct mp_st_out_tensor tensors[] = {
        { .name = "id", .dtype = MP_DTYPE_F32, .dims = 1, .shape = { N } },
        { .name = "seen", .dtype = MP_DTYPE_F32, .dims = 1, .shape = { N } },
        { .name = "expert", .dtype = MP_DTYPE_F32, .dims = 2, .shape = { N, C } },
        { .name = "count", .dtype = MP_DTYPE_F32, .dims = 2, .shape = { N, C } },
    };
    struct mp_st_out out;
    enum mp_status status =
        mp_st_out_open(&out, path, MP_TOKEN_HEAT_FORMAT, id, tokens, tensors, 4);

    if (status != MP_OK)
        return status;
    fwrite(heat->id, sizeof(float), N, out.out.file);
    fwrite(heat->seen, sizeof(float), N, out.out.file);
    fwrite(heat->expert, sizeof(float), N * C, out.out.file);
    fwrite(heat->count, sizeof(float), N * C, out.out.file);
    return mp_st_out_commit(&out);
}

enum mp_status mp_token_heat_write(const char *path, const struct mp_heat *heat,
                                   const struct mp_model_id *id, uint64_t tokens)
{
    struct mp_token_heat rows = { .ids = mp_heat_places(heat), .cols = cols_of(id) };
    enum mp_status status = open_arrays(&rows);

    if (status != MP_OK)
        return status;
    copy_rows(heat, &rows);
    status = write_rows(path, &rows, id, tokens);
    free(rows.block);
    return status;
}
