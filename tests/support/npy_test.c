/* The reader against files that numpy wrote, the writer against their bytes, and bad files. */
#include "tests/support/npy.h"
#include "tests/support/test.h"

#include <math.h>
#include <unistd.h>

#define DATA "tests/data/models/mixtral-tiny/expect/"

static char scratch[] = "/tmp/npy_test_XXXXXX";

static size_t slurp(const char *path, char *bytes, size_t max_bytes)
{
    FILE *file = fopen(path, "rb");
    size_t got;

    CHECK(file != NULL);
    got = fread(bytes, 1, max_bytes, file);
    CHECK(got < max_bytes);
    fclose(file);
    return got;
}

static void spill(const char *bytes, size_t count)
{
    FILE *file = fopen(scratch, "wb");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
}

/* A file of format 1.0 with this header text and two elements. */
static void spill_header(const char *text)
{
    char bytes[512] = "\x93NUMPY\x01";
    size_t text_bytes = strlen(text);

    CHECK(text_bytes < 256);
    bytes[8] = (char)text_bytes;
    memcpy(bytes + 10, text, text_bytes);
    spill(bytes, 10 + text_bytes + 8);
}

static void files_of_numpy_are_read(void)
{
    static const int lens[] = { 5, 9, 1, 13 };
    struct npy npy, tokens;

    CHECK(npy_read(DATA "b4_lens.npy", &npy));
    CHECK_EQ(npy.type, NPY_I32);
    CHECK_EQ(npy.n_dims, 1);
    CHECK_EQ(npy.dims[0], 4);
    CHECK_EQ(npy.count, 4);
    for (size_t i = 0; i < 4; i++)
        CHECK_EQ(npy.i32[i], lens[i]);

    CHECK(npy_read(DATA "b4_tokens.npy", &tokens));
    CHECK_EQ(tokens.n_dims, 2);
    CHECK_EQ(tokens.dims[1], 13 + 16);
    for (size_t i = 0; i < 4; i++) {
        for (size_t t = 0; t < tokens.dims[1]; t++) {
            bool inside = t < (size_t)lens[i] + 16;

            CHECK_EQ(tokens.i32[i * tokens.dims[1] + t] >= 0, inside);
        }
    }
    npy_free(&tokens);
    npy_free(&npy);
    CHECK(npy.data == NULL);
    npy_free(&npy);

    CHECK(npy_read(DATA "b4_logits.npy", &npy));
    CHECK_EQ(npy.type, NPY_F32);
    CHECK_EQ(npy.n_dims, 3);
    CHECK_EQ(npy.count, 4 * 17 * 97);
    for (size_t i = 0; i < npy.count; i++)
        CHECK(isfinite(npy.f32[i]));
    npy_free(&npy);
}

static void writing_gives_the_bytes_of_numpy(void)
{
    static const char *const files[] = { DATA "b4_lens.npy", DATA "b4_tokens.npy",
                                         DATA "b1_logits.npy" };
    char want[8192], got[8192];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        size_t bytes = slurp(files[i], want, sizeof(want));
        struct npy npy;

        CHECK(npy_read(files[i], &npy));
        CHECK(npy_write(scratch, npy.type, npy.n_dims, npy.dims, npy.data));
        CHECK_EQ(slurp(scratch, got, sizeof(got)), bytes);
        CHECK(memcmp(got, want, bytes) == 0);
        npy_free(&npy);
    }
}

static void a_scalar_and_an_empty_array_survive(void)
{
    const float value = -0.0f;
    const size_t none[] = { 3, 0 };
    struct npy npy;

    CHECK(npy_write(scratch, NPY_F32, 0, NULL, &value));
    CHECK(npy_read(scratch, &npy));
    CHECK_EQ(npy.n_dims, 0);
    CHECK_EQ(npy.count, 1);
    CHECK(npy.f32[0] == 0 && signbit(npy.f32[0]));
    npy_free(&npy);

    CHECK(npy_write(scratch, NPY_I32, 2, none, &value));
    CHECK(npy_read(scratch, &npy));
    CHECK_EQ(npy.n_dims, 2);
    CHECK_EQ(npy.count, 0);
    npy_free(&npy);
}

