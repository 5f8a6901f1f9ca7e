/*
 * Opens and checks files derived from a model, and reads their tensors. Writes none (st_out.c).
 */
#include "engine/model/sidecar/sidecar.h"

#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/format/json.h"
#include "vmm/base/checked.h"

struct mp_sidecar {
    char name[MP_QUOTE_BYTES];
    struct mp_files *files;
    struct mp_st_table table;
};

void mp_model_id_make(const struct mp_model_config *config, const struct mp_weights *weights,
                      struct mp_model_id *id_p)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (uint32_t l = 0; l < config->layers; l++) {
        const struct mp_view *router = &weights->layers[l].router;
        const unsigned char *byte = router->data;
        const size_t bytes = mp_wtype_bytes(router->type, router->rows * router->cols);

        if (config->is_moe[l]) {
            for (size_t i = 0; i < bytes; i++)
                hash = (hash ^ byte[i]) * UINT64_C(1099511628211);
        }
    }
    *id_p = (struct mp_model_id){
        .layers = config->moe_layers,
        .experts = config->experts,
        .top_k = config->experts_per_token,
        .hidden = config->hidden,
        .router_hash = hash,
    };
}

static enum mp_status check_number(const struct mp_sidecar *sidecar, const json_t *metadata,
                                   const char *key, uint64_t need, bool hash)
{
    const char *value = json_string_value(json_object_get(metadata, key));
    char text[32], quoted[MP_QUOTE_BYTES];

    if (need == 0)
        return MP_OK; /* whichever */
    snprintf(text, sizeof(text), hash ? "%016" PRIx64 : "%" PRIu64, need);
    if (value == NULL)
        return mp_fail(MP_ERR_MODEL, "E_SIDECAR", "the metadata of '%s' have no '%s'",
                       sidecar->name, key);
    if (strcmp(value, text) != 0)
        return mp_fail(MP_ERR_MODEL, "E_SIDECAR_MODEL",
                       "'%s' was made for another model: its %s is %s, this model's is %s; make "
                       "it again, or name another file or none",
                       sidecar->name, key, mp_quote(quoted, value, strlen(value)), text);
    return MP_OK;
}

static enum mp_status check_metadata(const struct mp_sidecar *sidecar, const json_t *metadata,
                                     const char *format, const struct mp_model_id *id)
{
    const char *got = json_string_value(json_object_get(metadata, "moepager"));
    char quoted[MP_QUOTE_BYTES];
    enum mp_status status;

    if (got == NULL || strcmp(got, format) != 0)
        return mp_fail(MP_ERR_MODEL, "E_SIDECAR",
                       "'%s' says that it is '%s', need 'moepager': '%s' in its metadata",
                       sidecar->name, got != NULL ? mp_quote(quoted, got, strlen(got)) : "nothing",
                       format);
    status = check_number(sidecar, metadata, "layers", id->layers, false);
    if (status == MP_OK)
        status = check_number(sidecar, metadata, "experts", id->experts, false);
    if (status == MP_OK)
        status = check_number(sidecar, metadata, "top_k", id->top_k, false);
    if (status == MP_OK)
        status = check_number(sidecar, metadata, "hidden", id->hidden, false);
    if (status == MP_OK)
        status = check_number(sidecar, metadata, "router", id->router_hash, true);
    return status;
}

/* The header is parsed twice: as tensors, and for the metadata, which the table does not keep. */
static enum mp_status read_header(struct mp_sidecar *sidecar, const char *format,
                                  const struct mp_model_id *id)
{
    const uint64_t file_bytes = mp_files_bytes(sidecar->files, 0);
    unsigned char first[8] = { 0 };
    uint64_t header_bytes;
    json_t *root = NULL;
    char *header;
    enum mp_status status =
        mp_files_read(sidecar->files, 0, 0, file_bytes < 8 ? file_bytes : 8, first);

    if (status == MP_OK)
        status = mp_st_header_bytes(first, file_bytes, sidecar->name, &header_bytes);
    if (status != MP_OK)
        return status;
    if (header_bytes > MP_SIDECAR_HEADER_BYTES_MAX)
        return mp_fail(MP_ERR_MODEL, "E_SIDECAR",
                       "header of '%s' is %" PRIu64 " bytes, need at most %u", sidecar->name,
                       header_bytes, MP_SIDECAR_HEADER_BYTES_MAX);
    header = malloc(header_bytes + 1);
    if (header == NULL)
        return mp_fail_no_memory("the header of a file beside the model", header_bytes + 1);
    status = mp_files_read(sidecar->files, 0, 8, header_bytes, header);
    if (status == MP_OK)
        status = mp_st_parse(header, header_bytes, file_bytes, sidecar->name, &sidecar->table);
    if (status == MP_OK)
        status = mp_json_parse(header, header_bytes, sidecar->name, &root);
    free(header);
    if (status == MP_OK)
        status = check_metadata(sidecar, json_object_get(root, "__metadata__"), format, id);
    json_decref(root);
    return status;
}

