/* The tensors of the new file: where each comes from, its type, where it goes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/convert/convert_int.h"
#include "engine/model/types.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"

static enum mp_status fail_type(const char *name, const char *type)
{
    char shown[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "tensor '%s' is of type %s: only plain numbers are quantised, because what "
                   "quantising has lost stays lost",
                   mp_quote(shown, name, strlen(name)), type);
}

/* The next of the list, a tensor of this shape, with its type and bytes. */
static enum mp_status add(struct mp_convert *job, const struct mp_convert_tensor *what)
{
    struct mp_convert_tensor *tensor = &job->tensors[job->count];
    uint64_t elements = 1;

    mp_assert(job->count < job->capacity);
    *tensor = *what;
    tensor->cols = what->shape[what->dims - 1];
    for (uint32_t d = 0; d < what->dims; d++) {
        if (what->shape[d] == 0 || !mp_mul_u64(elements, what->shape[d], &elements))
            return mp_fail(MP_ERR_OVERFLOW, "E_OVERFLOW", "tensor '%s' has no size that fits",
                           what->name);
    }
    tensor->rows = elements / tensor->cols;
    tensor->to = mp_recipe_type(job->recipe, &job->model, tensor);
    if (tensor->from >= MP_WTYPE_PLAIN_COUNT)
        return fail_type(what->name, mp_dtype_name(mp_dtype_of(tensor->from)));
    tensor->offset_bytes =
        (job->data_bytes + MP_CONVERT_ALIGN - 1) / MP_CONVERT_ALIGN * MP_CONVERT_ALIGN;
    tensor->bytes = tensor->rows * mp_wtype_bytes(tensor->to, tensor->cols);
    /* Types are at most twice as large as the source's, which was checked to fit in files. */
    job->data_bytes = tensor->offset_bytes + tensor->bytes;
    job->report.source_bytes += elements * mp_wtype_bytes(tensor->from, 1);
    job->count++;
    return MP_OK;
}

/* ---- from a directory */

/* The tensor of a role: under the name of other versions where the model has that one. */
static const struct mp_tensor *find_role(const struct mp_convert *job, enum mp_role role,
                                         uint32_t layer)
{
    const struct mp_arch_name *names = &job->model.arch->names[role];
    const struct mp_name_numbers numbers = { .layer = layer };
    const struct mp_tensor *tensor = NULL;
    char name[MP_ST_NAME_BYTES_MAX + 1];

    if (names->other != NULL) {
        (void)mp_arch_format(name, sizeof(name), names->other, &numbers);
        tensor = mp_checkpoint_find(job->checkpoint, name);
    }
    if (tensor == NULL) {
        (void)mp_arch_format(name, sizeof(name), names->name, &numbers);
        tensor = mp_checkpoint_find(job->checkpoint, name);
    }
    return tensor;
}

/* A family that has no norm between attention and experts calls the one behind attention so. */
static const char *target_name(const struct mp_arch *target, enum mp_role role)
{
    const struct mp_arch_name *names = &target->names[role];

    return strcmp(target->name, "glm4moe") == 0 && names->other != NULL ? names->other
                                                                        : names->name;
}

static enum mp_status add_role(struct mp_convert *job, enum mp_role role, uint32_t layer)
{
    const struct mp_role_info *info = &mp_roles[role];
    const struct mp_tensor *tensor = find_role(job, role, layer);
    const char *pattern = target_name(job->target, role);
    const bool matrix = info->cols != MP_DIM_NONE && role != MP_ROLE_SHARED_SWITCH;
    struct mp_convert_tensor new = { .dims = matrix ? 2 : 1 };

    mp_assert(tensor != NULL); /* the weights were described */
    if (pattern == NULL)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "tensor '%s' has no place in a GGUF file of '%s'", tensor->st.name,
                       job->target->name);
    (void)mp_arch_format(new.name, sizeof(new.name), pattern,
                         &(struct mp_name_numbers){ .layer = layer });
    new.file = tensor->file;
    new.source_bytes = tensor->st.offset_bytes;
    new.shape[0] = mp_dim_size(&job->model, info->rows, layer);
    if (matrix)
        new.shape[1] = mp_dim_size(&job->model, info->cols, layer);
    else if (role == MP_ROLE_SHARED_SWITCH)
        new.shape[0] = mp_dim_size(&job->model, info->cols, layer);
    if (!mp_wtype_of(tensor->st.dtype, &new.from))
        return fail_type(tensor->st.name, mp_dtype_name(tensor->st.dtype));
    if (matrix && (role == MP_ROLE_Q || role == MP_ROLE_K) && job->target->rotary_neighbours &&
        !job->model.arch->rotary_neighbours) {
        new.head_rows = job->model.head_dim;
        new.rotary_rows = job->model.rotary_dim;
    }
    return add(job, &new);
}

