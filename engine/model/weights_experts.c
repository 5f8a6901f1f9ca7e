/*
 * Locates the bytes of the routed experts: one unit of the pager for each expert, or slice of one,
 * with its pieces. Files store them in one of these forms: three tensors for each expert, two or
 * three for all experts of a layer, or, repacked, three for each slice.
 */
#include "engine/model/weights_int.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/model/arch/arch.h"
#include "policy/policy.h"

#define BLOCK 32 /* weights that share a scale */
#define PATTERN_BYTES 128

/* A range of rows of a tensor that becomes a piece of a unit. */
struct piece_need {
    const char *pattern; /* of the tensor's name */
    struct mp_name_numbers numbers;
    uint64_t shape[3]; /* of the tensor, ... x rows x cols */
    uint32_t dims;
    uint64_t first_row, rows; /* counted over all that the tensor has */
};

/* The piece's type is the expert's, in all of its slices. */
static enum mp_status want_piece(struct mp_weights_plan *plan, uint32_t unit, uint32_t piece,
                                 const struct piece_need *need)
{
    struct mp_weights *weights = plan->weights;
    enum mp_wtype *expert_type = &weights->unit_types[unit / weights->slices.count].piece[piece];
    const struct mp_tensor *tensor = NULL;
    struct mp_tensor_name name;
    struct mp_tensor_need wanted = { .name = name.text, .dims = need->dims };
    enum mp_wtype type = MP_WTYPE_F32;
    enum mp_status status = mp_weights_name(&name, need->pattern, &need->numbers);

    for (uint32_t i = 0; i < need->dims; i++)
        wanted.shape[i] = need->shape[i];
    if (status == MP_OK)
        status = mp_weights_find(plan, &wanted, &tensor, &type);
    if (status != MP_OK)
        return status;
    if (unit % weights->slices.count == 0)
        *expert_type = type;
    if (type != *expert_type)
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_DTYPE",
                       "tensor '%s': got %s, need %s as in the first slice of the same expert",
                       name.text, mp_wtype_name(type), mp_wtype_name(*expert_type));
    /* Parts of a tensor whose size was checked when its header was read. */
    const uint64_t row_bytes = mp_wtype_bytes(type, need->shape[need->dims - 1]);

    weights->units[unit].pieces[piece] =
        (struct mp_piece){ .file = tensor->file,
                           .offset_bytes = tensor->st.offset_bytes + need->first_row * row_bytes,
                           .bytes = need->rows * row_bytes };
    weights->units[unit].piece_count = MP_EXPERT_PIECES;
    weights->expert_bytes += need->rows * row_bytes;
    return MP_OK;
}

/* Three tensors of their own: those of an expert, or of a slice of it. */
static enum mp_status want_tensors(struct mp_weights_plan *plan, uint32_t unit,
                                   const char *const *patterns,
                                   const struct mp_name_numbers *numbers, uint64_t channels)
{
    const uint64_t hidden = plan->config->hidden;
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; status == MP_OK && i < MP_EXPERT_PIECES; i++) {
        const bool down = i == MP_PIECE_DOWN;
        const struct piece_need need = {
            .pattern = patterns[i],
            .numbers = *numbers,
            .shape = { down ? hidden : channels, down ? channels : hidden },
            .dims = 2,
            .rows = down ? hidden : channels,
        };

        status = want_piece(plan, unit, i, &need);
    }
    return status;
}

/*
 * All experts of a layer in two tensors: gate and up (E, 2F, H), gate rows before up rows, and down
 * (E, H, F).
 */
static enum mp_status want_fused_expert(struct mp_weights_plan *plan, uint32_t unit,
                                        const struct mp_name_numbers *numbers)
{
    const struct mp_model_config *config = plan->config;
    const uint64_t E = config->experts, F = config->expert_ffn, H = config->hidden;
    const uint64_t expert = numbers->expert;
    const char *gate_up = config->arch->fused_gate_up, *down = config->arch->fused_down;
    const struct piece_need pieces[MP_EXPERT_PIECES] = {
        [MP_PIECE_GATE] = { gate_up, *numbers, { E, 2 * F, H }, 3, expert * 2 * F, F },
        [MP_PIECE_UP] = { gate_up, *numbers, { E, 2 * F, H }, 3, expert * 2 * F + F, F },
        [MP_PIECE_DOWN] = { down, *numbers, { E, H, F }, 3, expert * H, H },
    };
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; status == MP_OK && i < MP_EXPERT_PIECES; i++)
        status = want_piece(plan, unit, i, &pieces[i]);
    return status;
}

/*
 * The same two transposed: gate and up (E, H, 2F), channels in turns, and down (E, F, H). The rows
 * of gate and up are cut into halves, which together are what they are elsewhere.
 */
