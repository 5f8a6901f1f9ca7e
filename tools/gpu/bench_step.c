/*
 * What the pager costs when every expert of a step is resident:
 *
 *     bench_step --model DIR [--device N] [--batch N] [--rounds N] [--steps N of a round]
 *
 * One decoding step, again and again, in three ways that take turns: as the engine does it, with
 * pager and policies; its graph alone; and that graph with the step's experts copied to memory of
 * cuMemAlloc, which no pager knows ("plain"). Prints JSON: medians over the rounds of the
 * milliseconds of a step, by the host's clock, from its beginning until the logits are on the host.
 * `bytes` are those of the weights that a step of one token reads.
 * The logits of all three have to be the same bits; `logits` is a sum of them (FNV-1a), `early`
 * whether kernels began early (MOEPAGER_CUDA_PDL). 0; 1: an error, or other bits; 77: no driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/format/checkpoint.h"
#include "engine/forward/cuda/device.h"
#include "vmm/base/error.h"

#define POSITION 100u
#define ROUNDS_MAX 99u
#define ALIGN UINT64_C(256)

enum way { PAGER, GRAPH, PLAIN, WAYS };

struct bench {
    struct mp_checkpoint *checkpoint;
    struct mp_model_config model;
    struct mp_weights *weights;
    struct mp_pool *pool;
    struct mp_engine *engine;
    uint32_t tokens, steps;
    struct mp_cuda_place_of *plain; // (layers, experts)
    float *logits;                  // (tokens, vocab): of the engine's own step
    bool same_bits;
    double ms[WAYS][ROUNDS_MAX];
};

static enum mp_status open_engine(struct bench *b, const char *dir, unsigned device)
{
    const struct mp_pool_config pool = { .threads = 2, .spin_us = 1000 }; /* awake to the end */
    const struct mp_policy_names names = { .profile = "lru" };
    struct mp_engine_config config = {
        .model = &b->model,
        .sequences = b->tokens,
        .ctx = POSITION + 1,
        .tokens_max = b->tokens,
        .budget_bytes = UINT64_MAX,
        .host_budget_bytes = UINT64_MAX,
        .graphs = true,
        .gemm = MP_GEMM_OWN,
        .backend = "cuda",
        .backend_config = { .numa_node = -1, .device = device },
        .reader = { .depth = 8, .threads = 2, .chunk_bytes = 1 << 20 },
        .kernels = mp_kernels_best(),
        .clock = mp_clock_monotonic(),
    };
    enum mp_status status = mp_checkpoint_open(dir, &b->checkpoint);

    if (status == MP_OK)
        status = mp_model_config_load(b->checkpoint, &b->model);
    if (status == MP_OK)
        status = mp_weights_load(b->checkpoint, &b->model, NULL, NULL, &b->weights);
    if (status == MP_OK)
        status = mp_pool_create(&pool, NULL, MP_TOPOLOGY_ANY_NODE, &b->pool);
    if (status == MP_OK)
        status = mp_policy_resolve(&names, &config.policies);
    if (status != MP_OK)
        return status;
    config.weights = b->weights;
    config.files = mp_checkpoint_files(b->checkpoint);
    config.pool = b->pool;
    return mp_engine_create(&config, &b->engine);
}

static enum mp_status engine_step(struct bench *b)
{
    uint32_t token[MP_DEVICE_FEW_TOKENS], sequence[MP_DEVICE_FEW_TOKENS];
    uint32_t position[MP_DEVICE_FEW_TOKENS];
    uint8_t want[MP_DEVICE_FEW_TOKENS];
    const struct mp_batch batch = {
        .count = b->tokens, .token = token, .sequence = sequence, .position = position, .want = want
    };
    const float *logits;

    for (uint32_t t = 0; t < b->tokens; t++) {
        token[t] = (1 + 7 * t) % b->model.vocab;
        sequence[t] = t;
        position[t] = POSITION;
        want[t] = 1;
    }
    return mp_forward(b->engine, &batch, &logits);
}

