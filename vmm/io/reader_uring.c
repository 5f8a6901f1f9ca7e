/*
 * Engine: io_uring. One thread takes chunks, submits their reads and sleeps in the kernel until one
 * completes. New tickets wake it through an eventfd, of which a read is always in flight in the
 * same ring. A caller may hand chunks to the kernel too (push): threads that compute leave the
 * ring's thread no processor, for milliseconds. Completions are this thread's alone.
 *
 * If the ring stops working (which a healthy kernel never does, but a sandbox may), nothing is
 * lost: reads that the kernel has are waited for with poll(), those it has not are done with
 * pread(), and the thread goes on as the only thread of a pool.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/log.h"
#include "vmm/base/thread.h"
#include "vmm/io/reader_int.h"

#define EVENT_TRIES 16
#define ENTER_TRIES 1000

/* The eventfd's number, if so many are allowed: it is written to, and a program that closes what it
 * does not know gives low numbers away again. */
#define EVENT_FD_MIN 500

/* The longest sleep: a program into which we were preloaded may have closed the eventfd. */
#define SLEEP_S 1

/* The most that a caller spends on handing over reads. */
#define PUSH_NS 500000

struct uring_state {
    struct mp_reader *reader;
    struct io_uring ring;
    pthread_t thread;
    int event_fd;
    void *arrays; /* the block of all arrays */

    /* Under the reader's lock: the thread may sleep although it could take a chunk. */
    bool wake_wanted;

    /* The thread's own. */
    uint64_t event_value;
    bool event_armed; /* the read of the eventfd is in flight */
    uint32_t event_failures;

    /* The side of the ring where reads are handed over, and all below. */
    struct mp_mutex lock;
    uint32_t enter_failures MP_GUARDED_BY(lock); /* in a row */
    bool broken MP_GUARDED_BY(lock);             /* set by the thread only */
    bool no_event MP_GUARDED_BY(lock); /* no eventfd: nobody would look for what a caller pushed */

    uint32_t in_flight MP_GUARDED_BY(lock); /* chunks in use */
    uint32_t free_count MP_GUARDED_BY(lock);
    uint16_t *free_chunks;   /* indexes */
    struct mp_chunk *chunks; /* (depth): those in use are the thread's, once the kernel has them */

    /* What was put into the ring and not yet taken by the kernel, oldest first: indexes of chunks,
     * or event_index(). */
    uint32_t pushed_count MP_GUARDED_BY(lock);
    uint16_t *pushed;
};

static uint16_t event_index(const struct uring_state *state)
{
    return (uint16_t)state->reader->config.depth;
}

static void push_read(struct uring_state *state, uint16_t index, int fd, void *dst, uint64_t bytes,
                      uint64_t offset)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&state->ring);

    mp_assert_held(&state->lock);
    mp_assert(bytes > 0 && bytes <= UINT32_MAX);
    /* There is room for every index and the eventfd, and each has one entry at most. */
    mp_assert(sqe != NULL);
    /* The length fits: a chunk has at most 1 GiB and a block. */
    io_uring_prep_read(sqe, fd, dst, (unsigned)bytes, offset);
    io_uring_sqe_set_data64(sqe, index);
    state->pushed[state->pushed_count++] = index;
}

static void arm_event(struct uring_state *state)
{
    mp_assert(!state->event_armed);
    mp_lock(&state->lock);
    push_read(state, event_index(state), state->event_fd, &state->event_value,
              sizeof(state->event_value), 0);
    mp_unlock(&state->lock);
    state->event_armed = true;
}

static void push_chunk(struct uring_state *state, uint16_t index)
{
    const struct mp_chunk *chunk = &state->chunks[index];

    mp_assert(index < state->reader->config.depth);
    push_read(state, index, chunk->fd, chunk->dst, chunk->bytes, chunk->offset);
}

static void end_chunk(struct uring_state *state, uint16_t index)
{
    mp_assert(index < state->reader->config.depth);
    mp_lock(&state->reader->lock);
    mp_reader_complete_locked(state->reader, &state->chunks[index]);
    mp_unlock(&state->reader->lock);
    mp_lock(&state->lock);
    state->free_chunks[state->free_count++] = index;
    state->in_flight--;
    mp_unlock(&state->lock);
}

static void handle_event(struct uring_state *state, int result)
{
    mp_assert(state->event_armed);
    state->event_armed = false;
    if (result == (int)sizeof(state->event_value))
        state->event_failures = 0;
    else
        state->event_failures++;
}

