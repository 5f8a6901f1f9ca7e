/*
 * Filters of one value: `x | trim`. Those of lists are lists.c's.
 */
#include <math.h>
#include <stdlib.h>

#include "engine/text/jinja/jinja_int.h"

static struct mp_jinja_value to_json(struct mp_jinja_run *run, struct mp_jinja_value v,
                                     const struct mp_jinja_args *args)
{
    static const struct mp_jinja_text item = { ", ", NULL, 2 }, line = { ",", NULL, 1 },
                                      key = { ": ", NULL, 2 };
    const struct mp_jinja_value ascii = mp_jinja_arg(args, 0, "ensure_ascii");
    const struct mp_jinja_value indent = mp_jinja_arg(args, 1, "indent");
    const struct mp_jinja_value separators = mp_jinja_arg(args, 2, "separators");
    struct mp_jinja_buffer b = { .m = &run->m };
    struct mp_jinja_json_form form = {
        .indent = mp_jinja_is_whole(indent) ? indent.as.integer : -1,
        .ascii = mp_jinja_true(ascii),
        .sorted = mp_jinja_true(mp_jinja_arg(args, 3, "sort_keys")),
        .key = &key,
    };

    if (form.indent > 64)
        mp_jinja_fail(&run->m, "an indent is too large", NULL, 0);
    form.item = form.indent >= 0 ? &line : &item;
    if (separators.kind == MP_JINJA_LIST && separators.as.list->count == 2) {
        form.item = mp_jinja_string(&run->m, separators.as.list->items[0]);
        form.key = mp_jinja_string(&run->m, separators.as.list->items[1]);
    }
    mp_jinja_add_json(&b, v, &form, 0);
    return mp_jinja_built(&b);
}

static struct mp_jinja_value otherwise(struct mp_jinja_run *run, struct mp_jinja_value v,
                                       const struct mp_jinja_args *args)
{
    const bool truth = mp_jinja_true(mp_jinja_arg(args, 1, "boolean"));
    const struct mp_jinja_value other = mp_jinja_arg(args, 0, "default_value");

    if (v.kind != MP_JINJA_UNDEFINED && (!truth || mp_jinja_true(v)))
        return v;
    return other.kind != MP_JINJA_UNDEFINED ? other : mp_jinja_text(&run->m, "", 0);
}

/* A text as a number; anything else is `otherwise`, or 0. */
static struct mp_jinja_value to_number(struct mp_jinja_run *run, struct mp_jinja_value v,
                                       const struct mp_jinja_args *args, bool whole)
{
    const struct mp_jinja_value other = mp_jinja_arg(args, 0, "default");
    char text[64], *end = text;
    double real;

    if (mp_jinja_is_whole(v))
        return whole ? mp_jinja_int(v.as.integer) : mp_jinja_real((double)v.as.integer);
    if (v.kind == MP_JINJA_REAL && fabs(v.as.real) < 9e18)
        return whole ? mp_jinja_int((int64_t)v.as.real) : v;
    if (v.kind == MP_JINJA_TEXT && v.as.text->count < sizeof(text)) {
        const struct mp_jinja_value bare = mp_jinja_strip(&run->m, v.as.text, NULL, true, true);

        if (bare.kind == MP_JINJA_TEXT && bare.as.text->count > 0) {
            memcpy(text, bare.as.text->bytes, bare.as.text->count);
            text[bare.as.text->count] = '\0';
            real = strtod(text, &end);
            if (*end == '\0' && fabs(real) < 9e18)
                return whole ? mp_jinja_int((int64_t)real) : mp_jinja_real(real);
        }
    }
    if (other.kind != MP_JINJA_UNDEFINED)
        return other;
    return whole ? mp_jinja_int(0) : mp_jinja_real(0);
}

