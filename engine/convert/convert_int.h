#ifndef MP_CONVERT_INT_H
#define MP_CONVERT_INT_H

#include <stdio.h>

#include "engine/convert/convert.h"
#include "engine/model/arch/arch.h"
#include "engine/model/form.h"
#include "engine/model/weights.h"
#include "vmm/format/gguf.h"
#include "vmm/format/json.h"

/* Private to engine/convert. */

#define MP_CONVERT_NAME_BYTES 128

/*
 * A tensor of the new file: matrices, one behind the other, of all experts or heads. Where a row of
 * it stands in a matrix of the source is said by `form` and `by_keys`; element (row, col) of that
 * order is row * row_step + col * col_step numbers behind the first one.
 */
struct mp_convert_tensor {
    char name[MP_CONVERT_NAME_BYTES];
    uint32_t dims;
    uint64_t shape[MP_GGUF_DIMS_MAX]; /* elements of a row last */
    uint64_t rows, cols;
    enum mp_wtype from, to;
    /* Of one matrix; matrix_rows 0 when it is added to the plan: they are as in the new file. */
    uint64_t matrix_rows, matrix_step, row_step, col_step;
    /* Of the first number: of one tensor, or behind the beginning of each expert's piece. */
    uint32_t file;
    uint64_t source_bytes;
    uint32_t experts, first_unit, piece, pieces; /* 0 experts: it is one tensor of the source; else
                                                    so many pieces of each, from this one on */
    /* MXFP4 whose nibbles are `piece` and whose scales the next one: row * row_step + apart_row */
    bool apart;
    uint32_t apart_row;
    const float *made;            /* the numbers, if they are not the source's */
    bool by_keys;                 /* rows of delta networks, by heads of keys in the source, */
    uint64_t first_row;           /* from this one of the order of GGUF files on */
    struct mp_role_form form;     /* of the new file; head_rows 0 if the source is so, too */
    bool exponent;                /* x becomes -exp(x) */
    float offset;                 /* added to each number */
    uint64_t offset_bytes, bytes; /* in the data of the new file */
};

/* Which type a tensor gets. */
struct mp_recipe {
    const char *name;
    uint32_t file_type;  /* general.file_type, as other programs number them */
    enum mp_wtype base;  /* of matrices */
    enum mp_wtype most;  /* of those that get more bits: of some layers' down and v, of the head */
    bool mixed;          /* there are such layers */
    enum mp_wtype dense; /* of matrices that are not experts */
};

/* NULL: there is none of this name. */
const struct mp_recipe *mp_recipe_find(const char *name);

/* The type of a matrix of that name in GGUF files. */
enum mp_wtype mp_recipe_type(const struct mp_recipe *recipe, const struct mp_model_config *model,
                             const struct mp_convert_tensor *tensor);

struct mp_imatrix;

/* Importance of columns, from a file of either form. MP_ERR_MODEL E_IMATRIX. */
enum mp_status mp_imatrix_open(const char *path, struct mp_imatrix **imatrix_p) MP_MUST_CHECK;
void mp_imatrix_close(struct mp_imatrix *imatrix);

/*
 * The importance of the tensor's columns, (experts, cols) or (cols), as a new list; NULL: the file
 * has none. MP_ERR_MODEL E_IMATRIX: other sizes, or numbers that are negative or not finite.
 */
enum mp_status mp_imatrix_read(const struct mp_imatrix *imatrix,
                               const struct mp_convert_tensor *tensor,
                               float **weights_p) MP_MUST_CHECK;

/* The ids of a vocabulary, as many as the embedding has rows. */
struct mp_convert_pieces {
    uint32_t count;
    bool *added; /* [count]: outside of the model's own vocabulary */
};

/*
 * The scores (count) with which SentencePiece merges as this accepted tokenizer.json says, one
 * lower for each piece in the order of its merges. MP_ERR_MODEL E_TOK_PATTERN: no scores do.
 */
enum mp_status mp_convert_scores(const json_t *root, const struct mp_convert_pieces *pieces,
                                 float *scores) MP_MUST_CHECK;

struct mp_convert {
    const struct mp_convert_config *config;
    const struct mp_recipe *recipe;
    struct mp_checkpoint *checkpoint;
    struct mp_model_config model;
    struct mp_weights *weights;       /* of a directory, described only */
    const struct mp_arch *target;     /* the family's names in GGUF files */
    struct mp_model_config as_target; /* the model as such files have it */
    /* Of frequencies, if they are written: one list, or for short and for long contexts. */
    float divisors[2][MP_ROPE_FACTORS_MAX];
    struct mp_convert_tensor *tensors;
    size_t count, capacity;
    struct mp_imatrix *imatrix;
    uint64_t data_bytes;
    struct mp_convert_report report;
    double squares, errors; /* of weights that lost bits */
};

/* The list of tensors with types and places. */
enum mp_status mp_convert_plan(struct mp_convert *job) MP_MUST_CHECK;

/* What the family is called in GGUF files. MP_ERR_MODEL E_UNSUPPORTED: nothing. */
enum mp_status mp_convert_target(const struct mp_model_config *model,
                                 const struct mp_arch **target_p) MP_MUST_CHECK;

/* Entries of metadata as they are written, and how many. */
struct mp_gguf_out {
    FILE *file;
    uint64_t count;
};

void mp_gguf_put(FILE *file, uint64_t value, unsigned bytes);
void mp_gguf_put_text(FILE *file, const char *text, size_t bytes);
void mp_gguf_put_u32(struct mp_gguf_out *out, const char *key, uint32_t value);
void mp_gguf_put_f32(struct mp_gguf_out *out, const char *key, float value);
void mp_gguf_put_bool(struct mp_gguf_out *out, const char *key, bool value);
void mp_gguf_put_string(struct mp_gguf_out *out, const char *key, const char *text);
void mp_gguf_put_array(struct mp_gguf_out *out, const char *key, enum mp_gguf_kind element,
                       uint64_t count);
void mp_gguf_put_entry(struct mp_gguf_out *out, const struct mp_gguf_entry *entry);

/* What the configuration of a directory says. */
void mp_convert_numbers(const struct mp_convert *job, struct mp_gguf_out *out);

/* All of a model's metadata; that of a GGUF file as it is but for types and alignment. */
enum mp_status mp_convert_entries(const struct mp_convert *job,
                                  struct mp_gguf_out *out) MP_MUST_CHECK;

/* Vocabulary, merges and chat template of a directory; a model without a tokenizer is MP_OK. */
enum mp_status mp_convert_tokenizer(const struct mp_convert *job,
                                    struct mp_gguf_out *out) MP_MUST_CHECK;

/* The whole header, up to where data begins. Free *text_p. */
enum mp_status mp_convert_header(const struct mp_convert *job, char **text_p,
                                 size_t *bytes_p) MP_MUST_CHECK;

/* Are positions divided alike in contexts of any length, and not multiplied? */
bool mp_rope_is_one(const struct mp_rope *rope);

/* Are the model's divisors written as two lists? */
bool mp_convert_two_lists(const struct mp_convert *job);

/* Open the new file, whose header and size are there, as a model: MP_ERR_MODEL E_UNSUPPORTED if it
 * is not the source's. */
enum mp_status mp_convert_check(const struct mp_convert *job, const char *path) MP_MUST_CHECK;

/* Read, convert and write the data of all tensors, in order; write errors are kept by `file`. */
enum mp_status mp_convert_data(struct mp_convert *job, FILE *file) MP_MUST_CHECK;

#endif
