/*
 * A program that keeps experts on the host and copies those that a router chose to the device
 * itself, as llama.cpp does with -cmoe: the ids of a layer are read to the host and waited for,
 * then neighbours among the chosen experts are copied together, a little more than they are, first
 * of one tensor, then of the next. A prompt uses all of them, and the scheduler copies whole
 * tensors. Prints a sum for each token.
 *
 * experts_on_host MODEL.gguf TOKENS
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/device/interpose/fakeggml.h"
#include "tests/device/interpose/program.h"
#include "vmm/format/gguf.h"

#define LAYERS_MAX 16
#define USED 4u
#define PAD 512u

static struct mp_ggml_tensor *host[LAYERS_MAX][3], *device[3], *ids;
static unsigned layers;
static uint32_t experts;
static size_t stride;
static char *state;
static void *backend;
static bool prompt;

static void find_tensors(const struct mp_gguf *gguf, const char *file)
{
    static const char *const parts[] = { "gate", "up", "down" };

    for (layers = 0; layers < LAYERS_MAX; layers++) {
        for (unsigned p = 0; p < 3; p++) {
            const struct mp_gguf_tensor *found;
            char name[64];

            snprintf(name, sizeof(name), "blk.%u.ffn_%s_exps.weight", layers, parts[p]);
            found = mp_gguf_find(gguf, name);
            if (found == NULL)
                return;
            host[layers][p] =
                ggml_new_tensor_3d(NULL, 0, (int64_t)found->shape[0], (int64_t)found->shape[1],
                                   (int64_t)found->shape[2]);
            host[layers][p]->data = file + found->offset_bytes;
            experts = (uint32_t)found->shape[2];
            stride = found->bytes / experts;
        }
    }
}

static void load(const char *path)
{
    const int fd = open(path, O_RDONLY);
    struct mp_gguf *gguf;
    struct stat stat;
    char *file;

    CHECK(fd >= 0 && fstat(fd, &stat) == 0);
    file = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    CHECK(file != MAP_FAILED);
    CHECK_EQ(mp_gguf_open(path, &gguf), MP_OK);
    find_tensors(gguf, file);
    mp_gguf_close(gguf);
    CHECK(layers > 0);
    for (unsigned p = 0; p < 3; p++) {
        void *data;

        device[p] = ggml_new_tensor_3d(NULL, 0, host[0][p]->ne[0], host[0][p]->ne[1], experts);
        OK(cudaMalloc(&data, device[p]->nb[3]));
        device[p]->data = data;
    }
    OK(cudaMalloc((void **)&state, 4096));
    OK(cudaMemset(state, 0, 4096));
    OK(cudaDeviceSynchronize());
    ids = ggml_new_tensor_2d(NULL, 26, USED, 1);
}

/* The callback of the scheduler: what is used of `src` goes to `dst`. */
static bool copy_used(void *to, const void *src, void *dst, void *graph, void *data)
{
    const struct mp_ggml_tensor *weights = src;
    const uint32_t *chosen = data;

    (void)graph;
    if (prompt)
        return false; /* nearly all of them */
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t end = e;
        size_t bytes;

        while (end < experts &&
               (chosen[0] == end || chosen[1] == end || chosen[2] == end || chosen[3] == end))
            end++;
        if (end == e)
            continue;
        bytes = (end - e) * stride;
        ggml_backend_tensor_set_async(to, dst, (const char *)weights->data + e * stride, e * stride,
                                      end < experts ? bytes + PAD : bytes);
        e = end;
    }
    return true;
}

static uint64_t ids_address(unsigned l)
{
    return (uintptr_t)state + 64 + l * 64;
}

static void read_ids(unsigned l, mp_rt_stream stream, uint32_t *chosen)
{
    const struct route_params route = { (uintptr_t)state + 8, ids_address(l), experts, USED };

    launch(ROUTE, stream, &route);
    ids->data = (const void *)ids_address(l);
    ggml_backend_tensor_get_async(backend, ids, chosen, 0, USED * sizeof(*chosen));
}

static void layer(unsigned l, void *sched, mp_rt_stream stream)
{
    for (unsigned p = 0; p < 3; p++) {
        const struct experts_params params = { .weights = (uintptr_t)device[p]->data,
                                               .ids = ids_address(l),
                                               .out = (uintptr_t)state,
                                               .stride = stride,
                                               .words = (uint32_t)(stride / 4),
                                               .count = USED };

        fakeggml_copy_input(sched, backend, host[l][p], device[p]);
        launch(EXPERTS, stream, &params);
    }
}

static void token(bool ahead, void *sched, mp_rt_stream stream, uint32_t *chosen)
{
    for (unsigned l = 0; ahead && l < layers; l++)
        read_ids(l, stream, chosen + l * USED);
    if (ahead)
        ggml_backend_synchronize(backend);
    for (unsigned l = 0; l < layers; l++) {
        uint32_t *of_layer = ahead ? chosen + l * USED : chosen;

        if (!ahead) {
            read_ids(l, stream, of_layer);
            ggml_backend_synchronize(backend);
        }
        ggml_backend_sched_set_copy_callback(sched, copy_used, of_layer);
        layer(l, sched, stream);
    }
}

int main(int argc, char **argv)
{
    mp_rt_stream stream;
    uint32_t *chosen;
    uint64_t *sum;
    unsigned tokens;
    static void *sched;

    CHECK_EQ(argc, 5);
    tokens = (unsigned)strtoul(argv[2], NULL, 10);
    program_launches = (unsigned)strtoul(argv[4], NULL, 10);
    load(argv[1]);
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMallocHost((void **)&sum, 4096));
    chosen = (uint32_t *)(sum + 8);
    backend = fakeggml_backend(stream);
    sched = fakeggml_sched();
    for (unsigned t = 0; t < tokens; t++) {
        prompt = t == 0;
        token(strcmp(argv[3], "ahead") == 0, sched, stream, chosen);
        OK(cudaMemcpyAsync(sum, state, 8, MP_RT_DEVICE_TO_HOST, stream));
        OK(cudaStreamSynchronize(stream));
        printf("%u %016llx\n", t, (unsigned long long)*sum);
    }
    OK(cudaFreeHost(sum));
    ggml_backend_free(backend);
    return 0;
}
