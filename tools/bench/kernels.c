/*
 * Speed of the matrix kernels:
 *
 *     bench_kernels [--json] [--repeats N] [--threads N] [--kernels NAME] [--type NAME] [--cols N]
 *
 * Types are those of plain numbers; `--type quantised` means all others, a name that one. Rows have
 * 2048 columns, 768 for matmul_blocked, or N, a multiple of 256.
 *
 * Products of few tokens read weights from memory and are compared with reading the same memory
 * alone, the way of three whose median is the best, and with the slower of that and the same
 * product with weights from the second level cache, where only arithmetic is left. Products of many
 * tokens take one expert's matrix from cache and are compared with multiply-adds on registers. All
 * limits are measured in the same run, that of reading in each repeat, with one thread and with all
 * (or N) of them, which share the rows of a product as the engine's do. Each figure is the median
 * of the repeats by the wall clock, so the machine should have nothing else to do.
 */
#include "kernels/cpu/kernels.h"
#include "tools/bench/streams.h"
#include "tools/bench/team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MEMORY_BYTES ((size_t)768 << 20) /* several times what the largest caches hold */
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define CACHED_BYTES ((size_t)384 << 10) /* per thread: the second level cache holds it */
#define CACHED_LOOPS 32
#define PERIOD_BYTES ((size_t)512 << 10)
#define REPEATS_MAX 101
#define READ_WAYS 3
#define TOKENS_MAX 512
#define COLS_MAX 8192
#define ROWS_MAX (MEMORY_BYTES / 168) /* 512 columns of the smallest type */

