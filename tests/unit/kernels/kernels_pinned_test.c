/*
 * The bits that each implementation gives, pinned: one number per implementation and kernel over
 * made-up numbers. Logits stay what they were only while these do. A change that is meant changes a
 * number here, and says so; whether results are right is for the other tests of kernels.
 */
#include "tests/unit/kernels/common.h"

#define HASH_START UINT64_C(0xcbf29ce484222325)

enum { ROWS = 13, COLS = 1300, TOKENS = 19, WIDTH = 45, HEADS = 5, DIM = 40, POSITIONS = 21 };

static uint64_t state, hash;
static float x[TOKENS * COLS], y[TOKENS * ROWS], a[WIDTH * POSITIONS * HEADS],
    b[WIDTH * POSITIONS * HEADS], c[WIDTH * POSITIONS * HEADS], scores[HEADS * POSITIONS];
static unsigned char w[ROWS * COLS * sizeof(float)];

static uint32_t next_bits(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static void fill(float *p, size_t count, float scale)
{
    for (size_t i = 0; i < count; i++)
        p[i] = (float)(int32_t)next_bits() * 0x1p-31f * scale;
}

static void note(const float *p, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, &p[i], sizeof(bits));
        hash = (hash ^ bits) * UINT64_C(0x100000001b3);
    }
}

/* Of sizes from about 2^-6 to 2 in every type. */
static void fill_weights(enum mp_wtype type)
{
    for (size_t i = 0; i < ROWS * COLS; i++) {
        const uint32_t bits = next_bits();
        const uint16_t bf16 = (uint16_t)((bits & 0x807f) | (121 + bits / 65536 % 7) << 7);
        const uint16_t f16 = (uint16_t)((bits & 0x83ff) | (9 + bits / 65536 % 7) << 10);
        const uint32_t f32 = (uint32_t)bf16 << 16 | bits >> 16;

        if (type == MP_WTYPE_F32)
            memcpy(w + 4 * i, &f32, 4);
        else
            memcpy(w + 2 * i, type == MP_WTYPE_BF16 ? &bf16 : &f16, 2);
    }
}

static void products(const struct mp_kernels *k)
{
    static const size_t tokens[] = { 1, 2, 3, 5, 8, TOKENS };

    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        fill_weights((enum mp_wtype)type);
        fill(x, LEN(x), 1);
        k->convert(a, w, (enum mp_wtype)type, WIDTH);
        note(a, WIDTH);
        for (size_t i = 0; i < LEN(tokens); i++) {
            k->matmul(y, ROWS, w, (enum mp_wtype)type, COLS, x, COLS, ROWS, COLS - i, tokens[i]);
            note(y, ROWS * tokens[i]);
            k->matmul_blocked(y, ROWS, w, (enum mp_wtype)type, COLS, x, COLS, ROWS, COLS - i,
                              tokens[i], i % 2);
            note(y, ROWS * tokens[i]);
        }
    }
}

static void pointwise(const struct mp_kernels *k)
{
    fill(a, LEN(a), 3);
    fill(b, LEN(b), 2);
    k->rmsnorm(c, WIDTH, a, WIDTH, b, WIDTH, 3, 1e-5f);
    note(c, 3 * WIDTH);
    k->rope(a, b, c, DIM);
    note(a, DIM);
    for (size_t i = 0; i < WIDTH; i++)
        a[i] *= i % 3 == 0 ? 1 : i % 3 == 1 ? 10 : 40;
    k->silu_mul(a, b, WIDTH);
    note(a, WIDTH);
    fill(a, LEN(a), 20);
    k->softmax(a, WIDTH, WIDTH, 3);
    note(a, 3 * WIDTH);
    k->axpy(a, b, 0.3f, WIDTH);
    note(a, WIDTH);
}

static void attention(const struct mp_kernels *k)
{
    fill(a, LEN(a), 2);
    fill(b, LEN(b), 2);
    fill(x, LEN(x), 2);
    for (size_t positions = 1; positions <= POSITIONS; positions += 4) {
        const struct mp_attention attention = {
            .out = c,
            .q = x,
            .k = a,
            .v = b,
            .kv_stride = WIDTH,
            .heads = HEADS,
            .dim = DIM,
            .positions = positions,
            .scale = 0.16f,
            .scores = scores,
        };

        k->attend(&attention);
        note(c, HEADS * DIM);
    }
}

static const struct {
    const char *name; /* of the implementation, and what */
    uint64_t hash;
} pinned[] = {
    { "amx products", UINT64_C(0x61e0032d49bc6c65) },
    { "amx pointwise", UINT64_C(0x06990cd7dd25db04) },
    { "amx attention", UINT64_C(0x8bb6ed09b25704ba) },
    { "avx512bf16 products", UINT64_C(0xd17248968abb73b4) },
    { "avx512bf16 pointwise", UINT64_C(0x06990cd7dd25db04) },
    { "avx512bf16 attention", UINT64_C(0x8bb6ed09b25704ba) },
    { "avx512 products", UINT64_C(0x85fc4134bcd77249) },
    { "avx512 pointwise", UINT64_C(0x06990cd7dd25db04) },
    { "avx512 attention", UINT64_C(0x8bb6ed09b25704ba) },
    { "avx2 products", UINT64_C(0x239bb6ffa9cf0e36) },
    { "avx2 pointwise", UINT64_C(0x06990cd7dd25db04) },
    { "avx2 attention", UINT64_C(0x47176a9234fd8e69) },
    { "neonbf16 products", UINT64_C(0x6deb7534ea21aabb) },
    { "neonbf16 pointwise", UINT64_C(0x06990cd7dd25db04) },
    { "neonbf16 attention", UINT64_C(0x47176a9234fd8e69) },
    { "neon products", UINT64_C(0x239bb6ffa9cf0e36) },
    { "neon pointwise", UINT64_C(0x06990cd7dd25db04) },
    { "neon attention", UINT64_C(0x47176a9234fd8e69) },
    { "ref products", UINT64_C(0x2e7c04946407c066) },
    { "ref pointwise", UINT64_C(0x281172f764e9f32a) },
    { "ref attention", UINT64_C(0xe863e8f4e13c954e) },
};

static unsigned compare(const char *implementation, const char *what)
{
    char name[64];

    snprintf(name, sizeof(name), "%s %s", implementation, what);
    for (size_t i = 0; i < LEN(pinned); i++) {
        if (strcmp(pinned[i].name, name) == 0 && pinned[i].hash == hash)
            return 0;
    }
    fprintf(stderr, "    { \"%s\", UINT64_C(0x%016llx) },\n", name, (unsigned long long)hash);
    return 1;
}

static void every_implementation_gives_its_bits(void)
{
    unsigned wrong = 0;

    for (size_t i = 0; mp_kernels_names[i] != NULL; i++) {
        const struct mp_kernels *k = mp_kernels_find(mp_kernels_names[i]);

        if (k == NULL) /* not on this processor */
            continue;
        state = 1;
        hash = HASH_START;
        products(k);
        wrong += compare(k->name, "products");
        hash = HASH_START;
        pointwise(k);
        wrong += compare(k->name, "pointwise");
        hash = HASH_START;
        attention(k);
        wrong += compare(k->name, "attention");
    }
    CHECK_EQ(wrong, 0);
}

int main(void)
{
    RUN(every_implementation_gives_its_bits);
    return 0;
}
