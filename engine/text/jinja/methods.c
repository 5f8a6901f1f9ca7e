/*
 * Methods of texts, lists, dicts and loops, and functions.
 */
#include <stdio.h>
#include <time.h>

#include "engine/text/jinja/jinja_int.h"

#define RANGE_MAX 100000

enum method {
    STRIP,
    LSTRIP,
    RSTRIP,
    SPLIT,
    RSPLIT,
    SPLITLINES,
    STARTSWITH,
    ENDSWITH,
    UPPER,
    LOWER,
    TITLE,
    CAPITALIZE,
    REPLACE,
    FIND,
    RFIND,
    JOIN,
    ISDIGIT,
    REMOVEPREFIX,
    REMOVESUFFIX,
    COUNT,
    INDEX,
    ITEMS,
    KEYS,
    VALUES,
    GET,
    CYCLE,
    METHODS
};

#define BIT(kind) (1u << MP_JINJA_##kind)

static const struct {
    const char *name;
    unsigned kinds;
} methods[METHODS] = {
    [STRIP] = { "strip", BIT(TEXT) },
    [LSTRIP] = { "lstrip", BIT(TEXT) },
    [RSTRIP] = { "rstrip", BIT(TEXT) },
    [SPLIT] = { "split", BIT(TEXT) },
    [RSPLIT] = { "rsplit", BIT(TEXT) },
    [SPLITLINES] = { "splitlines", BIT(TEXT) },
    [STARTSWITH] = { "startswith", BIT(TEXT) },
    [ENDSWITH] = { "endswith", BIT(TEXT) },
    [UPPER] = { "upper", BIT(TEXT) },
    [LOWER] = { "lower", BIT(TEXT) },
    [TITLE] = { "title", BIT(TEXT) },
    [CAPITALIZE] = { "capitalize", BIT(TEXT) },
    [REPLACE] = { "replace", BIT(TEXT) },
    [FIND] = { "find", BIT(TEXT) },
    [RFIND] = { "rfind", BIT(TEXT) },
    [JOIN] = { "join", BIT(TEXT) },
    [ISDIGIT] = { "isdigit", BIT(TEXT) },
    [REMOVEPREFIX] = { "removeprefix", BIT(TEXT) },
    [REMOVESUFFIX] = { "removesuffix", BIT(TEXT) },
    [COUNT] = { "count", BIT(TEXT) | BIT(LIST) },
    [INDEX] = { "index", BIT(TEXT) | BIT(LIST) },
    [ITEMS] = { "items", BIT(DICT) },
    [KEYS] = { "keys", BIT(DICT) },
    [VALUES] = { "values", BIT(DICT) },
    [GET] = { "get", BIT(DICT) },
    [CYCLE] = { "cycle", BIT(LOOP) },
};

bool mp_jinja_has_method(struct mp_jinja_value v, const struct mp_jinja_text *name)
{
    for (size_t i = 0; i < METHODS; i++) {
        if ((methods[i].kinds >> v.kind & 1u) != 0 && mp_jinja_text_is(name, methods[i].name))
            return true;
    }
    return false;
}

/* ---- texts */

static bool begins(const struct mp_jinja_text *text, const struct mp_jinja_text *what, bool at_end)
{
    return text->count >= what->count &&
           (what->count == 0 || memcmp(text->bytes + (at_end ? text->count - what->count : 0),
                                       what->bytes, what->count) == 0);
}

/* A text, or a list of which one fits. */
static bool begins_any(struct mp_jinja_run *run, const struct mp_jinja_text *text,
                       struct mp_jinja_value what, bool at_end)
{
    if (what.kind == MP_JINJA_TEXT)
        return begins(text, what.as.text, at_end);
    if (what.kind != MP_JINJA_LIST)
        mp_jinja_fail(&run->m, "it needs a text to look for", NULL, 0);
    for (size_t i = 0; run->m.status == MP_OK && i < what.as.list->count; i++) {
        if (begins(text, mp_jinja_string(&run->m, what.as.list->items[i]), at_end))
            return true;
    }
    return false;
}

/* At white space, of which there may be any. */
static void split_blanks(struct mp_jinja_run *run, const struct mp_jinja_text *text, int64_t most,
                         struct mp_jinja_list *list)
{
    struct mp_jinja_value rest = mp_jinja_strip(&run->m, text, NULL, true, most < 0);

