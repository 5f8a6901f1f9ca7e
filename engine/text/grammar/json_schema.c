/*
 * The program for a JSON Schema. Which schemas: grammar.h. Schemas come from anyone: sizes are
 * bounded, and what is not known is refused.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/grammar_int.h"
#include "vmm/base/compiler.h"
#include "vmm/format/json.h"

#define MEMBERS_MAX 256u
#define WAYS_MAX 1024u
#define ITEMS_MAX 64u

/* A function to be written: a value of the schema, behind `key` if there is one. */
struct mp_grammar_todo {
    const json_t *schema, *root;
    const char *key;
};

static void value(struct mp_grammar_making *m, const json_t *schema);

/* Call the function for this schema and key, which is made if it is new. */
static void call(struct mp_grammar_making *m, const json_t *schema, const char *key)
{
    struct mp_grammar *g = m->g;
    uint32_t f = MP_FN_FIXED;

    while (f < g->function_count && (m->todo[f].schema != schema || m->todo[f].key != key))
        f++;
    if (f == MP_GRAMMAR_FUNCTIONS_MAX) {
        mp_grammar_refuse(m->g, "has too many members, at", key != NULL ? key : "$ref");
        return;
    }
    if (f == g->function_count) {
        m->todo[f] = (struct mp_grammar_todo){ schema, m->root, key };
        g->function_count++;
    }
    (void)mp_grammar_emit(g, MP_OP_CALL, f, 0);
}

/* ---- objects */

static bool is_required(const json_t *schema, const char *key)
{
    const json_t *array = json_object_get(schema, "required"), *item;
    size_t i;

    json_array_foreach(array, i, item)
    {
        if (json_is_string(item) && strcmp(json_string_value(item), key) == 0)
            return true;
    }
    return false;
}

static void check_required(struct mp_grammar_making *m, const json_t *schema,
                           const json_t *properties)
{
    const json_t *array = json_object_get(schema, "required"), *item;
    size_t i;

    if (array != NULL && !json_is_array(array))
        mp_grammar_refuse(m->g, "need an array of names as", "required");
    json_array_foreach(array, i, item)
    {
        if (!json_is_string(item) || json_object_get(properties, json_string_value(item)) == NULL)
            mp_grammar_refuse(m->g, "'required' has a name that is not in",
                              json_is_string(item) ? json_string_value(item) : "properties");
    }
}

/*
 * Two rows of members: as long as none was written, and behind a comma. Both lead from one member
 * to the next; one that is not required can be passed over.
 */
static void members(struct mp_grammar_making *m, const json_t *schema, const json_t *properties)
{
    struct mp_grammar *g = m->g;
    uint16_t behind[MEMBERS_MAX], end = 0;
    const size_t count = json_object_size(properties);
    json_t *all = (json_t *)properties, *member;
    bool open = true; /* none may have been written yet */
    const char *key;
    size_t i = 0;

    json_object_foreach(all, key, member)
    {
        uint16_t split = 0;
        const bool required = is_required(schema, key);

        behind[i] = 0;
        if (open) {
            if (!required)
                split = mp_grammar_emit(g, MP_OP_SPLIT, mp_grammar_at(g) + 1u, 0);
            call(m, member, key);
            behind[i] = mp_grammar_emit(g, MP_OP_JUMP, 0, 0);
            if (!required)
                mp_grammar_set_b(g, split, mp_grammar_at(g));
        }
        open = open && !required;
        i++;
    }
    if (open)
        end = mp_grammar_emit(g, MP_OP_JUMP, 0, 0);
    i = 0;
    json_object_foreach(all, key, member)
    {
        uint16_t split = 0;
        const bool required = is_required(schema, key);

        if (i > 0) {
            if (!required)
                split = mp_grammar_emit(g, MP_OP_SPLIT, mp_grammar_at(g) + 1u, 0);
            mp_grammar_pattern(g, ",@w");
            call(m, member, key);
            if (!required)
                mp_grammar_set_b(g, split, mp_grammar_at(g));
        }
        if (behind[i] != 0)
            mp_grammar_set_a(g, behind[i], mp_grammar_at(g));
        i++;
    }
    if (open && count > 0)
        mp_grammar_set_a(g, end, mp_grammar_at(g));
}

static void object(struct mp_grammar_making *m, const json_t *schema)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *more = json_object_get(schema, "additionalProperties");

    if (more != NULL && !json_is_boolean(more)) {
        mp_grammar_refuse(m->g, "is not supported: a schema as", "additionalProperties");
        return;
    }
    if (properties != NULL && !json_is_object(properties)) {
        mp_grammar_refuse(m->g, "need an object as", "properties");
        return;
    }
    check_required(m, schema, properties);
    if (properties == NULL && !json_is_false(more)) {
        (void)mp_grammar_emit(m->g, MP_OP_CALL, MP_FN_OBJECT, 0);
        return;
    }
    if (json_object_size(properties) > MEMBERS_MAX) {
        mp_grammar_refuse(m->g, "more than 256 members in", "properties");
        return;
    }
    mp_grammar_pattern(m->g, "{@w");
    if (json_object_size(properties) > 0) {
        members(m, schema, properties);
        mp_grammar_pattern(m->g, "@w");
    }
    mp_grammar_pattern(m->g, "}");
}

