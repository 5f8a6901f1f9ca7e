/*
 * Values: what they are made of, which are true, equal or larger, and what is in them.
 */
#include "engine/text/jinja/jinja_int.h"

const struct mp_jinja_value mp_jinja_undefined = { .kind = MP_JINJA_UNDEFINED };
const struct mp_jinja_value mp_jinja_none = { .kind = MP_JINJA_NONE };

struct mp_jinja_value mp_jinja_bool(bool flag)
{
    return (struct mp_jinja_value){ .kind = MP_JINJA_BOOL, .as.integer = flag };
}

struct mp_jinja_value mp_jinja_int(int64_t integer)
{
    return (struct mp_jinja_value){ .kind = MP_JINJA_INT, .as.integer = integer };
}

struct mp_jinja_value mp_jinja_real(double real)
{
    return (struct mp_jinja_value){ .kind = MP_JINJA_REAL, .as.real = real };
}

static struct mp_jinja_value make_text(struct mp_jinja_memory *m, struct mp_jinja_text text)
{
    struct mp_jinja_text *made = mp_jinja_alloc(m, sizeof(*made));

    if (made == NULL)
        return mp_jinja_undefined;
    *made = text;
    return (struct mp_jinja_value){ .kind = MP_JINJA_TEXT, .as.text = made };
}

struct mp_jinja_value mp_jinja_text(struct mp_jinja_memory *m, const char *bytes, size_t count)
{
    return make_text(m, (struct mp_jinja_text){ bytes, NULL, count });
}

struct mp_jinja_value mp_jinja_part(struct mp_jinja_memory *m, const struct mp_jinja_text *text,
                                    size_t begin, size_t end)
{
    return make_text(m,
                     (struct mp_jinja_text){ text->bytes + begin,
                                             text->foreign != NULL ? text->foreign + begin : NULL,
                                             end > begin ? end - begin : 0 });
}

struct mp_jinja_value mp_jinja_list(struct mp_jinja_memory *m)
{
    struct mp_jinja_list *list = mp_jinja_alloc(m, sizeof(*list));

    return list != NULL ? (struct mp_jinja_value){ .kind = MP_JINJA_LIST, .as.list = list }
                        : mp_jinja_undefined;
}

struct mp_jinja_value mp_jinja_pair(struct mp_jinja_memory *m, const struct mp_jinja_entry *entry)
{
    const struct mp_jinja_value pair = mp_jinja_list(m);

    if (pair.kind != MP_JINJA_LIST)
        return pair;
    pair.as.list->is_tuple = true;
    mp_jinja_push(m, pair.as.list, entry->key);
    mp_jinja_push(m, pair.as.list, entry->value);
    return pair;
}

struct mp_jinja_value mp_jinja_dict(struct mp_jinja_memory *m, enum mp_jinja_kind kind)
{
    struct mp_jinja_dict *dict = mp_jinja_alloc(m, sizeof(*dict));

    return dict != NULL ? (struct mp_jinja_value){ .kind = kind, .as.dict = dict }
                        : mp_jinja_undefined;
}

void mp_jinja_push(struct mp_jinja_memory *m, struct mp_jinja_list *list,
                   struct mp_jinja_value value)
{
    struct mp_jinja_value *items;

    if (m->status != MP_OK)
        return;
    items = mp_jinja_grow(m, list->items, list->count, &list->capacity, sizeof(*items));
    if (items == NULL)
        return;
    list->items = items;
    items[list->count++] = value;
}

const struct mp_jinja_value *mp_jinja_find(const struct mp_jinja_dict *dict,
                                           struct mp_jinja_value key)
{
    for (size_t i = 0; i < dict->count; i++) {
        if (mp_jinja_equal(dict->entries[i].key, key))
            return &dict->entries[i].value;
    }
    return NULL;
}

const struct mp_jinja_value *mp_jinja_find_name(const struct mp_jinja_dict *dict, const char *name,
                                                size_t bytes)
{
    const struct mp_jinja_text text = { name, NULL, bytes };

    return mp_jinja_find(dict, (struct mp_jinja_value){ .kind = MP_JINJA_TEXT, .as.text = &text });
}

void mp_jinja_put(struct mp_jinja_memory *m, struct mp_jinja_dict *dict, struct mp_jinja_value key,
                  struct mp_jinja_value value)
{
    struct mp_jinja_value *known;
    struct mp_jinja_entry *entries;

    if (m->status != MP_OK)
        return;
    known = (struct mp_jinja_value *)mp_jinja_find(dict, key);
    if (known != NULL) {
        *known = value;
        return;
    }
    entries = mp_jinja_grow(m, dict->entries, dict->count, &dict->capacity, sizeof(*entries));
    if (entries == NULL)
        return;
    dict->entries = entries;
    entries[dict->count++] = (struct mp_jinja_entry){ key, value };
}

bool mp_jinja_true(struct mp_jinja_value v)
{
    switch (v.kind) {
    case MP_JINJA_UNDEFINED:
    case MP_JINJA_NONE: return false;
    case MP_JINJA_BOOL:
    case MP_JINJA_INT: return v.as.integer != 0;
    case MP_JINJA_REAL: return v.as.real != 0;
    case MP_JINJA_TEXT: return v.as.text->count > 0;
    case MP_JINJA_LIST: return v.as.list->count > 0;
    case MP_JINJA_DICT: return v.as.dict->count > 0;
    default: return true;
    }
}

