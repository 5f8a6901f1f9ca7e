/*
 * Decoding without the host: where routing is the model's own and the device computes every expert
 * of a step of few tokens, that step is one graph. Not here: what pager and policies are notified
 * of behind it (device_graph_notify.c).
 *
 * Routers, the choice of experts and the search for their bytes run on the device; a table says
 * where each resident expert is. Kernels and their order are those of the host-driven step, so the
 * bits are, too.
 *
 * The table is written before a replay and nothing is moved while it runs, because only this thread
 * moves anything and it waits: what is resident needs no lease. Reads that are under way go to
 * slots that the table does not name.
 *
 * Experts that are not resident are counted per layer. What the graph computed from the first layer
 * with a miss on is thrown away: the host drives that layer, with the residual stream that each
 * layer left behind before its experts, and the rest of the step is a graph again, a segment, which
 * begins behind that layer's sum. So the host waits once for a step, and once more for each layer
 * with misses.
 *
 * What a graph throws away is bounded by what graphs and host did without a miss before: see
 * is_worth(). The host drives the layers for which that is not enough.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/forward/cuda/device_graph.h"
#include "engine/forward/forced_routing.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define EXPERTS_MAX 1024 /* of the resolve kernel */
#define SEGMENTS_MAX 64u /* graphs that begin behind a miss; others are queued kernel by kernel */
#define REACH 4u         /* see is_worth() */

/*
 * What the driver keeps in the device's memory for each operation of a graph. No document says it
 * and no GPU was measured: it is assumed, for the plan. What graphs are seen to take is held to
 * what was planned, see may_capture().
 */
#define NODE_BYTES (UINT64_C(16) << 10)
#define NODES_STEP 4u /* embedding, rows that want logits, their norm, the head */
/* Project, thrice where q, k and v have types of their own; place, attend, gemv, route, experts up
 * and down, combine. */
#define NODES_LAYER 10u
#define NODES_FFN 4u    /* instead of a layer's experts */
#define NODES_SHARED 7u /* of a shared expert, 3 of them for its gate */
#define NODES_SLICE 3u  /* each but the first: resolve, experts up and down */

/* The same types for all experts of a layer: their kernels are launched before anybody knows whom.
 */
static bool same_types(const struct mp_engine *engine)
{
    const struct mp_expert_types *types = engine->config.weights->unit_types;

    for (uint32_t u = 0; u < engine->shape.layers * engine->shape.experts; u++) {
        if (!mp_expert_types_same(&types[u], &types[u - u % engine->shape.experts]))
            return false;
    }
    return true;
}

/* Who looks at every layer has its steps driven by the host, and so has a partial forward where the
 * routing is given: the scores that the graph leaves are then not those of the routers. */
static bool can_use_graphs(const struct mp_engine *engine)
{
    const struct mp_engine_config *c = &engine->config;
    const struct mp_policies *p = &engine->policies;

    return c->graphs && (c->observer == NULL || c->observer->layer == NULL) &&
           !strcmp(p->route_ops->info.name, "exact") &&
           !(p->predict_ops->source == MP_SCORES_PARTIAL && c->forced_routing != NULL) &&
           c->model->experts <= EXPERTS_MAX && same_types(engine);
}

static uint32_t tokens_of(const struct mp_engine_config *c)
{
    const uint32_t wanted = mp_engine_wanted_max(c);

    return wanted < MP_DEVICE_FEW_TOKENS ? wanted : MP_DEVICE_FEW_TOKENS;
}

/* Bytes of what stands on the device: table, work, row, expert, misses, scores, x, guesses. */
#define THERE_COUNT 8

static void measure(const struct mp_engine_config *c, uint32_t slices, uint64_t bytes[THERE_COUNT])
{
    const struct mp_model_config *m = c->model;
    const uint64_t L = m->moe_layers, E = m->experts, N = tokens_of(c), S = slices;
    const uint64_t R = m->experts_per_token, H = m->hidden;

    bytes[0] = L * S * E * sizeof(struct mp_cuda_place_of);
    bytes[1] = (N * R < E ? N * R : E) * sizeof(struct mp_cuda_expert);
    bytes[2] = bytes[3] = N * R * sizeof(uint32_t);
    bytes[4] = L * S * sizeof(uint32_t);
    bytes[5] = L * N * E * sizeof(float);
    bytes[6] = L * N * H * sizeof(float);
    bytes[7] = bytes[5];
}

