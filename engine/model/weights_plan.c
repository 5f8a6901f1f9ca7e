/*
 * Assigns tensors to roles and checks their shapes and types against the configuration. Names come
 * from the family, roles from roles.c; the experts of a layer are in weights_experts.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/weights_int.h"

#include "engine/model/arch/arch.h"
#include "engine/model/drafting.h"
#include "engine/model/types.h"
#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"

static void mark_used(struct mp_weights_plan *plan, const struct mp_tensor *tensor)
{
    plan->used[tensor - mp_checkpoint_tensor(plan->checkpoint, 0)] = true;
}

enum mp_status mp_weights_name(struct mp_tensor_name *name, const char *pattern,
                               const struct mp_name_numbers *numbers)
{
    if (mp_arch_format(name->text, sizeof(name->text), pattern, numbers) >= sizeof(name->text))
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_NAME",
                       "the name of a tensor, '%.60s...', is longer than %zu bytes", name->text,
                       sizeof(name->text) - 1);
    return MP_OK;
}

/* GGUF files leave out dimensions of 1 that stand first; others write them. */
static bool has_shape(const struct mp_weights_plan *plan, const struct mp_tensor *tensor,
                      const struct mp_tensor_need *need)
{
    const uint64_t *shape = need->shape, *got = tensor->st.shape;
    uint32_t dims = need->dims, got_dims = tensor->st.dims;

    while (mp_checkpoint_gguf(plan->checkpoint) != NULL && dims > tensor->st.dims && *shape == 1) {
        shape++;
        dims--;
    }
    while (dims == 1 && got_dims > 1 && *got == 1) {
        got++;
        got_dims--;
    }
    return got_dims == dims && memcmp(got, shape, dims * sizeof(shape[0])) == 0;
}

/* What says which tensors the model has, for messages. */
static const char *config_name(const struct mp_weights_plan *plan)
{
    return mp_checkpoint_gguf(plan->checkpoint) != NULL ? "its metadata" : "config.json";
}

/* Shape and type are those that the model needs and that the kernels read. */
static enum mp_status check_tensor(const struct mp_weights_plan *plan,
                                   const struct mp_tensor *tensor,
                                   const struct mp_tensor_need *need, enum mp_wtype *type_p)
{
    const char *file_name = mp_files_name(mp_checkpoint_files(plan->checkpoint), tensor->file);
    const struct mp_dtype_info *dtype = mp_dtype_info(tensor->st.dtype);
    const uint64_t row = need->shape[need->dims - 1];
    char wanted[MP_QUOTE_BYTES], got[MP_QUOTE_BYTES], file[MP_QUOTE_BYTES];

    mp_quote(file, file_name, strlen(file_name));
    if (!has_shape(plan, tensor, need))
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_SHAPE",
                       "tensor '%s' in '%s': got shape %s, %s needs %s", need->name, file,
                       mp_st_shape_text(got, tensor->st.shape, tensor->st.dims), config_name(plan),
                       mp_st_shape_text(wanted, need->shape, need->dims));
    if (!mp_wtype_of(tensor->st.dtype, type_p))
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_DTYPE", "tensor '%s' in '%s': got %s, need %s",
                       need->name, file, dtype->name, mp_wtype_list(wanted));
    if (row % dtype->block_elements != 0)
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_SHAPE",
                       "tensor '%s' in '%s': got rows of %" PRIu64
                       " elements, %s needs a multiple of %" PRIu32,
                       need->name, file, row, dtype->name, dtype->block_elements);
    return MP_OK;
}

enum mp_status mp_weights_find(struct mp_weights_plan *plan, const struct mp_tensor_need *need,
                               const struct mp_tensor **tensor_p, enum mp_wtype *type_p)
{
    const struct mp_tensor *tensor = mp_checkpoint_find(plan->checkpoint, need->name);
    char wanted[MP_QUOTE_BYTES];
    enum mp_status status;

    if (tensor == NULL)
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_MISSING",
                       "tensor '%s' is missing, %s needs it with shape %s", need->name,
                       config_name(plan), mp_st_shape_text(wanted, need->shape, need->dims));
    status = check_tensor(plan, tensor, need, type_p);
    if (status != MP_OK)
        return status;
    mark_used(plan, tensor);
    *tensor_p = tensor;
    return MP_OK;
}

