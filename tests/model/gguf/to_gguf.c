/* A model directory as a GGUF file: its metadata and parts; see to_gguf.h. */
#include <jansson.h>
#include <math.h>

#include "engine/model/drafting.h"
#include "engine/text/tokenizer.h"
#include "tests/model/gguf/to_gguf_int.h"
#include "vmm/format/gguf.h"

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

/* Heads of latent attention: with the latent as the only head, or, in older files, without that. */
static void put_latent(struct writer *w)
{
    const struct mp_model_config *c = &w->config;
    const uint32_t key = c->nope_dim + c->rotary_dim;
    const double more = sqrt((double)c->attention_scale * sqrt(key)) - 1;
    const bool older = w->job->whole_latent;

    entry(w, "attention.head_count_kv", MP_GGUF_U32, older ? c->heads : 1, NULL);
    entry(w, "attention.key_length", MP_GGUF_U32, older ? key : c->head_dim, NULL);
    entry(w, "attention.value_length", MP_GGUF_U32, older ? c->value_dim : c->kv_rank, NULL);
    if (!older) {
        entry(w, "attention.key_length_mla", MP_GGUF_U32, key, NULL);
        entry(w, "attention.value_length_mla", MP_GGUF_U32, c->value_dim, NULL);
    }
    entry(w, "attention.kv_lora_rank", MP_GGUF_U32, c->kv_rank, NULL);
    if (c->q_rank > 0)
        entry(w, "attention.q_lora_rank", MP_GGUF_U32, c->q_rank, NULL);
    entry(w, "rope.dimension_count", MP_GGUF_U32, c->rotary_dim, NULL);
    if (c->rope.kind == MP_ROPE_YARN)
        entry(w, "rope.scaling.yarn_log_multiplier", MP_GGUF_F32,
              round(more / log(c->rope.factor) * 1e4) / 1e4, NULL);
}

/* False: the change has replaced it. */
static bool begin_array(struct writer *w, const char *key, int element, uint64_t count)
{
    if (!begin_entry(w, key))
        return false;
    put(w->parts[0].entries, MP_GGUF_ARRAY, 4);
    put(w->parts[0].entries, (uint64_t)element, 4);
    put(w->parts[0].entries, count, 8);
    return true;
}

/* A flag for each layer. */
static void put_layers(struct writer *w, const char *name, const bool *flags)
{
    char key[96];

    snprintf(key, sizeof(key), "%s.%s", w->job->arch, name);
    if (!begin_array(w, key, MP_GGUF_BOOL, w->config.layers))
        return;
    for (uint32_t i = 0; i < w->config.layers; i++)
        put(w->parts[0].entries, flags[i], 1);
}

/* Of models that also see: pairs of a head that turn by the place in time, height and width. Text
 * has one place. */
static void put_sections(struct writer *w)
{
    const uint32_t part = w->config.rotary_dim / 6;
    char key[96];

    snprintf(key, sizeof(key), "%s.rope.dimension_sections", w->job->arch);
    CHECK(begin_array(w, key, MP_GGUF_I32, 4));
    put(w->parts[0].entries, w->config.rotary_dim / 2 - 2 * part, 4);
    put(w->parts[0].entries, part, 4);
    put(w->parts[0].entries, part, 4);
    put(w->parts[0].entries, 0, 4);
}

/* Heads of delta networks, and which layers have one. */
static void put_delta(struct writer *w)
{
    const struct mp_delta *d = &w->config.delta;

    entry(w, "ssm.group_count", MP_GGUF_U32, d->key_heads, NULL);
    entry(w, "ssm.time_step_rank", MP_GGUF_U32, d->value_heads, NULL);
    entry(w, "ssm.state_size", MP_GGUF_U32, d->key_dim, NULL);
    entry(w, "ssm.inner_size", MP_GGUF_U32, mp_delta_values(d), NULL);
    entry(w, "ssm.conv_kernel", MP_GGUF_U32, d->conv, NULL);
    put_layers(w, "attention.recurrent_layers", w->config.linear);
    if (w->arch->tiled)
        put_sections(w);
}

/* For each layer where some have a short convolution, and none. */
static void put_kv_heads(struct writer *w)
{
    const struct mp_model_config *c = &w->config;
    char key[96];

    if (c->short_conv == 0) {
        entry(w, "attention.head_count_kv", MP_GGUF_U32, c->kv_heads, NULL);
        return;
    }
    entry(w, w->arch->keys.short_conv, MP_GGUF_U32, c->short_conv, NULL);
    snprintf(key, sizeof(key), "%s.attention.head_count_kv", w->job->arch);
    if (!begin_array(w, key, MP_GGUF_I32, c->layers))
        return;
    for (uint32_t i = 0; i < c->layers; i++)
        put(w->parts[0].entries, c->linear[i] ? 0 : c->kv_heads, 4);
}

