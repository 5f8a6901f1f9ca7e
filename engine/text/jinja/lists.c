/*
 * Filters of lists and dicts.
 */
#include "engine/text/jinja/jinja_int.h"

static const struct mp_jinja_args no_args;

/* "a.b" of a value; numbers are indexes. */
static struct mp_jinja_value member(struct mp_jinja_run *run, struct mp_jinja_value v,
                                    const struct mp_jinja_text *path)
{
    size_t from = 0;

    while (from <= path->count && run->m.status == MP_OK) {
        size_t end = from;
        int64_t index = 0;
        bool digits = true;

        for (; end < path->count && path->bytes[end] != '.'; end++) {
            digits &= path->bytes[end] >= '0' && path->bytes[end] <= '9' && end - from < 9;
            index = digits ? index * 10 + (path->bytes[end] - '0') : 0;
        }
        v = mp_jinja_get(run, v,
                         digits && end > from ? mp_jinja_int(index)
                                              : mp_jinja_part(&run->m, path, from, end),
                         false);
        from = end + 1;
    }
    return v;
}

static struct mp_jinja_value member_or_self(struct mp_jinja_run *run, struct mp_jinja_value v,
                                            struct mp_jinja_value attribute)
{
    return attribute.kind == MP_JINJA_UNDEFINED || attribute.kind == MP_JINJA_NONE
               ? v
               : member(run, v, mp_jinja_string(&run->m, attribute));
}

/* The arguments behind the first `count` ones by position. */
static struct mp_jinja_args behind(const struct mp_jinja_args *args, size_t count)
{
    if (args->count < count)
        return no_args;
    return (struct mp_jinja_args){ args->items + count, args->names + count, args->count - count };
}

static struct mp_jinja_value map(struct mp_jinja_run *run, const struct mp_jinja_list *items,
                                 const struct mp_jinja_args *args)
{
    const struct mp_jinja_value list = mp_jinja_list(&run->m);
    const struct mp_jinja_value attribute = mp_jinja_arg(args, SIZE_MAX, "attribute");
    const struct mp_jinja_value otherwise = mp_jinja_arg(args, SIZE_MAX, "default");
    const struct mp_jinja_text *filter = mp_jinja_string(&run->m, mp_jinja_arg(args, 0, NULL));
    const struct mp_jinja_args rest = behind(args, 1);

    for (size_t i = 0; i < items->count && run->m.status == MP_OK; i++) {
        struct mp_jinja_value v = items->items[i];

        v = attribute.kind != MP_JINJA_UNDEFINED ? member_or_self(run, v, attribute)
                                                 : mp_jinja_filter(run, filter, v, &rest);
        mp_jinja_push(&run->m, list.as.list, v.kind == MP_JINJA_UNDEFINED ? otherwise : v);
    }
    return list;
}

/* select, reject, and of a member: selectattr, rejectattr. */
static struct mp_jinja_value pick(struct mp_jinja_run *run, const struct mp_jinja_list *items,
                                  const struct mp_jinja_args *args, bool of_member, bool keep)
{
    const struct mp_jinja_value list = mp_jinja_list(&run->m);
    const struct mp_jinja_value attribute =
        of_member ? mp_jinja_arg(args, 0, NULL) : mp_jinja_undefined;
    const struct mp_jinja_value test = mp_jinja_arg(args, of_member ? 1 : 0, NULL);
    const struct mp_jinja_args rest = behind(args, of_member ? 2 : 1);

    if (test.kind == MP_JINJA_TEXT && !mp_jinja_has_test(test.as.text))
        mp_jinja_fail(&run->m, "there is no test", test.as.text->bytes, test.as.text->count);
    for (size_t i = 0; i < items->count && run->m.status == MP_OK; i++) {
        const struct mp_jinja_value v = member_or_self(run, items->items[i], attribute);
        const bool holds = test.kind == MP_JINJA_TEXT ? mp_jinja_test(run, test.as.text, v, &rest)
                                                      : mp_jinja_true(v);

        if (holds == keep)
            mp_jinja_push(&run->m, list.as.list, items->items[i]);
    }
    return list;
}

/* As sorting compares: texts without their case, unless it matters. */
static struct mp_jinja_value sort_key(struct mp_jinja_run *run, struct mp_jinja_value v, bool cased)
{
    return v.kind == MP_JINJA_TEXT && !cased ? mp_jinja_recase(&run->m, v.as.text, MP_JINJA_LOWER)
                                             : v;
}