/* ---- arrays */

static void one_item(struct mp_grammar_making *m, const json_t *items)
{
    if (items != NULL)
        call(m, items, NULL);
    else
        (void)mp_grammar_emit(m->g, MP_OP_CALL, MP_FN_VALUE, 0);
}

/* `max` UINT64_MAX: no end. */
static void item_list(struct mp_grammar_making *m, const json_t *items, uint64_t min, uint64_t max)
{
    struct mp_grammar *g = m->g;
    uint16_t splits[ITEMS_MAX + 1];
    unsigned count = 0;

    for (uint64_t i = 0; i < max && i < ITEMS_MAX; i++) {
        const bool repeats = max > ITEMS_MAX && i >= min && i > 0;
        const uint16_t begin = mp_grammar_at(g);

        if (i >= min)
            splits[count++] = mp_grammar_emit(g, MP_OP_SPLIT, begin + 1u, 0);
        if (i > 0)
            mp_grammar_pattern(g, ",@w");
        one_item(m, items);
        if (repeats) {
            (void)mp_grammar_emit(g, MP_OP_JUMP, begin, 0);
            break;
        }
    }
    while (count > 0)
        mp_grammar_set_b(g, splits[--count], mp_grammar_at(g));
}

static void array(struct mp_grammar_making *m, const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items");
    const bool bounded = json_object_get(schema, "maxItems") != NULL;
    uint64_t min = 0, max = UINT64_MAX;
    enum mp_status status = mp_json_u64_or(schema, "minItems", m->g->of, 0, ITEMS_MAX - 1, 0, &min);

    if (status == MP_OK && bounded)
        status = mp_json_u64(schema, "maxItems", m->g->of, 0, ITEMS_MAX, &max);
    if (status != MP_OK || min > max) {
        mp_grammar_refuse(m->g, "need at most 63, and not more than maxItems, at most 64, as",
                          "minItems");
        return;
    }
    mp_grammar_pattern(m->g, "\\[@w");
    item_list(m, items, min, max);
    mp_grammar_pattern(m->g, "@w\\]");
}

/* ---- types */

static void one_type(struct mp_grammar_making *m, const json_t *schema, const json_t *name)
{
    const struct mp_grammar_type *type = mp_grammar_type(name);

    if (type == NULL)
        mp_grammar_refuse(
            m->g, "is not a type:", json_is_string(name) ? json_string_value(name) : "type");
    else if (type->function != MP_FN_FIXED)
        (void)mp_grammar_emit(m->g, MP_OP_CALL, type->function, 0);
    else if (type->type == JSON_TRUE)
        mp_grammar_pattern(m->g, "true|false");
    else if (type->type == JSON_NULL)
        mp_grammar_pattern(m->g, "null");
    else if (type->type == JSON_OBJECT)
        object(m, schema);
    else
        array(m, schema);
}

/* One of several: `types_of` NULL: each item is a schema; else a name of a type of that schema. */
static void one_of(struct mp_grammar_making *m, const json_t *list, const json_t *types_of,
                   const char *name)
{
    struct mp_grammar *g = m->g;
    uint16_t ends[WAYS_MAX];
    const size_t count = json_array_size(list);
    const json_t *item;
    size_t i;

    if (count == 0 || count > WAYS_MAX) {
        mp_grammar_refuse(m->g, "need 1 to 1024 entries in", name);
        return;
    }
    json_array_foreach(list, i, item)
    {
        const uint16_t split = mp_grammar_at(g);

        if (g->status != MP_OK)
            return;
        if (i + 1 < count)
            (void)mp_grammar_emit(g, MP_OP_SPLIT, split + 1u, 0);
        if (types_of != NULL)
            one_type(m, types_of, item);
        else
            value(m, item);
        ends[i] = mp_grammar_emit(g, MP_OP_JUMP, 0, 0);
        if (i + 1 < count)
            mp_grammar_set_b(g, split, mp_grammar_at(g));
    }
    for (i = 0; i < count; i++)
        mp_grammar_set_a(g, ends[i], mp_grammar_at(g));
}

