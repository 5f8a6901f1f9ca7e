/*
 * libmoepager_safetensors.so, and headers that lie: a file is refused, or all experts that are
 * found in it lie within it.
 */
#include "interpose/model/safetensors.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include "interpose/model/experts.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

enum { EXPERTS = 2, EXPERT_BYTES = 8192, TENSOR_BYTES = EXPERTS * EXPERT_BYTES, LAYERS = 2 };

static char path[sizeof(test_tmpdir_path) + 32];

/* A layer's gate_up_proj and down_proj, each of 2 experts of 64 x 64 BF16. */
static size_t make_header(char *out, size_t capacity, const char *shape, long end_more)
{
    size_t used = (size_t)snprintf(out, capacity, "{");

    for (int i = 0; i < 2 * LAYERS; i++)
        used += (size_t)snprintf(
            out + used, capacity - used,
            "%s\"model.layers.%d.mlp.experts.%s\":{\"dtype\":\"BF16\",\"shape\":%s,"
            "\"data_offsets\":[%d,%ld]}",
            i > 0 ? "," : "", i / 2, i % 2 == 0 ? "gate_up_proj" : "down_proj", shape,
            i * TENSOR_BYTES, (i + 1) * (long)TENSOR_BYTES + end_more);
    return used + (size_t)snprintf(out + used, capacity - used, "}");
}

static void write_file(uint64_t header_size, const char *header, size_t header_bytes,
                       size_t data_bytes)
{
    static const char zeros[2 * LAYERS * TENSOR_BYTES];
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    CHECK(fd >= 0);
    CHECK_EQ(write(fd, &header_size, sizeof(header_size)), (long long)sizeof(header_size));
    CHECK_EQ(write(fd, header, header_bytes), (long long)header_bytes);
    CHECK_EQ(write(fd, zeros, data_bytes), (long long)data_bytes);
    close(fd);
}

/* Were experts found? Then each lies in the file. */
static bool finds_experts(void)
{
    struct mp_experts experts;
    uint64_t bytes;

    if (mp_experts_open(path, true, &experts) != MP_OK)
        return false;
    bytes = mp_files_bytes(experts.files, 0);
    CHECK(experts.layers > 0 && experts.experts > 0 && experts.tensor_count > 0);
    for (uint32_t i = 0; i < experts.tensor_count; i++) {
        const struct mp_expert_tensor *tensor = &experts.tensors[i];

        CHECK(tensor->layer < experts.layers && tensor->expert_bytes > 0);
        CHECK(tensor->expert_bytes <= bytes / experts.experts);
        CHECK(tensor->offset_bytes <= bytes - tensor->expert_bytes * experts.experts);
    }
    mp_experts_close(&experts);
    return true;
}

static void the_library_has_one_table(void)
{
    char name[4200];
    const char *slash;
    const struct mp_safetensors *table;
    uint64_t bytes;
    Dl_info info;
    void *handle;

    CHECK(dladdr((void *)(uintptr_t)&make_header, &info) != 0);
    slash = strrchr(info.dli_fname, '/');
    snprintf(name, sizeof(name), "%.*slibmoepager_safetensors.so",
             slash != NULL ? (int)(slash + 1 - info.dli_fname) : 0, info.dli_fname);
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    CHECK(handle != NULL);
    table = dlsym(handle, MP_SAFETENSORS_SYMBOL);
    CHECK(table != NULL && table->abi == MP_SAFETENSORS_ABI);
    CHECK(dlsym(handle, "mp_st_parse") == NULL);
    CHECK_EQ(table->header_bytes("\2\0\0\0\0\0\0", 10, "name", &bytes), MP_OK);
    CHECK_EQ(bytes, 2);
    CHECK(table->header_bytes("\3\0\0\0\0\0\0", 10, "name", &bytes) != MP_OK);
}

static void a_whole_file_has_experts(void)
{
    char header[2048];
    const size_t bytes = make_header(header, sizeof(header), "[2,64,64]", 0);

    write_file(bytes, header, bytes, 2 * LAYERS * TENSOR_BYTES);
    CHECK(finds_experts());
}

static void lengths_that_lie(void)
{
    char header[2048];
    const size_t bytes = make_header(header, sizeof(header), "[2,64,64]", 0);
    const uint64_t sizes[] = { 0,
                               1,
                               bytes - 1,
                               bytes + 1,
                               bytes + 64,
                               1u << 20,
                               (uint64_t)100 << 20,
                               UINT64_C(1) << 40,
                               UINT64_MAX - 7,
                               UINT64_MAX };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        write_file(sizes[i], header, bytes, 2 * LAYERS * TENSOR_BYTES);
        CHECK(!finds_experts());
    }
    for (size_t less = 1; less <= 2 * LAYERS * TENSOR_BYTES; less *= 4) {
        write_file(bytes, header, bytes, 2 * LAYERS * TENSOR_BYTES - less);
        CHECK(!finds_experts());
    }
    for (size_t i = 0; i < 8; i++) { /* not even a length */
        write_file(bytes, header, 0, 0);
        CHECK_EQ(truncate(path, (off_t)i), 0);
        CHECK(!finds_experts());
    }
}

static void shapes_and_offsets_that_lie(void)
{
    static const char *const shapes[] = {
        "[0,64,64]",
        "[8192]",
        "[]",
        "[-2,64,64]",
        "[2,64,65]",
        "[4294967296,4294967296,1]",
        "[2,64,64,1,1,1,1,1,1]",
        "[18446744073709551615,1,1]",
        "\"2\"",
        "[2.5,64,64]",
        "[8192,1,1]",
        "[1,1,8192]",
    };
    char header[2048];
    size_t bytes;

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        bytes = make_header(header, sizeof(header), shapes[i], 0);
        write_file(bytes, header, bytes, 2 * LAYERS * TENSOR_BYTES);
        CHECK_EQ(finds_experts(), strcmp(shapes[i], "[1,1,8192]") == 0);
    }
    for (long more = -2; more <= 2; more += 4) {
        bytes = make_header(header, sizeof(header), "[2,64,64]", more);
        write_file(bytes, header, bytes, 2 * LAYERS * TENSOR_BYTES);
        CHECK(!finds_experts());
    }
}

/* Bytes of the header change at random; most files are refused, some still have experts. */
static void bytes_that_change(void)
{
    static const char values[] = "09{}[]\",:-e.x \0\xff";
    char header[2048];
    uint64_t state = 1;
    unsigned found = 0;

    for (int run = 0; run < 3000; run++) {
        const size_t bytes = make_header(header, sizeof(header), "[2,64,64]", 0);

        for (int i = 0; i <= run % 3; i++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            header[(state >> 33) % bytes] = values[(state >> 20) % (sizeof(values) - 1)];
        }
        write_file(bytes, header, bytes, 2 * LAYERS * TENSOR_BYTES);
        found += finds_experts();
    }
    CHECK(found > 10 && found < 2900);
}

int main(void)
{
    snprintf(path, sizeof(path), "%s/model.safetensors", test_tmpdir());
    RUN(the_library_has_one_table);
    RUN(a_whole_file_has_experts);
    RUN(lengths_that_lie);
    RUN(shapes_and_offsets_that_lie);
    RUN(bytes_that_change);
    return 0;
}
