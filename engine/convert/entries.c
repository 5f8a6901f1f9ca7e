/* Header and metadata of the new file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/convert/convert_int.h"
#include "engine/model/types.h"

#define KEY_BYTES 128
#define QUANTISATION_VERSION 2 /* of the blocks' layouts */

static void put_u32(const struct mp_convert *job, struct mp_gguf_out *out, const char *name,
                    uint32_t value)
{
    char key[KEY_BYTES];

    snprintf(key, sizeof(key), "%s.%s", job->target->name, name);
    mp_gguf_put_u32(out, key, value);
}

static void put_f32(const struct mp_convert *job, struct mp_gguf_out *out, const char *name,
                    float value)
{
    char key[KEY_BYTES];

    snprintf(key, sizeof(key), "%s.%s", job->target->name, name);
    mp_gguf_put_f32(out, key, value);
}

/* Layers with experts are those behind the first ones, or every so many-th; others are found out
 * when the header is read again. */
static void put_moe_layers(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;
    const struct mp_arch_keys *keys = &job->target->keys;
    uint32_t first = 0, second, step = 1;

    while (first + 1 < c->layers && !c->is_moe[first])
        first++;
    for (second = first + 1; second < c->layers && !c->is_moe[second]; second++)
        step++;
    if (keys->moe_step != NULL)
        put_u32(job, out, keys->moe_step, step);
    if (keys->dense_first.key != NULL)
        put_u32(job, out, keys->dense_first.key, step > 1 ? 0 : first);
}

/* For each layer where some have a short convolution, and none. */
static void put_kv_heads(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;
    char key[KEY_BYTES];

    if (c->short_conv == 0) {
        put_u32(job, out, "attention.head_count_kv", c->kv_heads);
        return;
    }
    put_u32(job, out, job->target->keys.short_conv, c->short_conv);
    snprintf(key, sizeof(key), "%s.attention.head_count_kv", job->target->name);
    mp_gguf_put_array(out, key, MP_GGUF_I32, c->layers);
    for (uint32_t i = 0; i < c->layers; i++)
        mp_gguf_put(out->file, c->linear[i] ? 0 : c->kv_heads, 4);
}

/* What only some families have a key for. */
static void put_more_numbers(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;
    const struct mp_arch_keys *keys = &job->target->keys;
    const struct {
        const char *key;
        uint32_t value;
    } wholes[] = {
        { keys->shared_count.key, c->shared_ffn / c->expert_ffn },
        { keys->groups.key, c->groups },
        { keys->groups_used.key, c->groups_used },
        { c->router == MP_ROUTER_SIGMOID ? "expert_gating_func" : NULL, 2 },
    };
    const struct {
        const char *key;
        float value;
    } reals[] = {
        { keys->routed_scale.key, c->routed_scale },
        { keys->embed_scale.key, c->embed_scale },
        { keys->residual_scale.key, c->residual_scale },
        { c->attention_scale > 0 ? keys->attention_scale.key : NULL, c->attention_scale },
        { keys->logit_divisor.key, 1 / c->logit_scale },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(wholes); i++) {
        if (wholes[i].key != NULL)
            put_u32(job, out, wholes[i].key, wholes[i].value);
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(reals); i++) {
        if (reals[i].key != NULL)
            put_f32(job, out, reals[i].key, reals[i].value);
    }
    put_moe_layers(job, out);
}

static void put_numbers(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_model_config *c = &job->model;
    const struct mp_arch_keys *keys = &job->target->keys;
    const bool own_ffn = strcmp(keys->expert_ffn, "feed_forward_length") == 0;
    char key[KEY_BYTES];

    put_u32(job, out, "vocab_size", c->vocab);
    put_u32(job, out, "context_length", c->positions_max);
    put_u32(job, out, "embedding_length", c->hidden);
    put_u32(job, out, "block_count", c->layers);
    put_u32(job, out, "feed_forward_length",
            own_ffn || c->dense_ffn == 0 ? c->expert_ffn : c->dense_ffn);
    if (!own_ffn)
        put_u32(job, out, keys->expert_ffn, c->expert_ffn);
    if (c->shared_ffn != 0 && keys->shared_ffn != NULL)
        put_u32(job, out, keys->shared_ffn, c->shared_ffn);
    put_u32(job, out, "expert_count", c->experts);
    put_u32(job, out, "expert_used_count", c->experts_per_token);
    put_u32(job, out, "attention.head_count", c->heads);
    put_kv_heads(job, out);
    put_u32(job, out, "attention.key_length", c->head_dim);
    put_u32(job, out, "attention.value_length", c->head_dim);
    put_u32(job, out, "rope.dimension_count", c->rotary_dim);
    put_f32(job, out, "attention.layer_norm_rms_epsilon", c->norm_eps);
    put_f32(job, out, "rope.freq_base", (float)c->rope_theta);
    put_more_numbers(job, out);
    if (job->target->switches.norm_topk.key != NULL) {
        snprintf(key, sizeof(key), "%s.%s", job->target->name, job->target->switches.norm_topk.key);
        mp_gguf_put_bool(out, key, c->norm_topk);
    }
}

