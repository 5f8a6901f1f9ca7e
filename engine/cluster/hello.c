/*
 * Who is there: what a rank says of itself at the start, and whether all compute the same.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/cluster/rank_int.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/base/version.h"

#define WAIT_NS UINT64_C(1000000)
/* Others may have to read a large model from a slow disk. */
#define JOIN_S UINT64_C(600)

static enum mp_status fill_hello(struct mp_rank *rank, struct mp_hello *hello)
{
    const struct mp_engine_config *config = rank->config.engine;
    const struct mp_message_limits *l = &rank->limits;
    const uint32_t room = mp_engine_shape(rank->engine)->slots;
    const uint32_t slots = room > 2 ? room - 2 : 0; /* what is read for one use needs two */

    *hello = (struct mp_hello){
        .ranks = l->ranks,
        .layers = l->layers,
        .experts = l->experts,
        .top_k = l->top_k,
        .hidden = l->hidden,
        .tokens_max = l->tokens_max,
        .slots = rank->config.slots < slots ? rank->config.slots : slots,
        .reads = rank->config.reads,
    };
    if (room >= rank->ids) /* nothing is ever read for one use */
        hello->slots = rank->config.slots < rank->ids ? rank->config.slots : rank->ids;
    snprintf(hello->version, sizeof(hello->version), "%s", mp_version);
    snprintf(hello->kernels, sizeof(hello->kernels), "%s", config->kernels->name);
    return mp_model_hash(config, &hello->model);
}

/* Does the peer compute the same bits? */
static enum mp_status compare(const struct mp_rank *rank, uint32_t from)
{
    const struct mp_hello *own = &rank->peer[rank->self].about, *other = &rank->peer[from].about;

    if (strcmp(own->version, other->version) != 0)
        return mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_VERSION",
                       "rank %u is moepager %.31s, rank %u is %.31s; install the same everywhere",
                       from, other->version, rank->self, own->version);
    if (own->layers != other->layers || own->experts != other->experts ||
        own->hidden != other->hidden || own->top_k != other->top_k || own->model != other->model)
        return mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_MODEL",
                       "rank %u has another model: %016" PRIx64 ", here %016" PRIx64
                       "; give all ranks the same files",
                       from, other->model, own->model);
    if (strcmp(own->kernels, other->kernels) != 0)
        return mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_KERNELS",
                       "rank %u computes with kernels '%.31s', rank %u with '%.31s': their bits "
                       "differ; use --kernels with one that all machines have",
                       from, other->kernels, rank->self, own->kernels);
    if (own->ranks != other->ranks || own->tokens_max != other->tokens_max)
        return mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_SHAPE",
                       "rank %u: %u ranks and batches of %u tokens, here %u and %u; use the same "
                       "--prefill-tokens everywhere",
                       from, other->ranks, other->tokens_max, own->ranks, own->tokens_max);
    return MP_OK;
}

/* Who comes back goes on with the epoch and the attempts of the others. */
static void take_numbers(struct mp_rank *rank, const struct mp_message_head *head)
{
    if (!rank->config.transport->returned || rank->placed)
        return;
    if (head->epoch > rank->report.epoch)
        rank->report.epoch = head->epoch;
    if (head->id > rank->attempt)
        rank->attempt = (uint32_t)head->id;
}

enum mp_status mp_rank_take_hello(struct mp_rank *rank, uint32_t from,
                                  const struct mp_message *message)
{
    struct mp_peer *peer = &rank->peer[from];
    enum mp_status status;

    peer->about = *message->hello;
    peer->hello = true;
    take_numbers(rank, message->head);
    status = rank->engine != NULL ? compare(rank, from) : MP_OK;
    if (!peer->returning)
        return status;
    if (status == MP_OK) {
        mp_rank_greet(rank, from);
    } else { /* it finds out by itself, and others need not end for it */
        mp_log_warn("cluster", "rank %u came back, and differs: %s", from, mp_error_last()->text);
        mp_error_clear();
        peer->state = MP_PEER_SILENT;
    }
    return MP_OK;
}

static enum mp_status say_hello(struct mp_rank *rank)
{
    struct {
        struct mp_message_head head;
        struct mp_hello hello;
    } message;
    enum mp_status status = fill_hello(rank, &message.hello);

    if (status != MP_OK)
        return status;
    rank->peer[rank->self].about = message.hello;
    rank->peer[rank->self].hello = true;
    mp_rank_head(rank, &message.head, MP_MESSAGE_HELLO, sizeof(message));
    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (p != rank->self)
            (void)mp_rank_send(rank, p, &message, sizeof(message));
    }
    return MP_OK;
}

static bool has_come(const struct mp_peer *peer)
{
    return peer->hello;
}

static bool has_placed(const struct mp_peer *peer)
{
    return peer->placed;
}

/* The first rank that is not so and may still be; rank->ranks: all are. */
static uint32_t missing(const struct mp_rank *rank, bool (*is)(const struct mp_peer *peer))
{
    uint32_t p = 0;

    while (p < rank->ranks && (is(&rank->peer[p]) || rank->peer[p].state == MP_PEER_LOST))
        p++;
    return p;
}

static enum mp_status wait_until(struct mp_rank *rank, bool (*is)(const struct mp_peer *peer))
{
    struct mp_transport *transport = rank->config.transport;
    const volatile sig_atomic_t *cancel = rank->config.engine->cancel;
    const uint64_t start_ns = mp_rank_now_ns(rank);
    enum mp_status status = MP_OK;
    bool any;

    while (missing(rank, is) < rank->ranks && status == MP_OK) {
        status = mp_rank_receive(rank, &any);
        if (status == MP_OK && cancel != NULL && *cancel)
            status = mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted");
        if (status == MP_OK && missing(rank, is) < rank->ranks &&
            mp_rank_now_ns(rank) - start_ns > JOIN_S * 1000000000)
            status = mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_LOST",
                             "rank %u did not say who it is within %u s", missing(rank, is),
                             (unsigned)JOIN_S);
        if (status == MP_OK && !any)
            transport->ops->wait(transport, WAIT_NS);
    }
    return status;
}

enum mp_status mp_rank_join(struct mp_rank *rank, struct mp_engine *engine)
{
    enum mp_status status;

    rank->engine = engine;
    rank->beat_ns = mp_rank_now_ns(rank);
    status = say_hello(rank);
    for (uint32_t p = 0; p < rank->ranks && status == MP_OK; p++) {
        rank->peer[p].heard_ns = mp_rank_now_ns(rank);
        if (rank->peer[p].hello && p != rank->self) /* it came before the engine did */
            status = compare(rank, p);
    }
    if (status == MP_OK)
        status = wait_until(rank, has_come);
    if (status == MP_OK)
        status = mp_rank_place_first(rank);
    if (status != MP_OK)
        return status;
    rank->peer[rank->self].placed = true;
    rank->welcomes = rank->config.transport->returned;
    mp_rank_tell_all(rank, MP_MESSAGE_READY, 0);
    return wait_until(rank, has_placed);
}
