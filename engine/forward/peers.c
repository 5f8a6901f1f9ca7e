/*
 * Experts that other machines compute, and those that are computed for others. What is sent and
 * where is not here.
 */
#include "engine/forward/peers.h"

#include <stdlib.h>

#include "engine/forward/engine_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

/* Of the executor; ctx is an engine. What was asked for is there when the layer is combined. */
static enum mp_status begin_asking(void *ctx, uint32_t moe_layer, const struct mp_expert_work *work,
                                   uint32_t count)
{
    struct mp_engine *engine = ctx;
    const struct mp_peers *peers = engine->config.peers;

    return peers->ask(peers->ctx, moe_layer, engine->state.xn, work, count);
}

enum mp_status mp_engine_peers_create(struct mp_engine *engine)
{
    const uint64_t experts = engine->shape.experts;
    const uint64_t parts = experts * engine->config.weights->slices.count;

    if (engine->config.peers == NULL)
        return MP_OK;
    if (engine->device != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_CLUSTER_DEVICE",
                       "experts on other machines are for --device cpu only");
    engine->costs.executor_count = 2;
    /* Costs 0: assign policies leave it alone. */
    engine->costs.executors[MP_EXECUTOR_PEERS] =
        (struct mp_executor){ .name = "peers", .reads = MP_READS_PEER, .processor = 1 };
    engine->compute->executors[MP_EXECUTOR_PEERS] =
        (struct mp_step_executor){ .ctx = engine, .begin = begin_asking };
    engine->peer_needs = calloc(experts, sizeof(*engine->peer_needs));
    engine->peer_work = calloc(parts, sizeof(*engine->peer_work));
    if (engine->peer_needs == NULL || engine->peer_work == NULL)
        return mp_fail_no_memory("experts of other machines",
                                 experts * sizeof(*engine->peer_needs) +
                                     parts * sizeof(*engine->peer_work));
    return MP_OK;
}

void mp_engine_peers_destroy(struct mp_engine *engine)
{
    free(engine->peer_needs);
    free(engine->peer_work);
}

enum mp_status mp_engine_peers_poll(struct mp_engine *engine)
{
    const struct mp_peers *peers = engine->config.peers;

    return peers != NULL ? peers->poll(peers->ctx) : MP_OK;
}

enum mp_status mp_engine_peers_collect(struct mp_engine *engine)
{
    const struct mp_peers *peers = engine->config.peers;

    return peers != NULL ? peers->collect(peers->ctx, engine->state.rank) : MP_OK;
}

enum mp_status mp_engine_peers_choose(void *ctx, const struct mp_assign_facts *facts,
                                      uint32_t *executors)
{
    const struct mp_peers *peers = ((struct mp_engine *)ctx)->config.peers;

    return peers->choose(peers->ctx, facts, executors);
}

static int compare_need(const void *a, const void *b)
{
    const uint32_t x = ((const struct mp_expert_work *)a)->need;
    const uint32_t y = ((const struct mp_expert_work *)b)->need;

    return (x > y) - (x < y);
}

/* Compute all needs that are ready, after waiting for one; *left_p: there may be more. */
static enum mp_status serve_ready(struct mp_engine *engine, uint32_t moe_layer,
                                  const struct mp_served *list, bool *left_p)
{
    const uint32_t slices = engine->config.weights->slices.count;
    struct mp_expert_work *work = engine->peer_work;
    struct mp_ready ready;
    uint32_t count = 0;
    enum mp_status status = mp_pager_next(engine->pager, &ready);

    while (status == MP_OK && ready.need != MP_NEED_NONE) {
        work[count] = (struct mp_expert_work){
            .expert = list[ready.need / slices].expert,
            .slice = ready.need % slices,
            .slices = 1,
            .rows = list[ready.need / slices].rows,
            .need = ready.need,
        };
        for (size_t p = 0; p < MP_UNIT_PIECES_MAX; p++)
            work[count].pieces[p] = ready.pieces[p];
        count++;
        status = mp_pager_next_now(engine->pager, &ready);
    }
    *left_p = count > 0;
    if (slices > 1) /* slices of one expert side by side */
        qsort(work, count, sizeof(*work), compare_need);
    if (status == MP_OK && count > 0)
        status = mp_cpu_experts(engine, moe_layer, work, count);
    for (uint32_t i = 0; i < count && status == MP_OK; i++)
        mp_pager_done(engine->pager, work[i].need);
    return status;
}

static enum mp_status serve_all(struct mp_engine *engine, uint32_t moe_layer,
                                const struct mp_served *list, uint32_t count)
{
    bool left = true;
    enum mp_status status = mp_pager_begin(engine->pager, moe_layer, engine->peer_needs, count);

    if (status != MP_OK)
        return status;
    while (left && status == MP_OK)
        status = serve_ready(engine, moe_layer, list, &left);
    if (status != MP_OK)
        mp_pager_abort(engine->pager);
    else
        mp_pager_end(engine->pager);
    return status;
}

enum mp_status mp_engine_serve(struct mp_engine *engine, uint32_t moe_layer,
                               const struct mp_served *list, uint32_t count, const float *input,
                               float *results)
{
    float *const own_input = engine->state.xn, *const own_results = engine->state.rank;
    enum mp_status status;

    mp_assert(count > 0 && count <= engine->shape.experts);
    for (uint32_t i = 0; i < count; i++) {
        mp_assert(list[i].rows.count > 0 && list[i].rows.count <= engine->config.tokens_max);
        engine->peer_needs[i] =
            (struct mp_need){ .expert = list[i].expert, .tokens = list[i].rows.count };
    }
    /* The CPU computes from one array to the other, whoever owns them; nothing writes the first. */
    engine->state.xn = (float *)(uintptr_t)input;
    engine->state.rank = results;
    status = serve_all(engine, moe_layer, list, count);
    engine->state.xn = own_input;
    engine->state.rank = own_results;
    return status;
}
