/*
 * Expressions: from tokens to nodes, in the order in which Jinja binds operators.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/text/jinja/jinja_int.h"

#define DEPTH_MAX 100u

static const struct mp_jinja_text no_name;

/* ---- tokens */

const struct mp_jinja_token *mp_jinja_peek(const struct mp_jinja_parser *p)
{
    static const struct mp_jinja_token end = { .kind = MP_JINJA_T_END, .text = { "", NULL, 0 } };

    return p->at < p->count ? &p->tokens[p->at] : &end;
}

bool mp_jinja_is(const struct mp_jinja_parser *p, enum mp_jinja_token_kind kind, const char *text)
{
    const struct mp_jinja_token *t = mp_jinja_peek(p);

    return t->kind == kind && (text == NULL || mp_jinja_text_is(&t->text, text));
}

bool mp_jinja_accept(struct mp_jinja_parser *p, enum mp_jinja_token_kind kind, const char *text)
{
    if (p->m->status != MP_OK || !mp_jinja_is(p, kind, text))
        return false;
    p->m->line = mp_jinja_peek(p)->line;
    p->at += kind != MP_JINJA_T_END;
    return true;
}

struct mp_jinja_text mp_jinja_expect(struct mp_jinja_parser *p, enum mp_jinja_token_kind kind,
                                     const char *text)
{
    const struct mp_jinja_token *t = mp_jinja_peek(p);

    if (mp_jinja_accept(p, kind, text))
        return t->text;
    mp_jinja_fail(p->m, "what comes there is not understood:", t->text.bytes, t->text.count);
    return (struct mp_jinja_text){ "", NULL, 0 };
}

static bool operator_is(struct mp_jinja_parser *p, const char *text)
{
    return mp_jinja_accept(p, MP_JINJA_T_OP, text);
}

static bool word_is(struct mp_jinja_parser *p, const char *text)
{
    return mp_jinja_accept(p, MP_JINJA_T_NAME, text);
}

/* ---- nodes */

struct mp_jinja_node *mp_jinja_node(struct mp_jinja_parser *p, enum mp_jinja_node_kind kind)
{
    struct mp_jinja_node *node = mp_jinja_alloc(p->m, sizeof(*node));

    if (node == NULL)
        return NULL;
    node->kind = kind;
    node->line = p->m->line;
    return node;
}

/* A node over others; NULL after a failure. */
static struct mp_jinja_node *join(struct mp_jinja_parser *p, enum mp_jinja_node_kind kind,
                                  struct mp_jinja_node *a, struct mp_jinja_text text,
                                  struct mp_jinja_node *b)
{
    struct mp_jinja_node *node = mp_jinja_node(p, kind);

    if (node == NULL)
        return NULL;
    node->a = a;
    node->b = b;
    node->text = text;
    return node;
}

void mp_jinja_add_item(struct mp_jinja_parser *p, struct mp_jinja_node *node,
                       struct mp_jinja_node *item, struct mp_jinja_text name)
{
    size_t capacity;
    struct mp_jinja_node **items;
    struct mp_jinja_text *names;

    if (p->m->status != MP_OK)
        return;
    capacity = node->capacity;
    items =
        mp_jinja_grow(p->m, node->items, node->count, &capacity, sizeof(struct mp_jinja_node *));
    names = mp_jinja_grow(p->m, (void *)node->names, node->count, &node->capacity, sizeof(*names));
    if (items == NULL || names == NULL)
        return;
    items[node->count] = item;
    names[node->count++] = name;
    node->items = items;
    node->names = names;
}

static struct mp_jinja_node *constant(struct mp_jinja_parser *p, struct mp_jinja_value value)
{
    struct mp_jinja_node *node = mp_jinja_node(p, MP_JINJA_N_CONST);

    if (node != NULL)
        node->value = value;
    return node;
}

/* ---- what stands alone */

static struct mp_jinja_node *parse_number(struct mp_jinja_parser *p)
{
    const struct mp_jinja_token *t = mp_jinja_peek(p);
    char text[64];

    if (t->text.count >= sizeof(text)) {
        mp_jinja_fail(p->m, "a number is too long", NULL, 0);
        return NULL;
    }
    memcpy(text, t->text.bytes, t->text.count);
    text[t->text.count] = '\0';
    p->at++;
    errno = 0;
    if (t->kind == MP_JINJA_T_REAL)
        return constant(p, mp_jinja_real(strtod(text, NULL)));
    const int64_t integer = strtoll(text, NULL, 10);
    if (errno != 0)
        mp_jinja_fail(p->m, "a number is too large", NULL, 0);
    return constant(p, mp_jinja_int(integer));
}

