/*
 * Loads the chat format of a model and renders messages with it. What runs templates is
 * engine/text/jinja.
 */
#include "engine/text/chat.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/jinja/jinja.h"
#include "vmm/base/clock.h"
#include "vmm/format/checkpoint.h"
#include "vmm/format/gguf.h"
#include "vmm/format/json.h"

#define CONFIG "tokenizer_config.json"
#define TEMPLATE "chat_template.jinja"

struct mp_chat {
    struct mp_jinja *jinja;
    struct mp_jinja *with_tools; /* or NULL: the same */
    json_t *tokens;              /* their texts: "bos_token" and the like */
    const struct mp_calls_style *calls;
};

/* A template's text on its way; `text` points into a file or into JSON. */
struct source {
    const char *name, *text;
    size_t bytes;
};

/* ---- loading */

void mp_chat_destroy(struct mp_chat *chat)
{
    if (chat == NULL)
        return;
    mp_jinja_destroy(chat->jinja);
    mp_jinja_destroy(chat->with_tools);
    json_decref(chat->tokens);
    free(chat);
}

static enum mp_status parse_source(const struct source *source, struct mp_jinja **jinja_p)
{
    char quoted[MP_QUOTE_BYTES];

    if (source->bytes > MP_CHAT_TEMPLATE_BYTES_MAX)
        return mp_fail(MP_ERR_MODEL, "E_CHAT_SIZE",
                       "chat template in '%s' has %zu bytes, need at most %u; use --prompt "
                       "without --chat",
                       mp_quote(quoted, source->name, strlen(source->name)), source->bytes,
                       MP_CHAT_TEMPLATE_BYTES_MAX);
    return mp_jinja_parse(source->name, source->text, source->bytes, jinja_p);
}

/* Takes `tokens`, which may be NULL: no memory. */
static enum mp_status make_chat(const struct source *source, const struct source *with_tools,
                                json_t *tokens, struct mp_chat **chat_p)
{
    struct mp_chat *chat = calloc(1, sizeof(*chat));
    enum mp_status status;

    if (chat == NULL || tokens == NULL) {
        json_decref(tokens);
        free(chat);
        return mp_fail_no_memory("a chat template", sizeof(*chat));
    }
    chat->tokens = tokens;
    status = parse_source(source, &chat->jinja);
    if (status == MP_OK && with_tools->text != NULL)
        status = parse_source(with_tools, &chat->with_tools);
    if (with_tools->text != NULL)
        chat->calls = mp_calls_find_style(with_tools->text, with_tools->bytes);
    if (chat->calls == NULL)
        chat->calls = mp_calls_find_style(source->text, source->bytes);
    if (status == MP_OK)
        *chat_p = chat;
    else
        mp_chat_destroy(chat);
    return status;
}

static bool add_token(json_t *tokens, const char *key, const char *text)
{
    return text == NULL || json_object_set_new_nocheck(tokens, key, json_string_nocheck(text)) == 0;
}

/* Takes `tokens` away if it fails. */
static json_t *add_both(json_t *tokens, const char *bos, const char *eos)
{
    if (tokens == NULL ||
        (add_token(tokens, "bos_token", bos) && add_token(tokens, "eos_token", eos)))
        return tokens;
    json_decref(tokens);
    return NULL;
}

enum mp_status mp_chat_parse(const char *name, const char *jinja, size_t bytes, const char *bos,
                             const char *eos, struct mp_chat **chat_p)
{
    const struct source source = { name, jinja, bytes }, none = { .text = NULL };

    return make_chat(&source, &none, add_both(json_object(), bos, eos), chat_p);
}

/* All tokens that the configuration names: strings, or objects with "content". */
static json_t *config_tokens(json_t *config)
{
    json_t *tokens = json_object(), *value;
    const char *key;

    json_object_foreach(config, key, value)
    {
        const size_t bytes = strlen(key);

        if (json_is_object(value))
            value = json_object_get(value, "content");
        if (bytes < 6 || strcmp(key + bytes - 6, "_token") != 0 || !json_is_string(value))
            continue;
        if (json_object_set(tokens, key, value) != 0) {
            json_decref(tokens);
            return NULL;
        }
    }
    return tokens;
}

/* The template of this name in the configuration; without a list it is the default one. */
static void find_template(const json_t *config, const char *wanted, struct source *source)
{
    const json_t *value = json_object_get(config, "chat_template"), *entry, *text = NULL;
    size_t i;

    if (json_is_string(value) && strcmp(wanted, "default") == 0)
        text = value;
    json_array_foreach(value, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));

        if (text == NULL && name != NULL && strcmp(name, wanted) == 0)
            text = json_object_get(entry, "template");
    }
    if (json_is_string(text))
        *source = (struct source){ CONFIG, json_string_value(text), json_string_length(text) };
}

