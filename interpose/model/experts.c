/*
 * Experts by the names that GGUF files give their tensors.
 */
#include "interpose/model/experts_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/format/expert_names.h"

/* Is it all experts of a layer? */
static bool parse_name(const char *name, uint32_t *block_p, enum mp_expert_part *part_p)
{
    struct mp_expert_name parsed;

    if (!mp_expert_name_parse(name, &parsed) || !parsed.all || !parsed.weight ||
        parsed.layer >= MP_BLOCKS_MAX)
        return false;
    *block_p = parsed.layer;
    *part_p = parsed.part;
    return true;
}

/* Is it a tensor of experts that can be paged? Its `layer` is the block's number until all are
 * known. */
static bool take_tensor(const struct mp_gguf_tensor *from, uint32_t experts,
                        struct mp_expert_tensor *tensor)
{
    if (!parse_name(from->name, &tensor->layer, &tensor->part) || from->dims != 3 ||
        from->shape[2] != experts || from->bytes % experts != 0)
        return false;
    tensor->file = from->file;
    tensor->offset_bytes = from->offset_bytes;
    tensor->expert_bytes = from->bytes / experts;
    return tensor->expert_bytes >= MP_EXPERT_BYTES_MIN;
}

/* Experts of a layer: what the first tensor of them has. */
static uint32_t count_experts(const struct mp_gguf *gguf)
{
    enum mp_expert_part part;
    uint32_t block;

    for (size_t i = 0; i < mp_gguf_count(gguf); i++) {
        const struct mp_gguf_tensor *tensor = mp_gguf_tensor(gguf, i);

        if (tensor->dims == 3 && tensor->shape[2] <= 4096 &&
            parse_name(tensor->name, &block, &part))
            return (uint32_t)tensor->shape[2];
    }
    return 0;
}

bool mp_experts_get_u64(const struct mp_gguf *gguf, const char *key, uint64_t *value_p)
{
    const char *architecture;
    uint64_t bytes;
    char name[128];

    if (mp_gguf_get_string(gguf, "general.architecture", &architecture, &bytes) == MP_OK &&
        bytes < 64) {
        snprintf(name, sizeof(name), "%.*s.%s", (int)bytes, architecture, key);
        if (mp_gguf_get_u64(gguf, name, value_p) == MP_OK)
            return true;
    }
    mp_error_clear();
    return false;
}

/* What the model's description says, or what is common where it says nothing. */
static uint32_t find_top_k(const struct mp_gguf *gguf, uint32_t experts)
{
    uint64_t top_k;

    if (mp_experts_get_u64(gguf, "expert_used_count", &top_k) && top_k >= 1 && top_k <= experts)
        return (uint32_t)top_k;
    return experts < 8 ? experts : 8;
}

static enum mp_status find_data(const struct mp_gguf *gguf, struct mp_experts *experts)
{
    const uint32_t files = mp_files_count(experts->files);

    experts->data_begin = malloc(files * sizeof(*experts->data_begin));
    if (experts->data_begin == NULL)
        return mp_fail_no_memory("the list of files", files * sizeof(*experts->data_begin));
    for (uint32_t f = 0; f < files; f++)
        experts->data_begin[f] = mp_files_bytes(experts->files, f);
    for (size_t i = 0; i < mp_gguf_count(gguf); i++) {
        const struct mp_gguf_tensor *tensor = mp_gguf_tensor(gguf, i);

        if (tensor->offset_bytes < experts->data_begin[tensor->file])
            experts->data_begin[tensor->file] = tensor->offset_bytes;
    }
    return MP_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct mp_expert_tensor *left = a, *right = b;

    if (left->file != right->file)
        return left->file < right->file ? -1 : 1;
    return left->offset_bytes < right->offset_bytes ? -1 : left->offset_bytes > right->offset_bytes;
}

/* Layers are numbered without the blocks that have no experts. */
static enum mp_status number_layers(struct mp_experts *experts)
{
    uint32_t *layer_of = malloc(MP_BLOCKS_MAX * sizeof(*layer_of));

    if (layer_of == NULL)
        return mp_fail_no_memory("the list of layers", MP_BLOCKS_MAX * sizeof(*layer_of));
    experts->layer_of = layer_of;
    memset(layer_of, 0xff, MP_BLOCKS_MAX * sizeof(*layer_of));
    for (uint32_t i = 0; i < experts->tensor_count; i++)
        layer_of[experts->tensors[i].layer] = 0;
    experts->layers = 0;
    for (uint32_t b = 0; b < MP_BLOCKS_MAX; b++) {
        if (layer_of[b] == 0)
            layer_of[b] = experts->layers++;
    }
    for (uint32_t i = 0; i < experts->tensor_count; i++)
        experts->tensors[i].layer = layer_of[experts->tensors[i].layer];
    return MP_OK;
}

