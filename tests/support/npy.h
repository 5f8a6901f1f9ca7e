#ifndef MP_TESTS_NPY_H
#define MP_TESTS_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Arrays of expected values: numpy's npy format 1.0, C order, little-endian float32 and int32.
 * Anything else is refused with one line on stderr that names the file. For tests on a
 * little-endian machine; not thread-safe on one array, no global state.
 */
#define NPY_DIMS_MAX 4

enum npy_type { NPY_F32, NPY_I32 };

struct npy {
    enum npy_type type;
    size_t n_dims;
    size_t dims[NPY_DIMS_MAX];
    size_t count; /* product of dims; 1 for an array without dimensions */
    union {
        void *data;   /* owned; npy_free() */
        float *f32;   /* when type is NPY_F32 */
        int32_t *i32; /* when type is NPY_I32 */
    };
};

/* False: nothing is kept and *npy_p is untouched. A file that goes on after the data is refused. */
bool npy_read(const char *path, struct npy *npy_p);

/* Leaves an empty array; a zeroed or freed one is accepted. */
void npy_free(struct npy *npy);

/* Writes the bytes that numpy would. `data` has product(dims) elements; n_dims <= NPY_DIMS_MAX. */
bool npy_write(const char *path, enum npy_type type, size_t n_dims, const size_t *dims,
               const void *data);

/*
 * max|got - want| / max|want|: how logits are compared everywhere. Infinite when a difference is
 * not finite, so that `npy_error(...) <= bound` is false for NaN and infinity; 0 for count 0.
 */
double npy_error(const float *got, const float *want, size_t count);

#endif
