/*
 * Writes rows of logits as an .npy file; its header is written last.
 */
#include "engine/session/npy_out.h"

#include <inttypes.h>
#include <string.h>

#define HEADER_BYTES 128 /* magic, length and text; a multiple of 64 as the format asks */

static void write_header(struct mp_npy_out *npy)
{
    static const char magic[10] = { '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, HEADER_BYTES - 10, 0 };
    char header[HEADER_BYTES];
    int used;

    memset(header, ' ', sizeof(header));
    memcpy(header, magic, sizeof(magic));
    used = snprintf(header + sizeof(magic), sizeof(header) - sizeof(magic),
                    "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ", %u), }",
                    npy->rows, npy->columns);
    header[sizeof(magic) + (size_t)used] = ' '; /* at most 97 characters: always fits */
    header[HEADER_BYTES - 1] = '\n';
    fwrite(header, 1, HEADER_BYTES, npy->out.file);
}

enum mp_status mp_npy_out_open(struct mp_npy_out *npy, const char *path, uint32_t columns)
{
    enum mp_status status = mp_out_open(&npy->out, path);

    if (status != MP_OK)
        return status;
    npy->rows = 0;
    npy->columns = columns;
    write_header(npy);
    return MP_OK;
}

void mp_npy_out_row(struct mp_npy_out *npy, const float *row)
{
    fwrite(row, sizeof(float), npy->columns, npy->out.file);
    npy->rows++;
}

enum mp_status mp_npy_out_commit(struct mp_npy_out *npy)
{
    if (npy->out.file == NULL)
        return MP_OK;
    mp_out_seek(&npy->out, 0);
    write_header(npy);
    return mp_out_commit(&npy->out);
}

void mp_npy_out_abandon(struct mp_npy_out *npy)
{
    mp_out_abandon(&npy->out);
}