enum mp_status mp_sidecar_open(int dir_fd, const char *path, const char *format,
                               const struct mp_model_id *id, struct mp_sidecar **sidecar_p)
{
    struct mp_sidecar *sidecar = calloc(1, sizeof(*sidecar));
    uint32_t index;
    enum mp_status status;

    if (sidecar == NULL)
        return mp_fail_no_memory("a file beside the model", sizeof(*sidecar));
    mp_quote(sidecar->name, path, strlen(path));
    status = mp_files_create(&sidecar->files);
    if (status == MP_OK)
        status = mp_files_add(sidecar->files, dir_fd, path, &index);
    if (status == MP_OK)
        status = read_header(sidecar, format, id);
    if (status != MP_OK) {
        mp_sidecar_close(sidecar);
        return status;
    }
    *sidecar_p = sidecar;
    return MP_OK;
}

void mp_sidecar_close(struct mp_sidecar *sidecar)
{
    if (sidecar == NULL)
        return;
    mp_st_table_fini(&sidecar->table);
    mp_files_destroy(sidecar->files);
    free(sidecar);
}

const char *mp_sidecar_name(const struct mp_sidecar *sidecar)
{
    return sidecar->name;
}

const struct mp_st_tensor *mp_sidecar_find(const struct mp_sidecar *sidecar, const char *tensor)
{
    for (size_t i = 0; i < sidecar->table.count; i++) {
        if (strcmp(sidecar->table.tensors[i].name, tensor) == 0)
            return &sidecar->table.tensors[i];
    }
    return NULL;
}

enum mp_status mp_sidecar_read(const struct mp_sidecar *sidecar, const char *tensor, uint64_t rows,
                               uint64_t cols, float min, float max, float *out)
{
    const struct mp_st_tensor *st = mp_sidecar_find(sidecar, tensor);
    const uint64_t need[2] = { rows, cols };
    const uint32_t dims = cols == 0 ? 1 : 2;
    char got_text[MP_QUOTE_BYTES], need_text[MP_QUOTE_BYTES];
    enum mp_status status;

    mp_st_shape_text(need_text, need, dims);
    if (st == NULL)
        return mp_fail(MP_ERR_MODEL, "E_SIDECAR", "'%s' has no tensor '%s', need F32 %s",
                       sidecar->name, tensor, need_text);
    if (st->dtype != MP_DTYPE_F32 || st->dims != dims ||
        memcmp(st->shape, need, dims * sizeof(need[0])) != 0)
        return mp_fail(MP_ERR_MODEL, "E_SIDECAR", "tensor '%s' in '%s' is %s %s, need F32 %s",
                       tensor, sidecar->name, mp_dtype_name(st->dtype),
                       mp_st_shape_text(got_text, st->shape, st->dims), need_text);
    status = mp_files_read(sidecar->files, 0, st->offset_bytes, st->bytes, out);
    for (uint64_t i = 0; status == MP_OK && i < st->bytes / sizeof(float); i++) {
        if (!(out[i] >= min && out[i] <= max))
            return mp_fail(MP_ERR_MODEL, "E_SIDECAR",
                           "element %" PRIu64 " of tensor '%s' in '%s' is %g, need %g to %g", i,
                           tensor, sidecar->name, (double)out[i], (double)min, (double)max);
    }
    return status;
}

bool mp_sidecar_locate(const char *setting, int model_fd, const char *name, int *dir_fd_p,
                       const char **path_p)
{
    if (strcmp(setting, "none") == 0)
        return false;
    if (strcmp(setting, "auto") == 0) {
        *dir_fd_p = model_fd;
        *path_p = name;
        return faccessat(model_fd, name, F_OK, 0) == 0;
    }
    *dir_fd_p = AT_FDCWD;
    *path_p = setting;
    return true;
}

bool mp_sidecar_beside(const char *file, const char *name, char *path, size_t path_bytes)
{
    char copy[PATH_MAX];

    if ((size_t)snprintf(copy, sizeof(copy), "%s", file) >= sizeof(copy))
        return false;
    return (size_t)snprintf(path, path_bytes, "%s/%s", dirname(copy), name) < path_bytes;
}
