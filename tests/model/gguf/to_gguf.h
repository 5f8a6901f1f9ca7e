#ifndef MP_TESTS_TO_GGUF_H
#define MP_TESTS_TO_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/types.h"

/*
 * A model directory written once more as a GGUF file, as converters do it: experts of a layer
 * stacked, norms, biases and routers widened to F32, rows of queries and keys side by side where
 * the family rotates neighbours. Failures end the test.
 */
struct gguf_change {
    const char *key; /* replaced, or added if the file has none such; NULL: nothing */
    int kind;        /* of enum mp_gguf_kind: U32, F32, BOOL or STRING; -1: the key is left out */
    double number;
    const char *text;
};

struct to_gguf {
    const char *model; /* directory */
    const char *arch;  /* "qwen3moe" */
    const char *path;  /* NAME.gguf; with parts NAME-00001-of-00003.gguf and so on are written */
    uint32_t version;  /* of the format; 0: the newest */
    uint32_t align_bytes;
    uint32_t parts;     /* 1: the file is whole */
    const char *pre;    /* with the tokenizer of the directory, and this pre-tokenizer; NULL: ids */
    const char *chat;   /* NULL: none */
    bool whole_latent;  /* latent attention and delta networks as older files have them */
    bool latent_blocks; /* the two parts of it in Q8_0, of a model in F32 */
    bool fused;         /* gate and up of all experts in one tensor */
    const float *divisors; /* of frequencies; NULL: none */
    /* Names of the tensors that have them, up to three; NULLs: "rope_freqs.weight" alone. */
    const char *lists[3];
    /* The type that a matrix in F32 is rounded to, by its name and columns, in the order of the
     * file; routers and biases are not asked for. With as_floats the numbers so rounded stay in
     * F32. NULL: matrices are as they are. */
    enum mp_wtype (*type_of)(const char *name, uint64_t cols);
    bool as_floats;
    const char *leave;  /* a tensor that is left out; NULL: none */
    const char *retype; /* a tensor that says that it is of type `type`; NULL: none */
    uint32_t type;
    struct gguf_change change;
};

void to_gguf(const struct to_gguf *job);

#endif
