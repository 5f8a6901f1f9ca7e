/*
 * Requests from JSON: one table of keys for all kinds, then what each kind needs. The
 * messages of chats are request_chat.c's.
 */
#include "engine/serve/request.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/format/json.h"

#define NAME "request"

#define CHAT (1u << MP_REQUEST_CHAT)
#define TEXT (1u << MP_REQUEST_COMPLETION)
#define BOTH (CHAT | TEXT)

enum use {
    USED,    /* read below */
    IGNORED, /* says who asks, or how it is charged */
    UNMOVED, /* only with the value that changes nothing: null, false, 0, "", empty */
    ONE      /* the same, and 1 */
};

static const struct {
    const char *name;
    unsigned kinds;
    enum use use;
} keys[] = {
    { "model", BOTH, USED },
    { "messages", CHAT, USED },
    { "prompt", TEXT, USED },
    { "max_tokens", BOTH, USED },
    { "max_completion_tokens", CHAT, USED },
    { "temperature", BOTH, USED },
    { "top_p", BOTH, USED },
    { "top_k", BOTH, USED },
    { "seed", BOTH, USED },
    { "n", BOTH, USED },
    { "stop", BOTH, USED },
    { "stream", BOTH, USED },
    { "stream_options", BOTH, USED },
    { "ignore_eos", BOTH, USED },
    { "response_format", CHAT, USED },
    { "content", 1u << MP_REQUEST_TOKENIZE, USED },
    { "add_special", 1u << MP_REQUEST_TOKENIZE, USED },
    { "tokens", 1u << MP_REQUEST_DETOKENIZE, USED },
    { "budget", 1u << MP_REQUEST_BUDGET, USED },
    { "user", BOTH, IGNORED },
    { "metadata", BOTH, IGNORED },
    { "store", BOTH, IGNORED },
    { "service_tier", BOTH, IGNORED },
    { "safety_identifier", BOTH, IGNORED },
    { "prompt_cache_key", BOTH, IGNORED },
    { "parallel_tool_calls", CHAT, USED },
    { "frequency_penalty", BOTH, UNMOVED },
    { "presence_penalty", BOTH, UNMOVED },
    { "logit_bias", BOTH, UNMOVED },
    { "logprobs", BOTH, USED },
    { "top_logprobs", CHAT, USED },
    { "tools", CHAT, USED },
    { "tool_choice", CHAT, USED },
    { "reasoning_effort", CHAT, USED },
    { "chat_template_kwargs", CHAT, USED },
    { "functions", CHAT, UNMOVED },
    { "echo", TEXT, UNMOVED },
    { "suffix", TEXT, UNMOVED },
    { "best_of", TEXT, ONE },
};

static bool moves_nothing(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
    case JSON_FALSE: return true;
    case JSON_INTEGER:
    case JSON_REAL: return json_number_value(value) == 0;
    case JSON_STRING: return json_string_length(value) == 0;
    case JSON_ARRAY: return json_array_size(value) == 0;
    case JSON_OBJECT: return json_object_size(value) == 0;
    default: return false;
    }
}

static enum mp_status check_key(enum mp_request_kind kind, const char *key, const json_t *value)
{
    char quoted[MP_QUOTE_BYTES], got[MP_QUOTE_BYTES];

    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++) {
        if (strcmp(keys[i].name, key) != 0 || !(keys[i].kinds & 1u << kind))
            continue;
        if (keys[i].use < UNMOVED || moves_nothing(value))
            return MP_OK;
        if (keys[i].use == ONE && json_is_integer(value) && json_integer_value(value) == 1)
            return MP_OK;
        return mp_fail(MP_ERR_CONFIG, "E_REQUEST_KEY",
                       "'%s' of the " NAME " is not supported: got %s",
                       mp_quote(quoted, key, strlen(key)), mp_json_describe(got, value));
    }
    return mp_fail(MP_ERR_CONFIG, "E_REQUEST_KEY", "'%s' of the " NAME " is not known",
                   mp_quote(quoted, key, strlen(key)));
}

static enum mp_status check_keys(enum mp_request_kind kind, json_t *root)
{
    enum mp_status status = MP_OK;
    const char *key;
    json_t *value;

    json_object_foreach(root, key, value)
    {
        if (status == MP_OK)
            status = check_key(kind, key, value);
    }
    return status;
}

enum mp_status mp_request_bad(const char *key, const char *need)
{
    return mp_fail(MP_ERR_CONFIG, "E_REQUEST", "'%s' of the " NAME ": need %s", key, need);
}

/* ---- prompts */

static enum mp_status read_ids(const json_t *array, const char *key, uint32_t *ids)
{
    const json_t *item;
    size_t i;

    json_array_foreach(array, i, item)
    {
        const json_int_t id = json_integer_value(item);

        if (!json_is_integer(item) || id < 0 || id >= UINT32_MAX)
            return mp_request_bad(key, "numbers of tokens");
        ids[i] = (uint32_t)id;
    }
    return MP_OK;
}

