#ifndef MP_OUTPUT_OUT_H
#define MP_OUTPUT_OUT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "vmm/base/status.h"

/*
 * An output file that is complete or absent.
 *
 * The text is written to an unnamed file in the target's directory (O_TMPFILE), which gets the
 * target's name at commit: a crash, a full disk or a signal never leaves a partial or temporary
 * file, and an older file of that name is kept until commit. On file systems without O_TMPFILE a
 * temporary file is used (.moepager-PID-N.tmp). SIGKILL or a crash leaves it behind; the next
 * output in the directory removes it if it is a regular file of this user with one link, its
 * process has ended, and it is not locked.
 *
 * A target that is a symbolic link is refused. A device or a FIFO (/dev/null) is written in place,
 * and so is a descriptor that is already open: /dev/stdout, /dev/stderr, /dev/fd/N and
 * /proc/self/fd/N, the names that process substitution of a shell uses.
 *
 *     struct mp_out out;                             must not be moved while it is open
 *     status = mp_out_open(&out, path);
 *     if (status != MP_OK)
 *         return status;
 *     fprintf(out.file, ...);                        errors are kept until commit
 *     return mp_out_commit(&out);
 *
 * The first failed write is kept, and nothing is written after it. The stream itself cannot seek;
 * use mp_out_seek().
 *
 * Thread safety: one thread per object.
 */
struct mp_out {
    FILE *file; /* NULL when not open */
    int fd;
    int error;        /* of the first write that failed; 0: none */
    uint64_t at_byte; /* file offset of the next byte that leaves the stream's buffer */
    bool in_place;
    bool named; /* `temporary` exists */
    char path[PATH_MAX];
    char temporary[PATH_MAX];
};

/* MP_ERR_IO with a text; nothing was created. The mode is 0644 less the umask. */
enum mp_status mp_out_open(struct mp_out *out, const char *path) MP_MUST_CHECK;

/* Check, before long work, that a file of this name can be written; nothing is left behind. Devices
 * and FIFOs are not touched. Same errors as mp_out_open(). `seeks`: also refuse pipes, because
 * mp_out_seek() will be called. */
enum mp_status mp_out_check(const char *path, bool seeks) MP_MUST_CHECK;

/* Offset of the next byte to be written. */
uint64_t mp_out_position(struct mp_out *out);

/* Continue to write at this byte of the file. A failure is kept until commit. */
void mp_out_seek(struct mp_out *out, uint64_t byte);

/*
 * Flush, check that every byte was written, and give the file its name. MP_ERR_IO, with a text that
 * names the first byte that was not: the temporary file is removed, and an older file of that name
 * is unchanged. Closed in both cases.
 */
enum mp_status mp_out_commit(struct mp_out *out) MP_MUST_CHECK;

/* Close and remove what was written. Does nothing when not open. */
void mp_out_abandon(struct mp_out *out);

#endif