static enum mp_status add_roles(struct mp_convert *job, int first, int end, uint32_t layer)
{
    enum mp_status status = MP_OK;

    for (int role = first; status == MP_OK && role < end; role++) {
        if (mp_role_needed(&job->model, (enum mp_role)role, layer))
            status = add_role(job, (enum mp_role)role, layer);
    }
    return status;
}

static enum mp_status add_experts(struct mp_convert *job, uint32_t layer)
{
    const struct mp_model_config *model = &job->model;
    const uint32_t first = job->weights->layers[layer].first_unit;
    enum mp_status status = MP_OK;

    for (uint32_t p = 0; status == MP_OK && p < MP_EXPERT_PIECES; p++) {
        const bool down = p == MP_PIECE_DOWN;
        struct mp_convert_tensor new = {
            .dims = 3,
            .shape = { model->experts, down ? model->hidden : model->expert_ffn,
                       down ? model->expert_ffn : model->hidden },
            .experts = model->experts,
            .first_unit = first,
            .piece = p,
            .from = job->weights->unit_types[first].piece[p],
        };

        (void)mp_arch_format(new.name, sizeof(new.name), job->target->stacked[p],
                             &(struct mp_name_numbers){ .layer = layer });
        for (uint32_t e = 0; e < model->experts; e++) {
            if (job->weights->unit_types[first + e].piece[p] != new.from)
                return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                               "experts of layer %" PRIu32 " have several types; repack writes "
                               "those of a layer with one type",
                               layer);
        }
        status = add(job, &new);
    }
    return status;
}

static enum mp_status plan_directory(struct mp_convert *job)
{
    const struct mp_model_config *model = &job->model;
    enum mp_status status = mp_convert_target(model, &job->target);

    if (status == MP_OK)
        status = mp_weights_describe(job->checkpoint, model, &job->weights);
    if (status == MP_OK && job->weights->slices.count > 1)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "experts of this model are stored in slices; repack it without --slices "
                       "first");
    if (status == MP_OK)
        status = add_roles(job, 0, MP_ROLE_LAYER, 0);
    for (uint32_t layer = 0; status == MP_OK && layer < model->layers; layer++) {
        status = add_roles(job, MP_ROLE_LAYER, MP_ROLE_COUNT, layer);
        if (status == MP_OK && model->is_moe[layer])
            status = add_experts(job, layer);
    }
    return status;
}

/* ---- from a GGUF file */

static enum mp_status plan_file(struct mp_convert *job)
{
    enum mp_status status = MP_OK;

    for (size_t i = 0; status == MP_OK && i < mp_checkpoint_count(job->checkpoint); i++) {
        const struct mp_tensor *tensor = mp_checkpoint_tensor(job->checkpoint, i);
        struct mp_convert_tensor new = { .dims = tensor->st.dims,
                                         .file = tensor->file,
                                         .source_bytes = tensor->st.offset_bytes };
        const size_t length = strlen(tensor->st.name);

        if (length >= sizeof(new.name) || tensor->st.dims == 0)
            return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                           "a tensor has a name of %zu bytes and %" PRIu32
                           " dimensions; repack writes names of at most %u, and no single numbers",
                           length, tensor->st.dims, MP_CONVERT_NAME_BYTES - 1);
        memcpy(new.name, tensor->st.name, length + 1);
        memcpy(new.shape, tensor->st.shape, new.dims * sizeof(*new.shape));
        if (!mp_wtype_of(tensor->st.dtype, &new.from))
            return fail_type(new.name, mp_dtype_name(tensor->st.dtype));
        status = add(job, &new);
    }
    return status;
}

enum mp_status mp_convert_plan(struct mp_convert *job)
{
    const bool file = mp_checkpoint_gguf(job->checkpoint) != NULL;

    job->capacity =
        file ? mp_checkpoint_count(job->checkpoint)
             : (size_t)job->model.layers * (MP_ROLE_COUNT + MP_EXPERT_PIECES) + MP_ROLE_LAYER;
    job->tensors = calloc(job->capacity, sizeof(*job->tensors));
    if (job->tensors == NULL)
        return mp_fail_no_memory("the list of tensors", job->capacity * sizeof(*job->tensors));
    return file ? plan_file(job) : plan_directory(job);
}
