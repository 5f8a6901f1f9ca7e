#ifndef MP_TESTS_POLICY_WORKLOAD_H
#define MP_TESTS_POLICY_WORKLOAD_H

#include <math.h>

#include "policy/replay/replay.h"
#include "tests/support/test.h"

/*
 * Random traces for those who compare `auto` with static placement: routing without any pattern, a
 * loop over all experts, some experts more popular than others, popularity that changes from phase
 * to phase, tokens that repeat what the one before chose, and a mixture of them one after the
 * other. The first tokens are marked as prompt: a warm-up.
 */
#define LAYERS_MAX 6
#define EXPERTS_MAX 24
#define TOP_K_MAX 4

static uint64_t workload_random = 99;

static inline uint32_t workload_below(uint32_t limit)
{
    workload_random =
        workload_random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((workload_random >> 33) % limit);
}

enum workload_kind { UNIFORM, CYCLIC, SKEWED, PHASES, MOMENTUM, MIXED, WORKLOADS };
static const char *const workload_names[WORKLOADS] = { "uniform", "cyclic",   "skewed",
                                                       "phases",  "momentum", "mixed" };

struct workload {
    enum workload_kind kind;
    uint32_t layers, experts, k, batch, warm, tokens;
    uint32_t order[LAYERS_MAX][EXPERTS_MAX]; /* popularity, most popular first */
    uint32_t last[LAYERS_MAX][8][TOP_K_MAX];
    uint32_t phase;
    double steep;
};

static inline void shuffle(struct workload *w)
{
    for (uint32_t l = 0; l < w->layers; l++) {
        for (uint32_t e = 0; e < w->experts; e++)
            w->order[l][e] = e;
        for (uint32_t e = w->experts - 1; e > 0; e--) {
            const uint32_t other = workload_below(e + 1), held = w->order[l][e];

            w->order[l][e] = w->order[l][other];
            w->order[l][other] = held;
        }
    }
}

/* One expert of the layer, by the workload's kind. */
static inline uint32_t choose_expert(struct workload *w, enum workload_kind kind, uint32_t layer,
                                     uint32_t token, uint32_t rank, uint32_t sequence)
{
    const double u = (double)workload_below(1u << 30) / (1u << 30);

    switch (kind) {
    case CYCLIC: return (token * w->k + rank + layer) % w->experts;
    case SKEWED:
    case PHASES: return w->order[layer][(uint32_t)(pow(u, w->steep) * w->experts)];
    case MOMENTUM:
        return workload_below(4) > 0 ? w->last[layer][sequence][workload_below(w->k)]
                                     : workload_below(w->experts);
    default: return workload_below(w->experts);
    }
}

static inline void choose(struct workload *w, uint32_t layer, uint32_t token, uint32_t sequence,
                          uint32_t *chosen)
{
    const enum workload_kind kind = w->kind == MIXED ? (token / w->phase) % MIXED : w->kind;

    for (uint32_t r = 0; r < w->k; r++) {
        uint32_t e = choose_expert(w, kind, layer, token, r, sequence);

        for (uint32_t s = 0; s < r;) {
            if (chosen[s] == e) {
                e = (e + 1) % w->experts;
                s = 0;
            } else {
                s++;
            }
        }
        chosen[r] = e;
    }
    memcpy(w->last[layer][sequence], chosen, w->k * sizeof(chosen[0]));
}

static inline void make_trace(struct workload *w, struct mp_replay_trace *trace)
{
    CHECK_EQ(mp_replay_trace_init(trace, w->layers, w->experts, w->k), MP_OK);
    for (uint32_t l = 0; l < w->layers; l++)
        trace->layer_bytes[l] = 10;
    for (uint32_t t = 0; t < w->warm + w->tokens; t++) {
        if (w->kind >= PHASES && t % w->phase == 0)
            shuffle(w);
        for (uint32_t l = 0; l < w->layers; l++) {
            CHECK_EQ(mp_replay_trace_begin(trace, l, t >= w->warm), MP_OK);
            for (uint32_t s = 0; s < w->batch; s++) {
                uint32_t chosen[TOP_K_MAX];

                choose(w, l, t, s, chosen);
                for (uint32_t r = 0; r < w->k; r++)
                    CHECK_EQ(mp_replay_trace_choose(trace, chosen[r]), MP_OK);
            }
        }
    }
    CHECK_EQ(mp_replay_trace_end(trace), MP_OK);
}

static inline struct workload any_workload(enum workload_kind kind)
{
    struct workload w = {
        .kind = kind,
        .layers = 1 + workload_below(LAYERS_MAX),
        .experts = 8 + workload_below(EXPERTS_MAX - 7),
        .batch = workload_below(4) == 0 ? 1 + workload_below(8) : 1,
        .warm = 512,
        .tokens = 2048,
        .phase = 100 + workload_below(600),
        .steep = 1 + workload_below(30) / 10.0,
    };

    w.k = 1 + workload_below(TOP_K_MAX);
    shuffle(&w);
    return w;
}

#endif
