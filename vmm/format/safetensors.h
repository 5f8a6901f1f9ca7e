#ifndef MP_FORMAT_SAFETENSORS_H
#define MP_FORMAT_SAFETENSORS_H

#include "vmm/base/error.h"
#include "vmm/format/types.h"

/*
 * The header of a safetensors file: 8 bytes of length, that many bytes of JSON, then the data.
 *
 * A pure function of a buffer and the size of the file; it opens nothing and never reads data. An
 * accepted header describes the file completely: tensors follow one another without gap or overlap,
 * the last one ends at the end of the file, every size follows from dtype and shape without
 * overflow, and names are unique. Anything else is refused with MP_ERR_MODEL and a code E_ST_*
 * whose text names the tensor, and what was found and expected:
 *
 *     E_ST_SHORT E_ST_HEADER_LEN E_ST_JSON E_ST_DEPTH E_ST_DUP E_ST_COUNT E_ST_NAME E_ST_METADATA
 *     E_ST_ENTRY E_ST_DTYPE E_ST_SHAPE E_ST_OVERFLOW E_ST_SUBBYTE E_ST_OFFSETS E_ST_SIZE
 *     E_ST_HOLE E_ST_OVERLAP E_ST_END
 *
 * Stricter than the reference reader: duplicate names, more than 8 dimensions, unknown keys of an
 * entry, __metadata__ null. Equal to it: white space before and after the JSON, tensors without
 * elements, scalars.
 */
#define MP_ST_HEADER_BYTES_MAX 100000000u

/* Of one file; while it is parsed each takes about 1 KiB of RAM and 10 us. */
#define MP_ST_TENSORS_MAX 131072u
#define MP_ST_NAME_BYTES_MAX 1024u
#define MP_ST_DIMS_MAX 8u

struct mp_st_tensor {
    const char *name; /* UTF-8 without NUL inside; owned by the table */
    enum mp_dtype dtype;
    uint32_t dims;
    uint64_t shape[MP_ST_DIMS_MAX];
    uint64_t offset_bytes; /* from the start of the file */
    uint64_t bytes;
};

struct mp_st_table {
    struct mp_st_tensor *tensors; /* in the order of their offsets */
    size_t count;
    char *names;
};

/*
 * Check the first 8 bytes of a file of `file_bytes` bytes and return the length of its header: at
 * most MP_ST_HEADER_BYTES_MAX and at most file_bytes - 8, so that it can be allocated. `first`
 * holds min(8, file_bytes) bytes. `name` is the file as messages show it.
 */
enum mp_status mp_st_header_bytes(const void *first, uint64_t file_bytes, const char *name,
                                  uint64_t *header_bytes_p) MP_MUST_CHECK;

/*
 * Parse the header's JSON: the `header_bytes` bytes behind the length field. Fills *table, which
 * the caller releases with mp_st_table_fini(); on failure it is left zeroed.
 */
enum mp_status mp_st_parse(const char *header, uint64_t header_bytes, uint64_t file_bytes,
                           const char *name, struct mp_st_table *table) MP_MUST_CHECK;

/* Accepts a zeroed table. */
void mp_st_table_fini(struct mp_st_table *table);

/* Write "[64, 16]" (cut with "..." if it does not fit) and return `out`. */
const char *mp_st_shape_text(char out[MP_QUOTE_BYTES], const uint64_t *shape, uint32_t dims);

#endif
