/*
 * What can be seen of a server: metrics, the list of models, the map of experts; and the one thing
 * that can be changed, the budget.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/server_int.h"
#include "policy/pager/pager.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"
#include "vmm/options/opt.h"

static const double bounds[MP_HISTOGRAM_BOUNDS] = { 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300 };

void mp_histogram_add(struct mp_histogram *histogram, uint64_t ns)
{
    const double seconds = (double)ns * 1e-9;
    unsigned i = 0;

    while (i < MP_HISTOGRAM_BOUNDS && seconds > bounds[i])
        i++;
    histogram->counts[i]++;
    histogram->sum += seconds;
}

void mp_heat_routed(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k, const uint32_t *experts,
                    const float *weights)
{
    struct mp_heat *heat = ctx;

    (void)weights;
    for (size_t i = 0; heat->count != NULL && i < (size_t)tokens * k; i++)
        heat->count[(size_t)layer * heat->experts + experts[i]]++;
}

enum mp_status mp_heat_open(const struct mp_server_config *config)
{
    const struct mp_shape *shape = mp_engine_shape(config->session->engine);
    const size_t count = (size_t)shape->layers * shape->experts;

    if (config->heat == NULL)
        return MP_OK;
    config->heat->experts = shape->experts;
    config->heat->count = calloc(count, sizeof(uint64_t));
    return config->heat->count != NULL
               ? MP_OK
               : mp_fail_no_memory("the map of experts", count * sizeof(uint64_t));
}

void mp_heat_close(struct mp_heat *heat)
{
    if (heat == NULL)
        return;
    free(heat->count);
    heat->count = NULL;
}

/* ---- metrics */

static void put_number(FILE *out, const char *name, const char *type, const char *help,
                       uint64_t value)
{
    fprintf(out, "# HELP moepager_%s %s\n# TYPE moepager_%s %s\nmoepager_%s %" PRIu64 "\n", name,
            help, name, type, name, value);
}

static void put_histogram(FILE *out, const char *name, const char *help,
                          const struct mp_histogram *histogram)
{
    char text[MP_F64_BYTES];
    uint64_t count = 0;

    fprintf(out, "# HELP moepager_%s %s\n# TYPE moepager_%s histogram\n", name, help, name);
    for (unsigned i = 0; i < MP_HISTOGRAM_BOUNDS; i++) {
        count += histogram->counts[i];
        fprintf(out, "moepager_%s_bucket{le=\"%s\"} %" PRIu64 "\n", name,
                mp_format_f64(bounds[i], text), count);
    }
    count += histogram->counts[MP_HISTOGRAM_BOUNDS];
    fprintf(out,
            "moepager_%s_bucket{le=\"+Inf\"} %" PRIu64 "\nmoepager_%s_sum %s\n"
            "moepager_%s_count %" PRIu64 "\n",
            name, count, name, mp_format_f64(histogram->sum, text), name, count);
}

static void put_counters(FILE *out, const struct mp_counters *counters)
{
#define COUNTER(field, key, text) put_number(out, key "_total", "counter", text, counters->field);
#define GAUGE(field, key, text) put_number(out, key, "gauge", text, counters->field);
    MP_COUNTERS(COUNTER, GAUGE)
#undef COUNTER
#undef GAUGE
}

static void put_batcher(FILE *out, const struct mp_batcher_stats *s, uint32_t waiting)
{
    put_number(out, "answers_waiting", "gauge", "answers that wait for a sequence",
               s->waiting + waiting);
    put_number(out, "answers_running", "gauge", "answers that have a sequence", s->running);
    put_number(out, "answers_paused", "gauge", "of them, those that wait for memory", s->paused);
    put_number(out, "answers_put_off_total", "counter",
               "times that an answer has lost its sequence to an older one", s->put_off);
    put_number(out, "answers_total", "counter", "answers that have ended", s->ended);
    put_number(out, "answers_failed_total", "counter", "of them, those that failed", s->failed);
    put_number(out, "answers_canceled_total", "counter", "answers that nobody waited for",
               s->canceled);
    put_number(out, "prompt_tokens_total", "counter", "tokens of prompts that were processed",
               s->prompt_tokens);
    put_number(out, "reused_tokens_total", "counter",
               "tokens of prompts whose keys and values were there already", s->reused_tokens);
    put_number(out, "generated_tokens_total", "counter", "tokens that were generated",
               s->generated_tokens);
    put_number(out, "steps_total", "counter", "batches of the engine", s->steps);
    put_number(out, "step_ns_total", "counter", "time of these batches", s->step_ns);
}

