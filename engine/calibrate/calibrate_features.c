/* The file of training data: ordered by layer, so that one predictor's data are contiguous. */
#include <stdlib.h>
#include <string.h>

#include "engine/calibrate/calibrate.h"
#include "engine/model/st_out.h"
#include "vmm/base/error.h"

#define FORMAT "features 1"

enum { INPUT, EXPERTS, WEIGHTS, TENSORS };

struct mp_features {
    struct mp_st_out out;
    struct mp_model_id id;
    struct mp_st_out_tensor layer[TENSORS]; /* of any one layer */
    uint64_t tokens, row;
    uint16_t *bf16; // (tokens_max, hidden)
};

/* Rounded to nearest, ties to even. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint64_t layer_bytes(const struct mp_features *f, int tensors)
{
    uint64_t bytes = 0;

    for (int i = 0; i < tensors; i++)
        bytes += mp_st_out_bytes(&f->layer[i]);
    return bytes;
}

static enum mp_status open_file(struct mp_features *f, const char *path)
{
    static const char *const names[TENSORS] = { "input", "experts", "weights" };
    const size_t count = (size_t)f->id.layers * TENSORS;
    struct mp_st_out_tensor *list = calloc(count, sizeof(*list));
    enum mp_status status;

    if (list == NULL)
        return mp_fail_no_memory("the list of features", count * sizeof(*list));
    for (size_t i = 0; i < count; i++) {
        list[i] = f->layer[i % TENSORS];
        snprintf(list[i].name, sizeof(list[i].name), "layer.%zu.%s", i / TENSORS,
                 names[i % TENSORS]);
    }
    status = mp_st_out_open(&f->out, path, FORMAT, &f->id, f->tokens, list, count);
    free(list);
    return status;
}

enum mp_status mp_features_open(const char *path, const struct mp_model_id *id, uint64_t tokens,
                                uint32_t tokens_max, struct mp_features **features_p)
{
    struct mp_features *f = calloc(1, sizeof(*f));
    enum mp_status status;

    if (f == NULL)
        return mp_fail_no_memory("the features", sizeof(*f));
    f->id = *id;
    f->tokens = tokens;
    f->layer[INPUT] = (struct mp_st_out_tensor){ .dtype = MP_DTYPE_BF16,
                                                 .dims = 2,
                                                 .shape = { tokens, id->hidden } };
    f->layer[EXPERTS] = (struct mp_st_out_tensor){ .dtype = MP_DTYPE_I32,
                                                   .dims = 2,
                                                   .shape = { tokens, id->top_k } };
    f->layer[WEIGHTS] = (struct mp_st_out_tensor){ .dtype = MP_DTYPE_F32,
                                                   .dims = 2,
                                                   .shape = { tokens, id->top_k } };
    f->bf16 = calloc((size_t)tokens_max * id->hidden, sizeof(*f->bf16));
    status = f->bf16 != NULL ? open_file(f, path)
                             : mp_fail_no_memory("the features", tokens_max * id->hidden * 2ull);
    if (status != MP_OK) {
        free(f->bf16);
        free(f);
        return status;
    }
    *features_p = f;
    return MP_OK;
}

void mp_features_seen(struct mp_features *f, const struct mp_layer_seen *seen)
{
    const size_t H = f->id.hidden, k = seen->k, tokens = seen->batch->count;
    const uint64_t base = seen->layer * layer_bytes(f, TENSORS);
    FILE *file = f->out.out.file;

    for (size_t i = 0; i < tokens * H; i++)
        f->bf16[i] = to_bf16(seen->input[i]);
    mp_st_out_seek(&f->out, base + f->row * H * sizeof(uint16_t));
    fwrite(f->bf16, sizeof(uint16_t), tokens * H, file);
    mp_st_out_seek(&f->out, base + layer_bytes(f, EXPERTS) + f->row * k * sizeof(uint32_t));
    fwrite(seen->experts, sizeof(uint32_t), tokens * k, file);
    mp_st_out_seek(&f->out, base + layer_bytes(f, WEIGHTS) + f->row * k * sizeof(float));
    fwrite(seen->weights, sizeof(float), tokens * k, file);
    if (seen->layer + 1 == f->id.layers)
        f->row += tokens;
}

enum mp_status mp_features_commit(struct mp_features *f)
{
    const enum mp_status status = mp_st_out_commit(&f->out);

    free(f->bf16);
    free(f);
    return status;
}

void mp_features_abandon(struct mp_features *f)
{
    if (f == NULL)
        return;
    mp_st_out_abandon(&f->out);
    free(f->bf16);
    free(f);
}
