/*
 * Forty GGUF files, each broken in one place, and what a user reads: one line with the file, the
 * place, what was found and what is needed.
 */
#include "tests/support/gguf.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/format/gguf.h"

enum what { END, NUMBER, TEXT, KEY, TENSOR, TENSOR_3D, DATA, CUT };

/* A piece of a file, as tests/support/gguf.h writes it. */
struct piece {
    enum what what;
    const char *text;
    uint64_t a, b, c, d, e;
};

#define NUM(value, bytes)                   \
    {                                       \
        NUMBER, NULL, value, bytes, 0, 0, 0 \
    }
#define STR(text)                 \
    {                             \
        TEXT, text, 0, 0, 0, 0, 0 \
    }
#define KEY_OF(key, kind, value, bytes)    \
    {                                      \
        KEY, key, kind, value, bytes, 0, 0 \
    }
#define TENSOR_OF(name, cols, rows, type, offset) \
    {                                             \
        TENSOR, name, cols, rows, type, offset, 0 \
    }
#define CUBE(name, a, b, c, type)         \
    {                                     \
        TENSOR_3D, name, a, b, c, type, 0 \
    }
#define ZEROS(bytes)                  \
    {                                 \
        DATA, NULL, bytes, 0, 0, 0, 0 \
    }
#define CUT_TO(bytes)                \
    {                                \
        CUT, NULL, bytes, 0, 0, 0, 0 \
    }
#define HEAD(tensors, entries) NUM(0x46554747, 4), NUM(3, 4), NUM(tensors, 8), NUM(entries, 8)

#define F32 0
#define Q8_0 8
#define Q4_K 12