/* Operations from behind `first` MoE layers on, at most. */
static uint64_t count_nodes(const struct mp_engine_config *c, uint32_t slices, uint32_t first)
{
    const uint64_t of_layer = NODES_LAYER + (c->model->shared_ffn != 0 ? NODES_SHARED : NODES_FFN) +
                              (uint64_t)NODES_SLICE * (slices - 1);

    return NODES_STEP + (c->model->layers - first) * of_layer;
}

/* Of the whole steps, and of as many others as there may be, the longest. */
static uint64_t driver_bytes(const struct mp_engine_config *c, uint32_t slices)
{
    const uint32_t tokens = tokens_of(c);
    uint64_t nodes = tokens * count_nodes(c, slices, 0);
    uint32_t left = SEGMENTS_MAX;

    for (uint32_t first = 1; first < c->model->moe_layers && left > 0; first++) {
        const uint32_t some = tokens < left ? tokens : left;

        nodes += some * count_nodes(c, slices, first);
        left -= some;
    }
    return nodes * NODE_BYTES;
}

uint64_t mp_device_graph_bytes(const struct mp_engine_config *config, uint32_t slices)
{
    uint64_t bytes[THERE_COUNT], sum = driver_bytes(config, slices);

    measure(config, slices, bytes);
    for (size_t i = 0; i < THERE_COUNT; i++)
        sum += bytes[i];
    return config->graphs && config->model->experts <= EXPERTS_MAX ? sum : 0;
}

static void list_there(struct mp_device_graphs *g, mp_cu_ptr *there[THERE_COUNT])
{
    mp_cu_ptr *const all[THERE_COUNT] = { &g->table,  &g->work,   &g->row, &g->expert,
                                          &g->misses, &g->scores, &g->x,   &g->guesses };

    memcpy(there, all, sizeof(all));
}

static enum mp_status make_memory(struct mp_device *device, struct mp_device_graphs *g)
{
    mp_cu_ptr *there[THERE_COUNT];
    uint64_t bytes[THERE_COUNT];

    list_there(g, there);
    measure(&device->engine->config, mp_device_slices(device), bytes);
    const struct {
        void **address_p;
        uint64_t bytes;
    } here[] = {
        { (void **)&g->places, bytes[0] },
        { (void **)&g->missed, bytes[4] },
        { (void **)&g->seen, bytes[5] },
        { (void **)&g->guessed, bytes[7] },
    };
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < THERE_COUNT && status == MP_OK; i++)
        status = mp_gpu_alloc(device->gpu, bytes[i], "graphs", there[i]);
    for (size_t i = 0; i < sizeof(here) / sizeof(here[0]) && status == MP_OK; i++)
        status = mp_gpu_alloc_host(device->gpu, here[i].bytes, "graphs", here[i].address_p);
    return status;
}

/* Is what the next layer's gate says asked for? Where every expert has a slot that is soon over. */
static bool asks_gates(const struct mp_engine *engine)
{
    const struct mp_policies *p = &engine->policies;

    return p->predict_ops->source == MP_SCORES_GATE &&
           (p->prefetch_ops->choose != NULL || p->assign_ops->looks_ahead) &&
           mp_pager_slots(engine->pager) < engine->shape.layers * engine->shape.experts;
}

enum mp_status mp_device_graphs_create(struct mp_device *device)
{
    const struct mp_engine *engine = device->engine;
    const size_t segments = (size_t)tokens_of(&engine->config) * engine->shape.layers;
    struct mp_device_graphs *g;
    enum mp_status status;

    if (!can_use_graphs(engine))
        return MP_OK;
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return mp_fail_no_memory("graphs", sizeof(*g));
    g->tokens_max = tokens_of(&engine->config);
    g->driver_bytes_max = driver_bytes(&engine->config, mp_device_slices(device));
    g->usual = engine->shape.layers; /* nothing is known: try */
    g->asks = asks_gates(engine);
    g->segments = calloc(segments, sizeof(g->segments[0]));
    if (g->segments == NULL) {
        free(g);
        return mp_fail_no_memory("graphs", segments * sizeof(g->segments[0]));
    }
    device->graphs = g;
    status = make_memory(device, g);
    if (status != MP_ERR_NO_SPACE)
        return status;
    mp_log_warn("cuda", "%s; steps are queued kernel by kernel, not as one graph",
                mp_error_last()->text);
    mp_error_clear();
    mp_device_graphs_destroy(device);
    return MP_OK;
}