/* Heads of layers of full attention, and of those with a window. */
static void put_wide(struct writer *w)
{
    const struct mp_model_config *c = &w->config;
    char key[96];

    snprintf(key, sizeof(key), "%s.attention.head_count_kv", w->job->arch);
    for (uint32_t i = begin_array(w, key, MP_GGUF_I32, c->layers) ? 0 : c->layers; i < c->layers;
         i++)
        put(w->parts[0].entries, mp_layer_kv_heads(c, i), 4);
    entry(w, "attention.key_length", MP_GGUF_U32, c->wide_head_dim, NULL);
    entry(w, "attention.value_length", MP_GGUF_U32, c->wide_head_dim, NULL);
    entry(w, "attention.key_length_swa", MP_GGUF_U32, c->head_dim, NULL);
    entry(w, "attention.value_length_swa", MP_GGUF_U32, c->head_dim, NULL);
    entry(w, "rope.dimension_count", MP_GGUF_U32, c->wide_head_dim, NULL);
    entry(w, "rope.dimension_count_swa", MP_GGUF_U32, c->rotary_dim, NULL);
    entry(w, "rope.freq_base_swa", MP_GGUF_F32, c->rope_theta, NULL);
    entry(w, "embedding_length_per_layer_input", MP_GGUF_U32, 0, NULL);
    entry(w, "attention.shared_kv_layers", MP_GGUF_U32, 0, NULL);
    if (c->logit_cap > 0)
        entry(w, "final_logit_softcapping", MP_GGUF_F32, c->logit_cap, NULL);
    put_layers(w, "attention.sliding_window_pattern", c->windowed);
}

/* What the family has a key for. */
static void put_more_numbers(struct writer *w)
{
    const struct mp_model_config *c = &w->config;
    const struct mp_arch_keys *keys = &w->arch->keys;
    const bool scaled = c->rope.kind != MP_ROPE_PLAIN && w->job->divisors == NULL;
    const bool yarn = c->rope.kind == MP_ROPE_YARN;
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
    if (c->delta.key_heads > 0)
        put_delta(w);
}

static void put_numbers(struct writer *w)
{
    const struct mp_model_config *c = &w->config;
    const bool llama = strcmp(w->arch->keys.expert_ffn, "feed_forward_length") == 0;
    const bool same = strcmp(w->arch->name, "minimax-m2") == 0;
    const uint32_t drafting = mp_drafting_there(w->checkpoint, c);
    const uint32_t dense = c->dense_ffn != 0 ? c->dense_ffn : same ? c->expert_ffn : 4 * c->hidden;

    entry(w, "general:architecture", MP_GGUF_STRING, 0, w->job->arch);
    entry(w, "general:alignment", MP_GGUF_U32, w->job->align_bytes, NULL);
    entry(w, "vocab_size", MP_GGUF_U32, c->vocab, NULL);
    entry(w, "context_length", MP_GGUF_U32, c->positions_max, NULL);
    entry(w, "embedding_length", MP_GGUF_U32, c->hidden, NULL);
    entry(w, "block_count", MP_GGUF_U32, c->layers + drafting, NULL);
    if (drafting > 0)
        entry(w, w->arch->keys.drafting, MP_GGUF_U32, drafting, NULL);
    entry(w, "feed_forward_length", MP_GGUF_U32,
          w->arch->wide ? c->shared_ffn
          : llama       ? c->expert_ffn
                        : dense,
          NULL);
    if (!llama)
        entry(w, "expert_feed_forward_length", MP_GGUF_U32, c->expert_ffn, NULL);
    if (c->shared_ffn != 0 && w->arch->keys.shared_ffn != NULL && !w->arch->wide)
        entry(w, "expert_shared_feed_forward_length", MP_GGUF_U32, c->shared_ffn, NULL);
    entry(w, "expert_count", MP_GGUF_U32, c->experts, NULL);
    entry(w, "expert_used_count", MP_GGUF_U32, c->experts_per_token, NULL);
    entry(w, "attention.head_count", MP_GGUF_U32, c->heads, NULL);
    if (c->kv_rank > 0) {
        put_latent(w);
    } else if (w->arch->wide) {
        put_wide(w);
    } else {
        put_kv_heads(w);
        entry(w, "attention.key_length", MP_GGUF_U32, c->head_dim, NULL);
        entry(w, "attention.value_length", MP_GGUF_U32, c->head_dim, NULL);
    }
    entry(w, "attention.layer_norm_rms_epsilon", MP_GGUF_F32, c->norm_eps, NULL);
    entry(w, "rope.freq_base", MP_GGUF_F32, w->arch->wide ? c->wide_theta : c->rope_theta, NULL);
    put_more_numbers(w);
}

static void put_merges(struct writer *w)
{
    char path[4096];
    json_t *root, *merges;

    snprintf(path, sizeof(path), "%s/tokenizer.json", w->job->model);
    root = json_load_file(path, 0, NULL);
    merges = json_object_get(json_object_get(root, "model"), "merges");
    CHECK(json_array_size(merges) > 0);
    CHECK(begin_array(w, "tokenizer.ggml.merges", MP_GGUF_STRING, json_array_size(merges)));
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
    CHECK(begin_array(w, "tokenizer.ggml.tokens", MP_GGUF_STRING, count));
    for (uint32_t id = 0; id < count; id++) {
        size_t bytes;
        const char *text = mp_tokenizer_content(tok, id, &bytes);

        put_text(w->parts[0].entries, text, bytes);
    }
    CHECK(begin_array(w, "tokenizer.ggml.token_type", MP_GGUF_I32, count));
    for (uint32_t id = 0; id < count; id++)
        put(w->parts[0].entries, mp_tokenizer_is_special(tok, id) ? 3 : 1, 4);
    put_merges(w);
    mp_tokenizer_destroy(tok);
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
    put(file, w->job->version != 0 ? w->job->version : 3, 4);
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
    to_gguf_tensors(w);
    for (uint32_t i = 0; i < job->parts; i++)
        save(w, i);
    mp_weights_destroy(w->weights);
    mp_checkpoint_close(w->checkpoint);
    free(w);
}
