#ifndef MP_REPACK_INT_H
#define MP_REPACK_INT_H

#include "engine/repack/repack.h"
#include "engine/model/weights.h"
#include "policy/policy.h"

/* Private to engine/repack: the plan of what is written where, shared by the repack_*.c files. */
#define MP_REPACK_BUFFER_BYTES (8u << 20)

/* What an item has of its source: the bytes, or, of weights that become MXFP4, a part. */
enum mp_repack_form { MP_REPACK_COPY, MP_REPACK_NIBBLES, MP_REPACK_SCALES };

/* A tensor of the new files. */
struct mp_repack_item {
    const char *name;
    enum mp_dtype dtype;
    uint32_t dims;
    uint64_t shape[MP_ST_DIMS_MAX];
    uint32_t file; /* source of its bytes; UINT32_MAX: zeros */
    uint64_t
        source_bytes; /* offset in that file; of an expert's piece, where its first bytes lie */
    uint32_t expert;  /* number of its expert; UINT32_MAX: none */
    uint32_t piece;   /* enum of engine/model/weights.h */
    uint32_t first, channels;
    enum mp_repack_form form;
    enum mp_wtype from; /* of the source, if `form` is not a copy */
    uint64_t bytes;
    uint64_t offset_bytes; /* from the start of the new file's data */
    uint64_t sum;          /* of its bytes, once they were copied */
};

struct mp_repack_shard {
    char name[64], part[72]; /* final and temporary */
    size_t first, count;     /* items */
    uint64_t data_bytes;
    char *header; /* 8 bytes of length, JSON, spaces up to a multiple of MP_REPACK_ALIGN */
    uint64_t header_bytes;
    uint64_t sum;    /* over the sums of its items */
    bool sums_known; /* the sums of its items are known: it was copied by this run */
    bool whole;      /* written and verified, by this run or an earlier one */
    bool in_place;   /* has its final name */
};

struct mp_repack_plan {
    const struct mp_checkpoint *checkpoint;
    struct mp_weights *weights;
    struct mp_ffn_slices slices; /* of the new files */
    uint32_t hidden;
    struct mp_repack_item *items;
    size_t item_count, item_capacity;
    size_t expert_items; /* number of items, at the beginning, that belong to experts */
    uint32_t pad_count;
    char *names; /* made here rather than taken from the model, name_bytes each */
    size_t name_bytes, name_count;
    void *block; /* of items and names */
    struct mp_repack_shard *shards;
    uint32_t shard_count;
    uint64_t
        fingerprint; /* of layout and source; a manifest with another one belongs to another plan */
    struct mp_repack_report report;
};

/* Make the whole layout, without reading weights. The caller releases the plan, also after a
 * failure. */
enum mp_status mp_repack_plan_make(struct mp_repack_plan *plan, const struct mp_model_config *model,
                                   const struct mp_repack_config *config) MP_MUST_CHECK;
void mp_repack_plan_fini(struct mp_repack_plan *plan);

/* Cut the items, whose sizes have a sum, into files of at most so many bytes: offsets, names and
 * headers of all. */
enum mp_status mp_repack_cut(struct mp_repack_plan *plan, uint64_t shard_bytes) MP_MUST_CHECK;

/*
 * A 64-bit checksum: any single changed word changes it, and collisions are as unlikely as with any
 * 64-bit hash. It protects against accidents, not attacks.
 */
struct mp_repack_sum {
    uint64_t parts[4];
    uint64_t bytes;
};

void mp_repack_sum_begin(struct mp_repack_sum *sum);
/* Every call but the last has a multiple of 32 bytes. */
void mp_repack_sum_add(struct mp_repack_sum *sum, const void *data, size_t bytes);
uint64_t mp_repack_sum_end(const struct mp_repack_sum *sum);

/* Bytes of one file that were read ahead. */
struct mp_repack_line {
    uint32_t file;
    uint64_t offset, bytes;
};

/* The target and the progress of the work. */
struct mp_repack_job {
    const struct mp_repack_config *config;
    struct mp_repack_plan *plan;
    int out_fd;
    void *buffer; /* MP_REPACK_BUFFER_BYTES */
    char *cache;  /* MP_REPACK_BUFFER_BYTES: one line for each slice that an expert has now */
    struct mp_repack_line lines[MP_SLICES_MAX];
    uint64_t done_bytes, total_bytes;
    bool claimed; /* the manifest of this plan is in the target */
};

/* Read bytes [at, at + bytes) of the item from the model's files. */
enum mp_status mp_repack_read(struct mp_repack_job *job, const struct mp_repack_item *item,
                              uint64_t at, uint64_t bytes, void *dst) MP_MUST_CHECK;

/* repack_mxfp4.c: MP_ERR_MODEL E_UNSUPPORTED if the experts cannot become MXFP4; their items; bytes
 * [at, at + bytes) of one. MP_ERR_MODEL E_CONVERT_VALUE: a weight is no finite number. */
enum mp_status mp_repack_mxfp4_check(const struct mp_repack_plan *plan,
                                     const struct mp_model_config *model) MP_MUST_CHECK;
void mp_repack_mxfp4_list(struct mp_repack_plan *plan, const struct mp_model_config *model);
enum mp_status mp_repack_mxfp4_read(struct mp_repack_job *job, const struct mp_repack_item *item,
                                    uint64_t at, uint64_t bytes, char *dst) MP_MUST_CHECK;

/* Write the shard's .part file and read it back. After a failure the file is gone. */
enum mp_status mp_repack_shard_write(struct mp_repack_job *job,
                                     struct mp_repack_shard *shard) MP_MUST_CHECK;

/* Read the file `name` in the target and compare header and the shard's sum. MP_ERR_IO, or
 * MP_ERR_IO E_REPACK_VERIFY. */
enum mp_status mp_repack_shard_verify(struct mp_repack_job *job, struct mp_repack_shard *shard,
                                      const char *name) MP_MUST_CHECK;

/*
 * The manifest lists complete shards and their sums. Reading verifies them, under either name, and
 * marks the correct ones `whole`; the others are written again. No manifest is MP_OK with *found_p
 * false, and so is one of another plan if `force` is set; else that is E_REPACK_TARGET.
 */
enum mp_status mp_repack_manifest_read(struct mp_repack_job *job, bool *found_p) MP_MUST_CHECK;
enum mp_status mp_repack_manifest_write(const struct mp_repack_job *job) MP_MUST_CHECK;
enum mp_status mp_repack_index_write(const struct mp_repack_job *job) MP_MUST_CHECK;

/* Name of the configuration file of a model with sliced or whole experts. */
const char *mp_repack_config_name(bool sliced);

/* Copy the files that are not weights; counted in report.files_copied. */
enum mp_status mp_repack_copy_files(struct mp_repack_job *job) MP_MUST_CHECK;
/* Bytes of those files. */
enum mp_status mp_repack_copy_bytes(struct mp_repack_job *job, uint64_t *bytes_p) MP_MUST_CHECK;

/* E_REPACK_WRITE with errno. */
enum mp_status mp_repack_fail_write(const struct mp_repack_job *job, const char *what,
                                    const char *name, int error_number);

#endif
