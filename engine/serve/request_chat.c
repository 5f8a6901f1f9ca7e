/*
 * What only requests for chats have: messages, tools, variables of templates. Messages become what
 * templates know: text as one text, arguments of calls as objects, no other keys.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/request.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/format/json.h"

#define NAME "request"

/* Takes `value`, which may be NULL: no memory. */
static enum mp_status put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0 ? MP_OK : mp_fail_no_memory("a " NAME, 64);
}

static enum mp_status put_same(json_t *object, const char *key, const json_t *value)
{
    return put(object, key, json_incref((json_t *)value));
}

/* ---- messages */

/* The texts of [{"type": "text", "text": ...}, ...] as one. */
static enum mp_status put_parts(json_t *message, const json_t *parts)
{
    size_t bytes = 0, i;
    const json_t *part;
    char *text, *at;
    enum mp_status status;

    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *content = json_object_get(part, "text");

        if (type == NULL || strcmp(type, "text") != 0 || !json_is_string(content))
            return mp_request_bad("content",
                                  "text, or parts of type \"text\"; pictures and sounds are not "
                                  "supported");
        bytes += json_string_length(content);
    }
    text = at = malloc(bytes + 1);
    if (text == NULL)
        return mp_fail_no_memory("a " NAME, bytes + 1);
    json_array_foreach(parts, i, part)
    {
        const json_t *content = json_object_get(part, "text");

        memcpy(at, json_string_value(content), json_string_length(content));
        at += json_string_length(content);
    }
    status = put(message, "content", json_stringn_nocheck(text, bytes));
    free(text);
    return status;
}

/* Only a message with calls may say nothing. */
static enum mp_status read_content(const json_t *object, json_t *message)
{
    const json_t *content = json_object_get(object, "content");

    if (json_is_array(content))
        return put_parts(message, content);
    if (json_is_string(content))
        return put_same(message, "content", content);
    if ((content == NULL || json_is_null(content)) &&
        json_array_size(json_object_get(object, "tool_calls")) > 0)
        return put(message, "content", json_string(""));
    return mp_request_bad("content", "text in every message");
}

static enum mp_status read_role(const json_t *object, json_t *message)
{
    static const struct {
        const char *name, *as;
    } roles[] = {
        { "system", "system" },       { "developer", "system" }, { "user", "user" },
        { "assistant", "assistant" }, { "tool", "tool" },
    };
    const char *name = json_string_value(json_object_get(object, "role"));

    for (size_t i = 0; name != NULL && i < MP_ARRAY_LEN(roles); i++) {
        if (strcmp(roles[i].name, name) == 0)
            return put(message, "role", json_string(roles[i].as));
    }
    return mp_request_bad("role", "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\" "
                                  "in every message");
}

/* Arguments that are the text of an object become the object. */
static enum mp_status read_call(const json_t *call, json_t *calls)
{
    const json_t *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function, "name");
    const json_t *arguments = json_object_get(function, "arguments");
    json_t *made, *inner, *parsed = NULL;
    enum mp_status status;

    if (!json_is_string(name) || (!json_is_string(arguments) && !json_is_object(arguments)))
        return mp_request_bad("tool_calls", "a function with a name and arguments in each");
    if (json_is_string(arguments))
        parsed = json_loadb(json_string_value(arguments), json_string_length(arguments),
                            JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    made = json_object();
    inner = json_object();
    status = put_same(inner, "name", name);
    if (status == MP_OK)
        status = put_same(inner, "arguments", json_is_object(parsed) ? parsed : arguments);
    json_decref(parsed);
    if (status == MP_OK)
        status = put(made, "type", json_string("function"));
    if (status == MP_OK && json_is_string(json_object_get(call, "id")))
        status = put_same(made, "id", json_object_get(call, "id"));
    if (status == MP_OK)
        status = put_same(made, "function", inner);
    json_decref(inner);
    if (status == MP_OK && json_array_append(calls, made) != 0)
        status = mp_fail_no_memory("a " NAME, 64);
    json_decref(made);
    return status;
}

static enum mp_status read_calls(const json_t *object, json_t *message)
{
    const json_t *array = json_object_get(object, "tool_calls"), *call;
    json_t *calls;
    enum mp_status status;
    size_t i;

    if (array == NULL || json_is_null(array))
        return MP_OK;
    if (!json_is_array(array) || json_array_size(array) > MP_CALLS_MAX)
        return mp_request_bad("tool_calls", "at most 128 calls");
    calls = json_array();
    status = put(message, "tool_calls", calls);
    json_array_foreach(array, i, call)
    {
        if (status == MP_OK)
            status = read_call(call, calls);
    }
    return status;
}

static enum mp_status read_message(const json_t *object, json_t *message)
{
    const json_t *thoughts = json_object_get(object, "reasoning_content");
    const json_t *id = json_object_get(object, "tool_call_id"), *name;
    enum mp_status status = read_role(object, message);

    if (thoughts == NULL)
        thoughts = json_object_get(object, "reasoning");
    if (status == MP_OK)
        status = read_content(object, message);
    if (status == MP_OK && json_is_string(thoughts))
        status = put_same(message, "reasoning_content", thoughts);
    if (status == MP_OK)
        status = read_calls(object, message);
    if (status == MP_OK && json_is_string(id))
        status = put_same(message, "tool_call_id", id);
    name = json_object_get(object, "name");
    if (status == MP_OK && json_is_string(name))
        status = put_same(message, "name", name);
    return status;
}

