/* A model directory as a GGUF file: its tensors; see to_gguf.h. */
#include "engine/model/drafting.h"
#include "kernels/cpu/quant/encode.h"
#include "tests/model/gguf/to_gguf_int.h"
#include "vmm/format/gguf_types.h"

static uint32_t type_number(enum mp_wtype type)
{
    for (uint32_t number = 0; number < 64; number++) {
        const struct mp_gguf_type *known = mp_gguf_type_find(number);

        if (known != NULL && strcmp(known->name, mp_dtype_name(mp_dtype_of(type))) == 0)
            return number;
    }
    CHECK(!"the type has no number");
    return 0;
}

/* The last matrix that was begun, if it is to be rounded: row by row. */
static void end_rounded(struct writer *w)
{
    struct rounded *r = &w->rounded;
    char *blocks;
    float *row;

    if (r->part == NULL)
        return;
    CHECK_EQ(fclose(r->floats), 0);
    CHECK(r->bytes > 0 && r->bytes % (r->cols * sizeof(*row)) == 0);
    blocks = malloc(mp_wtype_bytes(r->type, r->cols));
    row = malloc(r->cols * sizeof(*row));
    CHECK(blocks != NULL && row != NULL);
    for (size_t at = 0; at < r->bytes; at += r->cols * sizeof(*row)) {
        memcpy(row, r->text + at, r->cols * sizeof(*row));
        mp_quant_encode(r->type, blocks, row, NULL, r->cols);
        mp_wtype_info(r->type)->convert(row, blocks, r->cols);
        if (w->job->as_floats)
            fwrite(row, sizeof(*row), r->cols, r->part->data);
        else
            fwrite(blocks, 1, mp_wtype_bytes(r->type, r->cols), r->part->data);
    }
    free(blocks);
    free(row);
    free(r->text);
    *r = (struct rounded){ 0 };
}

/* The type that the file has; one that is to be rounded is begun. */
static enum mp_wtype begin_rounded(struct writer *w, struct part *part, const char *name,
                                   enum mp_wtype type, const uint64_t *shape, uint32_t dims)
{
    struct rounded *r = &w->rounded;

    if (w->job->type_of == NULL || type != MP_WTYPE_F32 || dims < 2 ||
        strstr(name, ".bias") != NULL || strstr(name, "ffn_gate_inp") != NULL)
        return type;
    r->type = w->job->type_of(name, shape[dims - 1]);
    if (r->type < MP_WTYPE_PLAIN_COUNT)
        return type;
    r->part = part;
    r->cols = shape[dims - 1];
    r->floats = open_memstream(&r->text, &r->bytes);
    CHECK(r->floats != NULL);
    return w->job->as_floats ? type : r->type;
}

FILE *to_gguf_begin(struct writer *w, const char *name, enum mp_wtype type, const uint64_t *shape,
                    uint32_t dims)
{
    struct part *part = &w->parts[w->tensors++ % w->job->parts];
    const bool retype = w->job->retype != NULL && strcmp(w->job->retype, name) == 0;

    end_rounded(w);
    while (ftell(part->data) % w->job->align_bytes != 0)
        fputc(0, part->data);
    put_text(part->tensors, name, strlen(name));
    put(part->tensors, dims, 4);
    for (uint32_t d = 0; d < dims; d++)
        put(part->tensors, shape[dims - 1 - d], 8);
    type = begin_rounded(w, part, name, type, shape, dims);
    put(part->tensors, retype ? w->job->type : type_number(type), 4);
    put(part->tensors, (uint64_t)ftell(part->data), 8);
    part->tensor_count++;
    return w->rounded.part != NULL ? w->rounded.floats : part->data;
}

/* The same of latent attention, whose heads rotate in their last elements. */
static size_t latent_row(const struct mp_model_config *config, enum mp_role role, size_t row)
{
    const size_t first = role == MP_ROLE_Q ? config->nope_dim : config->kv_rank;
    const size_t head = first + config->rotary_dim, in = row % head;

    return in < first ? row
                      : row - (in - first) + (in - first) / 2 +
                            (in - first) % 2 * (config->rotary_dim / 2);
}

/* Row `row` of the file is which one of the model? */
static size_t source_row(const struct writer *w, enum mp_role role, size_t row)
{
    const size_t head = w->config.head_dim, in = row % head;

    if (!w->arch->rotary_neighbours || (role != MP_ROLE_Q && role != MP_ROLE_K))
        return row;
    if (w->config.kv_rank > 0)
        return latent_row(&w->config, role, row);
    return row - in + in / 2 + in % 2 * (head / 2);
}

