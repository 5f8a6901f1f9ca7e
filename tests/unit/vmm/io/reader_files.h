#ifndef MP_TEST_READER_FILES_H
#define MP_TEST_READER_FILES_H

#include "vmm/io/file.h"
#include "vmm/io/reader.h"

#include "tests/support/tmpdir.h"

/* Files with known contents for the tests of the reader, and tickets over them. */
#define TEST_FILES 4

/* The byte at `offset` of file number `file`. */
unsigned char test_byte(uint32_t file, uint64_t offset);

void test_write_file(const char *path, uint32_t file, uint64_t bytes);

/* Write the files; sizes are odd, one is below a block, number 2 is the longest. */
void test_files_write(void);
void test_file_path(char path[4200], uint32_t file);
struct mp_files *test_files_open(void);

/* xorshift; the state must not be 0. */
uint64_t test_random(uint64_t *state);

/*
 * Fill the ticket with 1 to 8 random extents, direct or not, demand or prefetch, some of them up
 * to and beyond the end of their file. Returns the memory they point into, to be freed.
 */
unsigned char *test_random_ticket(struct mp_files *files, struct mp_ticket *ticket, uint64_t *seed);

/* Compare every needed byte. */
void test_check_ticket(const struct mp_ticket *ticket);

bool test_uring_works(void);

#endif
