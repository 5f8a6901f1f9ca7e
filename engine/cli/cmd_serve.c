/*
 * `moepager serve`: a server with OpenAI's API for one model, until a signal ends it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/batch/memory_share.h"
#include "engine/cli/cluster_rank.h"
#include "engine/cli/commands.h"
#include "engine/serve/http.h"
#include "engine/serve/server.h"
#include "engine/session/progress.h"
#include "engine/text/chat.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define SEND_S 10u /* for replies that are complete, when the server ends */
#define TLS_FILE_BYTES_MAX (1u << 20)
#define MIB 1048576.0

struct serve {
    const struct mp_args *args;
    const struct mp_settings *settings;
    struct mp_session session;
    struct mp_cluster_rank cluster; /* with --cluster */
    struct mp_progress_bar bar;
    struct mp_chat *chat;
    char chat_error[512];
    struct mp_heat heat;
    struct mp_server *server;
    struct mp_http_config http_config;
    char *tls_cert, *tls_key;
    struct mp_http *http;
};

static volatile sig_atomic_t reload;

static void on_hangup(int number)
{
    (void)number;
    reload = 1;
}

/* The last part of the path names the model. */
static const char *model_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static struct mp_sampling choose_sampling(const struct serve *serve)
{
    const struct mp_args *args = serve->args;

    return (struct mp_sampling){
        .temperature = args->temperature >= 0 ? args->temperature : 0,
        .top_k = args->top_k != UINT64_MAX ? (uint32_t)args->top_k : 0,
        .top_p = args->top_p >= 0 ? args->top_p : 1,
        .seed = serve->settings->run.seed,
    };
}

/* A key or certificate, whole. */
static enum mp_status read_pem(const char *path, char **text_p)
{
    size_t bytes = 0;
    const enum mp_status status = mp_read_text(path, text_p, &bytes);

    return status == MP_OK && bytes > TLS_FILE_BYTES_MAX
               ? mp_fail(MP_ERR_CONFIG, "E_TLS", "a certificate or key is larger than %u bytes",
                         TLS_FILE_BYTES_MAX)
               : status;
}

static enum mp_status read_pair(const struct mp_args *args, char **cert_p, char **key_p)
{
    const enum mp_status status = read_pem(args->tls_cert, cert_p);

    return status == MP_OK ? read_pem(args->tls_key, key_p) : status;
}

static enum mp_status read_files(struct serve *serve)
{
    const struct mp_args *args = serve->args;
    enum mp_status status = MP_OK;

    if ((args->tls_cert != NULL) != (args->tls_key != NULL))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--tls-cert and --tls-key need each other");
    if (args->api_key_file != NULL)
        status = mp_keys_load(args->api_key_file, &serve->http_config.keys);
    if (status == MP_OK && args->tls_cert != NULL)
        status = read_pair(args, &serve->tls_cert, &serve->tls_key);
    return status;
}

/* A model without a chat format serves everything else. */
static enum mp_status open_chat(struct serve *serve)
{
    const enum mp_status status = mp_open_chat(serve->args, &serve->chat);

    if (status != MP_ERR_MODEL || serve->args->chat_template != NULL)
        return status;
    snprintf(serve->chat_error, sizeof(serve->chat_error), "%s", mp_error_last()->text);
    mp_log_warn("serve", "/v1/chat/completions is refused: %s", serve->chat_error);
    return MP_OK;
}

/* ---- one rank of several */

static enum mp_status make_rank(void *ctx, struct mp_engine_config *config)
{
    struct serve *serve = ctx;

    return mp_cluster_rank_make(&serve->cluster, config, NULL, NULL);
}

static enum mp_status answer_ranks(void *ctx, uint64_t ns)
{
    struct serve *serve = ctx;

    return mp_rank_idle(serve->cluster.rank, mp_clock_now_ns(mp_clock_monotonic()) + ns);
}

static enum mp_status open_cluster(struct serve *serve)
{
    const struct mp_args *args = serve->args;

    if (args->cluster == NULL)
        return args->places == NULL ? MP_OK
                                    : mp_fail(MP_ERR_CONFIG, "E_USAGE", "--place needs --cluster");
    if (args->memory > 0 || serve->settings->run.budget.kind != MP_SHARE_AUTO)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--cluster says what experts get; leave out --memory and --budget");
    return mp_cluster_rank_open(args, serve->settings, &serve->cluster);
}

