/* The tokenizer and the chat template of a directory as metadata. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/convert/convert_int.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_export.h"

#define KEY(name) "tokenizer.ggml." name
#define FILE_NAME "tokenizer.json"
#define TEMPLATE_NAME "chat_template.jinja"

/* What files call a tokenizer. */
enum words_form { WORDS_CUT, WORDS_MARKED, WORDS_SCORED };

struct words {
    const struct mp_convert *job;
    struct mp_gguf_out *out;
    struct mp_tokenizer *tok;
    json_t *root;
    enum words_form form;
    bool prefix; /* WORDS_SCORED: a space goes before a text */
    uint32_t
        unknown;   /* WORDS_SCORED: what stands for characters without a piece, or MP_TOKEN_NONE */
    float *scores; /* WORDS_SCORED, [vocab] */
    struct mp_convert_pieces pieces;
};

static void put_token_ids(const struct words *w)
{
    static const char *const ends[] = { KEY("eos_token_id"), KEY("eot_token_id"),
                                        KEY("eom_token_id") };
    const struct mp_model_config *model = &w->job->model;

    if (model->bos != MP_TOKEN_NONE)
        mp_gguf_put_u32(w->out, KEY("bos_token_id"), model->bos);
    for (size_t i = 0; i < model->eos_count && i < MP_ARRAY_LEN(ends); i++)
        mp_gguf_put_u32(w->out, ends[i], model->eos[i]);
}

/* "<0xE2>": a byte of what has no piece. */
static bool is_byte(const char *text, size_t bytes)
{
    return bytes == 6 && strncmp(text, "<0x", 3) == 0 && text[5] == '>';
}

static uint32_t kind_of(const struct words *w, uint32_t id)
{
    size_t bytes = 0;
    const char *text =
        id < mp_tokenizer_vocab_count(w->tok) ? mp_tokenizer_content(w->tok, id, &bytes) : NULL;

    if (text == NULL)
        return MP_GGUF_TOKEN_UNUSED;
    if (id == w->unknown)
        return MP_GGUF_TOKEN_UNKNOWN;
    if (mp_tokenizer_is_special(w->tok, id))
        return MP_GGUF_TOKEN_CONTROL;
    if (w->pieces.added[id])
        return MP_GGUF_TOKEN_USER;
    return w->form != WORDS_CUT && is_byte(text, bytes) ? MP_GGUF_TOKEN_BYTE : MP_GGUF_TOKEN_NORMAL;
}

/* Every row of the embedding has a token, so those that the tokenizer lacks are named. */
static void put_tokens(const struct words *w)
{
    const uint32_t count = w->job->model.vocab, known = mp_tokenizer_vocab_count(w->tok);
    size_t bytes = 0;

    mp_gguf_put_array(w->out, KEY("tokens"), MP_GGUF_STRING, count);
    for (uint32_t id = 0; id < count; id++) {
        const char *text = id < known ? mp_tokenizer_content(w->tok, id, &bytes) : NULL;
        char made[24];

        snprintf(made, sizeof(made), "[PAD%" PRIu32 "]", id);
        mp_gguf_put_text(w->out->file, text != NULL ? text : made,
                         text != NULL ? bytes : strlen(made));
    }
    mp_gguf_put_array(w->out, KEY("token_type"), MP_GGUF_I32, count);
    for (uint32_t id = 0; id < count; id++)
        mp_gguf_put(w->out->file, kind_of(w, id), 4);
}

/* "a b", or ["a", "b"]; both were accepted as merges. */
static void put_merges(const struct words *w)
{
    const json_t *merges = json_object_get(json_object_get(w->root, "model"), "merges");

    mp_gguf_put_array(w->out, KEY("merges"), MP_GGUF_STRING, json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *merge = json_array_get(merges, i);
        const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);

        if (json_is_string(merge)) {
            mp_gguf_put_text(w->out->file, json_string_value(merge), json_string_length(merge));
            continue;
        }
        mp_gguf_put(w->out->file, json_string_length(left) + 1 + json_string_length(right), 8);
        fwrite(json_string_value(left), 1, json_string_length(left), w->out->file);
        putc(' ', w->out->file);
        fwrite(json_string_value(right), 1, json_string_length(right), w->out->file);
    }
}

/* What a text without characters becomes are the tokens around every text. */
static enum mp_status put_frame(const struct words *w)
{
    const struct mp_model_config *model = &w->job->model;
    struct mp_ids ids = { .count = 0 };
    enum mp_status status = mp_tokenizer_encode(w->tok, "", 0, MP_ENCODE_ADD_SPECIAL, &ids);

    if (status == MP_OK) {
        const bool begins = ids.count > 0 && ids.ids[0] == model->bos;
        const bool ends = ids.count > (size_t)begins && model->eos_count > 0 &&
                          ids.ids[ids.count - 1] == model->eos[0];

        mp_gguf_put_bool(w->out, KEY("add_bos_token"), begins);
        mp_gguf_put_bool(w->out, KEY("add_eos_token"), ends);
        if (ids.count != (size_t)begins + ends)
            status = mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                             "'" FILE_NAME "' puts %zu tokens around a text, and GGUF has only the "
                             "beginning and the end token",
                             ids.count);
    }
    mp_ids_free(&ids);
    return status;
}

