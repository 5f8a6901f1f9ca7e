/*
 * A program with several threads that launch, capture, copy, wait, allocate and free at the same
 * time, each on streams of its own, all reading one large allocation. What each thread computes
 * does not depend on the others, and is printed.
 *
 * Captures exclude what waits for the whole device, as any program has to see to.
 *
 * busy THREADS STEPS 12|13|ex
 */
#include <pthread.h>
#include <unistd.h>

#include "tests/device/interpose/program.h"

#define PARTS 24u
#define PART_BYTES (128u << 10)
#define OWN_BYTES (600u << 10)

static char *shared;
static unsigned steps;
static pthread_rwlock_t whole_device = PTHREAD_RWLOCK_INITIALIZER;

struct worker {
    pthread_t thread;
    uint64_t random, sum;
    mp_rt_stream stream, side;
    mp_rt_event event;
    char *out; /* the sum at 0, copies from 4096 on */
    uint64_t *host;
};

static unsigned chance(struct worker *self, unsigned count)
{
    self->random = self->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(self->random >> 33) % count;
}

/* Half of what is read is in an eighth of the parts. */
static unsigned some_part(struct worker *self)
{
    return chance(self, 2) == 0 ? chance(self, PARTS / 8) : chance(self, PARTS);
}

static void read_part(struct worker *self, mp_rt_stream stream)
{
    const struct experts_params p = { .weights = (uintptr_t)shared + some_part(self) * PART_BYTES,
                                      .out = (uintptr_t)self->out,
                                      .words = PART_BYTES / 4,
                                      .count = 1 };

    launch(EXPERTS, stream, &p);
}

static void copy_part(struct worker *self)
{
    const char *from = shared + some_part(self) * PART_BYTES + 64;

    OK(cudaMemcpyAsync(self->out + 4096, from, 4096, MP_RT_DEVICE_TO_DEVICE, self->stream));
    launch(EXPERTS, self->stream,
           &(struct experts_params){ .weights = (uintptr_t)self->out + 4096,
                                     .out = (uintptr_t)self->out,
                                     .words = 1024,
                                     .count = 1 });
}

static void replay(struct worker *self)
{
    mp_rt_graph graph;
    mp_rt_exec exec;

    pthread_rwlock_rdlock(&whole_device);
    OK(cudaStreamBeginCapture(self->stream, 2));
    for (unsigned i = 0; i < 3; i++)
        read_part(self, self->stream);
    usleep(500); /* others go on meanwhile */
    copy_part(self);
    OK(cudaStreamEndCapture(self->stream, &graph));
    pthread_rwlock_unlock(&whole_device);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (unsigned i = 0; i < 3; i++)
        OK(cudaGraphLaunch(exec, self->stream));
    OK(cudaStreamSynchronize(self->stream));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}

/* On a side stream and back. */
static void fork_and_join(struct worker *self)
{
    OK(cudaEventRecord(self->event, self->stream));
    OK(cudaStreamWaitEvent(self->side, self->event, 0));
    read_part(self, self->side);
    OK(cudaEventRecord(self->event, self->side));
    OK(cudaStreamWaitEvent(self->stream, self->event, 0));
}

/* A large allocation of its own, filled, read and given back. */
static void allocate(struct worker *self)
{
    char *own;

    pthread_rwlock_wrlock(&whole_device);
    OK(cudaMalloc((void **)&own, OWN_BYTES));
    pthread_rwlock_unlock(&whole_device);
    OK(cudaMemsetAsync(own, (int)chance(self, 200), OWN_BYTES, self->stream));
    launch(EXPERTS, self->stream,
           &(struct experts_params){ .weights = (uintptr_t)own,
                                     .out = (uintptr_t)self->out,
                                     .words = OWN_BYTES / 4,
                                     .count = 1 });
    pthread_rwlock_wrlock(&whole_device);
    OK(cudaFree(own));
    pthread_rwlock_unlock(&whole_device);
}

static void step(struct worker *self)
{
    switch (chance(self, 8)) {
    case 0: replay(self); break;
    case 1: fork_and_join(self); break;
    case 2: copy_part(self); break;
    case 3: allocate(self); break;
    case 4:
        OK(cudaMemcpyAsync(self->host, self->out, 8, MP_RT_DEVICE_TO_HOST, self->stream));
        OK(cudaStreamSynchronize(self->stream));
        self->sum = self->sum * 31 + *self->host;
        break;
    case 5:
        OK(cudaEventRecord(self->event, self->stream));
        OK(cudaEventSynchronize(self->event));
        break;
    case 6:
        while (cudaStreamQuery(self->stream) == MP_RT_NOT_READY)
            ;
        break;
    default: read_part(self, self->stream); break;
    }
}

static void *work(void *ctx)
{
    struct worker *self = ctx;

    OK(cudaStreamCreateWithFlags(&self->stream, 1));
    OK(cudaStreamCreateWithFlags(&self->side, 1));
    OK(cudaEventCreateWithFlags(&self->event, 2));
    for (unsigned s = 0; s < steps; s++)
        step(self);
    OK(cudaStreamSynchronize(self->stream));
    OK(cudaStreamSynchronize(self->side));
    OK(cudaEventDestroy(self->event));
    return NULL;
}

static void fill(void)
{
    uint32_t *host;

    OK(cudaMalloc((void **)&shared, PARTS * PART_BYTES));
    OK(cudaMallocHost((void **)&host, PART_BYTES));
    for (unsigned p = 0; p < PARTS; p++) {
        for (unsigned i = 0; i < PART_BYTES / 4; i++)
            host[i] = (p * 2654435761u) ^ (i * 40503u);
        OK(cudaMemcpy(shared + p * PART_BYTES, host, PART_BYTES, MP_RT_HOST_TO_DEVICE));
    }
    OK(cudaFreeHost(host));
}

int main(int argc, char **argv)
{
    static struct worker workers[16];
    unsigned threads;

    CHECK_EQ(argc, 4);
    threads = (unsigned)strtoul(argv[1], NULL, 10);
    steps = (unsigned)strtoul(argv[2], NULL, 10);
    program_launches = (unsigned)strtoul(argv[3], NULL, 10);
    CHECK(threads <= 16);
    fill();
    for (unsigned t = 0; t < threads; t++) {
        workers[t].random = t + 1;
        OK(cudaMalloc((void **)&workers[t].out, 8192));
        OK(cudaMemset(workers[t].out, 0, 8192));
        OK(cudaMallocHost((void **)&workers[t].host, 4096));
        launch(EXPERTS, NULL, /* loaded before it is captured */
               &(struct experts_params){ .out = (uintptr_t)workers[t].out });
    }
    OK(cudaDeviceSynchronize());
    for (unsigned t = 0; t < threads; t++)
        CHECK_EQ(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    for (unsigned t = 0; t < threads; t++) {
        CHECK_EQ(pthread_join(workers[t].thread, NULL), 0);
        printf("%u %016llx\n", t, (unsigned long long)workers[t].sum);
    }
    OK(cudaDeviceSynchronize());
    OK(cudaFree(shared));
    return 0;
}
