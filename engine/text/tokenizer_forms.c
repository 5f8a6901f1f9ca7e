/*
 * The normal forms of Unicode, as the reference makes them.
 */
#include "engine/text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "vmm/base/checked.h"

/*
 * Normal forms. utf8proc decomposes and composes; the order of combining marks is made here,
 * because its own sort takes quadratic time for long runs of marks, which a text from outside may
 * hold.
 *
 * The reference normalizes with the tables of Unicode 9. Characters that came later and are more
 * than a plain starter (a mark, a decomposition, a part of a composition) are nothing special to
 * it, and so they are here: each stands for itself and separates what is around it. The list is
 * for utf8proc 2.8 (Unicode 15), found by comparing all characters; texts hardly ever have them.
 * The tokenizers of Qwen normalize to NFC, for which at least 32 of these 48 ranges would give
 * other ids.
 */
static const uint32_t later_ranges[][2] = {
    { 0x7fd, 0x7fd },     { 0x898, 0x89f },     { 0x8ca, 0x8d3 },     { 0x9fe, 0x9fe },
    { 0xc3c, 0xc3c },     { 0xd3b, 0xd3c },     { 0xeba, 0xeba },     { 0x1715, 0x1715 },
    { 0x1abf, 0x1ace },   { 0x1df6, 0x1dfa },   { 0x32ff, 0x32ff },   { 0xa7f2, 0xa7f4 },
    { 0xa82c, 0xa82c },   { 0xab69, 0xab69 },   { 0x10781, 0x10785 }, { 0x10787, 0x107b0 },
    { 0x107b2, 0x107ba }, { 0x10d24, 0x10d27 }, { 0x10eab, 0x10eac }, { 0x10efd, 0x10eff },
    { 0x10f46, 0x10f50 }, { 0x10f82, 0x10f85 }, { 0x11070, 0x11070 }, { 0x1133b, 0x1133b },
    { 0x1145e, 0x1145e }, { 0x11839, 0x1183a }, { 0x11930, 0x11930 }, { 0x11935, 0x11935 },
    { 0x11938, 0x11938 }, { 0x1193d, 0x1193e }, { 0x11943, 0x11943 }, { 0x119e0, 0x119e0 },
    { 0x11a34, 0x11a34 }, { 0x11a47, 0x11a47 }, { 0x11a99, 0x11a99 }, { 0x11d42, 0x11d42 },
    { 0x11d44, 0x11d45 }, { 0x11d97, 0x11d97 }, { 0x11f41, 0x11f42 }, { 0x16ff0, 0x16ff1 },
    { 0x1e030, 0x1e06d }, { 0x1e08f, 0x1e08f }, { 0x1e130, 0x1e136 }, { 0x1e2ae, 0x1e2ae },
    { 0x1e2ec, 0x1e2ef }, { 0x1e4ec, 0x1e4ef }, { 0x1f16c, 0x1f16c }, { 0x1fbf0, 0x1fbf9 }
};

