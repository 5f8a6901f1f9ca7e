/* The tensors of the new file: where each comes from, its type, where it goes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/convert/convert_int.h"
#include "engine/model/drafting.h"
#include "engine/model/types.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/log.h"

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
    if (tensor->matrix_rows == 0) {
        tensor->matrix_rows = tensor->rows / (what->dims == 3 ? what->shape[0] : 1);
        tensor->matrix_step = tensor->matrix_rows * tensor->cols;
        tensor->row_step = tensor->cols;
        tensor->col_step = 1;
    }
    tensor->to = tensor->apart ? tensor->from : mp_recipe_type(job->recipe, &job->model, tensor);
    if (tensor->from >= MP_WTYPE_PLAIN_COUNT && !tensor->apart)
        return fail_type(what->name, mp_dtype_name(mp_dtype_of(tensor->from)));
    tensor->offset_bytes =
        (job->data_bytes + MP_CONVERT_ALIGN - 1) / MP_CONVERT_ALIGN * MP_CONVERT_ALIGN;
    tensor->bytes = tensor->rows * mp_wtype_bytes(tensor->to, tensor->cols);
    /* Types are at most twice as large as the source's, which was checked to fit in files. */
    job->data_bytes = tensor->offset_bytes + tensor->bytes;
    job->report.source_bytes += mp_wtype_bytes(tensor->from, elements);
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

/* Which tensor of the directory has the numbers of a role of the file? */
static enum mp_role source_of(const struct mp_convert *job, enum mp_role role)
{
    const struct mp_arch_name *names = job->model.arch->names;

    switch (role) {
    case MP_ROLE_K_UP:
    case MP_ROLE_V_UP: return MP_ROLE_KV_UP;
    case MP_ROLE_DELTA_QKV:
    case MP_ROLE_DELTA_GATE: return names[MP_ROLE_DELTA_IN].name != NULL ? MP_ROLE_DELTA_IN : role;
    case MP_ROLE_EXPERT_UP_BIAS: return names[role].name != NULL ? role : MP_ROLE_EXPERT_GATE_BIAS;
    default: return role;
    }
}

/* Is there another role of the file that takes the tensor of this one? */
static bool is_parted(enum mp_role role)
{
    return role == MP_ROLE_KV_UP || role == MP_ROLE_DELTA_IN;
}

/* A matrix for each head: rows of keys and values alternate by head, and keys are turned. */
static void cut_latent(const struct mp_model_config *model, enum mp_role role,
                       struct mp_convert_tensor *new)
{
    const uint64_t N = model->nope_dim, V = model->value_dim, R = model->kv_rank;

    new->dims = 3;
    new->shape[2] = new->shape[1];
    new->shape[1] = new->shape[0] / model->heads;
    new->shape[0] = model->heads;
    new->matrix_rows = new->shape[1];
    new->matrix_step = (N + V) * R;
    new->row_step = role == MP_ROLE_K_UP ? 1 : R;
    new->col_step = role == MP_ROLE_K_UP ? R : 1;
    if (role == MP_ROLE_V_UP)
        new->source_bytes += mp_wtype_bytes(new->from, N * R);
}

/* Where the source keeps the numbers of the role, if not as they are. */
static void set_order(const struct mp_convert *job, enum mp_role role, enum mp_role source,
                      struct mp_convert_tensor *new)
{
    const struct mp_role_form form = mp_role_form(&job->model, job->model.arch, role);
    const bool up = role == MP_ROLE_EXPERT_UP_BIAS;

    new->form = mp_role_form(&job->as_target, job->target, role);
    new->exponent = form.exponent && !new->form.exponent;
    new->offset = form.offset - new->form.offset;
    if (form.head_rows != 0)
        new->form.head_rows = 0;
    if (new->dims == 1 && new->form.tile_rows != 0) { /* a vector is a row of the file */
        new->form.tile_cols = new->form.tile_rows;
        new->form.tile_rows = 0;
    }
    if (role == MP_ROLE_K_UP || role == MP_ROLE_V_UP)
        cut_latent(&job->model, role, new);
    new->by_keys = source == MP_ROLE_DELTA_IN;
    new->first_row = role == MP_ROLE_DELTA_GATE ? mp_delta_channels(&job->model.delta) : 0;
    if ((up || role == MP_ROLE_EXPERT_GATE_BIAS) && source == MP_ROLE_EXPERT_GATE_BIAS &&
        job->model.arch->names[MP_ROLE_EXPERT_UP_BIAS].name == NULL) { /* in turns */
        new->matrix_rows = new->shape[0];
        new->row_step = 2 * new->shape[1];
        new->col_step = 2;
        new->source_bytes += up ? mp_wtype_bytes(new->from, 1) : 0;
    }
}