static void other_files_are_refused(void)
{
    struct npy npy = { .count = 12345 };
    char bytes[8192];
    size_t count = slurp(DATA "b4_margin.npy", bytes, sizeof(bytes));

    spill_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n");
    CHECK(npy_read(scratch, &npy)); /* the form of the bad ones below is right */
    CHECK_EQ(npy.count, 2);
    npy_free(&npy);
    npy.count = 12345;

    spill_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }\n");
    CHECK(!npy_read(scratch, &npy));
    spill_header("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }\n");
    CHECK(!npy_read(scratch, &npy));
    spill_header("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1), }\n");
    CHECK(!npy_read(scratch, &npy));
    spill_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 2), }\n");
    CHECK(!npy_read(scratch, &npy));
    spill_header("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }\n");
    CHECK(!npy_read(scratch, &npy));
    spill_header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }\n");
    CHECK(!npy_read(scratch, &npy));
    spill_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }\n");
    CHECK(!npy_read(scratch, &npy));
    spill_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, \n");
    CHECK(!npy_read(scratch, &npy));
    spill_header("{'descr': '<f4', 'shape': (2,), }\n");
    CHECK(!npy_read(scratch, &npy));

    for (size_t cut = 0; cut < count; cut++) {
        spill(bytes, cut);
        CHECK(!npy_read(scratch, &npy));
    }
    bytes[count] = 0;
    spill(bytes, count + 1);
    CHECK(!npy_read(scratch, &npy));
    bytes[6] = 2; /* format 2.0 */
    spill(bytes, count);
    CHECK(!npy_read(scratch, &npy));
    CHECK(!npy_read(DATA "none.npy", &npy));
    CHECK_EQ(npy.count, 12345); /* untouched by every failure */
}

static void writing_failures_are_reported(void)
{
    const size_t dims[] = { 1, 1, 1, 1, 1 };
    const float value = 1;

    CHECK(!npy_write(scratch, NPY_F32, 5, dims, &value));
    CHECK(!npy_write("/nonexistent/a.npy", NPY_F32, 1, dims, &value));
    if (access("/dev/full", W_OK) == 0)
        CHECK(!npy_write("/dev/full", NPY_F32, 1, dims, &value));
}

static void error_is_relative_to_the_largest_value(void)
{
    const float want[] = { 1, -4, 0 }, near[] = { 1, -4, 0.5f };
    const float bad[] = { 1, NAN, 0 }, huge[] = { 1, -4, INFINITY }, zero[] = { 0, 0, 0 };

    CHECK(npy_error(want, want, 3) == 0);
    CHECK(npy_error(near, want, 3) == 0.125);
    CHECK(npy_error(zero, zero, 3) == 0);
    CHECK(npy_error(want, want, 0) == 0);
    CHECK(!(npy_error(near, zero, 3) <= 1e30));
    CHECK(!(npy_error(bad, want, 3) <= 1e30));
    CHECK(!(npy_error(want, bad, 3) <= 1e30));
    CHECK(!(npy_error(bad, bad, 3) <= 1e30));
    CHECK(!(npy_error(huge, want, 3) <= 1e30));
    CHECK(!(npy_error(huge, huge, 3) <= 1e30));
}

int main(void)
{
    int fd = mkstemp(scratch);

    CHECK(fd >= 0);
    close(fd);
    files_of_numpy_are_read();
    writing_gives_the_bytes_of_numpy();
    a_scalar_and_an_empty_array_survive();
    other_files_are_refused();
    writing_failures_are_reported();
    error_is_relative_to_the_largest_value();
    unlink(scratch);
    return 0;
}
