#ifndef MP_CLUSTER_INT_H
#define MP_CLUSTER_INT_H

#include <stdbool.h>

#include "policy/place/take_back.h"
#include "policy/sim/cluster/cluster.h"

/*
 * Parts of the simulation of several servers: what tokens choose (cluster_load.c), what facts
 * placements get (cluster_facts.c), one layer across servers (cluster_layer.c), requests, epochs
 * and the queue of events (cluster.c).
 *
 * Everything that takes time is a queue with one server that takes work in the order in which it
 * comes: a device, a link in one direction, a server's way to its stored experts. `free` is when it
 * has done all that was given to it. Devices that are processes of one host share its processors
 * (cluster_device.c), and their servers the way to stored experts. Events are handled in order of
 * time, so work is given to a queue when it comes there and not before.
 */
#define MP_CLUSTER_NONE UINT32_MAX
#define MP_CLUSTER_ABSENT UINT64_MAX

/* Which experts a layer's tokens choose. */
struct mp_cluster_load {
    uint32_t layers, experts, top_k, domains;
    double *sums; // (2 * domains, layers, experts): running sums of probabilities; the second half
                  // of the domains is that of texts after the shift
};

enum mp_status mp_cluster_load_init(struct mp_cluster_load *load, const struct mp_cluster *cluster,
                                    uint64_t seed) MP_MUST_CHECK;
void mp_cluster_load_fini(struct mp_cluster_load *load);

double mp_cluster_share(const struct mp_cluster_load *load, uint32_t domain, uint32_t layer,
                        uint32_t expert);

/* tokens[0..experts) := how many of `count` tokens chose each expert. `random` moves on. Of many
 * tokens MP_CLUSTER_SAMPLE choose, `chosen` (that many, top_k), and each stands for as many as that
 * leaves. */
#define MP_CLUSTER_SAMPLE 64u
void mp_cluster_choose(const struct mp_cluster_load *load, uint32_t domain, uint32_t layer,
                       uint32_t count, uint64_t *random, uint32_t *tokens, uint32_t *chosen);

static inline uint32_t mp_cluster_drawn(uint32_t count)
{
    return count < MP_CLUSTER_SAMPLE ? count : MP_CLUSTER_SAMPLE;
}

/* How many of `count` tokens the one stands for that was drawn as number t. */
static inline uint32_t mp_cluster_stands_for(uint32_t count, uint32_t t)
{
    return count / mp_cluster_drawn(count) + (t < count % mp_cluster_drawn(count));
}

/* Above 0 and at most 1. */
double mp_cluster_uniform(uint64_t *random);

enum mp_cluster_event_kind {
    MP_CLUSTER_ARRIVE,    /* server: a user's request */
    MP_CLUSTER_ROUTED,    /* server: attention and router of its layer are done */
    MP_CLUSTER_SENT,      /* server, peer: rows have left */
    MP_CLUSTER_ASKED,     /* server, peer: rows are on the peer's link */
    MP_CLUSTER_WORK,      /* server, peer: all rows are at the peer */
    MP_CLUSTER_WORKED,    /* server, peer: its results are ready */
    MP_CLUSTER_SENT_BACK, /* server, peer: they have left */
    MP_CLUSTER_RETURNED,  /* server, peer: they are on the link of the one that asked */
    MP_CLUSTER_BACK,      /* server, peer: they are all there */
    MP_CLUSTER_READ,      /* server, group: an expert was read */
    MP_CLUSTER_LAYER,     /* server: its layer is done */
    MP_CLUSTER_FETCH,  /* server, number: an expert from another server's memory is a stage further
                        */
    MP_CLUSTER_FILL,   /* server: what it read in the background is there */
    MP_CLUSTER_EPOCH,  /* is there a better placement? */
    MP_CLUSTER_SWITCH, /* its experts have arrived */
};

struct mp_cluster_event {
    uint64_t at_ns, order; /* order: of events at the same time */
    enum mp_cluster_event_kind kind;
    uint32_t server, peer;
};

/* The tokens of a layer that go to one expert. */
struct mp_cluster_group {
    uint32_t expert, tokens;
    uint32_t where;  /* the server that computes it */
    uint32_t device; /* there: number of the device among all */
    bool read;
};

