/*
 * Tokens of one answer become ids and text, up to its end. Nothing is sampled or printed here.
 */
#include "engine/session/answer.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/text.h"

const char *mp_finish_name(enum mp_finish finish)
{
    static const char *const names[MP_FINISH_COUNT] = { "length", "eos", "stop", "context",
                                                        "interrupted" };

    return (unsigned)finish < MP_FINISH_COUNT ? names[finish] : "?";
}

enum mp_status mp_stops_check(const char *const *stops, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (stops[i][0] == '\0')
            return mp_fail(MP_ERR_CONFIG, "E_STOP_EMPTY", "a stop string is empty");
        /* Found in the middle of a character it would leave half of one. */
        if (!mp_is_utf8(stops[i], strlen(stops[i])))
            return mp_fail(MP_ERR_CONFIG, "E_STOP_UTF8",
                           "stop string %u is not UTF-8, so no text can have it", i);
    }
    return MP_OK;
}

static enum mp_status append_text(struct mp_answer *answer, const char *text, size_t bytes)
{
    struct mp_output *out = answer->output;
    uint64_t need;

    if (!mp_add_u64(out->text_bytes, bytes, &need) || need >= SIZE_MAX / 4)
        return mp_fail(MP_ERR_OVERFLOW, "E_TEXT", "the text is too long");
    if (!mp_text_reserve(&out->text, &answer->capacity, (size_t)need))
        return mp_fail_no_memory("the text", need);
    memcpy(out->text + out->text_bytes, text, bytes);
    out->text_bytes = (size_t)need;
    out->text[need] = '\0';
    return MP_OK;
}

/* Cut the text at the first stop string, if one has appeared. */
static bool cut_at_stop(struct mp_answer *answer)
{
    const struct mp_answer_rules *rules = answer->rules;
    struct mp_output *out = answer->output;
    size_t first = out->text_bytes;
    bool found = false;

    for (uint32_t i = 0; i < rules->stop_count; i++) {
        const char *at = out->text == NULL ? NULL
                                           : memmem(out->text, out->text_bytes, rules->stops[i],
                                                    strlen(rules->stops[i]));

        if (at != NULL && (size_t)(at - out->text) <= first) {
            first = (size_t)(at - out->text);
            found = true;
        }
    }
    if (found) {
        out->text_bytes = first;
        out->text[first] = '\0';
    }
    return found;
}

/* Bytes at the end of the text that could be the beginning of a stop string. */
static size_t held_back(const struct mp_answer *answer)
{
    const struct mp_answer_rules *rules = answer->rules;
    const struct mp_output *out = answer->output;
    size_t most = 0;

    for (uint32_t i = 0; i < rules->stop_count; i++) {
        const size_t bytes = strlen(rules->stops[i]);

        for (size_t n = bytes - 1; n > most; n--) {
            if (n <= out->text_bytes &&
                !memcmp(out->text + out->text_bytes - n, rules->stops[i], n)) {
                most = n;
                break;
            }
        }
    }
    return most;
}

/* Give what is certain; all of it when the answer has ended. */
static void show_text(struct mp_answer *answer, const char **text_p, size_t *bytes_p)
{
    const struct mp_output *out = answer->output;
    const size_t end = out->text_bytes - (answer->done ? 0 : held_back(answer));

    *text_p = end > answer->shown ? out->text + answer->shown : "";
    *bytes_p = end > answer->shown ? end - answer->shown : 0;
    answer->shown += *bytes_p;
}

bool mp_answer_is_end(const struct mp_answer_rules *rules, uint32_t token)
{
    for (uint32_t i = 0; i < rules->model->eos_count; i++) {
        if (rules->model->eos[i] == token)
            return !rules->ignore_eos;
    }
    return false;
}

static enum mp_status append_id(struct mp_ids *ids, uint32_t token)
{
    if (ids->count == ids->capacity) {
        const size_t capacity = 2 * ids->capacity + 64;
        uint32_t *grown = realloc(ids->ids, capacity * sizeof(*grown));

        if (grown == NULL)
            return mp_fail_no_memory("token ids", capacity * sizeof(*grown));
        ids->ids = grown;
        ids->capacity = capacity;
    }
    ids->ids[ids->count++] = token;
    return MP_OK;
}

static void finish(struct mp_answer *answer, enum mp_finish why)
{
    answer->done = true;
    answer->output->finish = why;
}

/* The last bytes of the text are known when the answer has ended, and with them a stop string. */
static enum mp_status close_text(struct mp_answer *answer)
{
    enum mp_status status = MP_OK;
    const char *text;
    size_t bytes;

    if (answer->done && answer->detok != NULL) {
        status = mp_detok_finish(answer->detok, &text, &bytes);
        if (status == MP_OK)
            status = append_text(answer, text, bytes);
    }
    if (status == MP_OK && cut_at_stop(answer))
        finish(answer, MP_FINISH_STOP);
    return status;
}

static bool is_text(const struct mp_answer_rules *rules, uint32_t token)
{
    for (uint32_t i = 0; i < rules->shown_count; i++) {
        if (rules->shown[i] == token)
            return true;
    }
    return !mp_tokenizer_is_special(rules->tokenizer, token);
}

enum mp_status mp_answer_accept(struct mp_answer *answer, uint32_t token, uint32_t position,
                                const char **text_p, size_t *bytes_p)
{
    const struct mp_answer_rules *rules = answer->rules;
    const bool eos = mp_answer_is_end(rules, token);
    enum mp_status status = append_id(&answer->output->ids, token);
    const char *text;
    size_t bytes;

    /* Models have more rows than the tokenizer has ids; such an id has no text. */
    if (status == MP_OK && answer->detok != NULL && !eos &&
        mp_tokenizer_content(rules->tokenizer, token, &bytes) != NULL && is_text(rules, token)) {
        status = mp_detok_push(answer->detok, token, &text, &bytes);
        if (status == MP_OK)
            status = append_text(answer, text, bytes);
    }
    if (status != MP_OK)
        return status;
    if (eos)
        finish(answer, MP_FINISH_EOS);
    else if (answer->output->ids.count >= rules->max_tokens)
        finish(answer, MP_FINISH_LENGTH);
    else if (position >= rules->ctx)
        finish(answer, MP_FINISH_CTX);
    status = close_text(answer);
    if (status == MP_OK)
        show_text(answer, text_p, bytes_p);
    return status;
}

enum mp_status mp_answer_end(struct mp_answer *answer, enum mp_finish why, const char **text_p,
                             size_t *bytes_p)
{
    enum mp_status status;

    finish(answer, why);
    status = close_text(answer);
    if (status == MP_OK)
        show_text(answer, text_p, bytes_p);
    return status;
}

enum mp_status mp_answer_open(const struct mp_answer_rules *rules, struct mp_output *output,
                              struct mp_answer *answer)
{
    const unsigned flags = rules->new_text ? 0 : MP_DECODE_CONTINUES;
    enum mp_status status = MP_OK;

    *answer = (struct mp_answer){ .rules = rules, .output = output };
    if (rules->tokenizer != NULL) {
        status = mp_detok_create(rules->tokenizer, flags, &answer->detok);
        if (status == MP_OK)
            status = append_text(answer, "", 0);
    }
    return status;
}

void mp_answer_close(struct mp_answer *answer)
{
    mp_detok_destroy(answer->detok);
    answer->detok = NULL;
}

void mp_outputs_free(struct mp_output *outputs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        mp_ids_free(&outputs[i].ids);
        free(outputs[i].text);
        memset(&outputs[i], 0, sizeof(outputs[i]));
    }
}
