/*
 * A program that forks while its threads use the device, as servers do to run something else. A
 * child cannot use the device, and gets an error; it ends by exit(). Prints a sum of each thread.
 *
 * forks CHILDREN 12|13|ex
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/device/interpose/program.h"

#define THREADS 3u
#define PARTS 8u
#define PART_BYTES (256u << 10)

static char *parts[THREADS];
static uint64_t *sums[THREADS]; /* on the device */
static _Atomic(bool) stop;

static void *work(void *ctx)
{
    const size_t self = (size_t)ctx;
    mp_rt_stream stream;

    OK(cudaStreamCreateWithFlags(&stream, 1));
    for (uint32_t s = 0; s < 200 || !atomic_load(&stop); s++) {
        const uint32_t part = s % 4 == 3 ? s % PARTS : PARTS - 1;
        const struct experts_params p = { .weights = (uintptr_t)parts[self] + part * PART_BYTES,
                                          .out = (uintptr_t)sums[self] + (s < 200 ? 0 : 64),
                                          .words = PART_BYTES / 4,
                                          .count = 1 };

        launch(EXPERTS, stream, &p);
        OK(cudaStreamSynchronize(stream));
    }
    OK(cudaStreamDestroy(stream));
    return NULL;
}

static void be_child(void)
{
    void *memory;

    CHECK(cudaMalloc(&memory, 4u << 20) != MP_RT_SUCCESS);
    CHECK(cudaMemset(parts[0], 1, 64) != MP_RT_SUCCESS);
    CHECK(cudaDeviceSynchronize() != MP_RT_SUCCESS);
    exit(0);
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];

    CHECK_EQ(argc, 3);
    program_launches = (unsigned)strtoul(argv[2], NULL, 10);
    for (size_t t = 0; t < THREADS; t++) {
        OK(cudaMalloc((void **)&parts[t], PARTS * PART_BYTES));
        OK(cudaMalloc((void **)&sums[t], 4096));
        OK(cudaMemset(parts[t], (int)t + 1, PARTS * PART_BYTES));
        OK(cudaMemset(sums[t], 0, 4096));
    }
    OK(cudaDeviceSynchronize());
    for (size_t t = 0; t < THREADS; t++)
        CHECK_EQ(pthread_create(&threads[t], NULL, work, (void *)t), 0);
    for (unsigned c = 0; c < (unsigned)strtoul(argv[1], NULL, 10); c++) {
        const pid_t child = fork();
        int status = 0;

        CHECK(child >= 0);
        if (child == 0)
            be_child();
        alarm(60); /* it may wait for ever for what its parent's threads held */
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    alarm(0);
    atomic_store(&stop, true);
    for (size_t t = 0; t < THREADS; t++) {
        uint64_t sum = 0;

        CHECK_EQ(pthread_join(threads[t], NULL), 0);
        OK(cudaMemcpy(&sum, sums[t], 8, MP_RT_DEVICE_TO_HOST));
        printf("%zu %016llx\n", t, (unsigned long long)sum);
        OK(cudaFree(parts[t]));
        OK(cudaFree(sums[t]));
    }
    return 0;
}
