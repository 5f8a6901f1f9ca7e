#ifndef MP_ENGINE_SIDECAR_H
#define MP_ENGINE_SIDECAR_H

#include "engine/model/config.h"
#include "vmm/format/safetensors.h"
#include "engine/model/weights.h"
#include "vmm/io/file.h"

/*
 * Files beside a model that were derived from it: calibration and trained predictors.
 *
 * Each is a safetensors file whose metadata states its kind ("moepager": "calibration 1") and its
 * model: layers, experts, top_k, hidden and a hash over the bytes of all routers. The hash does not
 * change when a model is repacked. Such a file is not trusted: names, types and shapes are checked
 * before anything is read, and numbers must be finite.
 *
 * MP_ERR_MODEL: E_SIDECAR (not such a file, a tensor missing or of another shape, a number out of
 * range), E_SIDECAR_MODEL (made for another model; both are named), E_ST_* and E_JSON_*.
 * MP_ERR_IO, MP_ERR_NO_MEMORY.
 */
#define MP_SIDECAR_HEADER_BYTES_MAX (1u << 22)

/* A number that is 0 is unknown and matches every file. */
struct mp_model_id {
    uint32_t layers; /* MoE layers */
    uint32_t experts, top_k, hidden;
    uint64_t router_hash; /* FNV-1a over the routers, layer by layer */
};

/* Reads all routers; `weights` must hold data. */
void mp_model_id_make(const struct mp_model_config *config, const struct mp_weights *weights,
                      struct mp_model_id *id_p);

struct mp_sidecar;

/* Open `path` relative to `dir_fd`. `format` is the value of "moepager" in the metadata. */
enum mp_status mp_sidecar_open(int dir_fd, const char *path, const char *format,
                               const struct mp_model_id *id,
                               struct mp_sidecar **sidecar_p) MP_MUST_CHECK;
void mp_sidecar_close(struct mp_sidecar *sidecar);

/* Quoted, for messages. */
const char *mp_sidecar_name(const struct mp_sidecar *sidecar);

/* NULL: no tensor has this name. */
const struct mp_st_tensor *mp_sidecar_find(const struct mp_sidecar *sidecar, const char *tensor);

/*
 * Read a whole tensor of type F32 and exactly this shape (rows, cols; cols 0: one dimension) into
 * `out`. Every number must be finite and lie in [min, max].
 */
enum mp_status mp_sidecar_read(const struct mp_sidecar *sidecar, const char *tensor, uint64_t rows,
                               uint64_t cols, float min, float max, float *out) MP_MUST_CHECK;

/*
 * Find the file that a setting names: "none" is none, "auto" is `name` in the model's directory if
 * it exists, everything else is a path. False: none.
 */
bool mp_sidecar_locate(const char *setting, int model_fd, const char *name, int *dir_fd_p,
                       const char **path_p);

/* path := that of `name` in the folder of `file`. False: it is too long. */
bool mp_sidecar_beside(const char *file, const char *name, char *path, size_t path_bytes);

#endif