enum mp_status mp_weights_find_bytes(struct mp_weights_plan *plan, const char *name,
                                     const uint64_t *shape, uint32_t dims,
                                     const struct mp_tensor **tensor_p)
{
    const struct mp_tensor *tensor = mp_checkpoint_find(plan->checkpoint, name);
    char wanted[MP_QUOTE_BYTES], got[MP_QUOTE_BYTES];

    mp_st_shape_text(wanted, shape, dims);
    if (tensor == NULL)
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_MISSING",
                       "tensor '%s' is missing, %s needs it with shape %s", name, config_name(plan),
                       wanted);
    if (tensor->st.dims != dims || memcmp(tensor->st.shape, shape, dims * sizeof(*shape)) != 0)
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_SHAPE", "tensor '%s': got shape %s, %s needs %s",
                       name, mp_st_shape_text(got, tensor->st.shape, tensor->st.dims),
                       config_name(plan), wanted);
    if (tensor->st.dtype != MP_DTYPE_U8)
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_DTYPE", "tensor '%s': got %s, need U8 as MXFP4 has",
                       name, mp_dtype_name(tensor->st.dtype));
    mark_used(plan, tensor);
    *tensor_p = tensor;
    return MP_OK;
}

/* The name of a role: the one that other versions write where the model has that one. */
static enum mp_status find_name(const struct mp_weights_plan *plan, enum mp_role role,
                                uint32_t layer, struct mp_tensor_name *name)
{
    const struct mp_arch_name *names = &plan->config->arch->names[role];
    const struct mp_name_numbers numbers = { .layer = plan->config->first_layer + layer };
    enum mp_status status;

    if (names->other != NULL) {
        status = mp_weights_name(name, names->other, &numbers);
        if (status != MP_OK || mp_checkpoint_find(plan->checkpoint, name->text) != NULL)
            return status;
    }
    return mp_weights_name(name, names->name, &numbers);
}

/* Convolutions of each channel have a dimension of 1 in between, but in GGUF files. */
static void add_dimension(const struct mp_weights_plan *plan, struct mp_tensor_need *need)
{
    if (mp_checkpoint_gguf(plan->checkpoint) != NULL)
        return;
    need->shape[2] = need->shape[1];
    need->shape[1] = 1;
    need->dims = 3;
}

/* A matrix for each head. */
static void stack_heads(const struct mp_model_config *config, struct mp_tensor_need *need)
{
    need->shape[2] = need->shape[1];
    need->shape[1] = need->shape[0] / config->heads;
    need->shape[0] = config->heads;
    need->dims = 3;
}

/* From latents to keys: plain numbers are put in the order that directories have; blocks cannot be.
 */
static void turn_heads(const struct mp_model_config *config, struct mp_weights_item *item,
                       struct mp_view *view)
{
    if (view->type >= MP_WTYPE_PLAIN_COUNT) {
        item->form.turn_rows = 0;
        return;
    }
    view->rows = (size_t)config->heads * config->nope_dim;
    view->cols = config->kv_rank;
}

/*
 * Put the tensor of a role on the list of what is read into the block. A matrix keeps its type; a
 * vector, a norm or a bias, has few elements that are used all the time, so they become float.
 */
static enum mp_status want_role(struct mp_weights_plan *plan, enum mp_role role, uint32_t layer)
{
    const struct mp_role_info *info = &mp_roles[role];
    const bool matrix = info->cols != MP_DIM_NONE;
    char *owner =
        role < MP_ROLE_LAYER ? (char *)plan->weights : (char *)&plan->weights->layers[layer];
    struct mp_weights_item *item = &plan->items[plan->item_count];
    struct mp_view *view = (struct mp_view *)(void *)(owner + info->offset);
    struct mp_tensor_name name;
    struct mp_tensor_need need = { .name = name.text,
                                   .shape = { mp_dim_size(plan->config, info->rows, layer),
                                              mp_dim_size(plan->config, info->cols, layer) },
                                   .dims = matrix ? 2 : 1 };
    enum mp_status status = find_name(plan, role, layer, &name);

    mp_assert(plan->item_count < plan->item_capacity);
    item->count = need.shape[0] * (matrix ? need.shape[1] : 1);
    item->form = mp_role_form(plan->config, plan->config->arch, role);
    if (role == MP_ROLE_DELTA_CONV || role == MP_ROLE_CONV)
        add_dimension(plan, &need);
    if (role == MP_ROLE_K_UP || role == MP_ROLE_V_UP)
        stack_heads(plan->config, &need);
    if (status == MP_OK)
        status = mp_weights_find(plan, &need, &item->tensor, &item->type);
    if (status != MP_OK)
        return status;
    if (matrix && !mp_role_floats(role)) {
        *view = (struct mp_view){ .type = item->type,
                                  .rows = mp_dim_size(plan->config, info->rows, layer),
                                  .cols = mp_dim_size(plan->config, info->cols, layer) };
        item->data = &view->data;
        if (role == MP_ROLE_K_UP)
            turn_heads(plan->config, item, view);
        /* Columns of plain numbers go back to the order that directories have; blocks stay. */
        if (item->form.tile_cols != 0 && item->type >= MP_WTYPE_PLAIN_COUNT)
            item->form.tile_cols = 0;
        else if (item->form.tile_cols != 0)
            plan->weights->layers[layer].delta.in_order = true;
    } else {
        item->floats = (const float **)(void *)view;
    }
    plan->item_count++;
    return MP_OK;
}