static struct mp_jinja_value to_round(struct mp_jinja_run *run, struct mp_jinja_value v,
                                      const struct mp_jinja_args *args)
{
    const struct mp_jinja_value digits = mp_jinja_arg(args, 0, "precision");
    const double scale = pow(10, mp_jinja_is_whole(digits) ? (double)digits.as.integer : 0);

    if (!mp_jinja_is_number(v)) {
        mp_jinja_fail(&run->m, "it rounds what is no number", NULL, 0);
        return mp_jinja_undefined;
    }
    if (mp_jinja_is_whole(v))
        return v;
    return mp_jinja_real(nearbyint(mp_jinja_number(v) * scale) / scale);
}

static struct mp_jinja_value to_abs(struct mp_jinja_run *run, struct mp_jinja_value v)
{
    if (v.kind == MP_JINJA_REAL)
        return mp_jinja_real(fabs(v.as.real));
    if (!mp_jinja_is_whole(v) || v.as.integer == INT64_MIN)
        mp_jinja_fail(&run->m, "values do not fit the filter", "abs", 3);
    return mp_jinja_int(v.as.integer < 0 ? -v.as.integer : v.as.integer);
}

/* Lines behind the first begin with blanks, or with a text; empty ones only if `blank` says so. */
static struct mp_jinja_value to_indent(struct mp_jinja_run *run, struct mp_jinja_value v,
                                       const struct mp_jinja_args *args)
{
    const struct mp_jinja_value width = mp_jinja_arg(args, 0, "width");
    const bool first = mp_jinja_true(mp_jinja_arg(args, 1, "first"));
    const bool blank = mp_jinja_true(mp_jinja_arg(args, 2, "blank"));
    const struct mp_jinja_text *text = mp_jinja_string(&run->m, v), *prefix;
    struct mp_jinja_buffer b = { .m = &run->m }, blanks = { .m = &run->m };
    const int64_t count = mp_jinja_is_whole(width) ? width.as.integer : 4;

    for (int64_t i = 0; i < count && i < 1000 && width.kind != MP_JINJA_TEXT; i++)
        mp_jinja_add_own(&blanks, " ");
    prefix =
        mp_jinja_string(&run->m, width.kind == MP_JINJA_TEXT ? width : mp_jinja_built(&blanks));
    for (size_t from = 0, end; from <= text->count && run->m.status == MP_OK; from = end + 1) {
        for (end = from; end < text->count && text->bytes[end] != '\n';)
            end++;
        if (from > 0)
            mp_jinja_add_own(&b, "\n");
        if (from > 0 ? end > from || blank : first)
            mp_jinja_add_text(&b, prefix);
        mp_jinja_add(&b, text->bytes + from, text->foreign != NULL ? text->foreign + from : NULL,
                     end - from);
    }
    return mp_jinja_built(&b);
}

static struct mp_jinja_value to_escaped(struct mp_jinja_run *run, struct mp_jinja_value v)
{
    static const struct {
        char c;
        const char *with;
    } escapes[] = {
        { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '\'', "&#39;" }, { '"', "&#34;" }
    };
    const struct mp_jinja_text *text = mp_jinja_string(&run->m, v);
    struct mp_jinja_buffer b = { .m = &run->m };

    for (size_t i = 0; i < text->count; i++) {
        size_t e = 0;

        while (e < 5 && escapes[e].c != text->bytes[i])
            e++;
        if (e < 5)
            mp_jinja_add_own(&b, escapes[e].with);
        else
            mp_jinja_add(&b, text->bytes + i, text->foreign != NULL ? text->foreign + i : NULL, 1);
    }
    return mp_jinja_built(&b);
}

enum filter {
    TOJSON,
    DEFAULT,
    LENGTH,
    TRIM,
    STRING,
    UPPER,
    LOWER,
    TITLE,
    CAPITALIZE,
    REPLACE,
    INDENT,
    ESCAPE,
    INT,
    FLOAT,
    ROUND,
    ABS,
    SAFE,
    LIST_FILTER,
    NO_FILTER
};

