#ifndef MP_TESTS_HARNESS_H
#define MP_TESTS_HARNESS_H

#include <stdint.h>

#include "engine/model/sidecar/calibration.h"
#include "engine/forward/engine.h"

/*
 * An engine on a model directory, as tests want it: every choice explicit, failures end the test
 * with the error's text.
 */
struct harness_options {
    const char *model; /* directory */
    uint32_t sequences, ctx, tokens_max, threads;
    uint32_t wanted_max; /* 0: sequences */
    uint32_t lookahead;
    uint64_t budget_bytes; /* UINT64_MAX: everything resident */
    struct mp_policy_names policies;
    const char *kernels; /* NULL: best */
    enum mp_io_mode io_mode;
    bool no_uring;
    bool deterministic;
    const char *backend; /* NULL: host */
    /* Of a backend with a device: */
    uint64_t host_budget_bytes;
    enum mp_host_residency residency;
    enum mp_addressing addressing;
    struct mp_costs costs;
    bool graphs;
    enum mp_gemm_choice gemm;
    const struct mp_observer *observer;            /* or NULL */
    const struct mp_calibration_data *calibration; /* or NULL */
    const struct mp_llapor *llapor;                /* or NULL */
    bool llapor_learns;
    const struct mp_token_heat *token_heat; /* or NULL */
    const char *decision_log;               /* or NULL; policies without options */
    struct mp_clock *clock;                 /* NULL: monotonic */
    const struct mp_spin *spin;             /* NULL: as the pool says, 50 us */
    /* Or NULL: called when all but the engine is there; may change its configuration. */
    enum mp_status (*before_engine)(void *ctx, struct mp_engine_config *config);
    void *before_engine_ctx;
};

struct harness {
    struct mp_checkpoint *checkpoint;
    struct mp_model_config model;
    struct mp_weights *weights;
    struct mp_pool *pool;
    struct mp_engine_config config;
    struct mp_engine *engine;
};

/* One sequence of everything: budget all, default policies, one thread, 512 tokens. */
struct harness_options harness_defaults(const char *model);

void harness_open(const struct harness_options *options, struct harness *h);
void harness_close(struct harness *h);

/* The plan of such an engine's memory, and vocab_p: the rows of its logits, or NULL. */
struct mp_space_plan harness_plan(const struct harness_options *options, uint32_t *vocab_p);

/* One of the ways a device may work, all of which give the same bits: with graphs, windows, an
 * exclusive host tier and kernels that begin early, and without each, at budgets of the plan from
 * the least to all. Those that begin early are a setting of the process. */
#define HARNESS_WAYS 16u
void harness_way(struct harness_options *options, const struct mp_space_plan *plan, unsigned way);

/* As harness_open(), but failures come back. Closes what it opened if it fails. */
enum mp_status harness_try_open(const struct harness_options *options, struct harness *h);

/* Numbers such as a calibration has, but of no text: they steer policies and nothing else. Owned by
 * the caller. */
struct mp_calibration_data *harness_calibration(const char *model);

/*
 * Teacher-forced: each sequence's first lens[s] tokens are prefilled together with those of the
 * others, then `steps` further tokens are fed one by one. logits(sequences, steps + 1, vocab) are
 * those behind the prompt and behind each further token. tokens(sequences, stride).
 */
enum mp_status harness_run(struct harness *h, const int32_t *tokens, size_t stride,
                           const int32_t *lens, uint32_t sequences, uint32_t steps, float *logits);

#endif
