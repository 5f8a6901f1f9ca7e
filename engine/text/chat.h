#ifndef MP_ENGINE_CHAT_H
#define MP_ENGINE_CHAT_H

#include <jansson.h>

#include "engine/text/calls/calls.h"
#include "engine/text/tokenizer.h"

/*
 * The prompt formats of chat models. A model ships its format as a Jinja template, which is
 * rendered as transformers would (engine/text/jinja says within which bounds). What a template
 * writes itself may be special tokens; what comes from messages and tools may not, whatever the
 * template does with it.
 */
struct mp_chat;

#define MP_CHAT_TEMPLATE_BYTES_MAX (1u << 20)

enum mp_chat_role { MP_CHAT_SYSTEM, MP_CHAT_USER, MP_CHAT_ASSISTANT };

struct mp_chat_message {
    enum mp_chat_role role;
    const char *text;
    size_t bytes;
};

/* A prompt in spans; all zero is empty. */
struct mp_spans {
    struct mp_span *spans;
    size_t count;
    char *text; /* of all spans */
};

void mp_spans_free(struct mp_spans *spans);

/*
 * Load the template of a model: chat_template.jinja in its directory, else "chat_template" in
 * tokenizer_config.json (a string, or a list of named ones of which "default" counts, and for
 * requests with tools "tool_use"); in a GGUF file tokenizer.chat_template.
 * MP_ERR_MODEL E_CHAT_NONE if there is none, E_CHAT_TEMPLATE if it cannot be run.
 */
enum mp_status mp_chat_load(const char *model, struct mp_chat **chat_p) MP_MUST_CHECK;

/* The model's tokens with another template; `name` stands for the file in error texts. */
enum mp_status mp_chat_load_as(const char *model, const char *name, const char *jinja, size_t bytes,
                               struct mp_chat **chat_p) MP_MUST_CHECK;

/* A template and tokens, each of which may be NULL. */
enum mp_status mp_chat_parse(const char *name, const char *jinja, size_t bytes, const char *bos,
                             const char *eos, struct mp_chat **chat_p) MP_MUST_CHECK;

void mp_chat_destroy(struct mp_chat *chat);

/* How the template has tools called and thoughts written; NULL: not at all, or in no way that is
 * known. */
const struct mp_calls_style *mp_chat_calls(const struct mp_chat *chat);

/* All as JSON of OpenAI's API; objects and arrays that the template reads as they are. */
struct mp_chat_input {
    const json_t *messages; /* an array */
    const json_t *tools;    /* an array, or NULL */
    const json_t *options;  /* further variables, as "enable_thinking"; an object, or NULL */
    bool answer;            /* end with the beginning of the assistant's answer */
};

/*
 * The prompt for messages as `out`, which the caller frees. Encode it with
 * mp_tokenizer_encode_spans() without ADD_SPECIAL: the format brings its own <s>. MP_ERR_CONFIG
 * E_CHAT_ROLES: the format has no such messages, or no such order of them; E_CHAT_RENDER.
 */
enum mp_status mp_chat_render_json(const struct mp_chat *chat, const struct mp_chat_input *input,
                                   struct mp_spans *out) MP_MUST_CHECK;

/* The same for texts. */
enum mp_status mp_chat_render(const struct mp_chat *chat, const struct mp_chat_message *messages,
                              size_t count, bool answer, struct mp_spans *out) MP_MUST_CHECK;

#endif
