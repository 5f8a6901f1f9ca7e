/*
 * A program that uses the runtime as vLLM does: an allocation for the experts of each layer, each
 * expert copied from the mapped checkpoint to its place in it, memory asked for before and after
 * and held against each other, the rest of it taken for a cache, one graph for each size of a
 * batch, and copies on a stream of their own beside them. Prints a sum for each step.
 *
 * vllm_like MODEL.safetensors STEPS 12|13|ex
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/device/interpose/program.h"
#include "vmm/format/safetensors.h"

#define LAYERS_MAX 16
#define GRAPHS 3
#define USED 4u

static char *w[LAYERS_MAX];
static unsigned layers, experts;
static size_t expert_bytes;
static char *state, *cache;
static size_t cache_bytes;

/* "model.layers.L.mlp.experts.E..." */
static bool is_expert(const char *name, unsigned *layer, unsigned *expert)
{
    return sscanf(name, "model.layers.%u.mlp.experts.%u.", layer, expert) == 2;
}

static void load(const char *path)
{
    const int fd = open(path, O_RDONLY);
    unsigned l = 0, e = 0;
    uint64_t header_bytes;
    struct mp_st_table table;
    struct stat stat;
    char *file;

    CHECK(fd >= 0 && fstat(fd, &stat) == 0);
    file = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    CHECK(file != MAP_FAILED);
    CHECK_EQ(mp_st_header_bytes(file, (uint64_t)stat.st_size, path, &header_bytes), MP_OK);
    CHECK_EQ(mp_st_parse(file + 8, header_bytes, (uint64_t)stat.st_size, path, &table), MP_OK);
    for (size_t t = 0; t < table.count; t++) {
        if (is_expert(table.tensors[t].name, &l, &e)) {
            expert_bytes = (size_t)table.tensors[t].bytes;
            layers = l + 1 > layers ? l + 1 : layers;
            experts = e + 1 > experts ? e + 1 : experts;
        }
    }
    for (l = 0; l < layers; l++)
        OK(cudaMalloc((void **)&w[l], experts * expert_bytes));
    for (size_t t = 0; t < table.count; t++) {
        if (is_expert(table.tensors[t].name, &l, &e))
            OK(cudaMemcpyAsync(w[l] + e * expert_bytes, file + table.tensors[t].offset_bytes,
                               expert_bytes, MP_RT_HOST_TO_DEVICE, NULL));
    }
    OK(cudaStreamSynchronize(NULL));
    mp_st_table_fini(&table);
    munmap(file, (size_t)stat.st_size);
}

static void step(unsigned batch, mp_rt_stream stream)
{
    const uint64_t base = (uintptr_t)state;

    for (unsigned l = 0; l < layers; l++) {
        const struct route_params route = { base + 8, base + 64, experts, USED * (batch + 1) };
        const struct experts_params p = { .weights = (uintptr_t)w[l],
                                          .ids = base + 64,
                                          .out = base,
                                          .stride = expert_bytes,
                                          .words = (uint32_t)(expert_bytes / 4),
                                          .count = USED * (batch + 1) };

        launch(ROUTE, stream, &route);
        launch(EXPERTS, stream, &p);
        launch(MIX, stream,
               &(struct mix_params){ (uintptr_t)cache + l * 8192,
                                     (uintptr_t)cache + l * 8192 + 4096, 512, batch });
    }
}

int main(int argc, char **argv)
{
    size_t before, after, total;
    mp_rt_stream stream, copies;
    mp_rt_exec execs[GRAPHS];
    mp_rt_event event;
    uint64_t *host;
    unsigned steps;

    CHECK_EQ(argc, 4);
    steps = (unsigned)strtoul(argv[2], NULL, 10);
    program_launches = (unsigned)strtoul(argv[3], NULL, 10);
    OK(cudaMemGetInfo(&before, &total));
    CHECK(before <= total);
    load(argv[1]);
    OK(cudaMalloc((void **)&state, 4096));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(before >= after && after <= total);
    CHECK(before - after >= layers * experts * expert_bytes);
    cache_bytes = after / 4 < 1u << 20 ? after / 4 : 1u << 20;
    CHECK(cache_bytes >= layers * 8192);
    OK(cudaMalloc((void **)&cache, cache_bytes));
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaStreamCreateWithFlags(&copies, 1));
    OK(cudaEventCreateWithFlags(&event, 2));
    OK(cudaMallocHost((void **)&host, 4096));
    OK(cudaMemsetAsync(state, 0, 4096, stream));
    OK(cudaMemsetAsync(cache, 0, cache_bytes, stream));
    for (unsigned b = 0; b < GRAPHS; b++) {
        mp_rt_graph graph;

        step(b, stream);
        OK(cudaStreamBeginCapture(stream, 1));
        step(b, stream);
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphInstantiate(&execs[b], graph, 0));
        OK(cudaGraphDestroy(graph));
    }
    for (unsigned s = 0; s < steps; s++) {
        OK(cudaGraphLaunch(execs[s % GRAPHS], stream));
        OK(cudaEventRecord(event, stream));
        OK(cudaStreamWaitEvent(copies, event, 0));
        OK(cudaMemcpyAsync(host, state, 8, MP_RT_DEVICE_TO_HOST, copies));
        OK(cudaEventRecord(event, copies));
        OK(cudaStreamWaitEvent(stream, event, 0));
        if (s % 4 == 3) { /* as a scheduler that runs ahead */
            OK(cudaEventSynchronize(event));
            printf("%u %016llx\n", s, (unsigned long long)*host);
            OK(cudaDeviceSynchronize());
        }
    }
    OK(cudaDeviceSynchronize());
    for (unsigned b = 0; b < GRAPHS; b++)
        OK(cudaGraphExecDestroy(execs[b]));
    OK(cudaFreeHost(host));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(copies));
    OK(cudaFree(cache));
    OK(cudaFree(state));
    for (unsigned l = 0; l < layers; l++)
        OK(cudaFree(w[l]));
    return 0;
}