/* An expert that a rank gets out of another one's memory; the stage that it has reached. */
enum mp_cluster_stage {
    MP_CLUSTER_ASKS,    /* the request is at the other one */
    MP_CLUSTER_COPIED,  /* what is to be sent is made */
    MP_CLUSTER_BEGUN,   /* the first part is here */
    MP_CLUSTER_GOES_ON, /* the other one hears of that */
    MP_CLUSTER_COMES,   /* all is here */
    MP_CLUSTER_TAKEN,
};
struct mp_cluster_fetch {
    bool open, needed; /* needed: a layer waits */
    bool leaves;       /* a message of it has just left */
    uint32_t id, from;
    uint64_t sent_ns;
    enum mp_cluster_stage stage;
    double rest; /* bytes of its message that have not left */
};
#define MP_CLUSTER_FETCHES_MAX 4u /* engine/cluster/rank_int.h */

struct mp_cluster_node {
    /* The request that is being computed. */
    uint32_t request; /* MP_CLUSTER_NONE: none */
    uint32_t domain, step, steps, layer;
    uint64_t random;
    const struct mp_cluster_batch *batch; /* of the step; NULL: choices are drawn */

    struct mp_cluster_group *groups; // (experts)
    uint32_t group_count, pending;   /* groups that are read, and peers that have been asked */
    uint64_t route_ns;               /* when its layer is routed, or the last one was */
    uint64_t asked_until_ns;         /* when the layer's messages have left */
    uint64_t layer_end_ns;
    uint32_t *asked;    // (servers): rows that each peer computes and sends back
    uint32_t *sent;     // (servers): rows that it gets
    uint64_t *asked_ns; // (servers): when that peer's devices will have done what it was given
    uint32_t *peers;    // (servers): peers that are asked
    uint32_t peer_count;

    /* What it has learned as a rank (policy/place/learn.h), and of the open layer: when
     * calls were sent, and what is computed and read here. */
    double *fixed_ns, *row_ns;   // (servers)
    uint32_t *samples;           // (servers)
    uint64_t *sent_ns;           // (servers)
    struct mp_learn_reads reads; /* 0: unknown */
    double forgotten; /* share of the guess that stands for them; see mp_cluster_reads() */
    uint64_t own_ns;
    uint32_t own_reads, reading;
    bool woken; /* after its reads */

    /* As engine/cluster/rank_fetch.c. */
    struct mp_cluster_fetch fetch[MP_CLUSTER_FETCHES_MAX];
    double fetch_ns, fill_ns; /* 0: unknown */
    uint64_t probe_ns;        /* since when a read in the background is measured; 0: none is */
    uint32_t probe;
    bool fetching, has_fetched; /* its layer waits for one; it has asked */
    bool has_read;              /* some layer has waited for a read */

    /* Its memory as a rank, whose pager may lack for a while what the placement keeps here
     * (cluster_memory.c). */
    uint64_t *here_ns; // (ids): when the expert is there, MP_CLUSTER_ABSENT: never
    uint64_t *used;    // (ids): in which of its layers last
    bool *ahead;       // (ids): read in the background and not used since
    bool *seen;        // (ids): what has been there since a placement comes
    bool ready;        /* so has all that the placement that comes keeps here */
    uint32_t held, room;
    uint64_t uses; /* layers that it computed, of others, too */
    bool filling;  /* a FILL will come */

    uint64_t up_free_ns, down_free_ns, read_free_ns;
    bool copying; /* experts come over its link, which leaves rows half of it */

    uint32_t first_waiting, last_waiting, waiting; /* a list through next[] */
    uint32_t arrived, finished; /* of its users' requests; of those that it computed */
    uint64_t arrive_random;
    uint64_t busy_ns;

    double wait_s, waits; /* as a peer: time that calls spent in its queues; calls */
};

struct mp_cluster_span {
    uint64_t start_ns, end_ns;
};

struct mp_cluster_sim {
    const struct mp_cluster_config *config;
    const struct mp_cluster *cluster;
    const struct mp_cluster_load *load;
    uint32_t servers, ids;
    uint64_t now_ns;

