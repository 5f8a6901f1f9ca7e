/* Engine: threads that take one chunk at a time and read it with pread(). */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/log.h"
#include "vmm/base/thread.h"
#include "vmm/io/reader_int.h"

struct threads_state {
    uint32_t count;
    pthread_t threads[];
};

static void *threads_run(void *arg)
{
    mp_reader_shorten_slice();
    mp_reader_work(arg);
    return NULL;
}

static enum mp_status threads_start(struct mp_reader *reader, void **state_p)
{
    const uint32_t want = reader->config.threads;
    const size_t bytes = sizeof(struct threads_state) + want * sizeof(pthread_t);
    struct threads_state *state = malloc(bytes);
    int error_number = 0;
    char number[32];

    mp_assert(want > 0);
    if (state == NULL)
        return mp_fail_no_memory("the reader's threads", bytes);
    state->count = 0;
    while (state->count < want && error_number == 0) {
        error_number =
            mp_thread_start(&state->threads[state->count], "mp-reader", threads_run, reader);
        if (error_number == 0)
            state->count++;
    }
    if (state->count == 0) {
        free(state);
        return mp_fail(MP_ERR_NO_MEMORY, "E_THREADS",
                       "cannot start a reader thread: %s; raise the limit on %s",
                       mp_errno_name(number, error_number), mp_thread_limit());
    }
    if (state->count < want)
        mp_log_info("reader", "started %" PRIu32 " of %" PRIu32 " reader threads", state->count,
                    want);
    *state_p = state;
    return MP_OK;
}

static void threads_wake_locked(struct mp_reader *reader)
{
    mp_assert_held(&reader->lock);
    if (reader->stopping)
        mp_cond_broadcast(&reader->work);
    else
        mp_cond_signal(&reader->work);
}

static void threads_stop(struct mp_reader *reader)
{
    struct threads_state *state = reader->engine_state;

    mp_assert(reader->stopping);
    for (uint32_t i = 0; i < state->count; i++)
        pthread_join(state->threads[i], NULL);
    free(state);
}

const struct mp_reader_engine mp_reader_engine_threads = {
    .name = "threads",
    .start = threads_start,
    .wake_locked = threads_wake_locked,
    .stop = threads_stop,
};
