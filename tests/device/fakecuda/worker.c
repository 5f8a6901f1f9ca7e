/*
 * The threads that are the streams: each does the operations of its stream, in order, late by
 * chance or only when somebody waits for them, if that was asked for.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/device/fakecuda/stream.h"

/*
 * What a device's clock shows when the host's begins. Its times are only good for differences: as
 * floats, or doubles, two of them that are a second apart are the same.
 */
#define DEVICE_EPOCH_NS (UINT64_C(1) << 62)

uint64_t fake_time_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* At most 1024 words, evenly spread, and the last bytes. */
uint64_t fake_sum(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    const size_t step = bytes / 1024 / 8 * 8 + 8;
    uint64_t sum = bytes, word;

    for (size_t i = 0; i + 8 <= bytes; i += step) {
        memcpy(&word, at + i, 8);
        sum = (sum ^ word) * 0x100000001b3u;
        sum ^= sum >> 29;
    }
    for (size_t i = bytes - bytes % 8; i < bytes; i++)
        sum = (sum ^ at[i]) * 0x100000001b3u;
    return sum;
}

static void sleep_ns(uint64_t ns)
{
    const struct timespec time = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

    nanosleep(&time, NULL);
}

/* ---- one operation, on the device */

struct running {
    struct fake_op *op;
    struct {
        uint64_t address, bytes;
        bool write;
    } * touched;
    size_t count, max;
    const char *wrong; /* with the kernel */
    uint64_t idle;     /* blocks */
    uint64_t idle_attend;
};

static bool note_touch(void *ctx, uint64_t address, uint64_t bytes, bool write)
{
    struct running *r = ctx;

    if (bytes == 0)
        return true;
    if (r->count == r->max) {
        r->max = r->max > 0 ? 2 * r->max : 16;
        r->touched = realloc(r->touched, r->max * sizeof(r->touched[0]));
        if (r->touched == NULL)
            abort();
        r->op->touched = r->touched;
    }
    r->touched[r->count].address = address;
    r->touched[r->count].bytes = bytes;
    r->touched[r->count++].write = write;
    return true; /* where it cannot be read, that is a fault here as in the kernel */
}

static void find_touched(void *ctx)
{
    struct running *r = ctx;

    r->op->function->kernel->touches(r->op->params, note_touch, r);
    r->idle = mp_simt_idle_blocks(r->op->function->kernel, r->op->params, r->op->grid);
    r->idle_attend = mp_simt_idle_attend(r->op->function->kernel, r->op->params, r->op->grid);
}

/* The first byte of the last range that the kernel writes, or NULL. */
static unsigned char *last_result(const struct running *r)
{
    for (size_t i = r->count; i > 0; i--) {
        if (r->touched[i - 1].write)
            return (unsigned char *)(uintptr_t)r->touched[i - 1].address;
    }
    return NULL;
}

static void run(void *ctx)
{
    struct running *r = ctx;
    const struct fake_op *op = r->op;

    switch (op->kind) {
    case FAKE_COPY:
        memmove((void *)(uintptr_t)op->dst, (const void *)(uintptr_t)op->src, op->bytes);
        break;
    case FAKE_FILL: memset((void *)(uintptr_t)op->dst, op->value, op->bytes); break;
    case FAKE_KERNEL:
        if (strcmp(fake.wrong_kernel, op->name) == 0 && last_result(r) == NULL)
            break; /* one without results does nothing at all */
        r->wrong = op->function->kernel->run(op->params, op->grid, op->block, op->shared_bytes);
        if (strcmp(fake.wrong_kernel, op->name) == 0)
            last_result(r)[fake.wrong_bit / 8] ^= (unsigned char)(1u << fake.wrong_bit % 8);
        break;
    default: break;
    }
}

