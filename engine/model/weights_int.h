#ifndef MP_ENGINE_WEIGHTS_INT_H
#define MP_ENGINE_WEIGHTS_INT_H

#include "engine/model/form.h"
#include "engine/model/weights.h"

struct mp_name_numbers;

/*
 * Private to engine/model/weights.h: the plan lists what is read from where to where. The address
 * is stored in `*floats` (elements are converted) or `*data` (bytes are copied), whichever is not
 * NULL.
 */
struct mp_weights_item {
    const struct mp_tensor *tensor;
    uint64_t block_offset; /* of the bytes as they are in the file */
    uint64_t float_offset; /* of converted elements */
    enum mp_wtype type;    /* in the file */
    uint64_t count;        /* elements */
    struct mp_role_form form;
    const float **floats;
    const void **data;
};

/* A run: adjacent tensors of one file, and the disk blocks that contain them. */
struct mp_weights_run {
    uint32_t file;
    uint64_t offset, bytes, need_bytes; /* as in struct mp_extent */
    uint64_t tensor_bytes;
    uint64_t block_offset;
};

struct mp_weights_plan {
    const struct mp_checkpoint *checkpoint;
    const struct mp_model_config *config;
    struct mp_weights *weights; /* views and units are filled in while planning */
    struct mp_weights_item *items;
    size_t item_count, item_capacity;
    bool *used;                  /* per tensor of the checkpoint */
    struct mp_weights_run *runs; // (item_count): how items are read
    size_t run_count;
    uint64_t block_bytes; /* of the weights */
    void *block;          /* of items and used */
};

/* The name of a tensor, of any length that files may have. */
struct mp_tensor_name {
    char text[MP_ST_NAME_BYTES_MAX + 1];
};

/* From a pattern of engine/model/arch/arch.h. MP_ERR_MODEL E_TENSOR_NAME: it is too long. */
enum mp_status mp_weights_name(struct mp_tensor_name *name, const char *pattern,
                               const struct mp_name_numbers *numbers) MP_MUST_CHECK;

struct mp_tensor_need {
    const char *name;
    uint64_t shape[3]; /* the last one: elements of a row */
    uint32_t dims;     /* 1 to 3 */
};

/* Find a tensor that must have this shape and a supported type; it is marked as used. Messages of
 * E_TENSOR_MISSING, E_TENSOR_SHAPE, E_TENSOR_DTYPE name it. */
enum mp_status mp_weights_find(struct mp_weights_plan *plan, const struct mp_tensor_need *need,
                               const struct mp_tensor **tensor_p,
                               enum mp_wtype *type_p) MP_MUST_CHECK;

/* The same for a tensor of bytes, U8, that has this shape of up to 4 dimensions. */
enum mp_status mp_weights_find_bytes(struct mp_weights_plan *plan, const char *name,
                                     const uint64_t *shape, uint32_t dims,
                                     const struct mp_tensor **tensor_p) MP_MUST_CHECK;

/* weights_experts.c: set slices; then, with the tables allocated, the units of one MoE layer. */
enum mp_status mp_weights_count_slices(struct mp_weights_plan *plan) MP_MUST_CHECK;
enum mp_status mp_weights_want_experts(struct mp_weights_plan *plan, uint32_t layer) MP_MUST_CHECK;

/*
 * Find and check every tensor that the configuration requires. Sets everything in `weights` except
 * the addresses. The caller releases the plan, also after a failure.
 */
enum mp_status mp_weights_plan_make(struct mp_weights_plan *plan) MP_MUST_CHECK;
void mp_weights_plan_fini(struct mp_weights_plan *plan);

/* Sort the items by file offset, find the runs, and lay out the block. The last step of planning.
 */
enum mp_status mp_weights_place(struct mp_weights_plan *plan) MP_MUST_CHECK;

/* Allocate the block, read it completely and set every address. plan->weights owns the block, also
 * after a failure. */
enum mp_status mp_weights_read(struct mp_weights_plan *plan, const struct mp_weights_io *io,
                               const struct mp_progress *progress) MP_MUST_CHECK;

#endif
