/* Which tensor plays which role: names, shapes and types against the configuration. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/weights_int.h"
#include "policy/policy.h"
#include "vmm/base/checked.h"

/* More than the roles of one layer, and those outside of layers. */
#define ITEMS_PER_LAYER 24

#define NAME_BYTES 128

static bool wtype_of(enum mp_st_dtype dtype, enum mp_wtype *type_p)
{
    switch (dtype) {
    case MP_ST_F32: *type_p = MP_WTYPE_F32; return true;
    case MP_ST_BF16: *type_p = MP_WTYPE_BF16; return true;
    case MP_ST_F16: *type_p = MP_WTYPE_F16; return true;
    default: return false;
    }
}

static void mark_used(struct mp_weights_plan *plan, const struct mp_tensor *tensor)
{
    plan->used[tensor - mp_checkpoint_tensor(plan->checkpoint, 0)] = true;
}

/* The tensor `name` if it has this shape and a type that the kernels read. */
static enum mp_status find_tensor(struct mp_weights_plan *plan, const char *name,
                                  const uint64_t *shape, uint32_t dims,
                                  const struct mp_tensor **tensor_p, enum mp_wtype *type_p)
{
    const struct mp_tensor *tensor = mp_checkpoint_find(plan->checkpoint, name);
    char need[MP_QUOTE_BYTES], got[MP_QUOTE_BYTES], file[MP_QUOTE_BYTES];

    mp_st_shape_text(need, shape, dims);
    if (tensor == NULL)
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_MISSING",
                       "tensor '%s' is missing, config.json needs it with shape %s", name, need);
    const char *file_name = mp_files_name(mp_checkpoint_files(plan->checkpoint), tensor->file);

    mp_quote(file, file_name, strlen(file_name));
    if (tensor->st.dims != dims || memcmp(tensor->st.shape, shape, dims * sizeof(*shape)) != 0)
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_SHAPE",
                       "tensor '%s' in '%s': got shape %s, config.json needs %s", name, file,
                       mp_st_shape_text(got, tensor->st.shape, tensor->st.dims), need);
    if (!wtype_of(tensor->st.dtype, type_p))
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_DTYPE",
                       "tensor '%s' in '%s': got %s, need F32, BF16 or F16", name, file,
                       mp_st_dtype_name(tensor->st.dtype));
    mark_used(plan, tensor);
    *tensor_p = tensor;
    return MP_OK;
}

/* Put a tensor on the list of what is read into the block; `item` says where its address goes. */
static enum mp_status add_item(struct mp_weights_plan *plan, struct mp_weights_item item)
{
    if (plan->item_count == plan->item_capacity)
        return mp_fail(MP_ERR_OVERFLOW, "E_OVERFLOW", "more than %zu tensors besides experts",
                       plan->item_capacity);
    plan->items[plan->item_count++] = item;
    return MP_OK;
}

static enum mp_status want_matrix(struct mp_weights_plan *plan, struct mp_view *view, size_t rows,
                                  size_t cols, const char *format, ...) MP_PRINTF(5, 6);

static enum mp_status want_matrix(struct mp_weights_plan *plan, struct mp_view *view, size_t rows,
                                  size_t cols, const char *format, ...)
{
    const uint64_t shape[2] = { rows, cols };
    const struct mp_tensor *tensor = NULL;
    char name[NAME_BYTES];
    enum mp_status status;
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    view->rows = rows;
    view->cols = cols;
    status = find_tensor(plan, name, shape, 2, &tensor, &view->type);
    if (status == MP_OK)
        status = add_item(plan, (struct mp_weights_item){ .tensor = tensor,
                                                          .type = view->type,
                                                          .count = (uint64_t)rows * cols,
                                                          .data = &view->data });
    return status;
}

/* A norm or a bias: few elements, used all the time, so they become float. */
static enum mp_status want_vector(struct mp_weights_plan *plan, const float **floats,
                                  uint64_t count, const char *name)
{
    struct mp_weights_item item = { .count = count, .floats = floats };
    enum mp_status status = find_tensor(plan, name, &count, 1, &item.tensor, &item.type);

    if (status == MP_OK)
        status = add_item(plan, item);
    return status;
}