    while (run->m.status == MP_OK && rest.as.text->count > 0) {
        size_t end = 0;

        while (end < rest.as.text->count) {
            const struct mp_jinja_value one =
                mp_jinja_part(&run->m, rest.as.text, end, end + mp_jinja_char(rest.as.text, end));

            if (run->m.status != MP_OK ||
                mp_jinja_strip(&run->m, one.as.text, NULL, true, false).as.text->count == 0)
                break;
            end += mp_jinja_char(rest.as.text, end);
        }
        if (most-- == 0)
            end = rest.as.text->count;
        mp_jinja_push(&run->m, list, mp_jinja_part(&run->m, rest.as.text, 0, end));
        rest = mp_jinja_part(&run->m, rest.as.text, end, rest.as.text->count);
        if (run->m.status == MP_OK)
            rest = mp_jinja_strip(&run->m, rest.as.text, NULL, true, false);
    }
}

static void split_at(struct mp_jinja_run *run, const struct mp_jinja_text *text,
                     const struct mp_jinja_text *at, int64_t most, struct mp_jinja_list *list)
{
    size_t from = 0, hit;

    while (run->m.status == MP_OK && most-- != 0 &&
           (hit = mp_jinja_search(text, at, from)) != SIZE_MAX) {
        mp_jinja_push(&run->m, list, mp_jinja_part(&run->m, text, from, hit));
        from = hit + at->count;
    }
    mp_jinja_push(&run->m, list, mp_jinja_part(&run->m, text, from, text->count));
}

/* The last place of `what` before `end`; SIZE_MAX: none. */
static size_t search_back(const struct mp_jinja_text *text, const struct mp_jinja_text *what,
                          size_t end)
{
    for (size_t at = end >= what->count ? end - what->count + 1 : 0; at-- > 0;) {
        if (what->count == 0 || memcmp(text->bytes + at, what->bytes, what->count) == 0)
            return at;
    }
    return SIZE_MAX;
}

static void split_back(struct mp_jinja_run *run, const struct mp_jinja_text *text,
                       const struct mp_jinja_text *at, int64_t most, struct mp_jinja_list *list)
{
    size_t end = text->count, hit;

    while (run->m.status == MP_OK && most-- != 0 &&
           (hit = search_back(text, at, end)) != SIZE_MAX) {
        mp_jinja_push(&run->m, list, mp_jinja_part(&run->m, text, hit + at->count, end));
        end = hit;
    }
    mp_jinja_push(&run->m, list, mp_jinja_part(&run->m, text, 0, end));
    for (size_t i = 0; run->m.status == MP_OK && i < list->count / 2; i++) {
        const struct mp_jinja_value last = list->items[list->count - 1 - i];

        list->items[list->count - 1 - i] = list->items[i];
        list->items[i] = last;
    }
}

static struct mp_jinja_value split(struct mp_jinja_run *run, const struct mp_jinja_text *text,
                                   const struct mp_jinja_args *args, bool back)
{
    const struct mp_jinja_value list = mp_jinja_list(&run->m);
    const struct mp_jinja_value at = mp_jinja_arg(args, 0, "sep");
    const struct mp_jinja_value most = mp_jinja_arg(args, 1, "maxsplit");
    const int64_t times = mp_jinja_is_whole(most) ? most.as.integer : -1;

    if (list.kind != MP_JINJA_LIST)
        return list;
    if (at.kind != MP_JINJA_TEXT && !back)
        split_blanks(run, text, times, list.as.list);
    else if (at.kind != MP_JINJA_TEXT || at.as.text->count == 0)
        mp_jinja_fail(&run->m, "it splits at an empty text", NULL, 0);
    else if (back)
        split_back(run, text, at.as.text, times, list.as.list);
    else
        split_at(run, text, at.as.text, times, list.as.list);
    return list;
}

static struct mp_jinja_value split_lines(struct mp_jinja_run *run, const struct mp_jinja_text *text)
{
    const struct mp_jinja_value list = mp_jinja_list(&run->m);
    size_t from = 0;

