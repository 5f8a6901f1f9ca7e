/* A model directory as a GGUF file; see to_gguf.h. */
#include "tests/model/gguf/to_gguf.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>

#include "engine/model/arch/arch.h"
#include "engine/model/types.h"
#include "engine/model/weights.h"
#include "engine/text/tokenizer.h"
#include "tests/support/test.h"
#include "vmm/format/gguf.h"
#include "vmm/format/gguf_types.h"

#define PARTS_MAX 4

struct part {
    FILE *entries, *tensors, *data;
    char *texts[3];
    size_t bytes[3];
    uint64_t entry_count, tensor_count;
};

struct writer {
    const struct to_gguf *job;
    struct part parts[PARTS_MAX];
    uint32_t tensors; /* so far */
    bool changed;
    const struct mp_arch *arch; /* of the file */
    struct mp_checkpoint *checkpoint;
    struct mp_model_config config;
    struct mp_weights *weights;
};

static void put(FILE *file, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        fputc((int)(value >> 8 * i & 0xff), file);
}

static void put_text(FILE *file, const char *text, size_t bytes)
{
    put(file, bytes, 8);
    CHECK_EQ(fwrite(text, 1, bytes, file), bytes);
}

/* ---- metadata */

static void put_value(FILE *file, int kind, double number, const char *text)
{
    const float real = (float)number;
    uint32_t bits;

    memcpy(&bits, &real, sizeof(bits));
    put(file, (uint64_t)kind, 4);
    if (kind == MP_GGUF_STRING)
        put_text(file, text, strlen(text));
    else if (kind == MP_GGUF_BOOL)
        put(file, number != 0, 1);
    else
        put(file, kind == MP_GGUF_F32 ? bits : (uint64_t)number, 4);
}

/* True: the key is written as the caller says; false: as the change does, or not at all. */
static bool begin_entry(struct writer *w, const char *key)
{
    const struct gguf_change *change = &w->job->change;
    const bool own = change->key == NULL || strcmp(change->key, key) != 0;
    struct part *part = &w->parts[0];

    w->changed |= !own;
    if (!own && change->kind < 0)
        return false;
    put_text(part->entries, key, strlen(key));
    part->entry_count++;
    if (!own)
        put_value(part->entries, change->kind, change->number, change->text);
    return own;
}

static void entry(struct writer *w, const char *name, int kind, double number, const char *text)
{
    char key[96];

    if (strchr(name, ':') != NULL) /* "general:alignment" */
        snprintf(key, sizeof(key), "%.*s.%s", (int)(strchr(name, ':') - name), name,
                 strchr(name, ':') + 1);
    else
        snprintf(key, sizeof(key), "%s.%s", w->job->arch, name);
    if (begin_entry(w, key))
        put_value(w->parts[0].entries, kind, number, text);
}

/* Layers with experts are those behind the first ones, or every so many-th. */
static void put_moe_layers(struct writer *w)
{
    const struct mp_arch_keys *keys = &w->arch->keys;
    uint32_t first = 0, second, step = 1;

    while (!w->config.is_moe[first])
        first++;
    for (second = first + 1; second < w->config.layers && !w->config.is_moe[second]; second++)
        step++;
    if (keys->moe_step != NULL)
        entry(w, keys->moe_step, MP_GGUF_U32, step, NULL);
    if (keys->dense_first.key != NULL)
        entry(w, keys->dense_first.key, MP_GGUF_U32, step > 1 ? 0 : first, NULL);
}

/* What the family has a key for. */
static void put_more_numbers(struct writer *w)
{
    const struct mp_model_config *c = &w->config;
    const struct mp_arch_keys *keys = &w->arch->keys;
    const bool scaled = c->rope.kind != MP_ROPE_PLAIN, yarn = c->rope.kind == MP_ROPE_YARN;
    const struct {
        const char *key;
        int kind;
        double value;
    } numbers[] = {
        { c->window != 0 ? "attention.sliding_window" : NULL, MP_GGUF_U32, c->window },
        { scaled ? "rope.scaling.factor" : NULL, MP_GGUF_F32, c->rope.factor },
        { yarn ? "rope.scaling.original_context_length" : NULL, MP_GGUF_U32, c->rope.original },
        { keys->shared_count.key, MP_GGUF_U32, c->shared_ffn / c->expert_ffn },
        { keys->groups.key, MP_GGUF_U32, c->groups },
        { keys->groups_used.key, MP_GGUF_U32, c->groups_used },
        { keys->routed_scale.key, MP_GGUF_F32, c->routed_scale },
        { keys->rotary_dim, MP_GGUF_U32, c->rotary_dim },
        { keys->embed_scale.key, MP_GGUF_F32, c->embed_scale },
        { keys->residual_scale.key, MP_GGUF_F32, c->residual_scale },
        { keys->attention_scale.key, MP_GGUF_F32, c->attention_scale },
        { keys->logit_divisor.key, MP_GGUF_F32, 1 / c->logit_scale },
        { w->arch->switches.norm_topk.key, MP_GGUF_BOOL, c->norm_topk },
        { c->router == MP_ROUTER_SIGMOID ? "expert_gating_func" : NULL, MP_GGUF_U32, 2 },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(numbers); i++) {
        if (numbers[i].key != NULL)
            entry(w, numbers[i].key, numbers[i].kind, numbers[i].value, NULL);
    }
    if (scaled)
        entry(w, "rope.scaling.type", MP_GGUF_STRING, 0, yarn ? "yarn" : "linear");
    put_moe_layers(w);
}