static enum mp_status want_layer_vector(struct mp_weights_plan *plan, const float **floats,
                                        uint64_t count, uint32_t layer, const char *suffix)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof(name), "model.layers.%" PRIu32 ".%s", layer, suffix);
    return want_vector(plan, floats, count, name);
}

static enum mp_status want_ffn(struct mp_weights_plan *plan, struct mp_ffn *ffn, uint32_t channels,
                               uint32_t layer, const char *prefix)
{
    const uint32_t hidden = plan->config->hidden;
    enum mp_status status;

    status = want_matrix(plan, &ffn->gate, channels, hidden,
                         "model.layers.%" PRIu32 ".%s.gate_proj.weight", layer, prefix);
    if (status == MP_OK)
        status = want_matrix(plan, &ffn->up, channels, hidden,
                             "model.layers.%" PRIu32 ".%s.up_proj.weight", layer, prefix);
    if (status == MP_OK)
        status = want_matrix(plan, &ffn->down, hidden, channels,
                             "model.layers.%" PRIu32 ".%s.down_proj.weight", layer, prefix);
    return status;
}

static enum mp_status want_attention(struct mp_weights_plan *plan, uint32_t layer)
{
    const struct mp_model_config *config = plan->config;
    struct mp_layer_weights *w = &plan->weights->layers[layer];
    const size_t hidden = config->hidden;
    const size_t q = (size_t)config->heads * config->head_dim;
    const size_t kv = (size_t)config->kv_heads * config->head_dim;
    const struct {
        struct mp_view *view;
        size_t rows, cols;
        const char *name;
        bool bias;
        const float **bias_slot;
    } projections[] = {
        { &w->q, q, hidden, "q_proj", config->qkv_bias, &w->q_bias },
        { &w->k, kv, hidden, "k_proj", config->qkv_bias, &w->k_bias },
        { &w->v, kv, hidden, "v_proj", config->qkv_bias, &w->v_bias },
        { &w->o, hidden, q, "o_proj", config->o_bias, &w->o_bias },
    };
    enum mp_status status = MP_OK;

    for (size_t i = 0; status == MP_OK && i < MP_ARRAY_LEN(projections); i++) {
        char bias[32];

        status =
            want_matrix(plan, projections[i].view, projections[i].rows, projections[i].cols,
                        "model.layers.%" PRIu32 ".self_attn.%s.weight", layer, projections[i].name);
        snprintf(bias, sizeof(bias), "self_attn.%s.bias", projections[i].name);
        if (status == MP_OK && projections[i].bias)
            status =
                want_layer_vector(plan, projections[i].bias_slot, projections[i].rows, layer, bias);
    }
    if (status == MP_OK && config->qk_norm)
        status =
            want_layer_vector(plan, &w->q_norm, config->head_dim, layer, "self_attn.q_norm.weight");
    if (status == MP_OK && config->qk_norm)
        status =
            want_layer_vector(plan, &w->k_norm, config->head_dim, layer, "self_attn.k_norm.weight");
    return status;
}

const char *const mp_slice_pieces[MP_EXPERT_PIECES] = { "gate_proj", "up_proj", "down_proj" };

/* One expert piece; all must have one type, as the kernels run over the whole expert. */
static enum mp_status want_piece(struct mp_weights_plan *plan, uint32_t unit, uint32_t piece,
                                 const char *name, const uint64_t *shape, uint32_t dims,
                                 uint64_t skip_rows, uint64_t rows, uint64_t cols)
{
    struct mp_weights *weights = plan->weights;
    enum mp_wtype *expert_type = &weights->unit_types[unit / weights->slices.count];
    const struct mp_tensor *tensor = NULL;
    enum mp_wtype type = MP_WTYPE_F32;
    const enum mp_status status = find_tensor(plan, name, shape, dims, &tensor, &type);

    if (status != MP_OK)
        return status;
    if (unit % weights->slices.count == 0 && piece == 0)
        *expert_type = type;
    if (type != *expert_type)
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_DTYPE",
                       "tensor '%s': got %s, need %s as in the gate of the same expert", name,
                       mp_wtype_name(type), mp_wtype_name(*expert_type));
    const uint64_t row_bytes = mp_wtype_bytes(type, cols);

    weights->units[unit].pieces[piece] =
        (struct mp_piece){ .file = tensor->file,
                           .offset_bytes = tensor->st.offset_bytes + skip_rows * row_bytes,
                           .bytes = rows * row_bytes };
    weights->units[unit].piece_count = MP_EXPERT_PIECES;
    weights->expert_bytes += rows * row_bytes;
    return MP_OK;
}

