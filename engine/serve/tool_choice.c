/*
 * Calls of tools that have to come: the grammar of the calls of the model's chat format, and the
 * tokens that its words may be.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/server_int.h"
#include "vmm/base/error.h"

/* ---- words */

static bool is_word(const struct mp_calls_style *style, const char *content, size_t bytes)
{
    for (size_t i = 0; i < MP_CALLS_TEXTS; i++) {
        const char *text = style->text[i];

        if (text != NULL && bytes > 2 && memmem(text, strlen(text), content, bytes) != NULL)
            return true;
    }
    return false;
}

void mp_tools_find_words(const struct mp_server_config *config, struct mp_token_words *words)
{
    const struct mp_tokenizer *tok = config->session->tokenizer;
    const struct mp_calls_style *style = config->chat != NULL ? mp_chat_calls(config->chat) : NULL;
    const uint32_t vocab = style != NULL ? mp_tokenizer_vocab_count(tok) : 0;

    words->count = 0;
    for (uint32_t id = 0; id < vocab && words->count < MP_TOKEN_WORDS_MAX; id++) {
        size_t bytes = 0;
        const char *content = mp_tokenizer_content(tok, id, &bytes);
        char text[64];

        if (content == NULL || (content[0] != '<' && content[0] != '[') ||
            !is_word(style, content, bytes))
            continue;
        if (mp_tokenizer_is_special(tok, id) || mp_tokenizer_bytes(tok, id, text, 64) == 0)
            words->ids[words->count++] = id;
    }
}

/* ---- the grammar */

#define PARTS_OF_TOOL 5
#define PARTS_OF_KEY 5

/* The parts of all tools' calls; `list` has room for all. */
struct parts {
    struct mp_grammar_part *list;
    size_t count;
};

static void add(struct parts *p, struct mp_grammar_part part)
{
    p->list[p->count++] = part;
}

static void add_text(struct parts *p, const char *text)
{
    add(p, (struct mp_grammar_part){ .text = text });
}

static bool is_in(const json_t *names, const char *name)
{
    const json_t *item;
    size_t i;

    json_array_foreach(names, i, item)
    {
        if (json_is_string(item) && strcmp(json_string_value(item), name) == 0)
            return true;
    }
    return false;
}

/* Texts stand between their tags as they are, all else as JSON. */
static void add_tagged(struct parts *p, const struct mp_calls_style *style,
                       const json_t *parameters)
{
    json_t *all = json_object_get(parameters, "properties"), *schema;
    const char *key;

    json_object_foreach(all, key, schema)
    {
        const char *type = json_string_value(json_object_get(schema, "type"));
        const bool text = type != NULL && strcmp(type, "string") == 0;
        const bool json = !text && style->text[MP_CALLS_JSON] != NULL;
        const bool required = is_in(json_object_get(parameters, "required"), key);

        add(p, (struct mp_grammar_part){ .text = style->text[MP_CALLS_KEY],
                                         .optional = required ? 0 : PARTS_OF_KEY });
        add_text(p, key);
        add_text(p, style->text[json ? MP_CALLS_JSON : MP_CALLS_VALUE]);
        add(p, (struct mp_grammar_part){ .schema = text ? NULL : schema });
        add_text(p, style->text[json ? MP_CALLS_JSON_END : MP_CALLS_VALUE_END]);
    }
}

static void add_tool(struct parts *p, const struct mp_calls_style *style, const json_t *tool,
                     const json_t *any)
{
    const json_t *function = json_object_get(tool, "function");
    const json_t *parameters = json_object_get(function, "parameters");
    const char *type = json_string_value(json_object_get(parameters, "type"));

    if (type == NULL || strcmp(type, "object") != 0)
        parameters = any;
    add_text(p, style->text[MP_CALLS_NAME]);
    add_text(p, json_string_value(json_object_get(function, "name")));
    add_text(p, style->text[MP_CALLS_ARGUMENTS]);
    if (style->kind == MP_CALLS_TAGGED || style->kind == MP_CALLS_BARE)
        add_tagged(p, style, parameters);
    else
        add(p, (struct mp_grammar_part){ .schema = parameters });
    add_text(p, style->text[MP_CALLS_END]);
}

/* The choices' parts are those of `parts`, which holds the tools' one behind another. */
static size_t make_choices(const struct mp_request *request, const struct mp_calls_style *style,
                           const json_t *any, struct parts *parts,
                           struct mp_grammar_choice *choices)
{
    size_t count = 0, i;
    const json_t *tool;

    json_array_foreach(request->tools, i, tool)
    {
        const char *name =
            json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        const size_t before = parts->count;

        if (request->tool_name != NULL && strcmp(request->tool_name, name) != 0)
            continue;
        add_tool(parts, style, tool, any);
        choices[count++].count = parts->count - before;
        if (request->tool_name != NULL)
            break;
    }
    for (size_t k = 0, at = 0; k < count; k++) {
        choices[k].parts = parts->list + at;
        at += choices[k].count;
    }
    return count;
}

static struct mp_grammar_part *make_room(const json_t *tools)
{
    size_t count = 0, i;
    const json_t *tool;

    json_array_foreach(tools, i, tool)
    {
        const json_t *parameters = json_object_get(json_object_get(tool, "function"), "parameters");

        count += PARTS_OF_TOOL +
                 PARTS_OF_KEY * json_object_size(json_object_get(parameters, "properties"));
    }
    return calloc(count, sizeof(struct mp_grammar_part));
}

enum mp_status mp_tools_grammar(const struct mp_request *request,
                                const struct mp_calls_style *style, bool thinking,
                                struct mp_grammar **grammar_p)
{
    struct mp_grammar_choice choices[MP_GRAMMAR_CHOICES_MAX];
    struct mp_grammar_frame frame = { .of = "tools" };
    struct parts parts = { make_room(request->tools), 0 };
    json_t *any = json_pack("{s:s}", "type", "object");
    enum mp_status status;
    char before[64];

    if (request->tool_name == NULL && json_array_size(request->tools) > MP_GRAMMAR_CHOICES_MAX) {
        status = mp_request_bad("tools", "at most 32 of them with tool_choice \"required\"");
    } else if (parts.list == NULL || any == NULL) {
        status = mp_fail_no_memory("a schema", 0);
    } else {
        const size_t count = make_choices(request, style, any, &parts, choices);

        snprintf(before, sizeof(before), "%s\n\n", thinking ? style->text[MP_CALLS_THOUGHT] : "");
        frame.before[0] = thinking ? before : NULL;
        frame.before[1] = style->text[MP_CALLS_OPEN];
        frame.close =
            style->text[style->text[MP_CALLS_CLOSE] != NULL ? MP_CALLS_CLOSE : MP_CALLS_TAIL];
        if (request->parallel && request->tool_name == NULL)
            frame.next = style->text[MP_CALLS_NEXT];
        status = mp_grammar_create_choices(&frame, choices, count, grammar_p);
    }
    free(parts.list);
    json_decref(any);
    return status;
}
