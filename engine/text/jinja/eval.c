/*
 * Expressions: from nodes to values.
 */
#include <math.h>

#include "engine/text/jinja/jinja_int.h"

#define DEPTH_MAX 400u
#define STEPS_MAX UINT64_C(5000000)
#define REPEAT_MAX (1 << 20)

struct mp_jinja_value mp_jinja_arg(const struct mp_jinja_args *args, size_t index, const char *name)
{
    size_t at = 0;

    for (size_t i = 0; i < args->count; i++) {
        const bool named = args->names[i].bytes != NULL;

        if (named ? name != NULL && mp_jinja_text_is(&args->names[i], name) : at++ == index)
            return args->items[i];
    }
    return mp_jinja_undefined;
}

static struct mp_jinja_value look_up(struct mp_jinja_run *run, const struct mp_jinja_text *name)
{
    const char *function;

    for (const struct mp_jinja_scope *s = run->scope; s != NULL; s = s->parent) {
        const struct mp_jinja_value *found = mp_jinja_find_name(&s->vars, name->bytes, name->count);

        if (found != NULL)
            return *found;
    }
    function = mp_jinja_find_function(name);
    return function != NULL
               ? (struct mp_jinja_value){ .kind = MP_JINJA_FUNCTION, .as.function = function }
               : mp_jinja_undefined;
}

/* ---- members */

static struct mp_jinja_value loop_member(struct mp_jinja_run *run, const struct mp_jinja_loop *loop,
                                         const struct mp_jinja_text *name, bool *found_p)
{
    const size_t at = loop->at, count = loop->list->count;
    const struct {
        const char *name;
        struct mp_jinja_value value;
    } members[] = {
        { "index", mp_jinja_int((int64_t)at + 1) },
        { "index0", mp_jinja_int((int64_t)at) },
        { "first", mp_jinja_bool(at == 0) },
        { "last", mp_jinja_bool(at + 1 == count) },
        { "length", mp_jinja_int((int64_t)count) },
        { "revindex", mp_jinja_int((int64_t)(count - at)) },
        { "revindex0", mp_jinja_int((int64_t)(count - at) - 1) },
        { "previtem", at > 0 ? loop->list->items[at - 1] : mp_jinja_undefined },
        { "nextitem", at + 1 < count ? loop->list->items[at + 1] : mp_jinja_undefined },
    };

    (void)run;
    *found_p = true;
    for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++) {
        if (mp_jinja_text_is(name, members[i].name))
            return members[i].value;
    }
    *found_p = false;
    return mp_jinja_undefined;
}

static struct mp_jinja_value bind_method(struct mp_jinja_run *run, struct mp_jinja_value self,
                                         const struct mp_jinja_text *name)
{
    struct mp_jinja_method *method = mp_jinja_alloc(&run->m, sizeof(*method));

    if (method == NULL)
        return mp_jinja_undefined;
    *method = (struct mp_jinja_method){ self, *name };
    return (struct mp_jinja_value){ .kind = MP_JINJA_METHOD, .as.method = method };
}

/* The part of `count` that a Python index means; false: outside. */
static bool wrap_index(int64_t index, size_t count, size_t *at_p)
{
    if (index < 0)
        index += (int64_t)count;
    *at_p = (size_t)index;
    return index >= 0 && index < (int64_t)count;
}

static struct mp_jinja_value get_index(struct mp_jinja_run *run, struct mp_jinja_value v,
                                       int64_t index)
{
    const struct mp_jinja_list *list;
    size_t at;

    if (v.kind != MP_JINJA_LIST && v.kind != MP_JINJA_TEXT)
        return mp_jinja_undefined;
    list = mp_jinja_items(&run->m, v);
    return wrap_index(index, list->count, &at) ? list->items[at] : mp_jinja_undefined;
}

struct mp_jinja_value mp_jinja_get(struct mp_jinja_run *run, struct mp_jinja_value v,
                                   struct mp_jinja_value key, bool attribute)
{
    const struct mp_jinja_value *found = NULL;
    struct mp_jinja_value member;
    bool is_member = false;

