#ifndef MP_FILE_INT_H
#define MP_FILE_INT_H

#include "vmm/io/file.h"

/*
 * What the readers of files share: the retry rule, error texts, and the alignment of direct reads.
 *
 * A read that moved no byte is one failed attempt. Interruptions are harmless but bounded, so that
 * a broken kernel or file system causes an error instead of an endless loop.
 */
#define MP_READ_EIO_TRIES 3
#define MP_READ_INTR_TRIES 1000

/* The most that Linux moves in one call. */
#define MP_READ_CALL_BYTES_MAX UINT64_C(0x7ffff000)

/* Failed attempts of one read since the last byte arrived; initialise with zeros. */
struct mp_read_tries {
    uint32_t interrupted;
    uint32_t eio;
};

/* True if the read should be retried after `error_number` (an errno). Counts the attempt. */
bool mp_read_again(struct mp_read_tries *tries, int error_number);

/* Fill the error record of the calling thread; both return MP_ERR_IO. If the file ends at or before
 * end_offset, the text has its present size. */
enum mp_status mp_files_fail_read(const struct mp_files *files, uint32_t index, uint64_t offset,
                                  int error_number) MP_COLD;
enum mp_status mp_files_fail_truncated(const struct mp_files *files, uint32_t index,
                                       uint64_t end_offset, uint64_t need_offset) MP_COLD;

/* The alignment with which reads of `fd`, opened with O_DIRECT, work, found by trial. 0 with
 * `errno` set if there is none. */
uint32_t mp_file_direct_align(int fd, uint64_t file_bytes);

#endif