struct bench {
    unsigned char *memory;
    float *x, *y;
    int repeats;
    int json, results; /* printed so far */
    size_t cols;       /* 0: those of the operation */
    struct team *team;
    double flops;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median seconds of one round, of `repeats` times `rounds`. */
static double measure_s(struct bench *b, team_fn *run, void *ctx, int rounds)
{
    double times[REPEATS_MAX];

    for (int i = 0; i < b->repeats; i++) {
        double start = now_s();

        for (int round = 0; round < rounds; round++) {
            team_run(b->team, run, ctx);
        }
        times[i] = (now_s() - start) / rounds;
    }
    qsort(times, (size_t)b->repeats, sizeof(times[0]), compare_double);
    return times[b->repeats / 2];
}

static volatile uint64_t sink;

/* One word of each cache line, in order: what the hardware fetches by itself. */
static void touch_lines(const unsigned char *memory, size_t bytes)
{
    uint64_t sum = 0, w;

    for (size_t i = 0; i + 64 <= bytes; i += 64) {
        memcpy(&w, memory + i, sizeof(w));
        sum += w;
    }
    sink += sum;
}

struct reading {
    const struct bench *b;
    int way;
};

static void read_part(void *ctx, unsigned thread, unsigned threads)
{
    const struct reading *r = ctx;
    size_t bytes = MEMORY_BYTES / threads / 4096 * 4096;
    const unsigned char *at = r->b->memory + thread * bytes;
    const size_t stride = bytes / STREAMS / STREAM_STEP_BYTES * STREAM_STEP_BYTES;

    if (r->way == 0)
        sink += read_streams(at, stride, 0, stride);
    else if (r->way == 1)
        touch_lines(at, bytes);
    else /* the halves are equal, so that both are read to their ends with the widest loads */
        sink += (uint64_t)memcmp(at, at + bytes / 2, bytes / 2);
}

#if defined(__x86_64__)
#include <immintrin.h>

#define FMA_ROUNDS 200000
#define FMA_CHAINS 12

__attribute__((target("avx512f"))) static void fma_avx512(void)
{
    __m512 sums[FMA_CHAINS], a = _mm512_set1_ps(0.99f), b = _mm512_set1_ps(0.01f);

    for (int i = 0; i < FMA_CHAINS; i++)
        sums[i] = _mm512_set1_ps((float)i);
    for (int round = 0; round < FMA_ROUNDS; round++)
#pragma GCC unroll 12
        for (int i = 0; i < FMA_CHAINS; i++)
            sums[i] = _mm512_fmadd_ps(sums[i], a, b);
    for (int i = 0; i < FMA_CHAINS; i++)
        sink += (uint64_t)_mm512_cvtss_f32(sums[i]);
}

__attribute__((target("avx2,fma"))) static void fma_avx2(void)
{
    __m256 sums[FMA_CHAINS], a = _mm256_set1_ps(0.99f), b = _mm256_set1_ps(0.01f);

    for (int i = 0; i < FMA_CHAINS; i++)
        sums[i] = _mm256_set1_ps((float)i);
    for (int round = 0; round < FMA_ROUNDS; round++)
#pragma GCC unroll 12
        for (int i = 0; i < FMA_CHAINS; i++)
            sums[i] = _mm256_fmadd_ps(sums[i], a, b);
    for (int i = 0; i < FMA_CHAINS; i++)
        sink += (uint64_t)_mm256_cvtss_f32(sums[i]);
}

static void fma_part(void *ctx, unsigned thread, unsigned threads)
{
    (void)thread;
    (void)threads;
    if (*(const size_t *)ctx == 16)
        fma_avx512();
    else
        fma_avx2();
}

/* Floating-point operations per second of nothing but multiply-adds. */
static double peak_flops(struct bench *b, const struct mp_kernels *k)
{
    size_t lanes = strcmp(k->name, "avx512") == 0 ? 16 : 8;
    double s = measure_s(b, fma_part, &lanes, 1);

    return 2.0 * (double)lanes * FMA_CHAINS * FMA_ROUNDS * b->team->count / s;
}
#else
static double peak_flops(struct bench *b, const struct mp_kernels *k)
{
    (void)b;
    (void)k;
    return 0;
}
#endif

struct multiplication {
    const struct bench *b;
    const struct mp_kernels *k;
    enum mp_wtype type;
    int blocked;
    size_t rows, cols, tokens;
    int loops; /* over the same weights */
};

static void multiply_part(void *ctx, unsigned thread, unsigned threads)
{
    const struct multiplication *m = ctx;
    size_t first = m->rows / 16 * thread / threads * 16;
    size_t end = thread + 1 == threads ? m->rows : m->rows / 16 * (thread + 1) / threads * 16;
    const unsigned char *w = m->b->memory + mp_wtype_bytes(m->type, first * m->cols);

    for (int i = 0; i < m->loops; i++) {
        if (m->blocked)
            m->k->matmul_blocked(m->b->y + first, m->rows, w, m->type, m->cols, m->b->x, m->cols,
                                 end - first, m->cols, m->tokens, 0);
        else
            m->k->matmul(m->b->y + first, m->rows, w, m->type, m->cols, m->b->x, m->cols,
                         end - first, m->cols, m->tokens);
    }
}

static void begin_result(struct bench *b, const struct multiplication *m)
{
    if (b->json)
        printf("%s\n  {\"kernels\": \"%s\", \"operation\": \"%s\", \"type\": \"%s\", "
               "\"threads\": %u, \"tokens\": %zu, ",
               b->results > 0 ? "," : "[", m->k->name, m->blocked ? "matmul_blocked" : "matmul",
               mp_wtype_name(m->type), b->team->count, m->tokens);
    else
        printf("  %zu: ", m->tokens);
    b->results++;
}

/* One expert's matrix from cache. */
static void bench_many(struct bench *b, struct multiplication *m)
{
    double s = measure_s(b, multiply_part, m, m->tokens < 64 ? 4 : 1);
    double flops = 2 * (double)m->rows * (double)m->cols * (double)m->tokens / s;
    double ratio = b->flops > 0 ? flops / b->flops : 0;

    begin_result(b, m);
    if (b->json)
        printf("\"gflops\": %.3g, \"limit\": %.3g, \"ratio\": %.3f}", flops * 1e-9, b->flops * 1e-9,
               ratio);
    else
        printf("%5.1f (%.2f)", flops * 1e-9, ratio);
}

/* Seconds of one round. */
static double time_once(struct bench *b, team_fn *run, void *ctx)
{
    const double start = now_s();

    team_run(b->team, run, ctx);
    return now_s() - start;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(values[0]), compare_double);
    return values[count / 2];
}