    if (v.kind == MP_JINJA_UNDEFINED) {
        const struct mp_jinja_text *name = mp_jinja_string(&run->m, key);

        mp_jinja_fail(&run->m, "it asks for a member of what is undefined:", name->bytes,
                      name->count);
        return mp_jinja_undefined;
    }
    if (mp_jinja_is_whole(key))
        return mp_jinja_is_dict(v) && (found = mp_jinja_find(v.as.dict, key)) != NULL
                   ? *found
                   : get_index(run, v, key.as.integer);
    if (key.kind != MP_JINJA_TEXT)
        return mp_jinja_undefined;
    if (v.kind == MP_JINJA_LOOP) {
        member = loop_member(run, v.as.loop, key.as.text, &is_member);
        if (is_member)
            return member;
    }
    if (mp_jinja_is_dict(v))
        found = mp_jinja_find(v.as.dict, key);
    if ((attribute || found == NULL) && mp_jinja_has_method(v, key.as.text))
        return bind_method(run, v, key.as.text);
    return found != NULL ? *found : mp_jinja_undefined;
}

/* One end of a slice: NULL or none is `otherwise`. */
static int64_t slice_end(struct mp_jinja_run *run, const struct mp_jinja_node *node,
                         int64_t otherwise, int64_t low, int64_t high, int64_t count)
{
    struct mp_jinja_value v = node != NULL ? mp_jinja_eval(run, node) : mp_jinja_none;

    if (v.kind == MP_JINJA_NONE)
        return otherwise;
    if (!mp_jinja_is_whole(v)) {
        mp_jinja_fail(&run->m, "a slice needs whole numbers", NULL, 0);
        return otherwise;
    }
    if (v.as.integer < 0)
        v.as.integer += count;
    return v.as.integer < low ? low : v.as.integer > high ? high : v.as.integer;
}

static struct mp_jinja_value eval_slice(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    const struct mp_jinja_value v = mp_jinja_eval(run, node->a), list = mp_jinja_list(&run->m);
    struct mp_jinja_buffer b = { .m = &run->m };
    struct mp_jinja_value step = mp_jinja_none;
    const struct mp_jinja_list *items;
    int64_t begin, end, count;

    if (v.kind != MP_JINJA_LIST && v.kind != MP_JINJA_TEXT)
        mp_jinja_fail(&run->m, "it takes a slice of what is no list", NULL, 0);
    if (node->items[2] != NULL)
        step = mp_jinja_eval(run, node->items[2]);
    if (step.kind == MP_JINJA_NONE)
        step = mp_jinja_int(1);
    if (!mp_jinja_is_whole(step) || step.as.integer == 0 || step.as.integer > INT32_MAX ||
        step.as.integer < -INT32_MAX)
        mp_jinja_fail(&run->m, "a slice has a wrong step", NULL, 0);
    if (run->m.status != MP_OK)
        return mp_jinja_undefined;
    items = mp_jinja_items(&run->m, v);
    list.as.list->is_tuple = items->is_tuple;
    count = (int64_t)items->count;
    if (step.as.integer > 0) {
        begin = slice_end(run, node->items[0], 0, 0, count, count);
        end = slice_end(run, node->items[1], count, 0, count, count);
    } else {
        begin = slice_end(run, node->items[0], count - 1, -1, count - 1, count);
        end = slice_end(run, node->items[1], -1, -1, count - 1, count);
    }
    for (int64_t i = begin; (step.as.integer > 0 ? i < end : i > end) && run->m.status == MP_OK;
         i += step.as.integer) {
        if (v.kind == MP_JINJA_TEXT)
            mp_jinja_add_text(&b, items->items[i].as.text);
        else
            mp_jinja_push(&run->m, list.as.list, items->items[i]);
    }
    return v.kind == MP_JINJA_TEXT ? mp_jinja_built(&b) : list;
}

/* ---- calls */

#define ARGS_MAX 32u

struct values {
    struct mp_jinja_value items[ARGS_MAX]; // (args.count)
    struct mp_jinja_args args;
};

static void eval_args(struct mp_jinja_run *run, const struct mp_jinja_node *node, struct values *v)
{
    v->args = (struct mp_jinja_args){ v->items, node->names, node->count };
    if (node->count > ARGS_MAX) {
        mp_jinja_fail(&run->m, "a call has too many arguments", NULL, 0);
        v->args.count = 0;
    }
    for (size_t i = 0; i < v->args.count; i++)
        v->items[i] = mp_jinja_eval(run, node->items[i]);
}