static const struct {
    const char *name;
    enum filter filter;
} filters[] = {
    { "tojson", TOJSON },
    { "default", DEFAULT },
    { "d", DEFAULT },
    { "length", LENGTH },
    { "count", LENGTH },
    { "trim", TRIM },
    { "string", STRING },
    { "upper", UPPER },
    { "lower", LOWER },
    { "title", TITLE },
    { "capitalize", CAPITALIZE },
    { "replace", REPLACE },
    { "indent", INDENT },
    { "escape", ESCAPE },
    { "e", ESCAPE },
    { "int", INT },
    { "float", FLOAT },
    { "round", ROUND },
    { "abs", ABS },
    { "safe", SAFE },
    { "join", LIST_FILTER },
    { "first", LIST_FILTER },
    { "last", LIST_FILTER },
    { "list", LIST_FILTER },
    { "items", LIST_FILTER },
    { "dictsort", LIST_FILTER },
    { "map", LIST_FILTER },
    { "select", LIST_FILTER },
    { "reject", LIST_FILTER },
    { "selectattr", LIST_FILTER },
    { "rejectattr", LIST_FILTER },
    { "sort", LIST_FILTER },
    { "unique", LIST_FILTER },
    { "reverse", LIST_FILTER },
    { "sum", LIST_FILTER },
    { "min", LIST_FILTER },
    { "max", LIST_FILTER },
};

static enum filter find_filter(const struct mp_jinja_text *name)
{
    for (size_t i = 0; i < sizeof(filters) / sizeof(*filters); i++) {
        if (mp_jinja_text_is(name, filters[i].name))
            return filters[i].filter;
    }
    return NO_FILTER;
}

bool mp_jinja_has_filter(const struct mp_jinja_text *name)
{
    return find_filter(name) != NO_FILTER;
}

static struct mp_jinja_value filter_text(struct mp_jinja_run *run, enum filter filter,
                                         struct mp_jinja_value v, const struct mp_jinja_args *args)
{
    const struct mp_jinja_text *text = mp_jinja_string(&run->m, v);
    const struct mp_jinja_value first = mp_jinja_arg(args, 0, filter == TRIM ? "chars" : "old");
    const struct mp_jinja_value count = mp_jinja_arg(args, 2, "count");

    switch (filter) {
    case TRIM:
        return mp_jinja_strip(&run->m, text, first.kind == MP_JINJA_TEXT ? first.as.text : NULL,
                              true, true);
    case UPPER: return mp_jinja_recase(&run->m, text, MP_JINJA_UPPER);
    case LOWER: return mp_jinja_recase(&run->m, text, MP_JINJA_LOWER);
    case TITLE: return mp_jinja_recase(&run->m, text, MP_JINJA_TITLE);
    case CAPITALIZE: return mp_jinja_recase(&run->m, text, MP_JINJA_CAPITAL);
    case REPLACE:
        return mp_jinja_replace(&run->m, text, mp_jinja_string(&run->m, first),
                                mp_jinja_string(&run->m, mp_jinja_arg(args, 1, "new")),
                                mp_jinja_is_whole(count) ? count.as.integer : -1);
    default: return mp_jinja_part(&run->m, text, 0, text->count);
    }
}

struct mp_jinja_value mp_jinja_filter(struct mp_jinja_run *run, const struct mp_jinja_text *name,
                                      struct mp_jinja_value v, const struct mp_jinja_args *args)
{
    const enum filter filter = find_filter(name);

    switch (filter) {
    case TOJSON: return to_json(run, v, args);
    case DEFAULT: return otherwise(run, v, args);
    case LENGTH: return mp_jinja_int((int64_t)mp_jinja_length(&run->m, v));
    case INDENT: return to_indent(run, v, args);
    case ESCAPE: return to_escaped(run, v);
    case INT:
    case FLOAT: return to_number(run, v, args, filter == INT);
    case ROUND: return to_round(run, v, args);
    case ABS: return to_abs(run, v);
    case LIST_FILTER: return mp_jinja_list_filter(run, name, v, args);
    case NO_FILTER: /* a name in a text, of `map` */
        mp_jinja_fail(&run->m, "there is no filter", name->bytes, name->count);
        return mp_jinja_undefined;
    default: return filter_text(run, filter, v, args);
    }
}