static enum mp_status join_cluster(struct serve *serve)
{
    const uint64_t budget = serve->session.engine_config.budget_bytes;
    struct mp_memory_plan *memory = &serve->session.memory;

    if (serve->cluster.rank == NULL)
        return MP_OK;
    memory->budget_bytes = budget < memory->full_bytes ? budget : memory->full_bytes;
    return mp_rank_join(serve->cluster.rank, serve->session.engine);
}

/* The others may have answers to end, which need this rank's experts. */
static enum mp_status leave_cluster(struct serve *serve)
{
    struct mp_rank_report report;
    enum mp_status status;

    if (serve->cluster.rank == NULL)
        return MP_OK;
    status = mp_rank_idle(serve->cluster.rank, UINT64_MAX);
    mp_rank_report(serve->cluster.rank, &report);
    fprintf(stderr,
            "rank %u of %u: asked others %" PRIu64 " times, answered %" PRIu64
            ", keeps %u experts, lost %u ranks\n",
            serve->cluster.transport->rank, serve->cluster.transport->ranks, report.calls,
            report.served, report.kept, report.lost);
    return status;
}

static enum mp_status open_session(struct serve *serve)
{
    const struct mp_progress progress = mp_loading_progress(&serve->bar);
    const struct mp_session_config config = {
        .model = serve->args->model,
        .sequences = serve->args->batch != 0 ? (uint32_t)serve->args->batch : 8,
        .tokenizer = true,
        .progress = &progress,
        .clock = mp_clock_monotonic(),
        .probe = true,
        .command = "serve",
        .kept_bytes = serve->args->prefix_memory,
        .memory_bytes = serve->args->memory,
        .routed = mp_heat_routed,
        .routed_ctx = &serve->heat,
        .before_engine = serve->cluster.transport != NULL ? make_rank : NULL,
        .before_engine_ctx = serve,
    };
    enum mp_status status;

    mp_progress_bar_begin(&serve->bar, "loading", NULL, config.clock);
    status = mp_session_open(serve->settings, &config, &serve->session);
    mp_progress_bar_end(&serve->bar);
    return status == MP_OK ? join_cluster(serve) : status;
}

static void reload_keys(struct serve *serve)
{
    struct mp_keys *keys = NULL;

    if (serve->args->api_key_file == NULL)
        return;
    if (mp_keys_load(serve->args->api_key_file, &keys) != MP_OK) {
        mp_log_error("serve", "the keys stay as they were: %s", mp_error_last()->text);
        return;
    }
    mp_http_set_keys(serve->http, keys);
    mp_log_info("serve", "read the keys again");
}

/* With what was read before, nothing changes. */
static enum mp_status renew(struct serve *serve, char **cert, char **key)
{
    char *cert_before = serve->tls_cert, *key_before = serve->tls_key;
    enum mp_status status = read_pair(serve->args, cert, key);

    if (status != MP_OK)
        return status;
    if (strcmp(*cert, cert_before) == 0 && strcmp(*key, key_before) == 0)
        return MP_OK;
    status = mp_http_renew(serve->http, *cert, *key);
    if (status != MP_OK)
        return status;
    serve->tls_cert = *cert;
    serve->tls_key = *key;
    *cert = cert_before;
    *key = key_before;
    return MP_OK;
}

static void reload_tls(struct serve *serve)
{
    char *cert = NULL, *key = NULL;

    if (serve->args->tls_cert == NULL)
        return;
    if (renew(serve, &cert, &key) == MP_OK)
        mp_log_info("serve", "read the certificate again");
    else
        mp_log_error("serve", "the certificate and key stay as they were: %s",
                     mp_error_last()->text);
    free(cert);
    free(key);
}

static void on_reload(void *ctx)
{
    reload_keys(ctx);
    reload_tls(ctx);
}

static void on_stopping(void *ctx)
{
    struct serve *serve = ctx;

    fputs("stopping: answers in progress may end; once more to stop at once\n", stderr);
    mp_http_refuse(serve->http);
}

