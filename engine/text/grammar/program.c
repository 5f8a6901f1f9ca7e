/*
 * Programs of grammars: operations one by one, and from patterns. What runs them is grammar.c.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/grammar_int.h"

#define BLANKS_MAX 24

uint16_t mp_grammar_at(const struct mp_grammar *g)
{
    return (uint16_t)g->op_count;
}

uint16_t mp_grammar_emit(struct mp_grammar *g, enum mp_grammar_kind kind, uint32_t a, uint32_t b)
{
    if (g->status != MP_OK)
        return 0;
    if (g->op_count == MP_GRAMMAR_OPS_MAX) {
        g->status = mp_fail(MP_ERR_CONFIG, "E_FORMAT", "the schema is too large");
        return 0;
    }
    if (g->op_count == g->op_capacity) {
        const uint32_t capacity = 2 * g->op_capacity + 512;
        struct mp_grammar_op *grown = realloc(g->ops, capacity * sizeof(*grown));

        if (grown == NULL) {
            g->status = mp_fail_no_memory("a schema", capacity * sizeof(*grown));
            return 0;
        }
        g->ops = grown;
        g->op_capacity = capacity;
    }
    g->ops[g->op_count] =
        (struct mp_grammar_op){ .kind = (uint16_t)kind, .a = (uint16_t)a, .b = (uint16_t)b };
    return (uint16_t)g->op_count++;
}

void mp_grammar_refuse(struct mp_grammar *g, const char *what, const char *name)
{
    char quoted[MP_QUOTE_BYTES];

    if (g->status == MP_OK)
        g->status = mp_fail(MP_ERR_CONFIG, "E_FORMAT", "schema of '%s': %s '%s'", g->of, what,
                            mp_quote(quoted, name, strlen(name)));
}

void mp_grammar_set_a(struct mp_grammar *g, uint16_t op, uint32_t a)
{
    if (g->status == MP_OK)
        g->ops[op].a = (uint16_t)a;
}

void mp_grammar_set_b(struct mp_grammar *g, uint16_t op, uint32_t b)
{
    if (g->status == MP_OK)
        g->ops[op].b = (uint16_t)b;
}

void mp_grammar_bytes(struct mp_grammar *g, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        (void)mp_grammar_emit(g, MP_OP_SET, (uint8_t)bytes[i], 0);
}

/* ---- patterns: all are ours, so their syntax is not checked */

static void alternatives(struct mp_grammar *g, const char **at);

/* [...] from behind its bracket. */
static void class_of(struct mp_grammar *g, const char **at)
{
    uint8_t *set = g->sets[g->set_count];

    for (; **at != ']'; (*at)++) {
        uint8_t low, high;

        *at += **at == '\\';
        low = high = (uint8_t) * *at;
        if ((*at)[1] == '-') {
            *at += 2;
            *at += **at == '\\';
            high = (uint8_t) * *at;
        }
        for (unsigned b = low; b <= high; b++)
            set[b / 8] |= (uint8_t)(1u << b % 8);
    }
    (*at)++;
    (void)mp_grammar_emit(g, MP_OP_SET, g->set_count++, 0);
}

static void atom(struct mp_grammar *g, const char **at)
{
    static const char calls[] = "wsnivoat";
    const char c = *(*at)++;

    if (c == '(') {
        alternatives(g, at);
        (*at)++;
    } else if (c == '[') {
        class_of(g, at);
    } else if (c == '@') {
        (void)mp_grammar_emit(g, MP_OP_CALL, (uint32_t)(strchr(calls, *(*at)++) - calls), 0);
    } else {
        (void)mp_grammar_emit(g, MP_OP_SET, (uint8_t)(c == '\\' ? *(*at)++ : c), 0);
    }
}

/* The end of an atom, which says whether one more operation goes in front of it. */
static const char *skip_atom(const char *at)
{
    unsigned depth = 0;

    do {
        if (*at == '\\' || *at == '@') {
            at++;
        } else if (*at == '[') {
            while (*at != ']')
                at += *at == '\\' ? 2 : 1;
        } else if (*at == '(') {
            depth++;
        } else if (*at == ')') {
            depth--;
        }
        at++;
    } while (depth > 0);
    return at;
}

