/*
 * Engine: io_uring. Making ring, eventfd and thread, and ending them; the work of the thread is in
 * reader_uring.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/thread.h"
#include "vmm/io/reader_uring_int.h"

/* The eventfd's number, if so many are allowed: it is written to, and a program that closes what it
 * does not know gives low numbers away again. */
#define EVENT_FD_MIN 500

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

enum mp_status mp_uring_start(struct mp_reader *reader, void **state_p)
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
    error_number = mp_thread_start(&state->thread, "mp-uring", mp_uring_run, state);
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

void mp_uring_stop(struct mp_reader *reader)
{
    struct uring_state *state = reader->engine_state;

    mp_assert(reader->stopping);
    pthread_join(state->thread, NULL);
    close(state->event_fd);
    io_uring_queue_exit(&state->ring);
    uring_free(state);
}