/* The rest of a chunk. False: the ring is broken. */
static bool push_again(struct uring_state *state, uint16_t index)
{
    bool pushed;

    mp_assert(index < state->reader->config.depth);
    mp_lock(&state->lock);
    pushed = !state->broken;
    if (pushed)
        push_chunk(state, index);
    mp_unlock(&state->lock);
    return pushed;
}

static void handle_chunk(struct uring_state *state, uint16_t index, int result)
{
    struct mp_chunk *chunk = &state->chunks[index];

    mp_assert(index < state->reader->config.depth);
    /* "Would block" is no result for a file, and not every file system has io_uring's read path.
     * Reads that the kernel's own threads do are given up when the thread ends that pushed them. */
    if (result == -EAGAIN || result == -EOPNOTSUPP || result == -ECANCELED) {
        mp_chunk_read(state->reader, chunk);
    } else if (mp_chunk_result(state->reader, chunk, result)) {
        if (push_again(state, index))
            return;
        mp_chunk_read(state->reader, chunk);
    }
    end_chunk(state, index);
}

/* The lock: a caller may have filled the chunk. */
static bool next_completion(struct uring_state *state, uint16_t *index_p, int *result_p)
{
    struct io_uring_cqe *cqe;
    bool there;

    mp_lock(&state->lock);
    there = io_uring_peek_cqe(&state->ring, &cqe) == 0;
    if (there) {
        *index_p = (uint16_t)io_uring_cqe_get_data64(cqe);
        *result_p = cqe->res;
        io_uring_cqe_seen(&state->ring, cqe);
    }
    mp_unlock(&state->lock);
    mp_assert(!there || *index_p <= event_index(state));
    return there;
}

static void handle_completions(struct uring_state *state)
{
    uint16_t index;
    int result;

    while (next_completion(state, &index, &result)) {
        if (index == event_index(state))
            handle_event(state, result);
        else
            handle_chunk(state, index, result);
    }
}

/* Hand over what was pushed; 0, or what the kernel said. */
static int hand_over_locked(struct uring_state *state)
{
    const int result = io_uring_submit_and_wait(&state->ring, 0);
    uint32_t taken;

    mp_assert_held(&state->lock);
    if (result < 0)
        return result;
    taken = (uint32_t)result;
    mp_assert(taken <= state->pushed_count);
    state->pushed_count -= taken;
    memmove(state->pushed, state->pushed + taken, state->pushed_count * sizeof(*state->pushed));
    return 0;
}

/* The same on the ring's thread, which judges the ring. False: it is broken. */
static bool judge(struct uring_state *state, int result)
{
    char number[32];

    mp_assert(result <= 0);
    if (result == 0) {
        state->enter_failures = 0;
        return true;
    }
    if ((result == -EINTR || result == -EAGAIN || result == -EBUSY) &&
        ++state->enter_failures < ENTER_TRIES)
        return true;
    mp_log_warn("reader", "io_uring stopped working: %s; reading with one thread",
                mp_errno_name(number, -result));
    mp_lock(&state->lock);
    state->broken = true;
    mp_unlock(&state->lock);
    return false;
}

/* Sleep until something has completed, or for a while: 0, or what the kernel said. */
static int wait_for_completion(struct uring_state *state)
{
    const bool can_end = (state->ring.features & IORING_FEAT_EXT_ARG) != 0;
    struct __kernel_timespec longest = { .tv_sec = SLEEP_S };
    struct io_uring_cqe *cqe;
    const int result = io_uring_wait_cqes(&state->ring, &cqe, 1, can_end ? &longest : NULL, NULL);

    return result == -ETIME ? 0 : result;
}

/* Hand over what was pushed and sleep. False: the ring is broken. */
static bool enter(struct uring_state *state)
{
    bool all;
    int result;

    mp_lock(&state->lock);
    result = hand_over_locked(state);
    all = state->pushed_count == 0;
    mp_unlock(&state->lock);
    if (result == 0 && all)
        result = wait_for_completion(state);
    mp_assert(state->broken || result <= 0);
    return judge(state, result);
}

/* Put one chunk into the ring. False: there is none, or as many as may be are in flight. Both locks
 * are held. */
static bool take_chunk_locked(struct uring_state *state)
{
    uint16_t index;

    mp_assert_held(&state->reader->lock);
    mp_assert_held(&state->lock);
    if (state->free_count == 0)
        return false;
    index = state->free_chunks[state->free_count - 1];
    if (!mp_reader_take_locked(state->reader, &state->chunks[index]))
        return false;
    state->free_count--;
    state->in_flight++;
    push_chunk(state, index);
    return true;
}