    struct mp_place_facts facts;
    uint32_t *first_device, *slots;
    double *tokens, *calls, *steps, *call_s, *token_s, *page_s, *copy_s;
    uint64_t since_ns; /* counts are from then on */
    /* Of ranks: what they have counted and not told yet. */
    double *new_tokens, *new_calls, *new_steps; // (servers, ids), (servers)
    double *seconds;                            // (servers): that the facts' counts cover
    uint32_t epochs;                            /* placements that were adopted */
    struct mp_placement placements[2];
    uint32_t current;                 /* the placement in use */
    bool switching;                   /* experts of the other one are on their way */
    uint32_t *holders, *first_holder; // servers that keep an expert; (ids + 1)

    /* With processors that are shared: when some are taken, from now on. */
    struct mp_cluster_span *spans;
    uint32_t span_count;

    struct mp_cluster_node *nodes; // (servers)
    uint64_t *device_free_ns;      // (devices)
    uint32_t *counts;              // (experts): scratch
    uint32_t *drawn;               // (MP_CLUSTER_SAMPLE, top_k): scratch
    const uint32_t *chosen;        // (mp_cluster_drawn(), top_k): of the layer that is routed
    uint32_t *group_of;            // (experts): scratch
    struct mp_take_group *take;    // (experts): scratch
    struct mp_cluster_event *heap;
    uint32_t events, events_max;
    uint64_t order;

    uint64_t *arrived_ns, *done_ns; // (servers, requests)
    uint32_t *next;                 // (servers, requests)
    uint64_t done;
    uint64_t local, all, local_2, all_2; /* pairs of token and expert */
    struct mp_cluster_result *result;
};

void mp_cluster_push(struct mp_cluster_sim *sim, uint64_t at_ns, enum mp_cluster_event_kind kind,
                     uint32_t server, uint32_t peer);
bool mp_cluster_pop(struct mp_cluster_sim *sim, struct mp_cluster_event *event);

/* Give work of `ns` to a queue now; returns when it is done. */
static inline uint64_t mp_cluster_queue(uint64_t *free_ns, uint64_t now_ns, uint64_t ns)
{
    *free_ns = (*free_ns > now_ns ? *free_ns : now_ns) + ns;
    return *free_ns;
}

/* ---- cluster_device.c ---- */

/* A processor that is shared is taken for so long, as soon as one is free from `start_ns` on; when
 * that ends. */
uint64_t mp_cluster_processor(struct mp_cluster_sim *sim, uint64_t start_ns, uint64_t ns);
/* Give a device so much work; when it has done it. A processor that it shares is taken for as long.
 */
uint64_t mp_cluster_work(struct mp_cluster_sim *sim, uint32_t device, uint64_t ns);
/* How many of spans[] there may be at once. */
uint64_t mp_cluster_spans_max(const struct mp_cluster_sim *sim, uint32_t devices);

/* ---- cluster_link.c ---- */

/* What a link takes for so many bytes one after the other. */
uint64_t mp_cluster_link_ns(const struct mp_cluster_sim *sim, uint32_t server, double bytes);
/* A message goes to its server's link; when the last byte has left. */
uint64_t mp_cluster_send(struct mp_cluster_sim *sim, uint32_t server, uint64_t at_ns, double bytes);
/* The last byte has left `from`; when it is through the link of `to`, which takes bytes from when
 * the first one came on. */
uint64_t mp_cluster_get(struct mp_cluster_sim *sim, uint32_t from, uint32_t to, uint64_t left_ns,
                        double bytes);

/* ---- cluster_memory.c: of servers that are ranks ---- */

#define MP_CLUSTER_FILLING_MAX 4u /* policy/pager/pager_plan.c */

void mp_cluster_memory_begin(struct mp_cluster_sim *sim);
bool mp_cluster_has(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id);
bool mp_cluster_keeps(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id);
/* As mp_rank_may_have(): is it asked for it? */
bool mp_cluster_may_have(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id);
/* A layer of its own or of another server begins there; it needs these experts. */
void mp_cluster_open_layer(struct mp_cluster_sim *sim, uint32_t server);
/* False: what is kept would have to leave for one more. */
bool mp_cluster_has_room(const struct mp_cluster_sim *sim, uint32_t server);
/* It has come out of another server's memory. False: there is no room, or it was read. */
bool mp_cluster_put(struct mp_cluster_sim *sim, uint32_t server, uint32_t id);
void mp_cluster_use(struct mp_cluster_sim *sim, uint32_t server, uint32_t id);
/* A layer waits for the expert, which is not there: when it is read. *read_p: it was not on its way
 * already. */
