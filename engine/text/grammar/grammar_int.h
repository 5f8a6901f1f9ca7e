#ifndef MP_GRAMMAR_INT_H
#define MP_GRAMMAR_INT_H

#include "engine/text/grammar/grammar.h"

/*
 * Private to grammar.c (the automaton), program.c (its program from patterns), json_schema.c (its
 * program from a schema), json_values.c (that of fixed values), choices.c (values among texts) and
 * check.c (schemas without an end).
 */
enum mp_grammar_kind {
    MP_OP_SET,   /* a byte of set `a` */
    MP_OP_SPLIT, /* go on at `a` and at `b` */
    MP_OP_JUMP,  /* go on at `a` */
    MP_OP_CALL,  /* function `a`, then the next one */
    MP_OP_RETURN
};

struct mp_grammar_op {
    uint16_t kind, a, b;
    uint16_t frames; /* on the stack at once, at least, on the way to the end of the function */
};

/* Functions of every grammar; those of a schema follow. */
enum mp_grammar_function {
    MP_FN_BLANKS,
    MP_FN_STRING,
    MP_FN_NUMBER,
    MP_FN_INTEGER,
    MP_FN_VALUE,
    MP_FN_OBJECT,
    MP_FN_ARRAY,
    MP_FN_TEXT,
    MP_FN_FIXED
};

#define MP_GRAMMAR_SETS_MAX 512u /* one for each byte, then classes */
#define MP_GRAMMAR_FUNCTIONS_MAX 8192u

struct mp_grammar {
    struct mp_grammar_op *ops; // (op_count)
    uint32_t op_count, op_capacity;
    uint16_t functions[MP_GRAMMAR_FUNCTIONS_MAX]; /* where they begin */
    uint32_t function_count;
    uint8_t sets[MP_GRAMMAR_SETS_MAX][32];
    uint32_t set_count;
    uint16_t start, string_loop;
    const char *of; /* the key of the request that it comes from, for messages */

    enum mp_status status; /* the first failure while it is made */
};

/* A grammar without a program; and the end of making one, which destroys it after a failure. `of`:
 * a constant. */
enum mp_status mp_grammar_open(const char *of, struct mp_grammar **grammar_p) MP_MUST_CHECK;
enum mp_status mp_grammar_finish(struct mp_grammar *g, struct mp_grammar **grammar_p) MP_MUST_CHECK;

/* All that follow do nothing after a failure, which is in `status`. They return the next op. */
uint16_t mp_grammar_emit(struct mp_grammar *g, enum mp_grammar_kind kind, uint32_t a, uint32_t b);
uint16_t mp_grammar_at(const struct mp_grammar *g);
void mp_grammar_set_a(struct mp_grammar *g, uint16_t op, uint32_t a);
void mp_grammar_set_b(struct mp_grammar *g, uint16_t op, uint32_t b);

/* A regular expression over bytes: ( ) | * + ? [a-z] \x for x itself, and calls: @w blanks, @s a
 * string, @n a number, @i an integer, @v a value, @o an object, @a an array, @t a text without "<".
 */
void mp_grammar_pattern(struct mp_grammar *g, const char *pattern);
void mp_grammar_bytes(struct mp_grammar *g, const char *bytes, size_t count);

/* MP_ERR_CONFIG E_FORMAT: what is wrong with the schema, and where. */
void mp_grammar_refuse(struct mp_grammar *g, const char *what, const char *name);

/* The functions that every grammar has. */
void mp_grammar_fixed_functions(struct mp_grammar *g);

/* The whole program: a value of the schema. */
void mp_grammar_schema(struct mp_grammar *g, const json_t *root);

/* Values of schemas as parts of a program, which ends with the functions that they need. Schemas
 * must outlive the making. */
struct mp_grammar_todo;

struct mp_grammar_making {
    struct mp_grammar *g;
    const json_t *root;
    struct mp_grammar_todo *todo; // (MP_GRAMMAR_FUNCTIONS_MAX): by number of the function
};

void mp_grammar_making_begin(struct mp_grammar *g, struct mp_grammar_making *m);
void mp_grammar_value(struct mp_grammar_making *m, const json_t *root);
void mp_grammar_making_end(struct mp_grammar_making *m);

/* Refuses a program that need not come to an end. */
void mp_grammar_check_ends(struct mp_grammar *g);

/* Fills in `frames`; more than MP_GRAMMAR_DEPTH_MAX: there is no such way. */
void mp_grammar_count_frames(struct mp_grammar *g);

/* A type of JSON Schema; `function` MP_FN_FIXED: the schema decides. */
struct mp_grammar_type {
    const char *name;
    json_type type;
    uint16_t function;
};

/* NULL: there is no such type. */
const struct mp_grammar_type *mp_grammar_type(const json_t *name);

/* `type`: a name, several, or NULL for any. */
bool mp_grammar_fits_type(const json_t *type, const json_t *literal);

/* This value, and one of these as far as they are of the type. */
void mp_grammar_literal(struct mp_grammar *g, const json_t *literal);
void mp_grammar_enum(struct mp_grammar *g, const json_t *values, const json_t *type);

#endif
