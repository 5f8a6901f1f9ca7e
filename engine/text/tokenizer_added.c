/*
 * Finds added tokens in a text. What is between them goes to tokenizer_encode.c.
 */
#include "engine/text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/checked.h"

/*
 * Added tokens in a text: from left to right, at each place the longest that stands there. The
 * patterns are sorted, so that those that agree with the text so far are one range, which each
 * further byte narrows. Their length is capped when the file is read, which bounds the time.
 */

enum mp_status mp_tok_matcher_add(struct mp_tok_matcher *matcher, const char *text, size_t bytes,
                                  uint32_t id)
{
    if (matcher->count == matcher->capacity) {
        const uint32_t capacity = matcher->capacity * 2 + 64;
        size_t size;

        if (!mp_mul_size(capacity, sizeof(*matcher->patterns), &size))
            return mp_fail_no_memory("added tokens", UINT64_MAX);
        struct mp_tok_pattern *grown = realloc(matcher->patterns, size);
        if (grown == NULL)
            return mp_fail_no_memory("added tokens", size);
        matcher->patterns = grown;
        matcher->capacity = capacity;
    }
    char *copy = malloc(bytes);
    if (copy == NULL)
        return mp_fail_no_memory("added tokens", bytes);
    memcpy(copy, text, bytes);
    matcher->patterns[matcher->count++] =
        (struct mp_tok_pattern){ .text = copy, .bytes = (uint32_t)bytes, .id = id };
    return MP_OK;
}

static int compare_patterns(const void *a, const void *b)
{
    const struct mp_tok_pattern *left = a, *right = b;
    const uint32_t common = left->bytes < right->bytes ? left->bytes : right->bytes;
    const int order = memcmp(left->text, right->text, common);

    if (order != 0)
        return order;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return left->id < right->id ? -1 : left->id > right->id;
}

void mp_tok_matcher_seal(struct mp_tok_matcher *matcher)
{
    uint32_t at = 0;

    if (matcher->count > 0)
        qsort(matcher->patterns, matcher->count, sizeof(*matcher->patterns), compare_patterns);
    for (unsigned lead = 0; lead <= 256; lead++) {
        while (at < matcher->count && (unsigned char)matcher->patterns[at].text[0] < lead)
            at++;
        matcher->first[lead] = at;
    }
}

void mp_tok_matcher_fini(struct mp_tok_matcher *matcher)
{
    for (uint32_t i = 0; i < matcher->count; i++)
        free(matcher->patterns[i].text);
    free(matcher->patterns);
    memset(matcher, 0, sizeof(*matcher));
}

/* The first pattern in [low, high) whose byte `depth` is not below `byte`; all are that long. */
static uint32_t lower_bound(const struct mp_tok_matcher *matcher, uint32_t low, uint32_t high,
                            uint32_t depth, unsigned byte)
{
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if ((unsigned char)matcher->patterns[middle].text[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest pattern at the beginning of `text`, or NULL. */
static const struct mp_tok_pattern *longest(const struct mp_tok_matcher *matcher, const char *text,
                                            size_t bytes)
{
    const struct mp_tok_pattern *best = NULL;
    const unsigned lead = (unsigned char)text[0];
    uint32_t low = matcher->first[lead], high = matcher->first[lead + 1];

    for (uint32_t depth = 1; low < high; depth++) {
        /* Of patterns with a common beginning the shortest sorts first, of equal ones the least
         * id. */
        if (matcher->patterns[low].bytes == depth)
            best = &matcher->patterns[low];
        while (low < high && matcher->patterns[low].bytes == depth)
            low++;
        if (depth >= bytes)
            break;
        const unsigned next = (unsigned char)text[depth];
        low = lower_bound(matcher, low, high, depth, next);
        high = lower_bound(matcher, low, high, depth, next + 1);
    }
    return best;
}

/* ---- what stands around a match */

/* The start of the character that ends before text[end]; end > 0. */
static size_t char_before(const char *text, size_t end)
{
    do
        end--;
    while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80);
    return end;
}

static size_t skip_space(const char *text, size_t at, size_t bytes)
{
    while (at < bytes && mp_tok_is_space(mp_tok_utf8_get(text + at)))
        at += mp_tok_utf8_bytes((unsigned char)text[at]);
    return at;
}

static size_t skip_space_back(const char *text, size_t at)
{
    while (at > 0) {
        const size_t before = char_before(text, at);

        if (!mp_tok_is_space(mp_tok_utf8_get(text + before)))
            break;
        at = before;
    }
    return at;
}

static bool stands_alone(const struct mp_tok_scan *scan, size_t begin, size_t end)
{
    if (begin > 0 && mp_tok_is_word(mp_tok_utf8_get(scan->text + char_before(scan->text, begin))))
        return false;
    return end >= scan->bytes || !mp_tok_is_word(mp_tok_utf8_get(scan->text + end));
}

/* The next match that counts, in searched order; false if there is none. */
static bool next_match(struct mp_tok_scan *scan, struct mp_tok_part *match)
{
    const struct mp_tok_matcher *matcher = scan->matcher;

    while (matcher->count > 0 && scan->searched < scan->bytes) {
        const size_t begin = scan->searched;
        const struct mp_tok_pattern *found =
            longest(matcher, scan->text + begin, scan->bytes - begin);

        if (found == NULL) {
            scan->searched++;
            continue;
        }
        const size_t end = begin + found->bytes;
        const uint8_t flags = scan->vocab->flags[found->id];
        scan->searched = end;
        if ((flags & MP_TOK_SPECIAL) != 0 && !scan->allowed(scan->context, begin, end))
            continue;
        if ((flags & MP_TOK_SINGLE_WORD) != 0 && !stands_alone(scan, begin, end))
            continue;
        *match = (struct mp_tok_part){ .id = found->id, .begin = begin, .end = end };
        if ((flags & MP_TOK_LSTRIP) != 0) {
            const size_t stripped = skip_space_back(scan->text, begin);

            match->begin = stripped > scan->done ? stripped : scan->done;
        }
        if ((flags & MP_TOK_RSTRIP) != 0)
            match->end = skip_space(scan->text, end, scan->bytes);
        return true;
    }
    return false;
}

bool mp_tok_scan_next(struct mp_tok_scan *scan, struct mp_tok_part *part)
{
    struct mp_tok_part match;

    if (scan->has_pending) {
        *part = scan->pending;
        scan->has_pending = false;
        scan->done = part->end;
        return true;
    }
    if (next_match(scan, &match)) {
        if (match.begin > scan->done) {
            *part = (struct mp_tok_part){ MP_TOKEN_NONE, scan->done, match.begin };
            scan->pending = match;
            scan->has_pending = true;
        } else {
            *part = match;
            scan->done = match.end;
        }
        return true;
    }
    if (scan->done >= scan->bytes)
        return false;
    *part = (struct mp_tok_part){ MP_TOKEN_NONE, scan->done, scan->bytes };
    scan->done = scan->bytes;
    return true;
}