static enum mp_status want_roles(struct mp_weights_plan *plan, int first, int end, uint32_t layer)
{
    enum mp_status status = MP_OK;

    for (int role = first; status == MP_OK && role < end; role++) {
        if (mp_role_needed(plan->config, (enum mp_role)role, layer))
            status = want_role(plan, (enum mp_role)role, layer);
    }
    return status;
}

/* A tied head may have been written all the same; the embedding stands for it. */
static enum mp_status use_tied_head(struct mp_weights_plan *plan)
{
    struct mp_tensor_name name;
    const struct mp_tensor *tensor;
    enum mp_status status;

    if (!plan->config->tied)
        return MP_OK;
    status = find_name(plan, MP_ROLE_HEAD, 0, &name);
    if (status != MP_OK)
        return status;
    tensor = mp_checkpoint_find(plan->checkpoint, name.text);
    if (tensor != NULL)
        mark_used(plan, tensor);
    return MP_OK;
}

/* Neither those of a layer that drafts, nor, where that is read alone, all others. */
static void count_extra(struct mp_weights_plan *plan)
{
    const size_t count = mp_checkpoint_count(plan->checkpoint);

    for (size_t i = 0; !plan->config->drafting && i < count; i++) {
        const char *name = mp_checkpoint_tensor(plan->checkpoint, i)->st.name;

        if (plan->used[i] || strncmp(name, MP_PAD_PREFIX, strlen(MP_PAD_PREFIX)) == 0 ||
            mp_is_divisors(name) || mp_drafting_name(plan->config, name))
            continue;
        if (plan->weights->extra_tensors++ == 0)
            plan->weights->extra_name = name;
    }
}

static void take_weights(struct mp_weights_plan *plan, struct mp_arena *arena)
{
    const struct mp_model_config *config = plan->config;
    const uint32_t experts = config->moe_layers * config->experts; /* <= 2^21, see config.h */
    struct mp_weights *weights = plan->weights;

    weights->unit_count = experts * weights->slices.count;
    weights->layers = mp_arena_take(arena, config->layers, sizeof(*weights->layers));
    weights->units = mp_arena_take(arena, weights->unit_count, sizeof(*weights->units));
    weights->unit_types = mp_arena_take(arena, experts, sizeof(*weights->unit_types));
}

static void take_plan(struct mp_weights_plan *plan, struct mp_arena *arena)
{
    plan->item_capacity = ((size_t)plan->config->layers + 1) * MP_ROLE_COUNT;
    plan->items = mp_arena_take(arena, plan->item_capacity, sizeof(*plan->items));
    plan->used = mp_arena_take(arena, mp_checkpoint_count(plan->checkpoint), sizeof(*plan->used));
}

/* Two blocks, as the plan goes when the weights have been read. */
static enum mp_status allocate(struct mp_weights_plan *plan)
{
    static const char what[] = "the tables of weights";
    struct mp_arena weights = { 0 }, rest = { 0 };
    enum mp_status status;

    take_weights(plan, &weights);
    take_plan(plan, &rest);
    status = mp_arena_open(&weights, what);
    plan->weights->tables = weights.block;
    if (status == MP_OK)
        status = mp_arena_open(&rest, what);
    plan->block = rest.block;
    if (status != MP_OK)
        return status;
    take_weights(plan, &weights);
    take_plan(plan, &rest);
    return MP_OK;
}

enum mp_status mp_weights_plan_make(struct mp_weights_plan *plan)
{
    const struct mp_model_config *config = plan->config;
    uint32_t unit = 0;
    enum mp_status status = mp_weights_count_slices(plan);

    if (status == MP_OK)
        status = allocate(plan);
    if (status == MP_OK)
        status = want_roles(plan, 0, MP_ROLE_LAYER, 0);
    if (status == MP_OK)
        status = use_tied_head(plan);
    for (uint32_t i = 0; status == MP_OK && i < config->layers; i++) {
        plan->weights->layers[i].first_unit = unit;
        status = want_roles(plan, MP_ROLE_LAYER, MP_ROLE_COUNT, i);
        if (status == MP_OK && config->is_moe[i])
            status = mp_weights_want_experts(plan, i);
        unit += config->is_moe[i] ? config->experts : 0;
    }
    if (status != MP_OK)
        return status;
    status = mp_weights_place(plan);
    if (status != MP_OK)
        return status;
    plan->weights->resident_bytes = plan->block_bytes;
    count_extra(plan);
    return MP_OK;
}

void mp_weights_plan_fini(struct mp_weights_plan *plan)
{
    free(plan->runs);
    free(plan->block);
}
