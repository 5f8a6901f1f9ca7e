/*
 * Importance matrices in both forms. What is refused has said why; what is read has a positive
 * number for each column.
 */
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/convert/convert_int.h"
#include "tests/fuzz/text.h"

/* A file in memory that holds the input, as a path. */
static const char *file_of(const uint8_t *data, size_t bytes)
{
    static char path[32];
    static int fd = -1;

    if (fd < 0) {
        fd = memfd_create("imatrix", 0);
        FUZZ_CHECK(fd >= 0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    }
    FUZZ_CHECK(ftruncate(fd, 0) == 0);
    FUZZ_CHECK(pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    return path;
}

static void check_refusal(void)
{
    const struct mp_error *error = mp_error_last();

    FUZZ_CHECK(error->status == MP_ERR_MODEL || error->status == MP_ERR_IO);
    FUZZ_CHECK(error->code[0] == 'E');
    fuzz_check_message(error->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct mp_convert_tensor tensors[] = {
        { .name = "a", .dims = 2, .shape = { 3, 4 }, .rows = 3, .cols = 4 },
        { .name = "e", .dims = 3, .shape = { 2, 3, 4 }, .rows = 6, .cols = 4, .experts = 2 },
    };
    struct mp_imatrix *imatrix;

    mp_error_clear();
    if (mp_imatrix_open(file_of(data, bytes), &imatrix) != MP_OK) {
        check_refusal();
        return 0;
    }
    for (size_t i = 0; i < 2; i++) {
        float *weights = NULL;

        mp_error_clear();
        if (mp_imatrix_read(imatrix, &tensors[i], &weights) != MP_OK)
            check_refusal();
        for (size_t j = 0; weights != NULL && j < (i + 1) * 4; j++)
            FUZZ_CHECK(weights[j] > 0 && isfinite(weights[j]));
        free(weights);
    }
    mp_imatrix_close(imatrix);
    return 0;
}
