#ifndef MP_PEERS_H
#define MP_PEERS_H

#include "policy/pager/step.h"

/*
 * Other machines that compute experts of a layer: to the step they are one executor, which loads
 * nothing. Rows of the layer's input go out before local experts are read or computed, and results
 * come back when those are done. The engine does not know how; engine/cluster does.
 *
 * Results are put where local ones are, by (token, rank), and are added in rank order by the
 * layer's combine. So the bits do not depend on who computed an expert, if the kernels are the
 * same.
 */
struct mp_engine;

/* Its index in the list of executors: behind the home executor, on the CPU. */
#define MP_EXECUTOR_PEERS 1u

/* The operations; all required, called on the engine's thread. T tokens of the batch, R top_k, H
 * hidden. */
struct mp_peers {
    void *ctx;

    /* Before a layer, and while there is nothing to compute: answer what others have asked. May
     * call mp_engine_serve(). Must not block. */
    enum mp_status (*poll)(void *ctx);

    /* executors[i] := MP_EXECUTOR_PEERS where another machine is to compute expert i. */
    enum mp_status (*choose)(void *ctx, const struct mp_assign_facts *facts, uint32_t *executors);

    /* Send the rows of these experts. `input` is (T, H) and stays as it is until collect(). */
    enum mp_status (*ask)(void *ctx, uint32_t layer, const float *input,
                          const struct mp_expert_work *work, uint32_t count);

    /* Wait until results(T, R, H) has all results that were asked for in this layer. Called also
     * if none were. May call mp_engine_serve(). */
    enum mp_status (*collect)(void *ctx, float *results);
};

/* One expert with its rows. */
struct mp_served {
    uint32_t expert;
    struct mp_rows rows;
};

/*
 * Compute experts of `moe_layer` for the rows of somebody else: results(tokens, top_k, H) at
 * (token, rank) := expert(input(tokens, H) at token). list(count) ascends by expert, with one row
 * at least and config.tokens_max at most each. They are paged as in a layer of one's own, and
 * policies see it so. Not while the pager has a layer open: from poll() and collect() only, or
 * between calls of mp_forward().
 */
enum mp_status mp_engine_serve(struct mp_engine *engine, uint32_t moe_layer,
                               const struct mp_served *list, uint32_t count, const float *input,
                               float *results) MP_MUST_CHECK;

#endif
