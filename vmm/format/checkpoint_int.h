#ifndef MP_FORMAT_CHECKPOINT_INT_H
#define MP_FORMAT_CHECKPOINT_INT_H

#include "vmm/format/checkpoint.h"
#include "vmm/format/gguf.h"
#include "vmm/format/json.h"

/* Private to vmm/format/checkpoint.h: shared by checkpoint.c, ckpt_gguf.c, ckpt_index.c and
 * ckpt_values.c. */
#define MP_CKPT_TENSORS_MAX (1u << 20)
#define MP_CKPT_SHARDS_MAX 65536u
#define MP_CKPT_INDEX_BYTES_MAX (128u << 20)

struct mp_checkpoint {
    int dir_fd;                /* -1: a GGUF file */
    struct mp_gguf *gguf;      /* NULL: a directory */
    struct mp_files *files;    /* of `gguf` where there is one */
    struct mp_tensor *tensors; /* sorted by name once all files are read */
    size_t count;
    char **names; /* one block per file; the tensors' names lie in them */
    size_t names_count;
    uint64_t bytes;
    char warning[512];
};

/* Open `name` in the directory, read its header and append its tensors. */
enum mp_status mp_checkpoint_add_file(struct mp_checkpoint *checkpoint,
                                      const char *name) MP_MUST_CHECK;

/* Open the GGUF file, or all parts of it, and take over its tensors, sorted. */
enum mp_status mp_checkpoint_add_gguf(struct mp_checkpoint *checkpoint,
                                      const char *path) MP_MUST_CHECK;

/* Add every file that the index lists, once each, in the order of their names. */
enum mp_status mp_checkpoint_add_shards(struct mp_checkpoint *checkpoint, const json_t *index,
                                        const char *name) MP_MUST_CHECK;

/* Check that every tensor is in the file that the index names. Needs the tensors sorted. */
enum mp_status mp_checkpoint_check_index(struct mp_checkpoint *checkpoint, const json_t *index,
                                         const char *name) MP_MUST_CHECK;

#endif
