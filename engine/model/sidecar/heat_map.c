/*
 * The heat map: counting, and its file. Who reads experts ahead by it is the pager.
 */
#include "engine/model/sidecar/heat_map.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/st_out.h"
#include "policy/hot.h"
#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

struct mp_heat_map {
    struct mp_model_id id;
    char path[PATH_MAX];
    float *heat;       // (layers, experts): of the file, later of the file to be written
    uint32_t *hottest; // (layers * experts)
    uint64_t *chosen;  // (layers, experts): in this run
    uint64_t *pairs;   // (layers): sum of chosen
    uint32_t seen;     /* of hottest */
    uint64_t tokens;   /* of the layer with most */
    void *block;
};

static void take(struct mp_heat_map *map, struct mp_arena *arena)
{
    const size_t ids = (size_t)map->id.layers * map->id.experts;

    map->chosen = mp_arena_take(arena, ids, sizeof(uint64_t));
    map->pairs = mp_arena_take(arena, map->id.layers, sizeof(uint64_t));
    map->heat = mp_arena_take(arena, ids, sizeof(float));
    map->hottest = mp_arena_take(arena, ids, sizeof(uint32_t));
}

static enum mp_status read_file(struct mp_heat_map *map)
{
    struct mp_sidecar *sidecar = NULL;
    enum mp_status status =
        mp_sidecar_open(AT_FDCWD, map->path, MP_HEAT_MAP_FORMAT, &map->id, &sidecar);

    if (status == MP_OK)
        status = mp_sidecar_read(sidecar, "heat", map->id.layers, map->id.experts, 0, 1, map->heat);
    mp_sidecar_close(sidecar);
    return status;
}

/* Whatever is wrong with it, the run goes on without it. */
static void start_without(struct mp_heat_map *map)
{
    mp_log_warn("heat", "%s: %s; the run starts without a heat map", mp_error_last()->code,
                mp_error_last()->text);
    mp_error_clear();
    memset(map->heat, 0, (size_t)map->id.layers * map->id.experts * sizeof(float));
}

static enum mp_status order_hottest(struct mp_heat_map *map)
{
    const struct mp_calibration facts = { .hot = map->heat };
    const struct mp_shape shape = { .layers = map->id.layers,
                                    .experts = map->id.experts,
                                    .calibration = &facts };
    const uint32_t ids = map->id.layers * map->id.experts;
    enum mp_status status = mp_hot_order(&shape, map->hottest);

    while (status == MP_OK && map->seen < ids && map->heat[map->hottest[map->seen]] > 0)
        map->seen++;
    return status;
}

enum mp_status mp_heat_map_open(const char *path, const struct mp_model_id *id,
                                struct mp_heat_map **map_p)
{
    struct mp_heat_map *map = calloc(1, sizeof(*map));
    struct mp_arena arena = { 0 };
    enum mp_status status;

    mp_assert(id->layers > 0 && id->experts > 0);
    if (map == NULL)
        return mp_fail_no_memory("a heat map", sizeof(*map));
    map->id = *id;
    snprintf(map->path, sizeof(map->path), "%s", path);
    take(map, &arena);
    status = mp_arena_open(&arena, "a heat map");
    if (status == MP_OK) {
        map->block = arena.block;
        take(map, &arena);
        if (access(path, F_OK) == 0 && read_file(map) != MP_OK)
            start_without(map);
        status = order_hottest(map);
    }
    if (status != MP_OK) {
        free(map->block);
        free(map);
        return status;
    }
    *map_p = map;
    return MP_OK;
}

const uint32_t *mp_heat_map_hottest(const struct mp_heat_map *map, uint32_t *count_p)
{
    *count_p = map->seen;
    return map->hottest;
}

void mp_heat_map_count(struct mp_heat_map *map, uint32_t layer, uint32_t tokens, uint32_t k,
                       const uint32_t *experts)
{
    uint64_t *chosen = map->chosen + (size_t)layer * map->id.experts;
    const uint64_t pairs = (uint64_t)tokens * k;

    mp_assert(layer < map->id.layers);
    for (uint64_t i = 0; i < pairs; i++) {
        mp_assert(experts[i] < map->id.experts);
        chosen[experts[i]]++;
    }
    map->pairs[layer] += pairs;
    if (k > 0 && map->pairs[layer] / k > map->tokens)
        map->tokens = map->pairs[layer] / k;
}

/* What was counted is as much of the result as is forgotten of what was there. */
static void add_run(struct mp_heat_map *map)
{
    const double keep = map->seen > 0 ? exp2(-(double)map->tokens / MP_HEAT_MAP_HALF_LIFE) : 0;
    const uint32_t experts = map->id.experts;

    for (uint32_t l = 0; l < map->id.layers; l++) {
        for (uint32_t e = 0; map->pairs[l] > 0 && e < experts; e++) {
            const size_t id = (size_t)l * experts + e;
            const double share = (double)map->chosen[id] / (double)map->pairs[l];

            map->heat[id] = (float)fmin(keep * (double)map->heat[id] + (1 - keep) * share, 1);
        }
    }
}

static enum mp_status write_file(struct mp_heat_map *map)
{
    const struct mp_st_out_tensor tensor = { .name = "heat",
                                             .dtype = MP_DTYPE_F32,
                                             .dims = 2,
                                             .shape = { map->id.layers, map->id.experts } };
    struct mp_st_out out;
    enum mp_status status =
        mp_st_out_open(&out, map->path, MP_HEAT_MAP_FORMAT, &map->id, map->tokens, &tensor, 1);

    if (status != MP_OK)
        return status;
    add_run(map);
    fwrite(map->heat, sizeof(float), (size_t)map->id.layers * map->id.experts, out.out.file);
    return mp_st_out_commit(&out);
}

void mp_heat_map_close(struct mp_heat_map *map)
{
    const struct mp_error before = *mp_error_last();

    if (map == NULL)
        return;
    if (map->tokens > 0 && write_file(map) != MP_OK) {
        mp_log_warn("heat", "%s: %s; the heat map was not written", mp_error_last()->code,
                    mp_error_last()->text);
        mp_error_set(&before); /* report what ended the run */
    }
    free(map->block);
    free(map);
}

bool mp_heat_map_locate(const char *setting, const char *model, char *path, size_t path_bytes)
{
    struct stat facts;
    int length;

    if (strcmp(setting, "none") == 0)
        return false;
    if (strcmp(setting, "auto") != 0) {
        length = snprintf(path, path_bytes, "%s", setting);
    } else if (stat(model, &facts) == 0 && S_ISDIR(facts.st_mode)) {
        length = snprintf(path, path_bytes, "%s/" MP_HEAT_MAP_NAME, model);
    } else {
        return mp_sidecar_beside(model, MP_HEAT_MAP_NAME, path, path_bytes);
    }
    return length > 0 && (size_t)length < path_bytes;
}