static enum mp_status find_form(struct words *w, const char **pre_p)
{
    *pre_p = mp_tokenizer_gguf_pre(w->root);
    if (*pre_p != NULL)
        w->form = WORDS_CUT;
    else if (mp_tokenizer_gguf_marked(w->root))
        w->form = WORDS_MARKED;
    else if (mp_tokenizer_gguf_scored(w->root, &w->prefix))
        w->form = WORDS_SCORED;
    else
        return mp_fail(MP_ERR_MODEL, "E_TOK_PATTERN",
                       "'" FILE_NAME "' cuts text in a way that this engine knows no name of in "
                       "GGUF files; move it away to write a model without tokenizer");
    return MP_OK;
}

static enum mp_status find_added(struct words *w)
{
    const json_t *added = json_object_get(w->root, "added_tokens");

    w->pieces.count = w->job->model.vocab;
    w->pieces.added = calloc(w->pieces.count, sizeof(*w->pieces.added));
    if (w->pieces.added == NULL)
        return mp_fail_no_memory("the kinds of tokens", w->pieces.count);
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_int_t id = json_integer_value(json_object_get(json_array_get(added, i), "id"));

        if (id >= 0 && id < w->pieces.count)
            w->pieces.added[id] = true;
    }
    return MP_OK;
}

static enum mp_status put_scores(struct words *w)
{
    const json_t *model = json_object_get(w->root, "model");
    const json_t *unknown = json_object_get(model, "unk_token");
    const json_t *id = json_object_get(json_object_get(model, "vocab"), json_string_value(unknown));
    enum mp_status status;

    w->scores = calloc(w->pieces.count, sizeof(*w->scores));
    if (w->scores == NULL)
        return mp_fail_no_memory("the scores of tokens", w->pieces.count);
    status = mp_convert_scores(w->root, &w->pieces, w->scores);
    if (status != MP_OK)
        return status;
    if (json_is_integer(id)) {
        w->unknown = (uint32_t)json_integer_value(id);
        mp_gguf_put_u32(w->out, KEY("unknown_token_id"), w->unknown);
    }
    mp_gguf_put_array(w->out, KEY("scores"), MP_GGUF_F32, w->pieces.count);
    fwrite(w->scores, sizeof(*w->scores), w->pieces.count, w->out->file);
    return MP_OK;
}

static enum mp_status put_tokenizer(struct words *w)
{
    static const char *const names[] = {
        [WORDS_CUT] = "gpt2",
        [WORDS_MARKED] = "gemma4",
        [WORDS_SCORED] = "llama",
    };
    const char *pre;
    enum mp_status status = mp_tokenizer_check_rows(w->tok, w->job->model.vocab);

    if (status == MP_OK)
        status = find_form(w, &pre);
    if (status == MP_OK)
        status = find_added(w);
    if (status != MP_OK)
        return status;
    mp_gguf_put_string(w->out, KEY("model"), names[w->form]);
    if (w->form == WORDS_CUT)
        mp_gguf_put_string(w->out, KEY("pre"), pre);
    else
        mp_gguf_put_bool(w->out, KEY("add_space_prefix"), w->prefix);
    if (w->form == WORDS_SCORED)
        status = put_scores(w);
    else
        put_merges(w);
    if (status != MP_OK)
        return status;
    put_tokens(w);
    put_token_ids(w);
    return put_frame(w);
}

/* A file of its own goes before a key of the tokenizer's configuration; of a list of templates the
 * format has no place. */
static enum mp_status put_template(const struct words *w)
{
    const int dir_fd = mp_checkpoint_dir_fd(w->job->checkpoint);
    static const char config_name[] = "tokenizer_config.json";
    json_t *config = NULL;
    char *text = NULL;
    size_t bytes = 0;
    enum mp_status status =
        mp_text_load(dir_fd, TEMPLATE_NAME, MP_TOK_CONFIG_BYTES_MAX, &text, &bytes);

    if (status == MP_OK)
        mp_gguf_put_string(w->out, "tokenizer.chat_template", text);
    free(text);
    if (status == MP_OK || strcmp(mp_error_last()->code, "E_FILE_MISSING") != 0)
        return status;
    status = mp_json_load_optional_file(dir_fd, config_name, MP_TOK_CONFIG_BYTES_MAX, &config);
    if (status == MP_OK && json_is_string(json_object_get(config, "chat_template")))
        mp_gguf_put_string(w->out, "tokenizer.chat_template",
                           json_string_value(json_object_get(config, "chat_template")));
    json_decref(config);
    return status;
}

enum mp_status mp_convert_tokenizer(const struct mp_convert *job, struct mp_gguf_out *out)
{
    struct words words = { .job = job, .out = out, .unknown = MP_TOKEN_NONE };
    enum mp_status status = mp_json_load_optional_file(
        mp_checkpoint_dir_fd(job->checkpoint), FILE_NAME, MP_TOK_FILE_BYTES_MAX, &words.root);

    if (status == MP_OK && words.root == NULL) {
        mp_gguf_put_string(out, KEY("model"), "no_vocab");
        put_token_ids(&words);
    } else if (status == MP_OK) {
        status = mp_tokenizer_load(job->config->model, &words.tok);
        if (status == MP_OK)
            status = put_tokenizer(&words);
        if (status == MP_OK)
            status = put_template(&words);
    }
    free(words.scores);
    free(words.pieces.added);
    mp_tokenizer_destroy(words.tok);
    json_decref(words.root);
    return status;
}
