/*
 * Statements run, and what the outside sees: templates from text, texts from templates.
 */
#include <stdlib.h>

#include "engine/text/jinja/jinja_int.h"

#define PARSE_BYTES_MAX (128u << 20)
#define RUN_BYTES_MAX (128u << 20)

struct mp_jinja {
    struct mp_jinja_memory m;
    struct mp_jinja_node *body;
    char *name;
};

/* ---- statements */

static void set_var(struct mp_jinja_run *run, const struct mp_jinja_text *name,
                    struct mp_jinja_value value)
{
    mp_jinja_put(&run->m, &run->scope->vars, mp_jinja_text(&run->m, name->bytes, name->count),
                 value);
}

static void assign(struct mp_jinja_run *run, const struct mp_jinja_node *target,
                   struct mp_jinja_value value)
{
    struct mp_jinja_value of;

    if (target->kind == MP_JINJA_N_NAME) {
        set_var(run, &target->text, value);
        return;
    }
    of = mp_jinja_eval(run, target->a);
    if (of.kind != MP_JINJA_NAMESPACE)
        mp_jinja_fail(&run->m, "it sets a member of what is no namespace:", target->a->text.bytes,
                      target->a->text.count);
    else
        mp_jinja_put(&run->m, of.as.dict,
                     mp_jinja_text(&run->m, target->text.bytes, target->text.count), value);
}

static void assign_all(struct mp_jinja_run *run, const struct mp_jinja_node *node,
                       struct mp_jinja_value value)
{
    const struct mp_jinja_list *items;

    if (node->count == 1) {
        assign(run, node->items[0], value);
        return;
    }
    items = mp_jinja_items(&run->m, value);
    if (items->count != node->count)
        mp_jinja_fail(&run->m, "a value has not as many parts as names", NULL, 0);
    for (size_t i = 0; i < node->count && run->m.status == MP_OK; i++)
        assign(run, node->items[i], items->items[i]);
}

/* What a body writes, in a scope of its own, as a value. */
static struct mp_jinja_value capture(struct mp_jinja_run *run, const struct mp_jinja_node *body,
                                     struct mp_jinja_scope *scope)
{
    struct mp_jinja_buffer text = { .m = &run->m }, *out = run->out;
    struct mp_jinja_scope *outer = run->scope;

    run->out = &text;
    run->scope = scope;
    mp_jinja_exec(run, body);
    run->scope = outer;
    run->out = out;
    return mp_jinja_built(&text);
}

static struct mp_jinja_scope *open_scope(struct mp_jinja_run *run, struct mp_jinja_scope *parent)
{
    struct mp_jinja_scope *scope = mp_jinja_alloc(&run->m, sizeof(*scope));

    if (scope != NULL)
        scope->parent = parent;
    return scope;
}

static void exec_set(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    struct mp_jinja_scope *scope;

    if (node->a != NULL) {
        assign_all(run, node, mp_jinja_eval(run, node->a));
        return;
    }
    scope = open_scope(run, run->scope);
    if (scope != NULL)
        assign_all(run, node, capture(run, node->b, scope));
}

struct mp_jinja_value mp_jinja_call_macro(struct mp_jinja_run *run,
                                          const struct mp_jinja_macro *macro,
                                          const struct mp_jinja_args *args)
{
    struct mp_jinja_scope *scope = open_scope(run, macro->scope), *outer = run->scope;
    const struct mp_jinja_node *node = macro->node;

    if (scope == NULL)
        return mp_jinja_undefined;
    for (size_t i = 0; i < node->count && run->m.status == MP_OK; i++) {
        char name[64];
        struct mp_jinja_value value;

        if (node->names[i].count >= sizeof(name)) {
            mp_jinja_fail(&run->m, "a name is too long", NULL, 0);
            break;
        }
        memcpy(name, node->names[i].bytes, node->names[i].count);
        name[node->names[i].count] = '\0';
        value = mp_jinja_arg(args, i, name);
        run->scope = scope;
        if (value.kind == MP_JINJA_UNDEFINED && node->items[i] != NULL)
            value = mp_jinja_eval(run, node->items[i]);
        set_var(run, &node->names[i], value);
        run->scope = outer;
    }
    return capture(run, node->b, scope);
}

static void exec_macro(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    struct mp_jinja_macro *macro = mp_jinja_alloc(&run->m, sizeof(*macro));

    if (macro == NULL)
        return;
    *macro = (struct mp_jinja_macro){ node, run->scope };
    set_var(run, &node->text, (struct mp_jinja_value){ .kind = MP_JINJA_MACRO, .as.macro = macro });
}

/* What a loop is over: without what its condition leaves out. */
static const struct mp_jinja_list *loop_items(struct mp_jinja_run *run,
                                              const struct mp_jinja_node *node)
{
    const struct mp_jinja_value over = mp_jinja_eval(run, node->a);
    const struct mp_jinja_list *all = mp_jinja_items(&run->m, over);
    struct mp_jinja_scope *outer = run->scope;
    struct mp_jinja_value kept;

    if (node->d == NULL)
        return all;
    kept = mp_jinja_list(&run->m);
    for (size_t i = 0; i < all->count && run->m.status == MP_OK; i++) {
        run->scope = open_scope(run, outer);
        if (run->scope == NULL)
            break;
        assign_all(run, node, all->items[i]);
        if (mp_jinja_true(mp_jinja_eval(run, node->d)))
            mp_jinja_push(&run->m, kept.as.list, all->items[i]);
    }
    run->scope = outer;
    return run->m.status == MP_OK ? kept.as.list : all;
}