void mp_device_graphs_destroy(struct mp_device *device)
{
    struct mp_device_graphs *g = device->graphs;
    mp_cu_ptr *there[THERE_COUNT];

    if (g == NULL)
        return;
    for (uint32_t i = 0; i < g->tokens_max * device->engine->shape.layers; i++)
        mp_gpu_graph_close(device->gpu, g->segments[i].exec);
    list_there(g, there);
    for (size_t i = 0; i < THERE_COUNT; i++)
        mp_gpu_free(device->gpu, *there[i]);
    mp_gpu_free_host(device->gpu, g->places);
    mp_gpu_free_host(device->gpu, g->missed);
    mp_gpu_free_host(device->gpu, g->seen);
    mp_gpu_free_host(device->gpu, g->guessed);
    device->graphs = NULL;
    free(g->segments);
    free(g);
}

struct mp_device_graph_counts mp_device_graphs_counted(const struct mp_device *device)
{
    const struct mp_device_graph_counts none = { 0 };

    return device->graphs != NULL ? device->graphs->counts : none;
}

/* Of so many tokens, behind so many MoE layers. */
static struct mp_device_segment *segment_of(const struct mp_device *device, uint32_t tokens,
                                            uint32_t first)
{
    mp_assert(tokens > 0 && tokens <= device->graphs->tokens_max);
    return &device->graphs->segments[(tokens - 1) * device->engine->shape.layers + first];
}

static enum mp_status find_free(const struct mp_device *device, uint64_t *bytes_p)
{
    struct mp_backend *backend = device->engine->backend;
    uint64_t total_bytes;

    return backend->ops->memory_info(backend, MP_TIER_DEVICE, bytes_p, &total_bytes);
}

/* Nobody of this process takes memory meanwhile. Others may: then graphs seem larger or smaller. */
static void note_taken(struct mp_device_graphs *g, uint64_t before_bytes, uint64_t after_bytes)
{
    const uint64_t bytes = before_bytes > after_bytes ? before_bytes - after_bytes : 0;

    g->driver_bytes += bytes;
    g->largest_bytes = bytes > g->largest_bytes ? bytes : g->largest_bytes;
}

static enum mp_status capture(struct mp_device *device, uint32_t first, mp_cu_graph_exec *exec_p)
{
    uint64_t before_bytes, after_bytes;
    mp_cu_graph_exec exec = NULL;
    enum mp_status status, ended;
    struct mp_error error;

    mp_pager_settle(device->engine->pager); /* nobody maps anything while a graph is recorded */
    status = find_free(device, &before_bytes);
    if (status == MP_OK)
        status = mp_gpu_capture_begin(device->gpu, mp_device_stream(device));
    if (status != MP_OK)
        return status;
    status = mp_device_graph_queue(device, first);
    error = *mp_error_last();
    ended = mp_gpu_capture_end(device->gpu, mp_device_stream(device), &exec);
    if (status == MP_OK && ended == MP_OK) {
        ended = find_free(device, &after_bytes);
        if (ended == MP_OK) {
            note_taken(device->graphs, before_bytes, after_bytes);
            *exec_p = exec;
            return MP_OK;
        }
        error = *mp_error_last();
    } else if (status == MP_OK) {
        return ended;
    }
    mp_gpu_graph_close(device->gpu, exec);
    mp_error_set(&error);
    return status != MP_OK ? status : ended;
}

/* Numbers of tokens whose whole step is no graph yet. */
static uint32_t count_to_come(const struct mp_device *device)
{
    uint32_t count = 0;

    for (uint32_t tokens = 1; tokens <= device->graphs->tokens_max; tokens++)
        count += segment_of(device, tokens, 0)->exec == NULL;
    return count;
}

/* A driver may load a kernel when it is first launched, which it cannot do while capturing: what
 * has been queued kernel by kernel becomes a graph when the next step begins, and no layer is
 * open. Of the rest of steps there are so many that they and all whole steps, also those that are
 * still to come, take no more than the plan has for graphs, if each takes what the largest did. */
static bool may_capture(const struct mp_device *device, const struct mp_device_segment *segment,
                        uint32_t first)
{
    const struct mp_device_graphs *g = device->graphs;
    const uint64_t count = 1 + (uint64_t)count_to_come(device);

    return segment->ran && segment->exec == NULL && !g->refused &&
           (first == 0 || (g->captured < SEGMENTS_MAX &&
                           g->driver_bytes + count * g->largest_bytes <= g->driver_bytes_max));
}

static void make_graphs(struct mp_device *device)
{
    struct mp_device_graphs *g = device->graphs;

    for (uint32_t first = 0; first < device->engine->shape.layers; first++) {
        struct mp_device_segment *segment = segment_of(device, device->engine->tokens, first);

        if (!may_capture(device, segment, first))
            continue;
        if (capture(device, first, &segment->exec) == MP_OK) {
            g->captured += first > 0;
            continue;
        }
        mp_log_warn("cuda", "%s; steps are queued kernel by kernel instead of as one graph",
                    mp_error_last()->text);
        mp_error_clear();
        g->refused = true;
    }
}