static enum mp_status add_text(struct mp_request *request, const json_t *text)
{
    request->prompts[request->prompt_count++] =
        (struct mp_request_prompt){ .text = json_string_value(text),
                                    .bytes = json_string_length(text) };
    return MP_OK;
}

/* Ids go behind those of the prompts before; `*used_p` counts them. */
static enum mp_status add_ids(struct mp_request *request, const json_t *array, const char *key,
                              size_t *used_p)
{
    const size_t count = json_array_size(array);
    uint32_t *ids = request->ids + *used_p;

    *used_p += count;
    request->prompts[request->prompt_count++] =
        (struct mp_request_prompt){ .ids = ids, .count = count };
    return read_ids(array, key, ids);
}

/* How many ids all prompts have; anything else counts as none and is refused later. */
static size_t count_ids(const json_t *value)
{
    size_t all = json_array_size(value), i;
    const json_t *item;

    json_array_foreach(value, i, item) all += json_array_size(item);
    return all;
}

/* A text, ids, or an array of either. */
static enum mp_status read_prompts(struct mp_request *request, const char *key)
{
    static const char need[] = "text, numbers of tokens, or 1 to 64 of either";
    const json_t *value = json_object_get(request->root, key), *item;
    enum mp_status status = MP_OK;
    size_t used = 0, i;

    if (json_is_string(value))
        return add_text(request, value);
    if (!json_is_array(value) || json_array_size(value) == 0)
        return mp_request_bad(key, need);
    request->ids = calloc(count_ids(value), sizeof(uint32_t));
    if (request->ids == NULL)
        return mp_fail_no_memory("a " NAME, count_ids(value) * sizeof(uint32_t));
    if (json_is_integer(json_array_get(value, 0)))
        return add_ids(request, value, key, &used);
    if (json_array_size(value) > MP_REQUEST_PROMPTS_MAX)
        return mp_request_bad(key, need);
    json_array_foreach(value, i, item)
    {
        if (status != MP_OK)
            break;
        if (json_is_string(item))
            status = add_text(request, item);
        else if (json_is_array(item))
            status = add_ids(request, item, key, &used);
        else
            status = mp_request_bad(key, need);
    }
    return status;
}

/* ---- what is to be generated */

static enum mp_status read_stops(struct mp_request *request)
{
    const json_t *value = json_object_get(request->root, "stop"), *item;
    size_t i;

    if (value == NULL || json_is_null(value))
        return MP_OK;
    if (json_is_string(value)) {
        request->stops[request->stop_count++] = json_string_value(value);
    } else if (json_is_array(value) && json_array_size(value) <= MP_STOPS_MAX) {
        json_array_foreach(value, i, item)
        {
            if (!json_is_string(item))
                return mp_request_bad("stop", "a text or at most 16 texts");
            request->stops[request->stop_count++] = json_string_value(item);
        }
    } else {
        return mp_request_bad("stop", "a text or at most 16 texts");
    }
    for (i = 0; i < request->stop_count; i++) {
        if (strlen(request->stops[i]) == 0)
            return mp_request_bad("stop", "texts that are not empty and have no NUL");
    }
    return MP_OK;
}

static enum mp_status read_sampling(struct mp_request *request, const struct mp_sampling *defaults)
{
    const json_t *root = request->root, *seed = json_object_get(root, "seed");
    struct mp_sampling *s = &request->sampling;
    uint64_t top_k = 0;
    enum mp_status status;

    *s = *defaults;
    status = mp_json_double_or(root, "temperature", NAME, 0, 100, s->temperature, &s->temperature);
    if (status == MP_OK)
        status = mp_json_double_or(root, "top_p", NAME, 0, 1, s->top_p, &s->top_p);
    if (status == MP_OK)
        status = mp_json_u64_or(root, "top_k", NAME, 0, 1u << 22, s->top_k, &top_k);
    s->top_k = (uint32_t)top_k;
    if (status == MP_OK && json_is_integer(seed))
        s->seed = (uint64_t)json_integer_value(seed);
    else if (status == MP_OK && seed != NULL && !json_is_null(seed))
        status = mp_request_bad("seed", "a whole number");
    return status == MP_OK ? mp_sampling_check(s) : status;
}

static enum mp_status read_counts(struct mp_request *request)
{
    const json_t *root = request->root, *options;
    uint64_t max_tokens = 0, newer = 0, n = 1;
    enum mp_status status = mp_json_u64_or(root, "max_tokens", NAME, 1, 1u << 24, 0, &max_tokens);

    if (status == MP_OK)
        status = mp_json_u64_or(root, "max_completion_tokens", NAME, 1, 1u << 24, 0, &newer);
    if (status == MP_OK)
        status = mp_json_u64_or(root, "n", NAME, 1, MP_REQUEST_CHOICES_MAX, 1, &n);
    request->max_tokens = (uint32_t)(newer > 0 ? newer : max_tokens);
    request->n = (uint32_t)n;
    if (status == MP_OK)
        status = mp_json_bool_or(root, "stream", NAME, false, &request->stream);
    if (status == MP_OK)
        status = mp_json_bool_or(root, "ignore_eos", NAME, false, &request->ignore_eos);
    options = json_object_get(root, "stream_options");
    if (status == MP_OK && options != NULL && !json_is_null(options))
        status = mp_json_bool_or(options, "include_usage", NAME, false, &request->stream_usage);
    return status;
}

