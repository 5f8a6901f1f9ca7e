/*
 * The tokens of an answer with their probabilities, in the forms of OpenAI's API: those that the
 * model gives, before temperature, top_k, top_p and the form that an answer must have.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/server_int.h"
#include "vmm/base/error.h"

/* What stands for the logarithm of 0, which JSON has not got. */
#define LOGPROB_MIN (-9999.0f)
#define TOKEN_BYTES_MAX                                                       \
    1024u /* of a longer token, its spelling in the tokenizer's file is shown \
           */

/* ---- noting */

/* The logarithm of the sum of e^logits. */
static double log_sum(const float *logits, uint32_t vocab)
{
    double highest = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < vocab; i++)
        highest = logits[i] > highest ? logits[i] : highest;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - highest);
    return highest + log(sum);
}

static struct mp_logprob logprob_of(uint32_t token, const float *logits, double sum)
{
    const float value = (float)(logits[token] - sum);

    return (struct mp_logprob){ token, value > LOGPROB_MIN ? value : LOGPROB_MIN };
}

/* The likeliest first, of equal ones the lower id. */
static void find_top(const float *logits, uint32_t vocab, uint32_t top, uint32_t *ids)
{
    uint32_t count = 0;

    for (uint32_t id = 0; id < vocab && top > 0; id++) {
        uint32_t at;

        if (count == top && !(logits[id] > logits[ids[top - 1]]))
            continue;
        at = count < top ? count++ : top - 1;
        for (; at > 0 && logits[id] > logits[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

static enum mp_status make_room(struct mp_logprobs *l, uint32_t columns)
{
    const size_t capacity = 2 * l->capacity + 16;
    struct mp_logprob *grown;

    if (l->count < l->capacity)
        return MP_OK;
    grown = realloc(l->list, capacity * columns * sizeof(*grown));
    if (grown == NULL)
        return mp_fail_no_memory("probabilities", capacity * columns * sizeof(*grown));
    l->list = grown;
    l->capacity = capacity;
    return MP_OK;
}

enum mp_status mp_logprobs_note(void *choice, uint32_t token, const float *logits)
{
    struct mp_choice *c = choice;
    struct mp_logprobs *l = &c->logprobs;
    const uint32_t vocab = c->exchange->server->config.session->model.vocab;
    const uint32_t top =
        c->exchange->request.top_logprobs < vocab ? c->exchange->request.top_logprobs : vocab;
    const uint32_t columns = 1 + c->exchange->request.top_logprobs;
    uint32_t ids[MP_REQUEST_TOP_MAX] = { 0 };
    const double sum = log_sum(logits, vocab);
    enum mp_status status = make_room(l, columns);
    struct mp_logprob *row;

    if (status != MP_OK)
        return status;
    find_top(logits, vocab, top, ids);
    row = &l->list[l->count++ * columns];
    row[0] = logprob_of(token, logits, sum);
    for (uint32_t i = 0; i + 1 < columns; i++)
        row[1 + i] = i < top ? logprob_of(ids[i], logits, sum)
                             : (struct mp_logprob){ MP_TOKEN_NONE, LOGPROB_MIN };
    return MP_OK;
}

/* ---- writing */

/* What a token stands for. `plain`: it is part of the answer's text. */
struct piece {
    const char *text; // (bytes)
    size_t bytes;
    bool plain;
    char own[TOKEN_BYTES_MAX];
};

static void find_piece(const struct mp_tokenizer *tok, uint32_t token, struct piece *p)
{
    p->bytes = mp_tokenizer_bytes(tok, token, p->own, sizeof(p->own));
    p->text = p->own;
    p->plain = !mp_tokenizer_is_special(tok, token);
    if (p->bytes == 0)
        p->text = mp_tokenizer_content(tok, token, &p->bytes);
    if (p->text == NULL) {
        p->text = "";
        p->bytes = 0;
    }
}

/* A text that names the token: its own, or its bytes where they are no text. */
static void name_piece(const struct piece *p, char name[6 + 4 * TOKEN_BYTES_MAX + 1])
{
    char *at = stpcpy(name, "bytes:");

    for (size_t i = 0; i < p->bytes && i < TOKEN_BYTES_MAX; i++)
        at += snprintf(at, 5, "\\x%02x", (unsigned char)p->text[i]);
}

static bool is_name(const struct piece *p)
{
    return mp_is_utf8(p->text, p->bytes) && memchr(p->text, '\0', p->bytes) == NULL;
}

static void put_name(struct mp_json_out *json, const char *key, const struct piece *p)
{
    char name[6 + 4 * TOKEN_BYTES_MAX + 1];

    if (is_name(p)) {
        mp_json_put_string_n(json, key, p->text, p->bytes);
        return;
    }
    name_piece(p, name);
    mp_json_put_string(json, key, name);
}

static void put_f32(struct mp_json_out *json, const char *key, float value)
{
    mp_json_put_f64(json, key, (double)value);
}

/* The members of one token in a chat's answer. */
static void put_members(struct mp_json_out *json, const struct mp_tokenizer *tok,
                        const struct mp_logprob *logprob)
{
    struct piece p;

    find_piece(tok, logprob->token, &p);
    put_name(json, "token", &p);
    put_f32(json, "logprob", logprob->logprob);
    mp_json_array_begin(json, "bytes");
    for (size_t i = 0; i < p.bytes; i++)
        mp_json_put_u64(json, NULL, (unsigned char)p.text[i]);
    mp_json_array_end(json);
}

static void put_chat(struct mp_json_out *json, const struct mp_tokenizer *tok,
                     const struct mp_logprobs *l, uint32_t columns)
{
    mp_json_array_begin(json, "content");
    for (size_t t = 0; t < l->count; t++) {
        mp_json_object_begin(json, NULL);
        put_members(json, tok, &l->list[t * columns]);
        mp_json_array_begin(json, "top_logprobs");
        for (uint32_t i = 1; i < columns && l->list[t * columns + i].token != MP_TOKEN_NONE; i++) {
            mp_json_object_begin(json, NULL);
            put_members(json, tok, &l->list[t * columns + i]);
            mp_json_object_end(json);
        }
        mp_json_array_end(json);
        mp_json_object_end(json);
    }
    mp_json_array_end(json);
    mp_json_put_null(json, "refusal");
}

static bool same_piece(const struct piece *a, const struct piece *b)
{
    return a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0;
}

/* The likeliest tokens as one object: of those with the same text the likeliest one. */
static void put_top(struct mp_json_out *json, const struct mp_tokenizer *tok,
                    const struct mp_logprob *row, uint32_t columns)
{
    struct piece pieces[MP_REQUEST_TOP_MAX];

    mp_json_object_begin(json, NULL);
    for (uint32_t i = 0; i + 1 < columns && row[1 + i].token != MP_TOKEN_NONE; i++) {
        struct piece *p = &pieces[i];
        bool again = false;
        char name[6 + 4 * TOKEN_BYTES_MAX + 1];

        find_piece(tok, row[1 + i].token, p);
        for (uint32_t k = 0; k < i && !again; k++)
            again = same_piece(&pieces[k], p);
        if (again)
            continue;
        if (is_name(p))
            snprintf(name, sizeof(name), "%.*s", (int)p->bytes, p->text);
        else
            name_piece(p, name);
        put_f32(json, name, row[1 + i].logprob);
    }
    mp_json_object_end(json);
}

static uint64_t characters(const struct piece *p)
{
    uint64_t n = 0;

    for (size_t i = 0; i < p->bytes && p->plain; i++)
        n += ((unsigned char)p->text[i] & 0xc0) != 0x80;
    return n;
}

static void put_completion(struct mp_json_out *json, const struct mp_tokenizer *tok,
                           struct mp_logprobs *l, uint32_t columns)
{
    struct piece p;

    mp_json_array_begin(json, "tokens");
    for (size_t t = 0; t < l->count; t++) {
        find_piece(tok, l->list[t * columns].token, &p);
        put_name(json, NULL, &p);
    }
    mp_json_array_end(json);
    mp_json_array_begin(json, "token_logprobs");
    for (size_t t = 0; t < l->count; t++)
        put_f32(json, NULL, l->list[t * columns].logprob);
    mp_json_array_end(json);
    mp_json_array_begin(json, "top_logprobs");
    for (size_t t = 0; t < l->count; t++)
        put_top(json, tok, &l->list[t * columns], columns);
    mp_json_array_end(json);
    mp_json_array_begin(json, "text_offset");
    for (size_t t = 0; t < l->count; t++) {
        mp_json_put_u64(json, NULL, l->offset);
        find_piece(tok, l->list[t * columns].token, &p);
        l->offset += characters(&p);
    }
    mp_json_array_end(json);
}

void mp_logprobs_put(struct mp_json_out *json, struct mp_choice *choice)
{
    const struct mp_request *request = &choice->exchange->request;
    const struct mp_tokenizer *tok = choice->exchange->server->config.session->tokenizer;
    struct mp_logprobs *l = &choice->logprobs;

    if (!request->logprobs) {
        mp_json_put_null(json, "logprobs");
        return;
    }
    mp_json_object_begin(json, "logprobs");
    if (request->kind == MP_REQUEST_CHAT)
        put_chat(json, tok, l, 1 + request->top_logprobs);
    else
        put_completion(json, tok, l, 1 + request->top_logprobs);
    mp_json_object_end(json);
    l->count = 0;
}
