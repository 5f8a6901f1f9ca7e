#ifndef MP_CONVERT_H
#define MP_CONVERT_H

#include "engine/pool/pool.h"
#include "vmm/format/checkpoint.h"

/*
 * Writes a model as one GGUF file with weights of another type, that llama.cpp reads and this
 * engine: a directory of a family that has a name there, or a GGUF file whose weights are plain
 * numbers. docs/repack.md describes what is written.
 *
 * Tensors have the order of rows, columns and numbers that files of the family have (the inverse of
 * what engine/model reads). Experts of a layer lie one behind the other in three tensors, or gate
 * and up in one where published files are so; every tensor begins at a multiple of MP_CONVERT_ALIGN
 * bytes. Matrices get the type of the recipe, norms, biases and routers are 32-bit floats; experts
 * in MXFP4 whose nibbles are apart from their scales stay MXFP4. A directory's tokenizer and chat
 * template are written along.
 *
 * The header is written first and opened as a model: one whose configuration would not be the
 * source's is refused before any weight is read. The file gets its name when it is whole.
 *
 * Memory: 8 MiB twice, a row of floats for each thread, tables of 400 bytes per tensor. Blocks.
 */
#define MP_CONVERT_ALIGN 4096u

struct mp_convert_config {
    const char *model;   /* a directory or a GGUF file */
    const char *out;     /* the new file */
    const char *type;    /* of mp_convert_types() */
    const char *imatrix; /* importance of columns, as llama-imatrix writes it; NULL: all alike */
    bool force;          /* replace a file that is there */
    struct mp_pool *pool;
    const struct mp_progress *progress; /* or NULL; false from it: MP_ERR_CANCELED */
};

struct mp_convert_report {
    uint64_t tensors, quantised; /* all; those that lost bits */
    uint64_t source_bytes, bytes;
    uint64_t weighed; /* tensors that the importance matrix had weights for */
    double error;     /* root of the mean squared difference of those that lost bits, relative to
                         the root of their mean square */
};

/* "f32, f16, ..., q4_k_m": all recipes; returns out. */
#define MP_CONVERT_TYPES_BYTES 256
const char *mp_convert_types(char out[MP_CONVERT_TYPES_BYTES]);

/*
 * MP_ERR_CONFIG: E_USAGE for an unknown type, E_REPACK_TARGET if `out` is a file of the model, a
 * directory, or is there and `force` is not given. MP_ERR_MODEL: E_UNSUPPORTED if GGUF cannot say
 * what the model is, or its weights are quantised already; E_CONVERT_VALUE for a weight that is no
 * finite number; E_IMATRIX; those of opening models and tokenizers. MP_ERR_IO: E_REPACK_SPACE, and
 * those of reading and writing. After a failure `out` is as it was before.
 */
enum mp_status mp_convert(const struct mp_convert_config *config,
                          struct mp_convert_report *report_p) MP_MUST_CHECK;

#endif
