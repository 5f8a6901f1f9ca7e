/*
 * Which bytes of the model go where: names, order, padding. The division into files is in
 * repack_shards.c. Pure except for allocation and reading the times of the model's files.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/model/arch/arch.h"
#include "engine/model/types.h"
#include "engine/repack/repack_int.h"
#include "vmm/base/arena.h"
#include "vmm/base/checked.h"

/* Part of the fingerprint: raise it when the same model would be laid out differently. */
#define LAYOUT_VERSION 1

#define TENSORS_MAX (1u << 20) /* that mp_checkpoint_open() accepts */

static enum mp_status fail_size(void)
{
    return mp_fail(MP_ERR_OVERFLOW, "E_OVERFLOW", "the new files do not fit in 64 bits");
}

static char *new_name(struct mp_repack_plan *plan)
{
    return plan->names + plan->name_bytes * plan->name_count++;
}

static struct mp_repack_item *new_item(struct mp_repack_plan *plan)
{
    return &plan->items[plan->item_count++];
}

/* The room that a made name takes: the longest of any pattern and any number. */
static size_t name_bytes(const struct mp_arch *arch)
{
    const struct mp_name_numbers most = { UINT32_MAX, UINT32_MAX, UINT32_MAX };
    size_t longest = sizeof(MP_PAD_PREFIX "4294967295") - 1;

    for (uint32_t p = 0; p < MP_EXPERT_PIECES; p++) {
        const size_t expert = mp_arch_format(NULL, 0, arch->expert[p], &most);
        const size_t slice = mp_arch_format(NULL, 0, arch->slice[p], &most);

        longest = expert > longest ? expert : longest;
        longest = slice > longest ? slice : longest;
    }
    for (uint32_t down = 0; arch->fused_mxfp4 && down < 2; down++) {
        const size_t fused =
            mp_arch_format(NULL, 0, down ? arch->fused_down : arch->fused_gate_up, &most) +
            sizeof(MP_APART_SCALES_SUFFIX) - 1;

        longest = fused > longest ? fused : longest;
    }
    for (int role = 0; role < MP_ROLE_COUNT; role++) {
        const char *name = arch->names[role].name;
        const size_t length = name != NULL ? mp_arch_format(NULL, 0, name, &most) : 0;

        longest = length > longest ? length : longest;
    }
    return longest + 1;
}

static void add_pad(struct mp_repack_plan *plan, uint32_t expert, uint64_t bytes)
{
    struct mp_repack_item *item = new_item(plan);
    char *name = new_name(plan);

    snprintf(name, plan->name_bytes, MP_PAD_PREFIX "%" PRIu32, plan->pad_count++);
    *item = (struct mp_repack_item){ .name = name,
                                     .dtype = MP_DTYPE_U8,
                                     .dims = 1,
                                     .shape = { bytes },
                                     .file = UINT32_MAX,
                                     .expert = expert,
                                     .bytes = bytes };
    plan->report.pad_bytes += bytes;
}

/* One slice of an expert, or all of it: three tensors. Returns their bytes. */
static uint64_t add_slice(struct mp_repack_plan *plan, const struct mp_model_config *model,
                          uint32_t layer, uint32_t expert, uint32_t slice)
{
    const struct mp_weights *weights = plan->weights;
    const uint32_t index = weights->layers[layer].first_unit + expert;
    const uint32_t channels = mp_ffn_slices_channels(&plan->slices, slice);
    const uint32_t first = mp_ffn_slices_first(&plan->slices, slice);
    const uint32_t from = first / weights->slices.width; /* the old slice that it begins in */
    const struct mp_unit *unit = &weights->units[index * weights->slices.count + from];
    const struct mp_name_numbers numbers = { layer, expert, slice };
    const enum mp_wtype *types = weights->unit_types[index].piece;
    const char *const *patterns = plan->slices.count > 1 ? model->arch->slice : model->arch->expert;
    uint64_t bytes = 0;

    for (uint32_t p = 0; p < MP_EXPERT_PIECES; p++) {
        const bool down = p == MP_PIECE_DOWN;
        struct mp_repack_item *item = new_item(plan);
        char *name = new_name(plan);

        (void)mp_arch_format(name, plan->name_bytes, patterns[p], &numbers);
        *item = (struct mp_repack_item){
            .name = name,
            .dtype = mp_dtype_of(types[p]),
            .dims = 2,
            .shape = { down ? model->hidden : channels, down ? channels : model->hidden },
            .file = unit->pieces[p].file,
            .source_bytes = unit->pieces[p].offset_bytes,
            .expert = index,
            .piece = p,
            .first = first,
            .channels = channels,
            .bytes = mp_wtype_bytes(types[p], (size_t)channels * model->hidden),
        };
        bytes += item->bytes;
    }
    plan->report.expert_bytes += bytes;
    return bytes;
}

