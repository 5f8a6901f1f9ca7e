/*
 * JSON texts and files through jansson, with bounds on depth and counts. Interpreting values is up
 * to the caller, with json_get.c.
 */
#include "vmm/format/json.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/io/file.h"

/* A string token that starts at text[at] == '"': the index behind its closing quote, or `bytes`. */
static size_t string_end(const char *text, size_t bytes, size_t at)
{
    mp_assert(at < bytes && text[at] == '"');
    for (at++; at < bytes && text[at] != '"'; at++) {
        if (text[at] == '\\')
            at++;
    }
    return at < bytes ? at + 1 : bytes;
}

/*
 * jansson does not report every failed allocation: where a token's buffer cannot grow, the byte is
 * dropped and parsing goes on with another string. So its allocations pass through here.
 */
static json_malloc_t library_malloc;
static _Thread_local bool allocation_failed;

static void *json_allocate(size_t bytes)
{
    void *block = library_malloc(bytes);

    mp_assert(library_malloc != NULL);
    if (block == NULL)
        allocation_failed = true;
    return block;
}

/* Around whatever the process has set before; what it frees with stays. */
static void count_allocations(void)
{
    json_free_t library_free;

    json_get_alloc_funcs(&library_malloc, &library_free);
    json_set_alloc_funcs(json_allocate, library_free);
}

static const char *code_or(const char *code, const char *fallback)
{
    mp_assert(fallback != NULL);
    return code != NULL ? code : fallback;
}

/*
 * One pass over the text before jansson's recursion sees it. Wrong nesting is left to jansson;
 * this only bounds how deep it can go and how many values it can make.
 */
static enum mp_status prescan(const char *text, size_t bytes, const char *shown,
                              const struct mp_json_options *options)
{
    uint64_t depth = 0, values = 0, commas = 0;

    mp_assert(text != NULL || bytes == 0);
    for (size_t at = 0; at < bytes; at++) {
        const char c = text[at];

        if (c == '"') {
            at = string_end(text, bytes, at) - 1;
        } else if (c == '{' || c == '[') {
            values++;
            if (++depth > MP_JSON_DEPTH_MAX)
                return mp_fail(MP_ERR_MODEL, code_or(options->depth_code, "E_JSON_DEPTH"),
                               "'%s' at byte %" PRIu64 ": JSON is nested deeper than %d", shown,
                               options->first_byte + at, MP_JSON_DEPTH_MAX);
        } else if (c == '}' || c == ']') {
            depth -= depth > 0;
        } else if (c == ',') {
            values++;
            commas += depth == 1;
        }
        if (values > MP_JSON_VALUES_MAX ||
            (options->entries_max > 0 && commas >= options->entries_max))
            return mp_fail(MP_ERR_MODEL, code_or(options->count_code, "E_JSON_COUNT"),
                           "'%s' at byte %" PRIu64 ": more than %" PRIu64 " %s", shown,
                           options->first_byte + at,
                           values > MP_JSON_VALUES_MAX ? MP_JSON_VALUES_MAX : options->entries_max,
                           values > MP_JSON_VALUES_MAX ? "values" : "entries");
    }
    return MP_OK;
}

/* jansson's text, "<what> near '<token>'", with what comes from the file quoted our way. */
static enum mp_status syntax_error(const char *shown, uint64_t byte, const char *code,
                                   const char *text)
{
    const char *token = strstr(text, " near '");
    char quoted[MP_QUOTE_BYTES];
    size_t length;

    mp_assert(text != NULL);
    if (token == NULL)
        return mp_fail(MP_ERR_MODEL, code, "'%s' at byte %" PRIu64 " is not valid JSON: %s", shown,
                       byte, text); /* the library's own words */
    length = strlen(token + 7);
    length -= length > 0; /* The closing quote. */
    return mp_fail(MP_ERR_MODEL, code, "'%s' at byte %" PRIu64 " is not valid JSON: %.*s near '%s'",
                   shown, byte, (int)(token - text), text, mp_quote(quoted, token + 7, length));
}

static enum mp_status parse_failed(const char *shown, const struct mp_json_options *options,
                                   const json_error_t *error)
{
    const uint64_t position = error->position < 0 ? 0 : (uint64_t)error->position;
    const uint64_t byte = options->first_byte + position;

    switch (json_error_code(error)) {
    case json_error_duplicate_key:
        return syntax_error(shown, byte, code_or(options->duplicate_code, "E_JSON_DUP"),
                            error->text);
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return mp_fail(MP_ERR_MODEL, code_or(options->code, "E_JSON"),
                       "'%s' at byte %" PRIu64 ": a string contains \\u0000", shown, byte);
    default: return syntax_error(shown, byte, code_or(options->code, "E_JSON"), error->text);
    }
}

enum mp_status mp_json_parse_with(const char *text, size_t bytes, const char *name,
                                  const struct mp_json_options *options, json_t **root_p)
{
    static const struct mp_json_options defaults = { 0 };
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char shown[MP_QUOTE_BYTES];
    json_error_t error;
    json_t *root;

    mp_assert(name != NULL);
    if (options == NULL)
        options = &defaults;
    mp_quote(shown, name, strlen(name));
    enum mp_status status = prescan(text, bytes, shown, options);
    if (status != MP_OK)
        return status;
    pthread_once(&once, count_allocations);
    allocation_failed = false;
    root = json_loadb(text, bytes,
                      JSON_REJECT_DUPLICATES | (options->allow_nul ? JSON_ALLOW_NUL : 0), &error);
    if (allocation_failed) {
        json_decref(root);
        return mp_fail_no_memory("JSON", bytes);
    }
    if (root == NULL)
        return parse_failed(shown, options, &error);
    *root_p = root;
    return MP_OK;
}

enum mp_status mp_json_parse(const char *text, size_t bytes, const char *name, json_t **root_p)
{
    return mp_json_parse_with(text, bytes, name, NULL, root_p);
}

enum mp_status mp_json_load_file(int dirfd, const char *name, uint64_t cap_bytes, json_t **root_p)
{
    enum mp_status status;
    size_t bytes;
    char *text;

    status = mp_text_load(dirfd, name, cap_bytes, &text, &bytes);
    if (status != MP_OK)
        return status;
    status = mp_json_parse(text, bytes, name, root_p);
    free(text);
    return status;
}

enum mp_status mp_json_load_optional_file(int dirfd, const char *name, uint64_t cap_bytes,
                                          json_t **root_p)
{
    enum mp_status status = mp_json_load_file(dirfd, name, cap_bytes, root_p);

    if (status == MP_ERR_MODEL && strcmp(mp_error_last()->code, "E_FILE_MISSING") == 0) {
        mp_assert(status == MP_ERR_MODEL);
        mp_error_clear();
        *root_p = NULL;
        return MP_OK;
    }
    return status;
}
