/*
 * Statements: from tokens to nodes.
 */
#include "engine/text/jinja/jinja_int.h"

#define DEPTH_MAX 60u

static const struct mp_jinja_text no_name;

static struct mp_jinja_node *parse_body(struct mp_jinja_parser *p, const char *const *ends);

static bool word(struct mp_jinja_parser *p, const char *text)
{
    return mp_jinja_accept(p, MP_JINJA_T_NAME, text);
}

static void end_block(struct mp_jinja_parser *p)
{
    mp_jinja_expect(p, MP_JINJA_T_BLOCK_END, NULL);
}

/* The body up to {% end %}, which is read. */
static struct mp_jinja_node *parse_to_end(struct mp_jinja_parser *p, const char *end)
{
    const char *const ends[] = { end, NULL };
    struct mp_jinja_node *body = parse_body(p, ends);

    mp_jinja_expect(p, MP_JINJA_T_NAME, end);
    end_block(p);
    return body;
}

/* From behind `if` or `elif`. */
static struct mp_jinja_node *parse_if(struct mp_jinja_parser *p)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    struct mp_jinja_node *first = mp_jinja_node(p, MP_JINJA_N_IF), *node = first;

    while (node != NULL) {
        node->a = mp_jinja_parse_tuple(p);
        end_block(p);
        node->b = parse_body(p, ends);
        if (!word(p, "elif"))
            break;
        node = node->c = mp_jinja_node(p, MP_JINJA_N_IF);
    }
    if (node != NULL && word(p, "else")) {
        end_block(p);
        node->c = parse_to_end(p, "endif");
        return first;
    }
    mp_jinja_expect(p, MP_JINJA_T_NAME, "endif");
    end_block(p);
    return first;
}

/* name, name.member, or several names, perhaps in parentheses. */
static void parse_targets(struct mp_jinja_parser *p, struct mp_jinja_node *node)
{
    const bool open = mp_jinja_accept(p, MP_JINJA_T_OP, "(");

    do {
        struct mp_jinja_node *target = mp_jinja_node(p, MP_JINJA_N_NAME);

        if (target == NULL)
            return;
        target->text = mp_jinja_expect(p, MP_JINJA_T_NAME, NULL);
        if (mp_jinja_accept(p, MP_JINJA_T_OP, ".")) {
            struct mp_jinja_node *member = mp_jinja_node(p, MP_JINJA_N_ATTR);

            if (member == NULL)
                return;
            member->a = target;
            member->text = mp_jinja_expect(p, MP_JINJA_T_NAME, NULL);
            target = member;
        }
        mp_jinja_add_item(p, node, target, no_name);
    } while (mp_jinja_accept(p, MP_JINJA_T_OP, ","));
    if (open)
        mp_jinja_expect(p, MP_JINJA_T_OP, ")");
}

static struct mp_jinja_node *parse_for(struct mp_jinja_parser *p)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    struct mp_jinja_node *node = mp_jinja_node(p, MP_JINJA_N_FOR);

    if (node == NULL)
        return NULL;
    parse_targets(p, node);
    mp_jinja_expect(p, MP_JINJA_T_NAME, "in");
    node->a = mp_jinja_parse_or(p);
    if (word(p, "if"))
        node->d = mp_jinja_parse_expression(p);
    end_block(p);
    node->b = parse_body(p, ends);
    if (word(p, "else")) {
        end_block(p);
        node->c = parse_to_end(p, "endfor");
        return node;
    }
    mp_jinja_expect(p, MP_JINJA_T_NAME, "endfor");
    end_block(p);
    return node;
}

static struct mp_jinja_node *parse_set(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *node = mp_jinja_node(p, MP_JINJA_N_SET);

    if (node == NULL)
        return NULL;
    parse_targets(p, node);
    if (mp_jinja_accept(p, MP_JINJA_T_OP, "=")) {
        node->a = mp_jinja_parse_tuple(p);
        end_block(p);
        return node;
    }
    if (node->count > 1)
        mp_jinja_fail(p->m, "'set' of a block has several names", NULL, 0);
    end_block(p);
    node->b = parse_to_end(p, "endset");
    return node;
}