static void put_matrix(struct writer *w, enum mp_role role, const char *name,
                       const struct mp_view *view)
{
    const bool wide = role == MP_ROLE_ROUTER || role == MP_ROLE_SHARED_SWITCH;
    const uint64_t shape[2] = { view->rows, view->cols };
    const size_t row_bytes = mp_wtype_bytes(view->type, view->cols);
    const uint32_t skip = role == MP_ROLE_SHARED_SWITCH; /* a row, written as a vector */
    FILE *data = to_gguf_begin(w, name, wide ? MP_WTYPE_F32 : view->type, shape + skip, 2 - skip);
    float *floats = malloc(view->cols * sizeof(*floats));

    CHECK(floats != NULL);
    for (size_t row = 0; row < view->rows; row++) {
        const char *from = (const char *)view->data + source_row(w, role, row) * row_bytes;

        mp_kernels_ref.convert(floats, from, view->type, view->cols);
        fwrite(wide ? (const char *)floats : from, 1, wide ? 4 * view->cols : row_bytes, data);
    }
    free(floats);
}

static FILE *begin_role(struct writer *w, enum mp_role role, uint32_t layer, uint64_t rows,
                        uint64_t cols)
{
    const uint64_t shape[2] = { rows, cols };
    char name[128];

    mp_arch_format(name, sizeof(name), w->arch->names[role].name,
                   &(struct mp_name_numbers){ .layer = w->config.first_layer + layer });
    return to_gguf_begin(w, name, MP_WTYPE_F32, shape, 2);
}

/* One tensor for gate and up in turns becomes two. */
static void put_expert_biases(struct writer *w, uint32_t layer)
{
    const struct mp_expert_bias *bias = &w->weights->layers[layer].expert_bias;
    const uint64_t E = w->config.experts, F = w->config.expert_ffn, H = w->config.hidden;

    CHECK(bias->gate != NULL && bias->up == NULL);
    for (unsigned up = 0; up < 2; up++) {
        FILE *data =
            begin_role(w, up ? MP_ROLE_EXPERT_UP_BIAS : MP_ROLE_EXPERT_GATE_BIAS, layer, E, F);

        for (size_t i = 0; i < E * F; i++)
            fwrite(bias->gate + 2 * i + up, 4, 1, data);
    }
    fwrite(bias->down, 4, E * H, begin_role(w, MP_ROLE_EXPERT_DOWN_BIAS, layer, E, H));
}

static void put_role(struct writer *w, enum mp_role role, uint32_t layer)
{
    const struct mp_role_info *info = &mp_roles[role];
    const char *owner =
        role < MP_ROLE_LAYER ? (const char *)w->weights : (const char *)&w->weights->layers[layer];
    const void *member = owner + info->offset;
    const uint64_t rows = mp_dim_size(&w->config, info->rows, layer);
    const bool second = role == MP_ROLE_Q && w->config.q_rank > 0; /* of two matrices of queries */
    char name[128];

    if ((role == MP_ROLE_KV_UP && !w->job->whole_latent) ||
        (role >= MP_ROLE_DELTA_IN && role <= MP_ROLE_DELTA_OUT))
        return;
    if (role == MP_ROLE_CONV && mp_role_needed(&w->config, role, layer))
        fwrite(*(const float *const *)member, 4, rows * w->config.short_conv,
               begin_role(w, role, layer, rows, w->config.short_conv));
    if (mp_role_floats(role) || w->arch->names[role].name == NULL ||
        !mp_role_needed(&w->config, role, layer))
        return;
    mp_arch_format(name, sizeof(name),
                   second ? w->arch->names[role].other : w->arch->names[role].name,
                   &(struct mp_name_numbers){ .layer = w->config.first_layer + layer });
    if (w->job->leave != NULL && strcmp(w->job->leave, name) == 0)
        return;
    if (info->cols != MP_DIM_NONE)
        put_matrix(w, role, name, member);
    else
        fwrite(*(const float *const *)member, 4, rows,
               to_gguf_begin(w, name, MP_WTYPE_F32, &rows, 1));
}

/* What makes keys and values of a latent, in two parts with a matrix for each head; those of keys
 * are transposed. Older files have it as it is, which put_role() has written then. */