static uint64_t logits_bytes(const struct bench *b)
{
    return (uint64_t)b->tokens * b->model.vocab * sizeof(float);
}

/* Until all experts of the step are there and it is one graph. */
static enum mp_status warm_up(struct bench *b)
{
    enum mp_status status = MP_OK;

    for (unsigned i = 0; i < 200 && status == MP_OK; i++) {
        status = engine_step(b);
        if (mp_device_graphs_counted(b->engine->device).complete >= 3)
            break;
    }
    if (status == MP_OK && mp_device_graphs_counted(b->engine->device).complete < 3)
        status = mp_fail(MP_ERR_UNSUPPORTED, "E_BENCH", "the steps of this model are no graphs");
    b->logits = malloc(logits_bytes(b));
    if (b->logits == NULL)
        return mp_fail_no_memory("logits", logits_bytes(b));
    memcpy(b->logits, b->engine->state.logits, logits_bytes(b));
    return status;
}

/* One expert to memory of its own, which place->gate is the beginning of. */
static enum mp_status copy_expert(struct bench *b, const void *const *pieces, uint64_t bytes,
                                  struct mp_cuda_place_of *place)
{
    struct mp_device *device = b->engine->device;
    const uint64_t step = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    mp_cu_ptr to;
    enum mp_status status = mp_gpu_alloc(device->gpu, 3 * step, "plain weights", &to);

    if (status != MP_OK)
        return status;
    *place =
        (struct mp_cuda_place_of){ .gate = to, .up = to + step, .down = to + 2 * step, .valid = 1 };
    status = mp_gpu_copy(device->gpu, mp_device_stream(device), place->gate,
                         (uintptr_t)pieces[MP_PIECE_GATE], bytes);
    if (status == MP_OK)
        status = mp_gpu_copy(device->gpu, mp_device_stream(device), place->up,
                             (uintptr_t)pieces[MP_PIECE_UP], bytes);
    if (status == MP_OK)
        status = mp_gpu_copy(device->gpu, mp_device_stream(device), place->down,
                             (uintptr_t)pieces[MP_PIECE_DOWN], bytes);
    return status;
}

static enum mp_status copy_experts(struct bench *b)
{
    const uint32_t count = b->engine->shape.layers * b->engine->shape.experts;
    enum mp_status status = MP_OK;

    b->plain = calloc(count, sizeof(b->plain[0]));
    if (b->plain == NULL)
        return mp_fail_no_memory("a table", count * sizeof(b->plain[0]));
    for (uint32_t i = 0; i < count && status == MP_OK; i++) {
        const uint64_t bytes = mp_wtype_bytes(b->weights->unit_types[i].piece[0],
                                              (size_t)b->model.hidden * b->model.expert_ffn);
        const void *pieces[MP_UNIT_PIECES_MAX];

        if (mp_pager_find(b->engine->pager, i, pieces))
            status = copy_expert(b, pieces, bytes, &b->plain[i]);
    }
    if (status == MP_OK)
        status = mp_gpu_finish(b->engine->device->gpu, mp_device_stream(b->engine->device));
    return status;
}

static enum mp_status one_step(struct bench *b, enum way way)
{
    return way == PAGER ? engine_step(b)
                        : mp_device_graph_again(b->engine->device, b->tokens, NULL);
}

/* The first step of a way, which may have to send a table, does not count. */
static enum mp_status measure(struct bench *b, unsigned round, enum way way)
{
    struct mp_clock *clock = mp_clock_monotonic();
    enum mp_status status = way == PLAIN
                                ? mp_device_graph_again(b->engine->device, b->tokens, b->plain)
                                : one_step(b, way);
    const uint64_t start_ns = mp_clock_now_ns(clock);

    for (unsigned i = 0; i < b->steps && status == MP_OK; i++)
        status = one_step(b, way);
    b->ms[way][round] = (double)(mp_clock_now_ns(clock) - start_ns) / 1e6 / b->steps;
    b->same_bits &= memcmp(b->logits, b->engine->state.logits, logits_bytes(b)) == 0;
    return status;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static uint64_t sum_of(const struct bench *b)
{
    const unsigned char *bytes = (const unsigned char *)b->logits;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < logits_bytes(b); i++)
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    return sum;
}