static bool is_later(uint32_t code)
{
    size_t low = 0, high = MP_ARRAY_LEN(later_ranges);

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (later_ranges[middle][1] < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < MP_ARRAY_LEN(later_ranges) && later_ranges[low][0] <= code;
}

struct code_points {
    utf8proc_int32_t *codes;
    size_t count;
    size_t capacity;
};

static enum mp_status code_points_reserve(struct code_points *list, size_t extra)
{
    uint64_t need;
    size_t bytes;

    if (!mp_add_u64(list->count, extra, &need))
        return mp_fail_no_memory("normalization", UINT64_MAX);
    if (need <= list->capacity)
        return MP_OK;
    need += need / 2 + 64;
    if (!mp_mul_size(need, sizeof(*list->codes), &bytes))
        return mp_fail_no_memory("normalization", need);
    utf8proc_int32_t *grown = realloc(list->codes, bytes);
    if (grown == NULL)
        return mp_fail_no_memory("normalization", bytes);
    list->codes = grown;
    list->capacity = (size_t)need;
    return MP_OK;
}

static unsigned combining_class(utf8proc_int32_t code)
{
    const utf8proc_propval_t ccc = utf8proc_get_property(code)->combining_class;

    return is_later((uint32_t)code) ? 0 : (unsigned)(uint16_t)ccc & 0xff;
}

/* Stable counting sort of one run of marks by their classes. */
static enum mp_status sort_marks(utf8proc_int32_t *codes, size_t count,
                                 utf8proc_int32_t **scratch_p)
{
    size_t starts[257] = { 0 };
    size_t bytes;

    if (!mp_mul_size(count, sizeof(*codes), &bytes))
        return mp_fail_no_memory("normalization", UINT64_MAX);
    utf8proc_int32_t *sorted = realloc(*scratch_p, bytes);
    if (sorted == NULL)
        return mp_fail_no_memory("normalization", bytes);
    *scratch_p = sorted;
    for (size_t i = 0; i < count; i++)
        starts[combining_class(codes[i]) + 1]++;
    for (size_t c = 1; c < MP_ARRAY_LEN(starts); c++)
        starts[c] += starts[c - 1];
    for (size_t i = 0; i < count; i++)
        sorted[starts[combining_class(codes[i])]++] = codes[i];
    memcpy(codes, sorted, bytes);
    return MP_OK;
}

static enum mp_status order_marks(struct code_points *list)
{
    enum mp_status status = MP_OK;
    utf8proc_int32_t *scratch = NULL;

    for (size_t i = 0; i < list->count && status == MP_OK;) {
        size_t end = i;
        bool sorted = true;

        for (unsigned last = 0; end < list->count; end++) {
            const unsigned ccc = combining_class(list->codes[end]);

            if (ccc == 0)
                break;
            sorted = sorted && ccc >= last;
            last = ccc;
        }
        if (!sorted)
            status = sort_marks(list->codes + i, end - i, &scratch);
        i = end + 1;
    }
    free(scratch);
    return status;
}

static enum mp_status decompose(struct code_points *list, const char *text, size_t bytes,
                                utf8proc_option_t options)
{
    for (size_t at = 0; at < bytes; at += mp_tok_utf8_bytes((unsigned char)text[at])) {
        const utf8proc_int32_t code = (utf8proc_int32_t)mp_tok_utf8_get(text + at);
        int bound_class = 0;
        enum mp_status status = code_points_reserve(list, 32);

        if (status != MP_OK)
            return status;
        if (is_later((uint32_t)code)) {
            list->codes[list->count++] = code;
            continue;
        }
        /* The longest decomposition of one character has 18 code points. */
        const utf8proc_ssize_t got =
            utf8proc_decompose_char(code, list->codes + list->count, 32, options, &bound_class);
        if (got < 0 || got > 32)
            return mp_fail(MP_ERR_INVALID, "E_TOK_NORMALIZE", "cannot normalize U+%04X: %s",
                           (unsigned)code, utf8proc_errmsg(got));
        list->count += (size_t)got;
    }
    return MP_OK;
}

/* Compose what lies between later characters. */
static void compose(struct code_points *list)
{
    size_t used = 0;

    for (size_t at = 0, end; at < list->count; at = end) {
        utf8proc_ssize_t count = 1;

        for (end = at; end < list->count && !is_later((uint32_t)list->codes[end]);)
            end++;
        if (end > at)
            count =
                utf8proc_normalize_utf32(list->codes + at, (utf8proc_ssize_t)(end - at),
                                         (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        else
            end = at + 1;
        memmove(list->codes + used, list->codes + at, (size_t)count * sizeof(*list->codes));
        used += (size_t)count;
    }
    list->count = used;
}

enum mp_status mp_tok_append_form(struct mp_tok_buf *buf, const char *text, size_t bytes,
                                  enum mp_tok_form form)
{
    const bool compat = form == MP_TOK_NFKC || form == MP_TOK_NFKD;
    struct code_points list = { 0 };
    enum mp_status status;
    size_t ascii = 0;

    while (ascii < bytes && (unsigned char)text[ascii] < 0x80)
        ascii++;
    if (ascii == bytes)
        return mp_tok_buf_append(buf, text, bytes);

    status = decompose(
        &list, text, bytes,
        (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0)));
    if (status == MP_OK)
        status = order_marks(&list);
    if (status == MP_OK && (form == MP_TOK_NFC || form == MP_TOK_NFKC))
        compose(&list);
    for (size_t i = 0; i < list.count && status == MP_OK; i++) {
        char out[4];

        status = mp_tok_buf_append(buf, out, mp_tok_utf8_put(out, (uint32_t)list.codes[i]));
    }
    free(list.codes);
    return status;
}