/* In order of the keys; equal ones stay as they are. */
static void sort_list(struct mp_jinja_run *run, struct mp_jinja_list *keys,
                      struct mp_jinja_list *items, bool reverse)
{
    for (size_t i = 1; i < items->count && run->m.status == MP_OK; i++) {
        const struct mp_jinja_value key = keys->items[i], item = items->items[i];
        size_t at = i;

        for (; at > 0; at--) {
            const int order = mp_jinja_compare(&run->m, keys->items[at - 1], key);

            if (++run->steps > 10000000u)
                mp_jinja_fail(&run->m, "it takes too long", NULL, 0);
            if (run->m.status != MP_OK || (reverse ? order >= 0 : order <= 0))
                break;
            keys->items[at] = keys->items[at - 1];
            items->items[at] = items->items[at - 1];
        }
        keys->items[at] = key;
        items->items[at] = item;
    }
}

static struct mp_jinja_value sorted(struct mp_jinja_run *run, const struct mp_jinja_list *items,
                                    const struct mp_jinja_args *args)
{
    const struct mp_jinja_value list = mp_jinja_list(&run->m), keys = mp_jinja_list(&run->m);
    const struct mp_jinja_value attribute = mp_jinja_arg(args, 2, "attribute");
    const bool cased = mp_jinja_true(mp_jinja_arg(args, 1, "case_sensitive"));

    for (size_t i = 0; i < items->count && run->m.status == MP_OK; i++) {
        mp_jinja_push(&run->m, list.as.list, items->items[i]);
        mp_jinja_push(&run->m, keys.as.list,
                      sort_key(run, member_or_self(run, items->items[i], attribute), cased));
    }
    if (run->m.status == MP_OK)
        sort_list(run, keys.as.list, list.as.list, mp_jinja_true(mp_jinja_arg(args, 0, "reverse")));
    return list;
}

/* (key, value) of a dict, as it is or by its keys or values. */
static struct mp_jinja_value pairs(struct mp_jinja_run *run, struct mp_jinja_value v,
                                   const struct mp_jinja_args *args, bool in_order)
{
    const struct mp_jinja_value list = mp_jinja_list(&run->m), keys = mp_jinja_list(&run->m);
    const struct mp_jinja_value by = mp_jinja_arg(args, 1, "by");
    const bool by_value = by.kind == MP_JINJA_TEXT && mp_jinja_text_is(by.as.text, "value");
    const bool cased = mp_jinja_true(mp_jinja_arg(args, 0, "case_sensitive"));

    if (v.kind == MP_JINJA_UNDEFINED && !in_order)
        return list;
    if (v.kind != MP_JINJA_DICT)
        mp_jinja_fail(&run->m, "it needs a dict", NULL, 0);
    for (size_t i = 0; run->m.status == MP_OK && i < v.as.dict->count; i++) {
        const struct mp_jinja_entry *e = &v.as.dict->entries[i];

        mp_jinja_push(&run->m, list.as.list, mp_jinja_pair(&run->m, e));
        mp_jinja_push(&run->m, keys.as.list, sort_key(run, by_value ? e->value : e->key, cased));
    }
    if (in_order && run->m.status == MP_OK)
        sort_list(run, keys.as.list, list.as.list, mp_jinja_true(mp_jinja_arg(args, 2, "reverse")));
    return list;
}

static struct mp_jinja_value join(struct mp_jinja_run *run, const struct mp_jinja_list *items,
                                  const struct mp_jinja_args *args)
{
    const struct mp_jinja_text *between = mp_jinja_string(&run->m, mp_jinja_arg(args, 0, "d"));
    const struct mp_jinja_value attribute = mp_jinja_arg(args, 1, "attribute");
    struct mp_jinja_buffer b = { .m = &run->m };

    for (size_t i = 0; i < items->count && run->m.status == MP_OK; i++) {
        if (i > 0)
            mp_jinja_add_text(&b, between);
        mp_jinja_add_value(&b, member_or_self(run, items->items[i], attribute));
    }
    return mp_jinja_built(&b);
}

static struct mp_jinja_value copied(struct mp_jinja_run *run, const struct mp_jinja_list *items)
{
    const struct mp_jinja_value list = mp_jinja_list(&run->m);

    for (size_t i = 0; i < items->count && run->m.status == MP_OK; i++)
        mp_jinja_push(&run->m, list.as.list, items->items[i]);
    return list;
}

static struct mp_jinja_value reversed(struct mp_jinja_run *run, struct mp_jinja_value v)
{
    const struct mp_jinja_list *items = mp_jinja_items(&run->m, v);
    const struct mp_jinja_value list = mp_jinja_list(&run->m);
    struct mp_jinja_buffer b = { .m = &run->m };

