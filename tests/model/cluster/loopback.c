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
    bool dead, cut;
    bool told[RANKS_MAX]; /* of this rank's death */
};

struct loopback {
    pthread_mutex_t lock;
    pthread_cond_t came;
    struct box box[RANKS_MAX];
    uint32_t ranks, limit;
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

static void box_close(struct mp_transport *transport)
{
    (void)transport;
}

static const struct mp_transport_ops ops = { box_send, box_poll, box_wait, box_close };

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
        while (net->box[r].first != NULL) {
            struct letter *letter = net->box[r].first;

            net->box[r].first = letter->next;
            free(letter);
        }
        free(net->box[r].read);
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

uint64_t loopback_count(struct loopback *net)
{
    uint64_t sent;

    pthread_mutex_lock(&net->lock);
    sent = net->sent;
    pthread_mutex_unlock(&net->lock);
    return sent;
}
