/* Threads that do the same work together; see team.h. */
#include "tools/bench/team.h"

#include <stdio.h>
#include <stdlib.h>

struct member {
    struct team *team;
    unsigned index;
};

static void *team_member(void *arg)
{
    struct member member = *(struct member *)arg;

    free(arg);
    for (;;) {
        pthread_barrier_wait(&member.team->start);
        if (member.team->run == NULL)
            return NULL;
        member.team->run(member.team->ctx, member.index, member.team->count);
        pthread_barrier_wait(&member.team->end);
    }
}

static bool start_member(struct team *team, unsigned index)
{
    struct member *member = malloc(sizeof(*member));

    if (member == NULL)
        return false;
    *member = (struct member){ team, index };
    if (pthread_create(&team->threads[index], NULL, team_member, member) == 0)
        return true;
    free(member);
    return false;
}

bool team_start(struct team *team, unsigned count)
{
    team->count = count;
    pthread_barrier_init(&team->start, NULL, count);
    pthread_barrier_init(&team->end, NULL, count);
    for (unsigned i = 1; i < count; i++) {
        if (!start_member(team, i)) {
            fprintf(stderr, "bench_kernels: cannot start %u threads\n", count);
            return false;
        }
    }
    return true;
}

void team_stop(struct team *team)
{
    team->run = NULL;
    pthread_barrier_wait(&team->start);
    for (unsigned i = 1; i < team->count; i++)
        pthread_join(team->threads[i], NULL);
    pthread_barrier_destroy(&team->start);
    pthread_barrier_destroy(&team->end);
}

void team_run(struct team *team, team_fn *run, void *ctx)
{
    team->run = run;
    team->ctx = ctx;
    pthread_barrier_wait(&team->start);
    run(ctx, 0, team->count);
    pthread_barrier_wait(&team->end);
}
