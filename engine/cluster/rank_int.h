#ifndef MP_RANK_INT_H
#define MP_RANK_INT_H

#include "engine/cluster/rank.h"
#include "policy/place/take_back.h"

/*
 * Parts of a rank: creation, messages and silence (rank.c), who is there (hello.c), one layer
 * (rank_choose.c, rank_layer.c, rank_redo.c), the same for others (rank_serve.c), bytes out of
 * another rank's memory (rank_fetch.c), placements (rank_epoch.c), what leaves memory for one
 * (rank_move.c), results of requests (rank_results.c), requests that move (rank_requests.c), ranks
 * that come back (rank_restart.c).
 */
#define MP_WHERE_HERE UINT32_MAX

enum mp_peer_state { MP_PEER_LIVE, MP_PEER_SILENT, MP_PEER_LOST };

/* A call that has not been answered: the message itself, and whose rows they are. */
struct mp_call {
    uint64_t id; /* 0: none */
    uint64_t sent_ns, began_ns;
    uint64_t tried;    /* bit of each rank that got it */
    uint64_t stuck_ns; /* since when nobody could be asked for some of it; 0: not */
    void *message;     /* of call_bytes_max */
    uint64_t bytes;
    uint32_t *token; // (tokens_max): of the batch, for each token of the message
    bool open, failed;
    bool waited; /* without a reply, with nothing else to do */
};

struct mp_peer {
    enum mp_peer_state state;
    uint64_t heard_ns;
    bool hello, placed, done, ready; /* what it has said */
    struct mp_hello about;
    double fixed_ns, row_ns; /* of a call, measured: until its reply came; 0: unknown */
    uint32_t samples;        /* that those are from */
    uint64_t planned_ns;     /* of the calls that the layer has for it */
    struct mp_call call;
    unsigned track;
    double load_s; /* reading an expert, as it last said */
    uint32_t told; /* of this rank's results: how many it was sent */
    bool told_done;
    bool garbled;   /* it sent what is no message */
    bool counted;   /* its STATS have come since the last decision */
    bool returning; /* it was started again, and has not said hello */
    bool wanted;    /* it was asked for a request and has not answered */
    bool wants;     /* it has asked for one, and none waited */
    uint32_t gated; /* its last GATE */
};

/* One expert, by id, that another rank was asked for. */
struct mp_fetch {
    uint64_t call; /* 0: none */
    uint32_t id, from;
    uint64_t sent_ns;
    bool needed; /* the layer that is about to begin waits for it */
};

#define MP_FETCHES_MAX 4u

struct mp_rank_results {
    struct mp_message_result *list; // (count)
    uint32_t count;
};

struct mp_rank {
    struct mp_rank_config config;
    struct mp_peers peers; /* for the engine */
    struct mp_engine *engine;
    struct mp_message_limits limits;
    uint32_t self, ranks, ids; /* ids: experts of all layers */
    uint64_t message_bytes_max, beat_ns, next_call;
    struct mp_peer *peer; // (ranks)
    struct mp_rank_report report;
    bool leaving; /* nothing will be asked any more */

    unsigned track;    /* what messages take of this rank's time */
    uint64_t found_ns; /* when the message that is handled was looked for */

    uint64_t given[2 * MP_RANKS_MAX]; /* requests of others that wait here, the oldest first */
    uint32_t given_count;

    uint64_t lost_ns;        /* when the last one was lost */
    uint32_t attempt;        /* to start ranks again: how many have ended */
    bool opened, stays_shut; /* of the one that goes on */
    bool welcomes;           /* somebody has come back, and no placement counts with it yet */

    struct mp_learn_reads reads; /* 0: unknown */
    double forgotten;            /* share of the guess that stands for them; see mp_rank_reads() */
    uint32_t steps;              /* since the last message about what was used */

    /* Of the open layer. */
    uint32_t layer;
    uint32_t own_reads; /* experts that are read here; without, the others here take own_ns */
    double own_ns;
    uint64_t asked_ns;                  /* when others had been asked, and reading began */
    uint32_t *where;                    // (experts): who computes it
    uint32_t *place;                    // (tokens_max): number in the message
    float *results;                     // (T, R, H) of collect(); NULL outside
    float *served;                      // (tokens_max, top_k, hidden): scratch for others' rows
    void *out;                          /* a message that is being made */
    struct mp_served *list;             // (experts)
    struct mp_take_group *take;         // (experts): scratch
    uint32_t *list_tokens, *list_ranks; // (tokens_max * top_k)

