#ifndef MP_ANSWER_H
#define MP_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/model/config.h"
#include "engine/text/tokenizer.h"

/*
 * One answer in the making: its ids, its text, and why it ends. What mp_generate() and the batcher
 * have in common; whoever samples a token gives it to mp_answer_accept().
 *
 * Thread safety: one thread per answer.
 */
enum mp_finish {
    MP_FINISH_LENGTH,      /* max_tokens reached */
    MP_FINISH_EOS,         /* the model generated an end token, which is in `ids` */
    MP_FINISH_STOP,        /* a stop string appeared; the text ends before it */
    MP_FINISH_CTX,         /* the context is full */
    MP_FINISH_INTERRUPTED, /* generation was canceled */
    MP_FINISH_COUNT
};

const char *mp_finish_name(enum mp_finish finish);

#define MP_STOPS_MAX 16

struct mp_output {
    struct mp_ids ids; /* what was generated */
    char *text;        /* NUL-terminated; NULL without tokenizer */
    size_t text_bytes;
    enum mp_finish finish;
};

void mp_outputs_free(struct mp_output *outputs, uint32_t count);

/* Outlives the answers that follow it. */
struct mp_answer_rules {
    const struct mp_model_config *model;
    const struct mp_tokenizer *tokenizer; /* NULL: ids only, no text and no stop strings */
    bool new_text; /* of a chat's reply; else the prompt and what is generated are one text */
    bool ignore_eos;
    const uint32_t *shown; // (shown_count): special tokens that are part of the text all the same
    uint32_t shown_count;
    uint32_t max_tokens, ctx;
    const char *const *stops; // (stop_count): not empty, UTF-8
    uint32_t stop_count;
};

/* MP_ERR_CONFIG E_STOP_EMPTY, E_STOP_UTF8. */
enum mp_status mp_stops_check(const char *const *stops, uint32_t count) MP_MUST_CHECK;

struct mp_answer {
    const struct mp_answer_rules *rules;
    struct mp_output *output;
    struct mp_detok *detok;
    size_t shown;    /* bytes of the text that were given */
    size_t capacity; /* of the text */
    bool done;
};

/* `output`: zeroed, owned by the caller. After a failure close it, too. */
enum mp_status mp_answer_open(const struct mp_answer_rules *rules, struct mp_output *output,
                              struct mp_answer *answer) MP_MUST_CHECK;
void mp_answer_close(struct mp_answer *answer);

/*
 * A token was sampled; `position` is where it would be processed. Sets answer->done and
 * output->finish if the answer ends. *text_p, *bytes_p := new text that no stop string can take
 * back, valid UTF-8, possibly of 0 bytes, until the next call.
 */
enum mp_status mp_answer_accept(struct mp_answer *answer, uint32_t token, uint32_t position,
                                const char **text_p, size_t *bytes_p) MP_MUST_CHECK;

/* Whether this token ends an answer; it has no text then. */
bool mp_answer_is_end(const struct mp_answer_rules *rules, uint32_t token);

/* End it here. The rest of its text, as from mp_answer_accept(). */
enum mp_status mp_answer_end(struct mp_answer *answer, enum mp_finish why, const char **text_p,
                             size_t *bytes_p) MP_MUST_CHECK;

#endif
