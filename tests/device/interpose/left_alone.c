/*
 * A program whose large allocations must stay what they are, because a library that shares memory
 * with others makes them, or because the program does that itself.
 *
 * left_alone library|peer|ipc
 */
#include "tests/device/interpose/program.h"

#define BYTES (4u << 20)

void *nccl_like_allocate(size_t bytes);

static void check_works(void *memory)
{
    unsigned char byte = 0;

    OK(cudaMemset(memory, 7, BYTES));
    OK(cudaMemcpy(&byte, (char *)memory + BYTES - 1, 1, MP_RT_DEVICE_TO_HOST));
    CHECK_EQ(byte, 7);
    OK(cudaFree(memory));
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
