/*
 * Loads the chat format of a model and renders messages with it. Templates are recognised in
 * chat_template.c.
 */
#include "engine/text/chat_template.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/format/checkpoint.h"
#include "vmm/format/gguf.h"
#include "vmm/format/json.h"
#include "vmm/base/checked.h"

#define CONFIG "tokenizer_config.json"
#define TEMPLATE "chat_template.jinja"

/* ---- loading */

void mp_chat_destroy(struct mp_chat *chat)
{
    if (chat == NULL)
        return;
    free(chat->bos);
    free(chat->eos);
    free(chat);
}

static enum mp_status copy_text(const char *text, char **copy_p)
{
    *copy_p = text != NULL ? strdup(text) : NULL;
    return text != NULL && *copy_p == NULL ? mp_fail_no_memory("a chat template", strlen(text))
                                           : MP_OK;
}

enum mp_status mp_chat_parse(const char *name, const char *jinja, size_t bytes, const char *bos,
                             const char *eos, struct mp_chat **chat_p)
{
    char quoted[MP_QUOTE_BYTES];
    struct mp_chat *chat;
    enum mp_status status;

    if (bytes > MP_CHAT_TEMPLATE_BYTES_MAX)
        return mp_fail(MP_ERR_MODEL, "E_CHAT_SIZE",
                       "chat template in '%s' has %zu bytes, need at most %u; use --prompt "
                       "without --chat",
                       mp_quote(quoted, name, strlen(name)), bytes, MP_CHAT_TEMPLATE_BYTES_MAX);
    chat = calloc(1, sizeof(*chat));
    if (chat == NULL)
        return mp_fail_no_memory("a chat template", sizeof(*chat));
    status = copy_text(bos, &chat->bos);
    if (status == MP_OK)
        status = copy_text(eos, &chat->eos);
    if (status == MP_OK)
        status = mp_chat_recognize(name, jinja, bytes, chat);
    if (status == MP_OK)
        *chat_p = chat;
    else
        mp_chat_destroy(chat);
    return status;
}

/* A token's text: a string, or an object with "content". */
static const char *token_text(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);

    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_string_value(value);
}

/* The template in the configuration: a string, or the one called "default" of a list. */
static const json_t *config_template(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");
    const json_t *entry;
    size_t i;

    if (!json_is_array(value))
        return json_is_string(value) ? value : NULL;
    json_array_foreach(value, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));

        if (name != NULL && strcmp(name, "default") == 0)
            return json_is_string(json_object_get(entry, "template"))
                       ? json_object_get(entry, "template")
                       : NULL;
    }
    return NULL;
}

static enum mp_status load_at(int dirfd, struct mp_chat **chat_p)
{
    json_t *config = NULL;
    char *file = NULL;
    const char *name = TEMPLATE, *text = NULL;
    size_t bytes = 0;
    enum mp_status status;

    status = mp_json_load_optional_file(dirfd, CONFIG, MP_TOK_CONFIG_BYTES_MAX, &config);
    if (status != MP_OK)
        return status;
    if (faccessat(dirfd, TEMPLATE, F_OK, 0) == 0) {
        status = mp_text_load(dirfd, TEMPLATE, MP_TOK_CONFIG_BYTES_MAX, &file, &bytes);
        text = file;
    } else if (config_template(config) != NULL) {
        name = CONFIG;
        text = json_string_value(config_template(config));
        bytes = json_string_length(config_template(config));
    } else {
        status = mp_fail(MP_ERR_MODEL, "E_CHAT_NONE",
                         "the model has no chat template (neither '" TEMPLATE
                         "' nor a default one in '" CONFIG "'); use --prompt without --chat");
    }
    if (status == MP_OK)
        status = mp_chat_parse(name, text, bytes, token_text(config, "bos_token"),
                               token_text(config, "eos_token"), chat_p);
    free(file);
    json_decref(config);
    return status;
}

/* A copy of the token whose id the key gives; NULL: there is none. */
static enum mp_status gguf_token(const struct mp_gguf *gguf, const char *key, char **text_p)
{
    struct mp_gguf_value tokens, token = { .data = NULL };
    uint64_t id = 0;
    enum mp_status status;