static void put_latent_part(struct writer *w, uint32_t layer, enum mp_role role)
{
    const struct mp_view *all = &w->weights->layers[layer].kv_up;
    const uint64_t R = w->config.kv_rank, N = w->config.nope_dim, V = w->config.value_dim;
    const bool keys = role == MP_ROLE_K_UP, blocks = w->job->latent_blocks;
    const uint64_t shape[3] = { w->config.heads, keys ? R : V, keys ? N : R };
    const size_t size = mp_wtype_bytes(all->type, 1);
    char name[128], *row = malloc(shape[2] * size), *block = malloc(shape[2] * 2);
    FILE *data;

    CHECK(row != NULL && block != NULL);
    mp_arch_format(name, sizeof(name), w->arch->names[role].name,
                   &(struct mp_name_numbers){ .layer = w->config.first_layer + layer });
    data = to_gguf_begin(w, name, blocks ? MP_WTYPE_Q8_0 : all->type, shape, 3);
    for (uint64_t i = 0; i < shape[0] * shape[1]; i++) {
        const uint64_t head = i / shape[1], at = i % shape[1];

        for (uint64_t c = 0; c < shape[2]; c++) {
            const uint64_t from =
                keys ? (head * (N + V) + c) * R + at : (head * (N + V) + N + at) * R + c;

            memcpy(row + c * size, (const char *)all->data + from * size, size);
        }
        if (blocks)
            mp_kernels_store(MP_WTYPE_Q8_0, block, (const float *)(const void *)row, shape[2]);
        fwrite(blocks ? block : row, 1,
               blocks ? mp_wtype_bytes(MP_WTYPE_Q8_0, shape[2]) : shape[2] * size, data);
    }
    free(block);
    free(row);
}

static void put_latent(struct writer *w, uint32_t layer)
{
    if (w->job->whole_latent)
        return;
    put_latent_part(w, layer, MP_ROLE_K_UP);
    put_latent_part(w, layer, MP_ROLE_V_UP);
}

/* A piece of an expert; of a transposed one, in order. The caller frees it. */
static char *read_expert(const struct writer *w, const struct mp_unit *unit, unsigned p,
                         size_t element_bytes)
{
    const struct mp_files *files = mp_checkpoint_files(w->checkpoint);
    const bool down = p == MP_PIECE_DOWN, part = w->weights->transposed && !down;
    const size_t F = w->config.expert_ffn, H = w->config.hidden, bytes = unit->pieces[p].bytes;
    const size_t rows = down ? H : F, cols = down ? F : H, step = down ? 1 : 2;
    const struct mp_piece *piece = &unit->pieces[part ? MP_PIECE_GATE : p];
    const size_t raw_bytes = bytes + (part ? unit->pieces[MP_PIECE_UP - p].bytes : 0);
    char *raw = malloc(raw_bytes), *out;

    CHECK(raw != NULL); /* the halves of gate and up stand together */
    CHECK_EQ(mp_files_read(files, piece->file, piece->offset_bytes, raw_bytes, raw), MP_OK);
    if (!w->weights->transposed)
        return raw;
    out = malloc(rows * cols * element_bytes);
    CHECK(out != NULL);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++)
            memcpy(out + (r * cols + c) * element_bytes,
                   raw + (c * rows * step + r * step + (p == MP_PIECE_UP)) * element_bytes,
                   element_bytes);
    }
    free(raw);
    return out;
}

/* One of MXFP4 whose nibbles and scales are apart, as blocks: of 32 weights, two neighbours share a
 * byte there, and one of each half does in a block. */
static char *read_apart(const struct writer *w, const struct mp_unit *unit, unsigned p)
{
    const struct mp_files *files = mp_checkpoint_files(w->checkpoint);
    const bool down = p == MP_PIECE_DOWN;
    const struct mp_piece *nibbles = &unit->pieces[down ? MP_APART_DOWN : MP_APART_BOTH];
    const struct mp_piece *scales =
        &unit->pieces[down ? MP_APART_DOWN_SCALES : MP_APART_BOTH_SCALES];
    const size_t F = w->config.expert_ffn, H = w->config.hidden;
    const size_t rows = down ? H : F, blocks = (down ? F : H) / 32;
    unsigned char *from = malloc(nibbles->bytes), *scale = malloc(scales->bytes);
    unsigned char *out = calloc(rows * blocks, 17);

    CHECK(from != NULL && scale != NULL && out != NULL);
    CHECK_EQ(mp_files_read(files, nibbles->file, nibbles->offset_bytes, nibbles->bytes, from),
             MP_OK);
    CHECK_EQ(mp_files_read(files, scales->file, scales->offset_bytes, scales->bytes, scale), MP_OK);
    for (size_t i = 0; i < rows * blocks * 32; i++) {
        const size_t row = i / 32 / blocks, there = down ? row : 2 * row + (p == MP_PIECE_UP);
        const size_t block = there * blocks + i / 32 % blocks, at = i % 32;
        const unsigned nibble = from[block * 16 + at / 2] >> at % 2 * 4 & 15;

        out[i / 32 * 17] = scale[block];
        out[i / 32 * 17 + 1 + at % 16] |= (unsigned char)(nibble << at / 16 * 4);
    }
    free(from);
    free(scale);
    return (char *)out;
}

