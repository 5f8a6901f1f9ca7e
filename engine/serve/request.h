#ifndef MP_SERVE_REQUEST_H
#define MP_SERVE_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/forward/sampler.h"
#include "engine/session/answer.h"
#include "engine/text/chat.h"

/*
 * The bodies of requests, from JSON that anyone may have sent: bounded, each value checked, names
 * that are not known refused. Nothing is tokenized or run here.
 *
 * Failures are MP_ERR_CONFIG or, for broken JSON, MP_ERR_MODEL, with a text that names the key; or
 * MP_ERR_NO_MEMORY.
 */
enum mp_request_kind {
    MP_REQUEST_CHAT,
    MP_REQUEST_COMPLETION,
    MP_REQUEST_TOKENIZE,
    MP_REQUEST_DETOKENIZE,
    MP_REQUEST_BUDGET,
    MP_REQUEST_STATE /* no body */
};

#define MP_REQUEST_MESSAGES_MAX 4096
#define MP_REQUEST_PROMPTS_MAX 64
#define MP_REQUEST_CHOICES_MAX 64 /* prompts times n */
#define MP_REQUEST_TOP_MAX 20     /* likeliest tokens */

/* Text, or ids if there is no text. Both point into the request. */
struct mp_request_prompt {
    const char *text;
    size_t bytes;
    uint32_t *ids;
    size_t count;
};

/* Whether tools are to be called: as the model likes, one at least, or this one. */
enum mp_tool_choice { MP_TOOLS_AUTO, MP_TOOLS_REQUIRED, MP_TOOLS_NAMED };

#define MP_REQUEST_TOOLS_MAX 128

/* What the answer must be: any text, a JSON object, or JSON of `schema`. */
enum mp_request_format { MP_FORMAT_TEXT, MP_FORMAT_OBJECT, MP_FORMAT_SCHEMA };

struct mp_request {
    enum mp_request_kind kind;
    json_t *root; /* owns the texts, and so does `ids` */
    uint32_t *ids;

    json_t *messages;    /* of chat: an array as templates want it */
    json_t *options;     /* of chat: further variables of templates; or NULL */
    const json_t *tools; /* of chat: an array; NULL: none may be called */
    enum mp_tool_choice tool_choice;
    const char *tool_name;                                    /* the one that has to be called */
    bool parallel;                                            /* several at once */
    struct mp_request_prompt prompts[MP_REQUEST_PROMPTS_MAX]; /* of all others */
    uint32_t prompt_count;

    struct mp_sampling sampling;
    uint32_t max_tokens; /* 0: not given */
    uint32_t n;
    bool stream, stream_usage, ignore_eos;
    const char *stops[MP_STOPS_MAX];
    uint32_t stop_count;
    bool logprobs;
    uint32_t top_logprobs; /* with each token, how many of the likeliest */
    enum mp_request_format format;
    const json_t *schema;

    bool add_special;   /* of tokenize */
    const char *budget; /* of budget: as --budget takes it */
};

/*
 * `defaults`: for what a request does not give. On success the request must be freed; on failure it
 * is free already.
 */
enum mp_status mp_request_parse(enum mp_request_kind kind, const char *body, size_t bytes,
                                const struct mp_sampling *defaults,
                                struct mp_request *request) MP_MUST_CHECK;
void mp_request_free(struct mp_request *request);

/* Between request.c and request_chat.c: E_REQUEST; what only chats have. */
enum mp_status mp_request_bad(const char *key, const char *need) MP_MUST_CHECK;
enum mp_status mp_request_read_chat(struct mp_request *request) MP_MUST_CHECK;

#endif