/* Medians of the repeats. Each reads in all ways and multiplies, and has ratios of its own, because
 * the speed of a virtual machine changes from second to second. One way is the limit in all of
 * them: the fastest of three readings in each repeat would be a lucky moment, not a speed. */
struct few {
    double read_s, memory_s, cache_s; /* per MEMORY_BYTES */
    double ratio, bound_ratio;        /* reading, and the slower of it and cache, over memory_s */
};

/* Median of seconds[way][..]. */
static double median_of_way(double seconds[READ_WAYS][REPEATS_MAX], int way, int count)
{
    double sorted[REPEATS_MAX];

    memcpy(sorted, seconds[way], (size_t)count * sizeof(sorted[0]));
    return median(sorted, count);
}

/* Weights from memory; and so few of them that they stay in cache. */
static struct few measure_few(struct bench *b, struct multiplication *m)
{
    const size_t row_bytes = mp_wtype_bytes(m->type, m->cols);
    const size_t fit = CACHED_BYTES / row_bytes; /* whole tiles, but for long rows */
    const size_t rows = (fit < 48 ? fit : fit / 48 * 48) * b->team->count;
    double read_s[READ_WAYS][REPEATS_MAX], memory_s[REPEATS_MAX], cache_s[REPEATS_MAX];
    double ratio[REPEATS_MAX], bound_ratio[REPEATS_MAX];
    int best = 0;

    for (int i = 0; i < b->repeats; i++) {
        for (int way = 0; way < READ_WAYS; way++) {
            struct reading reading = { b, way };

            read_s[way][i] = time_once(b, read_part, &reading);
        }
        m->rows = MEMORY_BYTES / row_bytes;
        memory_s[i] = time_once(b, multiply_part, m);
        m->rows = rows;
        m->loops = CACHED_LOOPS;
        cache_s[i] = time_once(b, multiply_part, m) * (double)MEMORY_BYTES /
                     ((double)(rows * row_bytes) * m->loops);
        m->loops = 1;
    }
    for (int way = 1; way < READ_WAYS; way++) {
        if (median_of_way(read_s, way, b->repeats) < median_of_way(read_s, best, b->repeats))
            best = way;
    }
    for (int i = 0; i < b->repeats; i++) {
        const double bound_s = read_s[best][i] > cache_s[i] ? read_s[best][i] : cache_s[i];

        ratio[i] = read_s[best][i] / memory_s[i];
        bound_ratio[i] = bound_s / memory_s[i];
    }
    return (struct few){ median_of_way(read_s, best, b->repeats), median(memory_s, b->repeats),
                         median(cache_s, b->repeats), median(ratio, b->repeats),
                         median(bound_ratio, b->repeats) };
}

static void bench_few(struct bench *b, struct multiplication *m)
{
    const struct few few = measure_few(b, m);
    const double gb = (double)MEMORY_BYTES * 1e-9;

    begin_result(b, m);
    if (b->json)
        printf("\"gb_per_s\": %.3g, \"limit\": %.3g, \"ratio\": %.3f, \"cached_gb_per_s\": %.3g, "
               "\"bound_ratio\": %.3f}",
               gb / few.memory_s, gb / few.read_s, few.ratio, gb / few.cache_s, few.bound_ratio);
    else
        printf("%5.1f of %5.1f (%.2f, %.2f)", gb / few.memory_s, gb / few.read_s, few.ratio,
               few.bound_ratio);
}

static void bench_line(struct bench *b, const struct mp_kernels *k, enum mp_wtype type, int blocked,
                       int many)
{
    struct multiplication m = { b, k, type, blocked, blocked ? 2048 : 768, blocked ? 768 : 2048,
                                1, 1 };
    const size_t last = many ? TOKENS_MAX : 8;

    if (b->cols != 0)
        m.cols = b->cols;
    if (!b->json)
        printf("  %-6s %-14s", mp_wtype_name(type), blocked ? "matmul_blocked" : "matmul");
    for (m.tokens = many ? 16 : 1; m.tokens <= last; m.tokens *= 2) {
        if (many)
            bench_many(b, &m);
        else
            bench_few(b, &m);
        fflush(stdout);
    }
    if (!b->json)
        printf("\n");
}