/*
 * Take chunks while some are free. Each chunk is handed to the kernel before the next is taken: a
 * batch is held back from the disk until all of it has been looked at, and where memory is written
 * for the first time the kernel clears it meanwhile, at not much more than the speed of the disk.
 * False: nothing is in flight, nothing is left, and the reader stops.
 */
static bool take_chunks(struct uring_state *state)
{
    struct mp_reader *reader = state->reader;
    bool stopping, taken, busy;
    int result = 0;

    do {
        mp_lock(&state->lock);
        mp_lock(&reader->lock);
        state->wake_wanted = false;
        taken = take_chunk_locked(state);
        if (!taken && state->free_count > 0)
            state->wake_wanted = true;
        stopping = reader->stopping;
        mp_unlock(&reader->lock);
        if (taken)
            result = hand_over_locked(state);
        busy = state->in_flight > 0;
        mp_unlock(&state->lock);
        if (taken && judge(state, result))
            handle_completions(state);
    } while (taken && !state->broken);
    mp_assert(!taken || state->broken);
    return !stopping || busy;
}

/*
 * The same on the thread of a caller, for so long as it may cost, and demands only: the caller
 * waits for them, so it makes no other system call that the end of a read could interrupt. What is
 * left then, and what the kernel does not take, is for the ring's thread, which the submission
 * woke.
 */
static void uring_push(struct mp_reader *reader)
{
    struct uring_state *state = reader->engine_state;
    const uint64_t start_ns = mp_clock_now_ns(reader->config.clock);
    bool taken = true;

    mp_assert_none_held();
    mp_lock(&state->lock);
    while (taken && !state->broken && !state->no_event && state->pushed_count == 0 &&
           mp_clock_now_ns(reader->config.clock) - start_ns < PUSH_NS) {
        mp_lock(&reader->lock);
        taken = reader->lists[MP_PRIORITY_DEMAND].first != NULL && take_chunk_locked(state);
        mp_unlock(&reader->lock);
        if (taken && hand_over_locked(state) != 0)
            break;
    }
    if (state->pushed_count > 0)
        (void)eventfd_write(state->event_fd, 1);
    mp_unlock(&state->lock);
}

/* A kernel that does not wake us still fills the completion ring. */
static void wait_without_enter(struct uring_state *state)
{
    struct pollfd ring = { .fd = state->ring.ring_fd, .events = POLLIN };

    (void)poll(&ring, 1, 100);
    handle_completions(state);
}

/* The ring is broken: wait for the reads that it has, do those that it has not. */
static void drain(struct uring_state *state)
{
    /* Broken: nobody pushes any more. */
    for (uint32_t i = 0; i < state->pushed_count; i++) {
        const uint16_t index = state->pushed[i];

        if (index == event_index(state)) {
            state->event_armed = false;
        } else {
            mp_chunk_read(state->reader, &state->chunks[index]);
            end_chunk(state, index);
        }
    }
    state->pushed_count = 0;
    while (state->in_flight > 0)
        wait_without_enter(state);
}

/* The kernel writes into our memory as long as the read of the eventfd is in flight. */
static void disarm_event(struct uring_state *state)
{
    mp_assert(state->event_fd >= 0);
    (void)eventfd_write(state->event_fd, 1);
    while (state->event_armed && !state->broken) {
        if (enter(state))
            handle_completions(state);
    }
    drain(state);
    while (state->event_armed)
        wait_without_enter(state);
}

/* Without the eventfd: callers push nothing any more. Is nothing in flight either? */
static bool give_up_event(struct uring_state *state)
{
    bool idle;

    mp_lock(&state->lock);
    state->no_event = true;
    idle = state->in_flight == 0;
    mp_unlock(&state->lock);
    return idle;
}

/* Without the eventfd: sleep until there is something to take. */
static void wait_for_work(struct uring_state *state)
{
    struct mp_reader *reader = state->reader;

    mp_lock(&reader->lock);
    while (!reader->stopping && !mp_reader_has_work_locked(reader))
        mp_cond_wait(&reader->work, &reader->lock);
    mp_unlock(&reader->lock);
}

