/*
 * A program that uses the runtime as llama.cpp does: one allocation for all weights, tensors copied
 * one by one from the mapped model file on the thread's own default stream, a cache and a buffer
 * allocated after them, one graph for each token on a stream of its own that is launched again, and
 * the experts known on the device only. Prints a sum for each token.
 *
 * llama_like MODEL.gguf TOKENS 12|13|ex, on device PROGRAM_DEVICE of the environment
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/device/interpose/program.h"
#include "vmm/format/gguf.h"

#define ALIGN 128
#define LAYERS_MAX 16
#define USED 4u
#define KV_BYTES (512u << 10)

static char *weights, *kv, *compute;
static struct layer {
    struct experts_params experts[3];
} layers[LAYERS_MAX];
static unsigned layer_count;
static struct experts_params dense[64];
static unsigned dense_count;
static uint32_t expert_count;

static uint64_t padded(uint64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void note(const struct mp_gguf_tensor *tensor, uint64_t address)
{
    static const char *const parts[] = { "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps" };
    struct experts_params params = { .weights = address,
                                     .out = (uint64_t)(uintptr_t)compute,
                                     .words = (uint32_t)(tensor->bytes / 4),
                                     .count = 1 };
    const unsigned layer = (unsigned)strtoul(tensor->name + 4, NULL, 10);

    for (unsigned p = 0; p < 3; p++) {
        if (strstr(tensor->name, parts[p]) == NULL)
            continue;
        expert_count = (uint32_t)tensor->shape[2];
        params.ids = params.out + 64;
        params.stride = tensor->bytes / expert_count;
        params.words = (uint32_t)(params.stride / 4);
        params.count = USED;
        layers[layer].experts[p] = params;
        layer_count = layer + 1 > layer_count ? layer + 1 : layer_count;
        return;
    }
    CHECK(dense_count < 64);
    dense[dense_count++] = params;
}

static void load(const char *path)
{
    const int fd = open(path, O_RDONLY);
    struct mp_gguf *gguf;
    struct stat stat;
    uint64_t total = 0, at = 0;
    char *file;

    CHECK(fd >= 0 && fstat(fd, &stat) == 0);
    file = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    CHECK(file != MAP_FAILED);
    CHECK_EQ(mp_gguf_open(path, &gguf), MP_OK);
    for (size_t t = 0; t < mp_gguf_count(gguf); t++)
        total += padded(mp_gguf_tensor(gguf, t)->bytes);
    OK(cudaMalloc((void **)&weights, total));
    OK(cudaMalloc((void **)&kv, KV_BYTES));
    OK(cudaMalloc((void **)&compute, 4096));
    OK(cudaMemset(kv, 0, KV_BYTES));
    OK(cudaMemset(compute, 0, 4096));
    OK(cudaDeviceSynchronize());
    for (size_t t = 0; t < mp_gguf_count(gguf); t++) {
        const struct mp_gguf_tensor *tensor = mp_gguf_tensor(gguf, t);

        OK(cudaMemcpyAsync(weights + at, file + tensor->offset_bytes, tensor->bytes,
                           MP_RT_HOST_TO_DEVICE, MP_RT_STREAM_PER_THREAD));
        OK(cudaStreamSynchronize(MP_RT_STREAM_PER_THREAD));
        note(tensor, (uintptr_t)(weights + at));
        at += padded(tensor->bytes);
    }
    mp_gguf_close(gguf);
    munmap(file, (size_t)stat.st_size);
}

static void decode(mp_rt_stream stream)
{
    const uint64_t base = (uintptr_t)compute;

    for (unsigned d = 0; d < dense_count; d++)
        launch(EXPERTS, stream, &dense[d]);
    for (unsigned l = 0; l < layer_count; l++) {
        const struct route_params route = { base + 8, base + 64, expert_count, USED };
        const struct mix_params attend = { (uintptr_t)kv + l * 4096,
                                           (uintptr_t)kv + l * 4096 + 2048, 512, l };

        launch(MIX, stream, &attend);
        launch(ROUTE, stream, &route);
        for (unsigned p = 0; p < 3; p++)
            launch(EXPERTS, stream, &layers[l].experts[p]);
    }
}

static void run(unsigned tokens)
{
    mp_rt_stream stream;
    mp_rt_graph graph;
    mp_rt_exec exec;
    mp_rt_event done;
    uint64_t *sum;

    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaEventCreateWithFlags(&done, 2));
    OK(cudaMallocHost((void **)&sum, 4096));
    decode(stream);
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamBeginCapture(stream, 2));
    decode(stream);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (unsigned t = 0; t < tokens; t++) {
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaMemcpyAsync(sum, compute, 8, MP_RT_DEVICE_TO_HOST, stream));
        OK(cudaEventRecord(done, stream));
        OK(cudaEventSynchronize(done));
        printf("%u %016llx\n", t, (unsigned long long)*sum);
        OK(cudaStreamSynchronize(stream));
    }
    OK(cudaMemcpy(sum, kv + 4096, 4096, MP_RT_DEVICE_TO_HOST));
    printf("kv %016llx\n", (unsigned long long)sum_words((uintptr_t)sum, 1024, 0));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFreeHost(sum));
    OK(cudaEventDestroy(done));
    OK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv)
{
    CHECK_EQ(argc, 4);
    program_launches = (unsigned)strtoul(argv[3], NULL, 10);
    if (getenv("PROGRAM_DEVICE") != NULL)
        OK(cudaSetDevice(atoi(getenv("PROGRAM_DEVICE"))));
    load(argv[1]);
    OK(cudaGetLastError()); /* as programs ask after launches */
    run((unsigned)strtoul(argv[2], NULL, 10));
    if (getenv("PROGRAM_DEVICE") != NULL)
        OK(cudaSetDevice(0)); /* memory is given back from anywhere */
    OK(cudaFree(compute));
    OK(cudaFree(kv));
    OK(cudaFree(weights));
    return 0;
}
