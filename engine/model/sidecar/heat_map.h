#ifndef MP_ENGINE_HEAT_MAP_H
#define MP_ENGINE_HEAT_MAP_H

#include "engine/model/sidecar/sidecar.h"

/*
 * The heat map of a model: the share of a layer's choices that each expert was lately, counted in
 * every run that has one, kept in a file between runs, and read ahead before the first token of the
 * next. Half is forgotten in MP_HEAT_MAP_HALF_LIFE tokens.
 *
 * The file is never trusted. One that cannot be used costs a warning with its error, and the run
 * starts as without it and replaces it; one with made-up numbers costs time, nothing else: what is
 * resident never changes what is computed.
 *
 * Thread safety: one thread at a time.
 */
#define MP_HEAT_MAP_NAME "moepager-heat.safetensors"
#define MP_HEAT_MAP_FORMAT "heat 1"
#define MP_HEAT_MAP_HALF_LIFE 1024

struct mp_heat_map;

/* `path` is relative to nothing but the working directory. MP_ERR_NO_MEMORY. */
enum mp_status mp_heat_map_open(const char *path, const struct mp_model_id *id,
                                struct mp_heat_map **map_p) MP_MUST_CHECK;

/* The experts by id that the file has seen, the hottest first; *count_p may be 0. */
const uint32_t *mp_heat_map_hottest(const struct mp_heat_map *map, uint32_t *count_p);

/* `layer` chose experts(tokens, k). */
void mp_heat_map_count(struct mp_heat_map *map, uint32_t layer, uint32_t tokens, uint32_t k,
                       const uint32_t *experts);

/* Write the file if anything was counted. A failure is a warning. NULL is allowed. */
void mp_heat_map_close(struct mp_heat_map *map);

/* The path that a setting means: "none" is none (false), "auto" is MP_HEAT_MAP_NAME beside the
 * model, a directory or a file, everything else is a path. */
bool mp_heat_map_locate(const char *setting, const char *model, char *path, size_t path_bytes);

#endif
