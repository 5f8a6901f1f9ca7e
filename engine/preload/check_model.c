/*
 * Model files: which bytes are experts, by name, as the preloaded library finds them.
 */
#include "engine/preload/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/base/error.h"
#include "vmm/format/checkpoint.h"
#include "vmm/format/expert_names.h"
#include "vmm/format/gguf.h"

#define LAYERS_MAX 4096u

static bool add_kind(struct mp_check_model *model, const char *type, uint64_t bytes)
{
    uint32_t i = 0;

    while (i < model->kind_count && strcmp(model->kinds[i].type, type) != 0)
        i++;
    if (i == MP_CHECK_KINDS_MAX)
        return false;
    if (i == model->kind_count)
        snprintf(model->kinds[model->kind_count++].type, sizeof(model->kinds[i].type), "%s", type);
    model->kinds[i].bytes += bytes;
    return true;
}

/* `experts`: of the tensor's slowest dimension. Layers are counted at their numbers; packed later.
 */
static void add_tensor(struct mp_check_model *model, const char *name, const char *type,
                       uint64_t bytes, uint64_t experts)
{
    struct mp_expert_name parsed;

    if (!mp_expert_name_parse(name, &parsed) || !parsed.weight || parsed.layer >= LAYERS_MAX ||
        !add_kind(model, type, bytes)) {
        model->dense_bytes += bytes;
        return;
    }
    model->layers[parsed.layer].layer = parsed.layer;
    model->layers[parsed.layer].bytes += bytes;
    model->expert_bytes += bytes;
    if (!parsed.all)
        model->single_bytes += bytes;
    experts = parsed.all ? experts : parsed.expert + 1;
    if (experts > model->experts && experts <= UINT32_MAX)
        model->experts = (uint32_t)experts;
}

static void pack_layers(struct mp_check_model *model)
{
    for (uint32_t i = 0; i < LAYERS_MAX; i++) {
        if (model->layers[i].bytes > 0)
            model->layers[model->layer_count++] = model->layers[i];
    }
}

static enum mp_status look_at_gguf(struct mp_check_model *model)
{
    struct mp_gguf *gguf;
    enum mp_status status = mp_gguf_open(model->path, &gguf);

    if (status != MP_OK)
        return status;
    for (size_t i = 0; i < mp_gguf_count(gguf); i++) {
        const struct mp_gguf_tensor *tensor = mp_gguf_tensor(gguf, i);

        add_tensor(model, tensor->name, tensor->type->name, tensor->bytes,
                   tensor->dims == 3 ? tensor->shape[2] : 1);
    }
    mp_gguf_close(gguf);
    return MP_OK;
}

static enum mp_status look_at_folder(struct mp_check_model *model, const char *folder)
{
    struct mp_checkpoint *checkpoint;
    enum mp_status status = mp_checkpoint_open(folder, &checkpoint);

    if (status != MP_OK)
        return status;
    for (size_t i = 0; i < mp_checkpoint_count(checkpoint); i++) {
        const struct mp_tensor *tensor = mp_checkpoint_tensor(checkpoint, i);

        add_tensor(model, tensor->st.name, mp_dtype_name(tensor->st.dtype), tensor->st.bytes,
                   tensor->st.dims >= 3 ? tensor->st.shape[0] : 1);
    }
    mp_checkpoint_close(checkpoint);
    return MP_OK;
}

static bool begins_as_gguf(const char *path)
{
    char magic[4] = "";
    FILE *file = fopen(path, "re");
    bool is;

    if (file == NULL)
        return false;
    is = fread(magic, 1, sizeof(magic), file) == sizeof(magic) && memcmp(magic, "GGUF", 4) == 0;
    fclose(file);
    return is;
}

static bool has(const char *folder, const char *name)
{
    char path[PATH_MAX];

    return snprintf(path, sizeof(path), "%s/%s", folder, name) < PATH_MAX &&
           access(path, F_OK) == 0;
}

bool mp_check_look_at_model(const char *path, struct mp_check_model *model)
{
    enum mp_status status;
    struct stat info;
    bool folder;

    if (stat(path, &info) != 0)
        return false;
    folder = S_ISDIR(info.st_mode) &&
             (has(path, "model.safetensors") || has(path, "model.safetensors.index.json"));
    memset(model, 0, sizeof(*model));
    model->gguf = S_ISREG(info.st_mode) && begins_as_gguf(path);
    if (!folder && !model->gguf)
        return false;
    snprintf(model->path, sizeof(model->path), "%s", path);
    model->layers = calloc(LAYERS_MAX, sizeof(*model->layers));
    mp_error_clear();
    status = model->layers == NULL
                 ? mp_fail_no_memory("the list of layers", LAYERS_MAX * sizeof(*model->layers))
             : folder ? look_at_folder(model, path)
                      : look_at_gguf(model);
    if (status == MP_OK)
        pack_layers(model);
    else
        snprintf(model->error, sizeof(model->error), "%s", mp_error_last()->text);
    mp_error_clear();
    return true;
}