static void exec_for(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    static const struct mp_jinja_text name = { "loop", NULL, 4 };
    struct mp_jinja_scope *const outer = run->scope;
    struct mp_jinja_loop *loop = mp_jinja_alloc(&run->m, sizeof(*loop));

    if (loop == NULL)
        return;
    loop->list = loop_items(run, node);
    for (; loop->at < loop->list->count && run->m.status == MP_OK; loop->at++) {
        run->scope = open_scope(run, outer);
        if (run->scope == NULL)
            break;
        set_var(run, &name, (struct mp_jinja_value){ .kind = MP_JINJA_LOOP, .as.loop = loop });
        assign_all(run, node, loop->list->items[loop->at]);
        mp_jinja_exec(run, node->b);
        if (run->leaving == MP_JINJA_BREAKS)
            break;
        run->leaving = MP_JINJA_GOES_ON;
    }
    run->leaving = MP_JINJA_GOES_ON;
    run->scope = outer;
    if (loop->list->count == 0 && node->c != NULL)
        mp_jinja_exec(run, node->c);
}

static void exec_body(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    for (size_t i = 0; i < node->count && run->leaving == MP_JINJA_GOES_ON; i++)
        mp_jinja_exec(run, node->items[i]);
}

void mp_jinja_exec(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    if (run->m.status != MP_OK)
        return;
    run->m.line = node->line;
    switch (node->kind) {
    case MP_JINJA_N_BODY: exec_body(run, node); break;
    case MP_JINJA_N_DATA: mp_jinja_add_text(run->out, &node->text); break;
    case MP_JINJA_N_OUTPUT: mp_jinja_add_value(run->out, mp_jinja_eval(run, node->a)); break;
    case MP_JINJA_N_IF:
        if (mp_jinja_true(mp_jinja_eval(run, node->a)))
            mp_jinja_exec(run, node->b);
        else if (node->c != NULL)
            mp_jinja_exec(run, node->c);
        break;
    case MP_JINJA_N_FOR: exec_for(run, node); break;
    case MP_JINJA_N_SET: exec_set(run, node); break;
    case MP_JINJA_N_MACRO: exec_macro(run, node); break;
    case MP_JINJA_N_BREAK: run->leaving = MP_JINJA_BREAKS; break;
    default: run->leaving = MP_JINJA_CONTINUES; break;
    }
}

/* ---- templates */

enum mp_status mp_jinja_parse(const char *name, const char *text, size_t bytes,
                              struct mp_jinja **jinja_p)
{
    struct mp_jinja *jinja = calloc(1, sizeof(*jinja));
    struct mp_jinja_parser parser = { .m = jinja != NULL ? &jinja->m : NULL };
    enum mp_status status;

    if (jinja == NULL)
        return mp_fail_no_memory("a chat template", sizeof(*jinja));
    jinja->name = strdup(name);
    if (jinja->name == NULL) {
        free(jinja);
        return mp_fail_no_memory("a chat template", strlen(name));
    }
    jinja->m =
        (struct mp_jinja_memory){ .left = PARSE_BYTES_MAX, .name = jinja->name, .parsing = true };
    mp_jinja_lex(&parser, text, bytes);
    if (jinja->m.status == MP_OK)
        jinja->body = mp_jinja_parse_template(&parser);
    status = jinja->m.status;
    if (status == MP_OK)
        *jinja_p = jinja;
    else
        mp_jinja_destroy(jinja);
    return status;
}

void mp_jinja_destroy(struct mp_jinja *jinja)
{
    if (jinja == NULL)
        return;
    mp_jinja_memory_free(&jinja->m);
    free(jinja->name);
    free(jinja);
}

static void set_vars(struct mp_jinja_run *run, const json_t *vars, bool foreign)
{
    const struct mp_jinja_value all = mp_jinja_from_json(&run->m, vars, foreign);

    for (size_t i = 0; run->m.status == MP_OK && i < all.as.dict->count; i++)
        mp_jinja_put(&run->m, &run->scope->vars, all.as.dict->entries[i].key,
                     all.as.dict->entries[i].value);
}

static enum mp_status take_output(struct mp_jinja_run *run, struct mp_jinja_output *out)
{
    const struct mp_jinja_buffer *b = run->out;
    char *text = malloc(b->count + 1);
    uint8_t *foreign = malloc(b->count + 1);

    if (text == NULL || foreign == NULL) {
        free(text);
        free(foreign);
        return mp_fail_no_memory("a prompt", b->count + 1);
    }
    if (b->count > 0) {
        memcpy(text, b->bytes, b->count);
        memcpy(foreign, b->foreign, b->count);
    }
    *out = (struct mp_jinja_output){ text, foreign, b->count };
    return MP_OK;
}

enum mp_status mp_jinja_render(const struct mp_jinja *jinja, const json_t *own, const json_t *given,
                               uint64_t now_s, struct mp_jinja_output *out)
{
    struct mp_jinja_run run = { .m = { .left = RUN_BYTES_MAX, .name = jinja->name },
                                .now_s = now_s };
    struct mp_jinja_buffer text = { .m = &run.m };
    enum mp_status status;

    run.out = &text;
    run.scope = open_scope(&run, NULL);
    if (run.m.status == MP_OK)
        set_vars(&run, own, false);
    if (run.m.status == MP_OK)
        set_vars(&run, given, true);
    mp_jinja_exec(&run, jinja->body);
    status = run.m.status;
    if (status == MP_OK)
        status = take_output(&run, out);
    mp_jinja_memory_free(&run.m);
    return status;
}

void mp_jinja_output_free(struct mp_jinja_output *out)
{
    free(out->text);
    free(out->foreign);
    memset(out, 0, sizeof(*out));
}
