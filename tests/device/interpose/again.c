/*
 * A program that resets its device and begins again, as tests, and Python programs that are done
 * with a model, do: what it had there is not given back, streams neither. Prints sums, the same in
 * every round.
 *
 * again ROUNDS 12|13|ex [beside]
 *
 * beside: what it has on another device it goes on to use after each reset, in the end of each
 * round, and prints a sum of that too.
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

/* What a device has. */
struct work {
    char *parts, *out;
    mp_rt_stream stream;
};

static void begin(struct work *work)
{
    char *small;

    work->parts = fill();
    OK(cudaMalloc((void **)&work->out, 4096));
    OK(cudaMalloc((void **)&small, 300u << 10)); /* large enough to be asked about */
    OK(cudaMemset(work->out, 0, 4096));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamCreateWithFlags(&work->stream, 1));
}

static struct experts_params part_of(const struct work *work, uint32_t part)
{
    return (struct experts_params){ .weights = (uintptr_t)work->parts + part * PART_BYTES,
                                    .out = (uintptr_t)work->out,
                                    .words = PART_BYTES / 4,
                                    .count = 1 };
}

/* The last parts are read most, or (from 0 on) the first. */
static void run(const struct work *work, uint32_t first, unsigned round)
{
    uint64_t sum = 0;

    for (uint32_t s = 0; s < STEPS; s++) {
        const uint32_t part = s % 4 == 3 ? s % PARTS : first + s % 3;
        const struct experts_params p = part_of(work, part);
        const mp_rt_stream stream = s % 2 == 0 ? work->stream : MP_RT_STREAM_PER_THREAD;

        launch(EXPERTS, stream, &p);
        OK(cudaStreamSynchronize(stream));
    }
    OK(cudaMemcpy(&sum, work->out, 8, MP_RT_DEVICE_TO_HOST));
    printf("%u %016llx\n", round, (unsigned long long)sum);
}

int main(int argc, char **argv)
{
    const bool beside = argc == 4;
    struct work work, other;

    CHECK(argc == 3 || beside);
    program_launches = (unsigned)strtoul(argv[2], NULL, 10);
    if (beside) {
        OK(cudaSetDevice(1));
        begin(&other);
    }
    for (unsigned r = 0; r < (unsigned)strtoul(argv[1], NULL, 10); r++) {
        OK(cudaSetDevice(0));
        begin(&work);
        run(&work, PARTS - 3, r);
        if (r % 2 == 1) { /* under way, and seen by nobody */
            const struct experts_params p = part_of(&work, 0);

            launch(EXPERTS, work.stream, &p);
        }
        OK(cudaDeviceReset());
        OK(cudaGetLastError());
        if (beside) {
            OK(cudaSetDevice(1));
            run(&other, r % 2 == 0 ? PARTS - 3 : 0, 0);
        }
    }
    return 0;
}