/* ---- a step */

static struct mp_cuda_place_of find_place(const struct mp_engine *engine, uint32_t unit)
{
    const void *pieces[MP_UNIT_PIECES_MAX];

    if (!mp_pager_find(engine->pager, unit, pieces))
        return (struct mp_cuda_place_of){ .valid = 0 };
    return (struct mp_cuda_place_of){
        .gate = (uintptr_t)pieces[MP_PIECE_GATE],
        .up = (uintptr_t)pieces[MP_PIECE_UP],
        .down = (uintptr_t)pieces[MP_PIECE_DOWN],
        .valid = 1,
    };
}

/* Units are numbered (L, E, S); the table is (L, S, E), as the kernel reads it. */
static void find_places(const struct mp_engine *engine, uint32_t slices,
                        struct mp_cuda_place_of *places)
{
    const uint32_t E = engine->shape.experts;

    for (uint32_t l = 0; l < engine->shape.layers; l++) {
        for (uint32_t s = 0; s < slices; s++) {
            for (uint32_t e = 0; e < E; e++)
                *places++ = find_place(engine, (l * E + e) * slices + s);
        }
    }
}

/* The table on the device becomes that of g->places. */
static void send_table(struct mp_device *device)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_shape *shape = &device->engine->shape;
    const uint64_t units = (uint64_t)shape->layers * shape->experts * mp_device_slices(device);

    mp_device_upload(device, g->table, g->places, units * sizeof(g->places[0]));
}

/* Where every resident expert is, on the device. Nothing has moved as long as the space's
 * generation is the same. */
static enum mp_status update_table(struct mp_device *device)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;
    const uint64_t generation = mp_space_generation(engine->space);
    enum mp_status status;

    if (g->known && g->generation == generation)
        return MP_OK;
    find_places(engine, mp_device_slices(device), g->places);
    g->generation = generation;
    send_table(device);
    status = mp_device_status(device);
    g->known = status == MP_OK;
    return status;
}

/* Scores of the layers from `first` on, where they are given and not computed. */
static void give_scores(struct mp_device *device, uint32_t first, uint64_t count)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;

    for (uint32_t l = first; l < engine->shape.layers; l++)
        mp_forced_routing_scores(engine->config.forced_routing, engine->batch, l,
                                 g->seen + l * count);
    mp_device_upload(device, g->scores + first * count * sizeof(float), g->seen + first * count,
                     (engine->shape.layers - first) * count * sizeof(float));
}

/* The graph, or what it would be made of. */
static enum mp_status run_segment(struct mp_device *device, uint32_t first)
{
    struct mp_device_segment *segment = segment_of(device, device->engine->tokens, first);
    enum mp_status status = mp_device_status(device);

    if (status != MP_OK)
        return status;
    if (segment->exec != NULL)
        return mp_gpu_replay(device->gpu, mp_device_stream(device), segment->exec);
    status = mp_device_graph_queue(device, first);
    segment->ran = status == MP_OK;
    return status;
}

/* What comes before the segment has been queued. All that the host wants to know comes back with
 * one wait. */
static enum mp_status replay(struct mp_device *device, uint32_t first)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;
    const uint64_t layers = engine->shape.layers - first;
    const uint64_t lists = mp_device_slices(device);                         /* of a layer */
    const uint64_t count = (uint64_t)engine->tokens * engine->shape.experts; /* the same */
    const bool given = engine->config.forced_routing != NULL;
    enum mp_status status = update_table(device);

    if (status != MP_OK)
        return status;
    if (given)
        give_scores(device, first, count);
    status = run_segment(device, first); /* fails where the capture lost the device */
    if (status != MP_OK)
        return status;
    mp_device_download(device, g->missed + first * lists,
                       g->misses + first * lists * sizeof(uint32_t),
                       layers * lists * sizeof(uint32_t));
    if (!given)
        mp_device_download(device, g->seen + first * count,
                           g->scores + first * count * sizeof(float),
                           layers * count * sizeof(float));
    if (g->asks && layers > 1)
        mp_device_download(device, g->guessed + first * count,
                           g->guesses + first * count * sizeof(float),
                           (layers - 1) * count * sizeof(float));
    mp_device_queue_result(device, engine->tokens);
    return mp_device_finish(device);
}

/* MoE layers up to the first with a miss, of those from `first` on. */
static uint32_t count_done(const struct mp_device *device, uint32_t first)
{
    const struct mp_device_graphs *g = device->graphs;
    const uint32_t S = mp_device_slices(device), lists = device->engine->shape.layers * S;
    uint32_t i = first * S;

    while (i < lists && g->missed[i] == 0)
        i++;
    return i / S;
}

