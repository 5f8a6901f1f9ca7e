/*
 * Bodies of requests to the server; the first byte says to which path. What is accepted must keep
 * the promises of engine/serve/request.h.
 */
#include "engine/serve/request.h"

#include <math.h>

#include "engine/text/grammar/grammar.h"
#include "tests/fuzz/text.h"

/* A schema makes a grammar or is refused; no byte takes a grammar out of its bounds, nor to where
 * nothing can follow before the end. */
static void check_schema(const json_t *schema)
{
    struct mp_grammar_state state, next;
    struct mp_grammar *g = NULL;
    const enum mp_status status = mp_grammar_create(schema, &g);

    if (status != MP_OK) {
        FUZZ_CHECK(status == MP_ERR_CONFIG);
        fuzz_check_message(mp_error_last()->text);
        return;
    }
    mp_grammar_begin(g, &state);
    for (unsigned i = 0; i < 256; i++) {
        unsigned byte = 0;

        while (byte < 256 && !mp_grammar_step(g, &state, (uint8_t)(byte * 37 + i), &next))
            byte++;
        if (byte == 256) {
            FUZZ_CHECK(mp_grammar_can_end(g, &state));
            break;
        }
        FUZZ_CHECK(next.count > 0 && next.count <= MP_GRAMMAR_PATHS_MAX);
        state = next;
    }
    mp_grammar_destroy(g);
}

static void check_request(const struct mp_request *r)
{
    const json_t *message;
    size_t m;

    FUZZ_CHECK(r->sampling.temperature >= 0 && r->sampling.temperature <= 100);
    FUZZ_CHECK(r->prompt_count <= MP_REQUEST_PROMPTS_MAX);
    FUZZ_CHECK(json_array_size(r->messages) <= MP_REQUEST_MESSAGES_MAX);
    FUZZ_CHECK(r->stop_count <= MP_STOPS_MAX);
    for (uint32_t i = 0; i < r->stop_count; i++)
        FUZZ_CHECK(r->stops[i][0] != '\0');
    json_array_foreach(r->messages, m, message)
        FUZZ_CHECK(json_is_string(json_object_get(message, "role")) &&
                   json_is_string(json_object_get(message, "content")));
    FUZZ_CHECK(json_array_size(r->tools) <= MP_REQUEST_TOOLS_MAX);
    FUZZ_CHECK(r->tools != NULL || r->tool_choice == MP_TOOLS_AUTO);
    for (uint32_t i = 0; i < r->prompt_count; i++) {
        uint64_t sum = 0;

        if (r->prompts[i].text != NULL)
            FUZZ_CHECK(mp_is_utf8(r->prompts[i].text, r->prompts[i].bytes));
        for (size_t k = 0; r->prompts[i].text == NULL && k < r->prompts[i].count; k++)
            sum += r->prompts[i].ids[k];
        FUZZ_CHECK(sum < UINT64_MAX);
    }
    if (r->format == MP_FORMAT_SCHEMA)
        check_schema(r->schema);
    if (r->kind == MP_REQUEST_CHAT)
        FUZZ_CHECK(json_array_size(r->messages) > 0 && r->n >= 1 && r->n <= MP_REQUEST_CHOICES_MAX);
    if (r->kind == MP_REQUEST_COMPLETION)
        FUZZ_CHECK(r->prompt_count > 0 && r->prompt_count * r->n <= MP_REQUEST_CHOICES_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct mp_sampling defaults = { .top_p = 1 };
    struct mp_request request;
    enum mp_status status;

    if (bytes == 0)
        return 0;
    mp_error_clear();
    status = mp_request_parse((enum mp_request_kind)(data[0] % MP_REQUEST_STATE),
                              (const char *)data + 1, bytes - 1, &defaults, &request);
    if (status == MP_OK) {
        check_request(&request);
        mp_request_free(&request);
        return 0;
    }
    FUZZ_CHECK(status == MP_ERR_MODEL || status == MP_ERR_CONFIG);
    FUZZ_CHECK(mp_error_last()->status == status && mp_error_last()->text[0] != '\0');
    fuzz_check_message(mp_error_last()->text);
    return 0;
}
