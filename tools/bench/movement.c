/*
 * What moving a token's bytes takes, by a program that does nothing else:
 * `bench_movement FILE UNIT_BYTES SLOTS LAYER_BYTES HEAD_BYTES THREADS LIST` prints one JSON
 * object.
 *
 * It keeps the order in which an engine learns what it needs and computes nothing. Of each layer it
 * reads LAYER_BYTES of memory; then it is known what the layer needs and what a guess names of the
 * next one: demands and guesses go to the pager's reader, with the pager's settings (MOEPAGER_IO_*,
 * MOEPAGER_URING), direct, from random places of FILE. Then it reads as many slots of memory as the
 * layer finds there, and each of those that are being read as soon as it has come. After the last
 * layer HEAD_BYTES of memory, and the next token begins. A guess is never wrong.
 *
 * LIST has a line per token, "hits:guesses:demands" per layer with a space between layers: units
 * that are there when the layer is routed, that were named by the layer before it, and that nobody
 * had named. SLOTS slots of memory are there before it begins, reads go from one to the next;
 * THREADS threads read memory, as the engine's do.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/pool/pool.h"
#include "tools/bench/streams.h"
#include "vmm/base/error.h"
#include "vmm/io/io_options.h"
#include "vmm/io/reader.h"

#define ALIGN 4096
#define LAYERS_MAX 256
#define UNITS_MAX 64 /* of a layer */
#define BYTES_MAX (UINT64_C(1) << 50)
#define LINE_BYTES (LAYERS_MAX * 24)
#define PART_BYTES ((size_t)STREAMS * STREAM_STEP_BYTES)

struct layer {
    uint32_t hits, guesses, demands;
};

struct units {
    struct mp_ticket tickets[UNITS_MAX];
    uint32_t count;
};

struct bench {
    struct mp_files *files;
    struct mp_reader *reader;
    struct mp_pool *pool;
    uint64_t file_bytes, unit_bytes, slots, layer_bytes, head_bytes;
    uint64_t random, next_slot, next_hit, weights_at;
    unsigned char *memory, *weights; /* slots; what is not an expert, all layers and the head */
    uint64_t sum, layers, tokens, read_units;
    struct units units[2]; /* on their way for a layer, and for the one after it */
};

struct span {
    const unsigned char *from;
    size_t bytes;
    unsigned threads;
    uint64_t sums[MP_POOL_THREADS_MAX];
};

static void read_part(void *ctx, uint64_t part, unsigned thread)
{
    struct span *span = ctx;
    const size_t bytes = span->bytes / span->threads / PART_BYTES * PART_BYTES;

    span->sums[thread] +=
        read_streams(span->from + part * bytes, bytes / STREAMS, 0, bytes / STREAMS);
}

/* By all threads, but for what is less than 2 KiB of each. */
static void read_memory(struct bench *bench, const unsigned char *from, uint64_t bytes)
{
    struct span span = { from, bytes, mp_pool_threads(bench->pool), { 0 } };

    mp_pool_run(bench->pool, read_part, &span, span.threads);
    for (unsigned i = 0; i < span.threads; i++)
        bench->sum += span.sums[i];
}

static void read_weights(struct bench *bench, uint64_t bytes)
{
    read_memory(bench, bench->weights + bench->weights_at, bytes);
    bench->weights_at += bytes;
}

static uint64_t random_offset(struct bench *bench)
{
    bench->random = bench->random * 6364136223846793005u + 1442695040888963407u;
    return (bench->random >> 20) % ((bench->file_bytes - bench->unit_bytes) / ALIGN) * ALIGN;
}

static void submit(struct bench *bench, struct units *units, uint32_t count,
                   enum mp_priority priority)
{
    for (uint32_t i = 0; i < count; i++) {
        struct mp_ticket *ticket = &units->tickets[units->count++];

        ticket->extents[0] = (struct mp_extent){
            .offset = random_offset(bench),
            .bytes = bench->unit_bytes,
            .need_bytes = bench->unit_bytes,
            .dst = bench->memory + bench->next_slot * bench->unit_bytes,
        };
        ticket->extent_count = 1;
        ticket->direct = true;
        ticket->priority = priority;
        bench->next_slot = (bench->next_slot + 1) % bench->slots;
        mp_reader_submit(bench->reader, ticket);
    }
    bench->read_units += count;
}

