/*
 * Threads submit, promote, cancel and wait at random, each with its own tickets, over one reader.
 * Every ticket that is DONE is compared byte by byte. The seed is printed; pass it as the second
 * argument to repeat a run (the interleaving of threads is not repeated).
 */
#include "vmm/io/reader.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/unit/vmm/io/reader_files.h"

#define THREADS 4
#define TICKETS 6
#define STEPS 600

static struct mp_files *files;
static struct mp_reader *reader;

struct slot {
    struct mp_ticket ticket;
    unsigned char *memory; /* NULL: the ticket is not submitted */
};

struct worker {
    pthread_t thread;
    uint64_t seed;
    uint64_t done, cancelled;
    struct slot slots[TICKETS];
};

static void collect(struct worker *worker, struct slot *slot)
{
    CHECK_EQ(mp_ticket_state(&slot->ticket), MP_TICKET_DONE);
    test_check_ticket(&slot->ticket);
    free(slot->memory);
    slot->memory = NULL;
    worker->done++;
}

static void wait_any(struct worker *worker)
{
    struct mp_ticket *tickets[TICKETS];
    struct slot *slots[TICKETS];
    uint32_t count = 0;

    for (int i = 0; i < TICKETS; i++) {
        if (worker->slots[i].memory != NULL) {
            slots[count] = &worker->slots[i];
            tickets[count++] = &worker->slots[i].ticket;
        }
    }
    if (count > 0)
        collect(worker, slots[mp_reader_wait_any(reader, tickets, count)]);
}

static void step(struct worker *worker)
{
    struct slot *slot = &worker->slots[test_random(&worker->seed) % TICKETS];

    if (slot->memory == NULL) {
        slot->memory = test_random_ticket(files, &slot->ticket, &worker->seed);
        mp_reader_submit(reader, &slot->ticket);
        if (test_random(&worker->seed) % 2 == 0)
            mp_reader_push(reader);
        return;
    }
    switch (test_random(&worker->seed) % 4) {
    case 0: mp_reader_promote(reader, &slot->ticket); break;
    case 1:
        if (mp_reader_cancel(reader, &slot->ticket)) {
            CHECK_EQ(mp_ticket_state(&slot->ticket), MP_TICKET_IDLE);
            free(slot->memory);
            slot->memory = NULL;
            worker->cancelled++;
        }
        break;
    case 2:
        mp_reader_wait(reader, &slot->ticket);
        collect(worker, slot);
        break;
    default: wait_any(worker); break;
    }
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct mp_reader_stats stats;

    for (int i = 0; i < STEPS; i++) {
        step(worker);
        mp_reader_get_stats(reader, &stats);
        (void)mp_reader_idle(reader);
    }
    for (int i = 0; i < TICKETS; i++) {
        if (worker->slots[i].memory != NULL) {
            mp_reader_wait(reader, &worker->slots[i].ticket);
            collect(worker, &worker->slots[i]);
        }
    }
    return NULL;
}

static void run(bool uring, uint64_t seed, uint32_t width)
{
    static struct worker workers[THREADS];
    const struct mp_reader_config config = {
        .files = files,
        .clock = mp_clock_monotonic(),
        .uring = uring,
        .depth = width,
        .threads = width,
        .chunk_bytes = 16384,
    };
    uint64_t done = 0, cancelled = 0;

    CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
    memset(workers, 0, sizeof(workers));
    for (int i = 0; i < THREADS; i++) {
        workers[i].seed = seed + (uint64_t)i * 7919 + 1;
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        done += workers[i].done;
        cancelled += workers[i].cancelled;
    }
    CHECK(mp_reader_idle(reader));
    CHECK(done > 0);
    fprintf(stderr, "  width %u: %llu tickets read, %llu cancelled\n", width,
            (unsigned long long)done, (unsigned long long)cancelled);
    mp_reader_destroy(reader);
}

int main(int argc, char **argv)
{
    struct timespec now;
    uint64_t seed;
    bool uring;

    CHECK(argc >= 2);
    uring = strcmp(argv[1], "io_uring") == 0;
    if (uring && !test_uring_works())
        SKIP("io_uring cannot be used here");
    clock_gettime(CLOCK_REALTIME, &now);
    seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 32;
    fprintf(stderr, "  seed %llu\n", (unsigned long long)seed);
    test_files_write();
    files = test_files_open();
    run(uring, seed, 1);
    run(uring, seed + 1, 8);
    mp_files_destroy(files);
    return 0;
}
