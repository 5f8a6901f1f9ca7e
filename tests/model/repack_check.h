#ifndef MP_TEST_REPACK_CHECK_H
#define MP_TEST_REPACK_CHECK_H

#include <stdbool.h>

#include "engine/repack/repack.h"
#include "engine/model/weights.h"

/* What the tests of engine/repack/repack.h say about directories; every one ends the test if it
 * fails. */

/* A configuration with the default size of files. */
struct mp_repack_config repack_config(const char *model, const char *out);

/* Repack; it must succeed. */
struct mp_repack_report repack_must(const struct mp_repack_config *config);

/* A directory opened as the engine does, without reading weights. */
struct opened {
    struct mp_checkpoint *checkpoint;
    struct mp_model_config model;
    struct mp_weights *weights;
};

void open_model(const char *dir, struct opened *opened);
void close_model(struct opened *opened);

/*
 * `out` holds the same units as `model` byte for byte, and the same other tensors under the same
 * names with the same types and shapes; every expert is one aligned run of its file; every tensor
 * is aligned to its element; nothing else is in it but padding of zeros.
 */
void check_repacked(const char *model, const char *out);

/* Both directories have the same names, and equal bytes under each. */
void check_same_dirs(const char *a, const char *b);

bool dir_has(const char *dir, const char *name);
/* Entries, without "." and "..". */
unsigned dir_count(const char *dir);

/*
 * Write the tensors of `model` into one file in `out`, all gates before all ups before all downs
 * before the rest, without alignment: what the writer of a model may do, and the worst for a pager.
 */
void write_scattered(const char *model, const char *out);

#endif
