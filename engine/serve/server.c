/*
 * The loop of the server: takes exchanges, lets the batcher step, ends in order. Requests and
 * replies are exchange.c's and choice.c's.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/serve/server_int.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define PREFIX_STEPS 16
#define IDLE_NS 100000000u
#define TURN_NS 1000000u

static uint64_t one_expert_bytes(const struct mp_session *session)
{
    const struct mp_shape *shape = mp_engine_shape(session->engine);

    return session->memory.expert_bytes / ((uint64_t)shape->layers * shape->experts);
}

static enum mp_status open_batcher(struct mp_server *server)
{
    const struct mp_session *session = server->config.session;
    const struct mp_memory_plan *memory = &session->memory;
    const bool shared = memory->shared_bytes > 0;
    const struct mp_batcher_config config = {
        .engine = session->engine,
        .engine_config = &session->engine_config,
        .tokenizer = session->tokenizer,
        .chunk_tokens = server->config.chunk_tokens,
        .prefix_bytes = shared
                            ? memory->shared_bytes - memory->budget_bytes - memory->sequences_bytes
                            : memory->kept_bytes,
        .prefix_step_bytes =
            shared ? mp_memory_share_step(memory->shared_bytes, one_expert_bytes(session))
                   : memory->kept_bytes / PREFIX_STEPS,
        .clock = server->config.clock,
    };

    return mp_batcher_create(&config, &server->batcher);
}

/* With --memory. */
static enum mp_status open_share(struct mp_server *server)
{
    const struct mp_memory_plan *memory = &server->config.session->memory;
    const struct mp_memory_share_config config = {
        .engine = server->config.session->engine,
        .batcher = server->batcher,
        .uses = server->config.heat != NULL ? server->config.heat->count : NULL,
        .total_bytes = memory->shared_bytes,
        .budget_bytes = memory->budget_bytes,
        .kv_bytes = memory->sequences_bytes,
        .smallest_bytes = memory->smallest_bytes,
        .full_bytes = memory->full_bytes,
        .expert_bytes = memory->expert_bytes,
    };
    enum mp_status status;

    if (memory->shared_bytes == 0 || config.uses == NULL)
        return MP_OK;
    status = mp_memory_share_create(&config, &server->share);
    /* Where prompts cannot be kept, nothing is left for them. */
    if (status == MP_OK && mp_batcher_prefixes(server->batcher) == NULL)
        status = mp_memory_share_set(server->share, memory->shared_bytes - memory->sequences_bytes);
    return status;
}

/* What other threads read. */
static void copy_numbers(struct mp_server *server)
{
    const struct mp_counters *counters = mp_engine_counters(server->config.session->engine);
    const struct mp_prefix_store *prefixes = mp_batcher_prefixes(server->batcher);

    mp_lock(&server->lock);
    if (prefixes != NULL)
        server->prefixes = *mp_prefix_store_stats(prefixes);
    if (server->share != NULL) {
        server->divided = *mp_memory_share_stats(server->share);
        server->budget_bytes = server->divided.budget_bytes;
    }
    server->batcher_stats = *mp_batcher_stats(server->batcher);
    server->counters = *counters;
    mp_unlock(&server->lock);
}

enum mp_status mp_server_create(const struct mp_server_config *config, struct mp_server **server_p)
{
    struct mp_server *server = calloc(1, sizeof(*server));
    enum mp_status status;

    if (server == NULL)
        return mp_fail_no_memory("the server", sizeof(*server));
    server->config = *config;
    mp_tools_find_words(config, &server->words);
    status = mp_heat_open(config);
    if (status == MP_OK)
        status = open_batcher(server);
    if (status == MP_OK)
        status = open_share(server);
    if (status != MP_OK) {
        mp_memory_share_destroy(server->share);
        mp_batcher_destroy(server->batcher);
        mp_heat_close(config->heat);
        free(server);
        return status;
    }
    server->budget_bytes = config->session->memory.budget_bytes;
    mp_mutex_init(&server->lock, MP_LOCK_REGION, "server");
    mp_cond_init(&server->work);
    copy_numbers(server);
    *server_p = server;
    return MP_OK;
}

void mp_server_destroy(struct mp_server *server)
{
    if (server == NULL)
        return;
    mp_memory_share_destroy(server->share);
    mp_batcher_destroy(server->batcher);
    mp_token_mask_destroy(server->mask);
    mp_heat_close(server->config.heat);
    while (server->exchanges != NULL) {
        struct mp_exchange *exchange = server->exchanges;

        server->exchanges = exchange->next;
        mp_exchange_put(exchange);
    }
    mp_cond_fini(&server->work);
    mp_mutex_fini(&server->lock);
    free(server);
}

bool mp_server_stopping(struct mp_server *server)
{
    bool stopping;

    mp_lock(&server->lock);
    stopping = server->stopping;
    mp_unlock(&server->lock);
    return stopping;
}

void mp_server_count(struct mp_server *server, enum mp_server_event event)
{
    mp_lock(&server->lock);
    server->events[event]++;
    mp_unlock(&server->lock);
}

/* ---- the loop */

static bool is_late(const struct mp_exchange *exchange)
{
    const struct mp_server_config *c = &exchange->server->config;
    const uint64_t now = mp_clock_now_ns(c->clock);

    return now - exchange->begun_ns > c->answer_s * UINT64_C(1000000000);
}