static enum mp_status read_messages(struct mp_request *request)
{
    const json_t *array = json_object_get(request->root, "messages"), *object;
    const size_t count = json_array_size(array);
    enum mp_status status = MP_OK;
    size_t i;

    if (count == 0 || count > MP_REQUEST_MESSAGES_MAX)
        return mp_request_bad("messages", "1 to 4096 messages");
    request->messages = json_array();
    json_array_foreach(array, i, object)
    {
        json_t *message = json_object();

        if (json_array_append_new(request->messages, message) != 0)
            return mp_fail_no_memory("a " NAME, 64);
        status = read_message(object, message);
        if (status != MP_OK)
            return status;
    }
    return MP_OK;
}

/* ---- tools */

static bool is_name(const char *name)
{
    size_t bytes = 0;

    while (name != NULL && (isalnum((unsigned char)name[bytes]) ||
                            (name[bytes] != '\0' && strchr("_-.", name[bytes]) != NULL)))
        bytes++;
    return bytes > 0 && bytes <= 64 && name[bytes] == '\0';
}

static enum mp_status check_tool(const json_t *tool)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *function = json_object_get(tool, "function");
    const json_t *parameters = json_object_get(function, "parameters");

    if (type == NULL || strcmp(type, "function") != 0)
        return mp_request_bad("tools", "type \"function\" in each");
    if (!is_name(json_string_value(json_object_get(function, "name"))))
        return mp_request_bad("tools", "a name of 1 to 64 letters, digits, _, - and . in each");
    if (parameters != NULL && !json_is_object(parameters))
        return mp_request_bad("tools", "an object as parameters");
    return MP_OK;
}

static enum mp_status read_tools(struct mp_request *request)
{
    const json_t *tools = json_object_get(request->root, "tools"), *tool;
    enum mp_status status = MP_OK;
    size_t i;

    if (tools == NULL || json_is_null(tools))
        return MP_OK;
    if (!json_is_array(tools) || json_array_size(tools) > MP_REQUEST_TOOLS_MAX)
        return mp_request_bad("tools", "at most 128 tools");
    json_array_foreach(tools, i, tool)
    {
        if (status == MP_OK)
            status = check_tool(tool);
    }
    if (json_array_size(tools) > 0)
        request->tools = tools;
    return status;
}

static bool has_tool(const json_t *tools, const char *name)
{
    const json_t *tool;
    size_t i;

    json_array_foreach(tools, i, tool)
    {
        if (strcmp(json_string_value(json_object_get(json_object_get(tool, "function"), "name")),
                   name) == 0)
            return true;
    }
    return false;
}

static enum mp_status read_tool_choice(struct mp_request *request)
{
    const json_t *choice = json_object_get(request->root, "tool_choice");
    const char *word = json_string_value(choice);
    const char *name =
        json_string_value(json_object_get(json_object_get(choice, "function"), "name"));

    if (choice == NULL || json_is_null(choice) || (word != NULL && strcmp(word, "auto") == 0))
        return MP_OK;
    if (word != NULL && strcmp(word, "none") == 0) {
        request->tools = NULL;
        return MP_OK;
    }
    if (word == NULL ? name == NULL : strcmp(word, "required") != 0)
        return mp_request_bad("tool_choice", "\"none\", \"auto\", \"required\" or a function");
    if (name != NULL ? !has_tool(request->tools, name) : request->tools == NULL)
        return mp_request_bad("tool_choice", "a function of 'tools'");
    request->tool_choice = name != NULL ? MP_TOOLS_NAMED : MP_TOOLS_REQUIRED;
    request->tool_name = name;
    return MP_OK;
}

/* ---- variables of templates */

static enum mp_status read_options(struct mp_request *request)
{
    const json_t *given = json_object_get(request->root, "chat_template_kwargs");
    const json_t *effort = json_object_get(request->root, "reasoning_effort");
    enum mp_status status = MP_OK;

    if (given != NULL && !json_is_null(given) && !json_is_object(given))
        return mp_request_bad("chat_template_kwargs", "an object");
    if (effort != NULL && !json_is_null(effort) && !json_is_string(effort))
        return mp_request_bad("reasoning_effort", "text");
    request->options = json_is_object(given) ? json_copy((json_t *)given) : json_object();
    if (request->options == NULL)
        return mp_fail_no_memory("a " NAME, 64);
    if (json_is_string(effort))
        status = put_same(request->options, "reasoning_effort", effort);
    if (status == MP_OK && json_is_string(effort) && strcmp(json_string_value(effort), "none") == 0)
        status = put(request->options, "enable_thinking", json_false());
    return status;
}

enum mp_status mp_request_read_chat(struct mp_request *request)
{
    enum mp_status status = read_messages(request);

    if (status == MP_OK)
        status = read_tools(request);
    if (status == MP_OK)
        status = read_tool_choice(request);
    if (status == MP_OK)
        status =
            mp_json_bool_or(request->root, "parallel_tool_calls", NAME, true, &request->parallel);
    if (status == MP_OK)
        status = read_options(request);
    if (status == MP_OK && request->tools != NULL && request->format != MP_FORMAT_TEXT)
        status = mp_request_bad("response_format", "type \"text\" where tools may be called");
    return status;
}
