#ifndef MP_BENCH_TEAM_H
#define MP_BENCH_TEAM_H

#include <pthread.h>
#include <stdbool.h>

/* Threads that do the same work together, the caller's among them. */
#define TEAM_THREADS_MAX 256

typedef void team_fn(void *ctx, unsigned thread, unsigned threads);

struct team {
    pthread_t threads[TEAM_THREADS_MAX];
    pthread_barrier_t start, end;
    unsigned count;
    team_fn *run; /* NULL: the end */
    void *ctx;
};

/* False, with a line on standard error: so many threads cannot be started; the process should end.
 */
bool team_start(struct team *team, unsigned count);
void team_stop(struct team *team);

/* Call run() on all threads; returns when all have ended. */
void team_run(struct team *team, team_fn *run, void *ctx);

#endif
