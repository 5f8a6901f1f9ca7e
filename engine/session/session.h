#ifndef MP_SESSION_H
#define MP_SESSION_H

#include "engine/session/device_choice.h"
#include "engine/session/device_facts.h"
#include "engine/forward/engine.h"
#include "engine/session/draft/drafts.h"
#include "engine/session/settings.h"
#include "engine/text/tokenizer.h"
#include "vmm/topo/memory_room.h"

#define MP_KEPT_AUTO UINT64_MAX /* 256 MiB, or less on a small machine */

/*
 * Everything that a command opens for one model, closed in reverse order: topology, pool,
 * checkpoint, config, weights, tokenizer, engine.
 *
 * The memory of the run is computed before weights are read. If the machine or its control group
 * does not have enough, opening fails with the sum and its parts, instead of the process being
 * killed later.
 */
struct mp_session_config {
    const char *model; /* directory */
    uint32_t sequences;
    bool tokenizer; /* needed */
    bool plan_only; /* stop before weights are read: session.memory is set, engine is NULL; the plan
                       may exceed the available RAM */
    /* Or NULL. Called when the session has its model, tokenizer, engine_config.ctx and memory plan,
     * but no weights and no engine. A failure makes opening fail with that status. Not called with
     * plan_only. */
    enum mp_status (*before_load)(void *ctx);
    void *before_load_ctx;
    /* Or NULL. Called when all but the engine is there, before it is created; may change its
     * configuration. */
    enum mp_status (*before_engine)(void *ctx, struct mp_engine_config *config);
    void *before_engine_ctx;
    const struct mp_progress *progress; /* or NULL: bytes of weights read */
    struct mp_timeline *timeline;       /* or NULL */
    struct mp_clock *clock;
    const volatile sig_atomic_t *cancel;
    void (*routed)(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k, const uint32_t *experts,
                   const float *weights);
    void *routed_ctx;
    const char *decision_log;           /* or NULL */
    const struct mp_observer *observer; /* or NULL */
    const char *forced_routing;         /* a trace whose routing replaces the model's; or NULL */
    bool probe;            /* this program is moepager: it may run itself to measure a device */
    bool no_engine;        /* stop after weights are read: engine is NULL */
    bool drafts;           /* as the settings say */
    bool draft_model;      /* if the settings name one, for the caller: session.draft_model */
    bool drafting;         /* the model's layer that drafts, alone (engine/model/drafting.h) */
    uint64_t kept_bytes;   /* of RAM, for prompts that the caller keeps; or MP_KEPT_AUTO */
    uint64_t memory_bytes; /* of RAM for everything, divided by the plan; 0: as the settings say */
    const struct mp_session *machine; /* whose topology, device and pool are used; it outlives this
                                         session. Or NULL: those that the settings say */
    const char *command; /* as `moepager top` shows it; NULL: it does not show this session */
    bool no_sidecars;    /* do not load calibration and trained predictors */
};

/* Of a layer that drafts, if it is used: all but its experts, these, the least that they get (one
 * token's), and their share, which is that of the model's. */
struct mp_draft_memory {
    uint64_t resident_bytes, expert_bytes, smallest_bytes, full_bytes, budget_bytes;
};

/* Bytes by purpose: of RAM; with a device the first six members are of its memory. */
struct mp_memory_plan {
    uint64_t weights_bytes; /* everything but routed experts */
    uint64_t expert_bytes;  /* all routed experts, as in the files */
    uint64_t kv_bytes, state_bytes;
    uint64_t kept_bytes; /* of RAM: see struct mp_session_config */
    /* With its memory_bytes: for budget, kept prompts and KV cache together, and what sequences
     * have of it at first. */
    uint64_t shared_bytes, sequences_bytes;
    uint64_t budget_bytes; /* for routed experts; `full_bytes` if it is for all */
    uint64_t smallest_bytes, full_bytes;
    struct mp_draft_memory draft;
    uint64_t total_bytes;  /* of all these; UINT64_MAX: beyond 2^64 */
    uint32_t slices;       /* that each expert is stored in */
    uint64_t room_bytes;   /* what this process can still allocate; UINT64_MAX: unknown */
    uint64_t margin_bytes; /* of it, reserved by an automatic budget */
    /* With a device, else 0: */
    uint64_t device_free_bytes, device_total_bytes;
    uint64_t host_full_bytes; /* of a host tier that holds every expert */
    uint64_t waste_bytes;     /* of `full_bytes`, lost to the device's granules */
    uint64_t window_bytes;    /* of addresses; 0: by table */
    uint64_t extra_bytes;     /* for graphs, cuBLAS and the like, as mp_device_extra_bytes() */
};

struct mp_session {
    struct mp_topology *topology;
    struct mp_device_choice device;
    struct mp_device_facts facts; /* of a CUDA device */
    unsigned node;                /* index in topology->nodes */
    struct mp_pool *pool;
    struct mp_checkpoint *checkpoint;
    struct mp_model_config model;
    struct mp_weights *weights;
    struct mp_calibration_data *calibration;  /* NULL: none, or not wanted */
    struct mp_llapor *llapor;                 /* the same */
    struct mp_token_heat *token_heat;         /* the same, with a lookahead */
    struct mp_heat_map *heat_map;             /* or NULL */
    struct mp_forced_routing *forced_routing; /* or NULL */
    struct mp_tokenizer *tokenizer;
    struct mp_engine_config engine_config;
    struct mp_engine *engine;
    struct mp_live *live;                /* or NULL */
    struct mp_drafts *drafts;            /* for mp_generate(); or NULL */
    struct mp_draft_source *draft_model; /* unless `drafts` has it; or NULL */
    bool guest;                          /* on the machine of another session */
    struct mp_memory_plan memory;
    char addressing[96]; /* reason for the addressing on a CUDA device */
    bool direct_io;      /* experts are read with O_DIRECT */
};

/* On failure nothing stays open. */
enum mp_status mp_session_open(const struct mp_settings *settings,
                               const struct mp_session_config *config,
                               struct mp_session *session) MP_MUST_CHECK;
/* Replace the engine by a new one with other policies, nothing resident, and counters at zero. On
 * failure there is no engine. */
enum mp_status mp_session_renew(struct mp_session *session, const struct mp_profile *policies,
                                const struct mp_observer *observer) MP_MUST_CHECK;
void mp_session_close(struct mp_session *session);

/* The next token of a prompt that depends on the seed only, which *state_p is at first; id 0 is
 * left out, it is special in many models. */
uint32_t mp_session_random_token(const struct mp_session *session, uint64_t *state_p);

#endif
