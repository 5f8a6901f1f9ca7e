#ifndef MP_JINJA_INT_H
#define MP_JINJA_INT_H

#include <string.h>

#include "engine/text/jinja/jinja.h"

/*
 * Private to engine/text/jinja: memory.c (what values live in), value.c and text.c (values),
 * json.c (values from and to JSON), lex.c, parse.c and statements.c (from text to nodes), eval.c
 * (expressions), run.c (statements), filters.c, lists.c (filters of lists), tests.c, methods.c.
 *
 * All memory of a template, and all of a rendering, is one arena that is freed at once. The first
 * failure stays in its `status`; from then on functions do nothing and return undefined values.
 */
struct mp_jinja_memory {
    struct mp_jinja_block *blocks;
    size_t left; /* bytes that may still be taken */
    const char *name;
    bool parsing;
    uint32_t line; /* of what is looked at */
    enum mp_status status;
};

/* Zeroed, or NULL: a failure is in `status`. */
void *mp_jinja_alloc(struct mp_jinja_memory *m, size_t bytes);

/* `list` with room for one more than `count` items of `size` bytes, perhaps moved; NULL: failed. */
void *mp_jinja_grow(struct mp_jinja_memory *m, void *list, size_t count, size_t *capacity,
                    size_t size);
void mp_jinja_memory_free(struct mp_jinja_memory *m);

/* Note a failure, unless there is one: "what 'name'", with the line. */
void mp_jinja_fail(struct mp_jinja_memory *m, const char *what, const char *name, size_t bytes);

/* ---- values */

struct mp_jinja_text {
    const char *bytes;
    const uint8_t *foreign; // (count), or NULL: nothing is
    size_t count;
};

enum mp_jinja_kind {
    MP_JINJA_UNDEFINED,
    MP_JINJA_NONE,
    MP_JINJA_BOOL,
    MP_JINJA_INT,
    MP_JINJA_REAL,
    MP_JINJA_TEXT,
    MP_JINJA_LIST,
    MP_JINJA_DICT,
    MP_JINJA_NAMESPACE, /* a dict whose members can be set */
    MP_JINJA_LOOP,
    MP_JINJA_MACRO,
    MP_JINJA_METHOD,
    MP_JINJA_FUNCTION
};

struct mp_jinja_value {
    enum mp_jinja_kind kind;
    union {
        int64_t integer; /* of bool, too */
        double real;
        const struct mp_jinja_text *text;
        struct mp_jinja_list *list;
        struct mp_jinja_dict *dict;
        const struct mp_jinja_loop *loop;
        const struct mp_jinja_macro *macro;
        const struct mp_jinja_method *method;
        const char *function;
    } as;
};

struct mp_jinja_list {
    struct mp_jinja_value *items; // (count)
    size_t count, capacity;
    bool is_tuple; /* shown in round brackets, and not equal to lists */
};

struct mp_jinja_entry {
    struct mp_jinja_value key, value;
};

struct mp_jinja_dict {
    struct mp_jinja_entry *entries; // (count)
    size_t count, capacity;
};

struct mp_jinja_loop {
    const struct mp_jinja_list *list;
    size_t at;
};

struct mp_jinja_method {
    struct mp_jinja_value self;
    struct mp_jinja_text name;
};

struct mp_jinja_scope {
    struct mp_jinja_scope *parent;
    struct mp_jinja_dict vars;
};

struct mp_jinja_macro {
    const struct mp_jinja_node *node;
    struct mp_jinja_scope *scope;
};

extern const struct mp_jinja_value mp_jinja_undefined, mp_jinja_none;
struct mp_jinja_value mp_jinja_bool(bool flag);
struct mp_jinja_value mp_jinja_int(int64_t integer);
struct mp_jinja_value mp_jinja_real(double real);
/* Of a literal of ours, or of bytes that stay. */
struct mp_jinja_value mp_jinja_text(struct mp_jinja_memory *m, const char *bytes, size_t count);
struct mp_jinja_value mp_jinja_part(struct mp_jinja_memory *m, const struct mp_jinja_text *text,
                                    size_t begin, size_t end);