    while (from < text->count && run->m.status == MP_OK) {
        size_t end = from;

        while (end < text->count && text->bytes[end] != '\n' && text->bytes[end] != '\r')
            end++;
        mp_jinja_push(&run->m, list.as.list, mp_jinja_part(&run->m, text, from, end));
        from = end + 1 + (end + 1 < text->count && memcmp(text->bytes + end, "\r\n", 2) == 0);
    }
    return list;
}

static bool all_digits(const struct mp_jinja_text *text)
{
    for (size_t i = 0; i < text->count; i++) {
        if (text->bytes[i] < '0' || text->bytes[i] > '9')
            return false;
    }
    return text->count > 0;
}

/* Characters before the byte. */
static int64_t place(struct mp_jinja_run *run, const struct mp_jinja_text *text, size_t at)
{
    return at == SIZE_MAX ? -1
                          : (int64_t)mp_jinja_length(&run->m, mp_jinja_part(&run->m, text, 0, at));
}

static struct mp_jinja_value join_items(struct mp_jinja_run *run, const struct mp_jinja_text *text,
                                        struct mp_jinja_value of)
{
    const struct mp_jinja_list *items = mp_jinja_items(&run->m, of);
    struct mp_jinja_buffer b = { .m = &run->m };

    for (size_t i = 0; i < items->count && run->m.status == MP_OK; i++) {
        if (i > 0)
            mp_jinja_add_text(&b, text);
        if (items->items[i].kind != MP_JINJA_TEXT)
            mp_jinja_fail(&run->m, "it joins what is no text", NULL, 0);
        else
            mp_jinja_add_text(&b, items->items[i].as.text);
    }
    return mp_jinja_built(&b);
}

static struct mp_jinja_value strip(struct mp_jinja_run *run, const struct mp_jinja_text *text,
                                   struct mp_jinja_value chars, enum method how)
{
    return mp_jinja_strip(&run->m, text, chars.kind == MP_JINJA_TEXT ? chars.as.text : NULL,
                          how != RSTRIP, how != LSTRIP);
}

static struct mp_jinja_value remove_end(struct mp_jinja_run *run, const struct mp_jinja_text *text,
                                        struct mp_jinja_value what, bool at_end)
{
    const struct mp_jinja_text *gone = mp_jinja_string(&run->m, what);
    const size_t count = begins(text, gone, at_end) ? gone->count : 0;

    return mp_jinja_part(&run->m, text, at_end ? 0 : count, text->count - (at_end ? count : 0));
}

static int64_t count_in(struct mp_jinja_run *run, const struct mp_jinja_text *text,
                        const struct mp_jinja_text *what)
{
    size_t at = 0;
    int64_t count = 0;

    if (what->count == 0)
        mp_jinja_fail(&run->m, "it counts an empty text", NULL, 0);
    while (run->m.status == MP_OK && (at = mp_jinja_search(text, what, at)) != SIZE_MAX) {
        at += what->count;
        count++;
    }
    return count;
}

/* Methods that find something in a text. */
static struct mp_jinja_value text_search(struct mp_jinja_run *run, const struct mp_jinja_text *text,
                                         enum method which, struct mp_jinja_value first)
{
    const struct mp_jinja_text *what = mp_jinja_string(&run->m, first);
    int64_t at;

    if (which == COUNT)
        return mp_jinja_int(count_in(run, text, what));
    at = place(run, text,
               which == RFIND ? search_back(text, what, text->count)
                              : mp_jinja_search(text, what, 0));
    if (at < 0 && which == INDEX)
        mp_jinja_fail(&run->m, "it asks for the place of what is not there", NULL, 0);
    return mp_jinja_int(at);
}

static struct mp_jinja_value call_text(struct mp_jinja_run *run, const struct mp_jinja_text *text,
                                       enum method which, const struct mp_jinja_args *args)
{
    const struct mp_jinja_value first = mp_jinja_arg(args, 0, NULL);
    const struct mp_jinja_value second = mp_jinja_arg(args, 1, NULL);
    const struct mp_jinja_value third = mp_jinja_arg(args, 2, "count");

