/* A transport between threads; see loopback.h. */
#include "tests/model/cluster/loopback.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/test.h"
#include "vmm/base/error.h"

#define RANKS_MAX 8

struct letter {
    struct letter *next;
    uint32_t from;
    uint64_t bytes;
    max_align_t data[];
};

struct box {
    struct mp_transport super;
    struct loopback *net;
    struct letter *first, **end;
    struct letter *read; /* what poll() gave last */
    uint32_t count;
    bool dead, cut, left;
    bool told[RANKS_MAX]; /* of this rank's death */
};

struct loopback {
    pthread_mutex_t lock;
    pthread_cond_t came;
    struct box box[RANKS_MAX];
    uint32_t ranks, limit;
    uint32_t meeting, met; /* ranks in box_restart(); how often they all were */
    enum mp_status restarted;
    void (*start)(void *ctx, uint32_t rank);
    void *start_ctx;
    uint64_t sent;
};

static void put(struct loopback *net, uint32_t from, uint32_t to, const void *data, uint64_t bytes)
{
    struct letter *letter = malloc(sizeof(*letter) + bytes);

    CHECK(letter != NULL);
    *letter = (struct letter){ .from = from, .bytes = bytes };
    memcpy(letter->data, data, bytes);
    *net->box[to].end = letter;
    net->box[to].end = &letter->next;
    net->box[to].count++;
    net->sent++;
    pthread_cond_broadcast(&net->came);
}

static enum mp_status box_send(struct mp_transport *transport, uint32_t to, const void *data,
                               uint64_t bytes)
{
    struct box *box = (struct box *)transport;
    struct loopback *net = box->net;
    enum mp_status status = MP_OK;

    pthread_mutex_lock(&net->lock);
    if (net->box[to].dead || box->dead)
        status = mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_LOST", "rank %u has died", to);
    else if (net->limit > 0 && net->box[to].count >= net->limit)
        status = MP_ERR_BUSY;
    else
        put(net, transport->rank, to, data, bytes);
    pthread_mutex_unlock(&net->lock);
    return status;
}

static bool find_death(struct box *box, struct mp_arrival *arrival)
{
    for (uint32_t r = 0; r < box->net->ranks; r++) {
        if (!box->net->box[r].dead || box->told[r] || r == box->super.rank)
            continue;
        box->told[r] = true;
        *arrival = (struct mp_arrival){ .from = r, .lost = true };
        return true;
    }
    return false;
}

/* The first letter that the links let through. */
static struct letter *take(struct box *box)
{
    struct letter **at = &box->first;

    if (box->cut)
        return NULL;
    while (*at != NULL && box->net->box[(*at)->from].cut)
        at = &(*at)->next;
    if (*at == NULL)
        return NULL;
    box->read = *at;
    *at = box->read->next;
    if (*at == NULL)
        box->end = at;
    box->count--;
    return box->read;
}

static enum mp_status box_poll(struct mp_transport *transport, uint64_t bytes_max,
                               struct mp_arrival *arrival, bool *found)
{
    struct box *box = (struct box *)transport;
    const struct letter *letter;

    free(box->read);
    box->read = NULL;
    pthread_mutex_lock(&box->net->lock);
    letter = take(box);
    *found = letter != NULL;
    if (letter != NULL) {
        *arrival = (struct mp_arrival){ letter->from, false, letter->data, letter->bytes };
        CHECK(letter->bytes <= bytes_max);
    } else {
        *found = find_death(box, arrival);
    }
    pthread_mutex_unlock(&box->net->lock);
    return MP_OK;
}

static void box_wait(struct mp_transport *transport, uint64_t ns)
{
    struct box *box = (struct box *)transport;
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(ns < 10000000 ? ns : 10000000);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&box->net->lock);
    if (box->first == NULL)
        pthread_cond_timedwait(&box->net->came, &box->net->lock, &until);
    pthread_mutex_unlock(&box->net->lock);
}

static void empty(struct box *box)
{
    while (box->first != NULL) {
        struct letter *letter = box->first;

        box->first = letter->next;
        free(letter);
    }
    free(box->read);
    box->read = NULL;
    box->end = &box->first;
    box->count = 0;
}

/* All are here: the dead ones are as new. */
static enum mp_status revive(struct loopback *net)
{
    enum mp_status status = MP_ERR_CLUSTER;