static void put_piece(struct writer *w, const struct mp_unit *unit, unsigned p, enum mp_wtype type,
                      FILE *data)
{
    const size_t count = (size_t)w->config.expert_ffn * w->config.hidden;
    char *bytes = w->weights->apart ? read_apart(w, unit, p)
                                    : read_expert(w, unit, p, mp_wtype_bytes(type, 1));

    CHECK_EQ(fwrite(bytes, 1, mp_wtype_bytes(type, count), data), mp_wtype_bytes(type, count));
    free(bytes);
}

static void put_experts(struct writer *w, uint32_t layer)
{
    const uint64_t E = w->config.experts, F = w->config.expert_ffn, H = w->config.hidden;
    const uint32_t first = w->weights->layers[layer].first_unit;
    const bool fused = w->arch->wide || w->job->fused;

    for (unsigned p = fused ? MP_PIECE_UP : 0; p < MP_EXPERT_PIECES; p++) {
        const bool down = p == MP_PIECE_DOWN, both = fused && !down;
        const enum mp_wtype type = w->weights->unit_types[first].piece[p];
        const uint64_t shape[3] = { E, down ? H : both ? 2 * F : F, down ? F : H };
        char name[128];
        FILE *data;

        mp_arch_format(name, sizeof(name), both ? w->arch->fused_gate_up : w->arch->stacked[p],
                       &(struct mp_name_numbers){ .layer = w->config.first_layer + layer });
        data = to_gguf_begin(w, name, type, shape, 3);
        for (uint32_t e = 0; e < E; e++) {
            if (both)
                put_piece(w, &w->weights->units[first + e], MP_PIECE_GATE, type, data);
            put_piece(w, &w->weights->units[first + e], p, type, data);
        }
    }
}

/* Divisors of frequencies: of heads that turn in part. */
static void put_divisors(struct writer *w)
{
    const uint64_t half = w->config.wide_head_dim / 2;
    FILE *data = to_gguf_begin(w, "rope_freqs.weight", MP_WTYPE_F32, &half, 1);

    for (uint64_t i = 0; i < half; i++)
        fwrite(&(float){ i < w->config.wide_rotary_dim / 2 ? 1 : 1e30f }, sizeof(float), 1, data);
}

static void put_lists(struct writer *w)
{
    const uint64_t half = w->config.rotary_dim / 2;

    for (size_t i = 0; i == 0 || (i < 3 && w->job->lists[i] != NULL); i++) {
        const char *name = w->job->lists[i] != NULL ? w->job->lists[i] : "rope_freqs.weight";

        fwrite(w->job->divisors, sizeof(float), half,
               to_gguf_begin(w, name, MP_WTYPE_F32, &half, 1));
    }
}

static void put_layers(struct writer *w)
{
    for (uint32_t layer = 0; layer < w->config.layers; layer++) {
        for (int role = MP_ROLE_LAYER; role < MP_ROLE_COUNT; role++)
            put_role(w, (enum mp_role)role, layer);
        if (w->config.is_moe[layer])
            put_experts(w, layer);
        if (w->config.is_moe[layer] && w->config.expert_bias)
            put_expert_biases(w, layer);
        if (w->config.kv_rank > 0)
            put_latent(w, layer);
        if (w->config.linear[layer] && w->config.delta.key_heads > 0)
            to_gguf_delta(w, layer);
    }
}

/* The layer behind the others, which drafts tokens, is a model of its own. */
static void put_drafting(struct writer *w)
{
    const struct mp_model_config config = w->config;
    struct mp_weights *weights = w->weights;

    mp_drafting_config(&w->config);
    CHECK_EQ(mp_weights_load(w->checkpoint, &w->config, NULL, NULL, &w->weights), MP_OK);
    for (int role = 0; role < MP_ROLE_LAYER; role++)
        put_role(w, (enum mp_role)role, 0);
    put_layers(w);
    end_rounded(w);
    mp_weights_destroy(w->weights);
    w->weights = weights;
    w->config = config;
}

void to_gguf_tensors(struct writer *w)
{
    for (int role = 0; role < MP_ROLE_LAYER; role++)
        put_role(w, (enum mp_role)role, 0);
    if (w->arch->wide)
        put_divisors(w);
    else if (w->job->divisors != NULL)
        put_lists(w);
    put_layers(w);
    if (mp_drafting_there(w->checkpoint, &w->config))
        put_drafting(w);
    end_rounded(w);
}