    *text_p = NULL;
    if (mp_gguf_find_value(gguf, key) == NULL)
        return MP_OK;
    status = mp_gguf_get_u64(gguf, key, &id);
    if (status == MP_OK)
        status = mp_gguf_get_array(gguf, "tokenizer.ggml.tokens", MP_GGUF_STRING, &tokens);
    if (status != MP_OK || id >= tokens.count)
        return status;
    for (uint64_t i = 0; i <= id; i++) {
        if (!mp_gguf_array_next(&tokens, &token))
            return MP_OK;
    }
    *text_p = malloc(token.count + 1);
    if (*text_p == NULL)
        return mp_fail_no_memory("a token", token.count + 1);
    memcpy(*text_p, token.data, token.count);
    (*text_p)[token.count] = '\0';
    return MP_OK;
}

static enum mp_status load_gguf(const struct mp_gguf *gguf, struct mp_chat **chat_p)
{
    static const char key[] = "tokenizer.chat_template";
    const char *name = mp_files_name(mp_gguf_files(gguf), 0), *text = NULL;
    char quoted[MP_QUOTE_BYTES], *bos = NULL, *eos = NULL;
    uint64_t bytes = 0;
    enum mp_status status;

    if (mp_gguf_find_value(gguf, key) == NULL)
        return mp_fail(MP_ERR_MODEL, "E_CHAT_NONE",
                       "the model has no chat template (no key '%s' in '%s'); use --prompt "
                       "without --chat",
                       key, mp_quote(quoted, name, strlen(name)));
    status = mp_gguf_get_string(gguf, key, &text, &bytes);
    if (status == MP_OK)
        status = gguf_token(gguf, "tokenizer.ggml.bos_token_id", &bos);
    if (status == MP_OK)
        status = gguf_token(gguf, "tokenizer.ggml.eos_token_id", &eos);
    if (status == MP_OK)
        status = mp_chat_parse(name, text, bytes, bos, eos, chat_p);
    free(eos);
    free(bos);
    return status;
}

static enum mp_status load_gguf_file(const char *path, struct mp_chat **chat_p)
{
    struct mp_gguf *gguf = NULL;
    enum mp_status status = mp_gguf_open(path, &gguf);

    if (status == MP_OK)
        status = load_gguf(gguf, chat_p);
    mp_gguf_close(gguf);
    return status;
}

enum mp_status mp_chat_load(const char *model, struct mp_chat **chat_p)
{
    int dirfd;
    enum mp_status status;

    if (mp_gguf_is_file(model))
        return load_gguf_file(model, chat_p);
    status = mp_checkpoint_open_dir(model, &dirfd);
    if (status != MP_OK)
        return status;
    status = load_at(dirfd, chat_p);
    close(dirfd);
    return status;
}

const char *mp_chat_name(const struct mp_chat *chat)
{
    return chat->kind == MP_CHAT_CHATML ? "chatml" : "mistral";
}

/* ---- rendering */

void mp_spans_free(struct mp_spans *spans)
{
    free(spans->spans);
    memset(spans, 0, sizeof(*spans));
}

static enum mp_status add_span(struct mp_spans *out, const char *text, size_t bytes, bool special)
{
    if (bytes == 0)
        return MP_OK;
    if (out->count == out->capacity) {
        const size_t capacity = out->capacity * 2 + 16;
        size_t size;

        if (!mp_mul_size(capacity, sizeof(*out->spans), &size))
            return mp_fail_no_memory("a prompt", UINT64_MAX);
        struct mp_span *grown = realloc(out->spans, size);
        if (grown == NULL)
            return mp_fail_no_memory("a prompt", size);
        out->spans = grown;
        out->capacity = capacity;
    }
    out->spans[out->count++] = (struct mp_span){ text, bytes, special };
    return MP_OK;
}

/* Text of the format itself. */
static enum mp_status add_fixed(struct mp_spans *out, const char *text)
{
    return add_span(out, text, strlen(text), true);
}

static enum mp_status bad_roles(const char *what)
{
    return mp_fail(MP_ERR_CONFIG, "E_CHAT_ROLES", "the model's chat format %s", what);
}

/* An earlier answer without what was thought before it. */
static struct mp_chat_message without_thinking(struct mp_chat_message message)
{
    static const char mark[] = "</think>";
    const char *const end = message.text + message.bytes;
    const char *at = message.text, *hit;

    while ((hit = memmem(at, (size_t)(end - at), mark, strlen(mark))) != NULL)
        at = hit + strlen(mark);
    while (at > message.text && at < end && *at == '\n')
        at++;
    message.text = at;
    message.bytes = (size_t)(end - at);
    return message;
}

static struct mp_chat_message trimmed(struct mp_chat_message message)
{
    static const char blanks[] = " \t\n\v\f\r\x1c\x1d\x1e\x1f";