static enum mp_status want_transposed_expert(struct mp_weights_plan *plan, uint32_t unit,
                                             const struct mp_name_numbers *numbers)
{
    const struct mp_model_config *config = plan->config;
    const uint64_t E = config->experts, F = config->expert_ffn, H = config->hidden;
    const uint64_t first = mp_transposed_rows(H), expert = numbers->expert;
    const char *gate_up = config->arch->fused_gate_up, *down = config->arch->fused_down;
    const struct piece_need pieces[MP_EXPERT_PIECES] = {
        [MP_PIECE_GATE] = { gate_up, *numbers, { E, H, 2 * F }, 3, expert * H, first },
        [MP_PIECE_UP] = { gate_up, *numbers, { E, H, 2 * F }, 3, expert * H + first, H - first },
        [MP_PIECE_DOWN] = { down, *numbers, { E, F, H }, 3, expert * F, F },
    };
    enum mp_status status = MP_OK;

    if (H < 2)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "experts of transposed matrices need a hidden_size of at least 2");
    plan->weights->transposed = true;
    for (uint32_t i = 0; status == MP_OK && i < MP_EXPERT_PIECES; i++)
        status = want_piece(plan, unit, i, &pieces[i]);
    return status;
}

/* MXFP4 apart: 16 bytes for 32 weights, and a byte of scale for them. */
static enum mp_status want_apart_pieces(struct mp_weights_plan *plan, uint32_t unit, uint32_t first,
                                        const struct mp_name_numbers *numbers, uint64_t rows,
                                        uint64_t cols)
{
    const struct mp_arch *arch = plan->config->arch;
    const char *pattern = first == MP_APART_BOTH ? arch->fused_gate_up : arch->fused_down;
    const uint64_t shape[4] = { plan->config->experts, rows, cols / BLOCK, BLOCK / 2 };
    enum mp_status status = MP_OK;

    for (uint32_t scales = 0; status == MP_OK && scales < 2; scales++) {
        const uint64_t bytes = rows * shape[2] * (scales ? 1 : shape[3]);
        const struct mp_tensor *tensor = NULL;
        char suffixed[PATTERN_BYTES];
        struct mp_tensor_name name;

        snprintf(suffixed, sizeof(suffixed), "%s%s", pattern,
                 scales ? MP_APART_SCALES_SUFFIX : MP_APART_NIBBLES_SUFFIX);
        status = mp_weights_name(&name, suffixed, numbers);
        if (status == MP_OK)
            status = mp_weights_find_bytes(plan, name.text, shape, scales ? 3 : 4, &tensor);
        if (status != MP_OK)
            return status;
        plan->weights->units[unit].pieces[first + scales] =
            (struct mp_piece){ .file = tensor->file,
                               .offset_bytes = tensor->st.offset_bytes + numbers->expert * bytes,
                               .bytes = bytes };
        plan->weights->expert_bytes += bytes;
    }
    return status;
}

static enum mp_status want_apart_expert(struct mp_weights_plan *plan, uint32_t unit,
                                        const struct mp_name_numbers *numbers)
{
    const uint64_t F = plan->config->expert_ffn, H = plan->config->hidden;
    struct mp_weights *weights = plan->weights;
    enum mp_status status;

    if (H % BLOCK != 0 || F % BLOCK != 0)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "experts in MXFP4 of %" PRIu64 " channels and a hidden_size of %" PRIu64
                       ", need multiples of %d",
                       F, H, BLOCK);
    weights->apart = true;
    for (uint32_t i = 0; i < MP_EXPERT_PIECES; i++)
        weights->unit_types[unit].piece[i] = MP_WTYPE_MXFP4;
    weights->units[unit].piece_count = MP_APART_PIECES;
    status = want_apart_pieces(plan, unit, MP_APART_BOTH, numbers, 2 * F, H);
    return status == MP_OK ? want_apart_pieces(plan, unit, MP_APART_DOWN, numbers, H, F) : status;
}

/* All experts of a layer in three tensors: gate and up (E, F, H), down (E, H, F). */
static enum mp_status want_stacked_expert(struct mp_weights_plan *plan, uint32_t unit,
                                          const struct mp_name_numbers *numbers)
{
    const struct mp_model_config *config = plan->config;
    const uint64_t E = config->experts, F = config->expert_ffn, H = config->hidden;
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; status == MP_OK && i < MP_EXPERT_PIECES; i++) {
        const bool down = i == MP_PIECE_DOWN;
        const uint64_t rows = down ? H : F;
        const struct piece_need need = { .pattern = config->arch->stacked[i],
                                         .numbers = *numbers,
                                         .shape = { E, rows, down ? F : H },
                                         .dims = 3,
                                         .first_row = numbers->expert * rows,
                                         .rows = rows };

        status = want_piece(plan, unit, i, &need);
    }
    return status;
}