uint64_t mp_cluster_demand(struct mp_cluster_sim *sim, uint32_t server, uint32_t id, bool *read_p);
/* Between layers: read some of what is to be kept and absent. */
void mp_cluster_fill(struct mp_cluster_sim *sim, uint32_t server);
/* There is a placement that is to come: a server reads what it keeps there, in the background, and
 * a SWITCH comes when all have it. */
void mp_cluster_memory_move(struct mp_cluster_sim *sim);

/* ---- cluster_fetch.c ---- */

/* Instead of a read in the background: is it on its way, or asked for now? */
bool mp_cluster_comes_elsewhere(struct mp_cluster_sim *sim, uint32_t server, uint32_t id);
/* See whether the read that is measured has ended. */
void mp_cluster_follow_probe(struct mp_cluster_sim *sim, uint32_t server);
/* The layer's groups are chosen: ask for what is faster than a read. True: the layer waits, and is
 * routed again when all is there. */
bool mp_cluster_fetch_missing(struct mp_cluster_sim *sim, uint32_t server);
/* A FETCH event. */
void mp_cluster_follow_fetch(struct mp_cluster_sim *sim, uint32_t server, uint32_t number);

/* ---- cluster_layer.c ---- */

/* Does the rank look for messages now? If not, *again_p: when to ask again. */
bool mp_cluster_answers(const struct mp_cluster_sim *sim, uint32_t server, uint64_t *again_p);
/* When a message that has just left is at the other end. */
uint64_t mp_cluster_there(struct mp_cluster_sim *sim);
/* A rank makes or takes a message of so many bytes of an expert; when it has. */
uint64_t mp_cluster_copy_work(struct mp_cluster_sim *sim, uint32_t server, double bytes);

/* The way to stored experts reads one; when it has done. */
uint64_t mp_cluster_read_one(struct mp_cluster_sim *sim, uint32_t server);

/* Begin the layer of the node's step, whose tokens are there. */
struct mp_learn_reads mp_cluster_reads(const struct mp_cluster_sim *sim, uint32_t server);
void mp_cluster_begin_layer(struct mp_cluster_sim *sim, uint32_t server);
/* Handle the events of a layer, ROUTED to READ. */
void mp_cluster_layer_event(struct mp_cluster_sim *sim, const struct mp_cluster_event *event);
uint32_t mp_cluster_step_tokens(const struct mp_cluster_sim *sim, uint32_t server);

/* Are servers ranks of this program? Those learn what calls and reads take, tell it each epoch, and
 * have a pager's memory. */
static inline bool mp_cluster_as_ranks(const struct mp_cluster_sim *sim)
{
    return sim->cluster->rows_once > 0;
}

/* ---- cluster_facts.c ---- */

/* Fixed facts, and counts as if `known` had been seen. */
void mp_cluster_facts_begin(struct mp_cluster_sim *sim);
/* Forget what was counted. */
void mp_cluster_facts_clear(struct mp_cluster_sim *sim);
/* Ranks tell what they counted in an epoch, and what was told before fades. */
void mp_cluster_facts_tell(struct mp_cluster_sim *sim);
/* Has the server nothing to do any more? As a rank it then tells nothing. */
bool mp_cluster_is_leaving(const struct mp_cluster_sim *sim, uint32_t server);
/* Place with the facts of now; MP_ERR_CONFIG E_PLACE_ROOM. */
enum mp_status mp_cluster_place(struct mp_cluster_sim *sim, uint32_t which) MP_MUST_CHECK;
/* List the servers that keep each expert of the current placement. */
void mp_cluster_list_holders(struct mp_cluster_sim *sim);
/* The placement's result for each server: how long its arriving experts take, and their number. */
uint64_t mp_cluster_copy_ns(struct mp_cluster_sim *sim, uint32_t from, uint32_t to,
                            double *arrive_p);

#endif
