/*
 * Schemas that lead back to themselves: refuses those whose texts have no end, and those where a
 * value begins with itself. A tree whose branches can stop is neither.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/grammar_int.h"

#define ENDS 1u   /* the function can be left from here */
#define BEGINS 2u /* each way from here comes to a byte or to the end of the function */
#define GOOD (ENDS | BEGINS)

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
        /* Only blanks may be no bytes at all. */
        return callee & (known[at + 1] | (op.a == MP_FN_BLANKS ? 0 : BEGINS));
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
