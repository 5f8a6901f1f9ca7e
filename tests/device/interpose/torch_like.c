/*
 * A program that uses the runtime as PyTorch's caching allocator and transformers do: segments of
 * 2 MiB, 20 MiB or what is asked for, cut into pieces and kept when pieces are freed; tensors of
 * the mapped checkpoint copied to temporary places and joined on the device into one of all
 * experts; several threads with streams of their own, ordered by events; experts that the host
 * names. Prints sums.
 *
 * torch_like MODEL.safetensors STEPS THREADS 12|13|ex
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/device/interpose/program.h"
#include "vmm/format/safetensors.h"

#define SMALL (2u << 20)
#define LARGE (20u << 20)
#define SEGMENTS_MAX 64

/* ---- the allocator: first fit within segments, nothing is given back before the end */

static struct segment {
    char *address;
    size_t bytes, used;
} segments[SEGMENTS_MAX];
static unsigned segment_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char *take(size_t bytes)
{
    const size_t rounded = (bytes + 511) / 512 * 512;
    const size_t wanted = rounded <= 1 << 20    ? SMALL
                          : rounded < 10u << 20 ? LARGE
                                                : (rounded + SMALL - 1) / SMALL * SMALL;
    struct segment *segment = segments;
    char *place;

    pthread_mutex_lock(&lock);
    while (segment < segments + segment_count && segment->bytes - segment->used < rounded)
        segment++;
    if (segment == segments + segment_count) {
        CHECK(segment_count < SEGMENTS_MAX);
        OK(cudaMalloc((void **)&segment->address, wanted));
        segment->bytes = wanted;
        segment_count++;
    }
    place = segment->address + segment->used;
    segment->used += rounded;
    pthread_mutex_unlock(&lock);
    return place;
}

/* ---- the model: tensors "l.e.name" of one size joined for each layer, all else as it is */

static char *joined;
static size_t expert_bytes;
static unsigned experts;
static char *others;
static size_t other_bytes;

static const struct mp_st_tensor *read_header(const char *file, uint64_t bytes,
                                              struct mp_st_table *table)
{
    uint64_t header_bytes;

    CHECK_EQ(mp_st_header_bytes(file, bytes, "model", &header_bytes), MP_OK);
    CHECK_EQ(mp_st_parse(file + 8, header_bytes, bytes, "model", table), MP_OK);
    return table->tensors;
}

static void load(const char *path)
{
    const int fd = open(path, O_RDONLY);
    struct mp_st_table table;
    struct stat stat;
    char *file, *all, *place;

    CHECK(fd >= 0 && fstat(fd, &stat) == 0);
    file = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    CHECK(file != MAP_FAILED);
    read_header(file, (uint64_t)stat.st_size, &table);
    for (size_t t = 0; t < table.count; t++) {
        if (strstr(table.tensors[t].name, ".experts.") != NULL) {
            expert_bytes = (size_t)table.tensors[t].bytes;
            experts++;
        } else {
            other_bytes += (size_t)table.tensors[t].bytes;
        }
    }
    all = take((size_t)stat.st_size); /* warm-up: one piece for everything */
    joined = all;
    others = place = take(other_bytes);
    experts = 0;
    for (size_t t = 0; t < table.count; t++) {
        const struct mp_st_tensor *tensor = &table.tensors[t];
        char *temporary;

        if (strstr(tensor->name, ".experts.") == NULL) {
            OK(cudaMemcpyAsync(place, file + tensor->offset_bytes, tensor->bytes,
                               MP_RT_HOST_TO_DEVICE, NULL));
            OK(cudaStreamSynchronize(NULL));
            place += tensor->bytes;
            continue;
        }
        temporary = take(tensor->bytes);
        OK(cudaMemcpyAsync(temporary, file + tensor->offset_bytes, tensor->bytes,
                           MP_RT_HOST_TO_DEVICE, NULL));
        OK(cudaStreamSynchronize(NULL));
        OK(cudaMemcpyAsync(joined + experts++ * expert_bytes, temporary, tensor->bytes,
                           MP_RT_DEVICE_TO_DEVICE, NULL));
    }
    OK(cudaDeviceSynchronize());
    mp_st_table_fini(&table);
    munmap(file, (size_t)stat.st_size);
}

/* ---- steps */

static unsigned steps;

struct worker {
    pthread_t thread;
    unsigned number;
    uint64_t sum;
};

static void *work(void *ctx)
{
    struct worker *self = ctx;
    mp_rt_stream stream, side;
    mp_rt_event ready, done;
    uint64_t *host;
    char *out = take(SMALL / 2);

    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaStreamCreateWithFlags(&side, 1));
    OK(cudaEventCreateWithFlags(&ready, 2));
    OK(cudaEventCreateWithFlags(&done, 2));
    OK(cudaMallocHost((void **)&host, 4096));
    OK(cudaMemsetAsync(out, 0, SMALL / 2, stream));
    for (unsigned s = 0; s < steps; s++) {
        /* eager: the host reads the ids and passes the expert's address */
        for (unsigned k = 0; k < 4; k++) {
            const unsigned e = (self->number * 7 + s * k) % (k < 3 ? (experts + 3) / 4 : experts);
            const struct experts_params p = { .weights = (uintptr_t)joined + e * expert_bytes,
                                              .out = (uintptr_t)out,
                                              .words = (uint32_t)(expert_bytes / 4),
                                              .count = 1 };

            launch(EXPERTS, stream, &p);
        }
        OK(cudaEventRecord(ready, stream));
        OK(cudaStreamWaitEvent(side, ready, 0));
        launch(MIX, side, &(struct mix_params){ (uintptr_t)out, (uintptr_t)out + 4096, 1024, s });
        OK(cudaEventRecord(done, side));
        OK(cudaStreamWaitEvent(stream, done, 0));
        OK(cudaMemcpyAsync(host, out + 4096, 8, MP_RT_COPY_DEFAULT, stream));
        OK(cudaStreamSynchronize(stream));
        self->sum = self->sum * 31 + *host;
        if (s % 8 == self->number % 8)
            OK(cudaDeviceSynchronize());
    }
    OK(cudaStreamSynchronize(side));
    OK(cudaFreeHost(host));
    OK(cudaEventDestroy(ready));
    OK(cudaEventDestroy(done));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(side));
    return NULL;
}

int main(int argc, char **argv)
{
    static struct worker workers[16];
    size_t free_bytes, total_bytes;
    unsigned threads;

    CHECK_EQ(argc, 5);
    steps = (unsigned)strtoul(argv[2], NULL, 10);
    threads = (unsigned)strtoul(argv[3], NULL, 10);
    program_launches = (unsigned)strtoul(argv[4], NULL, 10);
    CHECK(threads <= 16);
    load(argv[1]);
    OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    CHECK(free_bytes <= total_bytes);
    for (unsigned t = 0; t < threads; t++) {
        workers[t].number = t;
        CHECK_EQ(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    }
    for (unsigned t = 0; t < threads; t++) {
        CHECK_EQ(pthread_join(workers[t].thread, NULL), 0);
        printf("%u %016llx\n", t, (unsigned long long)workers[t].sum);
    }
    OK(cudaDeviceSynchronize());
    for (unsigned s = 0; s < segment_count; s++)
        OK(cudaFree(segments[s].address));
    return 0;
}
