/*
 * Values of schemas among fixed texts: how calls of tools are written, one or several.
 */
#include <string.h>

#include "engine/text/grammar/grammar_int.h"

static void text(struct mp_grammar *g, const char *of)
{
    if (of != NULL)
        mp_grammar_bytes(g, of, strlen(of));
}

static void part(struct mp_grammar_making *m, const struct mp_grammar_part *p)
{
    if (p->text != NULL)
        text(m->g, p->text);
    else if (p->schema != NULL)
        mp_grammar_value(m, p->schema);
    else
        (void)mp_grammar_emit(m->g, MP_OP_CALL, MP_FN_TEXT, 0);
}

static void choice(struct mp_grammar_making *m, const struct mp_grammar_choice *c)
{
    struct mp_grammar *g = m->g;
    unsigned left = 0; /* of the parts that may be left out together */
    uint16_t split = 0;

    for (size_t i = 0; i < c->count; i++) {
        if (c->parts[i].optional > 0) {
            left = c->parts[i].optional;
            split = mp_grammar_emit(g, MP_OP_SPLIT, mp_grammar_at(g) + 1u, 0);
        }
        part(m, &c->parts[i]);
        if (left > 0 && --left == 0)
            mp_grammar_set_b(g, split, mp_grammar_at(g));
    }
}

static void one_of(struct mp_grammar_making *m, const struct mp_grammar_choice *choices,
                   size_t count)
{
    struct mp_grammar *g = m->g;
    uint16_t ends[MP_GRAMMAR_CHOICES_MAX];

    for (size_t i = 0; i < count; i++) {
        const uint16_t split = mp_grammar_at(g);

        if (i + 1 < count)
            (void)mp_grammar_emit(g, MP_OP_SPLIT, split + 1u, 0);
        choice(m, &choices[i]);
        ends[i] = mp_grammar_emit(g, MP_OP_JUMP, 0, 0);
        if (i + 1 < count)
            mp_grammar_set_b(g, split, mp_grammar_at(g));
    }
    for (size_t i = 0; i < count; i++)
        mp_grammar_set_a(g, ends[i], mp_grammar_at(g));
}

enum mp_status mp_grammar_create_choices(const struct mp_grammar_frame *frame,
                                         const struct mp_grammar_choice *choices, size_t count,
                                         struct mp_grammar **grammar_p)
{
    struct mp_grammar_making m;
    struct mp_grammar *g = NULL;
    enum mp_status status = mp_grammar_open(frame->of, &g);
    uint16_t begin, split;

    if (status != MP_OK)
        return status;
    mp_grammar_making_begin(g, &m);
    g->start = mp_grammar_at(g);
    text(g, frame->before[0]);
    text(g, frame->before[1]);
    begin = mp_grammar_at(g);
    one_of(&m, choices, count < MP_GRAMMAR_CHOICES_MAX ? count : MP_GRAMMAR_CHOICES_MAX);
    if (frame->next != NULL) {
        split = mp_grammar_emit(g, MP_OP_SPLIT, mp_grammar_at(g) + 1u, 0);
        text(g, frame->next);
        (void)mp_grammar_emit(g, MP_OP_JUMP, begin, 0);
        mp_grammar_set_b(g, split, mp_grammar_at(g));
    }
    text(g, frame->close);
    (void)mp_grammar_emit(g, MP_OP_RETURN, 0, 0);
    mp_grammar_making_end(&m);
    return mp_grammar_finish(g, grammar_p);
}
