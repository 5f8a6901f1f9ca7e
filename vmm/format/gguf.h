#ifndef MP_FORMAT_GGUF_H
#define MP_FORMAT_GGUF_H

#include "vmm/base/error.h"
#include "vmm/format/gguf_types.h"
#include "vmm/io/file.h"

/*
 * GGUF files, versions 2 and 3, little-endian: metadata and the location of each tensor. Headers
 * are read and checked completely; data is not read.
 *
 * mp_gguf_parse() is a pure function on the first bytes of one file; mp_gguf_open() opens a file,
 * or all parts of a split one (name-00001-of-00005.gguf, whichever part is named). In an accepted
 * file no key and no tensor occurs twice, and every tensor is aligned, inside its file, disjoint
 * from all others, and as large as type and shape require. Anything else is MP_ERR_MODEL with a
 * code
 *
 *     E_GGUF_MAGIC E_GGUF_VERSION E_GGUF_SHORT E_GGUF_COUNT E_GGUF_NAME E_GGUF_VALUE E_GGUF_ALIGN
 *     E_GGUF_TYPE E_GGUF_SHAPE E_GGUF_OFFSET E_GGUF_END E_GGUF_OVERLAP E_GGUF_DUP E_GGUF_SPLIT
 *     E_GGUF_KEY
 *
 * Stricter than ggml: offsets need not be in order, but overlap is refused, as are bools other
 * than 0 and 1. Less strict: arrays of arrays, holes between tensors, bytes behind the last.
 *
 * Thread safety: open, parse, close and fini need exclusive access; all others may run in parallel.
 */
#define MP_GGUF_HEADER_BYTES_MAX (256u << 20)
#define MP_GGUF_ENTRIES_MAX 65536u
#define MP_GGUF_TENSORS_MAX 131072u
#define MP_GGUF_KEY_BYTES_MAX 65535u
#define MP_GGUF_NAME_BYTES_MAX 1024u
#define MP_GGUF_STRING_BYTES_MAX (64u << 20)
#define MP_GGUF_ALIGN_MAX (1u << 20)
#define MP_GGUF_DEPTH_MAX 4u /* arrays in arrays */
#define MP_GGUF_DIMS_MAX 4u
#define MP_GGUF_PARTS_MAX 4096u

/* Types of metadata, by their numbers in files. */
enum mp_gguf_kind {
    MP_GGUF_U8,
    MP_GGUF_I8,
    MP_GGUF_U16,
    MP_GGUF_I16,
    MP_GGUF_U32,
    MP_GGUF_I32,
    MP_GGUF_F32,
    MP_GGUF_BOOL,
    MP_GGUF_STRING,
    MP_GGUF_ARRAY,
    MP_GGUF_U64,
    MP_GGUF_I64,
    MP_GGUF_F64,
    MP_GGUF_KIND_COUNT
};

/* A value; its bytes lie in the header that was parsed. */
struct mp_gguf_value {
    enum mp_gguf_kind kind;
    enum mp_gguf_kind element; /* of an array */
    uint64_t count;            /* elements of an array, bytes of a string, else 1 */
    const unsigned char *data; /* of the number, the first element or the text (without NUL) */
};

struct mp_gguf_entry {
    const char *key; /* without NUL inside */
    struct mp_gguf_value value;
};

struct mp_gguf_tensor {
    const char *name; /* without NUL inside */
    const struct mp_gguf_type *type;
    uint32_t dims;
    uint64_t shape[MP_GGUF_DIMS_MAX]; /* the first one is contiguous; 1 from `dims` on */
    uint64_t offset_bytes;            /* from the start of the file */
    uint64_t bytes;
    uint32_t file; /* index in mp_gguf_files(); 0 from mp_gguf_parse() */
};

/* One file. Entries and tensors are sorted by key and name; `block` holds both. */
struct mp_gguf_part {
    struct mp_gguf_entry *entries;
    struct mp_gguf_tensor *tensors;
    size_t entry_count, tensor_count;
    uint32_t version, align_bytes;
    uint64_t data_begin; /* byte in the file */
    void *block;
};