struct mp_jinja_value mp_jinja_list(struct mp_jinja_memory *m);
/* (key, value) */
struct mp_jinja_value mp_jinja_pair(struct mp_jinja_memory *m, const struct mp_jinja_entry *entry);
struct mp_jinja_value mp_jinja_dict(struct mp_jinja_memory *m, enum mp_jinja_kind kind);

void mp_jinja_push(struct mp_jinja_memory *m, struct mp_jinja_list *list,
                   struct mp_jinja_value value);
void mp_jinja_put(struct mp_jinja_memory *m, struct mp_jinja_dict *dict, struct mp_jinja_value key,
                  struct mp_jinja_value value);
/* NULL: it is not there. */
const struct mp_jinja_value *mp_jinja_find(const struct mp_jinja_dict *dict,
                                           struct mp_jinja_value key);
const struct mp_jinja_value *mp_jinja_find_name(const struct mp_jinja_dict *dict, const char *name,
                                                size_t bytes);

static inline bool mp_jinja_is_number(struct mp_jinja_value v)
{
    return v.kind >= MP_JINJA_BOOL && v.kind <= MP_JINJA_REAL;
}

static inline bool mp_jinja_is_whole(struct mp_jinja_value v)
{
    return v.kind == MP_JINJA_BOOL || v.kind == MP_JINJA_INT;
}

static inline bool mp_jinja_is_dict(struct mp_jinja_value v)
{
    return v.kind == MP_JINJA_DICT || v.kind == MP_JINJA_NAMESPACE;
}

static inline double mp_jinja_number(struct mp_jinja_value v)
{
    return v.kind == MP_JINJA_REAL ? v.as.real : (double)v.as.integer;
}

static inline bool mp_jinja_text_is(const struct mp_jinja_text *text, const char *other)
{
    return text->count == strlen(other) && memcmp(text->bytes, other, text->count) == 0;
}

bool mp_jinja_true(struct mp_jinja_value v);
bool mp_jinja_equal(struct mp_jinja_value a, struct mp_jinja_value b);
/* -1, 0 or 1; fails for what has no order. */
int mp_jinja_compare(struct mp_jinja_memory *m, struct mp_jinja_value a, struct mp_jinja_value b);
bool mp_jinja_contains(struct mp_jinja_memory *m, struct mp_jinja_value in,
                       struct mp_jinja_value what);
/* What `for` walks over. Fails, with an empty list, for what has no items. */
const struct mp_jinja_list *mp_jinja_items(struct mp_jinja_memory *m, struct mp_jinja_value v);
size_t mp_jinja_length(struct mp_jinja_memory *m, struct mp_jinja_value v);

/* ---- texts */

/* A text that grows. */
struct mp_jinja_buffer {
    struct mp_jinja_memory *m;
    char *bytes;
    uint8_t *foreign; // (capacity)
    size_t count, capacity;
};

void mp_jinja_add(struct mp_jinja_buffer *b, const char *bytes, const uint8_t *foreign,
                  size_t count);
void mp_jinja_add_own(struct mp_jinja_buffer *b, const char *text);
void mp_jinja_add_text(struct mp_jinja_buffer *b, const struct mp_jinja_text *text);
/* As str() and repr() of Python. */
void mp_jinja_add_value(struct mp_jinja_buffer *b, struct mp_jinja_value v);
void mp_jinja_add_real(struct mp_jinja_buffer *b, double real);
struct mp_jinja_value mp_jinja_built(struct mp_jinja_buffer *b);

/* Never NULL: an empty text after a failure. */
const struct mp_jinja_text *mp_jinja_string(struct mp_jinja_memory *m, struct mp_jinja_value v);

/* Bytes of the character at `at`, at least 1; and where the one before `at` > 0 begins. */
size_t mp_jinja_char(const struct mp_jinja_text *text, size_t at);
size_t mp_jinja_char_before(const struct mp_jinja_text *text, size_t at);
/* SIZE_MAX: not there. An empty `what` is at `from`. */
size_t mp_jinja_search(const struct mp_jinja_text *text, const struct mp_jinja_text *what,
                       size_t from);