static void *uring_run(void *arg)
{
    struct uring_state *state = arg;

    mp_reader_shorten_slice();
    while (!state->broken && take_chunks(state)) {
        if (!state->event_armed && state->event_failures < EVENT_TRIES)
            arm_event(state);
        if (!state->event_armed && give_up_event(state))
            wait_for_work(state);
        else if (enter(state))
            handle_completions(state);
    }
    disarm_event(state);
    /* Ends at once unless the ring broke before the reader stopped. */
    mp_reader_work(state->reader);
    return NULL;
}

static void uring_free(struct uring_state *state)
{
    mp_mutex_fini(&state->lock);
    free(state->arrays);
    free(state);
}

static enum mp_status fail_uring(const char *what, int error_number)
{
    char number[32];

    mp_assert(error_number > 0);
    return mp_fail(MP_ERR_UNSUPPORTED, "E_URING", "io_uring cannot be used, %s: %s", what,
                   mp_errno_name(number, error_number));
}

static void take_arrays(struct uring_state *state, struct mp_arena *arena)
{
    const uint32_t depth = state->reader->config.depth;

    state->chunks = mp_arena_take(arena, depth, sizeof(*state->chunks));
    state->free_chunks = mp_arena_take(arena, depth, sizeof(*state->free_chunks));
    state->pushed = mp_arena_take(arena, depth + 1, sizeof(*state->pushed));
}

/* All of the state but ring, eventfd and thread. */
static enum mp_status uring_new(struct mp_reader *reader, struct uring_state **state_p)
{
    const uint32_t depth = reader->config.depth;
    struct uring_state *state = calloc(1, sizeof(*state));
    struct mp_arena arena = { 0 };
    enum mp_status status;

    if (state == NULL)
        return mp_fail_no_memory("the reader's ring", sizeof(*state));
    state->reader = reader;
    mp_mutex_init(&state->lock, MP_LOCK_BACKEND, "reader.ring");
    take_arrays(state, &arena);
    status = mp_arena_open(&arena, "the reader's ring");
    if (status != MP_OK) {
        uring_free(state);
        return status;
    }
    take_arrays(state, &arena);
    state->arrays = arena.block;
    while (state->free_count < depth) {
        state->free_chunks[state->free_count] = (uint16_t)(depth - 1 - state->free_count);
        state->free_count++;
    }
    mp_assert(state->free_count == depth);
    *state_p = state;
    return MP_OK;
}

static int open_event(void)
{
    const int fd = eventfd(0, EFD_CLOEXEC);
    const int high = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, EVENT_FD_MIN) : -1;

    if (high < 0)
        return fd;
    close(fd);
    return high;
}

static enum mp_status uring_start(struct mp_reader *reader, void **state_p)
{
    struct uring_state *state = NULL;
    enum mp_status status = uring_new(reader, &state);
    int error_number;

    if (status != MP_OK)
        return status;
    error_number = -io_uring_queue_init(reader->config.depth + 1, &state->ring, 0);
    if (error_number != 0) {
        status = fail_uring("io_uring_setup", error_number);
        goto err_free;
    }
    /* Came in the same version as the plain read operation. */
    if ((state->ring.features & IORING_FEAT_RW_CUR_POS) == 0) {
        status = fail_uring("kernel older than 5.6", ENOSYS);
        goto err_ring;
    }
    state->event_fd = open_event();
    if (state->event_fd < 0) {
        status = fail_uring("eventfd", errno);
        goto err_ring;
    }
    error_number = mp_thread_start(&state->thread, "mp-uring", uring_run, state);
    if (error_number != 0) {
        status = fail_uring("pthread_create", error_number);
        goto err_event;
    }
    *state_p = state;
    return MP_OK;

err_event:
    close(state->event_fd);
err_ring:
    io_uring_queue_exit(&state->ring);
err_free:
    uring_free(state);
    return status;
}

static void uring_wake_locked(struct mp_reader *reader)
{
    struct uring_state *state = reader->engine_state;

    mp_assert_held(&reader->lock);
    if (state->wake_wanted || reader->stopping)
        (void)eventfd_write(state->event_fd, 1);
    state->wake_wanted = false;
    mp_cond_signal(&reader->work); /* for a thread without eventfd or ring */
}

static void uring_stop(struct mp_reader *reader)
{
    struct uring_state *state = reader->engine_state;

    mp_assert(reader->stopping);
    pthread_join(state->thread, NULL);
    close(state->event_fd);
    io_uring_queue_exit(&state->ring);
    uring_free(state);
}

const struct mp_reader_engine mp_reader_engine_uring = {
    .name = "io_uring",
    .start = uring_start,
    .wake_locked = uring_wake_locked,
    .push = uring_push,
    .stop = uring_stop,
};
