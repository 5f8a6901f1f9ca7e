#ifndef MP_ENGINE_FORM_H
#define MP_ENGINE_FORM_H

#include "engine/model/roles.h"

/*
 * What is special in the tensor of a role in the files of a family, as against what the engine
 * computes with: the order of rows and columns, and numbers that are written otherwise. The reader
 * puts them in order (weights_plan.c, weights_read.c); engine/convert writes them so.
 */
struct mp_role_form {
    /* Rows of a head, of which those behind the first ones rotate: pairs are neighbours in the
     * file, and half of these rows apart in the engine. 0: the same order. */
    uint32_t head_rows, head_first;
    /* Matrices of this size, one behind the other, are transposed. 0: none. */
    uint32_t turn_rows, turn_cols;
    /* Parts of so many rows, behind the first ones, or of so many columns, take turns: so many for
     * each of tile_keys (mp_form_tile()). 0: none. The engine computes with such rows. */
    uint32_t tiles, tile_keys, tile_first, tile_rows, tile_cols;
    bool exponent; /* the file has x where the engine has -exp(x) */
    float offset;  /* what the engine adds to the file's numbers */
};

/* In files of `arch`, which can be another family than the configuration's. */
struct mp_role_form mp_role_form(const struct mp_model_config *config, const struct mp_arch *arch,
                                 enum mp_role role);

/* Row `row` of a head of the file is which one without neighbours? Both counted from its start. */
static inline uint64_t mp_form_head_row(const struct mp_role_form *form, uint64_t row)
{
    const uint64_t in = row - form->head_first;

    return row < form->head_first
               ? row
               : form->head_first + in / 2 + in % 2 * ((form->head_rows - form->head_first) / 2);
}

/* Part `part` of the file is which one where those of a key stand together? */
static inline uint64_t mp_form_tile(const struct mp_role_form *form, uint64_t part)
{
    return part % form->tile_keys * form->tiles + part / form->tile_keys;
}

#endif