static struct mp_jinja_value eval_call(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    const struct mp_jinja_value callee = mp_jinja_eval(run, node->a);
    struct values v;

    eval_args(run, node, &v);
    if (run->m.status != MP_OK)
        return mp_jinja_undefined;
    switch (callee.kind) {
    case MP_JINJA_FUNCTION: return mp_jinja_call_function(run, callee.as.function, &v.args);
    case MP_JINJA_METHOD: return mp_jinja_call_method(run, callee.as.method, &v.args);
    case MP_JINJA_MACRO: return mp_jinja_call_macro(run, callee.as.macro, &v.args);
    default:
        mp_jinja_fail(&run->m, "there is no function or method", node->a->text.bytes,
                      node->a->text.count);
        return mp_jinja_undefined;
    }
}

/* ---- operators */

static struct mp_jinja_value add_wholes(struct mp_jinja_run *run, int64_t a, int64_t b, char how)
{
    int64_t result = 0;
    bool over = false;

    switch (how) {
    case '+': over = __builtin_add_overflow(a, b, &result); break;
    case '-': over = __builtin_sub_overflow(a, b, &result); break;
    default: over = __builtin_mul_overflow(a, b, &result); break;
    }
    if (over)
        mp_jinja_fail(&run->m, "a number is too large", NULL, 0);
    return mp_jinja_int(result);
}

/* Division as in Python: rounded down, and the rest with the sign of the divisor. */
static struct mp_jinja_value divide(struct mp_jinja_run *run, struct mp_jinja_value a,
                                    struct mp_jinja_value b, const struct mp_jinja_text *how)
{
    const double x = mp_jinja_number(a), y = mp_jinja_number(b);
    const bool whole = mp_jinja_is_whole(a) && mp_jinja_is_whole(b);
    const bool rest = mp_jinja_text_is(how, "%");
    int64_t quotient;

    if (y == 0 || (whole && a.as.integer == INT64_MIN && b.as.integer == -1)) {
        mp_jinja_fail(&run->m, "it divides by zero", NULL, 0);
        return mp_jinja_undefined;
    }
    if (mp_jinja_text_is(how, "/"))
        return mp_jinja_real(x / y);
    if (!whole)
        return mp_jinja_real(rest ? x - floor(x / y) * y : floor(x / y));
    quotient = a.as.integer / b.as.integer;
    quotient -= a.as.integer % b.as.integer != 0 && (a.as.integer < 0) != (b.as.integer < 0);
    return mp_jinja_int(rest ? a.as.integer - quotient * b.as.integer : quotient);
}

static struct mp_jinja_value power(struct mp_jinja_run *run, struct mp_jinja_value a,
                                   struct mp_jinja_value b)
{
    struct mp_jinja_value result = mp_jinja_int(1);

    if (!mp_jinja_is_whole(a) || !mp_jinja_is_whole(b) || b.as.integer < 0 || b.as.integer > 64)
        return mp_jinja_real(pow(mp_jinja_number(a), mp_jinja_number(b)));
    for (int64_t i = 0; i < b.as.integer; i++)
        result = add_wholes(run, result.as.integer, a.as.integer, '*');
    return result;
}

static struct mp_jinja_value calculate(struct mp_jinja_run *run, struct mp_jinja_value a,
                                       struct mp_jinja_value b, const struct mp_jinja_text *how)
{
    const double x = mp_jinja_number(a), y = mp_jinja_number(b);

    if (mp_jinja_text_is(how, "**"))
        return power(run, a, b);
    if (mp_jinja_text_is(how, "/") || mp_jinja_text_is(how, "//") || mp_jinja_text_is(how, "%"))
        return divide(run, a, b, how);
    if (mp_jinja_is_whole(a) && mp_jinja_is_whole(b))
        return add_wholes(run, a.as.integer, b.as.integer, how->bytes[0]);
    return mp_jinja_real(how->bytes[0] == '+' ? x + y : how->bytes[0] == '-' ? x - y : x * y);
}

