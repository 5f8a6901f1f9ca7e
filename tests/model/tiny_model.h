#ifndef MP_TEST_TINY_MODEL_H
#define MP_TEST_TINY_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Model directories of a few hundred bytes, written tensor by tensor, so that a test can leave one
 * out, change one, or spread them over shards.
 *
 * Sizes: vocabulary 6, hidden 8, 2 layers, 2 heads of 4, 1 key head, 3 experts of 5 channels.
 * Element i of tensor number t has the value t + i / 64, which BF16 and F16 hold exactly for the
 * sizes here as far as the tests look at it.
 */
enum tiny_form {
    TINY_MIXTRAL,
    TINY_QWEN2,
    TINY_QWEN3,
    TINY_MIXTRAL_FUSED, /* as library version 5 keeps experts */
    TINY_QWEN3_FUSED
};

struct tiny_tensor {
    char name[96];
    const char *dtype; /* "F32", "BF16", "F16", or a one-byte type */
    uint32_t dims;
    uint64_t shape[4];
    double first; /* value of element 0 */
};

struct tiny_model {
    struct tiny_tensor tensors[64];
    size_t count;
};

/* All tensors of one form, in float32. */
void tiny_model_make(struct tiny_model *model, enum tiny_form form);

/* The tensor called `name`; ends the test if there is none. */
struct tiny_tensor *tiny_model_find(struct tiny_model *model, const char *name);

/* Write a file as text; ends the test on failure. */
void tiny_write_text(const char *dir, const char *name, const char *text);

/* Write config.json of this form. */
void tiny_write_config(const char *dir, enum tiny_form form);

/* Write tensors [begin, end) as one safetensors file with `pad` spaces behind the header. */
void tiny_write_shard(const char *dir, const char *name, const struct tiny_model *model,
                      size_t begin, size_t end, unsigned pad);

/* Element i of a tensor, as the tests expect it. */
double tiny_value(const struct tiny_tensor *tensor, uint64_t i);

#endif