static const char *experts_block(const struct mp_model_config *config)
{
    return config->arch == MP_ARCH_MIXTRAL ? "block_sparse_moe" : "mlp";
}

static enum mp_status want_expert(struct mp_weights_plan *plan, uint32_t unit, uint32_t layer,
                                  uint32_t expert)
{
    static const char *const mixtral_names[] = { "w1", "w3", "w2" };
    static const char *const qwen_names[] = { "gate_proj", "up_proj", "down_proj" };
    const struct mp_model_config *config = plan->config;
    const bool mixtral = config->arch == MP_ARCH_MIXTRAL;
    const uint64_t ffn = config->expert_ffn, hidden = config->hidden;
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; status == MP_OK && i < MP_EXPERT_PIECES; i++) {
        const uint64_t shape[2] = { i == MP_PIECE_DOWN ? hidden : ffn,
                                    i == MP_PIECE_DOWN ? ffn : hidden };
        char name[NAME_BYTES];

        snprintf(name, sizeof(name), "model.layers.%" PRIu32 ".%s.experts.%" PRIu32 ".%s.weight",
                 layer, experts_block(config), expert, mixtral ? mixtral_names[i] : qwen_names[i]);
        status = want_piece(plan, unit, i, name, shape, 2, 0, shape[0], shape[1]);
    }
    return status;
}

/*
 * All experts of a layer in two tensors: gate_up_proj (E, 2F, H), gate rows before up rows, and
 * down_proj (E, H, F). A piece is a range of rows of such a tensor.
 */
static enum mp_status want_fused_expert(struct mp_weights_plan *plan, uint32_t unit, uint32_t layer,
                                        uint32_t expert)
{
    const struct mp_model_config *config = plan->config;
    const uint64_t ffn = config->expert_ffn, hidden = config->hidden;
    const uint64_t gate_up_shape[3] = { config->experts, 2 * ffn, hidden };
    const uint64_t down_shape[3] = { config->experts, hidden, ffn };
    char gate_up[NAME_BYTES], down[NAME_BYTES];
    enum mp_status status;

    snprintf(gate_up, sizeof(gate_up), "model.layers.%" PRIu32 ".mlp.experts.gate_up_proj", layer);
    snprintf(down, sizeof(down), "model.layers.%" PRIu32 ".mlp.experts.down_proj", layer);
    status = want_piece(plan, unit, MP_PIECE_GATE, gate_up, gate_up_shape, 3, expert * 2 * ffn, ffn,
                        hidden);
    if (status == MP_OK)
        status = want_piece(plan, unit, MP_PIECE_UP, gate_up, gate_up_shape, 3,
                            expert * 2 * ffn + ffn, ffn, hidden);
    if (status == MP_OK)
        status = want_piece(plan, unit, MP_PIECE_DOWN, down, down_shape, 3, expert * hidden, hidden,
                            ffn);
    return status;
}

/* The zeros behind a short slice, up to the size of the others. */
static void add_zeros(struct mp_weights_plan *plan, uint32_t unit, uint32_t missing)
{
    struct mp_weights *weights = plan->weights;
    const uint64_t row_bytes =
        mp_wtype_bytes(weights->unit_types[unit / weights->slices.count], plan->config->hidden);
    struct mp_unit *u = &weights->units[unit];
    const struct mp_piece *last = &u->pieces[MP_PIECE_DOWN];

    if (missing > 0)
        u->pieces[u->piece_count++] =
            (struct mp_piece){ .file = last->file,
                               .offset_bytes = last->offset_bytes + last->bytes,
                               .bytes = missing * MP_EXPERT_PIECES * row_bytes };
}

