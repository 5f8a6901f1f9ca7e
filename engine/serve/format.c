/*
 * Answers that must be JSON, or calls: each token is one that the grammar of the request allows.
 * The grammar itself is engine/text/grammar.
 */
#include <stdlib.h>

#include "engine/serve/server_int.h"

enum mp_status mp_format_open(struct mp_exchange *exchange)
{
    const struct mp_request *request = &exchange->request;
    const size_t bytes = exchange->choice_count * sizeof(*exchange->states);
    enum mp_status status;

    if (request->format != MP_FORMAT_TEXT)
        status = mp_grammar_create(request->schema, &exchange->grammar);
    else if (request->tools != NULL && request->tool_choice != MP_TOOLS_AUTO)
        status = mp_tools_grammar(request, exchange->style, exchange->thinking, &exchange->grammar);
    else
        return MP_OK;
    if (status != MP_OK)
        return status;
    exchange->states = malloc(bytes);
    if (exchange->states == NULL)
        return mp_fail_no_memory("a request", bytes);
    for (uint32_t i = 0; i < exchange->choice_count; i++)
        mp_grammar_begin(exchange->grammar, &exchange->states[i]);
    return MP_OK;
}

void mp_format_close(struct mp_exchange *exchange)
{
    mp_grammar_destroy(exchange->grammar);
    free(exchange->states);
}

enum mp_status mp_format_restrict(void *choice, float *logits)
{
    const struct mp_choice *c = choice;
    struct mp_server *server = c->exchange->server;
    const struct mp_session *session = server->config.session;
    enum mp_status status = MP_OK;

    if (server->mask == NULL)
        status = mp_token_mask_create(session->tokenizer, &server->words, &server->mask);
    if (status != MP_OK)
        return status;
    return mp_token_mask_apply(server->mask, c->exchange->grammar, &c->exchange->states[c->index],
                               session->model.eos, session->model.eos_count, logits,
                               session->model.vocab);
}

enum mp_status mp_format_chosen(void *choice, uint32_t token, bool *end_p)
{
    const struct mp_choice *c = choice;
    const struct mp_grammar *grammar = c->exchange->grammar;
    struct mp_grammar_state *state = &c->exchange->states[c->index];

    mp_token_mask_follow(c->exchange->server->mask, grammar, token, state);
    *end_p = mp_grammar_must_end(grammar, state);
    return MP_OK;
}