/*
 * Parse the first `head_bytes` bytes of a file of `file_bytes` bytes. Values point into `head`,
 * which must live as long as the part; names are copies. *more_p: the header does not end within
 * them: call again with more bytes. On failure, and if *more_p, *part is zeroed. `name` is the file
 * as messages show it. MP_ERR_MODEL as above; MP_ERR_NO_MEMORY.
 */
enum mp_status mp_gguf_parse(const void *head, uint64_t head_bytes, uint64_t file_bytes,
                             const char *name, struct mp_gguf_part *part,
                             bool *more_p) MP_MUST_CHECK;

/* Accepts a zeroed part. */
void mp_gguf_part_fini(struct mp_gguf_part *part);

struct mp_gguf;

/*
 * True if the path names a GGUF file: by its suffix, or, as files in caches have none, by its first
 * bytes. Never true for a directory. True for a file that cannot be read, so that mp_gguf_open()
 * says why.
 */
bool mp_gguf_is_file(const char *path) MP_MUST_CHECK;

/*
 * Open the file `path` and the parts that belong to it. MP_ERR_MODEL with E_GGUF_*, or E_FILE_LFS
 * and the like for a file that is not a model; MP_ERR_IO; MP_ERR_NO_MEMORY. On failure nothing
 * stays open.
 */
enum mp_status mp_gguf_open(const char *path, struct mp_gguf **gguf_p) MP_MUST_CHECK;
void mp_gguf_close(struct mp_gguf *gguf);

/* Owned by `gguf`; one file per part, in their order. */
struct mp_files *mp_gguf_files(const struct mp_gguf *gguf);

/* Tensors of all parts, sorted by name. find: NULL if there is none. */
size_t mp_gguf_count(const struct mp_gguf *gguf);
const struct mp_gguf_tensor *mp_gguf_tensor(const struct mp_gguf *gguf, size_t index);
const struct mp_gguf_tensor *mp_gguf_find(const struct mp_gguf *gguf, const char *name);

/* Metadata, that of the first part. NULL: no such key. */
const struct mp_gguf_value *mp_gguf_find_value(const struct mp_gguf *gguf, const char *key);

/* All of it, sorted by key. */
size_t mp_gguf_entry_count(const struct mp_gguf *gguf);
const struct mp_gguf_entry *mp_gguf_entry(const struct mp_gguf *gguf, size_t index);

/*
 * The value of a key that must be there: MP_ERR_MODEL E_GGUF_KEY if it is not, E_GGUF_VALUE if it
 * has another type or is out of range. Integers of every width are read as u64 and i64, F32 and F64
 * as f64. A string is `*bytes_p` bytes without NUL behind them. Pointers live as long as `gguf`.
 */
enum mp_status mp_gguf_get_u64(const struct mp_gguf *gguf, const char *key,
                               uint64_t *out_p) MP_MUST_CHECK;
enum mp_status mp_gguf_get_i64(const struct mp_gguf *gguf, const char *key,
                               int64_t *out_p) MP_MUST_CHECK;
enum mp_status mp_gguf_get_f64(const struct mp_gguf *gguf, const char *key,
                               double *out_p) MP_MUST_CHECK;
enum mp_status mp_gguf_get_bool(const struct mp_gguf *gguf, const char *key,
                                bool *out_p) MP_MUST_CHECK;
enum mp_status mp_gguf_get_string(const struct mp_gguf *gguf, const char *key, const char **text_p,
                                  uint64_t *bytes_p) MP_MUST_CHECK;
enum mp_status mp_gguf_get_array(const struct mp_gguf *gguf, const char *key,
                                 enum mp_gguf_kind element,
                                 struct mp_gguf_value *array_p) MP_MUST_CHECK;

/* Remove the first element from an array; false: it is empty. */
bool mp_gguf_array_next(struct mp_gguf_value *array, struct mp_gguf_value *element_p) MP_MUST_CHECK;

/* False: the value has another type or does not fit. */
bool mp_gguf_as_u64(const struct mp_gguf_value *value, uint64_t *out_p) MP_MUST_CHECK;
bool mp_gguf_as_i64(const struct mp_gguf_value *value, int64_t *out_p) MP_MUST_CHECK;
bool mp_gguf_as_f64(const struct mp_gguf_value *value, double *out_p) MP_MUST_CHECK;
bool mp_gguf_as_bool(const struct mp_gguf_value *value, bool *out_p) MP_MUST_CHECK;

#endif