/* "#", or "#/" and names of keys with / between them. */
static void reference(struct mp_grammar_making *m, const json_t *ref)
{
    const char *text = json_is_string(ref) ? json_string_value(ref) : "";
    const json_t *at = text[0] == '#' ? m->root : NULL;
    const char *name = text[0] == '#' ? text + 1 : "";
    char key[256];

    while (at != NULL && name[0] == '/') {
        const size_t bytes = strcspn(name + 1, "/");

        if (bytes >= sizeof(key))
            break;
        memcpy(key, name + 1, bytes);
        key[bytes] = '\0';
        at = json_object_get(at, key);
        name += 1 + bytes;
    }
    if (at == NULL || name[0] != '\0')
        mp_grammar_refuse(m->g, "'$ref' leads to nothing:", text);
    else
        call(m, at, NULL);
}

/* What decides about a value, and what only describes it. */
static void check_keys(struct mp_grammar_making *m, const json_t *schema)
{
    static const char *const known[] = {
        "type",     "enum",       "const",       "anyOf",     "$ref",   "properties",
        "required", "items",      "minItems",    "maxItems",  "title",  "default",
        "examples", "$defs",      "description", "$schema",   "$id",    "definitions",
        "$comment", "deprecated", "readOnly",    "writeOnly", "strict", "additionalProperties"
    };
    const char *key;
    json_t *all = (json_t *)schema, *item;

    json_object_foreach(all, key, item)
    {
        size_t i = 0;

        while (i < MP_ARRAY_LEN(known) && strcmp(known[i], key) != 0)
            i++;
        if (i == MP_ARRAY_LEN(known))
            mp_grammar_refuse(m->g, "is not supported:", key);
    }
}

static void value(struct mp_grammar_making *m, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    const json_t *ref = json_object_get(schema, "$ref"), *any = json_object_get(schema, "anyOf");
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");

    if (!json_is_object(schema)) {
        mp_grammar_refuse(m->g, "need an object as", "schema");
        return;
    }
    check_keys(m, schema);
    if ((ref != NULL) + (any != NULL) + (list != NULL) + (one != NULL) > 1 ||
        (type != NULL && (ref != NULL || any != NULL)))
        mp_grammar_refuse(m->g, "is not supported together with another key of its kind:",
                          ref != NULL   ? "$ref"
                          : any != NULL ? "anyOf"
                                        : "const");
    else if (ref != NULL)
        reference(m, ref);
    else if (any != NULL)
        one_of(m, any, NULL, "anyOf");
    else if (list != NULL)
        mp_grammar_enum(m->g, list, type);
    else if (one != NULL && !mp_grammar_fits_type(type, one))
        mp_grammar_refuse(m->g, "is not of the type:", "const");
    else if (one != NULL)
        mp_grammar_literal(m->g, one);
    else if (json_is_array(type))
        one_of(m, type, schema, "type");
    else if (type != NULL)
        one_type(m, schema, type);
    else
        (void)mp_grammar_emit(m->g, MP_OP_CALL, MP_FN_VALUE, 0);
}

static void write_function(struct mp_grammar_making *m, uint32_t f)
{
    const struct mp_grammar_todo todo = m->todo[f];

    m->root = todo.root;
    m->g->functions[f] = mp_grammar_at(m->g);
    if (todo.key != NULL) {
        json_t *key = json_string(todo.key);

        mp_grammar_literal(m->g, key);
        json_decref(key);
        mp_grammar_pattern(m->g, ":@w");
    }
    value(m, todo.schema);
    (void)mp_grammar_emit(m->g, MP_OP_RETURN, 0, 0);
}

void mp_grammar_making_begin(struct mp_grammar *g, struct mp_grammar_making *m)
{
    *m = (struct mp_grammar_making){ .g = g };
    if (g->status != MP_OK)
        return;
    m->todo = calloc(MP_GRAMMAR_FUNCTIONS_MAX, sizeof(*m->todo));
    if (m->todo == NULL)
        g->status = mp_fail_no_memory("a schema", MP_GRAMMAR_FUNCTIONS_MAX * sizeof(*m->todo));
}

void mp_grammar_value(struct mp_grammar_making *m, const json_t *root)
{
    m->root = root;
    if (m->g->status == MP_OK)
        value(m, root);
}

void mp_grammar_making_end(struct mp_grammar_making *m)
{
    struct mp_grammar *g = m->g;

    for (uint32_t f = MP_FN_FIXED; f < g->function_count && g->status == MP_OK; f++)
        write_function(m, f);
    mp_grammar_check_ends(g);
    free(m->todo);
}

void mp_grammar_schema(struct mp_grammar *g, const json_t *root)
{
    struct mp_grammar_making m;

    mp_grammar_making_begin(g, &m);
    g->start = mp_grammar_at(g);
    mp_grammar_pattern(g, "@w");
    mp_grammar_value(&m, root);
    (void)mp_grammar_emit(g, MP_OP_RETURN, 0, 0);
    mp_grammar_making_end(&m);
}