/* ---- is a graph worth it? */

/* So many MoE layers had no miss, and the one behind them had one. */
static void note_layers(struct mp_device *device, uint32_t hits, bool miss)
{
    struct mp_device_graphs *g = device->graphs;
    const uint32_t most = device->engine->shape.layers;

    g->run = hits < most - g->run ? g->run + hits : most;
    if (!miss)
        return;
    g->usual = (g->usual + g->run) / 2;
    g->run = 0;
}

/*
 * What a graph does behind a miss is thrown away, so that one that misses at every layer costs
 * half a step per layer. A graph is tried if its layers are at most REACH times those that go
 * without a miss, by the last ones or as usual. Hence a run of r layers without a miss pays for at
 * most REACH * r layers before its miss and as many after it (the mean halves with every miss).
 * Where all experts are there, the host has driven no more than 1 / REACH of a step's layers.
 */
static bool is_worth(const struct mp_device_graphs *g, uint32_t layers)
{
    return layers <= REACH * (g->run > g->usual ? g->run : g->usual);
}

/* What the host does otherwise than a graph would: experts that were loaded, or that others
 * computed. */
static uint64_t misses(const struct mp_device *device)
{
    return device->engine->counters.misses + device->elsewhere;
}

/* ---- */

/* Behind `*first_p` MoE layers: the device alone, up to a miss, and the layer that missed. */
static enum mp_status advance(struct mp_device *device, uint32_t *first_p,
                              struct mp_forward_progress *progress_p)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;
    const uint32_t first = *first_p, layers = engine->shape.layers;
    enum mp_status status = mp_engine_check_cancel(engine);
    uint32_t done, next;
    bool complete;

    if (status == MP_OK)
        status = replay(device, first);
    if (status != MP_OK)
        return status;
    done = count_done(device, first);
    status = mp_device_graph_notify(device, first, done, &next);
    if (status != MP_OK)
        return status;
    complete = done == layers && !g->taken;
    note_layers(device, next - first - !complete, !complete);
    g->counts.replays += first == 0;
    g->counts.complete += first == 0 && complete;
    g->counts.segments += first > 0;
    g->counts.thrown += layers - next + !complete;
    if (complete)
        mp_device_read_result(device, engine->tokens);
    *first_p = next;
    *progress_p = (struct mp_forward_progress){
        .started = true,
        .complete = complete,
        .layer = engine->layer_of[next - 1] + 1,
    };
    return MP_OK;
}

/* Steps of few tokens whose logits are all wanted. */
enum mp_status mp_device_graph_step(struct mp_device *device, uint32_t wanted,
                                    struct mp_forward_progress *progress_p)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;
    const uint32_t layers = engine->shape.layers;
    enum mp_status status = MP_OK;
    uint32_t first = 0;

    if (g == NULL || engine->tokens > g->tokens_max || wanted != engine->tokens)
        return MP_OK;
    if (progress_p->started) { /* by the host, with one MoE layer */
        first = engine->moe_layer[progress_p->layer - 1] + 1;
        note_layers(device, misses(device) == g->mark, misses(device) != g->mark);
    } else {
        make_graphs(device);
    }
    while (status == MP_OK && !progress_p->complete && first < layers &&
           is_worth(g, layers - first))
        status = advance(device, &first, progress_p);
    g->mark = misses(device);
    return status;
}

enum mp_status mp_device_graph_again(struct mp_device *device, uint32_t tokens,
                                     const struct mp_cuda_place_of *places)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;
    const uint64_t count = (uint64_t)engine->shape.layers * engine->shape.experts;
    mp_cu_graph_exec exec = NULL;
    enum mp_status status;

    if (g != NULL && tokens > 0 && tokens <= g->tokens_max)
        exec = segment_of(device, tokens, 0)->exec;
    if (exec == NULL)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL", "no graph of %u tokens", tokens);
    if (places != NULL) {
        mp_assert(mp_device_slices(device) == 1);
        memcpy(g->places, places, count * sizeof(g->places[0]));
        g->known = false;
        send_table(device);
    }
    status = mp_device_status(device);
    if (status == MP_OK)
        status = mp_gpu_replay(device->gpu, mp_device_stream(device), exec);
    if (status != MP_OK)
        return status;
    mp_device_download(device, engine->state.logits, device->state.logits,
                       (uint64_t)tokens * engine->config.model->vocab * sizeof(float));
    return mp_device_finish(device);
}
