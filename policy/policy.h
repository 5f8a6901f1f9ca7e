#ifndef MP_POLICY_H
#define MP_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/costs.h"
#include "vmm/base/status.h"
#include "vmm/options/opt.h"

/*
 * A policy decides; it never acts.
 *
 * There are seven kinds, one per decision point. Each has an ops table below; each implementation
 * is one const table at the end of one file. The pager and the step (policy/pager/pager.h,
 * policy/pager/step.h) call them with facts and carry out the results. Hence a policy
 *   - includes nothing from vmm/ except base/, and never calls a device;
 *   - allocates only in create();
 *   - takes no lock (one thread at a time calls it) and reads no clock (`now` is a parameter: a
 *     logical time, one per MoE layer executed), so a recorded run replays exactly;
 *   - must accept any facts that the comments below allow; a result out of
 *     range, an invalid decision, is counted and replaced by a safe one, never carried out.
 *
 * MoE layers are numbered 0, 1, 2, ... without the dense layers between them. Expert e of layer l
 * has the id l * experts + e. Where experts are paged in slices (shape->slices > 1), policies still
 * decide about whole experts: an expert is inserted with its first slice and removed with its last;
 * of a victim only as many slices are evicted as needed, the last ones first; only an expert with
 * all its slices counts as resident in the facts; slots, times and bytes are those of whole
 * experts.
 *
 * Functions marked optional may be NULL, meaning "not interested". All others are required;
 * mp_policy_check() reports what is missing. policy/template.c is a compiled skeleton.
 */
#define MP_POLICY_ABI 5u

#define MP_EXPERT_NONE UINT32_MAX /* instead of an expert id */
#define MP_LAYER_ANY UINT32_MAX
#define MP_SLICES_MAX 16u
#define MP_ARRIVAL_NEVER UINT64_MAX /* nobody reads the expert */

/*
 * Results of a calibration run (`moepager calibrate`), for policies that use them. Any pointer may
 * be NULL: not measured. All arrays are dense and outlive the policies.
 */
struct mp_calibration {
    const float *hot;        // (layers, experts): share of the layer's choices that were the expert
    const float *together;   // (layers, experts, experts): P(second chosen | first chosen), a layer
    const float *next;       // (layers, experts, experts): P(second chosen in layer + 1 | first);
                             // the last layer's row speaks of layer 0 of the next token
    const float *similarity; // (layers, experts, experts): mean cosine of the two outputs, -1..1
    const uint32_t *group;   // (layers): number of the layer's group, 0, 1, ... ascending
};

/* Argument of create(): the model and the machine. */
struct mp_shape {
    uint32_t layers;       /* MoE layers, 1..4096 */
    uint32_t experts;      /* routed experts of a layer, 1..4096 */
    uint32_t top_k;        /* experts of a token, 1..experts */
    uint32_t tokens_max;   /* most tokens of one batch */
    uint32_t slots;        /* experts that the device tier can hold, >= 1 */
    uint64_t expert_bytes; /* of the largest expert */
    uint64_t seed;
    const struct mp_calibration *calibration; /* or NULL */
    const struct mp_costs *costs; /* or NULL; outlives the policies, changes with measurements */
    uint32_t slices;              /* of each expert, 2..MP_SLICES_MAX; 0 or 1: experts are whole */
};

/* The share of `layer` if all layers share `slots` equally; the remainder goes to the first layers.
 */
static inline uint32_t mp_equal_share(uint32_t slots, uint32_t layers, uint32_t layer)
{
    return slots / layers + (layer < slots % layers ? 1 : 0);
}

/* Common head of every ops table. */
struct mp_policy_info {
    unsigned abi;              /* MP_POLICY_ABI */
    const char *name;          /* [a-z0-9-]+, as in MOEPAGER_EVICT=layer-lru */
    const char *summary;       /* one line, for `moepager info` */
    const struct mp_opt *opts; /* variables MOEPAGER_<NAME>_*, or NULL */
    size_t config_size;        /* of the struct that opts fill; 0 without opts */
    bool calibrated;           /* needs a calibration: create() refuses a shape without one */
    bool costs;                /* uses costs (struct mp_costs), not only the list of executors */
};

