/*
 * The automaton: follows all ways to read a text at once. Where programs come from is program.c's
 * and json_schema.c's.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/grammar_int.h"

/* Operations for one byte: bounds the time, whatever the schema. */
#define WORK_MAX 2048

#define NO_BYTE 256u

enum mp_status mp_grammar_open(const char *of, struct mp_grammar **grammar_p)
{
    struct mp_grammar *g = calloc(1, sizeof(*g));

    if (g == NULL)
        return mp_fail_no_memory("a schema", sizeof(*g));
    g->of = of;
    mp_grammar_fixed_functions(g);
    *grammar_p = g;
    return MP_OK;
}

enum mp_status mp_grammar_finish(struct mp_grammar *g, struct mp_grammar **grammar_p)
{
    enum mp_status status;

    mp_grammar_count_frames(g);
    status = g->status;
    if (status == MP_OK)
        *grammar_p = g;
    else
        mp_grammar_destroy(g);
    return status;
}

enum mp_status mp_grammar_create(const json_t *schema, struct mp_grammar **grammar_p)
{
    struct mp_grammar *g = NULL;
    enum mp_status status = mp_grammar_open("response_format", &g);

    if (status != MP_OK)
        return status;
    if (schema == NULL) {
        g->start = mp_grammar_at(g);
        mp_grammar_pattern(g, "@w@o");
        (void)mp_grammar_emit(g, MP_OP_RETURN, 0, 0);
    } else {
        mp_grammar_schema(g, schema);
    }
    return mp_grammar_finish(g, grammar_p);
}

void mp_grammar_destroy(struct mp_grammar *g)
{
    if (g == NULL)
        return;
    free(g->ops);
    free(g);
}

void mp_grammar_begin(const struct mp_grammar *g, struct mp_grammar_state *state)
{
    state->count = 1;
    state->paths[0].depth = 0;
    state->paths[0].op = g->start;
}

/* One search for what a byte leads to. */
struct search {
    const struct mp_grammar *g;
    unsigned byte;
    unsigned work;
    bool ended;                  /* a way to the end needs no byte */
    struct mp_grammar_state *to; /* NULL: only the end matters */
};

static void add_path(struct search *s, const struct mp_grammar_path *path, uint16_t op)
{
    struct mp_grammar_state *to = s->to;
    struct mp_grammar_path *added;

    while (s->g->ops[op].kind == MP_OP_JUMP)
        op = s->g->ops[op].a;
    for (uint32_t i = 0; i < to->count; i++) {
        if (to->paths[i].op == op && to->paths[i].depth == path->depth &&
            memcmp(to->paths[i].back, path->back, path->depth * sizeof(path->back[0])) == 0)
            return;
    }
    if (to->count == MP_GRAMMAR_PATHS_MAX)
        return;
    added = &to->paths[to->count++];
    added->depth = path->depth;
    added->op = op;
    memcpy(added->back, path->back, path->depth * sizeof(path->back[0]));
}

static bool set_has(const struct mp_grammar *g, uint16_t set, unsigned byte)
{
    return byte < NO_BYTE && (g->sets[set][byte / 8] >> byte % 8 & 1) != 0;
}

/* Follow one path to the operations that take a byte, unless the stack is too small for its end. */
static void follow(struct search *s, const struct mp_grammar_path *from)
{
    struct mp_grammar_path path;

    path.depth = from->depth;
    path.op = from->op;
    memcpy(path.back, from->back, from->depth * sizeof(from->back[0]));
    while (s->work > 0) {
        const struct mp_grammar_op op = s->g->ops[path.op];

        if (path.depth + op.frames > MP_GRAMMAR_DEPTH_MAX)
            return;
        s->work--;
        switch (op.kind) {
        case MP_OP_SET:
            if (s->to != NULL && set_has(s->g, op.a, s->byte))
                add_path(s, &path, (uint16_t)(path.op + 1));
            return;
        case MP_OP_SPLIT:
            path.op = op.a;
            follow(s, &path);
            path.op = op.b;
            break;
        case MP_OP_JUMP: path.op = op.a; break;
        case MP_OP_CALL:
            path.back[path.depth++] = (uint16_t)(path.op + 1);
            path.op = s->g->functions[op.a];
            break;
        default:
            if (path.depth == 0) {
                s->ended = true;
                return;
            }
            path.op = path.back[--path.depth];
            break;
        }
    }
}

bool mp_grammar_step(const struct mp_grammar *g, const struct mp_grammar_state *from, uint8_t byte,
                     struct mp_grammar_state *to)
{
    struct search s = { .g = g, .byte = byte, .work = WORK_MAX, .to = to };

    to->count = 0;
    for (uint32_t i = 0; i < from->count; i++)
        follow(&s, &from->paths[i]);
    return to->count > 0;
}

bool mp_grammar_can_end(const struct mp_grammar *g, const struct mp_grammar_state *state)
{
    struct search s = { .g = g, .byte = NO_BYTE, .work = WORK_MAX };

    for (uint32_t i = 0; i < state->count; i++)
        follow(&s, &state->paths[i]);
    return s.ended;
}

bool mp_grammar_must_end(const struct mp_grammar *g, const struct mp_grammar_state *state)
{
    struct mp_grammar_state next;

    for (unsigned b = 0; b < 256; b++) {
        if (mp_grammar_step(g, state, (uint8_t)b, &next))
            return false;
    }
    return true;
}

bool mp_grammar_in_string(const struct mp_grammar *g, const struct mp_grammar_state *state)
{
    for (uint32_t i = 0; i < state->count; i++) {
        if (state->paths[i].op == g->string_loop)
            return true;
    }
    return false;
}