    while (message.bytes > 0 && memchr(blanks, message.text[0], sizeof(blanks) - 1) != NULL) {
        message.text++;
        message.bytes--;
    }
    while (message.bytes > 0 &&
           memchr(blanks, message.text[message.bytes - 1], sizeof(blanks) - 1) != NULL)
        message.bytes--;
    return message;
}

static enum mp_status render_chatml(const struct mp_chat *chat,
                                    const struct mp_chat_message *messages, size_t count,
                                    bool answer, struct mp_spans *out)
{
    static const char *const heads[] = { "<|im_start|>system\n", "<|im_start|>user\n",
                                         "<|im_start|>assistant\n" };
    enum mp_status status = MP_OK;

    if (chat->drops_thinking && messages[count - 1].role == MP_CHAT_ASSISTANT)
        return bad_roles("cannot end with an answer");
    if (chat->default_system != NULL && messages[0].role != MP_CHAT_SYSTEM) {
        status = add_fixed(out, heads[MP_CHAT_SYSTEM]);
        if (status == MP_OK)
            status = add_fixed(out, chat->default_system);
        if (status == MP_OK)
            status = add_fixed(out, "<|im_end|>\n");
    }
    for (size_t i = 0; i < count && status == MP_OK; i++) {
        struct mp_chat_message message = messages[i];

        if (chat->drops_thinking && message.role == MP_CHAT_ASSISTANT)
            message = without_thinking(message);
        status = add_fixed(out, heads[message.role]);
        if (status == MP_OK)
            status = add_span(out, message.text, message.bytes, false);
        if (status == MP_OK && (i + 1 < count || answer || !chat->open_end))
            status = add_fixed(out, "<|im_end|>\n");
    }
    if (status == MP_OK && answer)
        status = add_fixed(out, heads[MP_CHAT_ASSISTANT]);
    if (status == MP_OK && answer && chat->opens_thinking)
        status = add_fixed(out, "<think>\n");
    return status;
}

static enum mp_status check_mistral_roles(const struct mp_chat *chat,
                                          const struct mp_chat_message *messages, size_t count)
{
    const size_t first = messages[0].role == MP_CHAT_SYSTEM ? 1 : 0;

    if (first > 0 && chat->system == MP_CHAT_SYSTEM_REFUSED)
        return bad_roles("has no system messages; put the text into the prompt");
    for (size_t i = first; i < count; i++) {
        if (messages[i].role != ((i - first) % 2 == 0 ? MP_CHAT_USER : MP_CHAT_ASSISTANT))
            return bad_roles("needs user and assistant in turn, the user first");
    }
    if (count == first)
        return bad_roles("needs a user message");
    return MP_OK;
}

static enum mp_status render_mistral(const struct mp_chat *chat,
                                     const struct mp_chat_message *messages, size_t count,
                                     struct mp_spans *out)
{
    const size_t first = messages[0].role == MP_CHAT_SYSTEM ? 1 : 0;
    const size_t with_system = chat->system == MP_CHAT_SYSTEM_FIRST ? first : count - 1;
    enum mp_status status = check_mistral_roles(chat, messages, count);

    if (status == MP_OK)
        status = add_fixed(out, chat->bos);
    for (size_t i = first; i < count && status == MP_OK; i++) {
        const bool user = messages[i].role == MP_CHAT_USER;
        const struct mp_chat_message message =
            !user && chat->trims_answers ? trimmed(messages[i]) : messages[i];

        status = add_fixed(out, user ? chat->user_before : chat->answer_before);
        if (status == MP_OK && user && first > 0 && i == with_system) {
            status = add_span(out, messages[0].text, messages[0].bytes, false);
            if (status == MP_OK)
                status = add_fixed(out, "\n\n");
        }
        if (status == MP_OK)
            status = add_span(out, message.text, message.bytes, false);
        if (status == MP_OK && !user)
            status = add_fixed(out, chat->eos);
        if (status == MP_OK)
            status = add_fixed(out, user ? chat->user_behind : chat->answer_behind);
    }
    return status;
}

enum mp_status mp_chat_render(const struct mp_chat *chat, const struct mp_chat_message *messages,
                              size_t count, bool answer, struct mp_spans *out)
{
    const size_t before = out->count;
    enum mp_status status;

    if (count == 0)
        return bad_roles("needs a message");
    if (answer && messages[count - 1].role == MP_CHAT_ASSISTANT)
        return bad_roles("cannot answer an answer; end with a user message");
    status = chat->kind == MP_CHAT_CHATML ? render_chatml(chat, messages, count, answer, out)
                                          : render_mistral(chat, messages, count, out);
    if (status != MP_OK)
        out->count = before;
    return status;
}
