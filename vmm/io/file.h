#ifndef MP_FILE_H
#define MP_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * The files of a model, opened once and kept open: the file tier.
 *
 * Each file is opened read-only; if O_DIRECT is wanted, a second descriptor is opened with it and
 * tested by one aligned read (tmpfs and some network file systems refuse at that point). Size,
 * modification time and inode are recorded at open; mp_files_check() compares them with the open
 * file and with the file that the path names now, so that a truncated, rewritten or replaced file
 * is an error instead of silently wrong weights. Files are never mapped: a truncated mapping kills
 * the process. A file that was only unlinked can still be read.
 *
 * Thread safety: add and destroy need exclusive access; all other functions may run in parallel.
 */
struct mp_files;

/* How weights are read. AUTO: direct where it works and the slack that alignment costs is small. */
enum mp_io_mode { MP_IO_AUTO, MP_IO_DIRECT, MP_IO_BUFFERED, MP_IO_MODE_COUNT };

enum mp_status mp_files_create(struct mp_files **files_p) MP_MUST_CHECK;
void mp_files_destroy(struct mp_files *files);

/*
 * Open `name` relative to `dir_fd` (AT_FDCWD for an ordinary path) and append it.
 *
 * name      copied, for messages and for mp_files_check()
 * index_p   the file's number, 0, 1, 2, ... in order of adding
 *
 * MP_ERR_IO: not found, no permission, not a regular file (directory, FIFO, device, socket), with
 * the reason. Opening never blocks, whatever kind of file it is.
 */
enum mp_status mp_files_add(struct mp_files *files, int dir_fd, const char *name,
                            uint32_t *index_p) MP_MUST_CHECK;

/* Append a file with a name and a size but without contents, for readers with a virtual link.
 * Reading it fails. */
enum mp_status mp_files_add_virtual(struct mp_files *files, const char *name, uint64_t bytes,
                                    uint32_t *index_p) MP_MUST_CHECK;

uint32_t mp_files_count(const struct mp_files *files);
uint64_t mp_files_bytes(const struct mp_files *files, uint32_t index);
const char *mp_files_name(const struct mp_files *files, uint32_t index);

/* Buffered descriptor; owned by `files`. */
int mp_files_fd(const struct mp_files *files, uint32_t index);

/*
 * Descriptor for O_DIRECT and the alignment it needs for offset, length and memory (a power of two,
 * 4096 to 65536), or -1 if direct reads do not work. They are tested on the first call, which needs
 * memory and the path; any failure gives -1. The result is cached.
 */
int mp_files_direct_fd(struct mp_files *files, uint32_t index, uint32_t *align_bytes_p);

/* MP_ERR_IO "model file changed on disk" with old and new size, inode and time if the open file, or
 * the file that its path names now, differs from what was opened. Two system calls. */
enum mp_status mp_files_check(const struct mp_files *files, uint32_t index) MP_MUST_CHECK;

/*
 * Read exactly `bytes` bytes at `offset` into `dst`, buffered, on the calling thread. Interrupted
 * and short reads are continued, EIO is tried three times. MP_ERR_IO with file, byte and reason;
 * the contents of dst are then undefined.
 */
enum mp_status mp_files_read(const struct mp_files *files, uint32_t index, uint64_t offset,
                             uint64_t bytes, void *dst) MP_MUST_CHECK;

#endif