/* First member of every policy instance. */
struct mp_policy {
    const struct mp_policy_info *info;
};

/* Common life cycle. `config` was filled from `opts` and does not outlive the call; it is NULL if
 * config_size is 0. */
typedef enum mp_status (*mp_policy_create_fn)(const void *config, const struct mp_shape *shape,
                                              struct mp_policy **policy_p);
typedef void (*mp_policy_destroy_fn)(struct mp_policy *policy);

/* ---- route: which experts does each token get? ---- */

struct mp_route_facts {
    uint32_t layer, tokens, experts, k;
    const float *scores;     // (tokens, experts): the router's probabilities, all finite
    const uint8_t *resident; // (experts): 1 if the expert's bytes are in the device tier
    /* (experts), or NULL if nothing is on its way: time until the bytes are there, as far as known;
     * 0 if resident, MP_ARRIVAL_NEVER if nobody reads them. */
    const uint64_t *arrival_ns;
    /* Measured time from layer 0 of the step before to layer 0 of this one; 0: unknown, or not
     * layer 0. */
    uint64_t step_ns;
    const struct mp_costs *costs;
};

struct mp_route_ops {
    struct mp_policy_info info;
    mp_policy_create_fn create;
    mp_policy_destroy_fn destroy;

    /* True: the result equals the model's own routing. False: it changes the output, so it is used
     * only if the user names it, and reports state it. */
    bool exact;

    /*
     * experts[t * k + r] := the expert of rank r of token t, best first, the k of a token all
     * different; weights[t * k + r] := its score. The engine normalises weights if the model does.
     */
    void (*route)(struct mp_policy *policy, const struct mp_route_facts *facts, uint32_t *experts,
                  float *weights);
};

/* ---- assign: who computes each chosen expert? ---- */

struct mp_assign_facts {
    uint32_t layer, count;
    const uint32_t *experts;      // (count): chosen by at least one token, ascending
    const uint32_t *tokens;       // (count): how many tokens chose it
    const float *scores;          // (count): sum of the router's scores of those tokens
    const uint8_t *resident;      // (count): 1 if in the device tier; 0 also if in flight
    const uint64_t *arrival_ns;   // (count), or NULL: as in mp_route_facts
    const struct mp_costs *costs; /* with the executors to choose from */
    uint64_t link_busy_ns;        /* remaining time of loads in flight; 0 if idle or unknown */

    /* Prediction for the next MoE layer, for a policy with `looks_ahead`, or NULL. */
    const uint32_t *next_tokens;  // (experts of the layer)
    const uint8_t *next_resident; // (experts of the layer)
};

struct mp_assign_ops {
    struct mp_policy_info info;
    mp_policy_create_fn create;
    mp_policy_destroy_fn destroy;

    bool looks_ahead; /* uses next_tokens: the step then predicts before it assigns */

    /* executors[i] := the executor of experts[i]: an index in facts->costs->executors. */
    void (*assign)(struct mp_policy *policy, const struct mp_assign_facts *facts,
                   uint32_t *executors);
};

/* ---- predict: what will the scores of a later layer be? ---- */

/* Scores that the engine computes for a predictor, because policies have no weights. */
enum mp_score_source {
    MP_SCORES_NONE,     /* the predictor uses past observations only */
    MP_SCORES_GATE,     /* the later layer's router on this layer's hidden states */
    MP_SCORES_RESIDUAL, /* the same, after adding the mean change between the layers (DALI eq. 11)
                         */
    MP_SCORES_PARTIAL,  /* the next layer computed from resident and shared experts only (SMoE) */
    MP_SCORES_LLAPOR,   /* a trained network of the layer (PreScope) */
    MP_SCORES_COUNT
};

struct mp_predict_facts {
    uint32_t layer, target_layer, tokens, experts, k;
    const uint32_t *chosen; // (tokens, k): this layer's routing
    const float *source;    // (tokens, experts) of the declared source; NULL for MP_SCORES_NONE
};