static const struct {
    struct piece pieces[12];
    const char *code, *message;
} cases[] = {
    /* The first bytes. */
    { { CUT_TO(0) },
      "SHORT",
      "header of 'broken.gguf' at byte 0: got 0 bytes, need 4; a header has at most 268435456 "
      "bytes and the file 0, download it again" },
    { { NUM(0x47, 1) },
      "SHORT",
      "header of 'broken.gguf' at byte 0: got 1 bytes, need 4; a header has at most 268435456 "
      "bytes and the file 1, download it again" },
    { { NUM(0x6c6d7867, 4), NUM(3, 4), NUM(0, 8), NUM(0, 8) },
      "MAGIC",
      "'broken.gguf' begins with 6c6d7867, need 46554747 (GGUF); it is no GGUF file" },
    { { NUM(0x04034b50, 4), NUM(3, 4), NUM(0, 8), NUM(0, 8) },
      "MAGIC",
      "'broken.gguf' begins with 04034b50, need 46554747 (GGUF); it is no GGUF file" },
    { { NUM(0x46554747, 4), NUM(1, 4), NUM(0, 8), NUM(0, 8) },
      "VERSION",
      "'broken.gguf' is GGUF version 1, need 2 or 3; convert the model again" },
    { { NUM(0x46554747, 4), NUM(0x03000000, 4), NUM(0, 8), NUM(0, 8) },
      "VERSION",
      "'broken.gguf' is GGUF version 50331648 (big-endian), need 2 or 3; convert the model again" },
    { { NUM(0x46554747, 4), NUM(4, 4), NUM(0, 8), NUM(0, 8) },
      "VERSION",
      "'broken.gguf' is GGUF version 4, need 2 or 3; convert the model again" },
    { { HEAD(UINT64_MAX, 0) },
      "COUNT",
      "'broken.gguf' says 18446744073709551615 tensors and 0 keys, need at most 131072 and 65536" },
    { { HEAD(0, UINT64_MAX) },
      "COUNT",
      "'broken.gguf' says 0 tensors and 18446744073709551615 keys, need at most 131072 and 65536" },
    { { HEAD(3, 0), CUT_TO(23) },
      "SHORT",
      "header of 'broken.gguf' at byte 16: got 7 bytes, need 8; a header has at most 268435456 "
      "bytes and the file 23, download it again" },
    { { HEAD(0, 2), KEY_OF("k", 4, 1, 4) },
      "SHORT",
      "header of 'broken.gguf' at byte 41: got 0 bytes, need 8; a header has at most 268435456 "
      "bytes and the file 41, download it again" },
    /* Keys. */
    { { HEAD(0, 1), NUM(0, 8), NUM(0, 4), NUM(0, 1) },
      "NAME",
      "a key in 'broken.gguf' at byte 24 is 0 bytes, need at least 1 and at most 65535" },
    { { HEAD(0, 1), NUM(UINT64_MAX, 8) },
      "NAME",
      "a key in 'broken.gguf' at byte 24 is 18446744073709551615 bytes, need at least 1 and at "
      "most 65535" },
    { { HEAD(0, 1), NUM(3, 8), NUM(0x6b006b, 3), NUM(0, 4), NUM(0, 1) },
      "NAME",
      "a key 'k\\x00k' in 'broken.gguf' at byte 24 has a NUL byte, need none" },
    { { HEAD(0, 2), KEY_OF("k", 0, 0, 1), KEY_OF("k", 0, 1, 1) },
      "DUP",
      "key 'k' is in 'broken.gguf' twice" },
    /* Values. */
    { { HEAD(0, 1), KEY_OF("k", 13, 0, 1) },
      "VALUE",
      "key 'k' in 'broken.gguf' at byte 33 has a value of type 13, need at most 12" },
    { { HEAD(0, 1), KEY_OF("k", UINT32_MAX, 0, 1) },
      "VALUE",
      "key 'k' in 'broken.gguf' at byte 33 has a value of type 4294967295, need at most 12" },
    { { HEAD(0, 1), KEY_OF("k", MP_GGUF_BOOL, 2, 1) },
      "VALUE",
      "key 'k' in 'broken.gguf' at byte 37 has the bool 2, need 0 or 1" },
    { { HEAD(0, 1), KEY_OF("k", MP_GGUF_STRING, UINT64_MAX, 8) },
      "VALUE",
      "key 'k' in 'broken.gguf' at byte 37 has a string of 18446744073709551615 bytes, need at "
      "most 67108864" },
    { { HEAD(0, 1), KEY_OF("k", MP_GGUF_STRING, 10, 8), NUM(0x6161, 2) },
      "SHORT",
      "header of 'broken.gguf' at byte 45: got 2 bytes, need 10; a header has at most "
      "268435456 bytes and the file 47, download it again" },
    { { HEAD(0, 1), KEY_OF("k", MP_GGUF_ARRAY, MP_GGUF_U64, 4), NUM(UINT64_MAX / 4, 8) },
      "SHORT",
      "header of 'broken.gguf' at byte 49: got 0 bytes, need 18446744073709551615; a header "
      "has at most 268435456 bytes and the file 49, download it again" },
    { { HEAD(0, 1), KEY_OF("k", MP_GGUF_ARRAY, MP_GGUF_STRING, 4), NUM(2, 8), STR("one") },
      "SHORT",
      "header of 'broken.gguf' at byte 60: got 0 bytes, need 8; a header has at most 268435456 "
      "bytes and the file 60, download it again" },
    { { HEAD(0, 1), KEY_OF("k", MP_GGUF_ARRAY, 99, 4), NUM(2, 8) },
      "VALUE",
      "key 'k' in 'broken.gguf' at byte 37 has a value of type 99, need at most 12" },
    { { HEAD(0, 1), KEY_OF("k", MP_GGUF_ARRAY, MP_GGUF_BOOL, 4), NUM(2, 8), NUM(0x0501, 2) },
      "VALUE",
      "key 'k' in 'broken.gguf' at byte 50 has the bool 5, need 0 or 1" },
    { { HEAD(0, 1), KEY_OF("general.alignment", MP_GGUF_U32, 48, 4) },
      "ALIGN",
      "general.alignment in 'broken.gguf' at byte 24 is 48, need a power of two up to 1048576" },
    { { HEAD(0, 1), KEY_OF("general.alignment", MP_GGUF_U32, 0, 4) },
      "ALIGN",
      "general.alignment in 'broken.gguf' at byte 24 is 0, need a power of two up to 1048576" },
    { { HEAD(0, 1), KEY_OF("general.alignment", MP_GGUF_U32, 1 << 30, 4) },
      "ALIGN",
      "general.alignment in 'broken.gguf' at byte 24 is 1073741824, need a power of two up to "
      "1048576" },
    { { HEAD(0, 1), KEY_OF("general.alignment", MP_GGUF_STRING, 2, 8), NUM(0x3233, 2) },
      "ALIGN",
      "general.alignment in 'broken.gguf' at byte 24 is 0, need a power of two up to 1048576" },
    /* Tensors. */
    { { HEAD(1, 0), NUM(0, 8) },
      "NAME",
      "a tensor's name in 'broken.gguf' at byte 24 is 0 bytes, need at least 1 and at most 1024" },
    { { HEAD(1, 0), NUM(5000, 8) },
      "NAME",
      "a tensor's name in 'broken.gguf' at byte 24 is 5000 bytes, need at least 1 and at most "
      "1024" },
    { { HEAD(1, 0), STR("t"), NUM(5, 4) },
      "SHAPE",
      "tensor 't' in 'broken.gguf' at byte 24 has 5 dimensions, need at most 4" },
    { { HEAD(1, 0), TENSOR_OF("t", 33, 1, Q8_0, 0), ZEROS(64) },
      "SHAPE",
      "tensor 't' in 'broken.gguf': a row of Q8_0 has 33 elements, need a multiple of 32" },
    { { HEAD(1, 0), TENSOR_OF("t", 128, 8, Q4_K, 0), ZEROS(64) },
      "SHAPE",
      "tensor 't' in 'broken.gguf': a row of Q4_K has 128 elements, need a multiple of 256" },
    { { HEAD(1, 0), CUBE("t", UINT64_C(1) << 32, UINT64_C(1) << 32, 2, F32), ZEROS(64) },
      "SHAPE",
      "tensor 't' in 'broken.gguf': its size does not fit in 64 bits" },
    { { HEAD(1, 0), TENSOR_OF("t", 1, 1, 4, 0), ZEROS(64) },
      "TYPE",
      "tensor 't' in 'broken.gguf' at byte 24 has type 4, which is not known here" },
    { { HEAD(1, 0), TENSOR_OF("t", 1, 1, 7777, 0), ZEROS(64) },
      "TYPE",
      "tensor 't' in 'broken.gguf' at byte 24 has type 7777, which is not known here" },
    { { HEAD(1, 0), TENSOR_OF("t", 8, 1, F32, 4), ZEROS(64) },
      "OFFSET",
      "tensor 't' in 'broken.gguf' lies at byte 4 of the data, need a multiple of 32" },
    { { HEAD(1, 0), TENSOR_OF("t", 8, 1, F32, 0), ZEROS(31) },
      "END",
      "tensor 't' in 'broken.gguf' ends at byte 128, file has 127; it is cut short, download "
      "it again" },
    { { HEAD(1, 0), TENSOR_OF("t", 8, 1, F32, UINT64_MAX - 31), ZEROS(64) },
      "END",
      "tensor 't' in 'broken.gguf' ends at byte 18446744073709551615, file has 160; it is cut "
      "short, download it again" },
    { { HEAD(2, 0), TENSOR_OF("a", 9, 1, F32, 0), TENSOR_OF("b", 1, 1, F32, 32), ZEROS(64) },
      "OVERLAP",
      "tensor 'b' in 'broken.gguf' begins at byte 160, before the end of 'a' at byte 164" },
    { { HEAD(2, 0), TENSOR_OF("a", 8, 1, F32, 0), TENSOR_OF("a", 1, 1, F32, 32), ZEROS(64) },
      "DUP",
      "tensor 'a' is in 'broken.gguf' twice" },
};