static enum mp_status want_slice(struct mp_weights_plan *plan, uint32_t layer, uint32_t expert,
                                 uint32_t slice)
{
    const struct mp_model_config *config = plan->config;
    const struct mp_slices *slices = &plan->weights->slices;
    const uint32_t channels = mp_slices_channels(slices, slice);
    const uint32_t unit =
        (plan->weights->layers[layer].first_unit + expert) * slices->count + slice;
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; status == MP_OK && i < MP_EXPERT_PIECES; i++) {
        const uint64_t shape[2] = { i == MP_PIECE_DOWN ? config->hidden : channels,
                                    i == MP_PIECE_DOWN ? channels : config->hidden };
        char name[NAME_BYTES];

        snprintf(name, sizeof(name),
                 "model.layers.%" PRIu32 ".%s.experts.%" PRIu32 "." MP_SLICE_NAME, layer,
                 experts_block(config), expert, slice, mp_slice_pieces[i]);
        status = want_piece(plan, unit, i, name, shape, 2, 0, shape[0], shape[1]);
    }
    if (status == MP_OK)
        add_zeros(plan, unit, slices->width - channels);
    return status;
}

static enum mp_status want_sliced_expert(struct mp_weights_plan *plan, uint32_t layer,
                                         uint32_t expert)
{
    enum mp_status status = MP_OK;

    for (uint32_t s = 0; status == MP_OK && s < plan->weights->slices.count; s++)
        status = want_slice(plan, layer, expert, s);
    return status;
}

static bool has_tensor(const struct mp_weights_plan *plan, uint32_t layer, const char *suffix)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof(name), "model.layers.%" PRIu32 ".%s", layer, suffix);
    return mp_checkpoint_find(plan->checkpoint, name) != NULL;
}

static enum mp_status want_moe(struct mp_weights_plan *plan, uint32_t layer)
{
    const struct mp_model_config *config = plan->config;
    struct mp_layer_weights *w = &plan->weights->layers[layer];
    const bool fused = has_tensor(plan, layer, "mlp.experts.gate_up_proj");
    /* Mixtral's block was renamed together with the fusion of its experts. */
    const char *block =
        config->arch == MP_ARCH_MIXTRAL && !has_tensor(plan, layer, "mlp.gate.weight")
            ? "block_sparse_moe"
            : "mlp";
    enum mp_status status;

    status = want_matrix(plan, &w->router, config->experts, config->hidden,
                         "model.layers.%" PRIu32 ".%s.gate.weight", layer, block);
    if (status == MP_OK && config->shared_ffn > 0)
        status = want_ffn(plan, &w->shared, config->shared_ffn, layer, "mlp.shared_expert");
    if (status == MP_OK && config->shared_ffn > 0)
        status = want_matrix(plan, &w->shared_gate, 1, config->hidden,
                             "model.layers.%" PRIu32 ".mlp.shared_expert_gate.weight", layer);
    for (uint32_t i = 0; status == MP_OK && i < config->experts; i++)
        status = plan->weights->slices.count > 1 ? want_sliced_expert(plan, layer, i)
                 : fused ? want_fused_expert(plan, w->first_unit + i, layer, i)
                         : want_expert(plan, w->first_unit + i, layer, i);
    return status;
}

static enum mp_status want_layer(struct mp_weights_plan *plan, uint32_t layer)
{
    const struct mp_model_config *config = plan->config;
    struct mp_layer_weights *w = &plan->weights->layers[layer];
    enum mp_status status;

    status =
        want_layer_vector(plan, &w->attn_norm, config->hidden, layer, "input_layernorm.weight");
    if (status == MP_OK)
        status = want_attention(plan, layer);
    if (status == MP_OK)
        status = want_layer_vector(plan, &w->ffn_norm, config->hidden, layer,
                                   "post_attention_layernorm.weight");
    if (status != MP_OK)
        return status;
    return config->is_moe[layer] ? want_moe(plan, layer)
                                 : want_ffn(plan, &w->dense, config->dense_ffn, layer, "mlp");
}