static struct mp_jinja_node *parse_string(struct mp_jinja_parser *p)
{
    struct mp_jinja_buffer b = { .m = p->m };

    while (mp_jinja_is(p, MP_JINJA_T_STRING, NULL)) {
        mp_jinja_add_text(&b, &mp_jinja_peek(p)->text);
        p->at++;
    }
    return constant(p, mp_jinja_built(&b));
}

static struct mp_jinja_node *parse_word(struct mp_jinja_parser *p)
{
    static const struct {
        const char *name;
        struct mp_jinja_value value;
    } words[] = {
        { "true", { .kind = MP_JINJA_BOOL, .as.integer = 1 } },
        { "True", { .kind = MP_JINJA_BOOL, .as.integer = 1 } },
        { "false", { .kind = MP_JINJA_BOOL } },
        { "False", { .kind = MP_JINJA_BOOL } },
        { "none", { .kind = MP_JINJA_NONE } },
        { "None", { .kind = MP_JINJA_NONE } },
    };

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (word_is(p, words[i].name))
            return constant(p, words[i].value);
    }
    return join(p, MP_JINJA_N_NAME, NULL, mp_jinja_expect(p, MP_JINJA_T_NAME, NULL), NULL);
}

static struct mp_jinja_node *parse_list(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *list = mp_jinja_node(p, MP_JINJA_N_LIST);

    while (p->m->status == MP_OK && !operator_is(p, "]")) {
        mp_jinja_add_item(p, list, mp_jinja_parse_expression(p), no_name);
        if (!mp_jinja_is(p, MP_JINJA_T_OP, "]"))
            mp_jinja_expect(p, MP_JINJA_T_OP, ",");
    }
    return list;
}

static struct mp_jinja_node *parse_dict(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *dict = mp_jinja_node(p, MP_JINJA_N_DICT);

    while (p->m->status == MP_OK && !operator_is(p, "}")) {
        mp_jinja_add_item(p, dict, mp_jinja_parse_expression(p), no_name);
        mp_jinja_expect(p, MP_JINJA_T_OP, ":");
        mp_jinja_add_item(p, dict, mp_jinja_parse_expression(p), no_name);
        if (!mp_jinja_is(p, MP_JINJA_T_OP, "}"))
            mp_jinja_expect(p, MP_JINJA_T_OP, ",");
    }
    return dict;
}

static struct mp_jinja_node *tuple(struct mp_jinja_parser *p)
{
    static const struct mp_jinja_text round = { "(", NULL, 1 };

    return join(p, MP_JINJA_N_LIST, NULL, round, NULL);
}

static struct mp_jinja_node *parse_primary(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *inner;

    switch (mp_jinja_peek(p)->kind) {
    case MP_JINJA_T_INT:
    case MP_JINJA_T_REAL: return parse_number(p);
    case MP_JINJA_T_STRING: return parse_string(p);
    case MP_JINJA_T_NAME: return parse_word(p);
    default: break;
    }
    if (operator_is(p, "["))
        return parse_list(p);
    if (operator_is(p, "{"))
        return parse_dict(p);
    mp_jinja_expect(p, MP_JINJA_T_OP, "(");
    if (operator_is(p, ")"))
        return tuple(p);
    inner = mp_jinja_parse_tuple(p);
    mp_jinja_expect(p, MP_JINJA_T_OP, ")");
    return inner;
}

/* ---- what follows it */

/* From behind ( to behind ). */
static void parse_arguments(struct mp_jinja_parser *p, struct mp_jinja_node *call)
{
    while (p->m->status == MP_OK && !operator_is(p, ")")) {
        struct mp_jinja_text name = no_name;

        if (mp_jinja_is(p, MP_JINJA_T_NAME, NULL) && p->at + 1 < p->count &&
            p->tokens[p->at + 1].kind == MP_JINJA_T_OP &&
            mp_jinja_text_is(&p->tokens[p->at + 1].text, "=")) {
            name = mp_jinja_peek(p)->text;
            p->at += 2;
        }
        mp_jinja_add_item(p, call, mp_jinja_parse_expression(p), name);
        if (!mp_jinja_is(p, MP_JINJA_T_OP, ")"))
            mp_jinja_expect(p, MP_JINJA_T_OP, ",");
    }
}

/* From behind [ to behind ]. */
static struct mp_jinja_node *parse_subscript(struct mp_jinja_parser *p, struct mp_jinja_node *of)
{
    struct mp_jinja_node *parts[3] = { NULL }, *node;
    unsigned part = 0;