/* `chars` NULL: white space. */
struct mp_jinja_value mp_jinja_strip(struct mp_jinja_memory *m, const struct mp_jinja_text *text,
                                     const struct mp_jinja_text *chars, bool left, bool right);
struct mp_jinja_value mp_jinja_replace(struct mp_jinja_memory *m, const struct mp_jinja_text *text,
                                       const struct mp_jinja_text *old,
                                       const struct mp_jinja_text *with, int64_t most);
enum mp_jinja_case { MP_JINJA_UPPER, MP_JINJA_LOWER, MP_JINJA_TITLE, MP_JINJA_CAPITAL };
struct mp_jinja_value mp_jinja_recase(struct mp_jinja_memory *m, const struct mp_jinja_text *text,
                                      enum mp_jinja_case how);

/* ---- JSON */

struct mp_jinja_value mp_jinja_from_json(struct mp_jinja_memory *m, const json_t *json,
                                         bool foreign);

struct mp_jinja_json_form {
    int64_t indent; /* below 0: one line */
    bool ascii, sorted;
    const struct mp_jinja_text *item, *key; /* separators */
};
void mp_jinja_add_json(struct mp_jinja_buffer *b, struct mp_jinja_value v,
                       const struct mp_jinja_json_form *form, unsigned depth);

/* ---- programs */

enum mp_jinja_token_kind {
    MP_JINJA_T_DATA,
    MP_JINJA_T_VAR,
    MP_JINJA_T_VAR_END,
    MP_JINJA_T_BLOCK,
    MP_JINJA_T_BLOCK_END,
    MP_JINJA_T_NAME,
    MP_JINJA_T_STRING,
    MP_JINJA_T_INT,
    MP_JINJA_T_REAL,
    MP_JINJA_T_OP,
    MP_JINJA_T_END
};

struct mp_jinja_token {
    enum mp_jinja_token_kind kind;
    uint32_t line;
    struct mp_jinja_text text;
};

struct mp_jinja_parser {
    struct mp_jinja_memory *m;
    struct mp_jinja_token *tokens; // (count): the last is T_END
    size_t count, capacity, at;
    unsigned depth;
};

enum mp_jinja_node_kind {
    MP_JINJA_N_CONST,
    MP_JINJA_N_NAME,
    MP_JINJA_N_LIST, /* with `text`: a tuple */
    MP_JINJA_N_DICT, /* items: key, value, ... */
    MP_JINJA_N_ATTR,
    MP_JINJA_N_ITEM,
    MP_JINJA_N_SLICE, /* items: begin, end, step, or NULL */
    MP_JINJA_N_CALL,
    MP_JINJA_N_FILTER,
    MP_JINJA_N_TEST,
    MP_JINJA_N_NOT,
    MP_JINJA_N_MINUS,
    MP_JINJA_N_PLUS,
    MP_JINJA_N_AND,
    MP_JINJA_N_OR,
    MP_JINJA_N_BINARY, /* a, the operator `text`, b */
    MP_JINJA_N_IF_ELSE,
    /* Statements: */
    MP_JINJA_N_BODY,
    MP_JINJA_N_DATA,
    MP_JINJA_N_OUTPUT,
    MP_JINJA_N_IF,    /* a: condition, b: body, c: another IF, a body, or NULL */
    MP_JINJA_N_FOR,   /* items: targets, a: over, b: body, c: else, d: condition */
    MP_JINJA_N_SET,   /* items: targets, a: value, or b: body */
    MP_JINJA_N_MACRO, /* items: defaults, or NULL, names: parameters, b: body */
    MP_JINJA_N_BREAK,
    MP_JINJA_N_CONTINUE
};

struct mp_jinja_node {
    enum mp_jinja_node_kind kind;
    uint32_t line;
    struct mp_jinja_text text;
    struct mp_jinja_value value;
    struct mp_jinja_node *a, *b, *c, *d;
    struct mp_jinja_node **items;      // (count)
    const struct mp_jinja_text *names; // (count): of arguments; bytes NULL: none
    size_t count, capacity;
};