static int is_wanted(enum mp_wtype type, const char *name)
{
    const int quantised = type >= MP_WTYPE_PLAIN_COUNT;

    if (name == NULL || strcmp(name, "quantised") == 0)
        return quantised == (name != NULL);
    return strcmp(name, mp_wtype_name(type)) == 0;
}

static void bench_kernels(struct bench *b, const struct mp_kernels *k, const char *type_name)
{
    b->flops = peak_flops(b, k);
    for (int many = 0; many < 2; many++) {
        if (!b->json && !many)
            printf("%s, threads: %u, weights from memory; tokens: GB/s of those when only read "
                   "(ratio to that, to the slower of that and weights from cache)\n",
                   k->name, b->team->count);
        else if (!b->json)
            printf("%s, threads: %u, 2048 x 768 from cache; tokens: GFLOP/s (of %.1f on "
                   "registers)\n",
                   k->name, b->team->count, b->flops * 1e-9);
        for (int type = 0; type < MP_WTYPE_COUNT; type++) {
            if (!is_wanted((enum mp_wtype)type, type_name))
                continue;
            for (int blocked = 0; blocked < 2; blocked++)
                bench_line(b, k, (enum mp_wtype)type, blocked, many);
        }
    }
}

static int make_operands(struct bench *b)
{
    b->memory = aligned_alloc(HUGE_PAGE_BYTES, MEMORY_BYTES);
    b->x = malloc((size_t)TOKENS_MAX * COLS_MAX * sizeof(float));
    b->y = malloc(ROWS_MAX * 8 * sizeof(float));
    if (b->memory == NULL || b->x == NULL || b->y == NULL)
        return 0;
    madvise(b->memory, MEMORY_BYTES, MADV_HUGEPAGE); /* Only a hint, as for real weights. */
    for (size_t i = 0; i < MEMORY_BYTES; i += 2) {
        /* A small finite number in every format; equal halves of every part, see read_part(). */
        uint16_t half = (uint16_t)(0x2000 | (i % PERIOD_BYTES * 40503 >> 4 & 0x1fff));

        memcpy(b->memory + i, &half, 2);
    }
    for (size_t i = 0; i < (size_t)TOKENS_MAX * COLS_MAX; i++)
        b->x[i] = (float)(i % 100) * 0.01f - 0.5f;
    memset(b->y, 0, ROWS_MAX * 8 * sizeof(float));
    return 1;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: bench_kernels [--json] [--repeats 1..%d] [--threads 1..%d] [--kernels NAME] "
            "[--type NAME] [--cols N]\n",
            REPEATS_MAX, TEAM_THREADS_MAX);
    return 2;
}

int main(int argc, char **argv)
{
    struct bench b = { .repeats = 7 };
    const char *only = NULL, *type = NULL;
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    static struct team team;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            b.json = 1;
        else if (i + 1 < argc && strcmp(argv[i], "--repeats") == 0)
            b.repeats = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--threads") == 0)
            all = atol(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--kernels") == 0)
            only = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--type") == 0)
            type = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--cols") == 0)
            b.cols = (size_t)atol(argv[++i]);
        else
            return usage();
    }
    if (b.cols % 256 != 0 || b.cols == 256 || b.cols > COLS_MAX)
        return usage();
    if (b.repeats < 1 || b.repeats > REPEATS_MAX || all < 1 || all > TEAM_THREADS_MAX)
        return usage();
    if (!make_operands(&b))
        return 1;
    b.team = &team;
    for (unsigned threads = 1; threads <= all; threads = threads == 1 && all > 1 ? all : all + 1) {
        if (!team_start(&team, threads))
            return 1;
        for (size_t i = 0; mp_kernels_names[i] != NULL; i++) {
            const struct mp_kernels *k = mp_kernels_find(mp_kernels_names[i]);

            if (k != NULL && (only == NULL ? k != &mp_kernels_ref : strcmp(only, k->name) == 0))
                bench_kernels(&b, k, type);
        }
        team_stop(&team);
    }
    if (b.json)
        printf("%s]\n", b.results > 0 ? "\n" : "[");
    return 0;
}