static struct mp_jinja_value join_values(struct mp_jinja_run *run, struct mp_jinja_value a,
                                         struct mp_jinja_value b)
{
    struct mp_jinja_buffer text = { .m = &run->m };
    struct mp_jinja_value list;

    if (a.kind == MP_JINJA_TEXT) {
        mp_jinja_add_text(&text, a.as.text);
        mp_jinja_add_text(&text, b.as.text);
        return mp_jinja_built(&text);
    }
    list = mp_jinja_list(&run->m);
    for (size_t i = 0; i < a.as.list->count && run->m.status == MP_OK; i++)
        mp_jinja_push(&run->m, list.as.list, a.as.list->items[i]);
    for (size_t i = 0; i < b.as.list->count && run->m.status == MP_OK; i++)
        mp_jinja_push(&run->m, list.as.list, b.as.list->items[i]);
    return list;
}

static struct mp_jinja_value repeat(struct mp_jinja_run *run, struct mp_jinja_value text,
                                    int64_t times)
{
    struct mp_jinja_buffer b = { .m = &run->m };

    if (times > REPEAT_MAX)
        mp_jinja_fail(&run->m, "it repeats a text too often", NULL, 0);
    for (int64_t i = 0; i < times && run->m.status == MP_OK; i++)
        mp_jinja_add_text(&b, text.as.text);
    return mp_jinja_built(&b);
}

static bool compare(struct mp_jinja_run *run, struct mp_jinja_value a, struct mp_jinja_value b,
                    const struct mp_jinja_text *how, bool *result_p)
{
    if (mp_jinja_text_is(how, "==") || mp_jinja_text_is(how, "!="))
        *result_p = mp_jinja_equal(a, b) == (how->bytes[0] == '=');
    else if (mp_jinja_text_is(how, "in"))
        *result_p = mp_jinja_contains(&run->m, b, a);
    else if (mp_jinja_text_is(how, "not in"))
        *result_p = !mp_jinja_contains(&run->m, b, a);
    else if (mp_jinja_text_is(how, "<"))
        *result_p = mp_jinja_compare(&run->m, a, b) < 0;
    else if (mp_jinja_text_is(how, "<="))
        *result_p = mp_jinja_compare(&run->m, a, b) <= 0;
    else if (mp_jinja_text_is(how, ">"))
        *result_p = mp_jinja_compare(&run->m, a, b) > 0;
    else if (mp_jinja_text_is(how, ">="))
        *result_p = mp_jinja_compare(&run->m, a, b) >= 0;
    else
        return false;
    return true;
}

static struct mp_jinja_value eval_binary(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    const struct mp_jinja_value a = mp_jinja_eval(run, node->a), b = mp_jinja_eval(run, node->b);
    struct mp_jinja_buffer text = { .m = &run->m };
    bool result = false;

    if (run->m.status != MP_OK)
        return mp_jinja_undefined;
    if (compare(run, a, b, &node->text, &result))
        return mp_jinja_bool(result);
    if (mp_jinja_text_is(&node->text, "~")) {
        mp_jinja_add_value(&text, a);
        mp_jinja_add_value(&text, b);
        return mp_jinja_built(&text);
    }
    if (mp_jinja_is_number(a) && mp_jinja_is_number(b))
        return calculate(run, a, b, &node->text);
    if (mp_jinja_text_is(&node->text, "+") && a.kind == b.kind &&
        (a.kind == MP_JINJA_TEXT || a.kind == MP_JINJA_LIST))
        return join_values(run, a, b);
    if (mp_jinja_text_is(&node->text, "*") && a.kind == MP_JINJA_TEXT && mp_jinja_is_whole(b))
        return repeat(run, a, b.as.integer);
    mp_jinja_fail(&run->m, "values do not fit the operator", node->text.bytes, node->text.count);
    return mp_jinja_undefined;
}

static struct mp_jinja_value eval_sign(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    const struct mp_jinja_value v = mp_jinja_eval(run, node->a);
    const bool minus = node->kind == MP_JINJA_N_MINUS;

    if (mp_jinja_is_whole(v))
        return minus ? add_wholes(run, 0, v.as.integer, '-') : mp_jinja_int(v.as.integer);
    if (v.kind != MP_JINJA_REAL)
        mp_jinja_fail(&run->m, "a sign needs a number", NULL, 0);
    return mp_jinja_real(minus ? -v.as.real : v.as.real);
}