/* Read in memory what has been read from the file, one by one as they come. */
static enum mp_status take(struct bench *bench, struct units *units)
{
    struct mp_ticket *left[UNITS_MAX];
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < units->count; i++)
        left[i] = &units->tickets[i];
    while (units->count > 0) {
        const uint32_t i = mp_reader_wait_any(bench->reader, left, units->count);

        if (mp_ticket_state(left[i]) == MP_TICKET_FAILED) {
            mp_error_set(&left[i]->error);
            status = left[i]->error.status;
        } else {
            read_memory(bench, left[i]->extents[0].dst, bench->unit_bytes);
        }
        units->count--;
        memmove(&left[i], &left[i + 1], (units->count - i) * sizeof(left[0]));
    }
    return status;
}

/* The layer, and what it names of the next one. */
static enum mp_status run_layer(struct bench *bench, uint64_t index, const struct layer *layer,
                                const struct layer *next)
{
    struct units *units = &bench->units[index % 2];

    read_weights(bench, bench->layer_bytes);
    for (uint32_t i = 0; i < units->count; i++)
        mp_reader_promote(bench->reader, &units->tickets[i]);
    submit(bench, units, layer->demands, MP_PRIORITY_DEMAND);
    submit(bench, &bench->units[(index + 1) % 2], next->guesses, MP_PRIORITY_PREFETCH);
    mp_reader_push(bench->reader);
    for (uint32_t i = 0; i < layer->hits; i++) {
        bench->next_hit = (bench->next_hit + 1) % bench->slots;
        read_memory(bench, bench->memory + bench->next_hit * bench->unit_bytes, bench->unit_bytes);
    }
    return take(bench, units);
}

/* Tokens of which the first layer's guesses are named by the last layer of the one before. */
static enum mp_status run_tokens(struct bench *bench, const struct layer *list)
{
    static const struct layer none;
    const uint64_t count = bench->tokens * bench->layers;
    enum mp_status status = MP_OK;

    for (uint64_t i = 0; i < count && status == MP_OK; i++) {
        if (i % bench->layers == 0)
            bench->weights_at = 0;
        status = run_layer(bench, i, &list[i], i + 1 < count ? &list[i + 1] : &none);
        if ((i + 1) % bench->layers == 0)
            read_weights(bench, bench->head_bytes);
    }
    return status;
}

/* One line of the list; the first one says how many layers there are. */
static enum mp_status read_line(struct bench *bench, const char *line, struct layer *layers)
{
    uint64_t count = 0;
    int used;

    while (count < LAYERS_MAX &&
           sscanf(line, "%" SCNu32 ":%" SCNu32 ":%" SCNu32 "%n", &layers[count].hits,
                  &layers[count].guesses, &layers[count].demands, &used) == 3) {
        if (layers[count].guesses > UNITS_MAX || layers[count].demands > UNITS_MAX / 2 ||
            layers[count].guesses + layers[count].demands > UNITS_MAX)
            break;
        line += used;
        count++;
    }
    if (count == 0 || (bench->layers != 0 && count != bench->layers) || *line != '\n')
        return mp_fail(MP_ERR_CONFIG, "E_BENCH",
                       "line %" PRIu64
                       " of the list is not hits:guesses:demands per layer, the same "
                       "number of layers in each",
                       bench->tokens + 1);
    bench->layers = count;
    return MP_OK;
}

static enum mp_status read_list(struct bench *bench, const char *path, struct layer **list_p)
{
    static char line[LINE_BYTES];
    static struct layer layers[LAYERS_MAX];
    FILE *file = fopen(path, "re");
    enum mp_status status = MP_OK;
    struct layer *list = NULL, *more;

    if (file == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_BENCH", "cannot read %s", path);
    while (status == MP_OK && fgets(line, sizeof(line), file) != NULL) {
        status = read_line(bench, line, layers);
        more = status != MP_OK ? NULL
                               : realloc(list, (bench->tokens + 1) * bench->layers * sizeof(*list));
        if (more == NULL)
            break;
        list = more;
        memcpy(list + bench->tokens++ * bench->layers, layers, bench->layers * sizeof(*list));
    }
    fclose(file);
    if (status == MP_OK && bench->tokens == 0)
        status = mp_fail(MP_ERR_CONFIG, "E_BENCH", "%s has no line, or no memory is left", path);
    *list_p = list;
    return status;
}

static unsigned char *map(uint64_t bytes)
{
    unsigned char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE); /* a hint */
    memset(memory, 1, bytes);
    return memory;
}