static enum mp_status open_server(struct serve *serve)
{
    const struct mp_args *args = serve->args;
    const struct mp_server_config config = {
        .session = &serve->session,
        .heat = &serve->heat,
        .chat = serve->chat,
        .chat_error = serve->chat_error,
        .model_name = model_name(args->model),
        .sampling = choose_sampling(serve),
        .max_tokens = (uint32_t)args->max_tokens,
        .waiting_max = (uint32_t)args->queue,
        .chunk_tokens = (uint32_t)args->chunk_tokens,
        .grace_s = (uint32_t)args->grace_s,
        .answer_s = (uint32_t)args->answer_s,
        .clock = mp_clock_monotonic(),
        .idle = serve->cluster.rank != NULL ? answer_ranks : NULL,
        .fixed_budget = serve->cluster.rank != NULL,
        .stop = &mp_interrupted,
        .reload = &reload,
        .on_reload = on_reload,
        .on_stopping = on_stopping,
        .ctx = serve,
    };
    enum mp_status status = mp_server_create(&config, &serve->server);

    if (status != MP_OK)
        return status;
    serve->http_config.server = serve->server;
    status = mp_http_start(&serve->http_config, &serve->http);
    if (status == MP_OK)
        serve->http_config.keys = NULL;
    return status;
}

static void fill_http_config(struct serve *serve)
{
    const struct mp_args *args = serve->args;
    struct mp_http_config *c = &serve->http_config;

    c->host = args->host != NULL ? args->host : "127.0.0.1";
    c->port = (uint16_t)args->port;
    c->tls_cert = serve->tls_cert;
    c->tls_key = serve->tls_key;
    c->request_bytes_max = args->request_bytes;
    c->connections_max = (uint32_t)args->connections;
    c->idle_s = (uint32_t)args->idle_s;
}

/* All that can be refused is, before gigabytes are read. */
static enum mp_status open_all(struct serve *serve)
{
    const struct mp_sampling sampling = choose_sampling(serve);
    enum mp_status status = mp_sampling_check(&sampling);

    if (status == MP_OK)
        status = read_files(serve);
    if (status == MP_OK)
        status = open_cluster(serve);
    fill_http_config(serve);
    if (status == MP_OK)
        status = mp_http_check(&serve->http_config);
    if (status == MP_OK)
        status = open_chat(serve);
    if (status == MP_OK)
        status = open_session(serve);
    return status == MP_OK ? open_server(serve) : status;
}

static void print_memory(struct mp_server *server)
{
    struct mp_memory_share_stats m;

    if (!mp_server_memory(server, &m))
        return;
    fprintf(stderr,
            "memory at the end: experts %.1f MiB, kept prompts %.1f, KV cache %.1f; moved %" PRIu64
            " times to experts, %" PRIu64 " to kept prompts, %" PRIu64 " to sequences and %" PRIu64
            " back\n",
            (double)m.budget_bytes / MIB, (double)m.prefix_bytes / MIB, (double)m.kv_bytes / MIB,
            m.to_experts, m.to_prefixes, m.to_sequences, m.from_sequences);
}

enum mp_status mp_cmd_serve(const struct mp_args *args, const struct mp_settings *settings)
{
    static struct serve serve;
    const struct sigaction hangup = { .sa_handler = on_hangup };
    enum mp_status status = mp_require_model(args);

    if (status != MP_OK)
        return status;
    serve = (struct serve){ .args = args, .settings = settings };
    sigaction(SIGHUP, &hangup, NULL);
    status = open_all(&serve);
    if (status == MP_OK) {
        fprintf(stderr, "serving %s at http%s://%s%s%s:%u\n", model_name(args->model),
                serve.tls_cert != NULL ? "s" : "",
                strchr(serve.http_config.host, ':') != NULL ? "[" : "", serve.http_config.host,
                strchr(serve.http_config.host, ':') != NULL ? "]" : "", mp_http_port(serve.http));
        status = mp_server_run(serve.server);
        print_memory(serve.server);
    }
    mp_http_stop(serve.http, SEND_S);
    mp_server_destroy(serve.server);
    if (status == MP_OK)
        status = leave_cluster(&serve);
    mp_session_close(&serve.session);
    mp_cluster_rank_close(&serve.cluster);
    mp_chat_destroy(serve.chat);
    mp_keys_destroy(serve.http_config.keys);
    free(serve.tls_cert);
    free(serve.tls_key);
    return status;
}
