/*
 * From text to token ids: the order of the steps. Each step has a file of its own.
 */
#include "engine/text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/checked.h"

/* [begin, end) of the joined text, where special tokens may be recognised. */
struct range {
    size_t begin, end;
};

/* One call of encode_spans(). */
struct encoding {
    struct mp_tok_encoder enc;
    struct mp_tok_buf text; /* the spans, valid and joined */
    struct mp_tok_buf work[2];
    struct range *special;
    size_t special_count;
    size_t segment_begin;
    bool segment_special; /* with a normalizer: whether the segment lies in a special range */
};

enum mp_status mp_ids_append(struct mp_ids *ids, uint32_t id)
{
    if (ids->count == ids->capacity) {
        uint64_t capacity;
        size_t bytes;

        if (!mp_add_u64(ids->capacity, ids->capacity / 2 + 64, &capacity) ||
            !mp_mul_size(capacity, sizeof(*ids->ids), &bytes))
            return mp_fail_no_memory("token ids", UINT64_MAX);
        uint32_t *grown = realloc(ids->ids, bytes);
        if (grown == NULL)
            return mp_fail_no_memory("token ids", bytes);
        ids->ids = grown;
        ids->capacity = (size_t)capacity;
    }
    ids->ids[ids->count++] = id;
    return MP_OK;
}

void mp_ids_free(struct mp_ids *ids)
{
    free(ids->ids);
    memset(ids, 0, sizeof(*ids));
}

static enum mp_status append_all(struct mp_ids *ids, const struct mp_ids *more)
{
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < more->count && status == MP_OK; i++)
        status = mp_ids_append(ids, more->ids[i]);
    return status;
}