/* ---- all of it */

static struct mp_jinja_value eval_items(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    const bool is_list = node->kind == MP_JINJA_N_LIST;
    const struct mp_jinja_value all =
        is_list ? mp_jinja_list(&run->m) : mp_jinja_dict(&run->m, MP_JINJA_DICT);

    if (is_list && run->m.status == MP_OK)
        all.as.list->is_tuple = node->text.count > 0;
    for (size_t i = 0; i < node->count && run->m.status == MP_OK; i += is_list ? 1 : 2) {
        const struct mp_jinja_value item = mp_jinja_eval(run, node->items[i]);

        if (is_list)
            mp_jinja_push(&run->m, all.as.list, item);
        else
            mp_jinja_put(&run->m, all.as.dict, item, mp_jinja_eval(run, node->items[i + 1]));
    }
    return all;
}

static struct mp_jinja_value eval_node(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    struct mp_jinja_value v;
    struct values args;

    switch (node->kind) {
    case MP_JINJA_N_CONST: return node->value;
    case MP_JINJA_N_NAME: return look_up(run, &node->text);
    case MP_JINJA_N_LIST:
    case MP_JINJA_N_DICT: return eval_items(run, node);
    case MP_JINJA_N_ATTR:
        v = mp_jinja_eval(run, node->a);
        return mp_jinja_get(run, v, mp_jinja_text(&run->m, node->text.bytes, node->text.count),
                            true);
    case MP_JINJA_N_ITEM:
        v = mp_jinja_eval(run, node->a);
        return mp_jinja_get(run, v, mp_jinja_eval(run, node->b), false);
    case MP_JINJA_N_SLICE: return eval_slice(run, node);
    case MP_JINJA_N_CALL: return eval_call(run, node);
    case MP_JINJA_N_FILTER:
        v = mp_jinja_eval(run, node->a);
        eval_args(run, node, &args);
        return run->m.status == MP_OK ? mp_jinja_filter(run, &node->text, v, &args.args)
                                      : mp_jinja_undefined;
    case MP_JINJA_N_TEST:
        v = mp_jinja_eval(run, node->a);
        eval_args(run, node, &args);
        return mp_jinja_bool(run->m.status == MP_OK &&
                             mp_jinja_test(run, &node->text, v, &args.args));
    case MP_JINJA_N_NOT: return mp_jinja_bool(!mp_jinja_true(mp_jinja_eval(run, node->a)));
    case MP_JINJA_N_MINUS:
    case MP_JINJA_N_PLUS: return eval_sign(run, node);
    case MP_JINJA_N_AND:
        v = mp_jinja_eval(run, node->a);
        return mp_jinja_true(v) ? mp_jinja_eval(run, node->b) : v;
    case MP_JINJA_N_OR:
        v = mp_jinja_eval(run, node->a);
        return mp_jinja_true(v) ? v : mp_jinja_eval(run, node->b);
    case MP_JINJA_N_BINARY: return eval_binary(run, node);
    default: /* MP_JINJA_N_IF_ELSE */
        if (mp_jinja_true(mp_jinja_eval(run, node->a)))
            return mp_jinja_eval(run, node->b);
        return node->c != NULL ? mp_jinja_eval(run, node->c) : mp_jinja_undefined;
    }
}

struct mp_jinja_value mp_jinja_eval(struct mp_jinja_run *run, const struct mp_jinja_node *node)
{
    struct mp_jinja_value v;

    if (run->m.status != MP_OK)
        return mp_jinja_undefined;
    run->m.line = node->line;
    if (++run->steps > STEPS_MAX || run->depth >= DEPTH_MAX) {
        mp_jinja_fail(&run->m, run->depth >= DEPTH_MAX ? "it is too deep" : "it takes too long",
                      NULL, 0);
        return mp_jinja_undefined;
    }
    run->depth++;
    v = eval_node(run, node);
    run->depth--;
    return v;
}