    switch (which) {
    case STRIP:
    case LSTRIP:
    case RSTRIP: return strip(run, text, first, which);
    case SPLIT:
    case RSPLIT: return split(run, text, args, which == RSPLIT);
    case SPLITLINES: return split_lines(run, text);
    case STARTSWITH:
    case ENDSWITH: return mp_jinja_bool(begins_any(run, text, first, which == ENDSWITH));
    case UPPER: return mp_jinja_recase(&run->m, text, MP_JINJA_UPPER);
    case LOWER: return mp_jinja_recase(&run->m, text, MP_JINJA_LOWER);
    case TITLE: return mp_jinja_recase(&run->m, text, MP_JINJA_TITLE);
    case CAPITALIZE: return mp_jinja_recase(&run->m, text, MP_JINJA_CAPITAL);
    case REPLACE:
        return mp_jinja_replace(&run->m, text, mp_jinja_string(&run->m, first),
                                mp_jinja_string(&run->m, second),
                                mp_jinja_is_whole(third) ? third.as.integer : -1);
    case JOIN: return join_items(run, text, first);
    case ISDIGIT: return mp_jinja_bool(all_digits(text));
    case REMOVEPREFIX:
    case REMOVESUFFIX: return remove_end(run, text, first, which == REMOVESUFFIX);
    default: return text_search(run, text, which, first);
    }
}

/* ---- lists and dicts */

static struct mp_jinja_value call_list(struct mp_jinja_run *run, const struct mp_jinja_list *list,
                                       enum method which, const struct mp_jinja_args *args)
{
    const struct mp_jinja_value what = mp_jinja_arg(args, 0, NULL);
    int64_t count = 0;

    for (size_t i = 0; i < list->count; i++) {
        const bool equal = mp_jinja_equal(list->items[i], what);

        if (equal && which == INDEX)
            return mp_jinja_int((int64_t)i);
        count += equal;
    }
    if (which == INDEX)
        mp_jinja_fail(&run->m, "it asks for the place of what is not there", NULL, 0);
    return mp_jinja_int(count);
}

static struct mp_jinja_value call_dict(struct mp_jinja_run *run, const struct mp_jinja_dict *dict,
                                       enum method which, const struct mp_jinja_args *args)
{
    const struct mp_jinja_value list = mp_jinja_list(&run->m);
    const struct mp_jinja_value *found;
    struct mp_jinja_value otherwise;

    if (which == GET) {
        otherwise = mp_jinja_arg(args, 1, "default");
        found = mp_jinja_find(dict, mp_jinja_arg(args, 0, "key"));
        return found != NULL                          ? *found
               : otherwise.kind == MP_JINJA_UNDEFINED ? mp_jinja_none
                                                      : otherwise;
    }
    for (size_t i = 0; i < dict->count && run->m.status == MP_OK; i++) {
        const struct mp_jinja_entry *e = &dict->entries[i];

        mp_jinja_push(&run->m, list.as.list,
                      which == ITEMS    ? mp_jinja_pair(&run->m, e)
                      : which == VALUES ? e->value
                                        : e->key);
    }
    return list;
}

struct mp_jinja_value mp_jinja_call_method(struct mp_jinja_run *run,
                                           const struct mp_jinja_method *method,
                                           const struct mp_jinja_args *args)
{
    const struct mp_jinja_value self = method->self;
    unsigned which = 0;

    while (!mp_jinja_text_is(&method->name, methods[which].name))
        which++;
    switch (self.kind) {
    case MP_JINJA_TEXT: return call_text(run, self.as.text, which, args);
    case MP_JINJA_LIST: return call_list(run, self.as.list, which, args);
    case MP_JINJA_DICT: return call_dict(run, self.as.dict, which, args);
    default: break;
    }
    if (args->count == 0) {
        mp_jinja_fail(&run->m, "'cycle' has no values", NULL, 0);
        return mp_jinja_undefined;
    }
    return args->items[self.as.loop->at % args->count];
}

/* ---- functions */

static struct mp_jinja_value range(struct mp_jinja_run *run, const struct mp_jinja_args *args)
{
    const struct mp_jinja_value list = mp_jinja_list(&run->m);
    int64_t numbers[3] = { 0, 0, 1 };