static enum mp_status add_role(struct mp_convert *job, enum mp_role role, uint32_t layer)
{
    const struct mp_role_info *info = &mp_roles[role];
    const struct mp_arch_name *names = &job->target->names[role];
    const enum mp_role source = source_of(job, role);
    const struct mp_tensor *tensor = find_role(job, source, layer);
    const bool matrix = info->cols != MP_DIM_NONE && role != MP_ROLE_SHARED_SWITCH;
    const bool second = role == MP_ROLE_Q && job->model.q_rank > 0; /* of two matrices of queries */
    struct mp_convert_tensor new = { .dims = matrix ? 2 : 1 };

    mp_assert(tensor != NULL); /* the weights were described */
    (void)mp_arch_format(new.name, sizeof(new.name), second ? names->other : names->name,
                         &(struct mp_name_numbers){ .layer = layer });
    new.file = tensor->file;
    new.source_bytes = tensor->st.offset_bytes;
    new.shape[0] = mp_dim_size(&job->as_target, info->rows, layer);
    if (matrix)
        new.shape[1] = mp_dim_size(&job->as_target, info->cols, layer);
    else if (role == MP_ROLE_SHARED_SWITCH)
        new.shape[0] = mp_dim_size(&job->as_target, info->cols, layer);
    if (!mp_wtype_of(tensor->st.dtype, &new.from))
        return fail_type(tensor->st.name, mp_dtype_name(tensor->st.dtype));
    set_order(job, role, source, &new);
    return add(job, &new);
}

static enum mp_status add_roles(struct mp_convert *job, int first, int end, uint32_t layer)
{
    enum mp_status status = MP_OK;

    for (int i = first; status == MP_OK && i < end; i++) {
        const enum mp_role role = (enum mp_role)i;

        if (mp_role_needed(&job->as_target, role, layer))
            status = add_role(job, role, layer);
        else if (mp_role_needed(&job->model, role, layer) && !is_parted(role))
            return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                           "tensor '%s' has no place in a GGUF file of '%s'",
                           find_role(job, role, layer)->st.name, job->target->name);
    }
    return status;
}

/* A list of divisors of frequencies, which are job->divisors[list]. */
static enum mp_status add_list(struct mp_convert *job, const char *name, uint32_t count,
                               unsigned list)
{
    struct mp_convert_tensor new = {
        .dims = 1, .shape = { count }, .from = MP_WTYPE_F32, .made = job->divisors[list]
    };

    snprintf(new.name, sizeof(new.name), "%s", name);
    return add(job, &new);
}

/* Of wide heads: those pairs that do not turn have a large one. */
static enum mp_status add_wide_divisors(struct mp_convert *job)
{
    const uint32_t half = job->model.wide_head_dim / 2;

    for (uint32_t i = 0; i < half; i++)
        job->divisors[0][i] = i < job->model.wide_rotary_dim / 2 ? 1 : 1e30f;
    return add_list(job, MP_DIVISORS_NAME, half, 0);
}

/* llama3's scaling is one list, longrope two; llama.cpp takes neither in most families. */
static enum mp_status add_divisors(struct mp_convert *job)
{
    const struct mp_rope *rope = &job->model.rope;
    const bool two = mp_convert_two_lists(job);
    const uint32_t half = job->model.rotary_dim / 2;
    enum mp_status status;

    if (two && !job->target->two_lists)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "a GGUF file of '%s' cannot say what this model has: divisors of "
                       "frequencies%s positions, which llama.cpp does not use there",
                       job->target->name,
                       mp_rope_is_one(rope) ? ", as of llama3"
                                            : " for short and for long contexts, as of longrope");
    if (rope->magnitude != rope->long_magnitude)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "a GGUF file cannot say what this model has: positions with one magnitude "
                       "in short contexts, %g, and another in long ones, %g",
                       rope->magnitude, rope->long_magnitude);
    memcpy(job->divisors, rope->factors, sizeof(job->divisors));
    if (!two)
        return add_list(job, MP_DIVISORS_NAME, half, 0);
    status = add_list(job, MP_DIVISORS_LONG_NAME, half, 1);
    return status == MP_OK ? add_list(job, MP_DIVISORS_SHORT_NAME, half, 0) : status;
}

/* Experts of transposed matrices: gate and up take turns in the columns of one, which two pieces
 * have together; or, of MXFP4, in rows. */
static void set_expert_order(const struct mp_convert *job, uint32_t piece,
                             struct mp_convert_tensor *new)
{
    const uint64_t F = job->model.expert_ffn, H = job->model.hidden;
    const bool down = piece == MP_PIECE_DOWN, up = piece == MP_PIECE_UP;

    if (job->weights->apart) {
        new->apart = true;
        new->matrix_rows = new->shape[1];
        new->row_step = down ? 1 : 2;
        new->apart_row = up;
        new->piece = down ? MP_APART_DOWN : MP_APART_BOTH;
    } else if (job->weights->transposed) {
        new->matrix_rows = new->shape[1];
        new->row_step = down ? 1 : 2;
        new->col_step = down ? H : 2 * F;
        new->piece = down ? MP_PIECE_DOWN : MP_PIECE_GATE;
        new->source_bytes = up ? mp_wtype_bytes(new->from, 1) : 0;
    }
}