static void put_numbers(struct writer *w)
{
    const struct mp_model_config *c = &w->config;
    const bool llama = strcmp(w->arch->keys.expert_ffn, "feed_forward_length") == 0;
    const uint32_t dense = c->dense_ffn != 0 ? c->dense_ffn : 4 * c->hidden;

    entry(w, "general:architecture", MP_GGUF_STRING, 0, w->job->arch);
    entry(w, "general:alignment", MP_GGUF_U32, w->job->align_bytes, NULL);
    entry(w, "context_length", MP_GGUF_U32, c->positions_max, NULL);
    entry(w, "embedding_length", MP_GGUF_U32, c->hidden, NULL);
    entry(w, "block_count", MP_GGUF_U32, c->layers, NULL);
    entry(w, "feed_forward_length", MP_GGUF_U32, llama ? c->expert_ffn : dense, NULL);
    if (!llama)
        entry(w, "expert_feed_forward_length", MP_GGUF_U32, c->expert_ffn, NULL);
    if (c->shared_ffn != 0 && w->arch->keys.shared_ffn != NULL)
        entry(w, "expert_shared_feed_forward_length", MP_GGUF_U32, c->shared_ffn, NULL);
    entry(w, "expert_count", MP_GGUF_U32, c->experts, NULL);
    entry(w, "expert_used_count", MP_GGUF_U32, c->experts_per_token, NULL);
    entry(w, "attention.head_count", MP_GGUF_U32, c->heads, NULL);
    entry(w, "attention.head_count_kv", MP_GGUF_U32, c->kv_heads, NULL);
    entry(w, "attention.key_length", MP_GGUF_U32, c->head_dim, NULL);
    entry(w, "attention.value_length", MP_GGUF_U32, c->head_dim, NULL);
    entry(w, "attention.layer_norm_rms_epsilon", MP_GGUF_F32, c->norm_eps, NULL);
    entry(w, "rope.freq_base", MP_GGUF_F32, c->rope_theta, NULL);
    put_more_numbers(w);
}

static void begin_array(struct writer *w, const char *key, int element, uint64_t count)
{
    CHECK(begin_entry(w, key));
    put(w->parts[0].entries, MP_GGUF_ARRAY, 4);
    put(w->parts[0].entries, (uint64_t)element, 4);
    put(w->parts[0].entries, count, 8);
}

static void put_merges(struct writer *w)
{
    char path[4096];
    json_t *root, *merges;

    snprintf(path, sizeof(path), "%s/tokenizer.json", w->job->model);
    root = json_load_file(path, 0, NULL);
    merges = json_object_get(json_object_get(root, "model"), "merges");
    CHECK(json_array_size(merges) > 0);
    begin_array(w, "tokenizer.ggml.merges", MP_GGUF_STRING, json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *left = json_string_value(json_array_get(merge, 0));
        const char *right = json_string_value(json_array_get(merge, 1));

        CHECK(left != NULL && right != NULL);
        put(w->parts[0].entries, strlen(left) + 1 + strlen(right), 8);
        fprintf(w->parts[0].entries, "%s %s", left, right);
    }
    json_decref(root);
}

