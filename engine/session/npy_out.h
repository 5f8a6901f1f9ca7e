#ifndef MP_NPY_OUT_H
#define MP_NPY_OUT_H

#include <stdint.h>

#include "vmm/output/out.h"

/*
 * A numpy file of float32 [rows, columns], written row by row; commit completes its header with the
 * number of rows. No file of that name exists before commit.
 */
struct mp_npy_out {
    struct mp_out out;
    uint64_t rows;
    uint32_t columns;
};

enum mp_status mp_npy_out_open(struct mp_npy_out *npy, const char *path,
                               uint32_t columns) MP_MUST_CHECK;
/* Write errors are reported by commit. */
void mp_npy_out_row(struct mp_npy_out *npy, const float *row);
/* No effect on one that is not open. */
enum mp_status mp_npy_out_commit(struct mp_npy_out *npy) MP_MUST_CHECK;
void mp_npy_out_abandon(struct mp_npy_out *npy);

#endif