static uint64_t kept_budget(const struct mp_server *server)
{
    return server->share != NULL ? server->divided.prefix_bytes
                                 : server->config.session->memory.kept_bytes;
}

static uint64_t kv_budget(const struct mp_server *server)
{
    return server->share != NULL ? server->divided.kv_bytes
                                 : server->config.session->memory.kv_bytes;
}

static void put_metrics(FILE *out, struct mp_server *server)
{
    const struct mp_memory_plan *memory = &server->config.session->memory;

    mp_lock(&server->lock);
    put_number(out, "requests_total", "counter", "requests that arrived",
               server->events[MP_SERVER_REQUEST]);
    put_number(out, "requests_refused_total", "counter", "of them, those that were refused",
               server->events[MP_SERVER_REFUSED]);
    put_number(out, "clients_gone_total", "counter", "clients that left before their answer ended",
               server->events[MP_SERVER_GONE]);
    put_batcher(out, &server->batcher_stats, server->waiting);
    put_number(out, "steps_failed_total", "counter", "batches that failed", server->failed_steps);
    put_number(out, "budget_bytes", "gauge", "bytes that experts may take", server->budget_bytes);
    put_number(out, "expert_bytes", "gauge", "bytes of all experts", memory->expert_bytes);
    put_number(out, "weights_bytes", "gauge", "bytes of all other weights", memory->weights_bytes);
    put_number(out, "kv_bytes", "gauge", "bytes of the KV cache at most", memory->kv_bytes);
    put_number(out, "kv_budget_bytes", "gauge", "of them, bytes that sequences may take now",
               kv_budget(server));
    put_number(out, "kv_reserved_bytes", "gauge",
               "of them, bytes that answers need at most, or free sequences hold",
               server->batcher_stats.kv_bytes);
    put_number(out, "kept_budget_bytes", "gauge", "bytes that kept prompts may take",
               kept_budget(server));
    put_number(out, "prefix_bytes", "gauge", "bytes of prompts that no sequence holds any more",
               server->prefixes.bytes);
    put_number(out, "memory_to_experts_total", "counter",
               "steps of memory that went from kept prompts to experts",
               server->divided.to_experts);
    put_number(out, "memory_to_prefixes_total", "counter",
               "steps of memory that went from experts to kept prompts",
               server->divided.to_prefixes);
    put_number(out, "memory_to_sequences_total", "counter",
               "times that sequences got memory of experts or kept prompts",
               server->divided.to_sequences);
    put_number(out, "memory_from_sequences_total", "counter",
               "times that sequences gave memory back", server->divided.from_sequences);
    put_number(out, "prefix_tokens_total", "counter", "tokens of prompts that were found there",
               server->prefixes.found_tokens);
    put_histogram(out, "wait_seconds", "time until an answer had a sequence", &server->waited);
    put_histogram(out, "first_token_seconds", "time until an answer's first token", &server->first);
    put_histogram(out, "answer_seconds", "time until an answer ended", &server->all);
    put_counters(out, &server->counters);
    mp_unlock(&server->lock);
}

bool mp_server_memory(struct mp_server *server, struct mp_memory_share_stats *stats_p)
{
    if (server->share == NULL)
        return false;
    mp_lock(&server->lock);
    *stats_p = server->divided;
    mp_unlock(&server->lock);
    return true;
}

enum mp_status mp_server_metrics(struct mp_server *server, char **text_p, size_t *bytes_p)
{
    FILE *out = open_memstream(text_p, bytes_p);

    if (out == NULL)
        return mp_fail_no_memory("metrics", 0);
    put_metrics(out, server);
    if (fclose(out) == 0)
        return MP_OK;
    free(*text_p);
    return mp_fail_no_memory("metrics", *bytes_p);
}

