/* Writing GGUF files; see gguf.h. */
#include "tests/support/gguf.h"

#include "tests/support/test.h"

#define LONG_HEADER_BYTES 100000

unsigned char gguf_out[1 << 20];
size_t gguf_used;

void gguf_begin(uint64_t tensors, uint64_t entries)
{
    gguf_used = 0;
    gguf_put(0x46554747, 4);
    gguf_put(3, 4);
    gguf_put(tensors, 8);
    gguf_put(entries, 8);
}

void gguf_put(uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        gguf_out[gguf_used++] = (unsigned char)(value >> 8 * i);
}

void gguf_text(const char *s)
{
    gguf_put(strlen(s), 8);
    memcpy(gguf_out + gguf_used, s, strlen(s));
    gguf_used += strlen(s);
}

void gguf_number(const char *key, unsigned kind, uint64_t value, unsigned bytes)
{
    gguf_text(key);
    gguf_put(kind, 4);
    gguf_put(value, bytes);
}

static void put_tensor(const char *name, unsigned dims, const uint64_t *shape, unsigned type,
                       uint64_t offset)
{
    gguf_text(name);
    gguf_put(dims, 4);
    for (unsigned d = 0; d < dims; d++)
        gguf_put(shape[d], 8);
    gguf_put(type, 4);
    gguf_put(offset, 8);
}

void gguf_tensor(const char *name, uint64_t a, uint64_t b, unsigned type, uint64_t offset)
{
    put_tensor(name, 2, (const uint64_t[]){ a, b }, type, offset);
}

void gguf_tensor_3d(const char *name, uint64_t a, uint64_t b, uint64_t c, unsigned type,
                    uint64_t offset)
{
    put_tensor(name, 3, (const uint64_t[]){ a, b, c }, type, offset);
}

void gguf_data(size_t bytes)
{
    while (gguf_used % 32 != 0)
        gguf_out[gguf_used++] = 0;
    memset(gguf_out + gguf_used, 0, bytes);
    gguf_used += bytes;
}

void gguf_save(const char *path)
{
    FILE *file = fopen(path, "wb");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(gguf_out, 1, gguf_used, file), gguf_used);
    CHECK_EQ(fclose(file), 0);
}

void gguf_parts(char paths[2][GGUF_PATH_BYTES], const char *second, uint64_t total)
{
    for (unsigned p = 0; p < 2; p++) {
        snprintf(paths[p], GGUF_PATH_BYTES, "%s/m-%05u-of-00002.gguf", test_tmpdir(), p + 1);
        gguf_begin(1, 4);
        gguf_number("split.no", 2, p, 2);
        gguf_number("split.count", 2, 2, 2);
        gguf_number("split.tensors.count", 5, total, 4);
        gguf_text("pad"), gguf_put(9, 4), gguf_put(0, 4), gguf_put(LONG_HEADER_BYTES, 8);
        gguf_used += LONG_HEADER_BYTES;
        gguf_tensor(p == 0 ? "a" : second, 8, 1, 0, 0);
        gguf_data(32);
        gguf_save(paths[p]);
    }
}