static void put_tokenizer(struct writer *w)
{
    struct mp_tokenizer *tok;
    uint32_t count;

    entry(w, "tokenizer:ggml.model", MP_GGUF_STRING, 0, w->job->pre != NULL ? "gpt2" : "none");
    if (w->job->chat != NULL)
        entry(w, "tokenizer:chat_template", MP_GGUF_STRING, 0, w->job->chat);
    if (w->job->pre == NULL)
        return;
    CHECK_EQ(mp_tokenizer_load(w->job->model, &tok), MP_OK);
    count = mp_tokenizer_vocab_count(tok);
    entry(w, "tokenizer:ggml.pre", MP_GGUF_STRING, 0, w->job->pre);
    entry(w, "tokenizer:ggml.bos_token_id", MP_GGUF_U32, w->config.bos, NULL);
    entry(w, "tokenizer:ggml.eos_token_id", MP_GGUF_U32, w->config.eos[0], NULL);
    begin_array(w, "tokenizer.ggml.tokens", MP_GGUF_STRING, count);
    for (uint32_t id = 0; id < count; id++) {
        size_t bytes;
        const char *text = mp_tokenizer_content(tok, id, &bytes);

        put_text(w->parts[0].entries, text, bytes);
    }
    begin_array(w, "tokenizer.ggml.token_type", MP_GGUF_I32, count);
    for (uint32_t id = 0; id < count; id++)
        put(w->parts[0].entries, mp_tokenizer_is_special(tok, id) ? 3 : 1, 4);
    put_merges(w);
    mp_tokenizer_destroy(tok);
}

/* ---- tensors */

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

/* Begin the next tensor; the shape's rows come last, as in the engine. Where its data go. */
static FILE *begin_tensor(struct writer *w, const char *name, enum mp_wtype type,
                          const uint64_t *shape, uint32_t dims)
{
    struct part *part = &w->parts[w->tensors++ % w->job->parts];
    const bool retype = w->job->retype != NULL && strcmp(w->job->retype, name) == 0;

    while (ftell(part->data) % w->job->align_bytes != 0)
        fputc(0, part->data);
    put_text(part->tensors, name, strlen(name));
    put(part->tensors, dims, 4);
    for (uint32_t d = 0; d < dims; d++)
        put(part->tensors, shape[dims - 1 - d], 8);
    put(part->tensors, retype ? w->job->type : type_number(type), 4);
    put(part->tensors, (uint64_t)ftell(part->data), 8);
    part->tensor_count++;
    return part->data;
}

/* Row `row` of the file is which one of the model? */
static size_t source_row(const struct writer *w, enum mp_role role, size_t row)
{
    const size_t head = w->config.head_dim, in = row % head;

    if (!w->arch->rotary_neighbours || (role != MP_ROLE_Q && role != MP_ROLE_K))
        return row;
    return row - in + in / 2 + in % 2 * (head / 2);
}

static void put_matrix(struct writer *w, enum mp_role role, const char *name,
                       const struct mp_view *view)
{
    const bool wide = role == MP_ROLE_ROUTER || role == MP_ROLE_SHARED_SWITCH;
    const uint64_t shape[2] = { view->rows, view->cols };
    const size_t row_bytes = mp_wtype_bytes(view->type, view->cols);
    const uint32_t skip = role == MP_ROLE_SHARED_SWITCH; /* a row, written as a vector */
    FILE *data = begin_tensor(w, name, wide ? MP_WTYPE_F32 : view->type, shape + skip, 2 - skip);
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
                   &(struct mp_name_numbers){ .layer = layer });
    return begin_tensor(w, name, MP_WTYPE_F32, shape, 2);
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
    char name[128];

    if (mp_role_floats(role) || w->arch->names[role].name == NULL ||
        !mp_role_needed(&w->config, role, layer))
        return;
    mp_arch_format(name, sizeof(name), w->arch->names[role].name,
                   &(struct mp_name_numbers){ .layer = layer });
    if (w->job->leave != NULL && strcmp(w->job->leave, name) == 0)
        return;
    if (info->cols != MP_DIM_NONE)
        put_matrix(w, role, name, member);
    else
        fwrite(*(const float *const *)member, 4, rows,
               begin_tensor(w, name, MP_WTYPE_F32, &rows, 1));
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

static void put_experts(struct writer *w, uint32_t layer)
{
    const uint64_t E = w->config.experts, F = w->config.expert_ffn, H = w->config.hidden;
    const uint32_t first = w->weights->layers[layer].first_unit;

    for (unsigned p = 0; p < MP_EXPERT_PIECES; p++) {
        const bool down = p == MP_PIECE_DOWN;
        const uint64_t shape[3] = { E, down ? H : F, down ? F : H };
        char name[128];
        FILE *data;

        mp_arch_format(name, sizeof(name), w->arch->stacked[p],
                       &(struct mp_name_numbers){ .layer = layer });
        data = begin_tensor(w, name, w->weights->unit_types[first].piece[p], shape, 3);
        for (uint32_t e = 0; e < E; e++) {
            const enum mp_wtype type = w->weights->unit_types[first].piece[p];
            const struct mp_unit *unit = &w->weights->units[first + e];
            char *bytes = w->weights->apart ? read_apart(w, unit, p)
                                            : read_expert(w, unit, p, mp_wtype_bytes(type, 1));

            CHECK_EQ(fwrite(bytes, 1, mp_wtype_bytes(type, F * H), data),
                     mp_wtype_bytes(type, F * H));
            free(bytes);
        }
    }
}

