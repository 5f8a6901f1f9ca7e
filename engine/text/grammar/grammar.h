#ifndef MP_GRAMMAR_H
#define MP_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/error.h"

/*
 * Which bytes may come next in a text that has to be JSON, or JSON of a schema: an automaton with a
 * stack, which takes one byte at a time. It makes no texts and knows no tokens (token_mask.h).
 *
 * Of JSON Schema: type (one or several), enum, const, anyOf, $ref into the same schema, properties,
 * required, additionalProperties without a schema, items, minItems and maxItems up to 64. Members
 * of an object come in the schema's order, and no others do. Keys that only describe are ignored;
 * any other key is refused by name. So is a $ref by which a value begins with itself or holds
 * itself without an end. Blanks may stand behind { [ , : and before } ], at most 24.
 *
 * Every text that is accepted is JSON of the schema; where a schema is ambiguous beyond the limits
 * below, some of its texts are not accepted.
 *
 * Thread safety: a grammar is constant; a state belongs to one thread.
 */
struct mp_grammar;

#define MP_GRAMMAR_DEPTH_MAX 62  /* open objects, arrays and $refs, and what is in them */
#define MP_GRAMMAR_PATHS_MAX 32u /* ways to read a text that are followed at once */
#define MP_GRAMMAR_OPS_MAX 65000u

struct mp_grammar_path {
    uint16_t depth, op;
    uint16_t back[MP_GRAMMAR_DEPTH_MAX]; // (depth)
};

struct mp_grammar_state {
    uint32_t count;
    struct mp_grammar_path paths[MP_GRAMMAR_PATHS_MAX]; // (count)
};

/* NULL: any JSON object. MP_ERR_CONFIG E_FORMAT: a schema that is none or is not supported. The
 * schema is not needed afterwards. */
enum mp_status mp_grammar_create(const json_t *schema, struct mp_grammar **grammar_p) MP_MUST_CHECK;
void mp_grammar_destroy(struct mp_grammar *grammar);

/* A part of a choice: this text, else a value of this schema, else any text without "<". The next
 * `optional` parts, with this one, may be left out together (0: no part is). */
struct mp_grammar_part {
    const char *text;
    const json_t *schema;
    unsigned optional;
};

struct mp_grammar_choice {
    const struct mp_grammar_part *parts; // (count)
    size_t count;
};

/* Texts around one of several choices, or around some with `next` between them. */
struct mp_grammar_frame {
    const char *of;                       /* a constant: the key of a request, for messages */
    const char *before[2], *next, *close; /* NULL: nothing; `next` NULL: one choice only */
};

#define MP_GRAMMAR_CHOICES_MAX 32 /* more than the first ones are not looked at */

/* As above. */
enum mp_status mp_grammar_create_choices(const struct mp_grammar_frame *frame,
                                         const struct mp_grammar_choice *choices, size_t count,
                                         struct mp_grammar **grammar_p) MP_MUST_CHECK;

void mp_grammar_begin(const struct mp_grammar *grammar, struct mp_grammar_state *state);

/* `to` := the state behind this byte, which is another object. False: it may not come. */
bool mp_grammar_step(const struct mp_grammar *grammar, const struct mp_grammar_state *from,
                     uint8_t byte, struct mp_grammar_state *to);

/* The text is complete; and nothing else may follow. */
bool mp_grammar_can_end(const struct mp_grammar *grammar, const struct mp_grammar_state *state);
bool mp_grammar_must_end(const struct mp_grammar *grammar, const struct mp_grammar_state *state);

/* In a string of any text: each text without control characters, " and \ may come, and leads to a
 * state like this. */
bool mp_grammar_in_string(const struct mp_grammar *grammar, const struct mp_grammar_state *state);

#endif
