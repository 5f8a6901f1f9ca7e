#ifndef MP_TESTS_REWRITE_H
#define MP_TESTS_REWRITE_H

#include "vmm/format/checkpoint.h"

/*
 * A model directory written anew tensor by tensor: under other names, in other types, or with other
 * values. Failures end the test.
 */
struct rewritten {
    char name[200];    /* as the source has it, until changed */
    const char *dtype; /* as the file names it */
    uint32_t dims;
    uint64_t shape[MP_ST_DIMS_MAX];
    void *data; /* allocated; may be replaced by another allocation */
    size_t bytes;
};

/* Write all tensors of `model`, each as `change` leaves it, and the text of `config` (NULL: that of
 * the model) into the new directory `out`. */
void rewrite_model(const char *model, const char *out, const char *config,
                   void (*change)(struct rewritten *tensor));

/* A change of 16-bit floats to F32, by which others compute the same. */
void rewrite_as_f32(struct rewritten *tensor);

#endif