    while (p->m->status == MP_OK && !operator_is(p, "]")) {
        if (!operator_is(p, ":"))
            parts[part] = mp_jinja_parse_expression(p);
        else if (++part > 2)
            mp_jinja_fail(p->m, "a slice has too many parts", NULL, 0);
    }
    if (part == 0 && parts[0] == NULL)
        mp_jinja_fail(p->m, "an index is empty", NULL, 0);
    node = join(p, part == 0 ? MP_JINJA_N_ITEM : MP_JINJA_N_SLICE, of, no_name, parts[0]);
    for (unsigned i = 0; i < 3 && part > 0; i++)
        mp_jinja_add_item(p, node, parts[i], no_name);
    return node;
}

static struct mp_jinja_node *parse_postfix(struct mp_jinja_parser *p, struct mp_jinja_node *node)
{
    while (p->m->status == MP_OK) {
        if (operator_is(p, ".")) {
            if (mp_jinja_is(p, MP_JINJA_T_INT, NULL))
                node = join(p, MP_JINJA_N_ITEM, node, no_name, parse_number(p));
            else
                node =
                    join(p, MP_JINJA_N_ATTR, node, mp_jinja_expect(p, MP_JINJA_T_NAME, NULL), NULL);
        } else if (operator_is(p, "[")) {
            node = parse_subscript(p, node);
        } else if (operator_is(p, "(")) {
            node = join(p, MP_JINJA_N_CALL, node, no_name, NULL);
            parse_arguments(p, node);
        } else {
            break;
        }
    }
    return node;
}

static struct mp_jinja_node *parse_filter(struct mp_jinja_parser *p, struct mp_jinja_node *of)
{
    const struct mp_jinja_text name = mp_jinja_expect(p, MP_JINJA_T_NAME, NULL);
    struct mp_jinja_node *node = join(p, MP_JINJA_N_FILTER, of, name, NULL);

    if (!mp_jinja_has_filter(&name))
        mp_jinja_fail(p->m, "there is no filter", name.bytes, name.count);
    if (operator_is(p, "("))
        parse_arguments(p, node);
    return node;
}

static bool has_test_argument(const struct mp_jinja_parser *p)
{
    static const char *const words[] = { "else", "or", "and", "is", "if", "not", "in" };

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (mp_jinja_is(p, MP_JINJA_T_NAME, words[i]))
            return false;
    }
    return mp_jinja_is(p, MP_JINJA_T_NAME, NULL) || mp_jinja_is(p, MP_JINJA_T_STRING, NULL) ||
           mp_jinja_is(p, MP_JINJA_T_INT, NULL) || mp_jinja_is(p, MP_JINJA_T_REAL, NULL) ||
           mp_jinja_is(p, MP_JINJA_T_OP, "[") || mp_jinja_is(p, MP_JINJA_T_OP, "{");
}

static struct mp_jinja_node *parse_test(struct mp_jinja_parser *p, struct mp_jinja_node *of)
{
    const bool negated = word_is(p, "not");
    const struct mp_jinja_text name = mp_jinja_expect(p, MP_JINJA_T_NAME, NULL);
    struct mp_jinja_node *node = join(p, MP_JINJA_N_TEST, of, name, NULL);

    if (!mp_jinja_has_test(&name))
        mp_jinja_fail(p->m, "there is no test", name.bytes, name.count);
    if (operator_is(p, "("))
        parse_arguments(p, node);
    else if (has_test_argument(p))
        mp_jinja_add_item(p, node, parse_postfix(p, parse_primary(p)), no_name);
    return negated ? join(p, MP_JINJA_N_NOT, node, no_name, NULL) : node;
}

/* ---- operators, from the one that binds most */

static struct mp_jinja_node *parse_unary(struct mp_jinja_parser *p, bool filters)
{
    struct mp_jinja_node *node = NULL;

    if (++p->depth > DEPTH_MAX)
        mp_jinja_fail(p->m, "an expression is too deep", NULL, 0);
    if (operator_is(p, "-"))
        node = join(p, MP_JINJA_N_MINUS, parse_unary(p, false), no_name, NULL);
    else if (operator_is(p, "+"))
        node = join(p, MP_JINJA_N_PLUS, parse_unary(p, false), no_name, NULL);
    else if (p->m->status == MP_OK)
        node = parse_primary(p);
    node = parse_postfix(p, node);
    while (filters && p->m->status == MP_OK) {
        if (operator_is(p, "|"))
            node = parse_filter(p, node);
        else if (word_is(p, "is"))
            node = parse_test(p, node);
        else if (operator_is(p, "("))
            parse_arguments(p, node = join(p, MP_JINJA_N_CALL, node, no_name, NULL));
        else
            break;
    }
    p->depth--;
    return node;
}

