/*
 * A program that resets its device and begins again, as tests, and Python programs that are done
 * with a model, do: what it had there is not given back, streams neither. Prints sums, the same in
 * every round.
 *
 * again ROUNDS 12|13|ex
 */
#include "tests/device/interpose/program.h"

#define PARTS 16u
#define PART_BYTES (256u << 10)
#define STEPS 24u

static char *fill(void)
{
    static uint32_t words[PART_BYTES / 4];
    char *parts;

    OK(cudaMalloc((void **)&parts, PARTS * PART_BYTES));
    for (uint32_t p = 0; p < PARTS; p++) {
        for (uint32_t i = 0; i < PART_BYTES / 4; i++)
            words[i] = (p + 1) * 0x9e3779b9u ^ i;
        OK(cudaMemcpy(parts + p * PART_BYTES, words, PART_BYTES, MP_RT_HOST_TO_DEVICE));
    }
    return parts;
}

/* The last parts are read most. */
static void run(unsigned round)
{
    char *parts = fill(), *out, *small;
    mp_rt_stream stream;
    uint64_t sum = 0;

    OK(cudaMalloc((void **)&out, 4096));
    OK(cudaMalloc((void **)&small, 300u << 10)); /* large enough to be asked about */
    OK(cudaMemset(out, 0, 4096));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamCreateWithFlags(&stream, 1));
    for (uint32_t s = 0; s < STEPS; s++) {
        const uint32_t part = s % 4 == 3 ? s % PARTS : PARTS - 1 - s % 3;
        const struct experts_params p = { .weights = (uintptr_t)parts + part * PART_BYTES,
                                          .out = (uintptr_t)out,
                                          .words = PART_BYTES / 4,
                                          .count = 1 };

        launch(EXPERTS, s % 2 == 0 ? stream : MP_RT_STREAM_PER_THREAD, &p);
        OK(cudaStreamSynchronize(s % 2 == 0 ? stream : MP_RT_STREAM_PER_THREAD));
    }
    OK(cudaMemcpy(&sum, out, 8, MP_RT_DEVICE_TO_HOST));
    printf("%u %016llx\n", round, (unsigned long long)sum);
    if (round % 2 == 1) /* under way, and seen by nobody */
        launch(EXPERTS, stream,
               &(struct experts_params){ .weights = (uintptr_t)parts,
                                         .out = (uintptr_t)out,
                                         .words = PART_BYTES / 4,
                                         .count = 1 });
}

int main(int argc, char **argv)
{
    CHECK_EQ(argc, 3);
    program_launches = (unsigned)strtoul(argv[2], NULL, 10);
    for (unsigned r = 0; r < (unsigned)strtoul(argv[1], NULL, 10); r++) {
        run(r);
        OK(cudaDeviceReset());
        OK(cudaGetLastError());
    }
    return 0;
}
