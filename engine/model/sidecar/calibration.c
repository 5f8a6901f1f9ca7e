/*
 * The calibration file: its arrays, their names, shapes and ranges. Nothing is learned here
 * (engine/calibrate).
 */
#include "engine/model/sidecar/calibration.h"

#include <fcntl.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/st_out.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

enum { HOT, TOGETHER, NEXT, SIMILARITY, RESIDUAL, ARRAYS };

/* Name in the file, shape as rows and columns, range, place in the block. */
struct array {
    const char *name;
    uint64_t rows, cols;
    float min, max;
    uint64_t at;
};

/* False: the sizes do not fit into any memory. */
static bool list_arrays(const struct mp_model_id *id, struct array list[ARRAYS], uint64_t *count_p)
{
    const uint64_t L = id->layers, E = id->experts, H = id->hidden;
    const struct array arrays[ARRAYS] = {
        [HOT] = { "hot", L, E, 0, 1, 0 },
        [TOGETHER] = { "together", L * E, E, 0, 1, 0 },
        [NEXT] = { "next", L * E, E, 0, 1, 0 },
        [SIMILARITY] = { "similarity", L * E, E, -1.001f, 1.001f, 0 },
        [RESIDUAL] = { "residual", L, H, -FLT_MAX, FLT_MAX, 0 },
    };
    uint64_t count = 0, elements;

    memcpy(list, arrays, sizeof(arrays));
    for (int i = 0; i < ARRAYS; i++) {
        list[i].at = count;
        if (!mp_mul_u64(list[i].rows, list[i].cols, &elements) ||
            !mp_add_u64(count, elements, &count))
            return false;
    }
    *count_p = count;
    return count <= SIZE_MAX / sizeof(float);
}

enum mp_status mp_calibration_create(const struct mp_model_id *id,
                                     struct mp_calibration_data **data_p)
{
    struct mp_calibration_data *data = calloc(1, sizeof(*data));
    struct array list[ARRAYS];
    uint64_t count = 0;

    if (data == NULL)
        return mp_fail_no_memory("a calibration", sizeof(*data));
    data->groups = calloc(id->layers, sizeof(uint32_t));
    if (list_arrays(id, list, &count))
        data->block = calloc(count, sizeof(float));
    if (data->block == NULL || data->groups == NULL) {
        mp_calibration_destroy(data);
        return mp_fail_no_memory("a calibration", count * sizeof(float));
    }
    data->facts = (struct mp_calibration){
        .hot = data->block + list[HOT].at,
        .together = data->block + list[TOGETHER].at,
        .next = data->block + list[NEXT].at,
        .similarity = data->block + list[SIMILARITY].at,
        .group = data->groups,
    };
    data->residual = id->hidden > 0 ? data->block + list[RESIDUAL].at : NULL;
    *data_p = data;
    return MP_OK;
}

void mp_calibration_destroy(struct mp_calibration_data *data)
{
    if (data == NULL)
        return;
    free(data->block);
    free(data->groups);
    free(data);
}

/* Groups are stored as float like all else; they are 0, 1, ... without a gap. */
static enum mp_status read_groups(const struct mp_sidecar *sidecar, uint32_t layers, float *scratch,
                                  uint32_t *groups)
{
    enum mp_status status = mp_sidecar_read(sidecar, "group", layers, 0, 0, (float)layers, scratch);

    for (uint32_t l = 0; status == MP_OK && l < layers; l++) {
        groups[l] = (uint32_t)scratch[l];
        if ((float)groups[l] != scratch[l] || (l == 0 && groups[l] != 0) ||
            (l > 0 && groups[l] != groups[l - 1] && groups[l] != groups[l - 1] + 1))
            return mp_fail(MP_ERR_MODEL, "E_SIDECAR",
                           "group of layer %u in '%s' is %g, need whole numbers from 0, each the "
                           "one before it or one more",
                           l, mp_sidecar_name(sidecar), (double)scratch[l]);
    }
    return status;
}

enum mp_status mp_calibration_load(int dir_fd, const char *path, const struct mp_model_id *id,
                                   struct mp_calibration_data **data_p)
{
    struct mp_calibration_data *data = NULL;
    struct mp_sidecar *sidecar = NULL;
    struct array list[ARRAYS];
    uint64_t count;
    enum mp_status status = mp_sidecar_open(dir_fd, path, MP_CALIBRATION_FORMAT, id, &sidecar);

    if (status == MP_OK)
        status = mp_calibration_create(id, &data);
    if (status == MP_OK) {
        list_arrays(id, list, &count);
        /* The first array has room for a number per layer; it is read over below. */
        status = read_groups(sidecar, id->layers, data->block, data->groups);
    }
    for (int i = 0; i < (id->hidden > 0 ? ARRAYS : RESIDUAL) && status == MP_OK; i++)
        status = mp_sidecar_read(sidecar, list[i].name, list[i].rows, list[i].cols, list[i].min,
                                 list[i].max, data->block + list[i].at);
    mp_sidecar_close(sidecar);
    if (status != MP_OK) {
        mp_calibration_destroy(data);
        return status;
    }
    *data_p = data;
    return MP_OK;
}

enum mp_status mp_calibration_load_for(const char *setting, uint32_t layers, uint32_t experts,
                                       struct mp_calibration_data **data_p)
{
    const struct mp_model_id id = { .layers = layers, .experts = experts };

    *data_p = NULL;
    if (!strcmp(setting, "auto") || !strcmp(setting, "none"))
        return MP_OK;
    return mp_calibration_load(AT_FDCWD, setting, &id, data_p);
}

enum mp_status mp_calibration_write(const char *path, const struct mp_calibration_data *data,
                                    const struct mp_model_id *id, uint64_t tokens)
{
    struct mp_st_out_tensor tensors[ARRAYS + 1];
    struct array list[ARRAYS];
    struct mp_st_out out;
    uint64_t count;
    enum mp_status status;

    list_arrays(id, list, &count);
    for (int i = 0; i < ARRAYS; i++)
        tensors[i] = (struct mp_st_out_tensor){ .dtype = MP_DTYPE_F32,
                                                .dims = 2,
                                                .shape = { list[i].rows, list[i].cols } };
    for (int i = 0; i < ARRAYS; i++)
        snprintf(tensors[i].name, sizeof(tensors[i].name), "%s", list[i].name);
    tensors[ARRAYS] = (struct mp_st_out_tensor){
        .name = "group", .dtype = MP_DTYPE_F32, .dims = 1, .shape = { id->layers }
    };
    status = mp_st_out_open(&out, path, MP_CALIBRATION_FORMAT, id, tokens, tensors, ARRAYS + 1);
    if (status != MP_OK)
        return status;
    fwrite(data->block, sizeof(float), count, out.out.file);
    for (uint32_t l = 0; l < id->layers; l++)
        fwrite(&(float){ (float)data->groups[l] }, sizeof(float), 1, out.out.file);
    return mp_st_out_commit(&out);
}
