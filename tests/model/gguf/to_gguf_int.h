#ifndef MP_TESTS_TO_GGUF_INT_H
#define MP_TESTS_TO_GGUF_INT_H

/* The inside of to_gguf.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "engine/model/types.h"
#include "engine/model/weights.h"
#include "tests/model/gguf/to_gguf.h"
#include "tests/support/test.h"

#define PARTS_MAX 4

struct part {
    FILE *entries, *tensors, *data;
    char *texts[3];
    size_t bytes[3];
    uint64_t entry_count, tensor_count;
};

/* A matrix whose numbers are rounded when all of them are there. */
struct rounded {
    struct part *part; /* NULL: none */
    FILE *floats;
    char *text;
    size_t bytes, cols;
    enum mp_wtype type;
};

struct writer {
    const struct to_gguf *job;
    struct rounded rounded;
    struct part parts[PARTS_MAX];
    uint32_t tensors; /* so far */
    bool changed;
    const struct mp_arch *arch; /* of the file */
    struct mp_checkpoint *checkpoint;
    struct mp_model_config config;
    struct mp_weights *weights;
};

static inline void put(FILE *file, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        fputc((int)(value >> 8 * i & 0xff), file);
}

static inline void put_text(FILE *file, const char *text, size_t bytes)
{
    put(file, bytes, 8);
    CHECK_EQ(fwrite(text, 1, bytes, file), bytes);
}

/* Begin the next tensor; the shape's rows come last, as in the engine. Where its data go. */
FILE *to_gguf_begin(struct writer *w, const char *name, enum mp_wtype type, const uint64_t *shape,
                    uint32_t dims);

/* What a gated delta network has. */
void to_gguf_delta(struct writer *w, uint32_t layer);

/* All tensors. */
void to_gguf_tensors(struct writer *w);

#endif