/* Gate, up or down of all experts of a layer; or gate and up, as files of some families have them.
 */
static enum mp_status add_pieces(struct mp_convert *job, uint32_t layer, uint32_t piece,
                                 uint32_t pieces)
{
    const struct mp_model_config *model = &job->model;
    const uint64_t F = model->expert_ffn, H = model->hidden;
    const uint32_t first = job->weights->layers[layer].first_unit;
    const bool down = piece == MP_PIECE_DOWN;
    struct mp_convert_tensor new = {
        .dims = 3,
        .shape = { model->experts, down ? H : pieces * F, down ? F : H },
        .experts = model->experts,
        .first_unit = first,
        .piece = piece,
        .pieces = pieces,
        .from = job->weights->unit_types[first].piece[piece],
    };

    (void)mp_arch_format(new.name, sizeof(new.name),
                         pieces > 1 ? job->target->fused_gate_up : job->target->stacked[piece],
                         &(struct mp_name_numbers){ .layer = layer });
    for (uint32_t i = 0; i < model->experts * pieces; i++) {
        if (job->weights->unit_types[first + i / pieces].piece[piece + i % pieces] != new.from)
            return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                           "experts of layer %" PRIu32 " have several types; repack writes "
                           "those of a layer with one type",
                           layer);
    }
    if (pieces > 1) {
        new.matrix_rows = F;
        new.row_step = H;
        new.col_step = 1;
    }
    set_expert_order(job, piece, &new);
    return add(job, &new);
}

static enum mp_status add_experts(struct mp_convert *job, uint32_t layer)
{
    enum mp_status status = MP_OK;

    if (job->target->wide) /* published files of this family are so */
        status = add_pieces(job, layer, MP_PIECE_GATE, 2);
    for (uint32_t p = job->target->wide ? MP_PIECE_DOWN : 0;
         status == MP_OK && p < MP_EXPERT_PIECES; p++)
        status = add_pieces(job, layer, p, 1);
    return status;
}

/* The model with what the target's files have. */
static void set_target(struct mp_convert *job)
{
    job->as_target = job->model;
    job->as_target.arch = job->target;
    mp_arch_parts(job->target, &job->as_target);
    job->as_target.latent_split = job->target->names[MP_ROLE_K_UP].name != NULL;
}

static enum mp_status plan_directory(struct mp_convert *job)
{
    const struct mp_model_config *model = &job->model;
    enum mp_status status = mp_convert_target(model, &job->target);

    if (status == MP_OK)
        status = mp_weights_describe(job->checkpoint, model, &job->weights);
    if (status == MP_OK)
        set_target(job);
    if (status == MP_OK && job->weights->slices.count > 1)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "experts of this model are stored in slices; repack it without --slices "
                       "first");
    if (status == MP_OK)
        status = add_roles(job, 0, MP_ROLE_LAYER, 0);
    if (status == MP_OK && job->target->wide)
        status = add_wide_divisors(job);
    else if (status == MP_OK && model->rope.kind == MP_ROPE_LONG)
        status = add_divisors(job);
    for (uint32_t layer = 0; status == MP_OK && layer < model->layers; layer++) {
        status = add_roles(job, MP_ROLE_LAYER, MP_ROLE_COUNT, layer);
        if (status == MP_OK && model->is_moe[layer])
            status = add_experts(job, layer);
    }
    if (status == MP_OK && mp_drafting_there(job->checkpoint, model))
        mp_log_warn("repack", "the layer that drafts tokens is not written to a GGUF file; "
                              "--draft-model mtp needs the directory, or a copy of it");
    return status;
}

/* ---- from a GGUF file */

/* Lists that the configuration has read do; others are tensors like any. */
static bool list_fits(const struct mp_convert_tensor *tensor)
{
    return tensor->from == MP_WTYPE_F32 && tensor->dims == 1 &&
           tensor->shape[0] <= MP_ROPE_FACTORS_MAX;
}

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
        if (mp_is_divisors(new.name) && list_fits(&new)) {
            float *list = job->divisors[strcmp(new.name, MP_DIVISORS_LONG_NAME) == 0];

            status = mp_files_read(mp_checkpoint_files(job->checkpoint), new.file, new.source_bytes,
                                   new.shape[0] * sizeof(float), list);
            new.made = list;
        }
        if (status == MP_OK)
            status = add(job, &new);
    }
    return status;
}

enum mp_status mp_convert_plan(struct mp_convert *job)
{
    const bool file = mp_checkpoint_gguf(job->checkpoint) != NULL;

    job->capacity =
        file ? mp_checkpoint_count(job->checkpoint)
             : (size_t)job->model.layers * (MP_ROLE_COUNT + MP_EXPERT_PIECES) + MP_ROLE_LAYER + 2;
    job->tensors = calloc(job->capacity, sizeof(*job->tensors));
    if (job->tensors == NULL)
        return mp_fail_no_memory("the list of tensors", job->capacity * sizeof(*job->tensors));
    return file ? plan_file(job) : plan_directory(job);
}
