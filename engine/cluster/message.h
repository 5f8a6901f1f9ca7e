#ifndef MP_MESSAGE_H
#define MP_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * Messages between ranks: a head and a body whose form follows from the kind. Numbers are those of
 * the machine, which the head's first word tests. A message comes from another process and is
 * checked whole before anything of it is used: every number against its range, every length
 * against the bytes that came.
 *
 * Thread safety: none is needed; nothing is kept.
 */
#define MP_MESSAGE_MAGIC 0x3143504du /* "MPC1" */

#define MP_MESSAGE_MAP(X)                                                     \
    X(HELLO, "hello")    /* who is there, with which model: the first one */  \
    X(CALL, "call")      /* rows for experts */                               \
    X(REPLY, "reply")    /* their results */                                  \
    X(REFUSE, "refuse")  /* there will be none */                             \
    X(BEAT, "beat")      /* still here */                                     \
    X(STATS, "stats")    /* what was used since the last one */               \
    X(PLACE, "place")    /* a placement, to be copied */                      \
    X(READY, "ready")    /* it is */                                          \
    X(SWITCH, "switch")  /* from now on it is in use */                       \
    X(RESULT, "result")  /* of a rank's own requests */                       \
    X(DONE, "done")      /* nothing will be asked any more */                 \
    X(GATE, "gate")      /* nothing is under way here: ranks may come back */ \
    X(OPEN, "open")      /* all have said so */                               \
    X(WANT, "want")      /* there is nothing to do here: a request, please */ \
    X(BUSY, "busy")      /* there is */                                       \
    X(TAKE, "take")      /* one: its number is the id */                      \
    X(STAY, "stay")      /* not all have */                                   \
    X(GIVEUP, "give up") /* a placement will not be in use */                 \
    X(LEAVE, "leave")    /* experts that are to leave memory here */          \
    X(HAVE, "have")      /* of those, what is in memory here */               \
    X(LEFT, "left")      /* of what was to leave here, what has */            \
    X(FETCH, "fetch")    /* one expert's bytes, please */                     \
    X(BYTES, "bytes")    /* they are these */

enum mp_message_kind {
#define X(upper, text) MP_MESSAGE_##upper,
    MP_MESSAGE_MAP(X)
#undef X
        MP_MESSAGE_KIND_COUNT
};

const char *mp_message_kind_name(enum mp_message_kind kind);

struct mp_message_head {
    uint32_t magic, kind;
    uint32_t bytes;  /* of the message, with this head */
    uint32_t epoch;  /* of the sender's placement; GATE, OPEN, STAY: number of the attempt; LEAVE,
                        HAVE, LEFT: of the move */
    uint64_t id;     /* of the call; RESULT: number of requests; TAKE: the request */
    uint32_t layer;  /* of CALL, REPLY, FETCH and BYTES */
    uint32_t groups; /* CALL, LEAVE, HAVE, LEFT: experts; FETCH, BYTES: the expert */
    uint32_t tokens, rows;
};

/* What numbers can be. */
struct mp_message_limits {
    uint32_t ranks, layers, experts, top_k, hidden, tokens_max;
    uint64_t expert_bytes; /* of the largest one */
};

/* One expert of a call and its rows, (token, rank) as token * top_k + rank. */
struct mp_message_group {
    uint32_t expert, rows;
};

struct mp_hello {
    char version[32], kernels[32]; /* NUL-terminated */
    uint64_t model;                /* mp_model_hash() */
    uint32_t ranks, layers, experts, top_k, hidden, tokens_max;
    uint32_t slots; /* experts that the rank keeps */
    uint32_t reads; /* 1: it can read what it does not keep */
};

struct mp_message_result {
    uint64_t request, digest; /* index in the file; of all logits */
    double arrival_s, first_s, end_s;
    uint32_t tokens, failed;
};

/* What a rank used in some seconds and steps; then, (layers, experts) each, tokens and calls, and,
 * (ranks) each, what it measured of messages to others: how long one takes until its reply, and
 * more for each row; 0: unknown. load_s: how much longer a layer takes for an expert that is read.
 */
struct mp_message_stats {
    double seconds, steps, load_s;
};

/* An expert in memory, by id, and mp_hash_bytes() of it. */
struct mp_message_copy {
    uint32_t id, zero;
    uint64_t hash;
};

/* A checked message; the pointers are into its bytes. */
struct mp_message {
    const struct mp_message_head *head;
    const struct mp_message_group *groups; // (head->groups): CALL, ascending by expert
    const uint32_t *rows;                  // (head->rows): CALL, ascending by token in each group
    const float *values;                   // CALL: (tokens, hidden); REPLY: (rows, hidden)
    const struct mp_hello *hello;
    const struct mp_message_stats *stats;
    const double *tokens, *calls;            // (layers, experts): STATS, finite, >= 0
    const double *call_s, *row_s;            // (ranks): STATS, finite, >= 0
    const uint16_t *device;                  // (ranks, layers, experts): PLACE, 0 or 1
    const struct mp_message_result *results; // (head->id)
    const uint32_t *leaving;                 // (head->groups): LEAVE, LEFT, ids, ascending
    const struct mp_message_copy *copies;    // (head->groups): HAVE, ascending by id
    const uint64_t *hash;                    // BYTES: mp_hash_bytes() of what follows
    const void *bytes;                       // BYTES: (bytes_count), checked against that
    uint64_t bytes_count;                    // >= 1
};

/* Bytes of a message; those of CALL and REPLY that the limits allow are below 2^31. */
uint64_t mp_message_call_bytes(const struct mp_message_limits *limits, uint32_t groups,
                               uint32_t tokens, uint32_t rows);
uint64_t mp_message_reply_bytes(const struct mp_message_limits *limits, uint32_t rows);
/* The largest of all kinds; MP_ERR_CONFIG E_CLUSTER_SIZE: they do not fit into 2^31 bytes. */
enum mp_status mp_message_bytes_max(const struct mp_message_limits *limits,
                                    uint64_t *bytes_p) MP_MUST_CHECK;

/* Check `data`, aligned as malloc() does. MP_ERR_CLUSTER E_MESSAGE says what is wrong in one line
 * and `*message_p` is undefined. */
enum mp_status mp_message_parse(const void *data, size_t bytes,
                                const struct mp_message_limits *limits,
                                struct mp_message *message_p) MP_MUST_CHECK;

#endif