/* Whether special tokens may be recognised in all of [begin, end) of the joined text. */
static bool in_special(const struct encoding *run, size_t begin, size_t end)
{
    size_t low = 0, high = run->special_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (run->special[middle].end <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low < run->special_count && run->special[low].begin <= begin &&
           run->special[low].end >= end;
}

static bool allowed_in_text(void *context, size_t begin, size_t end)
{
    return in_special(context, begin, end);
}

static bool allowed_in_segment(void *context, size_t begin, size_t end)
{
    const struct encoding *run = context;

    if (run->enc.tok->norm_count > 0)
        return run->segment_special;
    return in_special(run, run->segment_begin + begin, run->segment_begin + end);
}

/*
 * Join the spans. Their sizes are checked first, so that the result, which is three times as long
 * at most, has 32-bit positions.
 */
static enum mp_status join(struct encoding *run, const struct mp_span *spans, size_t count)
{
    uint64_t total = 0;

    for (size_t i = 0; i < count; i++) {
        if (!mp_add_u64(total, spans[i].bytes, &total) || total > MP_TOK_TEXT_BYTES_MAX)
            return mp_fail(MP_ERR_INVALID, "E_TOK_TEXT",
                           "the text to tokenize is longer than %u bytes; split it",
                           MP_TOK_TEXT_BYTES_MAX);
    }
    run->special = calloc(count + 1, sizeof(*run->special));
    if (run->special == NULL)
        return mp_fail_no_memory("spans", count * sizeof(*run->special));
    for (size_t i = 0; i < count; i++) {
        const size_t begin = run->text.bytes;
        struct range *last = run->special_count > 0 ? &run->special[run->special_count - 1] : NULL;
        const enum mp_status status =
            mp_tok_append_valid(&run->text, spans[i].text, spans[i].bytes);

        if (status != MP_OK)
            return status;
        if (!spans[i].special || run->text.bytes == begin)
            continue;
        if (last != NULL && last->end == begin)
            last->end = run->text.bytes;
        else
            run->special[run->special_count++] = (struct range){ begin, run->text.bytes };
    }
    return MP_OK;
}

/*
 * Whether special tokens may be recognised in all of a segment or in none of it. Between, the
 * normalizer has moved the borders and it cannot be known.
 */
static enum mp_status decide_segment(struct encoding *run, size_t begin, size_t end)
{
    run->segment_begin = begin;
    run->segment_special = false;
    if (!run->enc.tok->special_normalized)
        return MP_OK;
    for (size_t i = 0; i < run->special_count; i++) {
        const struct range *range = &run->special[i];

        if (range->end <= begin || range->begin >= end)
            continue;
        if (range->begin > begin || range->end < end)
            return mp_fail(MP_ERR_MODEL, "E_TOK_SPECIAL_NORMALIZED",
                           "the tokenizer matches special tokens after normalization, so a "
                           "template and a user's text in it cannot be distinguished; use --prompt "
                           "without --chat");
        run->segment_special = true;
    }
    return MP_OK;
}

/* A segment between the added tokens that are matched before normalization. */
static enum mp_status encode_segment(struct encoding *run, const struct mp_tok_part *segment)
{
    const struct mp_tokenizer *tok = run->enc.tok;
    const char *text = run->text.data + segment->begin;
    size_t bytes = segment->end - segment->begin;
    struct mp_tok_part part;
    enum mp_status status = decide_segment(run, segment->begin, segment->end);

    if (status == MP_OK)
        status = mp_tok_normalize(tok, run->work, &text, &bytes);
    if (status != MP_OK)
        return status;
    struct mp_tok_scan scan = { .vocab = &tok->vocab,
                                .matcher = &tok->normalized,
                                .text = text,
                                .bytes = bytes,
                                .allowed = allowed_in_segment,
                                .context = run };
    while (status == MP_OK && mp_tok_scan_next(&scan, &part)) {
        if (part.id != MP_TOKEN_NONE)
            status = mp_ids_append(run->enc.out, part.id);
        else
            status = mp_tok_pre_tokenize(&run->enc, text + part.begin, part.end - part.begin,
                                         segment->begin == 0 && part.begin == 0);
    }
    return status;
}

static enum mp_status encode_text(struct encoding *run)
{
    const struct mp_tokenizer *tok = run->enc.tok;
    struct mp_tok_scan scan = { .vocab = &tok->vocab,
                                .matcher = &tok->raw,
                                .text = run->text.data,
                                .bytes = run->text.bytes,
                                .allowed = allowed_in_text,
                                .context = run };
    struct mp_tok_part part;
    enum mp_status status = MP_OK;

    while (status == MP_OK && mp_tok_scan_next(&scan, &part)) {
        if (part.id != MP_TOKEN_NONE)
            status = mp_ids_append(run->enc.out, part.id);
        else
            status = encode_segment(run, &part);
    }
    return status;
}

/* The interpreter gives up on a match after a number of steps that only a broken pattern takes. */
static enum mp_status encoder_init(struct mp_tok_encoder *enc, size_t text_bytes)
{
    const uint64_t limit = (uint64_t)text_bytes * 16 + 1000000;

    enc->match = pcre2_match_data_create(1, NULL);
    enc->match_context = pcre2_match_context_create(NULL);
    enc->jit_stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
    if (enc->match == NULL || enc->match_context == NULL)
        return mp_fail_no_memory("matching", 4096);
    pcre2_set_match_limit(enc->match_context, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    if (enc->jit_stack != NULL)
        pcre2_jit_stack_assign(enc->match_context, NULL, enc->jit_stack);
    return MP_OK;
}

static void encoder_fini(struct mp_tok_encoder *enc)
{
    pcre2_match_data_free(enc->match);
    pcre2_match_context_free(enc->match_context);
    pcre2_jit_stack_free(enc->jit_stack);
    for (size_t i = 0; i < MP_ARRAY_LEN(enc->stages); i++)
        mp_tok_buf_free(&enc->stages[i]);
    mp_tok_buf_free(&enc->word);
    free(enc->symbols);
    free(enc->heap);
    free(enc->nodes);
}

enum mp_status mp_tokenizer_encode_spans(const struct mp_tokenizer *tok,
                                         const struct mp_span *spans, size_t count, unsigned flags,
                                         struct mp_ids *out)
{
    struct encoding run = { .enc = { .tok = tok, .out = out } };
    const size_t count_before = out->count;
    const bool add = (flags & MP_ENCODE_ADD_SPECIAL) != 0;
    enum mp_status status;

    status = join(&run, spans, count);
    if (status == MP_OK)
        status = encoder_init(&run.enc, run.text.bytes);
    if (status == MP_OK && add)
        status = append_all(out, &tok->prefix);
    if (status == MP_OK)
        status = encode_text(&run);
    if (status == MP_OK && add)
        status = append_all(out, &tok->suffix);
    if (status != MP_OK)
        out->count = count_before;
    encoder_fini(&run.enc);
    mp_tok_buf_free(&run.text);
    mp_tok_buf_free(&run.work[0]);
    mp_tok_buf_free(&run.work[1]);
    free(run.special);
    return status;
}

enum mp_status mp_tokenizer_encode(const struct mp_tokenizer *tok, const char *text, size_t bytes,
                                   unsigned flags, struct mp_ids *out)
{
    const struct mp_span span = { .text = text,
                                  .bytes = bytes,
                                  .special = (flags & MP_ENCODE_PARSE_SPECIAL) != 0 };

    return mp_tokenizer_encode_spans(tok, &span, 1, flags, out);
}