/* What is said anew, or of a file that was in parts. */
static bool is_replaced(const char *key)
{
    static const char *const keys[] = { "general.alignment", "general.file_type",
                                        "general.quantization_version" };

    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++) {
        if (strcmp(key, keys[i]) == 0)
            return true;
    }
    return strncmp(key, "split.", 6) == 0 || strncmp(key, "quantize.", 9) == 0;
}

enum mp_status mp_convert_entries(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_gguf *gguf = mp_checkpoint_gguf(job->checkpoint);
    const bool blocks = job->recipe->base >= MP_WTYPE_PLAIN_COUNT;
    enum mp_status status = MP_OK;

    if (gguf == NULL)
        mp_gguf_put_string(out, "general.architecture", job->target->name);
    mp_gguf_put_u32(out, "general.alignment", MP_CONVERT_ALIGN);
    mp_gguf_put_u32(out, "general.file_type", job->recipe->file_type);
    if (blocks)
        mp_gguf_put_u32(out, "general.quantization_version", QUANTISATION_VERSION);
    if (gguf == NULL) {
        put_numbers(job, out);
        status = mp_convert_tokenizer(job, out);
    }
    for (size_t i = 0; gguf != NULL && i < mp_gguf_entry_count(gguf); i++) {
        if (!is_replaced(mp_gguf_entry(gguf, i)->key))
            mp_gguf_put_entry(out, mp_gguf_entry(gguf, i));
    }
    return status;
}

/* The number of a type in files. */
static uint32_t type_number(enum mp_wtype type)
{
    const char *name = mp_dtype_name(mp_dtype_of(type));
    uint32_t number = 0;

    while (mp_gguf_type_find(number) == NULL || strcmp(mp_gguf_type_find(number)->name, name) != 0)
        number++; /* every type that is written has one */
    return number;
}

static void put_tensors(const struct mp_convert *job, FILE *file)
{
    for (size_t i = 0; i < job->count; i++) {
        const struct mp_convert_tensor *tensor = &job->tensors[i];

        mp_gguf_put_text(file, tensor->name, strlen(tensor->name));
        mp_gguf_put(file, tensor->dims, 4);
        for (uint32_t d = tensor->dims; d > 0; d--)
            mp_gguf_put(file, tensor->shape[d - 1], 8);
        mp_gguf_put(file, type_number(tensor->to), 4);
        mp_gguf_put(file, tensor->offset_bytes, 8);
    }
}

enum mp_status mp_convert_header(const struct mp_convert *job, char **text_p, size_t *bytes_p)
{
    char *entries = NULL;
    size_t entries_bytes = 0;
    struct mp_gguf_out out = { .file = open_memstream(&entries, &entries_bytes) };
    FILE *file = open_memstream(text_p, bytes_p);
    enum mp_status status = out.file == NULL || file == NULL
                                ? mp_fail_no_memory("the header of the new file", 0)
                                : mp_convert_entries(job, &out);
    bool good = out.file != NULL && !ferror(out.file);

    if (out.file != NULL && fclose(out.file) != 0)
        good = false;

    if (file != NULL && good && status == MP_OK) {
        fwrite("GGUF", 1, 4, file);
        mp_gguf_put(file, 3, 4);
        mp_gguf_put(file, job->count, 8);
        mp_gguf_put(file, out.count, 8);
        fwrite(entries, 1, entries_bytes, file);
        put_tensors(job, file);
        for (long at = ftell(file); at > 0 && at % (long)MP_CONVERT_ALIGN != 0; at++)
            putc(0, file);
        good = !ferror(file);
    }
    if (file != NULL && fclose(file) != 0)
        good = false;
    free(entries);
    if (status == MP_OK && !good)
        status = mp_fail_no_memory("the header of the new file", 0);
    return status;
}
