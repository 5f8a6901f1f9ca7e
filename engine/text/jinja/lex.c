/*
 * Templates into tokens: text, and what is in tags. White space at tags goes here.
 */
#include "engine/text/jinja/jinja_int.h"

#include <utf8proc.h>

/* Where the lexer is; line ends of the text are \n. */
struct lexer {
    struct mp_jinja_parser *p;
    const char *text;
    size_t count, at;
    uint32_t line;
};

static void add_token(struct lexer *l, enum mp_jinja_token_kind kind, struct mp_jinja_text text)
{
    struct mp_jinja_parser *p = l->p;
    struct mp_jinja_token *tokens =
        p->m->status == MP_OK
            ? mp_jinja_grow(p->m, p->tokens, p->count, &p->capacity, sizeof(*tokens))
            : NULL;

    if (tokens == NULL)
        return;
    p->tokens = tokens;
    tokens[p->count++] = (struct mp_jinja_token){ kind, l->line, text };
}

static bool begins(const struct lexer *l, size_t at, const char *what)
{
    const size_t bytes = strlen(what);

    return l->count - at >= bytes && memcmp(l->text + at, what, bytes) == 0;
}

static void skip_to(struct lexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->line += l->text[l->at] == '\n';
    l->p->m->line = l->line;
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Behind the end of a tag: with a dash all blanks go, else behind a block or comment one line end.
 */
static void end_tag(struct lexer *l, size_t at, bool dash, bool trims)
{
    if (dash) {
        while (at < l->count && is_blank(l->text[at]))
            at++;
    } else if (trims && at < l->count && l->text[at] == '\n') {
        at++;
    }
    skip_to(l, at);
}

/* ---- inside of tags */

static bool is_name(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

/* \x41, \u0041, \U00000041 from behind the letter. Returns the bytes. */
static size_t add_hex(struct lexer *l, struct mp_jinja_buffer *b, size_t at, size_t digits)
{
    uint32_t code = 0;
    char text[4];

    for (size_t i = 0; i < digits; i++) {
        static const char hex[] = "0123456789abcdef";
        const char c = at + i < l->count ? (char)(l->text[at + i] | 0x20) : '\0';
        const char *const digit = c != '\0' ? strchr(hex, c) : NULL;

        if (digit == NULL) {
            mp_jinja_fail(b->m, "a string has a wrong escape", NULL, 0);
            return digits;
        }
        code = code << 4 | (uint32_t)(digit - hex);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        mp_jinja_fail(b->m, "a string has a wrong escape", NULL, 0);
    else
        mp_jinja_add(b, text, NULL,
                     (size_t)utf8proc_encode_char((int32_t)code, (unsigned char *)text));
    return digits;
}

/* An escape from behind its backslash. Returns its bytes. */
static size_t add_escape(struct lexer *l, struct mp_jinja_buffer *b, size_t at)
{
    static const char letters[] = "ntrabfv0\\'\"", values[] = "\n\t\r\a\b\f\v\0\\'\"";
    const char c = l->text[at];
    const char *const letter = c != '\0' ? strchr(letters, c) : NULL;

    if (letter != NULL) {
        mp_jinja_add(b, &values[letter - letters], NULL, 1);
        return 1;
    }
    if (c == 'x' || c == 'u' || c == 'U')
        return 1 + add_hex(l, b, at + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    if (c == '\n')
        return 1;
    mp_jinja_add_own(b, "\\");
    mp_jinja_add(b, &c, NULL, 1);
    return 1;
}

static void lex_string(struct lexer *l)
{
    struct mp_jinja_buffer b = { .m = l->p->m };
    const char quote = l->text[l->at];
    size_t at = l->at + 1;
    struct mp_jinja_value built;

    while (at < l->count && l->text[at] != quote) {
        if (l->text[at] == '\\' && at + 1 < l->count) {
            at += 1 + add_escape(l, &b, at + 1);
        } else {
            mp_jinja_add(&b, l->text + at, NULL, 1);
            at++;
        }
    }
    if (at >= l->count)
        mp_jinja_fail(l->p->m, "a string has no end", NULL, 0);
    built = mp_jinja_built(&b);
    if (built.kind == MP_JINJA_TEXT)
        add_token(l, MP_JINJA_T_STRING, *built.as.text);
    skip_to(l, at < l->count ? at + 1 : l->count);
}

static bool is_digit(const struct lexer *l, size_t at)
{
    return at < l->count && l->text[at] >= '0' && l->text[at] <= '9';
}

static void lex_number(struct lexer *l)
{
    size_t at = l->at;
    bool real = false;

    while (is_digit(l, at))
        at++;
    if (at < l->count && l->text[at] == '.' && is_digit(l, at + 1)) {
        real = true;
        for (at++; is_digit(l, at);)
            at++;
    }
    if (at < l->count && (l->text[at] | 0x20) == 'e' &&
        is_digit(l, at + 1 + (at + 1 < l->count && strchr("+-", l->text[at + 1]) != NULL))) {
        real = true;
        for (at += 2; is_digit(l, at);)
            at++;
    }
    add_token(l, real ? MP_JINJA_T_REAL : MP_JINJA_T_INT,
              (struct mp_jinja_text){ l->text + l->at, NULL, at - l->at });
    skip_to(l, at);
}

static void lex_operator(struct lexer *l)
{
    static const char *const pairs[] = { "==", "!=", "<=", ">=", "//", "**" };
    size_t bytes = strchr("+-*/%~()[]{}<>=.,:|!", l->text[l->at]) != NULL ? 1 : 0;

    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        if (begins(l, l->at, pairs[i]))
            bytes = 2;
    }
    if (bytes == 0 || l->text[l->at] == '\0')
        mp_jinja_fail(l->p->m, "it has a character that means nothing:", l->text + l->at, 1);
    add_token(l, MP_JINJA_T_OP, (struct mp_jinja_text){ l->text + l->at, NULL, bytes });
    skip_to(l, l->at + bytes);
}

static void lex_code(struct lexer *l)
{
    const char c = l->text[l->at];
    size_t at = l->at;

    if (is_blank(c)) {
        skip_to(l, at + 1);
    } else if (is_name(c, true)) {
        while (at < l->count && is_name(l->text[at], false))
            at++;
        add_token(l, MP_JINJA_T_NAME, (struct mp_jinja_text){ l->text + l->at, NULL, at - l->at });
        skip_to(l, at);
    } else if (c >= '0' && c <= '9') {
        lex_number(l);
    } else if (c == '\'' || c == '"') {
        lex_string(l);
    } else {
        lex_operator(l);
    }
}

/* A tag from behind its opening to behind its end. An end inside of brackets is none. */
static void lex_tag(struct lexer *l, bool block)
{
    const char *const end = block ? "%}" : "}}";
    unsigned open = 0;

    add_token(l, block ? MP_JINJA_T_BLOCK : MP_JINJA_T_VAR, (struct mp_jinja_text){ "", NULL, 0 });
    if (l->at < l->count && strchr("-+", l->text[l->at]) != NULL)
        skip_to(l, l->at + 1);
    while (l->p->m->status == MP_OK) {
        const char c = l->at < l->count ? l->text[l->at] : '\0';
        const bool sign = c == '-' || (c == '+' && block);

        if (l->at >= l->count) {
            mp_jinja_fail(l->p->m, "a tag has no end", NULL, 0);
        } else if (open == 0 && begins(l, l->at + sign, end)) {
            add_token(l, block ? MP_JINJA_T_BLOCK_END : MP_JINJA_T_VAR_END,
                      (struct mp_jinja_text){ "", NULL, 0 });
            end_tag(l, l->at + sign + 2, c == '-', block && c != '+');
            return;
        } else {
            open += c == '(' || c == '[' || c == '{';
            open -= open > 0 && (c == ')' || c == ']' || c == '}');
            lex_code(l);
        }
    }
}

/* ---- text */

/* {% raw %}: what is in it is text. `at` is behind the opening of a tag. */
static bool lex_raw(struct lexer *l, size_t open)
{
    const struct mp_jinja_text all = { l->text, NULL, l->count };
    const struct mp_jinja_text close = { "endraw", NULL, 6 };
    size_t at = open + 2, begin, end;
    bool dash;

    at += at < l->count && strchr("-+", l->text[at]) != NULL;
    while (at < l->count && is_blank(l->text[at]))
        at++;
    if (!begins(l, at, "raw") || (at + 3 < l->count && is_name(l->text[at + 3], false)))
        return false;
    for (at += 3; at < l->count && is_blank(l->text[at]);)
        at++;
    dash = begins(l, at, "-%}");
    if (!dash && !begins(l, at, "%}")) {
        mp_jinja_fail(l->p->m, "'raw' has no end", NULL, 0);
        return true;
    }
    end_tag(l, at + 2 + dash, dash, true);
    begin = l->at;
    end = mp_jinja_search(&all, &close, begin);
    for (at = end; at != SIZE_MAX && at > begin && !begins(l, at, "{%");)
        at--;
    if (at == SIZE_MAX || !begins(l, at, "{%")) {
        mp_jinja_fail(l->p->m, "'raw' has no end", NULL, 0);
        return true;
    }
    dash = begins(l, at, "{%-");
    while (dash && at > begin && is_blank(l->text[at - 1]))
        at--;
    add_token(l, MP_JINJA_T_DATA, (struct mp_jinja_text){ l->text + begin, NULL, at - begin });
    for (at = end + close.count; at < l->count && !begins(l, at, "%}");)
        at++;
    end_tag(l, at < l->count ? at + 2 : at, at > 0 && l->text[at - 1] == '-', true);
    return true;
}

static void lex_comment(struct lexer *l, size_t open)
{
    size_t at = open + 2;

    while (at < l->count && !begins(l, at, "#}"))
        at++;
    if (at >= l->count)
        mp_jinja_fail(l->p->m, "a comment has no end", NULL, 0);
    else
        end_tag(l, at + 2, at > open + 2 && l->text[at - 1] == '-', l->text[at - 1] != '+');
}

/* The text up to the tag at `open`, without the blanks that the tag takes. */
static void lex_data(struct lexer *l, size_t open)
{
    const char sign = open + 2 < l->count ? l->text[open + 2] : '\0';
    const bool variable = open < l->count && l->text[open + 1] == '{';
    size_t end = open, blank = open;

    while (blank > l->at && is_blank(l->text[blank - 1]) &&
           (sign == '-' || l->text[blank - 1] != '\n'))
        blank--;
    if (open < l->count &&
        (sign == '-' || (sign != '+' && !variable && (blank == 0 || l->text[blank - 1] == '\n'))))
        end = blank;
    if (end > l->at)
        add_token(l, MP_JINJA_T_DATA, (struct mp_jinja_text){ l->text + l->at, NULL, end - l->at });
    skip_to(l, open);
}

static void lex_all(struct lexer *l)
{
    while (l->at < l->count && l->p->m->status == MP_OK) {
        size_t open = l->at;

        while (open < l->count && !begins(l, open, "{{") && !begins(l, open, "{%") &&
               !begins(l, open, "{#"))
            open++;
        lex_data(l, open);
        if (open == l->count)
            break;
        if (l->text[open + 1] == '#') {
            lex_comment(l, open);
        } else if (l->text[open + 1] == '{' || !lex_raw(l, open)) {
            skip_to(l, open + 2);
            lex_tag(l, l->text[open + 1] == '%');
        }
    }
    add_token(l, MP_JINJA_T_END, (struct mp_jinja_text){ "", NULL, 0 });
}

void mp_jinja_lex(struct mp_jinja_parser *p, const char *text, size_t bytes)
{
    char *copy = mp_jinja_alloc(p->m, bytes + 1);
    struct lexer l = { .p = p, .text = copy, .line = 1 };

    if (copy == NULL)
        return;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n')
            continue;
        copy[l.count++] = text[i] == '\r' ? '\n' : text[i];
    }
    l.count -= l.count > 0 && copy[l.count - 1] == '\n';
    p->m->line = 1;
    lex_all(&l);
}