    for (size_t i = items->count; i-- > 0 && run->m.status == MP_OK;) {
        if (v.kind == MP_JINJA_TEXT)
            mp_jinja_add_value(&b, items->items[i]);
        else
            mp_jinja_push(&run->m, list.as.list, items->items[i]);
    }
    return v.kind == MP_JINJA_TEXT ? mp_jinja_built(&b) : list;
}

static struct mp_jinja_value unique(struct mp_jinja_run *run, const struct mp_jinja_list *items,
                                    const struct mp_jinja_args *args)
{
    const struct mp_jinja_value list = mp_jinja_list(&run->m), keys = mp_jinja_list(&run->m);
    const bool cased = mp_jinja_true(mp_jinja_arg(args, 0, "case_sensitive"));
    const struct mp_jinja_value attribute = mp_jinja_arg(args, 1, "attribute");

    for (size_t i = 0; i < items->count && run->m.status == MP_OK; i++) {
        const struct mp_jinja_value key =
            sort_key(run, member_or_self(run, items->items[i], attribute), cased);

        if (mp_jinja_contains(&run->m, keys, key))
            continue;
        mp_jinja_push(&run->m, keys.as.list, key);
        mp_jinja_push(&run->m, list.as.list, items->items[i]);
    }
    return list;
}

static struct mp_jinja_value sum(struct mp_jinja_run *run, const struct mp_jinja_list *items,
                                 const struct mp_jinja_args *args)
{
    const struct mp_jinja_value attribute = mp_jinja_arg(args, 0, "attribute");
    double real = 0;
    int64_t whole = 0;
    bool is_real = false;

    for (size_t i = 0; i < items->count && run->m.status == MP_OK; i++) {
        const struct mp_jinja_value v = member_or_self(run, items->items[i], attribute);

        if (!mp_jinja_is_number(v) ||
            (mp_jinja_is_whole(v) && __builtin_add_overflow(whole, v.as.integer, &whole)))
            mp_jinja_fail(&run->m, "values do not fit the filter", "sum", 3);
        is_real |= v.kind == MP_JINJA_REAL;
        real += mp_jinja_number(v);
    }
    return is_real ? mp_jinja_real(real) : mp_jinja_int(whole);
}

static struct mp_jinja_value extreme(struct mp_jinja_run *run, const struct mp_jinja_list *items,
                                     const struct mp_jinja_args *args, int sign)
{
    const struct mp_jinja_value attribute = mp_jinja_arg(args, 1, "attribute");
    struct mp_jinja_value best = mp_jinja_undefined, best_key = mp_jinja_undefined;

    for (size_t i = 0; i < items->count && run->m.status == MP_OK; i++) {
        const struct mp_jinja_value key =
            sort_key(run, member_or_self(run, items->items[i], attribute), false);

        if (i > 0 && mp_jinja_compare(&run->m, key, best_key) * sign <= 0)
            continue;
        best = items->items[i];
        best_key = key;
    }
    return best;
}

struct mp_jinja_value mp_jinja_list_filter(struct mp_jinja_run *run,
                                           const struct mp_jinja_text *name,
                                           struct mp_jinja_value v,
                                           const struct mp_jinja_args *args)
{
    const bool dictsort = mp_jinja_text_is(name, "dictsort");
    const struct mp_jinja_list *items;

    if (dictsort || mp_jinja_text_is(name, "items"))
        return pairs(run, v, args, dictsort);
    items = mp_jinja_items(&run->m, v);
    if (mp_jinja_text_is(name, "join"))
        return join(run, items, args);
    if (mp_jinja_text_is(name, "first"))
        return items->count > 0 ? items->items[0] : mp_jinja_undefined;
    if (mp_jinja_text_is(name, "last"))
        return items->count > 0 ? items->items[items->count - 1] : mp_jinja_undefined;
    if (mp_jinja_text_is(name, "map"))
        return map(run, items, args);
    if (mp_jinja_text_is(name, "reverse"))
        return reversed(run, v);
    if (mp_jinja_text_is(name, "sort"))
        return sorted(run, items, args);
    if (mp_jinja_text_is(name, "unique"))
        return unique(run, items, args);
    if (mp_jinja_text_is(name, "sum"))
        return sum(run, items, args);
    if (mp_jinja_text_is(name, "min") || mp_jinja_text_is(name, "max"))
        return extreme(run, items, args, name->bytes[1] == 'a' ? 1 : -1);
    if (mp_jinja_text_is(name, "list"))
        return copied(run, items);
    return pick(run, items, args, name->count > 6, name->bytes[0] == 's');
}