const char *mp_server_model_name(const struct mp_server *server)
{
    return server->config.model_name;
}

static void put_model(struct mp_json_out *json, const struct mp_server *server)
{
    mp_json_put_string(json, "id", server->config.model_name);
    mp_json_put_string(json, "object", "model");
    mp_json_put_u64(json, "created", 0);
    mp_json_put_string(json, "owned_by", "moepager");
    mp_json_put_u64(json, "context", server->config.session->engine_config.ctx);
}

enum mp_status mp_server_model(struct mp_server *server, char **text_p, size_t *bytes_p)
{
    struct mp_writing w;
    enum mp_status status = mp_writing_begin(&w, false);

    if (status != MP_OK)
        return status;
    mp_json_object_begin(&w.json, NULL);
    put_model(&w.json, server);
    mp_json_object_end(&w.json);
    status = mp_writing_end(&w);
    *text_p = w.text;
    *bytes_p = w.bytes;
    return status;
}

enum mp_status mp_server_models(struct mp_server *server, char **text_p, size_t *bytes_p)
{
    struct mp_writing w;
    enum mp_status status = mp_writing_begin(&w, false);

    if (status != MP_OK)
        return status;
    mp_json_object_begin(&w.json, NULL);
    mp_json_put_string(&w.json, "object", "list");
    mp_json_array_begin(&w.json, "data");
    mp_json_object_begin(&w.json, NULL);
    put_model(&w.json, server);
    mp_json_object_end(&w.json);
    mp_json_array_end(&w.json);
    mp_json_object_end(&w.json);
    status = mp_writing_end(&w);
    *text_p = w.text;
    *bytes_p = w.bytes;
    return status;
}

/* ---- the map of experts */

/* One character per expert: 0 not there, 1 on its way, 2 there. */
static enum mp_status put_residents(struct mp_json_out *json, struct mp_pager *pager,
                                    const struct mp_shape *shape)
{
    const uint32_t experts = shape->experts;
    uint8_t *there = malloc(3 * (size_t)experts);
    uint8_t *coming;
    char *text;

    if (there == NULL)
        return mp_fail_no_memory("the map of experts", 3 * (uint64_t)experts);
    coming = there + experts;
    text = (char *)coming + experts;
    mp_json_array_begin(json, "residents");
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        mp_pager_residents(pager, layer, false, there);
        mp_pager_residents(pager, layer, true, coming);
        for (uint32_t e = 0; e < experts; e++)
            text[e] = (char)('0' + (there[e] ? 2 : coming[e]));
        mp_json_put_string_n(json, NULL, text, experts);
    }
    mp_json_array_end(json);
    free(there);
    return MP_OK;
}

static void put_heat(struct mp_json_out *json, const struct mp_heat *heat, uint32_t layers)
{
    mp_json_array_begin(json, "uses");
    for (uint32_t layer = 0; heat != NULL && layer < layers; layer++) {
        mp_json_array_begin(json, NULL);
        for (uint32_t e = 0; e < heat->experts; e++)
            mp_json_put_u64(json, NULL, heat->count[(size_t)layer * heat->experts + e]);
        mp_json_array_end(json);
    }
    mp_json_array_end(json);
}

static void put_totals(struct mp_json_out *json, struct mp_server *server)
{
    const struct mp_batcher_stats *stats = mp_batcher_stats(server->batcher);
    const struct mp_session *session = server->config.session;
    const struct mp_counters *counters = mp_engine_counters(session->engine);

    mp_json_put_string(json, "model", server->config.model_name);
    mp_json_put_u64(json, "layers", mp_engine_shape(session->engine)->layers);
    mp_json_put_u64(json, "experts", mp_engine_shape(session->engine)->experts);
    mp_json_put_u64(json, "budget_bytes", server->budget_bytes);
    mp_json_put_u64(json, "smallest_bytes", session->memory.smallest_bytes);
    mp_json_put_u64(json, "full_bytes", session->memory.full_bytes);
    mp_json_put_u64(json, "expert_bytes", session->memory.expert_bytes);
    mp_json_put_u64(json, "prefix_bytes", server->prefixes.bytes);
    mp_json_put_u64(json, "prefix_budget_bytes", kept_budget(server));
    mp_json_put_u64(json, "kv_bytes", stats->kv_bytes);
    mp_json_put_u64(json, "kv_budget_bytes", kv_budget(server));
    mp_json_put_u64(json, "running", stats->running);
    mp_json_put_u64(json, "waiting", stats->waiting);
    mp_json_put_u64(json, "generated_tokens", stats->generated_tokens);
    mp_json_put_u64(json, "step_ns", stats->step_ns);
    mp_counters_json(counters, json, "counters");
}

