#ifndef MP_RANK_H
#define MP_RANK_H

#include <signal.h>

#include "engine/cluster/message.h"
#include "engine/cluster/transport.h"
#include "engine/forward/engine.h"
#include "engine/forward/peers.h"
#include "policy/place/place.h"

/*
 * One of several processes that compute a model's experts for one another. Each runs an engine on
 * requests of its own with all weights but experts, keeps the experts that a placement gives it,
 * and asks a rank that keeps what it lacks, or reads it, whichever is expected to be done first.
 *
 * Placements and load decide about time only. Whoever computes an expert, its results are put
 * where local ones are; a rank that is asked for what it does not keep reads it; a call that is
 * not answered is computed again elsewhere. So logits are those of one machine, whatever happens
 * to others, or there is an error.
 *
 * Ranks answer one another between layers, while they wait for results, and while they have
 * nothing to do: there is no thread for it.
 *
 * With `restarts` ranks that have died are started again where the transport can, by the ranks
 * that are left, between two layers. They take their places in a new placement.
 *
 * Thread safety: the engine's thread.
 */
struct mp_rank;

#define MP_RANKS_MAX 64u

struct mp_rank_config {
    struct mp_transport *transport;        /* outlives the rank */
    const struct mp_engine_config *engine; /* the same; `peers` of it is set by the caller */
    const struct mp_place_ops *place;
    uint32_t slots;       /* experts that this rank keeps; UINT32_MAX: as many as fit its budget */
    bool reads;           /* what it does not keep it may read from the model's files */
    uint64_t seed;        /* the same on all ranks */
    uint64_t epoch_ns;    /* between decisions about the placement; 0: never */
    uint64_t horizon_ns;  /* for which a new one must pay */
    uint64_t deadline_ns; /* a peer that is asked and silent for so long is not waited for */
    /* Where requests may move: another rank has nothing to do. True: it gets this one of the
     * caller's, which has not begun. Or NULL. */
    bool (*give)(void *ctx, uint32_t to, uint64_t *request_p);
    void *give_ctx;
    uint32_t restarts;  /* attempts to start ranks that have died again */
    bool always_adopts; /* for tests: a new placement in each epoch, worse or not */
};

/* MP_ERR_CONFIG: more ranks than MP_RANKS_MAX, or messages that are too large. */
enum mp_status mp_rank_create(const struct mp_rank_config *config,
                              struct mp_rank **rank_p) MP_MUST_CHECK;
void mp_rank_destroy(struct mp_rank *rank);

/* For config.peers of the engine. */
const struct mp_peers *mp_rank_peers(struct mp_rank *rank);

/*
 * Take the engine, tell the others what it has, wait until they have done so, and place.
 * MP_ERR_CLUSTER E_CLUSTER_MODEL, E_CLUSTER_VERSION, E_CLUSTER_KERNELS, E_CLUSTER_SHAPE: another
 * rank differs; E_CLUSTER_LOST: one did not come within 10 minutes. MP_ERR_CONFIG E_PLACE_ROOM.
 */
enum mp_status mp_rank_join(struct mp_rank *rank, struct mp_engine *engine) MP_MUST_CHECK;

/* Answer others until `until_ns`; UINT64_MAX: until no live rank has anything to ask, after telling
 * them that this one has not. */
enum mp_status mp_rank_idle(struct mp_rank *rank, uint64_t until_ns) MP_MUST_CHECK;

/* Take a request that another rank has given; false: there is none. mp_rank_idle() returns when one
 * has come. */
bool mp_rank_take_request(struct mp_rank *rank, uint64_t *request_p);
/* Is the rank there, as far as this one knows? */
bool mp_rank_is_there(const struct mp_rank *rank, uint32_t peer);

/* The result of a request that has ended here. It goes to all live ranks at once, so that those who
 * are left have it whoever dies. */
enum mp_status mp_rank_add_result(struct mp_rank *rank,
                                  const struct mp_message_result *result) MP_MUST_CHECK;

struct mp_rank_report {
    uint64_t all_tokens,
        local_tokens;           /* pairs of token and expert of own requests; computed here */
    uint64_t calls, served;     /* to others; for others */
    uint64_t sent_bytes;        /* all messages */
    uint64_t messages;          /* their number */
    uint64_t long_messages;     /* of those, the ones that go in parts */
    uint64_t redone;            /* calls that were not answered and computed elsewhere */
    uint64_t late;              /* replies that nobody waited for */
    uint64_t wait_ns;           /* for replies, with nothing else to do */
    uint32_t epoch, migrations; /* of the placement; how often it has changed */
    uint32_t kept;              /* experts that it gives this rank */
    uint32_t lost, silent;      /* ranks that have died; that do not answer */
    uint32_t returned;          /* that were started again */
    uint64_t taken;             /* requests of others that were run here */
    uint64_t fetched, lent;     /* experts out of others' memory; others', out of this one's */
    uint64_t fetched_bytes;     /* of the former */
    uint64_t read_bytes;        /* of experts that came from the file */
    double fetch_ns, fill_ns; /* what one takes from another rank; from the file, if no layer waits
                                 for it; 0: unknown */
    double read_ns, read_more_ns; /* how much longer a layer takes for the first expert that it
                                     reads, and for each more */
};
void mp_rank_report(const struct mp_rank *rank, struct mp_rank_report *report_p);

/* What messages to rank `peer` took, the last ones most: until the reply came, and more for each
 * row. 0: unknown. */
void mp_rank_call_ns(const struct mp_rank *rank, uint32_t peer, double *fixed_p, double *row_p);

/* The results that came to this rank, its own included, in the order of coming. */
const struct mp_message_result *mp_rank_results(const struct mp_rank *rank, uint32_t *count_p);
/* Is this the lowest rank that is there, which is to report those of all? */
bool mp_rank_reports(const struct mp_rank *rank);

/*
 * A number of all that decides a model's logits: its configuration, all bytes of what every token
 * needs, sizes and types of all experts and, of up to 4,096 of them, 64 bytes of each matrix. It
 * has nothing of what only ends or limits a text (context, ids of its end, sampling).
 */
enum mp_status mp_model_hash(const struct mp_engine_config *config, uint64_t *hash_p) MP_MUST_CHECK;

#endif