/* Its slices and, if they do not fill their last block or are shorter than the others, zeros. */
static void add_expert(struct mp_repack_plan *plan, const struct mp_model_config *model,
                       uint32_t layer, uint32_t expert)
{
    const uint32_t index = plan->weights->layers[layer].first_unit + expert;
    uint64_t place_bytes = 0; /* of every slice: what the first one takes */

    for (uint32_t s = 0; s < plan->slices.count; s++) {
        const uint64_t bytes = add_slice(plan, model, layer, expert, s);

        if (s == 0)
            place_bytes = (bytes + MP_REPACK_ALIGN - 1) / MP_REPACK_ALIGN * MP_REPACK_ALIGN;
        if (bytes < place_bytes)
            add_pad(plan, index, place_bytes - bytes);
    }
    plan->report.experts++;
}

/* Is this tensor, or a part of it, an expert of the model? */
static bool is_expert_tensor(const struct mp_repack_plan *plan, const bool *in_unit,
                             const struct mp_tensor *tensor)
{
    return in_unit[tensor - mp_checkpoint_tensor(plan->checkpoint, 0)];
}

static int by_place(const void *a, const void *b)
{
    const struct mp_tensor *x = *(const struct mp_tensor *const *)a;
    const struct mp_tensor *y = *(const struct mp_tensor *const *)b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->st.offset_bytes != y->st.offset_bytes)
        return x->st.offset_bytes < y->st.offset_bytes ? -1 : 1;
    return x->st.bytes < y->st.bytes ? -1 : x->st.bytes > y->st.bytes;
}

/* Larger elements first, then as the model's files have them. */
static int by_element(const void *a, const void *b)
{
    const struct mp_dtype_info *s = mp_dtype_info((*(const struct mp_tensor *const *)a)->st.dtype);
    const struct mp_dtype_info *t = mp_dtype_info((*(const struct mp_tensor *const *)b)->st.dtype);
    const uint64_t x = (uint64_t)s->block_bytes * t->block_elements;
    const uint64_t y = (uint64_t)t->block_bytes * s->block_elements;

    return x != y ? (x > y ? -1 : 1) : by_place(a, b);
}

static int by_offset(const void *a, const void *b)
{
    const struct mp_piece *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset_bytes < y->offset_bytes ? -1 : x->offset_bytes > y->offset_bytes;
}

/* Mark tensors that pieces lie in; both lists are sorted by place, so one walk does it. */
static void mark_expert_tensors(const struct mp_repack_plan *plan, struct mp_piece *pieces,
                                size_t piece_count, const struct mp_tensor **tensors, bool *in_unit)
{
    const struct mp_tensor *first = mp_checkpoint_tensor(plan->checkpoint, 0);
    const size_t count = mp_checkpoint_count(plan->checkpoint);
    size_t at = 0;

    qsort(pieces, piece_count, sizeof(*pieces), by_offset);
    for (size_t i = 0; i < piece_count; i++) {
        while (at < count &&
               (tensors[at]->file < pieces[i].file ||
                (tensors[at]->file == pieces[i].file &&
                 tensors[at]->st.offset_bytes + tensors[at]->st.bytes <= pieces[i].offset_bytes)))
            at++;
        if (at < count)
            in_unit[tensors[at] - first] = true;
    }
}

/* Where experts are split, tensors that were renamed together with their fusion get the family's
 * own name back; one for each role and layer of the model, however many tensors have names that
 * look like it. */
