/*
 * Engine: io_uring. One thread takes chunks, submits their reads and sleeps in the kernel until one
 * completes. New tickets wake it through an eventfd, of which a read is always in flight in the
 * same ring. Callers may submit chunks too (push), because compute threads can keep the ring's
 * thread off the processors for milliseconds. Only the ring's thread handles completions.
 *
 * If the ring stops working (in a sandbox, say), nothing is lost: submitted reads are waited for
 * with poll(), the others are done with pread(), and the thread continues as the only thread of a
 * pool.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>

#include "vmm/base/assert.h"
#include "vmm/base/log.h"
#include "vmm/io/reader_uring_int.h"

#define EVENT_TRIES 16
#define ENTER_TRIES 1000

/* The longest sleep: a program into which we were preloaded may have closed the eventfd. */
#define SLEEP_S 1

/* The most that a caller spends on handing over reads. */
#define PUSH_NS 500000

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

/* The next chunk goes to the disk before those are told who wait for this one: they would take the
 * processor, and the disk would stand still. What the kernel does not take now it is asked again.
 */
static void hand_on(struct uring_state *state, uint16_t index)
{
    struct mp_reader *reader = state->reader;
    bool taken;

    mp_assert(index < reader->config.depth);
    mp_lock(&state->lock);
    mp_lock(&reader->lock);
    mp_reader_landed_locked(reader, &state->chunks[index]);
    taken = !state->broken && take_chunk_locked(state);
    mp_unlock(&reader->lock);
    if (taken)
        (void)hand_over_locked(state);
    mp_unlock(&state->lock);
}

static void end_chunk(struct uring_state *state, uint16_t index)
{
    mp_assert(index < state->reader->config.depth);
    /* To take another may change the thread's error record. */
    if (state->reader->config.by_extent && !state->chunks[index].failed)
        hand_on(state, index);
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

/* What the kernel said to the ring's thread, which judges the ring. False: it is broken. */
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

void *mp_uring_run(void *arg)
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

static void uring_wake_locked(struct mp_reader *reader)
{
    struct uring_state *state = reader->engine_state;

    mp_assert_held(&reader->lock);
    if (state->wake_wanted || reader->stopping)
        (void)eventfd_write(state->event_fd, 1);
    state->wake_wanted = false;
    mp_cond_signal(&reader->work); /* for a thread without eventfd or ring */
}

const struct mp_reader_engine mp_reader_engine_uring = {
    .name = "io_uring",
    .start = mp_uring_start,
    .wake_locked = uring_wake_locked,
    .push = uring_push,
    .stop = mp_uring_stop,
};