static enum mp_status run(struct bench *bench, const struct layer *list)
{
    struct mp_io_config io;
    struct mp_reader_config config;
    double start;
    enum mp_status status;

    if (bench->unit_bytes == 0 || bench->unit_bytes % ALIGN != 0 ||
        bench->file_bytes / 2 < bench->unit_bytes || bench->slots == 0 ||
        bench->slots > BYTES_MAX / bench->unit_bytes)
        return mp_fail(MP_ERR_CONFIG, "E_BENCH",
                       "units are multiples of 4 KiB, the file holds two at least, and there is a "
                       "slot; slots have 1 PiB at most");
    if (bench->layer_bytes > BYTES_MAX / LAYERS_MAX || bench->head_bytes > BYTES_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_BENCH",
                       "LAYER_BYTES %" PRId64 " and HEAD_BYTES %" PRId64
                       " are no sizes: a model whose output is its embedding has no other head",
                       (int64_t)bench->layer_bytes, (int64_t)bench->head_bytes);
    bench->memory = map(bench->slots * bench->unit_bytes);
    bench->weights = map(bench->layers * bench->layer_bytes + bench->head_bytes);
    if (bench->memory == NULL || bench->weights == NULL)
        return mp_fail_no_memory("slots and weights", bench->slots * bench->unit_bytes);
    mp_opt_load(mp_io_opts, "MOEPAGER_", &io);
    config = mp_io_reader_config(&io, bench->files, mp_clock_monotonic(), NULL);
    status = mp_reader_create(&config, &bench->reader);
    if (status != MP_OK)
        return status;
    start = (double)mp_clock_now_ns(config.clock) * 1e-9;
    status = run_tokens(bench, list);
    if (status == MP_OK)
        printf("{\"tokens\": %" PRIu64 ", \"units_per_token\": %.3f, \"s_per_token\": %.6f}\n",
               bench->tokens, (double)bench->read_units / (double)bench->tokens,
               ((double)mp_clock_now_ns(config.clock) * 1e-9 - start) / (double)bench->tokens);
    mp_reader_destroy(bench->reader); /* takes back what is queued */
    return status;
}

int main(int argc, char **argv)
{
    struct mp_pool_config pool;
    struct bench bench = { .random = 1 };
    struct layer *list = NULL;
    uint32_t file;
    enum mp_status status;

    if (argc != 8) {
        fprintf(stderr,
                "usage: bench_movement FILE UNIT_BYTES SLOTS LAYER_BYTES HEAD_BYTES THREADS "
                "LIST\n");
        return 2;
    }
    bench.unit_bytes = strtoull(argv[2], NULL, 10);
    bench.slots = strtoull(argv[3], NULL, 10);
    bench.layer_bytes = strtoull(argv[4], NULL, 10);
    bench.head_bytes = strtoull(argv[5], NULL, 10);
    mp_opt_load(mp_pool_opts, "MOEPAGER_", &pool);
    pool.threads = strtoull(argv[6], NULL, 10);
    status = mp_files_create(&bench.files);
    if (status == MP_OK)
        status = mp_files_add(bench.files, AT_FDCWD, argv[1], &file);
    if (status == MP_OK)
        bench.file_bytes = mp_files_bytes(bench.files, file);
    if (status == MP_OK)
        status = read_list(&bench, argv[7], &list);
    if (status == MP_OK)
        status = mp_pool_create(&pool, NULL, MP_TOPOLOGY_ANY_NODE, &bench.pool);
    if (status == MP_OK)
        status = run(&bench, list);
    if (status != MP_OK)
        fprintf(stderr, "bench_movement: %s: %s\n", mp_error_last()->code, mp_error_last()->text);
    mp_pool_destroy(bench.pool);
    mp_files_destroy(bench.files);
    free(list);
    return status == MP_OK ? 0 : 1;
}