/* A switch and a number in chats; in completions one number, of which 0 is one, too. */
static enum mp_status read_logprobs(struct mp_request *request)
{
    const json_t *root = request->root, *value = json_object_get(root, "logprobs");
    const bool chat = request->kind == MP_REQUEST_CHAT;
    uint64_t top = 0;
    enum mp_status status = MP_OK;

    if (chat)
        status = mp_json_bool_or(root, "logprobs", NAME, false, &request->logprobs);
    else
        request->logprobs = value != NULL && !json_is_null(value) && !json_is_false(value);
    if (status == MP_OK && (chat || request->logprobs))
        status = mp_json_u64_or(root, chat ? "top_logprobs" : "logprobs", NAME, 0,
                                MP_REQUEST_TOP_MAX, 0, &top);
    if (status == MP_OK && top > 0 && !request->logprobs)
        status = mp_request_bad("top_logprobs", "logprobs true");
    request->top_logprobs = (uint32_t)top;
    return status;
}

static enum mp_status read_format(struct mp_request *request)
{
    const json_t *format = json_object_get(request->root, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));

    if (format == NULL || json_is_null(format) || (type != NULL && strcmp(type, "text") == 0))
        return MP_OK;
    if (type != NULL && strcmp(type, "json_object") == 0) {
        request->format = MP_FORMAT_OBJECT;
        return MP_OK;
    }
    if (type == NULL || strcmp(type, "json_schema") != 0)
        return mp_request_bad("response_format",
                              "type \"text\", \"json_object\" or \"json_schema\"");
    request->format = MP_FORMAT_SCHEMA;
    request->schema = json_object_get(json_object_get(format, "json_schema"), "schema");
    return json_is_object(request->schema)
               ? MP_OK
               : mp_request_bad("response_format", "an object json_schema.schema");
}

static enum mp_status read_generation(struct mp_request *request,
                                      const struct mp_sampling *defaults)
{
    enum mp_status status = read_sampling(request, defaults);

    if (status == MP_OK)
        status = read_counts(request);
    if (status == MP_OK)
        status = read_stops(request);
    if (status == MP_OK)
        status = read_logprobs(request);
    if (status == MP_OK)
        status = read_format(request);
    if (status == MP_OK)
        status = request->kind == MP_REQUEST_CHAT ? mp_request_read_chat(request)
                                                  : read_prompts(request, "prompt");
    if (status == MP_OK && request->kind == MP_REQUEST_COMPLETION &&
        request->prompt_count * request->n > MP_REQUEST_CHOICES_MAX)
        status = mp_request_bad("n", "at most 64 answers, prompts times n");
    return status;
}

static enum mp_status read_kind(struct mp_request *request, const struct mp_sampling *defaults)
{
    const json_t *value;

    switch (request->kind) {
    case MP_REQUEST_CHAT:
    case MP_REQUEST_COMPLETION: return read_generation(request, defaults);
    case MP_REQUEST_TOKENIZE:
        value = json_object_get(request->root, "content");
        if (!json_is_string(value))
            return mp_request_bad("content", "text");
        (void)add_text(request, value);
        return mp_json_bool_or(request->root, "add_special", NAME, false, &request->add_special);
    case MP_REQUEST_DETOKENIZE:
        value = json_object_get(request->root, "tokens");
        if (!json_is_array(value) ||
            (json_array_size(value) > 0 && !json_is_integer(json_array_get(value, 0))))
            return mp_request_bad("tokens", "numbers of tokens");
        return json_array_size(value) > 0 ? read_prompts(request, "tokens") : MP_OK;
    case MP_REQUEST_BUDGET: return mp_json_string(request->root, "budget", NAME, &request->budget);
    case MP_REQUEST_STATE: break;
    }
    return MP_OK;
}

enum mp_status mp_request_parse(enum mp_request_kind kind, const char *body, size_t bytes,
                                const struct mp_sampling *defaults, struct mp_request *request)
{
    const struct mp_json_options options = { .allow_nul = true };
    enum mp_status status;

    memset(request, 0, sizeof(*request));
    request->kind = kind;
    status = mp_json_parse_with(body, bytes, NAME, &options, &request->root);
    if (status == MP_OK && !json_is_object(request->root))
        status = mp_fail(MP_ERR_CONFIG, "E_REQUEST", "the request is no JSON object");
    if (status == MP_OK)
        status = check_keys(kind, request->root);
    if (status == MP_OK)
        status = read_kind(request, defaults);
    if (status != MP_OK)
        mp_request_free(request);
    return status;
}

void mp_request_free(struct mp_request *request)
{
    json_decref(request->messages);
    json_decref(request->options);
    free(request->ids);
    json_decref(request->root);
    memset(request, 0, sizeof(*request));
}