/* Of all weights but the embedding's other rows, and the experts that are not chosen. */
static uint64_t bytes_read(const struct bench *b)
{
    const struct mp_view *embed = &b->weights->embed;
    const uint64_t unread = embed->data == b->weights->head.data
                                ? 0
                                : embed->rows * mp_wtype_bytes(embed->type, embed->cols);

    return b->weights->resident_bytes - unread +
           b->weights->expert_bytes / b->engine->shape.experts * b->engine->shape.top_k;
}

static void show(struct bench *b, unsigned rounds)
{
    for (int way = 0; way < WAYS; way++)
        qsort(b->ms[way], rounds, sizeof(double), compare);
    printf("{\"batch\": %u, \"pager_ms\": %.4f, \"graph_ms\": %.4f, \"plain_ms\": %.4f, "
           "\"ratio\": %.4f, \"bytes\": %llu, \"same_bits\": %s, \"early\": %s, "
           "\"logits\": \"%016llx\"}\n",
           b->tokens, b->ms[PAGER][rounds / 2], b->ms[GRAPH][rounds / 2], b->ms[PLAIN][rounds / 2],
           b->ms[PAGER][rounds / 2] / b->ms[PLAIN][rounds / 2], (unsigned long long)bytes_read(b),
           b->same_bits ? "true" : "false",
           mp_gpu_is_early(b->engine->device->gpu) ? "true" : "false",
           (unsigned long long)sum_of(b));
}

static void close_all(struct bench *b)
{
    const uint32_t count =
        b->plain != NULL ? b->engine->shape.layers * b->engine->shape.experts : 0;

    for (uint32_t i = 0; i < count; i++)
        mp_gpu_free(b->engine->device->gpu, b->plain[i].gate);
    free(b->plain);
    free(b->logits);
    mp_engine_destroy(b->engine);
    mp_pool_destroy(b->pool);
    mp_weights_destroy(b->weights);
    mp_checkpoint_close(b->checkpoint);
}

int main(int argc, char **argv)
{
    struct bench b = { .tokens = 1, .steps = 20, .same_bits = true };
    unsigned device = 0, rounds = 15;
    const char *model = NULL;
    enum mp_status status;

    for (int i = 1; i + 1 < argc; i += 2) {
        const unsigned value = (unsigned)strtoul(argv[i + 1], NULL, 10);

        if (strcmp(argv[i], "--model") == 0)
            model = argv[i + 1];
        else if (strcmp(argv[i], "--device") == 0)
            device = value;
        else if (strcmp(argv[i], "--batch") == 0)
            b.tokens = value;
        else if (strcmp(argv[i], "--rounds") == 0)
            rounds = value;
        else if (strcmp(argv[i], "--steps") == 0)
            b.steps = value;
    }
    if (model == NULL || b.tokens < 1 || b.tokens > MP_DEVICE_FEW_TOKENS || rounds < 1 ||
        rounds > ROUNDS_MAX || b.steps < 1) {
        fprintf(stderr, "usage: bench_step --model DIR [--device N] [--batch 1..8] [--rounds N] "
                        "[--steps N]\n");
        return 2;
    }
    mp_gpu_configure_from_environment();
    status = open_engine(&b, model, device);
    if (status == MP_OK)
        status = warm_up(&b);
    if (status == MP_OK)
        status = copy_experts(&b);
    for (unsigned r = 0; r < rounds && status == MP_OK; r++) {
        for (int way = 0; way < WAYS && status == MP_OK; way++)
            status = measure(&b, r, (enum way)way);
    }
    if (status == MP_OK)
        show(&b, rounds);
    else
        fprintf(stderr, "bench_step: %s\n", mp_error_last()->text);
    close_all(&b);
    return status == MP_OK && b.same_bits ? 0 : status == MP_ERR_UNSUPPORTED ? 77 : 1;
}
