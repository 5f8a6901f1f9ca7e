#ifndef MP_STATE_H
#define MP_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * The arrays of a forward pass: one table, from which they are sized, allocated and printed for
 * every compute.
 *
 * T tokens_max, H hidden, Q heads * head_dim, O that or what o_proj takes if that is more, K
 * kv_heads * head_dim (of the layers where they are more), D head_dim, Dw wide_head_dim, V vocab, C
 * ctx, R top_k, E experts, N wanted tokens. On the host: J threads, S heads that share keys and are
 * computed together, F the widest FFN (or K), W rows of experts that are computed together, tiles
 * the floats of TILE, B what attention or a delta network gives, Y what enters a delta network,
 * states its states. On a device: M the widest of shared and dense FFN, X expert_ffn; lists and
 * parts, words of its scratch. P is T if a predictor runs the next layer ahead of time, else 0; G
 * is T if experts' weights are not the scores that they are chosen by, else 0; L is the scratch of
 * queries of latent attention, whose cache has no VALUES. Z is T for a layer that drafts. KV:
 * engine/forward/kv.h.
 *
 * Kinds: OWN arrays are private to the compute. CROSS arrays exist on both sides; with a device the
 * host's is pinned. STAGED arrays belong to a device and have a pinned copy of the same shape on
 * the host. Shape (0): there is no such array on that side.
 */
#define MP_STATE_ARRAYS(A)                                                                         \
    /* name, member, type, kind, shape on the host, on a device; group for errors */               \
    A(X, x, float, OWN, (T, H), (T, H), "activations")     /* the residual stream */               \
    A(XN, xn, float, CROSS, (T, H), (T, H), "activations") /* normed input of an FFN, a router */  \
    A(XE, xe, float, OWN, (W, H), (T, H), "activations") /* of attention, head; rows of experts */ \
    A(Q, q, float, OWN, (T, O), (T, Q), "activations")                                             \
    A(K, k, float, OWN, (0), (T, K), "activations") /* the host keeps them in `gate` and `up` */   \
    A(V, v, float, OWN, (0), (T, K), "activations")                                                \
    A(ATT, att, float, OWN, (T, B), (T, Q), "activations")                                         \
    A(DRAFT_IN, draft_in, float, OWN, (Z, 2 * H), (0), "activations") /* of a layer that drafts */ \
    A(LATENT, latent, float, OWN, (T, L), (0), "activations")    /* queries of latent attention */ \
    A(PART, part, float, OWN, (J, S, C), (parts), "activations") /* scratch of attend, sample */   \
    A(TURN, turn, uint32_t, OWN, (0), (T + 1, m->heads), "activations") /* blocks that ended */    \
    A(TILE, tile, float, OWN, (tiles), (0), "activations") /* of transposed experts */             \
    A(GATE, gate, float, OWN, (W, F), (T, M), "activations")                                       \
    A(UP, up, float, OWN, (W, F), (T, M), "activations")                                           \
    A(YE, ye, float, OWN, (W, H), (T, H), "activations")   /* results before they are added */     \
    A(SUM, sum, float, OWN, (T, H), (T, H), "activations") /* the shared expert's part */          \
    A(RANK, rank, float, CROSS, (T, R, H), (T, R, H),                                              \
      "activations")                                               /* results by (token, rank) */  \
    A(DONE, done, uint8_t, OWN, (P, R), (0), "activations")        /* the result is there */       \
    A(PARTIAL, partial, float, OWN, (P, H), (P, H), "a predictor") /* its residual stream */       \
    A(PARTIAL_RANK, partial_rank, float, OWN, (0), (P, R, H),                                      \
      "a predictor") /* those that are there */                                                    \
    A(PARTIAL_ROW, partial_row, uint32_t, STAGED, (0), (P, R), "a predictor") /* their numbers */  \
    A(ROW, row, float, OWN, (T), (T), "activations")          /* the shared expert's gate */       \
    A(SCORES, scores, float, STAGED, (0), (2, T, E), "lists") /* the router's, a guess's */        \
    A(GATES, gates, float, OWN, (G, E), (0), "lists") /* scores that give the experts' weights */  \
    A(WEIGHT, weight, float, STAGED, (0), (T, R), "lists") /* of the combine */                    \
    A(ACT, act, float, OWN, (0), (T, R, X), "activations") /* of all experts of a layer */         \
    A(LOGITS, logits, float, CROSS, (N, V), (N, V), "logits")                                      \
    A(IDS, ids, uint32_t, STAGED, (0), (3 * T + 3 * N), "the batch") /* see device_compute.c */    \
    A(LIST, list, uint32_t, STAGED, (0), (lists), "work lists")                                    \
    A(COSINE, cosine, float, OWN, (C, D / 2), (C, D / 2), "positions")                             \
    A(SINE, sine, float, OWN, (C, D / 2), (C, D / 2), "positions")                                 \
    A(WIDE_COSINE, wide_cosine, float, OWN, (C, Dw / 2), (0), "positions")                         \
    A(WIDE_SINE, wide_sine, float, OWN, (C, Dw / 2), (0), "positions")                             \
    A(K_CACHE, k_cache, uint8_t, OWN, (KV), (KV), "the KV cache")                                  \
    A(V_CACHE, v_cache, uint8_t, OWN, (VALUES), (KV), "the KV cache")                              \
    A(DELTA, delta, float, OWN, (T, 2, Y), (0), "activations") /* of gated delta networks */       \
    A(FIRST, first, bool, OWN, (T), (0), "activations") /* tokens that begin with a state */       \
    A(RECURRENT, recurrent, float, OWN, (states), (0), "recurrent states")                         \
    A(RECURRENT_AT, recurrent_at, uint32_t, OWN, (state_count), (0), "recurrent states")

enum mp_array {
#define MP_STATE_ID(name, member, ...) MP_ARRAY_##name,
    MP_STATE_ARRAYS(MP_STATE_ID)
#undef MP_STATE_ID
        MP_ARRAY_COUNT
};

/* Addresses on the host; NULL: no such array. */
struct mp_state {
    union {
        void *array[MP_ARRAY_COUNT];
        struct {
#define MP_STATE_MEMBER(name, member, type, ...) type *member;
            MP_STATE_ARRAYS(MP_STATE_MEMBER)
#undef MP_STATE_MEMBER
        };
    };
};

enum mp_place { MP_PLACE_HOST, MP_PLACE_DEVICE, MP_PLACE_COUNT };

struct mp_engine_config;

struct mp_state_plan {
    const struct mp_engine_config *config;
    bool device;                     /* the transformer runs on a device */
    uint64_t list_words, part_words; /* 4-byte words of LIST and PART that it needs */
};

struct mp_array_info {
    enum mp_array array;
    const char *name, *what; /* "xn"; "activations" */
    bool pinned;             /* on the host, pinned for a device */
    uint64_t dims[4];
    uint64_t bytes; /* > 0 */
};

/*
 * Call fn for each array of that place, in the table's order, until it fails. MP_ERR_CONFIG
 * E_STATE_SIZE: the size of an array overflows.
 */
enum mp_status mp_state_each(const struct mp_state_plan *plan, enum mp_place place,
                             enum mp_status (*fn)(void *ctx, const struct mp_array_info *array),
                             void *ctx) MP_MUST_CHECK;

/* Set and return that error. */
enum mp_status mp_state_too_large(const struct mp_engine_config *config) MP_COLD;

/* Log the array at level debug. */
void mp_state_log(const struct mp_array_info *array, enum mp_place place);

/* True if the predict policy of the configuration runs the next layer ahead of time. */
bool mp_state_has_partial(const struct mp_engine_config *config);

#endif