static const char *new_name_of(struct mp_repack_plan *plan, const struct mp_model_config *model,
                               const char *name)
{
    struct mp_name_numbers numbers = { .layer = 0 };

    for (int role = MP_ROLE_LAYER; plan->report.fused && role < MP_ROLE_COUNT; role++) {
        const struct mp_arch_name *names = &model->arch->names[role];

        if (names->other == NULL || !mp_arch_match(names->other, name, &numbers.layer) ||
            numbers.layer >= model->layers)
            continue;
        char *made = new_name(plan);
        (void)mp_arch_format(made, plan->name_bytes, names->name, &numbers);
        return made;
    }
    return name;
}

static void add_others(struct mp_repack_plan *plan, const struct mp_model_config *model,
                       const struct mp_tensor **tensors, const bool *in_unit)
{
    const size_t count = mp_checkpoint_count(plan->checkpoint);

    qsort(tensors, count, sizeof(*tensors), by_element);
    for (size_t i = 0; i < count; i++) {
        const struct mp_st_tensor *st = &tensors[i]->st;
        struct mp_repack_item *item;

        if (is_expert_tensor(plan, in_unit, tensors[i]) ||
            strncmp(st->name, MP_PAD_PREFIX, strlen(MP_PAD_PREFIX)) == 0)
            continue;
        item = new_item(plan);
        *item = (struct mp_repack_item){ .name = new_name_of(plan, model, st->name),
                                         .dtype = st->dtype,
                                         .dims = st->dims,
                                         .file = tensors[i]->file,
                                         .source_bytes = st->offset_bytes,
                                         .expert = UINT32_MAX,
                                         .bytes = st->bytes };
        memcpy(item->shape, st->shape, sizeof(item->shape));
        plan->report.other_bytes += st->bytes;
    }
}

/* Aligned reads for one unit, as the space makes them: pieces whose blocks touch come in one. */
static void count_reads(const struct mp_piece *from, uint32_t count, uint64_t *reads_p,
                        uint64_t *bytes_p)
{
    struct mp_piece pieces[MP_APART_PIECES];
    uint64_t end_block = 0; /* behind the last one that is read */

    memcpy(pieces, from, count * sizeof(*pieces));
    qsort(pieces, count, sizeof(*pieces), by_offset);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t last = pieces[i].offset_bytes + pieces[i].bytes - 1;
        uint64_t first_block = pieces[i].offset_bytes / MP_REPACK_ALIGN;

        if (i == 0 || pieces[i].file != pieces[i - 1].file || first_block > end_block)
            ++*reads_p;
        else
            first_block = end_block;
        end_block = last / MP_REPACK_ALIGN + 1;
        *bytes_p += (end_block - first_block) * MP_REPACK_ALIGN;
    }
}

/* Where an expert's part of an item will lie; `file` is the number of the new one. */
static struct mp_piece piece_of(const struct mp_repack_plan *plan, size_t index, uint32_t experts,
                                uint32_t expert)
{
    const struct mp_repack_item *item = &plan->items[index];
    uint32_t s = 0;

    while (index >= plan->shards[s].first + plan->shards[s].count)
        s++;
    return (struct mp_piece){ .file = s,
                              .offset_bytes = plan->shards[s].header_bytes + item->offset_bytes +
                                              item->bytes / experts * expert,
                              .bytes = item->bytes / experts };
}

/* The same of the new files, of experts in tensors of all of a layer: two of nibbles, and as many
 * items later two of scales. */
static void count_apart(struct mp_repack_plan *plan, const struct mp_model_config *model)
{
    for (uint32_t i = 0; i < model->moe_layers * model->experts; i++) {
        struct mp_piece pieces[MP_APART_PIECES];

        for (uint32_t k = 0; k < MP_APART_PIECES; k++)
            pieces[k] =
                piece_of(plan, (size_t)2 * (k / 2 * model->moe_layers + i / model->experts) + k % 2,
                         model->experts, i % model->experts);
        count_reads(pieces, MP_APART_PIECES, &plan->report.reads_after,
                    &plan->report.read_bytes_after);
    }
}

/* Are this layer's experts stored in other tensors than those that are named for each? */
static bool is_fused(const struct mp_repack_plan *plan, const struct mp_model_config *model,
                     uint32_t layer)
{
    char name[MP_ST_NAME_BYTES_MAX + 1];

    (void)mp_arch_format(name, sizeof(name), model->arch->expert[MP_PIECE_GATE],
                         &(struct mp_name_numbers){ .layer = layer });
    return mp_checkpoint_find(plan->checkpoint, name) == NULL;
}

