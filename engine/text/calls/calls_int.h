#ifndef MP_ENGINE_CALLS_INT_H
#define MP_ENGINE_CALLS_INT_H

#include "engine/text/calls/calls.h"

/*
 * Private to reply.c (what is text, what is a call), channels.c (the same for channels), bodies.c
 * (calls from the text between their words), literals.c (arguments that are no JSON) and slices.c
 * (JSON as it was written).
 */

/* A part of a text. */
struct mp_slice {
    const char *text;
    size_t bytes;
};

enum mp_status mp_calls_append(struct mp_calls_buffer *buffer, const char *text,
                               size_t bytes) MP_MUST_CHECK;

/* Drop the first bytes. */
void mp_calls_drop(struct mp_calls_buffer *buffer, size_t bytes);

/* Where `word` is in the text from `from` on; `bytes` if it is not. */
size_t mp_calls_find(const char *text, size_t bytes, size_t from, const char *word);

/* Bytes at the end of the text that may be the beginning of the word. */
size_t mp_calls_held_back(const char *text, size_t bytes, const char *word);

bool mp_calls_is_blank(char c);

/* A letter, a digit, _, - or . */
bool mp_calls_is_name(char c);

struct mp_slice mp_slice_trim(struct mp_slice slice);

/* Take `word` away from the front, behind blanks; false: it is not there. */
bool mp_slice_skip(struct mp_slice *slice, const char *word);

/* The JSON object or array that the text begins with, as it is written; false: it is none. */
bool mp_slice_json(struct mp_slice *text, struct mp_slice *json);

/* A member of a JSON object; false: there is none. */
bool mp_slice_member(struct mp_slice object, const char *key, struct mp_slice *value);

/* Add all calls of a text between MP_CALLS_OPEN and MP_CALLS_CLOSE. *good_p := there are only
 * calls; else none was added. */
enum mp_status mp_calls_read(struct mp_reply *reply, struct mp_slice body,
                             bool *good_p) MP_MUST_CHECK;

/* One call; the arguments must be a JSON object. */
enum mp_status mp_calls_add(struct mp_reply *reply, struct mp_slice name, struct mp_slice arguments,
                            bool *good_p) MP_MUST_CHECK;

/* The name that the text begins with; empty: there is none. */
struct mp_slice mp_calls_take_name(struct mp_slice *body);

/* Add a text as JSON. */
enum mp_status mp_calls_append_text(struct mp_calls_buffer *out,
                                    struct mp_slice text) MP_MUST_CHECK;

/* One call whose arguments are literals: of "(=)" as in name(key='text'), of "{:}" as in
 * name{key:3}. */
#define MP_CALLS_QUOTE "<|\"|>" /* may stand around a text, too */
enum mp_status mp_calls_read_literals(struct mp_reply *reply, const char *marks,
                                      struct mp_slice *body, bool *good_p) MP_MUST_CHECK;

/* Sort what can be sorted; `last`: all of it. */
enum mp_status mp_channels_sort(struct mp_reply *reply, bool last) MP_MUST_CHECK;

#endif