/* Of the host's memory that a kernel reads where it lies. */
static void sum_of_host_memory(void *ctx)
{
    struct running *r = ctx;

    r->op->sum = 0;
    for (size_t i = 0; i < r->op->access_count; i++) {
        const struct fake_access *a = &r->op->accesses[i];

        if (a->host_memory && !a->write)
            r->op->sum += fake_sum((const void *)(uintptr_t)a->address, a->bytes);
    }
}

static void sum_of_source(void *ctx)
{
    struct running *r = ctx;

    r->op->sum = fake_sum((const void *)(uintptr_t)r->op->src, r->op->bytes);
}

static void fell(const struct fake_op *op, uintptr_t address)
{
    fake_violation("%s on stream %u touched %#lx, where it may not", op->name, op->stream,
                   (unsigned long)address);
    fake.lost = MP_CU_ERROR_ILLEGAL_ADDRESS;
}

static void failed_launch(const struct fake_op *op, const char *why)
{
    fake_violation("%s on stream %u: %s", op->name, op->stream, why);
    fake.lost = MP_CU_ERROR_LAUNCH_FAILED;
}

/* With the lock held: say what it touches once more, now that it is known. False: not to be run. */
static bool begin(struct running *r)
{
    struct fake_op *op = r->op;
    bool ok = true;

    fake_undeclare(op);
    if (op->kind == FAKE_COPY)
        ok = fake_declare(op, op->src, op->bytes, false);
    if (op->kind == FAKE_COPY || op->kind == FAKE_FILL)
        ok &= fake_declare(op, op->dst, op->bytes, true);
    for (size_t i = 0; i < r->count; i++)
        ok &= fake_declare(op, r->touched[i].address, r->touched[i].bytes, r->touched[i].write);
    if (op->kind == FAKE_KERNEL)
        fake_check_order(op);
    if (!ok)
        fake.lost = MP_CU_ERROR_ILLEGAL_ADDRESS;
    fake.work.idle_blocks += r->idle;
    fake.work.idle_attend += r->idle_attend;
    return ok;
}

/* With the lock held, which it gives up while the work is done. */
static void execute(struct fake_op *op)
{
    struct running r = { .op = op };
    const uint64_t sum = op->sum;
    uintptr_t at = 0;
    bool stands = true;

    if (op->kind == FAKE_KERNEL) {
        pthread_mutex_unlock(&fake.lock);
        stands = fake_guarded(find_touched, &r, &at);
        pthread_mutex_lock(&fake.lock);
    }
    if (!stands) {
        fell(op, at);
    } else if (begin(&r)) {
        pthread_mutex_unlock(&fake.lock);
        if (op->has_sum || op->kind == FAKE_KERNEL)
            stands =
                fake_guarded(op->kind == FAKE_KERNEL ? sum_of_host_memory : sum_of_source, &r, &at);
        const bool same = !stands || !op->has_sum || op->sum == sum;
        const uint64_t before = op->sum;
        stands = stands && fake_guarded(run, &r, &at);
        if (stands && op->kind == FAKE_KERNEL)
            stands = fake_guarded(sum_of_host_memory, &r, &at);
        pthread_mutex_lock(&fake.lock);
        if (!stands)
            fell(op, at);
        else if (r.wrong != NULL)
            failed_launch(op, r.wrong);
        else if (!same)
            fake_violation("the source of %s on stream %u was changed after it had been queued",
                           op->name, op->stream);
        else if (op->kind == FAKE_KERNEL && op->sum != before)
            fake_violation("%s on stream %u read memory of the host while that was changed",
                           op->name, op->stream);
    }
    op->touched = NULL;
    free(r.touched);
}

/* ---- when to do them */

static uint64_t next_random(struct fake_stream *stream)
{
    stream->random ^= stream->random << 13;
    stream->random ^= stream->random >> 7;
    stream->random ^= stream->random << 17;
    return stream->random;
}