/* The model's tensors by place, the pieces of its experts, and the tensors that those lie in. */
struct order {
    const struct mp_tensor **tensors;
    struct mp_piece *pieces; // (units, MP_EXPERT_PIECES)
    bool *in_unit;           /* per tensor */
};

static void take_lists(struct mp_repack_plan *plan, const struct mp_model_config *model,
                       struct order *order, struct mp_arena *arena)
{
    const size_t count = mp_checkpoint_count(plan->checkpoint), units = plan->weights->unit_count;
    const size_t slices = (size_t)model->moe_layers * model->experts * plan->slices.count;

    plan->item_capacity = count + slices * (MP_EXPERT_PIECES + 1);
    plan->items = mp_arena_take(arena, plan->item_capacity, sizeof(*plan->items));
    plan->name_bytes = name_bytes(model->arch);
    plan->names = mp_arena_take(
        arena, slices * (MP_EXPERT_PIECES + 1) + (size_t)model->layers * MP_ROLE_COUNT,
        plan->name_bytes);
    order->tensors = mp_arena_take(arena, count, sizeof(*order->tensors));
    order->pieces = mp_arena_take(arena, units * MP_EXPERT_PIECES, sizeof(*order->pieces));
    order->in_unit = mp_arena_take(arena, count, sizeof(*order->in_unit));
}

static enum mp_status make_lists(struct mp_repack_plan *plan, const struct mp_model_config *model,
                                 struct order *order)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    take_lists(plan, model, order, &arena);
    status = mp_arena_open(&arena, "the new order of tensors");
    if (status != MP_OK)
        return status;
    take_lists(plan, model, order, &arena);
    plan->block = arena.block;
    return MP_OK;
}

/* All experts, each in a place of its own. */
static void list_experts(struct mp_repack_plan *plan, const struct mp_model_config *model)
{
    for (uint32_t layer = 0; layer < model->layers; layer++) {
        if (!model->is_moe[layer])
            continue;
        plan->report.fused |= plan->weights->slices.count == 1 && is_fused(plan, model, layer);
        for (uint32_t i = 0; i < model->experts; i++)
            add_expert(plan, model, layer, i);
    }
    plan->report.reads_after = (uint64_t)model->moe_layers * model->experts * plan->slices.count;
    plan->report.read_bytes_after = plan->report.expert_bytes + plan->report.pad_bytes;
}

