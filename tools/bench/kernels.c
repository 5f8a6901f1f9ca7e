/*
 * Speed of the matrix kernels on one core: `bench_kernels [repeats]`.
 *
 * Products with one token are compared with what reading the same memory costs, measured in the
 * same run by memcmp() of its halves and by adding up words in eight streams, the better of both.
 * Times are of this thread's processor time, so that other programs disturb caches but not clocks;
 * each figure is the median of the repeats.
 */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEMORY_BYTES ((size_t)192 << 20) /* far more than caches hold */
#define PERIOD_BYTES ((size_t)512 << 10)
#define REPEATS_MAX 101

struct bench {
    unsigned char *memory;
    float *x, *y;
    int repeats;
    uint64_t sink;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int count)
{
    qsort(v, (size_t)count, sizeof(*v), compare_double);
    return v[count / 2];
}

/* Adds up the memory in eight streams, which reads faster than one. */
static uint64_t add_words(const unsigned char *memory, size_t bytes)
{
    size_t part = bytes / 8;
    uint64_t sums[8] = { 0 }, w[8], total = 0;

    for (size_t i = 0; i + sizeof(w) <= part; i += sizeof(w)) {
        for (size_t stream = 0; stream < 8; stream++) {
            memcpy(w, memory + stream * part + i, sizeof(w));
            for (size_t j = 0; j < 8; j++)
                sums[j] += w[j];
        }
    }
    for (size_t j = 0; j < 8; j++)
        total += sums[j];
    return total;
}

/* The halves are equal, so that memcmp() reads both to their ends with the widest loads. */
static uint64_t compare_halves(const unsigned char *memory, size_t bytes)
{
    return memcmp(memory, memory + bytes / 2, bytes / 2) == 0;
}

/* The better of the two ways to read. */
static double read_bytes_per_s(struct bench *b, size_t bytes, int rounds)
{
    double times[2][REPEATS_MAX], add_s, compare_s;

    for (int i = 0; i < b->repeats; i++) {
        for (int way = 0; way < 2; way++) {
            double start = now_s();

            for (int round = 0; round < rounds; round++)
                b->sink += way ? compare_halves(b->memory, bytes) : add_words(b->memory, bytes);
            times[way][i] = (now_s() - start) / rounds;
        }
    }
    add_s = median(times[0], b->repeats);
    compare_s = median(times[1], b->repeats);
    return (double)bytes / (add_s < compare_s ? add_s : compare_s);
}

/* Seconds of one product; `rounds` of them make one measurement. */
static double product_s(struct bench *b, const struct mp_kernels *k, int blocked,
                        enum mp_wtype type, size_t rows, size_t cols, size_t tokens, int rounds)
{
    double times[REPEATS_MAX];

    for (int i = 0; i < b->repeats; i++) {
        double start = now_s();

        for (int round = 0; round < rounds; round++) {
            if (blocked)
                k->matmul_blocked(b->y, rows, b->memory, type, cols, b->x, cols, rows, cols, tokens,
                                  0);
            else
                k->matmul(b->y, rows, b->memory, type, cols, b->x, cols, rows, cols, tokens);
        }
        times[i] = (now_s() - start) / rounds;
    }
    return median(times, b->repeats);
}

static void bench_weights(struct bench *b, const struct mp_kernels *k, const char *where,
                          size_t bytes, int rounds)
{
    double base = read_bytes_per_s(b, bytes, rounds);

    printf("%-7s weights %s, %zu MiB, GB/s by tokens; reading alone %.2f GB/s\n", k->name, where,
           bytes >> 20, base * 1e-9);
    for (int type = 0; type < MP_WTYPE_COUNT; type++) {
        for (int blocked = 0; blocked < 2; blocked++) {
            size_t cols = blocked ? 768 : 2048;
            size_t rows = bytes / cols / mp_wtype_bytes((enum mp_wtype)type);

            printf("  %-4s %-14s", mp_wtype_name((enum mp_wtype)type),
                   blocked ? "matmul_blocked" : "matmul");
            for (size_t tokens = 1; tokens <= 8; tokens *= 2) {
                double s =
                    product_s(b, k, blocked, (enum mp_wtype)type, rows, cols, tokens, rounds);

                printf("  %zu: %5.2f (%3.0f %%)", tokens, (double)bytes / s * 1e-9,
                       100 * (double)bytes / s / base);
            }
            printf("\n");
        }
    }
}

static void bench_many_tokens(struct bench *b, const struct mp_kernels *k)
{
    static const size_t tokens[] = { 1, 2, 4, 8, 16, 64 };

    printf("%-7s one expert's matrix of 2048 x 768 from cache, GFLOP/s by tokens\n", k->name);
    for (int type = 0; type < MP_WTYPE_COUNT; type++) {
        for (int blocked = 0; blocked < 2; blocked++) {
            size_t rows = blocked ? 2048 : 768, cols = blocked ? 768 : 2048;

            printf("  %-4s %-14s", mp_wtype_name((enum mp_wtype)type),
                   blocked ? "matmul_blocked" : "matmul");
            for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
                int rounds = tokens[i] < 16 ? 4 : 1;
                double s =
                    product_s(b, k, blocked, (enum mp_wtype)type, rows, cols, tokens[i], rounds);

                printf("  %2zu: %6.1f", tokens[i],
                       2e-9 * (double)rows * (double)cols * (double)tokens[i] / s);
            }
            printf("\n");
        }
    }
}

int main(int argc, char **argv)
{
    struct bench b = { .repeats = argc > 1 ? atoi(argv[1]) : 11 };

    if (b.repeats < 1 || b.repeats > REPEATS_MAX) {
        fprintf(stderr, "usage: bench_kernels [repeats from 1 to %d]\n", REPEATS_MAX);
        return 2;
    }
    b.memory = malloc(MEMORY_BYTES);
    b.x = malloc(64 * 2048 * sizeof(float));
    b.y = malloc(MEMORY_BYTES / 2 / 768 * 8 * sizeof(float));
    if (b.memory == NULL || b.x == NULL || b.y == NULL)
        return 1;
    for (size_t i = 0; i < MEMORY_BYTES; i += 2) {
        /* A small finite number in every format; equal halves, see compare_halves(). */
        uint16_t half = (uint16_t)(0x2000 | (i % PERIOD_BYTES * 40503 >> 4 & 0x1fff));

        memcpy(b.memory + i, &half, 2);
    }
    for (size_t i = 0; i < 64 * 2048; i++)
        b.x[i] = (float)(i % 100) * 0.01f - 0.5f;
    for (size_t i = 0; mp_kernels_names[i] != NULL; i++) {
        const struct mp_kernels *k = mp_kernels_find(mp_kernels_names[i]);

        if (k == NULL || k == &mp_kernels_ref)
            continue;
        bench_weights(&b, k, "from memory", MEMORY_BYTES, 1);
        bench_weights(&b, k, "from cache", (size_t)3 << 20, 16);
        bench_many_tokens(&b, k);
    }
    printf("(checksum %llx)\n", (unsigned long long)b.sink);
    return 0;
}
