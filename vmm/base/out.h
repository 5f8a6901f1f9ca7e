#ifndef MP_BASE_OUT_H
#define MP_BASE_OUT_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "vmm/base/status.h"

/*
 * An output file that is whole or not there.
 *
 * The text is written to a temporary file beside the target and takes its name at commit, so a
 * crash, a full disk or Ctrl-C never leaves half a file under the name, and an older file stays
 * until then. A target that is a symbolic link is refused. A device or a FIFO (/dev/null) is
 * written in place.
 *
 *     struct mp_out out;
 *     status = mp_out_open(&out, path);
 *     if (status != MP_OK)
 *         return status;
 *     fprintf(out.file, ...);                        errors stay in the FILE until commit
 *     return mp_out_commit(&out);
 *
 * Thread safety: one thread per object.
 */
struct mp_out {
    FILE *file; /* NULL when not open */
    bool in_place;
    char path[PATH_MAX];
    char temporary[PATH_MAX];
};

/* MP_ERR_IO with a text; nothing was created. The mode is 0644 less the umask. */
enum mp_status mp_out_open(struct mp_out *out, const char *path) MP_MUST_CHECK;

/* Could a file of this name be written now? For long work, before it begins; nothing is left
 * behind. Devices and FIFOs are not touched. Same errors as mp_out_open(). */
enum mp_status mp_out_check(const char *path) MP_MUST_CHECK;

/*
 * Flush, check that every byte arrived, and give the file its name. MP_ERR_IO with a text: the
 * temporary file is gone and an older file of that name untouched. Closed in both cases.
 */
enum mp_status mp_out_commit(struct mp_out *out) MP_MUST_CHECK;

/* Close and remove what was written. Does nothing when not open. */
void mp_out_abandon(struct mp_out *out);

#endif
