/*
 * Reads trained predictors into one block. They are evaluated in engine/forward/predict_llapor.c.
 */
#include "engine/model/sidecar/llapor.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

#include "vmm/base/checked.h"
#include "vmm/base/error.h"

#define ALIGN_FLOATS 16u

/* One linear block of a network: its name in the file and its shape. */
struct part {
    const char *name;
    struct mp_llapor_linear *linear;
    uint64_t rows, cols;
};

#define PARTS 6

static uint32_t list_parts(struct mp_llapor_net *net, const struct mp_model_id *id,
                           struct part list[PARTS])
{
    const uint64_t P = net->inputs, D = net->width, E = id->experts;
    uint32_t count = 0;

    list[count++] = (struct part){ "pca", &net->pca, P, id->hidden };
    list[count++] = (struct part){ "in", &net->in, D, P + 2 * E };
    if (net->deep) {
        list[count++] = (struct part){ "a", &net->a, D, D };
        list[count++] = (struct part){ "b", &net->b, D, D };
        list[count++] = (struct part){ "gate", &net->gate, D, P };
    }
    list[count++] = (struct part){ "out", &net->out, E, D };
    return count;
}

static void tensor_name(char out[64], uint32_t layer, const char *part, const char *what)
{
    snprintf(out, 64, "layer.%u.%s.%s", layer, part, what);
}

/* The sizes of a network follow from the shapes of two of its tensors. */
static enum mp_status read_sizes(const struct mp_sidecar *sidecar, const struct mp_model_id *id,
                                 uint32_t layer, struct mp_llapor_net *net)
{
    const struct mp_st_tensor *pca, *in;
    char name[64];

    tensor_name(name, layer, "pca", "weight");
    pca = mp_sidecar_find(sidecar, name);
    tensor_name(name, layer, "in", "weight");
    in = mp_sidecar_find(sidecar, name);
    if (pca == NULL || in == NULL)
        return mp_fail(MP_ERR_MODEL, "E_SIDECAR", "'%s' has no network for layer %u",
                       mp_sidecar_name(sidecar), layer);
    if (pca->dims != 2 || in->dims != 2 || pca->shape[0] == 0 || pca->shape[0] > id->hidden ||
        in->shape[0] == 0 || in->shape[0] > MP_LLAPOR_WIDTH_MAX)
        return mp_fail(MP_ERR_MODEL, "E_SIDECAR",
                       "the network of layer %u in '%s' has sizes out of range: need 1 to %u "
                       "components and a width of 1 to %u",
                       layer, mp_sidecar_name(sidecar), id->hidden, MP_LLAPOR_WIDTH_MAX);
    net->inputs = (uint32_t)pca->shape[0];
    net->width = (uint32_t)in->shape[0];
    tensor_name(name, layer, "gate", "weight");
    net->deep = mp_sidecar_find(sidecar, name) != NULL;
    return MP_OK;
}

/* Floats of a network in the block, each array on its own cache lines. */
static uint64_t net_floats(struct mp_llapor_net *net, const struct mp_model_id *id)
{
    struct part list[PARTS];
    const uint32_t count = list_parts(net, id, list);
    uint64_t floats = 0;

    for (uint32_t i = 0; i < count; i++)
        floats += list[i].rows * list[i].cols + list[i].rows + 2 * ALIGN_FLOATS;
    return floats;
}

static uint64_t round_up(uint64_t floats)
{
    return (floats + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

static enum mp_status read_net(const struct mp_sidecar *sidecar, const struct mp_model_id *id,
                               uint32_t layer, struct mp_llapor_net *net, float **at)
{
    struct part list[PARTS];
    const uint32_t count = list_parts(net, id, list);
    enum mp_status status = MP_OK;
    char name[64];

    for (uint32_t i = 0; i < count && status == MP_OK; i++) {
        const struct part *part = &list[i];

        tensor_name(name, layer, part->name, "weight");
        status = mp_sidecar_read(sidecar, name, part->rows, part->cols, -FLT_MAX, FLT_MAX, *at);
        part->linear->weight =
            (struct mp_view){ *at, MP_WTYPE_F32, (size_t)part->rows, (size_t)part->cols };
        *at += round_up(part->rows * part->cols);
        if (status != MP_OK)
            break;
        tensor_name(name, layer, part->name, "bias");
        status = mp_sidecar_read(sidecar, name, part->rows, 0, -FLT_MAX, FLT_MAX, *at);
        part->linear->bias = *at;
        *at += round_up(part->rows);
    }
    return status;
}

static enum mp_status read_all(const struct mp_sidecar *sidecar, const struct mp_model_id *id,
                               struct mp_llapor *llapor)
{
    enum mp_status status = MP_OK;
    uint64_t floats = 0;
    float *at;

    for (uint32_t i = 0; i < llapor->count && status == MP_OK; i++) {
        struct mp_llapor_net *net = &llapor->nets[i];

        status = read_sizes(sidecar, id, i + 1, net);
        if (status != MP_OK)
            return status;
        floats += net_floats(net, id); /* at most 2^35 per network, 2^9 networks */
        llapor->inputs_max = net->inputs > llapor->inputs_max ? net->inputs : llapor->inputs_max;
        llapor->width_max = net->width > llapor->width_max ? net->width : llapor->width_max;
    }
    llapor->bytes = round_up(floats) * sizeof(float);
    llapor->block = aligned_alloc(64, llapor->bytes + 64);
    if (llapor->block == NULL)
        return mp_fail_no_memory("trained predictors", llapor->bytes);
    at = llapor->block;
    for (uint32_t i = 0; i < llapor->count && status == MP_OK; i++)
        status = read_net(sidecar, id, i + 1, &llapor->nets[i], &at);
    return status;
}

enum mp_status mp_llapor_load(int dir_fd, const char *path, const struct mp_model_id *id,
                              struct mp_llapor **llapor_p)
{
    struct mp_llapor *llapor = calloc(1, sizeof(*llapor));
    struct mp_sidecar *sidecar = NULL;
    enum mp_status status;

    if (llapor == NULL)
        return mp_fail_no_memory("trained predictors", sizeof(*llapor));
    llapor->count = id->layers - 1;
    llapor->nets = calloc(id->layers, sizeof(*llapor->nets));
    status = llapor->nets != NULL
                 ? mp_sidecar_open(dir_fd, path, MP_LLAPOR_FORMAT, id, &sidecar)
                 : mp_fail_no_memory("trained predictors", id->layers * sizeof(*llapor->nets));
    if (status == MP_OK)
        status = read_all(sidecar, id, llapor);
    mp_sidecar_close(sidecar);
    if (status != MP_OK) {
        mp_llapor_destroy(llapor);
        return status;
    }
    *llapor_p = llapor;
    return MP_OK;
}

void mp_llapor_destroy(struct mp_llapor *llapor)
{
    if (llapor == NULL)
        return;
    free(llapor->nets);
    free(llapor->block);
    free(llapor);
}
