/*
 * Schemas that lead back to themselves: refuses those whose texts have no end, and those where a
 * value begins with itself. A tree whose branches can stop is neither; how much of the stack each
 * place needs for its way to the end is counted, so that no branch begins that cannot end.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/grammar_int.h"

#define ENDS 1u   /* the function can be left from here */
#define BEGINS 2u /* each way from here comes to a byte or to the end of the function */
#define GOOD (ENDS | BEGINS)

#define NO_WAY (MP_GRAMMAR_DEPTH_MAX + 1)

static bool may_be_nothing(uint16_t function)
{
    return function == MP_FN_BLANKS || function == MP_FN_TEXT;
}

/* Of one operation, from what is known of those that it leads to. */
static unsigned look(const struct mp_grammar *g, const uint8_t *known, uint32_t at)
{
    const struct mp_grammar_op op = g->ops[at];
    unsigned callee;

    switch (op.kind) {
    case MP_OP_SET: return (known[at + 1] & ENDS) | BEGINS;
    case MP_OP_SPLIT:
        return ((known[op.a] | known[op.b]) & ENDS) | (known[op.a] & known[op.b] & BEGINS);
    case MP_OP_JUMP: return known[op.a];
    case MP_OP_CALL:
        callee = known[g->functions[op.a]];
        return callee & (known[at + 1] | (may_be_nothing(op.a) ? 0 : BEGINS));
    default: return GOOD;
    }
}

/* What more rounds would find is deeper than a state can go. */
static void look_at_all(const struct mp_grammar *g, uint8_t *known)
{
    bool changed = true;

    for (unsigned round = 0; changed && round < MP_GRAMMAR_DEPTH_MAX; round++) {
        changed = false;
        for (uint32_t at = g->op_count; at-- > 0;) {
            const unsigned found = look(g, known, at);

            changed = changed || found != known[at];
            known[at] = (uint8_t)found;
        }
    }
}

void mp_grammar_check_ends(struct mp_grammar *g)
{
    uint8_t *known;
    unsigned all;

    if (g->status != MP_OK)
        return;
    known = calloc(g->op_count, 1);
    if (known == NULL) {
        g->status = mp_fail_no_memory("a schema", g->op_count);
        return;
    }
    look_at_all(g, known);
    all = known[g->start];
    for (uint32_t f = 0; f < g->function_count; f++)
        all &= known[g->functions[f]];
    free(known);
    if ((all & BEGINS) == 0)
        mp_grammar_refuse(g, "a value begins with itself, or is too deep, by", "$ref");
    else if ((all & ENDS) == 0)
        mp_grammar_refuse(g, "a value holds itself without an end, or is too deep, by", "$ref");
}

static uint16_t frames_of(const struct mp_grammar *g, uint32_t at)
{
    const struct mp_grammar_op op = g->ops[at];
    uint16_t most, callee;

    switch (op.kind) {
    case MP_OP_SET: return g->ops[at + 1].frames;
    case MP_OP_SPLIT:
        return g->ops[op.a].frames < g->ops[op.b].frames ? g->ops[op.a].frames
                                                         : g->ops[op.b].frames;
    case MP_OP_JUMP: return g->ops[op.a].frames;
    case MP_OP_CALL:
        callee = (uint16_t)(g->ops[g->functions[op.a]].frames + 1);
        most = callee > g->ops[at + 1].frames ? callee : g->ops[at + 1].frames;
        return most < NO_WAY ? most : NO_WAY;
    default: return 0;
    }
}

/* The least solution, from above: each round finds ways through one more call. */
void mp_grammar_count_frames(struct mp_grammar *g)
{
    bool changed = g->status == MP_OK;

    for (uint32_t at = 0; at < g->op_count; at++)
        g->ops[at].frames = NO_WAY;
    while (changed) {
        changed = false;
        for (uint32_t at = g->op_count; at-- > 0;) {
            const uint16_t frames = frames_of(g, at);

            changed = changed || frames != g->ops[at].frames;
            g->ops[at].frames = frames;
        }
    }
    if (g->status == MP_OK && g->ops[g->start].frames >= NO_WAY)
        mp_grammar_refuse(g, "a value is too deep, by", "$ref");
}