static enum mp_status list_items(struct mp_repack_plan *plan, const struct mp_model_config *model,
                                 bool mxfp4)
{
    const size_t count = mp_checkpoint_count(plan->checkpoint), units = plan->weights->unit_count;
    struct order order;
    enum mp_status status = make_lists(plan, model, &order);

    if (status != MP_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        order.tensors[i] = mp_checkpoint_tensor(plan->checkpoint, i);
    qsort(order.tensors, count, sizeof(*order.tensors), by_place);
    for (size_t u = 0; u < units; u++) {
        memcpy(&order.pieces[u * MP_EXPERT_PIECES], plan->weights->units[u].pieces,
               MP_EXPERT_PIECES * sizeof(*order.pieces));
        count_reads(plan->weights->units[u].pieces, MP_EXPERT_PIECES, &plan->report.reads_before,
                    &plan->report.read_bytes_before);
    }
    mark_expert_tensors(plan, order.pieces, units * MP_EXPERT_PIECES, order.tensors, order.in_unit);
    if (mxfp4)
        mp_repack_mxfp4_list(plan, model);
    else
        list_experts(plan, model);
    plan->expert_items = plan->item_count;
    add_others(plan, model, order.tensors, order.in_unit);
    if (plan->item_count > TENSORS_MAX)
        return mp_fail(MP_ERR_MODEL, "E_CKPT_COUNT", "%zu tensors after splitting, need at most %u",
                       plan->item_count, TENSORS_MAX);
    return MP_OK;
}

static enum mp_status make_fingerprint(struct mp_repack_plan *plan)
{
    const struct mp_files *files = mp_checkpoint_files(plan->checkpoint);
    uint64_t words[4] = { LAYOUT_VERSION, plan->shard_count };
    struct mp_repack_sum sum;

    mp_repack_sum_begin(&sum);
    mp_repack_sum_add(&sum, words, sizeof(words));
    for (uint32_t i = 0; i < mp_files_count(files); i++) {
        struct stat info;

        if (fstat(mp_files_fd(files, i), &info) != 0)
            return mp_fail(MP_ERR_IO, "E_OPEN",
                           "cannot get the size of file %" PRIu32 " of the model: %s", i,
                           strerror(errno));
        words[0] = (uint64_t)info.st_size;
        words[1] = (uint64_t)info.st_mtim.tv_sec;
        words[2] = (uint64_t)info.st_mtim.tv_nsec;
        mp_repack_sum_add(&sum, words, sizeof(words));
    }
    for (size_t i = 0; i < plan->item_count; i++) {
        words[0] = plan->items[i].file | (uint64_t)plan->items[i].first << 32 |
                   (uint64_t)plan->items[i].form << 62;
        words[1] = plan->items[i].source_bytes;
        words[2] = plan->items[i].offset_bytes;
        words[3] = plan->items[i].bytes;
        mp_repack_sum_add(&sum, words, sizeof(words));
    }
    plan->fingerprint = mp_repack_sum_end(&sum);
    return MP_OK;
}

/* A slice takes columns of down: they have to be whole blocks of its type. */
static enum mp_status check_blocks(const struct mp_repack_plan *plan,
                                   const struct mp_model_config *model)
{
    if (plan->slices.count > 1) {
        for (uint32_t e = 0; e < model->moe_layers * model->experts; e++) {
            const struct mp_dtype_info *type =
                mp_dtype_info(mp_dtype_of(plan->weights->unit_types[e].piece[MP_PIECE_DOWN]));

            if (plan->slices.width % type->block_elements != 0)
                return mp_fail(MP_ERR_CONFIG, "E_SLICES",
                               "slices of %" PRIu32 " channels cut blocks of %s, which are %" PRIu32
                               " channels; choose another --slices",
                               plan->slices.width, type->name, type->block_elements);
        }
    }
    return MP_OK;
}

static enum mp_status check_form(const struct mp_repack_plan *plan)
{
    if (plan->weights->transposed)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "experts in transposed matrices, as directories of this family have them, "
                       "are not repacked; --type mxfp4 --to safetensors rounds them, --type bf16 "
                       "writes a GGUF file");
    if (plan->weights->apart)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "experts in MXFP4, as directories of this family have them, are not "
                       "repacked; --type bf16 writes a GGUF file that has the same");
    return MP_OK;
}

enum mp_status mp_repack_plan_make(struct mp_repack_plan *plan, const struct mp_model_config *model,
                                   const struct mp_repack_config *config)
{
    uint64_t total = 0;
    enum mp_status status;

    plan->hidden = model->hidden;
    status = config->mxfp4 ? mp_repack_mxfp4_check(plan, model) : check_form(plan);
    if (status != MP_OK)
        return status;
    if (config->slices > MP_SLICES_MAX ||
        !mp_ffn_slices_make(model->expert_ffn, config->slices > 1 ? config->slices : 1,
                            &plan->slices))
        return mp_fail(MP_ERR_CONFIG, "E_SLICES",
                       "experts of %" PRIu32 " channels cannot have %" PRIu32
                       " slices, at most %u that all have some; choose another --slices",
                       model->expert_ffn, config->slices, MP_SLICES_MAX);
    status = check_blocks(plan, model);
    if (status != MP_OK)
        return status;
    plan->report.slices_before = plan->weights->slices.count;
    plan->report.slices = plan->slices.count;
    plan->report.exact = mp_ffn_slices_exact(&plan->slices);
    status = list_items(plan, model, config->mxfp4);
    if (status != MP_OK)
        return status;
    for (size_t i = 0; i < plan->item_count; i++) {
        if (!mp_add_u64(total, plan->items[i].bytes, &total))
            return fail_size();
    }
    status = mp_repack_cut(plan, config->shard_bytes);
    if (status == MP_OK && config->mxfp4)
        count_apart(plan, model);
    return status == MP_OK ? make_fingerprint(plan) : status;
}

void mp_repack_plan_fini(struct mp_repack_plan *plan)
{
    for (uint32_t i = 0; i < plan->shard_count; i++)
        free(plan->shards[i].header);
    free(plan->shards);
    free(plan->block);
}