static enum mp_status want_ends(struct mp_weights_plan *plan)
{
    const struct mp_model_config *config = plan->config;
    struct mp_weights *weights = plan->weights;
    const uint32_t hidden = config->hidden;
    const struct mp_tensor *tensor;
    enum mp_status status;

    status = want_matrix(plan, &weights->embed, config->vocab, hidden, "model.embed_tokens.weight");
    if (status == MP_OK)
        status = want_vector(plan, &weights->final_norm, hidden, "model.norm.weight");
    if (status != MP_OK)
        return status;
    if (!config->tied)
        return want_matrix(plan, &weights->head, config->vocab, hidden, "lm_head.weight");
    /* A tied head may have been written all the same; the embedding stands for it. */
    tensor = mp_checkpoint_find(plan->checkpoint, "lm_head.weight");
    if (tensor != NULL)
        mark_used(plan, tensor);
    return MP_OK;
}

static void count_extra(struct mp_weights_plan *plan)
{
    const size_t count = mp_checkpoint_count(plan->checkpoint);

    for (size_t i = 0; i < count; i++) {
        const char *name = mp_checkpoint_tensor(plan->checkpoint, i)->st.name;

        if (plan->used[i] || strncmp(name, MP_PAD_PREFIX, strlen(MP_PAD_PREFIX)) == 0)
            continue;
        if (plan->weights->extra_tensors++ == 0)
            plan->weights->extra_name = name;
    }
}

/* How many slices does the first expert have? The shapes of all are checked later. */
static enum mp_status count_slices(struct mp_weights_plan *plan)
{
    const struct mp_model_config *config = plan->config;
    uint32_t layer = 0, count = 0;
    char suffix[NAME_BYTES];

    while (!config->is_moe[layer])
        layer++;
    do {
        snprintf(suffix, sizeof(suffix), "%s.experts.0." MP_SLICE_NAME, experts_block(config),
                 count, mp_slice_pieces[MP_PIECE_GATE]);
    } while (has_tensor(plan, layer, suffix) && ++count <= MP_SLICES_MAX);
    if (count > MP_SLICES_MAX ||
        !mp_slices_make(config->expert_ffn, count > 1 ? count : 1, &plan->weights->slices))
        return mp_fail(MP_ERR_MODEL, "E_SLICE_COUNT",
                       "experts of %u channels in %u slices, need at most %u that all have some",
                       config->expert_ffn, count, MP_SLICES_MAX);
    return MP_OK;
}

static enum mp_status allocate(struct mp_weights_plan *plan)
{
    const struct mp_model_config *config = plan->config;
    struct mp_weights *weights = plan->weights;
    const uint32_t experts = config->moe_layers * config->experts; /* <= 2^21, see config.h */

    weights->unit_count = experts * weights->slices.count;
    weights->layers = calloc(config->layers, sizeof(*weights->layers));
    weights->units = calloc(weights->unit_count, sizeof(*weights->units));
    weights->unit_types = calloc(experts, sizeof(*weights->unit_types));
    plan->item_capacity = ((size_t)config->layers + 1) * ITEMS_PER_LAYER;
    plan->items = calloc(plan->item_capacity, sizeof(*plan->items));
    plan->used = calloc(mp_checkpoint_count(plan->checkpoint), sizeof(*plan->used));
    if (weights->layers == NULL || weights->units == NULL || weights->unit_types == NULL ||
        plan->items == NULL || plan->used == NULL)
        return mp_fail_no_memory("the tables of weights",
                                 weights->unit_count * sizeof(*weights->units));
    return MP_OK;
}

enum mp_status mp_weights_plan_make(struct mp_weights_plan *plan)
{
    const struct mp_model_config *config = plan->config;
    uint32_t unit = 0;
    enum mp_status status = count_slices(plan);

    if (status == MP_OK)
        status = allocate(plan);
    if (status == MP_OK)
        status = want_ends(plan);
    for (uint32_t i = 0; status == MP_OK && i < config->layers; i++) {
        plan->weights->layers[i].first_unit = unit;
        status = want_layer(plan, i);
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
    free(plan->items);
    free(plan->used);
}