/* Levels of operators with two sides; the first binds least. */
static const char *const levels[][5] = { { "+", "-" }, { "~" }, { "*", "/", "//", "%" }, { "**" } };
#define LEVELS (sizeof(levels) / sizeof(*levels))

static struct mp_jinja_node *parse_level(struct mp_jinja_parser *p, size_t level)
{
    struct mp_jinja_node *node =
        level + 1 < LEVELS ? parse_level(p, level + 1) : parse_unary(p, true);

    for (size_t i = 0; i < 5 && levels[level][i] != NULL && p->m->status == MP_OK; i++) {
        const struct mp_jinja_text text = mp_jinja_peek(p)->text;

        if (operator_is(p, levels[level][i])) {
            node = join(p, MP_JINJA_N_BINARY, node, text,
                        level + 1 < LEVELS ? parse_level(p, level + 1) : parse_unary(p, true));
            i = SIZE_MAX;
        }
    }
    return node;
}

static bool accept_comparison(struct mp_jinja_parser *p, struct mp_jinja_text *text_p)
{
    static const char *const operators[] = { "==", "!=", "<=", ">=", "<", ">" };
    static const struct mp_jinja_text not_in = { "not in", NULL, 6 };

    *text_p = mp_jinja_peek(p)->text;
    for (size_t i = 0; i < sizeof(operators) / sizeof(*operators); i++) {
        if (operator_is(p, operators[i]))
            return true;
    }
    if (word_is(p, "in"))
        return true;
    if (!mp_jinja_is(p, MP_JINJA_T_NAME, "not") || p->at + 1 >= p->count ||
        !mp_jinja_text_is(&p->tokens[p->at + 1].text, "in"))
        return false;
    p->at += 2;
    *text_p = not_in;
    return true;
}

/* a < b < c is a < b and b < c: without side effects it does not matter that b is looked at twice.
 */
static struct mp_jinja_node *parse_comparison(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *left = parse_level(p, 0), *node = NULL;
    struct mp_jinja_text text;

    while (p->m->status == MP_OK && accept_comparison(p, &text)) {
        struct mp_jinja_node *right = parse_level(p, 0);
        struct mp_jinja_node *one = join(p, MP_JINJA_N_BINARY, left, text, right);

        node = node == NULL ? one : join(p, MP_JINJA_N_AND, node, no_name, one);
        left = right;
    }
    return node != NULL ? node : left;
}

static struct mp_jinja_node *parse_not(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *node;

    if (!word_is(p, "not"))
        return parse_comparison(p);
    if (++p->depth > DEPTH_MAX)
        mp_jinja_fail(p->m, "an expression is too deep", NULL, 0);
    node = join(p, MP_JINJA_N_NOT, p->m->status == MP_OK ? parse_not(p) : NULL, no_name, NULL);
    p->depth--;
    return node;
}

static struct mp_jinja_node *parse_and(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *node = parse_not(p);

    while (word_is(p, "and"))
        node = join(p, MP_JINJA_N_AND, node, no_name, parse_not(p));
    return node;
}

struct mp_jinja_node *mp_jinja_parse_or(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *node = parse_and(p);

    while (word_is(p, "or"))
        node = join(p, MP_JINJA_N_OR, node, no_name, parse_and(p));
    return node;
}

struct mp_jinja_node *mp_jinja_parse_expression(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *node = NULL;

    if (++p->depth > DEPTH_MAX)
        mp_jinja_fail(p->m, "an expression is too deep", NULL, 0);
    if (p->m->status == MP_OK)
        node = mp_jinja_parse_or(p);
    while (word_is(p, "if")) {
        struct mp_jinja_node *choice = mp_jinja_node(p, MP_JINJA_N_IF_ELSE);

        if (choice == NULL)
            break;
        choice->b = node;
        choice->a = mp_jinja_parse_or(p);
        choice->c = word_is(p, "else") ? mp_jinja_parse_expression(p) : NULL;
        node = choice;
    }
    p->depth--;
    return node;
}

struct mp_jinja_node *mp_jinja_parse_tuple(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *first = mp_jinja_parse_expression(p), *list;

    if (!mp_jinja_is(p, MP_JINJA_T_OP, ","))
        return first;
    list = tuple(p);
    mp_jinja_add_item(p, list, first, no_name);
    while (operator_is(p, ",")) {
        if (mp_jinja_is(p, MP_JINJA_T_OP, ")") || mp_jinja_is(p, MP_JINJA_T_BLOCK_END, NULL) ||
            mp_jinja_is(p, MP_JINJA_T_VAR_END, NULL))
            break;
        mp_jinja_add_item(p, list, mp_jinja_parse_expression(p), no_name);
    }
    return list;
}