static void write_pieces(const struct piece *pieces)
{
    gguf_used = 0;
    for (const struct piece *p = pieces; p->what != END; p++) {
        switch (p->what) {
        case NUMBER: gguf_put(p->a, (unsigned)p->b); break;
        case TEXT: gguf_text(p->text); break;
        case KEY: gguf_number(p->text, (unsigned)p->a, p->b, (unsigned)p->c); break;
        case TENSOR: gguf_tensor(p->text, p->a, p->b, (unsigned)p->c, p->d); break;
        case TENSOR_3D: gguf_tensor_3d(p->text, p->a, p->b, p->c, (unsigned)p->d, 0); break;
        case DATA: gguf_data(p->a); break;
        case CUT: gguf_used = p->a; break;
        case END: break;
        }
    }
}

static void each_is_refused_with_its_line(void)
{
    static char path[GGUF_PATH_BYTES];
    unsigned wrong = 0;

    CHECK(MP_ARRAY_LEN(cases) >= 40);
    snprintf(path, sizeof(path), "%s/broken.gguf", test_tmpdir());
    CHECK_EQ(chdir(test_tmpdir()), 0); /* so that lines have the file's name only */
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct mp_gguf *gguf = NULL;
        char code[32];

        write_pieces(cases[i].pieces);
        gguf_save(path);
        mp_error_clear();
        CHECK_EQ(mp_gguf_open("broken.gguf", &gguf), MP_ERR_MODEL);
        snprintf(code, sizeof(code), "E_GGUF_%s", cases[i].code);
        if (strcmp(mp_error_last()->code, code) == 0 &&
            strcmp(mp_error_last()->text, cases[i].message) == 0)
            continue;
        fprintf(stderr, "case %zu: %s: %s\n", i, mp_error_last()->code, mp_error_last()->text);
        wrong++;
    }
    CHECK_EQ(wrong, 0);
}

int main(void)
{
    RUN(each_is_refused_with_its_line);
    return 0;
}