/* `given`: instead of the model's own; its text may be NULL. */
static enum mp_status load_at(int dirfd, const struct source *given, struct mp_chat **chat_p)
{
    struct source source = *given, with_tools = { .text = NULL };
    json_t *config = NULL;
    char *file = NULL;
    enum mp_status status;

    status = mp_json_load_optional_file(dirfd, CONFIG, MP_TOK_CONFIG_BYTES_MAX, &config);
    if (status != MP_OK)
        return status;
    if (source.text == NULL && faccessat(dirfd, TEMPLATE, F_OK, 0) == 0) {
        source.name = TEMPLATE;
        status = mp_text_load(dirfd, TEMPLATE, MP_TOK_CONFIG_BYTES_MAX, &file, &source.bytes);
        source.text = file;
    } else if (source.text == NULL) {
        find_template(config, "default", &source);
        find_template(config, "tool_use", &with_tools);
    }
    if (status == MP_OK && source.text == NULL)
        status = mp_fail(MP_ERR_MODEL, "E_CHAT_NONE",
                         "the model has no chat template (neither '" TEMPLATE
                         "' nor a default one in '" CONFIG "'); use --prompt without --chat");
    if (status == MP_OK)
        status = make_chat(&source, &with_tools, config_tokens(config), chat_p);
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

static enum mp_status load_gguf(const struct mp_gguf *gguf, const struct source *given,
                                struct mp_chat **chat_p)
{
    static const char key[] = "tokenizer.chat_template";
    const char *name = mp_files_name(mp_gguf_files(gguf), 0);
    const struct source none = { .text = NULL };
    struct source source = *given;
    char quoted[MP_QUOTE_BYTES], *bos = NULL, *eos = NULL;
    uint64_t bytes = 0;
    enum mp_status status = MP_OK;

    if (source.text == NULL && mp_gguf_find_value(gguf, key) == NULL)
        return mp_fail(MP_ERR_MODEL, "E_CHAT_NONE",
                       "the model has no chat template (no key '%s' in '%s'); use --prompt "
                       "without --chat",
                       key, mp_quote(quoted, name, strlen(name)));
    if (source.text == NULL) {
        source.name = name;
        status = mp_gguf_get_string(gguf, key, &source.text, &bytes);
        source.bytes = bytes;
    }
    if (status == MP_OK)
        status = gguf_token(gguf, "tokenizer.ggml.bos_token_id", &bos);
    if (status == MP_OK)
        status = gguf_token(gguf, "tokenizer.ggml.eos_token_id", &eos);
    if (status == MP_OK)
        status = make_chat(&source, &none, add_both(json_object(), bos, eos), chat_p);
    free(eos);
    free(bos);
    return status;
}

static enum mp_status load_gguf_file(const char *path, const struct source *given,
                                     struct mp_chat **chat_p)
{
    struct mp_gguf *gguf = NULL;
    enum mp_status status = mp_gguf_open(path, &gguf);

    if (status == MP_OK)
        status = load_gguf(gguf, given, chat_p);
    mp_gguf_close(gguf);
    return status;
}

static enum mp_status load(const char *model, const struct source *given, struct mp_chat **chat_p)
{
    int dirfd;
    enum mp_status status;

    if (mp_gguf_is_file(model))
        return load_gguf_file(model, given, chat_p);
    status = mp_checkpoint_open_dir(model, &dirfd);
    if (status != MP_OK)
        return status;
    status = load_at(dirfd, given, chat_p);
    close(dirfd);
    return status;
}

enum mp_status mp_chat_load(const char *model, struct mp_chat **chat_p)
{
    return load(model, &(const struct source){ .text = NULL }, chat_p);
}

enum mp_status mp_chat_load_as(const char *model, const char *name, const char *jinja, size_t bytes,
                               struct mp_chat **chat_p)
{
    return load(model, &(const struct source){ name, jinja, bytes }, chat_p);
}

const struct mp_calls_style *mp_chat_calls(const struct mp_chat *chat)
{
    return chat->calls;
}

/* ---- rendering */

void mp_spans_free(struct mp_spans *spans)
{
    free(spans->spans);
    free(spans->text);
    memset(spans, 0, sizeof(*spans));
}

/* Takes the text of `output`, cut where it changes hands. */
static enum mp_status make_spans(struct mp_jinja_output *output, struct mp_spans *out)
{
    size_t count = 1, begin = 0;