static void repeated(struct mp_grammar *g, const char **at)
{
    const char how = *skip_atom(*at);
    const uint16_t begin = mp_grammar_at(g);

    if (how == '*' || how == '?')
        (void)mp_grammar_emit(g, MP_OP_SPLIT, begin + 1u, 0);
    atom(g, at);
    if (how == '*')
        (void)mp_grammar_emit(g, MP_OP_JUMP, begin, 0);
    else if (how == '+')
        (void)mp_grammar_emit(g, MP_OP_SPLIT, begin, mp_grammar_at(g) + 1u);
    if (how == '*' || how == '?')
        mp_grammar_set_b(g, begin, mp_grammar_at(g));
    *at += how == '*' || how == '?' || how == '+';
}

/* Up to the closing parenthesis or the end. */
static void alternatives(struct mp_grammar *g, const char **at)
{
    uint16_t ends[16];
    unsigned count = 0;

    for (;;) {
        const char *look = *at;
        const uint16_t begin = mp_grammar_at(g);

        while (*look != '|' && *look != ')' && *look != '\0')
            look = skip_atom(look);
        if (*look == '|')
            (void)mp_grammar_emit(g, MP_OP_SPLIT, begin + 1u, 0);
        while (**at != '|' && **at != ')' && **at != '\0')
            repeated(g, at);
        if (**at != '|')
            break;
        (*at)++;
        ends[count++] = mp_grammar_emit(g, MP_OP_JUMP, 0, 0);
        mp_grammar_set_b(g, begin, mp_grammar_at(g));
    }
    while (count > 0)
        mp_grammar_set_a(g, ends[--count], mp_grammar_at(g));
}

void mp_grammar_pattern(struct mp_grammar *g, const char *pattern)
{
    alternatives(g, &pattern);
}

/* ---- JSON itself */

#define HEX "[0-9A-Fa-f]"
#define MORE "[\x80-\xbf]"
#define INTEGER "-?(0|[1-9][0-9]*)"
/* Characters of two bytes and more. */
#define LONGER                                                                         \
    "|[\xc2-\xdf]" MORE "|\xe0[\xa0-\xbf]" MORE "|[\xe1-\xec\xee-\xef]" MORE MORE      \
    "|\xed[\x80-\x9f]" MORE "|\xf0[\x90-\xbf]" MORE MORE "|[\xf1-\xf3]" MORE MORE MORE \
    "|\xf4[\x80-\x8f]" MORE MORE

static void blanks(struct mp_grammar *g)
{
    uint16_t splits[BLANKS_MAX];

    g->functions[MP_FN_BLANKS] = mp_grammar_at(g);
    for (unsigned i = 0; i < BLANKS_MAX; i++) {
        splits[i] = mp_grammar_emit(g, MP_OP_SPLIT, mp_grammar_at(g) + 1u, 0);
        mp_grammar_pattern(g, "[ \t\r\n]");
    }
    for (unsigned i = 0; i < BLANKS_MAX; i++)
        mp_grammar_set_b(g, splits[i], mp_grammar_at(g));
    (void)mp_grammar_emit(g, MP_OP_RETURN, 0, 0);
}

static void function(struct mp_grammar *g, enum mp_grammar_function which, const char *pattern)
{
    g->functions[which] = mp_grammar_at(g);
    mp_grammar_pattern(g, pattern);
    (void)mp_grammar_emit(g, MP_OP_RETURN, 0, 0);
}

void mp_grammar_fixed_functions(struct mp_grammar *g)
{
    for (unsigned b = 0; b < 256; b++)
        g->sets[b][b / 8] = (uint8_t)(1u << b % 8);
    g->set_count = 256;
    g->function_count = MP_FN_FIXED;
    blanks(g);
    /* The loop of a string is the operation behind its first quote. */
    g->string_loop = (uint16_t)(mp_grammar_at(g) + 1);
    function(g, MP_FN_STRING,
             "\"([ !#-\\[\\]-\x7f]"
             "|\\\\([\"\\\\/bfnrt]|u([0-9A-CE-Fa-ce-f]" HEX HEX HEX "|[Dd]([0-7]" HEX HEX
             "|[89ABab]" HEX HEX "\\\\u[Dd][C-Fc-f]" HEX HEX ")))" LONGER ")*\"");
    function(g, MP_FN_NUMBER, INTEGER "(.[0-9]+)?([eE][+\\-]?[0-9]+)?");
    function(g, MP_FN_INTEGER, INTEGER);
    function(g, MP_FN_VALUE, "@s|@n|true|false|null|@o|@a");
    function(g, MP_FN_OBJECT, "{@w(@s:@w@v(,@w@s:@w@v)*@w)?}");
    function(g, MP_FN_ARRAY, "\\[@w(@v(,@w@v)*@w)?\\]");
    function(g, MP_FN_TEXT, "([\t\n -;=-\x7f]" LONGER ")*");
}