/* By chance: mostly not at all, sometimes a little, rarely long. */
static void delay(struct fake_stream *stream)
{
    uint64_t chance, ns = 0;

    if (fake.seed == 0)
        return;
    chance = next_random(stream);
    if (chance % 64 == 0)
        ns = 2000000;
    else if (chance % 4 == 0)
        ns = chance / 64 % 200000;
    if (ns == 0)
        return;
    pthread_mutex_unlock(&fake.lock);
    sleep_ns(ns);
    pthread_mutex_lock(&fake.lock);
}

/* Nothing is to be done before it: the stream stands still, or is lazy and nobody asked. */
static void wait_for_leave(struct fake_stream *stream, const struct fake_op *op)
{
    while (fake.lost == 0) {
        const uint64_t due = op->queued_ns + fake.lazy_ns;
        struct timespec until = { (time_t)(due / 1000000000u), (long)(due % 1000000000u) };

        if (fake.stalled)
            pthread_cond_wait(&stream->work, &fake.lock);
        else if (stream->wanted >= op->number || fake.lazy_ns == 0 || fake_time_ns() >= due)
            return;
        else
            pthread_cond_timedwait(&stream->work, &fake.lock, &until);
    }
}

static void spoil(struct fake_stream *stream, int result, uint64_t number)
{
    static uint64_t failures;

    stream->error = result;
    stream->failure = ++failures;
    stream->failed = stream->skipped = number;
}

/* Was what a stream waits for not done? */
static bool waits_for_spoilt(const struct fake_op *op)
{
    const struct fake_stream *other = &fake_streams[op->wait_stream];

    return op->kind == FAKE_WAIT && other->failure != 0 && op->wait_number >= other->failed &&
           op->wait_number <= other->skipped;
}

/* Do it, unless something before it has failed, also on a stream that it waits for. */
static void work_off(struct fake_stream *stream, struct fake_op *op)
{
    const uint64_t began_ns = fake_time_ns();

    if (fake_is_spoilt(op)) {
        stream->skipped = op->number;
    } else if (waits_for_spoilt(op)) {
        spoil(stream, fake_streams[op->wait_stream].error, op->number);
    } else if (op->failure != 0 && fake_is_fatal(op->failure)) {
        fake.lost = op->failure;
    } else if (op->failure != 0) {
        spoil(stream, op->failure, op->number);
    } else {
        execute(op);
        fake_profile_wait(op, began_ns);
    }
}

static void end_record(const struct fake_stream *stream, const struct fake_op *op)
{
    struct fake_event *event = fake_object_quietly(FAKE_EVENT, op->event);

    if (event == NULL || event->records != op->record)
        return;
    event->error = fake_is_spoilt(op) ? stream->error : 0;
    event->time_ns = DEVICE_EPOCH_NS + fake_time_ns();
}

static void step(struct fake_stream *stream)
{
    struct fake_op *op = stream->next;

    wait_for_leave(stream, op);
    if (fake.lost == 0)
        delay(stream);
    while (op->kind == FAKE_WAIT && fake.lost == 0 &&
           fake_streams[op->wait_stream].done < op->wait_number)
        fake_wait_moved();
    if (fake.lost == 0)
        work_off(stream, op);
    if (op->kind == FAKE_RECORD)
        end_record(stream, op);
    op->finished = true;
    stream->next = op->next;
    stream->done = op->number;
    fake_moved();
}

static void *worker(void *ctx)
{
    struct fake_stream *stream = ctx;

    pthread_mutex_lock(&fake.lock);
    fake_become_device();
    for (;;) {
        if (stream->next != NULL)
            step(stream);
        else
            pthread_cond_wait(&stream->work, &fake.lock);
    }
    return NULL;
}

bool fake_worker_start(struct fake_stream *stream)
{
    pthread_condattr_t monotonic;
    pthread_attr_t detached;
    int error;

    if (stream->has_thread)
        return true;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&stream->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    error = pthread_create(&stream->thread, &detached, worker, stream);
    pthread_attr_destroy(&detached);
    stream->has_thread = error == 0;
    return stream->has_thread;
}