    for (size_t i = 1; i < output->bytes; i++)
        count += output->foreign[i] != output->foreign[i - 1];
    out->spans = calloc(count, sizeof(*out->spans));
    if (out->spans == NULL)
        return mp_fail_no_memory("a prompt", count * sizeof(*out->spans));
    for (size_t i = 1; i <= output->bytes; i++) {
        if (i < output->bytes && output->foreign[i] == output->foreign[begin])
            continue;
        out->spans[out->count++] =
            (struct mp_span){ output->text + begin, i - begin, output->foreign[begin] == 0 };
        begin = i;
    }
    out->text = output->text;
    output->text = NULL;
    return MP_OK;
}

static enum mp_status run_template(const struct mp_chat *chat, const json_t *given, bool tools,
                                   struct mp_spans *out)
{
    const struct mp_jinja *jinja =
        tools && chat->with_tools != NULL ? chat->with_tools : chat->jinja;
    struct mp_jinja_output output = { .text = NULL };
    enum mp_status status = mp_jinja_render(jinja, chat->tokens, given, mp_clock_wall_s(), &output);

    if (status == MP_OK)
        status = make_spans(&output, out);
    mp_jinja_output_free(&output);
    return status;
}

static enum mp_status bad_roles(const char *what)
{
    return mp_fail(MP_ERR_CONFIG, "E_CHAT_ROLES", "a chat %s", what);
}

static enum mp_status check_messages(const struct mp_chat_input *input)
{
    const size_t count = json_array_size(input->messages);
    const json_t *last = count > 0 ? json_array_get(input->messages, count - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));

    if (count == 0)
        return bad_roles("needs a message");
    if (input->answer && role != NULL && strcmp(role, "assistant") == 0)
        return bad_roles("cannot answer an answer");
    return MP_OK;
}

/* The arguments of calls as texts, as OpenAI has them; NULL: no memory. */
static json_t *with_text_arguments(const json_t *messages)
{
    json_t *copy = json_deep_copy(messages), *message, *call;
    size_t i, k;

    json_array_foreach(copy, i, message)
    {
        json_array_foreach(json_object_get(message, "tool_calls"), k, call)
        {
            json_t *function = json_object_get(call, "function");
            json_t *arguments = json_object_get(function, "arguments");
            char *text = json_is_object(arguments) ? json_dumps(arguments, JSON_COMPACT) : NULL;

            if (text != NULL)
                json_object_set_new(function, "arguments", json_string_nocheck(text));
            free(text);
        }
    }
    return copy;
}

static json_t *make_vars(const struct mp_chat_input *input, const json_t *messages)
{
    json_t *vars = input->options != NULL ? json_copy((json_t *)input->options) : json_object();
    bool made =
        json_object_set(vars, "messages", (json_t *)messages) == 0 &&
        json_object_set_new(vars, "add_generation_prompt", json_boolean(input->answer)) == 0;

    if (made && input->tools != NULL)
        made = json_object_set(vars, "tools", (json_t *)input->tools) == 0;
    if (made)
        return vars;
    json_decref(vars);
    return NULL;
}

static enum mp_status render_with(const struct mp_chat *chat, const struct mp_chat_input *input,
                                  const json_t *messages, struct mp_spans *out)
{
    json_t *vars = messages != NULL ? make_vars(input, messages) : NULL;
    enum mp_status status = vars != NULL ? run_template(chat, vars, input->tools != NULL, out)
                                         : mp_fail_no_memory("a prompt", 0);

    json_decref(vars);
    return status;
}

/* Most templates want the arguments of calls as objects; those that do not fail with them. */
enum mp_status mp_chat_render_json(const struct mp_chat *chat, const struct mp_chat_input *input,
                                   struct mp_spans *out)
{
    enum mp_status status = check_messages(input);
    json_t *texts;

    if (status == MP_OK)
        status = render_with(chat, input, input->messages, out);
    if (status != MP_ERR_CONFIG || strcmp(mp_error_last()->code, "E_CHAT_RENDER") != 0)
        return status;
    texts = with_text_arguments(input->messages);
    status = render_with(chat, input, texts, out);
    json_decref(texts);
    return status;
}

static json_t *message_json(const struct mp_chat_message *message)
{
    static const char *const roles[] = { "system", "user", "assistant" };
    json_t *json = json_object();

    if (json_object_set_new(json, "role", json_string(roles[message->role])) == 0 &&
        json_object_set_new(json, "content", json_stringn_nocheck(message->text, message->bytes)) ==
            0)
        return json;
    json_decref(json);
    return NULL;
}

enum mp_status mp_chat_render(const struct mp_chat *chat, const struct mp_chat_message *messages,
                              size_t count, bool answer, struct mp_spans *out)
{
    json_t *array = json_array();
    const struct mp_chat_input input = { .messages = array, .answer = answer };
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < count && status == MP_OK; i++) {
        if (json_array_append_new(array, message_json(&messages[i])) != 0)
            status = mp_fail_no_memory("a prompt", messages[i].bytes);
    }
    if (status == MP_OK && array == NULL)
        status = mp_fail_no_memory("a prompt", 0);
    if (status == MP_OK)
        status = mp_chat_render_json(chat, &input, out);
    json_decref(array);
    return status;
}