/* ---- files */

static void put_split(struct writer *w, struct part *part, uint32_t no)
{
    const struct {
        const char *key;
        uint64_t value;
    } entries[] = { { "split.no", no },
                    { "split.count", w->job->parts },
                    { "split.tensors.count", w->tensors } };

    for (size_t i = 0; w->job->parts > 1 && i < MP_ARRAY_LEN(entries); i++) {
        put_text(part->entries, entries[i].key, strlen(entries[i].key));
        put(part->entries, MP_GGUF_U32, 4);
        put(part->entries, entries[i].value, 4);
        part->entry_count++;
    }
    if (no > 0) {
        put_text(part->entries, "general.alignment", 17);
        put(part->entries, MP_GGUF_U32, 4);
        put(part->entries, w->job->align_bytes, 4);
        part->entry_count++;
    }
}

static void save(struct writer *w, uint32_t no)
{
    struct part *part = &w->parts[no];
    char path[4200];
    FILE *file;

    put_split(w, part, no);
    CHECK(fclose(part->entries) == 0 && fclose(part->tensors) == 0 && fclose(part->data) == 0);
    snprintf(path, sizeof(path), "%s", w->job->path);
    if (w->job->parts > 1)
        snprintf(path, sizeof(path), "%.*s-%05u-of-%05u.gguf", (int)(strlen(w->job->path) - 5),
                 w->job->path, no + 1, w->job->parts);
    file = fopen(path, "wb");
    CHECK(file != NULL);
    fputs("GGUF", file);
    put(file, 3, 4);
    put(file, part->tensor_count, 8);
    put(file, part->entry_count, 8);
    for (unsigned i = 0; i < 3; i++) {
        while (i == 2 && ftell(file) % w->job->align_bytes != 0)
            fputc(0, file);
        CHECK_EQ(fwrite(part->texts[i], 1, part->bytes[i], file), part->bytes[i]);
        free(part->texts[i]);
    }
    CHECK_EQ(fclose(file), 0);
}

void to_gguf(const struct to_gguf *job)
{
    struct writer *w = calloc(1, sizeof(*w));

    CHECK(w != NULL && job->parts >= 1 && job->parts <= PARTS_MAX);
    w->job = job;
    for (size_t i = 0; mp_arch_gguf_at(i) != NULL; i++) {
        if (strcmp(mp_arch_gguf_at(i)->name, job->arch) == 0)
            w->arch = mp_arch_gguf_at(i);
    }
    CHECK(w->arch != NULL);
    CHECK_EQ(mp_checkpoint_open(job->model, &w->checkpoint), MP_OK);
    CHECK_EQ(mp_model_config_load(w->checkpoint, &w->config), MP_OK);
    CHECK_EQ(mp_weights_load(w->checkpoint, &w->config, NULL, NULL, &w->weights), MP_OK);
    for (uint32_t i = 0; i < job->parts; i++) {
        struct part *part = &w->parts[i];

        part->entries = open_memstream(&part->texts[0], &part->bytes[0]);
        part->tensors = open_memstream(&part->texts[1], &part->bytes[1]);
        part->data = open_memstream(&part->texts[2], &part->bytes[2]);
        CHECK(part->entries != NULL && part->tensors != NULL && part->data != NULL);
    }
    put_numbers(w);
    put_tokenizer(w);
    if (job->change.key != NULL && !w->changed)
        (void)begin_entry(w, job->change.key);
    for (int role = 0; role < MP_ROLE_LAYER; role++)
        put_role(w, (enum mp_role)role, 0);
    for (uint32_t layer = 0; layer < w->config.layers; layer++) {
        for (int role = MP_ROLE_LAYER; role < MP_ROLE_COUNT; role++)
            put_role(w, (enum mp_role)role, layer);
        if (w->config.is_moe[layer])
            put_experts(w, layer);
        if (w->config.is_moe[layer] && w->config.expert_bias)
            put_expert_biases(w, layer);
    }
    for (uint32_t i = 0; i < job->parts; i++)
        save(w, i);
    mp_weights_destroy(w->weights);
    mp_checkpoint_close(w->checkpoint);
    free(w);
}
