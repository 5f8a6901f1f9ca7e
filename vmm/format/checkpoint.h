#ifndef MP_FORMAT_CHECKPOINT_H
#define MP_FORMAT_CHECKPOINT_H

#include "vmm/format/safetensors.h"
#include "vmm/io/file.h"

/*
 * The tensors of a model directory or GGUF file: where each lies, in which type and shape.
 *
 * A directory holds model.safetensors, or model.safetensors.index.json with the shards that it
 * lists (both: the single file wins, as in the transformers library). All files are opened once,
 * relative to the directory, and stay open until close. Headers are read and checked completely;
 * data is not read.
 *
 * The path may also name a GGUF file, or a part of a split one. Its tensors keep their names; the
 * order of their dimensions is reversed, so that the contiguous one is last as everywhere here.
 *
 * Shard names in the index must be plain file names: no slash, not "." or "..", no control
 * characters; the index is data from elsewhere and chooses no path. A file of the directory may
 * itself be a symbolic link, because the cache of the Hugging Face hub consists of links to
 * ../../blobs; whoever passes a directory vouches for the links in it.
 *
 * Thread safety: open and close need exclusive access; all other functions may run in parallel.
 */
struct mp_checkpoint;
struct mp_gguf;

/* Where one tensor lies. `st.offset_bytes` counts from the start of file number `file`. */
struct mp_tensor {
    struct mp_st_tensor st;
    uint32_t file; /* index in mp_checkpoint_files() */
};

/* Called now and then by long work. Return false to stop it with MP_ERR_CANCELED. */
struct mp_progress {
    bool (*report)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    void *context;
};

/* Open only the model directory, for callers that need no tensors. MP_ERR_MODEL E_CKPT_DIR: it does
 * not exist; MP_ERR_IO E_CKPT_DIR: it cannot be opened. The caller closes *dir_fd_p. */
enum mp_status mp_checkpoint_open_dir(const char *path, int *dir_fd_p) MP_MUST_CHECK;

/*
 * Open the directory or GGUF file `path`. MP_ERR_MODEL with E_CKPT_* or E_ST_*, E_FILE_*, E_JSON_*,
 * E_GGUF_*, E_UNSUPPORTED for tensors of quantised types; MP_ERR_IO; MP_ERR_NO_MEMORY. On failure
 * nothing stays open.
 */
enum mp_status mp_checkpoint_open(const char *path,
                                  struct mp_checkpoint **checkpoint_p) MP_MUST_CHECK;
void mp_checkpoint_close(struct mp_checkpoint *checkpoint);

/* Directory descriptor, for config.json, tokenizer.json and the like; owned by the checkpoint. -1:
 * it is a GGUF file. */
int mp_checkpoint_dir_fd(const struct mp_checkpoint *checkpoint);

/* The GGUF metadata, which replaces those files; NULL: it is a directory. */
const struct mp_gguf *mp_checkpoint_gguf(const struct mp_checkpoint *checkpoint);

/* Owned by the checkpoint; readers and spaces that use it must be destroyed first. */
struct mp_files *mp_checkpoint_files(const struct mp_checkpoint *checkpoint);

size_t mp_checkpoint_count(const struct mp_checkpoint *checkpoint);
const struct mp_tensor *mp_checkpoint_tensor(const struct mp_checkpoint *checkpoint, size_t index);

/* NULL: no tensor has this name. */
const struct mp_tensor *mp_checkpoint_find(const struct mp_checkpoint *checkpoint,
                                           const char *name);

/* Sum of the sizes of all tensors. */
uint64_t mp_checkpoint_bytes(const struct mp_checkpoint *checkpoint);

/* A warning for the user about something that is not an error ("total_size is wrong"), or NULL. */
const char *mp_checkpoint_warning(const struct mp_checkpoint *checkpoint);

/*
 * Read every tensor of a floating-point type and look for NaN and infinity. MP_ERR_MODEL,
 * E_CKPT_VALUE names tensor and element. `progress` may be NULL.
 */
enum mp_status mp_checkpoint_check_values(const struct mp_checkpoint *checkpoint,
                                          const struct mp_progress *progress) MP_MUST_CHECK;

#endif