    for (size_t i = 0; i < args->count; i++) {
        if (i > 2 || !mp_jinja_is_whole(args->items[i])) {
            mp_jinja_fail(&run->m, "'range' needs one to three whole numbers", NULL, 0);
            return list;
        }
        numbers[args->count == 1 ? 1 : i] = args->items[i].as.integer;
    }
    if (args->count == 0 || numbers[2] == 0 || numbers[2] > RANGE_MAX || numbers[2] < -RANGE_MAX ||
        numbers[0] > INT32_MAX || numbers[0] < -INT32_MAX || numbers[1] > INT32_MAX ||
        numbers[1] < -INT32_MAX || (numbers[1] - numbers[0]) / numbers[2] > RANGE_MAX)
        mp_jinja_fail(&run->m, "'range' has too large numbers", NULL, 0);
    for (int64_t i = numbers[0];
         run->m.status == MP_OK && (numbers[2] > 0 ? i < numbers[1] : i > numbers[1]);
         i += numbers[2])
        mp_jinja_push(&run->m, list.as.list, mp_jinja_int(i));
    return list;
}

/* namespace(a=1), dict(a=1), and of a dict with these on top. */
static struct mp_jinja_value make_dict(struct mp_jinja_run *run, enum mp_jinja_kind kind,
                                       const struct mp_jinja_args *args)
{
    const struct mp_jinja_value made = mp_jinja_dict(&run->m, kind);

    for (size_t i = 0; i < args->count && run->m.status == MP_OK; i++) {
        const struct mp_jinja_text *name = &args->names[i];

        if (name->bytes != NULL) {
            mp_jinja_put(&run->m, made.as.dict, mp_jinja_text(&run->m, name->bytes, name->count),
                         args->items[i]);
            continue;
        }
        if (!mp_jinja_is_dict(args->items[i]))
            mp_jinja_fail(&run->m, "it makes a dict of what is none", NULL, 0);
        for (size_t k = 0; run->m.status == MP_OK && k < args->items[i].as.dict->count; k++)
            mp_jinja_put(&run->m, made.as.dict, args->items[i].as.dict->entries[k].key,
                         args->items[i].as.dict->entries[k].value);
    }
    return made;
}

static struct mp_jinja_value raise_exception(struct mp_jinja_run *run,
                                             const struct mp_jinja_args *args)
{
    const struct mp_jinja_text *text = mp_jinja_string(&run->m, mp_jinja_arg(args, 0, NULL));
    char quoted[512];

    if (run->m.status != MP_OK)
        return mp_jinja_undefined;
    snprintf(quoted, sizeof(quoted), "%.*s", (int)(text->count < 400 ? text->count : 400),
             text->bytes);
    run->m.status =
        mp_fail(MP_ERR_CONFIG, "E_CHAT_ROLES", "the model's chat format says: %s", quoted);
    return mp_jinja_undefined;
}

static struct mp_jinja_value show_time(struct mp_jinja_run *run, const struct mp_jinja_args *args)
{
    const struct mp_jinja_text *form = mp_jinja_string(&run->m, mp_jinja_arg(args, 0, NULL));
    const time_t now = (time_t)run->now_s;
    struct mp_jinja_buffer b = { .m = &run->m };
    char format[128], text[256];
    struct tm parts;

    if (form->count >= sizeof(format) || localtime_r(&now, &parts) == NULL) {
        mp_jinja_fail(&run->m, "the time has no such form", NULL, 0);
        return mp_jinja_undefined;
    }
    memcpy(format, form->bytes, form->count);
    format[form->count] = '\0';
    mp_jinja_add(&b, text, NULL, strftime(text, sizeof(text), format, &parts));
    return mp_jinja_built(&b);
}

static const char *const functions[] = { "range", "namespace", "dict", "raise_exception",
                                         "strftime_now" };

const char *mp_jinja_find_function(const struct mp_jinja_text *name)
{
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
        if (mp_jinja_text_is(name, functions[i]))
            return functions[i];
    }
    return NULL;
}

struct mp_jinja_value mp_jinja_call_function(struct mp_jinja_run *run, const char *name,
                                             const struct mp_jinja_args *args)
{
    if (strcmp(name, "range") == 0)
        return range(run, args);
    if (strcmp(name, "raise_exception") == 0)
        return raise_exception(run, args);
    if (strcmp(name, "strftime_now") == 0)
        return show_time(run, args);
    return make_dict(run, strcmp(name, "dict") == 0 ? MP_JINJA_DICT : MP_JINJA_NAMESPACE, args);
}