struct mp_predict_ops {
    struct mp_policy_info info;
    mp_policy_create_fn create;
    mp_policy_destroy_fn destroy;

    enum mp_score_source source;
    bool wraps;     /* can predict layer 0 of the next step from the last layer of this step */
    uint32_t reach; /* layers ahead that it can predict; 0 counts as 1, the next layer */

    /* Optional: what was really chosen. */
    void (*observe)(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                    const uint32_t *chosen);

    /* Optional; NULL: never predicts. scores(tokens, experts) := the prediction, larger is
     * likelier, on any scale. Returns false for no prediction; scores are then ignored. */
    bool (*predict)(struct mp_policy *policy, const struct mp_predict_facts *facts, float *scores);
};

/* ---- prefetch: which of the predicted are loaded ahead? ---- */

struct mp_prefetch_facts {
    uint32_t layer, target_layer, tokens, experts, k;
    const float *scores;     // (tokens, experts), as predicted
    const uint8_t *resident; // (experts): 1 if in the device tier or in flight
    uint32_t max;            /* most experts that can be kept or loaded now */

    uint32_t distance; /* how many layers ahead target_layer is, 1.. */
    /* The current layer as assigned: executors[i] computes current->experts[i]. */
    const struct mp_assign_facts *current;
    const uint32_t *executors;
};

struct mp_prefetch_ops {
    struct mp_policy_info info;
    mp_policy_create_fn create;
    mp_policy_destroy_fn destroy;

    /*
     * Optional; NULL: never prefetches. Write up to `experts` different experts that the target
     * layer is expected to need, most urgent first, and return their number. The first facts->max
     * of them are loaded if they are cold, and kept until their layer has run.
     */
    uint32_t (*choose)(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                       uint32_t *experts);

    uint32_t reach; /* layers ahead for which choose() is called, nearest first; 0 counts as 1 */

    /* Optional. False: choose() would return 0 for the layer `distance` ahead of `layer`, so that
     * need not be predicted. Asked nearest layer first; the result may change in choose() and
     * observe() only. */
    bool (*wants)(const struct mp_policy *policy, uint32_t layer, uint32_t distance);

    /* True: prefetches that have not started when a router's result is known are cancelled
     * (MoEpic 3.4). */
    bool until_routed;

    /* Optional: what was really chosen. */
    void (*observe)(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                    const uint32_t *chosen);
};

/* ---- admit: keep what was loaded on demand? ---- */

struct mp_admit_ops {
    struct mp_policy_info info;
    mp_policy_create_fn create;
    mp_policy_destroy_fn destroy;

    /* False: the expert is evicted as soon as this layer has used it. */
    bool (*admit)(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now);
};

/* ---- evict: which resident expert leaves? ---- */

struct mp_swap {
    uint32_t in, out; /* out: MP_EXPERT_NONE for a free slot; of another size: not carried out */
};

struct mp_evict_query {
    uint32_t for_id;          /* the expert that needs the slot */
    uint32_t scope_layer;     /* only experts of this layer may leave; MP_LAYER_ANY: of any layer */
    uint32_t experts;         /* per layer */
    uint32_t shared;          /* in replace: 1 if experts of other layers may be evicted, else 0 */
    const uint8_t *evictable; // (ids): 1 if resident, unleased, of the right size class
};

/* True if `id` is a valid result of `query`. */
static inline bool mp_evict_allows(const struct mp_evict_query *query, uint32_t id)
{
    return query->evictable[id] &&
           (query->scope_layer == MP_LAYER_ANY || id / query->experts == query->scope_layer);
}

struct mp_evict_ops {
    struct mp_policy_info info;
    mp_policy_create_fn create;
    mp_policy_destroy_fn destroy;

    /* True: it manages each layer separately, so a budget below one token cycle is no problem. */
    bool per_layer;

    /* An expert became resident, or left, whatever the reason. */
    void (*on_insert)(struct mp_policy *policy, uint32_t id, uint64_t now);
    void (*on_remove)(struct mp_policy *policy, uint32_t id, uint64_t now);