static int compare_texts(const struct mp_jinja_text *a, const struct mp_jinja_text *b)
{
    const size_t common = a->count < b->count ? a->count : b->count;
    const int order = common > 0 ? memcmp(a->bytes, b->bytes, common) : 0;

    return order != 0 ? (order > 0) - (order < 0) : (a->count > b->count) - (a->count < b->count);
}

static bool equal_lists(const struct mp_jinja_list *a, const struct mp_jinja_list *b)
{
    for (size_t i = 0; i < a->count && a->count == b->count; i++) {
        if (!mp_jinja_equal(a->items[i], b->items[i]))
            return false;
    }
    return a->count == b->count && a->is_tuple == b->is_tuple;
}

static bool equal_dicts(const struct mp_jinja_dict *a, const struct mp_jinja_dict *b)
{
    for (size_t i = 0; i < a->count && a->count == b->count; i++) {
        const struct mp_jinja_value *other = mp_jinja_find(b, a->entries[i].key);

        if (other == NULL || !mp_jinja_equal(a->entries[i].value, *other))
            return false;
    }
    return a->count == b->count;
}

bool mp_jinja_equal(struct mp_jinja_value a, struct mp_jinja_value b)
{
    if (mp_jinja_is_whole(a) && mp_jinja_is_whole(b))
        return a.as.integer == b.as.integer;
    if (mp_jinja_is_number(a) && mp_jinja_is_number(b))
        return mp_jinja_number(a) == mp_jinja_number(b);
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case MP_JINJA_TEXT: return compare_texts(a.as.text, b.as.text) == 0;
    case MP_JINJA_LIST: return equal_lists(a.as.list, b.as.list);
    case MP_JINJA_DICT: return equal_dicts(a.as.dict, b.as.dict);
    case MP_JINJA_UNDEFINED:
    case MP_JINJA_NONE: return true;
    default: return a.as.dict == b.as.dict;
    }
}

int mp_jinja_compare(struct mp_jinja_memory *m, struct mp_jinja_value a, struct mp_jinja_value b)
{
    if (mp_jinja_is_whole(a) && mp_jinja_is_whole(b))
        return (a.as.integer > b.as.integer) - (a.as.integer < b.as.integer);
    if (mp_jinja_is_number(a) && mp_jinja_is_number(b))
        return (mp_jinja_number(a) > mp_jinja_number(b)) -
               (mp_jinja_number(a) < mp_jinja_number(b));
    if (a.kind == MP_JINJA_TEXT && b.kind == MP_JINJA_TEXT)
        return compare_texts(a.as.text, b.as.text);
    mp_jinja_fail(m, "it compares what has no order", NULL, 0);
    return 0;
}

bool mp_jinja_contains(struct mp_jinja_memory *m, struct mp_jinja_value in,
                       struct mp_jinja_value what)
{
    if (in.kind == MP_JINJA_TEXT && what.kind == MP_JINJA_TEXT)
        return mp_jinja_search(in.as.text, what.as.text, 0) != SIZE_MAX;
    if (mp_jinja_is_dict(in))
        return mp_jinja_find(in.as.dict, what) != NULL;
    if (in.kind == MP_JINJA_LIST) {
        for (size_t i = 0; i < in.as.list->count; i++) {
            if (mp_jinja_equal(in.as.list->items[i], what))
                return true;
        }
    } else if (in.kind != MP_JINJA_UNDEFINED) {
        mp_jinja_fail(m, "it looks into a value that holds nothing", NULL, 0);
    }
    return false;
}

const struct mp_jinja_list *mp_jinja_items(struct mp_jinja_memory *m, struct mp_jinja_value v)
{
    static const struct mp_jinja_list none;
    struct mp_jinja_value list;

    if (v.kind == MP_JINJA_LIST)
        return v.as.list;
    list = mp_jinja_list(m);
    if (list.kind != MP_JINJA_LIST || v.kind == MP_JINJA_UNDEFINED)
        return &none;
    if (mp_jinja_is_dict(v)) {
        for (size_t i = 0; i < v.as.dict->count; i++)
            mp_jinja_push(m, list.as.list, v.as.dict->entries[i].key);
    } else if (v.kind == MP_JINJA_TEXT) {
        for (size_t at = 0, next; at < v.as.text->count && m->status == MP_OK; at = next) {
            next = at + mp_jinja_char(v.as.text, at);
            mp_jinja_push(m, list.as.list, mp_jinja_part(m, v.as.text, at, next));
        }
    } else {
        mp_jinja_fail(m, "it needs a value with items", NULL, 0);
    }
    return list.as.list;
}

size_t mp_jinja_length(struct mp_jinja_memory *m, struct mp_jinja_value v)
{
    size_t count = 0;

    if (mp_jinja_is_dict(v))
        return v.as.dict->count;
    if (v.kind != MP_JINJA_TEXT)
        return mp_jinja_items(m, v)->count;
    for (size_t at = 0; at < v.as.text->count; at += mp_jinja_char(v.as.text, at))
        count++;
    return count;
}
