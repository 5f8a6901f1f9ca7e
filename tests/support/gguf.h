#ifndef MP_TESTS_GGUF_H
#define MP_TESTS_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "tests/support/tmpdir.h"

/*
 * Writes GGUF files piece by piece, right or wrong as the caller says: what each function adds
 * lies in gguf_out from gguf_used on. One file at a time; the buffer is large enough for tests.
 */
extern unsigned char gguf_out[1 << 20];
extern size_t gguf_used;

#define GGUF_PATH_BYTES (sizeof(test_tmpdir_path) + 64)

void gguf_begin(uint64_t tensors, uint64_t entries);
void gguf_put(uint64_t value, unsigned bytes); /* little-endian */
void gguf_text(const char *s);
void gguf_number(const char *key, unsigned kind, uint64_t value, unsigned bytes);
void gguf_tensor(const char *name, uint64_t a, uint64_t b, unsigned type, uint64_t offset);
/* Of three dimensions, as those of experts are. */
void gguf_tensor_3d(const char *name, uint64_t a, uint64_t b, uint64_t c, unsigned type,
                    uint64_t offset);
void gguf_data(size_t bytes); /* zeros, from the next multiple of 32 on */
void gguf_save(const char *path);

/*
 * A model in two files in test_tmpdir(), whose headers are longer than a reader's first read:
 * "a" is in the first, `second` in the second, and both say that there are `total` tensors.
 */
void gguf_parts(char paths[2][GGUF_PATH_BYTES], const char *second, uint64_t total);

#endif
