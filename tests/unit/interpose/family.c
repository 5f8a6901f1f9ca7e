/* A made-up GGUF file of any family; see family.h. */
#include "tests/unit/interpose/family.h"

#include <stdarg.h>

#include "tests/support/gguf.h"
#include "tests/support/test.h"
#include "vmm/format/gguf_types.h"

#define TENSORS_MAX 256u
#define NUMBERS_MAX 8u

struct tensor {
    char name[64];
    uint32_t type;
    uint64_t shape[3], offset, bytes;
};

static struct tensor tensors[TENSORS_MAX];
static char architecture[32];
static struct {
    char key[96];
    uint64_t value;
} numbers[NUMBERS_MAX];
static uint32_t tensor_count, number_count;
static unsigned char *data;
static uint64_t data_bytes, header_bytes;

void family_begin(const char *name)
{
    snprintf(architecture, sizeof(architecture), "%s", name);
    tensor_count = number_count = 0;
    data_bytes = header_bytes = 0;
    free(data);
    data = NULL;
}

void family_number(const char *key, uint64_t value)
{
    CHECK(number_count < NUMBERS_MAX);
    snprintf(numbers[number_count].key, sizeof(numbers[0].key), "%s.%s", architecture, key);
    numbers[number_count++].value = value;
}

void family_tensor(uint32_t type, uint64_t a, uint64_t b, uint64_t c, const char *format, ...)
{
    struct tensor *tensor = &tensors[tensor_count++];
    const struct mp_gguf_type *info = mp_gguf_type_find(type);
    va_list args;

    CHECK(tensor_count <= TENSORS_MAX);
    CHECK(info != NULL);
    CHECK_EQ(a % info->block_elements, 0);
    *tensor = (struct tensor){ .type = type, .shape = { a, b, c }, .offset = data_bytes };
    va_start(args, format);
    vsnprintf(tensor->name, sizeof(tensor->name), format, args);
    va_end(args);
    tensor->bytes =
        a / info->block_elements * info->block_bytes * (b > 0 ? b : 1) * (c > 0 ? c : 1);
    data_bytes += (tensor->bytes + 31) / 32 * 32;
}

static void put_header(void)
{
    gguf_begin(tensor_count, number_count + 1);
    gguf_text("general.architecture"), gguf_put(8, 4), gguf_text(architecture);
    for (uint32_t i = 0; i < number_count; i++)
        gguf_number(numbers[i].key, 4, numbers[i].value, 4);
    for (uint32_t i = 0; i < tensor_count; i++) {
        const struct tensor *tensor = &tensors[i];
        const uint32_t dims = 1 + (tensor->shape[1] > 0) + (tensor->shape[2] > 0);

        gguf_text(tensor->name);
        gguf_put(dims, 4);
        for (uint32_t d = 0; d < dims; d++)
            gguf_put(tensor->shape[d], 8);
        gguf_put(tensor->type, 4);
        gguf_put(tensor->offset, 8);
    }
    gguf_data(0);
}

void family_fill(void)
{
    uint64_t state = 1;

    put_header();
    header_bytes = gguf_used;
    data = malloc(data_bytes);
    CHECK(data != NULL);
    for (uint64_t i = 0; i < data_bytes; i++) {
        state = state * UINT64_C(6364136223846793005) + 1;
        data[i] = (unsigned char)(state >> 40);
    }
}

static const struct tensor *find(const char *name)
{
    for (uint32_t i = 0; i < tensor_count; i++) {
        if (strcmp(tensors[i].name, name) == 0)
            return &tensors[i];
    }
    CHECK(name == NULL); /* no such tensor */
    return NULL;
}

void *family_data(const char *name)
{
    return data + find(name)->offset;
}

uint64_t family_offset(const char *name)
{
    return header_bytes + find(name)->offset;
}

uint64_t family_save(const char *path)
{
    FILE *file = fopen(path, "wb");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(gguf_out, 1, header_bytes, file), header_bytes);
    CHECK_EQ(fwrite(data, 1, data_bytes, file), data_bytes);
    CHECK_EQ(fclose(file), 0);
    return header_bytes + data_bytes;
}