    /* Optional. `tokens` tokens of one batch need the expert; it may be resident or not. Called
     * once per expert and layer, before the loads that follow from it, in ascending order of
     * experts.
     */
    void (*on_access)(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now);

    /*
     * Return the victim, for which mp_evict_allows() must hold, or MP_EXPERT_NONE to keep them all:
     * a prefetch is then dropped, but a demand without another slot evicts an expert all the same.
     * Must not change the policy's state: the pager may repeat the call.
     */
    uint32_t (*pick)(struct mp_policy *policy, const struct mp_evict_query *query);

    /* True: a demand for which pick() returns MP_EXPERT_NONE waits as long as the open layer uses
     * experts that may be evicted afterwards, instead of evicting an expert all the same. */
    bool waits;

    /* Optional. The router's probabilities of a layer for the batch, all finite, before on_access
     * of the same layer; `chosen` (tokens, k) is what was routed. */
    void (*on_scores)(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                      const float *scores, const uint32_t *chosen, uint64_t now);

    bool scores_optional; /* works without on_scores, for clients that do not know the scores */

    /*
     * Optional. The layer has run: write up to `max` swaps and return their number. A swap loads an
     * expert of the layer without a demand, in place of one that `query` allows (for_id is
     * MP_EXPERT_NONE) or, with `shared`, of any evictable one. Swaps have the lowest priority.
     */
    uint32_t (*replace)(struct mp_policy *policy, const struct mp_evict_query *query, uint64_t now,
                        struct mp_swap *swaps, uint32_t max);

    /* Optional: a message for the user about the policy's state, a static sentence, or NULL. Called
     * after every layer; the pager logs a changed message. */
    const char *(*notice)(const struct mp_policy *policy);
};

/* ---- partition: how many slots does each layer own? ---- */

struct mp_partition_ops {
    struct mp_policy_info info;
    mp_policy_create_fn create;
    mp_policy_destroy_fn destroy;

    /* True: layers compete for all slots; quota is not called and may be NULL. */
    bool global;

    /* quota[l] := slots of layer l for l < layers; the sum must not exceed shape->slots. */
    void (*quota)(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *quota);

    /* Optional. Write the experts to load before the first layer, and again after each revise, the
     * most important first, each at most once, up to shape->slots, or where shape->slices > 1 so
     * many times as many; return their number. Those without a slot are skipped. After a revise
     * only the room that it has made is filled. */
    uint32_t (*first)(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *ids);

    /* Optional: called with the number of experts that a layer needed and how many were resident.
     */
    void (*observe)(struct mp_policy *policy, uint32_t layer, uint32_t needed, uint32_t hits,
                    uint64_t now);

    /* Optional. Called between steps, after the last layer; `idle`: no read is in flight. True:
     * quota[] was changed (same rules); layers above their quota release slots as others load. */
    bool (*revise)(struct mp_policy *policy, const struct mp_shape *shape, bool idle,
                   uint32_t *quota);

    /* Optional. True if revise only waits for an idle device. Prefetching then stops, so that
     * prefetches cannot postpone it forever. */
    bool (*due)(const struct mp_policy *policy, const struct mp_shape *shape);

    /* Optional: called with the predicted scores(tokens, experts) of the layer that runs next. The
     * last call counts. */
    void (*predicted)(struct mp_policy *policy, uint32_t layer, uint32_t tokens,
                      const float *scores);

    /* Optional: called with the routing when the layer has run. */
    void (*routed)(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                   const uint32_t *chosen);

    /* Optional, called after quota and each revise if shape->slices > 1: retained[l] := slices of
     * each kept expert of layer l that are retained, 1..slices; the layer then keeps quota[l] *
     * slices / retained[l] experts. Surplus slices are evicted before all retained ones and use the
     * slots that the quotas leave. */
    void (*retained)(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *retained);
};