/* The zeros behind a short slice, up to the size of the others. */
static void add_zeros(struct mp_weights_plan *plan, uint32_t unit, uint32_t missing)
{
    struct mp_weights *weights = plan->weights;
    const struct mp_expert_types *types = &weights->unit_types[unit / weights->slices.count];
    const size_t elements = (size_t)missing * plan->config->hidden; /* of each matrix */
    uint64_t bytes = 0;
    struct mp_unit *u = &weights->units[unit];
    const struct mp_piece *last = &u->pieces[MP_PIECE_DOWN];

    for (unsigned i = 0; i < MP_EXPERT_PIECES; i++)
        bytes += mp_wtype_bytes(types->piece[i], elements);
    if (missing > 0)
        u->pieces[u->piece_count++] = (struct mp_piece){
            .file = last->file, .offset_bytes = last->offset_bytes + last->bytes, .bytes = bytes
        };
}

static enum mp_status want_sliced_expert(struct mp_weights_plan *plan, uint32_t expert_index,
                                         const struct mp_name_numbers *expert)
{
    const struct mp_ffn_slices *slices = &plan->weights->slices;
    struct mp_name_numbers numbers = *expert;
    enum mp_status status = MP_OK;

    for (uint32_t s = 0; status == MP_OK && s < slices->count; s++) {
        const uint32_t channels = mp_ffn_slices_channels(slices, s);
        const uint32_t unit = expert_index * slices->count + s;

        numbers.slice = s;
        status = want_tensors(plan, unit, plan->config->arch->slice, &numbers, channels);
        if (status == MP_OK)
            add_zeros(plan, unit, slices->width - channels);
    }
    return status;
}

/* Does the model have the tensor of this name? */
static enum mp_status has_tensor(const struct mp_weights_plan *plan, const char *pattern,
                                 const struct mp_name_numbers *numbers, bool *has_p)
{
    struct mp_tensor_name name;
    enum mp_status status;

    *has_p = false;
    if (pattern == NULL)
        return MP_OK;
    status = mp_weights_name(&name, pattern, numbers);
    if (status == MP_OK)
        *has_p = mp_checkpoint_find(plan->checkpoint, name.text) != NULL;
    return status;
}

enum mp_status mp_weights_want_experts(struct mp_weights_plan *plan, uint32_t layer)
{
    const struct mp_model_config *config = plan->config;
    const uint32_t first = plan->weights->layers[layer].first_unit;
    struct mp_name_numbers numbers = { .layer = config->first_layer + layer };
    bool fused = false;
    enum mp_status status = has_tensor(plan, config->arch->fused_gate_up, &numbers, &fused);

    for (uint32_t i = 0; status == MP_OK && i < config->experts; i++) {
        numbers.expert = i;
        if (plan->weights->slices.count > 1)
            status = want_sliced_expert(plan, first + i, &numbers);
        else if (config->arch->stacked[MP_PIECE_GATE] != NULL && !fused)
            status = want_stacked_expert(plan, first + i, &numbers);
        else if (config->mxfp4)
            status = want_apart_expert(plan, first + i, &numbers);
        else if (fused && config->arch->fused_transposed)
            status = want_transposed_expert(plan, first + i, &numbers);
        else if (fused)
            status = want_fused_expert(plan, first + i, &numbers);
        else
            status =
                want_tensors(plan, first + i, config->arch->expert, &numbers, config->expert_ffn);
    }
    return status;
}

/* How many slices does the first expert have? The shapes of all are checked later. */
enum mp_status mp_weights_count_slices(struct mp_weights_plan *plan)
{
    const struct mp_model_config *config = plan->config;
    struct mp_name_numbers numbers = { .layer = 0 };
    bool has = true;
    enum mp_status status = MP_OK;

    while (!config->is_moe[numbers.layer])
        numbers.layer++;
    numbers.layer += config->first_layer;
    while (status == MP_OK && has && numbers.slice <= MP_SLICES_MAX) {
        status = has_tensor(plan, config->arch->slice[MP_PIECE_GATE], &numbers, &has);
        numbers.slice += has;
    }
    if (status != MP_OK)
        return status;
    if (numbers.slice > MP_SLICES_MAX ||
        !mp_ffn_slices_make(config->expert_ffn, numbers.slice > 1 ? numbers.slice : 1,
                            &plan->weights->slices))
        return mp_fail(MP_ERR_MODEL, "E_SLICE_COUNT",
                       "experts of %u channels in %u slices, need at most %u that all have some",
                       config->expert_ffn, numbers.slice, MP_SLICES_MAX);
    return MP_OK;
}