/* Its part of each of its layer's units. */
static enum mp_status add_pieces(struct mp_experts *experts, struct mp_expert_tensor *tensor)
{
    for (uint32_t e = 0; e < experts->experts; e++) {
        struct mp_unit *unit = &experts->units[tensor->layer * experts->experts + e];

        if (unit->piece_count == MP_UNIT_PIECES_MAX)
            return mp_fail(MP_ERR_MODEL, "E_UNIT_RANGE", "layer %u has too many tensors of experts",
                           tensor->layer);
        tensor->piece = unit->piece_count++;
        unit->pieces[tensor->piece] = (struct mp_piece){
            .file = tensor->file,
            .offset_bytes = tensor->offset_bytes + e * tensor->expert_bytes,
            .bytes = tensor->expert_bytes,
        };
    }
    return MP_OK;
}

/* The pieces of a unit are in the order in which they are used: gate and up, then down. */
static enum mp_status make_units(struct mp_experts *experts)
{
    static const enum mp_expert_part order[] = { MP_EXPERT_GATE, MP_EXPERT_GATE_UP, MP_EXPERT_UP,
                                                 MP_EXPERT_DOWN };
    const size_t count = (size_t)experts->layers * experts->experts;
    enum mp_status status = MP_OK;

    experts->units = calloc(count, sizeof(*experts->units));
    if (experts->units == NULL)
        return mp_fail_no_memory("the list of experts", count * sizeof(*experts->units));
    for (size_t p = 0; p < MP_ARRAY_LEN(order); p++) {
        for (uint32_t i = 0; i < experts->tensor_count && status == MP_OK; i++) {
            if (experts->tensors[i].part == order[p])
                status = add_pieces(experts, &experts->tensors[i]);
        }
    }
    return status;
}

static enum mp_status list_tensors(const struct mp_gguf *gguf, struct mp_experts *experts)
{
    const size_t count = mp_gguf_count(gguf);
    enum mp_status status;

    experts->experts = count_experts(gguf);
    if (experts->experts == 0)
        return MP_ERR_UNSUPPORTED;
    experts->tensors = calloc(count, sizeof(*experts->tensors));
    if (experts->tensors == NULL)
        return mp_fail_no_memory("the list of tensors", count * sizeof(*experts->tensors));
    for (size_t i = 0; i < count; i++)
        experts->tensor_count += take_tensor(mp_gguf_tensor(gguf, i), experts->experts,
                                             &experts->tensors[experts->tensor_count]);
    if (experts->tensor_count == 0)
        return MP_ERR_UNSUPPORTED;
    experts->top_k = find_top_k(gguf, experts->experts);
    status = mp_experts_find_tables(gguf, experts);
    return status == MP_OK ? find_data(gguf, experts) : status;
}

static void close_gguf(void *owner)
{
    mp_gguf_close(owner);
}

static enum mp_status open_gguf(const char *path, struct mp_experts *experts)
{
    struct mp_gguf *gguf = NULL;
    const enum mp_status status = mp_gguf_open(path, &gguf);

    if (status != MP_OK)
        return status;
    experts->owner = gguf;
    experts->close = close_gguf;
    experts->files = mp_gguf_files(gguf);
    return list_tensors(gguf, experts);
}

enum mp_status mp_experts_open(const char *path, bool safetensors, struct mp_experts *experts)
{
    enum mp_status status;

    memset(experts, 0, sizeof(*experts));
    status = safetensors ? mp_experts_open_st(path, experts) : open_gguf(path, experts);
    if (status == MP_OK) {
        qsort(experts->tensors, experts->tensor_count, sizeof(*experts->tensors), by_place);
        status = number_layers(experts);
    }
    if (status == MP_OK)
        status = make_units(experts);
    if (status == MP_OK && !safetensors)
        mp_experts_find_routers(experts->owner, experts);
    if (status != MP_OK)
        mp_experts_close(experts);
    return status;
}

void mp_experts_close(struct mp_experts *experts)
{
    free(experts->units);
    free(experts->tensors);
    free(experts->data_begin);
    free(experts->layer_of);
    free(experts->routers);
    free(experts->tables);
    if (experts->owner != NULL)
        experts->close(experts->owner);
    memset(experts, 0, sizeof(*experts));
}

const struct mp_expert_tensor *mp_experts_find(const struct mp_experts *experts, uint32_t file,
                                               uint64_t offset_bytes)
{
    uint32_t begin = 0, end = experts->tensor_count;

    while (begin < end) {
        const uint32_t middle = begin + (end - begin) / 2;
        const struct mp_expert_tensor *tensor = &experts->tensors[middle];

        if (file < tensor->file || (file == tensor->file && offset_bytes < tensor->offset_bytes))
            end = middle;
        else if (file > tensor->file ||
                 offset_bytes - tensor->offset_bytes >= tensor->expert_bytes * experts->experts)
            begin = middle + 1;
        else
            return tensor;
    }
    return NULL;
}
