#ifndef MP_FORMAT_JSON_H
#define MP_FORMAT_JSON_H

#include <jansson.h>

#include "vmm/base/error.h"

/*
 * JSON as this project reads it: strict, bounded, with errors that name file, key and byte.
 *
 * The parser is jansson; this module adds the checks that untrusted files need: nesting is checked
 * before parsing (so that 64 KiB of stack are enough for any input), an object with the same key
 * twice is refused (also when the spellings differ: "w" and "\u0077"), integers are 64-bit and
 * never pass through a double, input must be UTF-8, and nothing may follow the value but white
 * space. Order of keys is kept.
 *
 * `name` is always the file as messages show it; it is quoted here. Functions that read one key
 * fail with MP_ERR_MODEL and E_JSON_KEY (missing), E_JSON_TYPE or E_JSON_RANGE, with key, got and
 * need in the text. The forms `_or` treat a missing key and null alike and return the fallback.
 * Results that are pointers belong to the parsed value and live as long as it does.
 *
 * Thread safety: functions may run at the same time on different values.
 */
#define MP_JSON_DEPTH_MAX 64

/* Values in one text, containers included: a parsed value takes up to 230 bytes of RAM. */
#define MP_JSON_VALUES_MAX (1u << 22)

struct mp_json_options {
    const char *code;           /* of a syntax error; NULL: "E_JSON" */
    const char *depth_code;     /* NULL: "E_JSON_DEPTH" */
    const char *duplicate_code; /* NULL: "E_JSON_DUP" */
    const char *count_code;     /* NULL: "E_JSON_COUNT" */
    uint64_t first_byte;        /* where text[0] lies in the file, for messages */
    uint64_t entries_max;       /* of the outermost object or array; 0: no limit of its own */
    bool allow_nul;             /* accept \u0000 inside string values */
};

/*
 * Parse `bytes` bytes at `text` (no NUL needed at the end). The outermost value must be an object
 * or an array. Release the result with json_decref().
 *
 * MP_ERR_MODEL: not JSON, E_JSON; deeper than MP_JSON_DEPTH_MAX, E_JSON_DEPTH; a key twice,
 * E_JSON_DUP; more values or outermost entries than allowed, E_JSON_COUNT. MP_ERR_NO_MEMORY.
 */
enum mp_status mp_json_parse(const char *text, size_t bytes, const char *name,
                             json_t **root_p) MP_MUST_CHECK;

/* The same with options; NULL for the defaults. */
enum mp_status mp_json_parse_with(const char *text, size_t bytes, const char *name,
                                  const struct mp_json_options *options,
                                  json_t **root_p) MP_MUST_CHECK;

/*
 * Read the whole file `name`, a plain file name in the directory `dirfd`, of at most `cap_bytes`.
 * Symbolic links are followed (the cache of the Hugging Face hub consists of them). A NUL is put
 * behind the last byte. Free *text_p with free().
 *
 * Absent file: MP_ERR_MODEL, E_FILE_MISSING; above the cap: E_FILE_SIZE; a Git LFS pointer or an
 * HTML page in its place: E_FILE_LFS, E_FILE_HTML. Not a regular file, no permission, failed read:
 * MP_ERR_IO as of mp_files_add() and mp_files_read(). Blocks; never on a FIFO or device.
 */
enum mp_status mp_text_load(int dirfd, const char *name, uint64_t cap_bytes, char **text_p,
                            size_t *bytes_p) MP_MUST_CHECK;

/* mp_text_load() and mp_json_parse(). */
enum mp_status mp_json_load_file(int dirfd, const char *name, uint64_t cap_bytes,
                                 json_t **root_p) MP_MUST_CHECK;

/* The same, but an absent file is MP_OK with *root_p NULL. */
enum mp_status mp_json_load_optional_file(int dirfd, const char *name, uint64_t cap_bytes,
                                          json_t **root_p) MP_MUST_CHECK;

/*
 * Check the first bytes of a file that should hold a model or JSON: MP_ERR_MODEL with E_FILE_LFS (a
 * Git LFS pointer) or E_FILE_HTML (a web page).
 */
enum mp_status mp_text_check_download(const char *text, size_t bytes,
                                      const char *name) MP_MUST_CHECK;

/* Read one key of `object`. If `object` is NULL or of another type, every key is missing. */
enum mp_status mp_json_u64(const json_t *object, const char *key, const char *name, uint64_t min,
                           uint64_t max, uint64_t *value_p) MP_MUST_CHECK;
enum mp_status mp_json_u64_or(const json_t *object, const char *key, const char *name, uint64_t min,
                              uint64_t max, uint64_t fallback, uint64_t *value_p) MP_MUST_CHECK;

/* A number, with or without fraction; min and max belong to the range. */
enum mp_status mp_json_double(const json_t *object, const char *key, const char *name, double min,
                              double max, double *value_p) MP_MUST_CHECK;
enum mp_status mp_json_double_or(const json_t *object, const char *key, const char *name,
                                 double min, double max, double fallback,
                                 double *value_p) MP_MUST_CHECK;

enum mp_status mp_json_bool(const json_t *object, const char *key, const char *name,
                            bool *value_p) MP_MUST_CHECK;
enum mp_status mp_json_bool_or(const json_t *object, const char *key, const char *name,
                               bool fallback, bool *value_p) MP_MUST_CHECK;

/* UTF-8, NUL-terminated; json_string_length() is its length if NUL was allowed inside. */
enum mp_status mp_json_string(const json_t *object, const char *key, const char *name,
                              const char **value_p) MP_MUST_CHECK;
enum mp_status mp_json_string_or(const json_t *object, const char *key, const char *name,
                                 const char *fallback, const char **value_p) MP_MUST_CHECK;

enum mp_status mp_json_object(const json_t *object, const char *key, const char *name,
                              json_t **value_p) MP_MUST_CHECK;
enum mp_status mp_json_array(const json_t *object, const char *key, const char *name,
                             json_t **value_p) MP_MUST_CHECK;

/* The forms for keys that may be missing or null: then *value_p is NULL. */
enum mp_status mp_json_object_or_null(const json_t *object, const char *key, const char *name,
                                      json_t **value_p) MP_MUST_CHECK;
enum mp_status mp_json_array_or_null(const json_t *object, const char *key, const char *name,
                                     json_t **value_p) MP_MUST_CHECK;

/*
 * Describe a value in a few words for a message: "null", "true", "-5", "1.5", "'abc'",
 * "an array of 3", "an object". Returns `out`.
 */
const char *mp_json_describe(char out[MP_QUOTE_BYTES], const json_t *value);

#endif
