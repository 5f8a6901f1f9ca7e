/*
 * A program whose large allocations must stay what they are, because a library that shares memory
 * with others makes them, or because the program does that itself.
 *
 * left_alone library|peer|ipc|pool
 */
#include "tests/device/interpose/program.h"

#define BYTES (4u << 20)

void *nccl_like_allocate(size_t bytes);

static void check_holds(void *memory, int value)
{
    unsigned char byte = 0;

    OK(cudaMemset(memory, value, BYTES));
    OK(cudaMemcpy(&byte, (char *)memory + BYTES - 1, 1, MP_RT_DEVICE_TO_HOST));
    CHECK_EQ(byte, value);
}

static void check_works(void *memory)
{
    check_holds(memory, 7);
    OK(cudaFree(memory));
}

/* Memory of a pool is taken and given back in the order of a stream. */
static void use_pool(void)
{
    mp_rt_stream stream;
    void *pieces[3];

    OK(cudaStreamCreateWithFlags(&stream, 1));
    for (int i = 0; i < 3; i++)
        OK(cudaMallocAsync(&pieces[i], BYTES, stream));
    OK(cudaMemsetAsync(pieces[1], 5, BYTES, stream));
    OK(cudaFreeAsync(pieces[1], stream));
    OK(cudaStreamSynchronize(stream));
    check_holds(pieces[0], 8);
    check_holds(pieces[2], 9);
    OK(cudaFreeAsync(pieces[0], stream));
    OK(cudaFreeAsync(pieces[2], stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv)
{
    char handle[64];
    void *memory = NULL;

    CHECK_EQ(argc, 2);
    (void)program_launches;
    (void)launch;
    if (strcmp(argv[1], "library") == 0) {
        check_works(nccl_like_allocate(BYTES));
        return 0;
    }
    if (strcmp(argv[1], "pool") == 0) {
        use_pool();
        return 0;
    }
    OK(cudaMalloc(&memory, 4096));
    if (strcmp(argv[1], "peer") == 0)
        OK(cudaDeviceEnablePeerAccess(1, 0));
    else
        CHECK_EQ(cudaIpcGetMemHandle(handle, memory), MP_RT_NOT_SUPPORTED);
    OK(cudaFree(memory));
    OK(cudaMalloc(&memory, BYTES));
    check_works(memory);
    puts("done");
    return 0;
}
