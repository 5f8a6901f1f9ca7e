/*
 * Tests: `x is defined`.
 */
#include "engine/text/jinja/jinja_int.h"

/* How two values stand, by the name of the test. */
static bool test_order(struct mp_jinja_run *run, const struct mp_jinja_text *name,
                       struct mp_jinja_value v, struct mp_jinja_value other, bool *known_p)
{
    static const struct {
        const char *name;
        int how; /* 0: equal */
    } orders[] = { { "eq", 0 }, { "equalto", 0 }, { "==", 0 }, { "sameas", 0 },      { "ne", 1 },
                   { "!=", 1 }, { "lt", 2 },      { "<", 2 },  { "lessthan", 2 },    { "le", 3 },
                   { "<=", 3 }, { "gt", 4 },      { ">", 4 },  { "greaterthan", 4 }, { "ge", 5 },
                   { ">=", 5 }, { "in", 6 } };
    int order;

    for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++) {
        if (!mp_jinja_text_is(name, orders[i].name))
            continue;
        *known_p = true;
        if (run == NULL)
            return false;
        if (orders[i].how < 2)
            return mp_jinja_equal(v, other) == (orders[i].how == 0);
        if (orders[i].how == 6)
            return mp_jinja_contains(&run->m, other, v);
        order = mp_jinja_compare(&run->m, v, other);
        return orders[i].how == 2   ? order < 0
               : orders[i].how == 3 ? order <= 0
               : orders[i].how == 4 ? order > 0
                                    : order >= 0;
    }
    *known_p = false;
    return false;
}

/* Bits by which a test names kinds of values. */
#define BIT(kind) (1u << MP_JINJA_##kind)

static const struct {
    const char *name;
    unsigned kinds;
} kind_tests[] = {
    { "undefined", BIT(UNDEFINED) },
    { "none", BIT(NONE) },
    { "boolean", BIT(BOOL) },
    { "integer", BIT(INT) },
    { "float", BIT(REAL) },
    { "number", BIT(BOOL) | BIT(INT) | BIT(REAL) },
    { "string", BIT(TEXT) },
    { "mapping", BIT(DICT) },
    { "sequence", BIT(TEXT) | BIT(LIST) | BIT(DICT) | BIT(UNDEFINED) },
    { "iterable", BIT(TEXT) | BIT(LIST) | BIT(DICT) | BIT(UNDEFINED) },
    { "callable", BIT(MACRO) | BIT(METHOD) | BIT(FUNCTION) },
};

static bool all_cased(const struct mp_jinja_text *text, char first, char last)
{
    bool some = false;

    for (size_t i = 0; i < text->count; i++) {
        const char c = text->bytes[i];

        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
            if (c < first || c > last)
                return false;
            some = true;
        }
    }
    return some;
}

static bool test_number(struct mp_jinja_run *run, const struct mp_jinja_text *name,
                        struct mp_jinja_value v, struct mp_jinja_value by)
{
    if (mp_jinja_text_is(name, "odd"))
        by = mp_jinja_int(2);
    else if (mp_jinja_text_is(name, "even"))
        by = mp_jinja_int(2);
    if (!mp_jinja_is_whole(v) || !mp_jinja_is_whole(by) || by.as.integer == 0) {
        mp_jinja_fail(&run->m, "values do not fit the test", name->bytes, name->count);
        return false;
    }
    if (by.as.integer == -1)
        return true;
    return (v.as.integer % by.as.integer == 0) != mp_jinja_text_is(name, "odd");
}

static const char *const other_tests[] = { "defined",     "true",  "false", "odd",    "even",
                                           "divisibleby", "upper", "lower", "filter", "test" };

bool mp_jinja_has_test(const struct mp_jinja_text *name)
{
    bool known = false;

    (void)test_order(NULL, name, mp_jinja_undefined, mp_jinja_undefined, &known);
    for (size_t i = 0; i < sizeof(kind_tests) / sizeof(*kind_tests); i++)
        known |= mp_jinja_text_is(name, kind_tests[i].name);
    for (size_t i = 0; i < sizeof(other_tests) / sizeof(*other_tests); i++)
        known |= mp_jinja_text_is(name, other_tests[i]);
    return known;
}

bool mp_jinja_test(struct mp_jinja_run *run, const struct mp_jinja_text *name,
                   struct mp_jinja_value v, const struct mp_jinja_args *args)
{
    const struct mp_jinja_value other = mp_jinja_arg(args, 0, NULL);
    bool known = false, result = test_order(run, name, v, other, &known);

    if (known)
        return result;
    for (size_t i = 0; i < sizeof(kind_tests) / sizeof(*kind_tests); i++) {
        if (mp_jinja_text_is(name, kind_tests[i].name))
            return (kind_tests[i].kinds >> v.kind & 1u) != 0;
    }
    if (mp_jinja_text_is(name, "defined"))
        return v.kind != MP_JINJA_UNDEFINED;
    if (mp_jinja_text_is(name, "true") || mp_jinja_text_is(name, "false"))
        return v.kind == MP_JINJA_BOOL && v.as.integer == (name->bytes[0] == 't');
    if (mp_jinja_text_is(name, "upper"))
        return all_cased(mp_jinja_string(&run->m, v), 'A', 'Z');
    if (mp_jinja_text_is(name, "lower"))
        return all_cased(mp_jinja_string(&run->m, v), 'a', 'z');
    if (mp_jinja_text_is(name, "filter"))
        return mp_jinja_has_filter(mp_jinja_string(&run->m, v));
    if (mp_jinja_text_is(name, "test"))
        return mp_jinja_has_test(mp_jinja_string(&run->m, v));
    return test_number(run, name, v, other);
}