    for (uint32_t r = 0; r < net->ranks; r++) {
        while (net->start != NULL && net->box[r].dead && !net->box[r].left)
            pthread_cond_wait(&net->came, &net->lock);
    }
    for (uint32_t r = 0; r < net->ranks && net->start != NULL; r++) {
        struct box *box = &net->box[r];

        if (!box->dead)
            continue;
        empty(box);
        box->dead = box->left = false;
        box->super.returned = true;
        for (uint32_t other = 0; other < net->ranks; other++)
            net->box[other].told[r] = false;
        net->start(net->start_ctx, r);
        status = MP_OK;
    }
    return status;
}

static enum mp_status box_restart(struct mp_transport *transport)
{
    struct loopback *net = ((struct box *)transport)->net;
    uint32_t live = 0, before;
    enum mp_status status;

    pthread_mutex_lock(&net->lock);
    if (net->box[transport->rank].dead) { /* it does not know, and calls nobody */
        pthread_mutex_unlock(&net->lock);
        return mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_LOST", "this rank has died");
    }
    before = net->met;
    net->meeting++;
    for (uint32_t r = 0; r < net->ranks; r++)
        live += !net->box[r].dead;
    if (net->meeting == live) {
        net->restarted = revive(net);
        net->meeting = 0;
        net->met++;
        pthread_cond_broadcast(&net->came);
    }
    while (net->met == before)
        pthread_cond_wait(&net->came, &net->lock);
    status = net->restarted;
    pthread_mutex_unlock(&net->lock);
    return status == MP_OK ? MP_OK : mp_fail(status, "E_CLUSTER_LOST", "nobody is started again");
}

static void box_close(struct mp_transport *transport)
{
    (void)transport;
}

static const struct mp_transport_ops ops = {
    .send = box_send, .poll = box_poll, .wait = box_wait, .restart = box_restart, .close = box_close
};

struct loopback *loopback_create(uint32_t ranks)
{
    struct loopback *net = calloc(1, sizeof(*net));

    CHECK(net != NULL && ranks <= RANKS_MAX);
    pthread_mutex_init(&net->lock, NULL);
    pthread_cond_init(&net->came, NULL);
    net->ranks = ranks;
    for (uint32_t r = 0; r < ranks; r++) {
        net->box[r].super =
            (struct mp_transport){ .ops = &ops, .rank = r, .ranks = ranks, .survives = true };
        net->box[r].net = net;
        net->box[r].end = &net->box[r].first;
    }
    return net;
}

void loopback_destroy(struct loopback *net)
{
    for (uint32_t r = 0; r < net->ranks; r++) {
        empty(&net->box[r]);
    }
    pthread_cond_destroy(&net->came);
    pthread_mutex_destroy(&net->lock);
    free(net);
}

struct mp_transport *loopback_rank(struct loopback *net, uint32_t rank)
{
    return &net->box[rank].super;
}

void loopback_kill(struct loopback *net, uint32_t rank)
{
    pthread_mutex_lock(&net->lock);
    net->box[rank].dead = true;
    pthread_cond_broadcast(&net->came);
    pthread_mutex_unlock(&net->lock);
}

void loopback_leave(struct loopback *net, uint32_t rank)
{
    pthread_mutex_lock(&net->lock);
    net->box[rank].left = true;
    pthread_cond_broadcast(&net->came);
    pthread_mutex_unlock(&net->lock);
}

void loopback_on_restart(struct loopback *net, void (*start)(void *ctx, uint32_t rank), void *ctx)
{
    net->start = start;
    net->start_ctx = ctx;
}

void loopback_cut(struct loopback *net, uint32_t rank, bool cut)
{
    pthread_mutex_lock(&net->lock);
    net->box[rank].cut = cut;
    pthread_cond_broadcast(&net->came);
    pthread_mutex_unlock(&net->lock);
}

void loopback_limit(struct loopback *net, uint32_t messages)
{
    pthread_mutex_lock(&net->lock);
    net->limit = messages;
    pthread_mutex_unlock(&net->lock);
}

void loopback_inject(struct loopback *net, uint32_t from, uint32_t to, const void *data,
                     uint64_t bytes)
{
    pthread_mutex_lock(&net->lock);
    put(net, from, to, data, bytes);
    pthread_mutex_unlock(&net->lock);
}

bool loopback_holds(struct loopback *net, uint32_t rank, enum mp_message_kind kind)
{
    bool found = false;

    pthread_mutex_lock(&net->lock);
    for (const struct letter *at = net->box[rank].first; at != NULL && !found; at = at->next) {
        const struct mp_message_head *head = (const void *)at->data;

        found = head->kind == kind;
    }
    pthread_mutex_unlock(&net->lock);
    return found;
}

uint64_t loopback_count(struct loopback *net)
{
    uint64_t sent;

    pthread_mutex_lock(&net->lock);
    sent = net->sent;
    pthread_mutex_unlock(&net->lock);
    return sent;
}
