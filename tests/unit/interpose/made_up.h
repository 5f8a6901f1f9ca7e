#ifndef MP_TEST_INTERPOSE_MADE_UP_H
#define MP_TEST_INTERPOSE_MADE_UP_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/entry.h"

/*
 * A made-up model file, and a made-up ggml and libc that go with it: what a program would do is
 * done by calling the interposer's table, in one process with the test.
 *
 * Its experts are no multiples of pages, some are neighbours of dense tensors in one page, and the
 * last one ends where the file does.
 */
#define MADE_LAYERS 3u
#define MADE_EXPERTS 8u
#define MADE_KINDS 3u
#define MADE_TOP_K 2u
#define MADE_EXPERT_BYTES 12544u /* 64 x 49 floats */

/* Bytes of all experts; each has MADE_KINDS tensors. */
#define MADE_ALL_BYTES (MADE_LAYERS * MADE_EXPERTS * MADE_KINDS * MADE_EXPERT_BYTES)

/* Write the model; once. Its bytes are then in made_bytes, for comparison. */
const char *made_path(void);
extern unsigned char *made_bytes;
extern uint64_t made_file_bytes;

/* A byte of an expert's tensor in the file. */
uint64_t made_offset(uint32_t layer, uint32_t kind, uint32_t expert);

/* Begin to use the interposer's table, with these settings; once per process. */
void made_start(const char *budget, const char *hooks);

/* Calls of the real functions that fail: the n-th from now on, 0 the next; -1: none. */
extern _Atomic int made_mmap_fails, made_mremap_fails;
/* A place in another ggml of the program, of which nothing is known. */
extern const char made_other_ggml;
/* Functions that the program has besides ggml's own; NULL: none. */
extern mp_find_fn made_find_more;
extern struct mp_paged_span made_span;

/* What mmap() and munmap() do in a program with the library in front of it. */
char *made_map(int fd, uint64_t bytes, int flags, uint64_t offset);
char *made_map_to_write(int fd, uint64_t bytes); /* private */
void made_unmap(char *at, uint64_t bytes);
bool made_is_paged(const char *at);

/* What ggml's threads do with one layer: for each expert that is chosen, in each of its operations,
 * they ask, and then read. ids(tokens, MADE_TOP_K). */
void made_run_layer(const char *base, uint32_t layer, const int32_t *ids, uint32_t tokens);

/* The same for one of them in one operation: gate 0, up 1, down 2. */
void made_read_expert(const char *base, uint32_t layer, uint32_t kind, uint32_t expert,
                      const int32_t *ids, uint32_t tokens);

/* What a program says that knows us. False: they are not paged. */
bool made_announce(const char *base, uint32_t layer, const int64_t *ids, size_t count);

/* The scheduler's callback with the same ids. */
void made_show_router(uint32_t layer, const int32_t *ids, uint32_t tokens);

/* Is every byte of the mapping the file's? */
bool made_is_equal(const char *base, uint64_t begin, uint64_t end);

#endif