    /* Placements. facts: all arrays are in `facts_block`. */
    struct mp_place_facts facts;
    struct mp_placement now, next;
    bool stays;                     /* no new placement is possible; was said */
    bool placed, copying, proposed; /* the first is in use; the second comes; as the scheduler */
    uint32_t next_epoch;
    bool due;                          /* a decision, when all have said what they used */
    uint64_t epoch_ns, stats_ns;       /* since when the epoch is; when counts began */
    double *tokens, *calls;            // (ids): this rank's, since the last message about them
    double *sum_tokens, *sum_calls;    // (ranks, ids): of all, as the scheduler knows them
    double *rank_seconds, *rank_steps; // (ranks): what those cover
    double *call_s, *row_s;            // (ranks, ranks): calls from one to another; 0: unknown
    uint32_t *slots;                   // (ranks)
    uint8_t *keeps;                    // (ids): enum mp_placed, as the pager was told
    uint32_t proposer;                 /* of the one that comes */
    bool shrunk;                       /* a rank died since that was last looked at */
    bool orphans;                      /* only dead ranks may keep some experts */

    /* The move to the placement that is there or comes (rank_move.c). */
    uint32_t move;         /* its number; 0: none yet */
    bool untold;           /* somebody waits to hear of a copy here */
    bool dropping;         /* something may still be to leave memory here */
    bool unleft;           /* some rank is to hear what has left it */
    uint8_t *drops;        // (ids): in memory here, and not to be kept
    uint64_t *left;        // (ids): bits of ranks that are to hear that it has left
    uint64_t *live;        // (ids): bits of ranks that have said they have it
    uint64_t *wanted;      // (ids): of ranks that have it and drop it, in move wanted_move[id]
    uint32_t *wanted_move; // (ids)
    uint64_t *told;        // (ids): of ranks that were told it is here
    uint8_t *seen;         // (ids): was in memory at some time of this move
    uint64_t leave_ns;     /* when the last LEAVE was sent */
    void *expert;          // (limits.expert_bytes): scratch

    /* Experts out of others' memory (rank_fetch.c). */
    struct mp_fetch fetch[MP_FETCHES_MAX];
    uint8_t *no_fetch;        // (ids): it did not come, in this move
    double fetch_ns, fill_ns; /* for one expert; from the file, in the background; 0: unknown */
    uint64_t probe_ns;        /* since when the read of expert `probe` is measured; 0: none is */
    uint32_t probe;
    bool full; /* there is no room for one more, as was seen last */

    struct mp_rank_results all, own; /* of all ranks' requests; of this one's */
};

static inline uint64_t mp_rank_now_ns(const struct mp_rank *rank)
{
    return mp_clock_now_ns(rank->config.engine->clock);
}

static inline bool mp_rank_keeps(const struct mp_rank *rank, uint32_t server, uint32_t id)
{
    return rank->now.device[(size_t)server * rank->ids + id] != 0;
}

/* Handle what has come, until nothing has; *any_p: something had. */
enum mp_status mp_rank_receive(struct mp_rank *rank, bool *any_p) MP_MUST_CHECK;

/* Send a message to a rank. What cannot be sent is no error here: whoever waits for an answer
 * does not get one. False: it was not sent. */
bool mp_rank_send(struct mp_rank *rank, uint32_t to, void *message, uint64_t bytes);

/* On the timeline: what this rank did for a call's message since `start_ns`. */
void mp_rank_note_message(const struct mp_rank *rank, const char *what, uint64_t start_ns,
                          const struct mp_message_head *call);

/* Fill the head of a message. */
void mp_rank_head(const struct mp_rank *rank, struct mp_message_head *head,
                  enum mp_message_kind kind, uint64_t bytes);
/* A message that is its head, to all that may be there. */
void mp_rank_tell_all(struct mp_rank *rank, enum mp_message_kind kind, uint32_t epoch);

/* A peer that is asked and has not been heard of for so long is not waited for any more. */
void mp_rank_check_silence(struct mp_rank *rank, uint32_t peer, uint64_t since_ns);

/* rank_choose.c. Fails with E_EXPERT_LOST if nobody has an expert. */
/* What reads take a layer longer, as far as is known. */
struct mp_learn_reads mp_rank_reads(const struct mp_rank *rank);
enum mp_status mp_rank_choose(void *ctx, const struct mp_assign_facts *facts,
                              uint32_t *executors) MP_MUST_CHECK;
enum mp_status mp_rank_no_holder(const struct mp_rank *rank, uint32_t layer,
                                 uint32_t expert) MP_MUST_CHECK;

/* rank_serve.c. Compute a call here: results are in rank->served at (token, rank). */
enum mp_status mp_rank_compute(struct mp_rank *rank,
                               const struct mp_message *message) MP_MUST_CHECK;
enum mp_status mp_rank_serve(struct mp_rank *rank, uint32_t from,
                             const struct mp_message *message) MP_MUST_CHECK;

void mp_rank_refuse(struct mp_rank *rank, uint32_t to, uint64_t id);

/* rank_move.c. Begin a move to the placement that is the target now. */
void mp_rank_begin_move(struct mp_rank *rank, uint32_t move);
/* Let the pager keep what the target gives this rank, and what nobody else has yet. */
void mp_rank_keep(struct mp_rank *rank);
void mp_rank_take_leaving(struct mp_rank *rank, uint32_t from, const struct mp_message *message);
void mp_rank_take_copies(struct mp_rank *rank, uint32_t from, const struct mp_message *message);
void mp_rank_take_left(struct mp_rank *rank, uint32_t from, const struct mp_message *message);
/* Say what has come into memory, to those who wait for it, and what has left it. Between two
 * layers.
 */