static enum mp_status reply(struct mp_exchange *exchange, struct mp_writing *w,
                            enum mp_status status)
{
    if (status != MP_OK) {
        fclose(w->file);
        free(w->text);
        return status;
    }
    mp_json_object_end(&w->json);
    status = mp_writing_end(w);
    if (status != MP_OK)
        return status;
    (void)mp_exchange_write(exchange, w->text, w->bytes);
    free(w->text);
    mp_exchange_finish(exchange, 200);
    return MP_OK;
}

enum mp_status mp_state_reply(struct mp_exchange *exchange)
{
    struct mp_server *server = exchange->server;
    struct mp_engine *engine = server->config.session->engine;
    struct mp_writing w;
    enum mp_status status = mp_writing_begin(&w, false);

    if (status != MP_OK)
        return status;
    mp_json_object_begin(&w.json, NULL);
    put_totals(&w.json, server);
    put_heat(&w.json, server->config.heat, mp_engine_shape(engine)->layers);
    status = put_residents(&w.json, mp_engine_pager(engine), mp_engine_shape(engine));
    return reply(exchange, &w, status);
}

/* ---- the budget */

static enum mp_status read_budget(const char *text, uint64_t whole_bytes, uint64_t *bytes_p)
{
    const struct mp_opt opt = { .name = "budget", .kind = MP_OPT_SHARE, .max = UINT64_MAX };
    char quoted[MP_QUOTE_BYTES];
    struct mp_share share;

    if (!mp_opt_parse(&opt, text, &share) || share.kind == MP_SHARE_AUTO)
        return mp_fail(MP_ERR_CONFIG, "E_REQUEST",
                       "'budget' of the request: got '%s', need a size, a share such as 25%% or "
                       "all",
                       mp_quote(quoted, text, strlen(text)));
    if (mp_share_seems_percent(&share))
        return mp_fail(MP_ERR_CONFIG, "E_BUDGET_SMALL",
                       "'budget' of the request: %" PRIu64 " bytes; did you mean %" PRIu64 "%%?",
                       share.amount, share.amount);
    *bytes_p = share.kind == MP_SHARE_ALL ? UINT64_MAX : mp_share_resolve(&share, whole_bytes, 0);
    return MP_OK;
}

enum mp_status mp_budget_reply(struct mp_exchange *exchange)
{
    struct mp_server *server = exchange->server;
    const struct mp_session *session = server->config.session;
    struct mp_space_plan plan;
    struct mp_writing w;
    uint64_t bytes = 0;
    enum mp_status status =
        read_budget(exchange->request.budget, session->memory.expert_bytes, &bytes);

    if (status == MP_OK && server->config.fixed_budget)
        status = mp_fail(MP_ERR_CONFIG, "E_REQUEST",
                         "'budget' of the request: that of a cluster's rank is in its --cluster");
    if (status == MP_OK)
        status = server->share != NULL ? mp_memory_share_set(server->share, bytes)
                                       : mp_engine_set_budget(session->engine, bytes);
    if (status != MP_OK)
        return status;
    mp_engine_plan(session->engine, &plan);
    mp_lock(&server->lock);
    server->budget_bytes = bytes < plan.full_bytes ? bytes : plan.full_bytes;
    if (server->share != NULL)
        server->divided = *mp_memory_share_stats(server->share);
    mp_unlock(&server->lock);
    status = mp_writing_begin(&w, false);
    if (status != MP_OK)
        return status;
    mp_json_object_begin(&w.json, NULL);
    mp_json_put_u64(&w.json, "budget_bytes", server->budget_bytes);
    return reply(exchange, &w, MP_OK);
}