static struct mp_jinja_node *parse_macro(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *node = mp_jinja_node(p, MP_JINJA_N_MACRO);

    if (node == NULL)
        return NULL;
    node->text = mp_jinja_expect(p, MP_JINJA_T_NAME, NULL);
    mp_jinja_expect(p, MP_JINJA_T_OP, "(");
    while (p->m->status == MP_OK && !mp_jinja_accept(p, MP_JINJA_T_OP, ")")) {
        const struct mp_jinja_text name = mp_jinja_expect(p, MP_JINJA_T_NAME, NULL);

        mp_jinja_add_item(
            p, node, mp_jinja_accept(p, MP_JINJA_T_OP, "=") ? mp_jinja_parse_expression(p) : NULL,
            name);
        if (!mp_jinja_is(p, MP_JINJA_T_OP, ")"))
            mp_jinja_expect(p, MP_JINJA_T_OP, ",");
    }
    end_block(p);
    node->b = parse_to_end(p, "endmacro");
    return node;
}

static struct mp_jinja_node *parse_statement(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *node;
    const struct mp_jinja_text name = mp_jinja_peek(p)->text;

    if (word(p, "if"))
        return parse_if(p);
    if (word(p, "for"))
        return parse_for(p);
    if (word(p, "set"))
        return parse_set(p);
    if (word(p, "macro"))
        return parse_macro(p);
    if (word(p, "generation")) { /* marks answers for training */
        end_block(p);
        return parse_to_end(p, "endgeneration");
    }
    node = mp_jinja_node(p, word(p, "break") ? MP_JINJA_N_BREAK : MP_JINJA_N_CONTINUE);
    if (node != NULL && node->kind == MP_JINJA_N_CONTINUE && !word(p, "continue"))
        mp_jinja_fail(p->m, "there is no statement", name.bytes, name.count);
    end_block(p);
    return node;
}

static struct mp_jinja_node *parse_output(struct mp_jinja_parser *p)
{
    struct mp_jinja_node *node = mp_jinja_node(p, MP_JINJA_N_OUTPUT);

    if (node != NULL)
        node->a = mp_jinja_parse_tuple(p);
    mp_jinja_expect(p, MP_JINJA_T_VAR_END, NULL);
    return node;
}

static bool at_end(const struct mp_jinja_parser *p, const char *const *ends)
{
    for (; *ends != NULL; ends++) {
        if (mp_jinja_is(p, MP_JINJA_T_NAME, *ends))
            return true;
    }
    return false;
}

/* Up to one of these statements, whose name comes next, or up to the end of the text. */
static struct mp_jinja_node *parse_body(struct mp_jinja_parser *p, const char *const *ends)
{
    struct mp_jinja_node *body = mp_jinja_node(p, MP_JINJA_N_BODY);

    if (++p->depth > DEPTH_MAX)
        mp_jinja_fail(p->m, "statements are too deep", NULL, 0);
    while (p->m->status == MP_OK && !mp_jinja_is(p, MP_JINJA_T_END, NULL)) {
        struct mp_jinja_node *node = NULL;
        const struct mp_jinja_text text = mp_jinja_peek(p)->text;

        if (mp_jinja_accept(p, MP_JINJA_T_DATA, NULL)) {
            node = mp_jinja_node(p, MP_JINJA_N_DATA);
            if (node != NULL)
                node->text = text;
        } else if (mp_jinja_accept(p, MP_JINJA_T_VAR, NULL)) {
            node = parse_output(p);
        } else {
            mp_jinja_expect(p, MP_JINJA_T_BLOCK, NULL);
            if (at_end(p, ends))
                break;
            node = parse_statement(p);
        }
        mp_jinja_add_item(p, body, node, no_name);
    }
    p->depth--;
    return body;
}

struct mp_jinja_node *mp_jinja_parse_template(struct mp_jinja_parser *p)
{
    static const char *const none[] = { NULL };
    struct mp_jinja_node *body = parse_body(p, none);

    mp_jinja_expect(p, MP_JINJA_T_END, NULL);
    return body;
}