void mp_rank_tell_copies(struct mp_rank *rank);
/* Has all that the target gives this rank been in its memory since the move began? What a demand
 * has taken since is read again. */
bool mp_rank_has_copied(struct mp_rank *rank);
/* Is the expert in the memory of rank `p`, as far as this one knows? */
bool mp_rank_may_have(const struct mp_rank *rank, uint32_t p, uint32_t id);

/* rank_fetch.c. For the pager: is the expert on its way from another rank, or asked for now? */
bool mp_rank_comes_elsewhere(void *ctx, uint32_t id);
void mp_rank_follow_fetches(struct mp_rank *rank);
/* Wait until nothing that was asked for is under way. */
enum mp_status mp_rank_end_fetches(struct mp_rank *rank) MP_MUST_CHECK;
/* Experts that are to be computed here and are absent: get those that come faster from a rank than
 * from the file, before the layer begins. */
enum mp_status mp_rank_fetch_missing(struct mp_rank *rank,
                                     const struct mp_assign_facts *facts) MP_MUST_CHECK;
void mp_rank_take_fetch(struct mp_rank *rank, uint32_t from, const struct mp_message *message);
void mp_rank_take_bytes(struct mp_rank *rank, uint32_t from, const struct mp_message *message);
/* A refusal; false: it is none of a fetch. */
bool mp_rank_take_no_bytes(struct mp_rank *rank, uint32_t from, uint64_t call);

/* rank_layer.c */
void mp_rank_take_reply(struct mp_rank *rank, uint32_t from, const struct mp_message *message);
void mp_rank_take_refusal(struct mp_rank *rank, uint32_t from, const struct mp_message *message);
void mp_rank_fill_peers(struct mp_rank *rank);

/* rank_redo.c. Send the call of rank `to`; `failed` is set if that is not possible. */
void mp_rank_send_call(struct mp_rank *rank, uint32_t to);
/* Calls that nobody will answer are computed elsewhere; *open_p: some are not answered yet.
 * E_EXPERT_LOST: nobody can. */
enum mp_status mp_rank_check_calls(struct mp_rank *rank, bool *open_p) MP_MUST_CHECK;

/* rank_results.c. Send what was not sent yet; a full queue leaves some of it. */
enum mp_status mp_rank_take_results(struct mp_rank *rank,
                                    const struct mp_message *message) MP_MUST_CHECK;
void mp_rank_tell_results(struct mp_rank *rank);
/* Those of `list` from number `first` on, in one message. False: it was not sent. */
bool mp_rank_send_results(struct mp_rank *rank, uint32_t to, const struct mp_rank_results *list,
                          uint32_t first);

/* rank_requests.c: requests that move. */
void mp_rank_take_want(struct mp_rank *rank, uint32_t from, bool wants);
void mp_rank_take_given(struct mp_rank *rank, uint32_t from, uint64_t request);
/* There is nothing to do here. */
void mp_rank_want(struct mp_rank *rank);
/* There is: nothing is wanted any more, and what waits goes to who wants it. */
void mp_rank_follow_requests(struct mp_rank *rank);

/* rank_restart.c */
enum mp_status mp_rank_follow_restart(struct mp_rank *rank) MP_MUST_CHECK;
void mp_rank_take_gate(struct mp_rank *rank, uint32_t from, const struct mp_message_head *head);
void mp_rank_greet(struct mp_rank *rank, uint32_t to);
/* Is a dead rank with requests of its own expected to be started again soon? */
bool mp_rank_expects(const struct mp_rank *rank);

/* hello.c */
enum mp_status mp_rank_take_hello(struct mp_rank *rank, uint32_t from,
                                  const struct mp_message *message) MP_MUST_CHECK;

/* rank_epoch.c: place for the first time; what messages say; what time says. */
enum mp_status mp_rank_place_first(struct mp_rank *rank) MP_MUST_CHECK;
void mp_rank_take_stats(struct mp_rank *rank, uint32_t from, const struct mp_message *message);
void mp_rank_take_place(struct mp_rank *rank, uint32_t from, const struct mp_message *message);
void mp_rank_take_switch(struct mp_rank *rank, uint32_t epoch);
void mp_rank_take_give_up(struct mp_rank *rank, uint32_t epoch);
void mp_rank_take_beat(struct mp_rank *rank, uint32_t from, uint32_t epoch);
enum mp_status mp_rank_follow_epoch(struct mp_rank *rank) MP_MUST_CHECK;
/* The highest number of an epoch that was used, also for a placement that was given up. */
uint32_t mp_rank_last_epoch(const struct mp_rank *rank);
uint32_t mp_rank_scheduler(const struct mp_rank *rank);

#endif