/* The most experts that first() may name. */
static inline uint64_t mp_partition_first_max(const struct mp_shape *shape)
{
    const uint64_t all = (uint64_t)shape->layers * shape->experts;
    const uint64_t most = (uint64_t)shape->slots * (shape->slices > 1 ? shape->slices : 1);

    return most < all ? most : all;
}

/* ---- lists of built-in policies, and a chosen set ---- */

/* X(kind, KIND): for code that is the same for all seven kinds. */
#define MP_POLICY_KIND_MAP(X) \
    X(route, ROUTE)           \
    X(assign, ASSIGN)         \
    X(predict, PREDICT)       \
    X(prefetch, PREFETCH)     \
    X(admit, ADMIT)           \
    X(evict, EVICT)           \
    X(partition, PARTITION)

enum mp_policy_kind {
#define X(kind, KIND) MP_POLICY_##KIND,
    MP_POLICY_KIND_MAP(X)
#undef X
        MP_POLICY_KIND_COUNT
};

const char *mp_policy_kind_name(enum mp_policy_kind kind);

/* The tables of a kind, the built-in ones first, then those of plug-ins: entry i, NULL past the
 * end. Every ops table begins with its info. */
const struct mp_policy_info *mp_policy_builtin(enum mp_policy_kind kind, size_t i);

/* NULL if there is no such policy, or no name. */
const struct mp_policy_info *mp_policy_find(enum mp_policy_kind kind, const char *name);

#define MP_POLICY_NAME_MAX 32

/* Check that a table is complete and has a valid name and this ABI. MP_ERR_INVALID names the
 * missing function; another ABI is MP_ERR_UNSUPPORTED. */
enum mp_status mp_policy_check(enum mp_policy_kind kind,
                               const struct mp_policy_info *info) MP_MUST_CHECK;

#define MP_POLICIES_ADDED_MAX 32

/*
 * Put a table behind the built-in ones of its kind; it must outlive the process. Start-up code
 * only. MP_ERR_CONFIG E_POLICY_ADD: the name is taken, or there are too many; else as
 * mp_policy_check().
 */
enum mp_status mp_policy_add(enum mp_policy_kind kind,
                             const struct mp_policy_info *info) MP_MUST_CHECK;

#define MP_POLICY_PREFIX_BYTES 64

/* The prefix of a policy's variables: "MOEPAGER_LAYER_LRU_". */
void mp_policy_prefix(const struct mp_policy_info *info, char out[MP_POLICY_PREFIX_BYTES]);

/* Names of the chosen policies; a profile is a full set under a name. */
struct mp_profile {
    const char *name;
    const char *summary;
    const char *policy[MP_POLICY_KIND_COUNT];
};

/* NULL-name-terminated. The first one is the default. */
extern const struct mp_profile mp_profiles[];

/*
 * Resolve names to a set of policies. `names` has the profile's name (NULL: the default) and for
 * each kind a name that overrides the profile's (NULL: none). MP_ERR_CONFIG E_POLICY: unknown name,
 * with the list of known ones.
 */
struct mp_policy_names {
    const char *profile;
    const char *policy[MP_POLICY_KIND_COUNT];
};
enum mp_status mp_policy_resolve(const struct mp_policy_names *names,
                                 struct mp_profile *chosen_p) MP_MUST_CHECK;

/* True if one of the policies uses costs. */
bool mp_policies_want_costs(const struct mp_profile *chosen);

/* One instance per kind. */
struct mp_policies {
#define X(kind, KIND)                         \
    const struct mp_##kind##_ops *kind##_ops; \
    struct mp_policy *kind;
    MP_POLICY_KIND_MAP(X)
#undef X
};

/*
 * Create all instances. A policy's options come from the group in `groups` with its table, so that
 * flags take effect, or else from the environment. `groups` may be NULL. On failure no instance is
 * left.
 */
enum mp_status mp_policies_create(const struct mp_profile *chosen, const struct mp_shape *shape,
                                  const struct mp_opt_group *groups,
                                  struct mp_policies *policies_p) MP_MUST_CHECK;

/* Safe on a zeroed set. */
void mp_policies_destroy(struct mp_policies *policies);

#endif
