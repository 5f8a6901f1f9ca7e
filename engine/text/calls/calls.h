#ifndef MP_ENGINE_CALLS_H
#define MP_ENGINE_CALLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "vmm/base/error.h"

/*
 * What a model says besides its answer: thoughts, and calls of tools. Each family spells them its
 * own way, which its chat template teaches the model; a *style* is such a way, found by the words
 * that the template uses. A *reply* takes the text of an answer as it comes and sorts it.
 *
 * What looks like a call and is none stays text. Nothing here knows tokens: words that are special
 * tokens must be in the text.
 *
 * Thread safety: a style is constant; a reply belongs to one thread.
 */

/* The texts of a style; NULL: there is none. */
enum mp_calls_text {
    MP_CALLS_THINK,     /* thoughts begin; only at the beginning of an answer */
    MP_CALLS_THOUGHT,   /* thoughts end */
    MP_CALLS_OPEN,      /* calls begin */
    MP_CALLS_CLOSE,     /* calls end; else with the answer */
    MP_CALLS_TAIL,      /* written behind calls that end with the answer */
    MP_CALLS_NEXT,      /* between two calls, as models write it; NULL: one call only */
    MP_CALLS_NAME,      /* before a name */
    MP_CALLS_ARGUMENTS, /* between the name and the arguments */
    MP_CALLS_END,       /* behind the arguments */
    MP_CALLS_KEY,       /* of tagged arguments: before a key */
    MP_CALLS_VALUE,     /* between the key and its value */
    MP_CALLS_VALUE_END, /* behind the value */
    MP_CALLS_JSON,      /* the same two where the value is no text but JSON; NULL: no difference */
    MP_CALLS_JSON_END,
    MP_CALLS_OTHER, /* what else of its words may be special tokens */
    MP_CALLS_TEXTS
};

enum mp_calls_kind {
    MP_CALLS_NONE,    /* thoughts only */
    MP_CALLS_OBJECT,  /* {"name": ..., "arguments": ...}, or an array of that */
    MP_CALLS_PYTHON,  /* the same, or calls as Python writes them (LFM2) */
    MP_CALLS_NAMED,   /* the name, then arguments as a JSON object */
    MP_CALLS_TAGGED,  /* the name, then each argument between tags: a text, or JSON */
    MP_CALLS_BARE,    /* the name, then an object whose keys are bare (Gemma 4) */
    MP_CALLS_CHANNELS /* messages with a channel each (gpt-oss) */
};

struct mp_calls_style {
    const char *name;
    enum mp_calls_kind kind;
    const char *text[MP_CALLS_TEXTS];
};

/* The style that a chat template teaches; NULL: none that is known. */
const struct mp_calls_style *mp_calls_find_style(const char *jinja, size_t bytes);

/* A text that grows; all zero is empty. `data` ends with NUL once anything was added. */
struct mp_calls_buffer {
    char *data;
    size_t bytes, capacity;
};

struct mp_call {
    char *name;
    char *arguments; /* a JSON object */
};

#define MP_CALLS_MAX 128

enum mp_reply_state { MP_REPLY_START, MP_REPLY_THOUGHTS, MP_REPLY_TEXT, MP_REPLY_CALLS };

struct mp_reply {
    const struct mp_calls_style *style;
    const json_t *tools; /* OpenAI's array, for the types of tagged arguments; or NULL */
    enum mp_reply_state state;
    struct mp_calls_buffer rest;              /* not sorted yet */
    size_t tried;                             /* of `rest`: calls do not end before it */
    struct mp_calls_buffer content, thoughts; /* they only grow */
    struct mp_call *calls;                    // (call_count): room for MP_CALLS_MAX
    size_t call_count;
};

/* `style` NULL: all is content. `thinking`: the prompt has begun the thoughts. Nothing to fail. */
void mp_reply_begin(struct mp_reply *reply, const struct mp_calls_style *style, const json_t *tools,
                    bool thinking);

/* More text of the answer, which is UTF-8 as a whole. MP_ERR_NO_MEMORY only. */
enum mp_status mp_reply_push(struct mp_reply *reply, const char *text, size_t bytes) MP_MUST_CHECK;

/* There is no more. */
enum mp_status mp_reply_finish(struct mp_reply *reply) MP_MUST_CHECK;

void mp_reply_free(struct mp_reply *reply);

/* Whether a prompt that ends with this text has begun thoughts. */
bool mp_calls_begins_thoughts(const struct mp_calls_style *style, const char *text, size_t bytes);

#endif