/* An exchange that something is to be done for, marked as taken; NULL: none. The oldest new one
 * comes first. */
static struct mp_exchange *next_exchange(struct mp_server *server, bool *new_p)
{
    struct mp_exchange **at, **found = NULL, *exchange;

    mp_lock(&server->lock);
    for (at = &server->exchanges; *at != NULL; at = &(*at)->next) {
        if (!(*at)->submitted || (*at)->canceled || (*at)->ended || is_late(*at))
            found = at;
    }
    exchange = found != NULL ? *found : NULL;
    *new_p = false;
    if (exchange != NULL) {
        const bool over = exchange->canceled || exchange->ended || is_late(exchange);

        *new_p = !over;
        if (!exchange->submitted)
            server->waiting -= exchange->choice_count;
        exchange->submitted = true;
        if (over)
            *found = exchange->next;
    }
    mp_unlock(&server->lock);
    return exchange;
}

static void start_exchange(struct mp_exchange *exchange)
{
    enum mp_status status;

    switch (exchange->request.kind) {
    case MP_REQUEST_STATE: status = mp_state_reply(exchange); break;
    case MP_REQUEST_BUDGET: status = mp_budget_reply(exchange); break;
    default: status = mp_choices_submit(exchange); break;
    }
    if (status != MP_OK)
        mp_exchange_fail(exchange, mp_error_last());
}

/* It has ended, nobody waits for it, or it takes too long. */
static void drop_exchange(struct mp_exchange *exchange)
{
    const struct mp_error late = { MP_ERR_CANCELED, "E_SERVER_TIME",
                                   "the answer took longer than the server allows" };
    bool open;

    mp_choices_cancel(exchange);
    mp_lock(&exchange->server->lock);
    open = !exchange->ended && !exchange->canceled;
    mp_unlock(&exchange->server->lock);
    if (open)
        mp_exchange_fail(exchange, &late);
    mp_exchange_put(exchange);
}

static void take_exchanges(struct mp_server *server)
{
    struct mp_exchange *exchange;
    bool is_new;

    while ((exchange = next_exchange(server, &is_new)) != NULL) {
        if (is_new)
            start_exchange(exchange);
        else
            drop_exchange(exchange);
    }
}

/* Nothing to compute: reads that are under way end, then a wait for work. */
static void wait_for_work(struct mp_server *server, bool *resting)
{
    if (!*resting)
        mp_pager_pause(mp_engine_pager(server->config.session->engine));
    *resting = true;
    mp_lock(&server->lock);
    if (server->exchanges == NULL)
        (void)mp_cond_wait_for(&server->work, &server->lock, IDLE_NS);
    mp_unlock(&server->lock);
}

/* Other ranks are answered in turns with looks for work. */
static enum mp_status rest(struct mp_server *server, bool *resting)
{
    if (server->config.idle != NULL)
        return server->config.idle(server->config.ctx, TURN_NS);
    wait_for_work(server, resting);
    return MP_OK;
}

/* A failed step has ended its answers with its error; others can go on, but not without a device.
 */
static enum mp_status step(struct mp_server *server)
{
    enum mp_status status = mp_batcher_step(server->batcher);

    if (status == MP_OK && server->share != NULL)
        status = mp_memory_share_look(server->share);
    if (status == MP_OK)
        return MP_OK;
    mp_log_error("serve", "a step has failed: %s", mp_error_last()->text);
    mp_lock(&server->lock);
    server->failed_steps++;
    mp_unlock(&server->lock);
    return status == MP_ERR_DEVICE ? status : MP_OK;
}

static bool is_empty(struct mp_server *server)
{
    bool empty;

    mp_lock(&server->lock);
    empty = server->exchanges == NULL;
    mp_unlock(&server->lock);
    return empty && !mp_batcher_busy(server->batcher);
}

/* From the first look after the stop. Nothing is accepted any more; what was, may end. */
static bool has_stopped(struct mp_server *server, uint64_t *until_ns)
{
    const struct mp_server_config *c = &server->config;
    const uint64_t now = mp_clock_now_ns(c->clock);

    if (*until_ns == 0) {
        *until_ns = now + c->grace_s * UINT64_C(1000000000);
        mp_lock(&server->lock);
        server->stopping = true;
        mp_unlock(&server->lock);
        c->on_stopping(c->ctx);
    }
    return is_empty(server) || now >= *until_ns;
}

/* All that is left ends with an error. */
static void end_all(struct mp_server *server)
{
    mp_lock(&server->lock);
    server->stopping = true;
    mp_unlock(&server->lock);
    take_exchanges(server);
    mp_batcher_interrupt(server->batcher);
    take_exchanges(server);
}

enum mp_status mp_server_run(struct mp_server *server)
{
    const struct mp_server_config *c = &server->config;
    enum mp_status status = MP_OK;
    uint64_t until_ns = 0;
    bool resting = false;

    while (status == MP_OK) {
        if (*c->stop && has_stopped(server, &until_ns))
            break;
        if (*c->reload) {
            *c->reload = 0;
            c->on_reload(c->ctx);
        }
        take_exchanges(server);
        copy_numbers(server);
        if (mp_batcher_busy(server->batcher)) {
            resting = false;
            status = step(server);
        } else {
            status = rest(server, &resting);
        }
    }
    end_all(server);
    copy_numbers(server);
    return status;
}