void mp_jinja_lex(struct mp_jinja_parser *p, const char *text, size_t bytes);

/* Never NULL unless the status is a failure. */
struct mp_jinja_node *mp_jinja_node(struct mp_jinja_parser *p, enum mp_jinja_node_kind kind);
void mp_jinja_add_item(struct mp_jinja_parser *p, struct mp_jinja_node *node,
                       struct mp_jinja_node *item, struct mp_jinja_text name);
struct mp_jinja_node *mp_jinja_parse_expression(struct mp_jinja_parser *p);
/* a, b, ...: a LIST if there is a comma. */
struct mp_jinja_node *mp_jinja_parse_tuple(struct mp_jinja_parser *p);
/* Without `x if y else z`, as behind `in` of a loop. */
struct mp_jinja_node *mp_jinja_parse_or(struct mp_jinja_parser *p);
struct mp_jinja_node *mp_jinja_parse_template(struct mp_jinja_parser *p);

const struct mp_jinja_token *mp_jinja_peek(const struct mp_jinja_parser *p);
bool mp_jinja_is(const struct mp_jinja_parser *p, enum mp_jinja_token_kind kind, const char *text);
bool mp_jinja_accept(struct mp_jinja_parser *p, enum mp_jinja_token_kind kind, const char *text);
/* An empty text after a failure. */
struct mp_jinja_text mp_jinja_expect(struct mp_jinja_parser *p, enum mp_jinja_token_kind kind,
                                     const char *text);

/* ---- runs */

struct mp_jinja_run {
    struct mp_jinja_memory m;
    struct mp_jinja_scope *scope;
    struct mp_jinja_buffer *out;
    uint64_t steps, now_s;
    unsigned depth;
    enum { MP_JINJA_GOES_ON, MP_JINJA_BREAKS, MP_JINJA_CONTINUES } leaving;
};

struct mp_jinja_args {
    const struct mp_jinja_value *items; // (count)
    const struct mp_jinja_text *names;  // (count): bytes NULL: by position
    size_t count;
};

/* Undefined: not given. `name` NULL: only by position. */
struct mp_jinja_value mp_jinja_arg(const struct mp_jinja_args *args, size_t index,
                                   const char *name);

struct mp_jinja_value mp_jinja_eval(struct mp_jinja_run *run, const struct mp_jinja_node *node);
struct mp_jinja_value mp_jinja_get(struct mp_jinja_run *run, struct mp_jinja_value v,
                                   struct mp_jinja_value key, bool attribute);
void mp_jinja_exec(struct mp_jinja_run *run, const struct mp_jinja_node *node);
struct mp_jinja_value mp_jinja_call_macro(struct mp_jinja_run *run,
                                          const struct mp_jinja_macro *macro,
                                          const struct mp_jinja_args *args);

struct mp_jinja_value mp_jinja_filter(struct mp_jinja_run *run, const struct mp_jinja_text *name,
                                      struct mp_jinja_value v, const struct mp_jinja_args *args);
/* Of lists and dicts; the name is that of one. */
struct mp_jinja_value mp_jinja_list_filter(struct mp_jinja_run *run,
                                           const struct mp_jinja_text *name,
                                           struct mp_jinja_value v,
                                           const struct mp_jinja_args *args);
bool mp_jinja_test(struct mp_jinja_run *run, const struct mp_jinja_text *name,
                   struct mp_jinja_value v, const struct mp_jinja_args *args);
bool mp_jinja_has_filter(const struct mp_jinja_text *name);
bool mp_jinja_has_test(const struct mp_jinja_text *name);
bool mp_jinja_has_method(struct mp_jinja_value v, const struct mp_jinja_text *name);
struct mp_jinja_value mp_jinja_call_method(struct mp_jinja_run *run,
                                           const struct mp_jinja_method *method,
                                           const struct mp_jinja_args *args);
/* NULL: there is no such function. */
const char *mp_jinja_find_function(const struct mp_jinja_text *name);
struct mp_jinja_value mp_jinja_call_function(struct mp_jinja_run *run, const char *name,
                                             const struct mp_jinja_args *args);

#endif
