#ifndef MP_OUTPUT_OUT_H
#define MP_OUTPUT_OUT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "vmm/base/status.h"

/*
 * An output file that is whole or not there.
 *
 * The text is written to a file without a name in the target's directory (O_TMPFILE), which takes
 * the target's name at commit: a crash, a full disk or any signal never leaves half a file under
 * the name nor another one beside it, and an older file stays until then. Where the file system has
 * no such files, a temporary name stands in (.moepager-PID-N.tmp); SIGKILL and a crash leave that
 * one behind, until the next output in its directory removes it: a regular file of this user with
 * one name, whose process has ended and which nobody has locked.
 *
 * A target that is a symbolic link is refused. A device or a FIFO (/dev/null) is written in place,
 * and so is a descriptor that is open already: /dev/stdout, /dev/stderr, /dev/fd/N and
 * /proc/self/fd/N, as the shell's process substitution names it.
 *
 *     struct mp_out out;                             does not move while it is open
 *     status = mp_out_open(&out, path);
 *     if (status != MP_OK)
 *         return status;
 *     fprintf(out.file, ...);                        errors stay until commit
 *     return mp_out_commit(&out);
 *
 * The first failed write decides: nothing clears it, and nothing is written after it. The stream
 * itself cannot seek; mp_out_seek() can.
 *
 * Thread safety: one thread per object.
 */
struct mp_out {
    FILE *file; /* NULL when not open */
    int fd;
    int error;        /* of the first write that failed; 0: none */
    uint64_t at_byte; /* where the next byte goes that leaves the stream's buffer */
    bool in_place;
    bool named; /* `temporary` is there */
    char path[PATH_MAX];
    char temporary[PATH_MAX];
};

/* MP_ERR_IO with a text; nothing was created. The mode is 0644 less the umask. */
enum mp_status mp_out_open(struct mp_out *out, const char *path) MP_MUST_CHECK;

/* Could a file of this name be written now? For long work, before it begins; nothing is left
 * behind. Devices and FIFOs are not touched. Same errors as mp_out_open(); with `seeks`, for who
 * will call mp_out_seek(), pipes are refused too. */
enum mp_status mp_out_check(const char *path, bool seeks) MP_MUST_CHECK;

/* Bytes before the next one to be written. */
uint64_t mp_out_position(struct mp_out *out);

/* Go on writing at this byte of the file. A failure stays until commit. */
void mp_out_seek(struct mp_out *out, uint64_t byte);

/*
 * Flush, check that every byte arrived, and give the file its name. MP_ERR_IO with a text that has
 * the first byte that did not: the temporary file is gone and an older file of that name untouched.
 * Closed in both cases.
 */
enum mp_status mp_out_commit(struct mp_out *out) MP_MUST_CHECK;

/* Close and remove what was written. Does nothing when not open. */
void mp_out_abandon(struct mp_out *out);

#endif
