/*
 * The server with its HTTP in one process: a request that arrives while the n-th allocation fails,
 * for each n, gets an answer, an error, or a closed connection; the next request gets what it would
 * have got without. Then starting and stopping under the same failures, and daemons that take over
 * from one another, as for a new certificate (here without TLS).
 */
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/serve/http.h"
#include "engine/serve/http_library.h"
#include "engine/serve/server.h"
#include "tests/model/harness.h"
#include "tests/model/http_client.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

#define TINY "models/tiny-moe"
#define CALLS (FAULT_ALLOCATIONS | FAULT_BIT(open_memstream) | FAULT_BIT(fopen) | FAULT_BIT(fstat))
#define REPLY_BYTES 65536

/* With calls of tools in the style of Hermes. */
static const char chatml[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <tool_call> #}";

static struct harness h;
static struct mp_session session;
static struct mp_chat *chat;
static struct mp_heat heat;
static volatile sig_atomic_t stop, reload;
static char key_file[sizeof(test_tmpdir_path) + 16];

static void nothing(void *ctx)
{
    (void)ctx;
}

static void open_session(void)
{
    struct harness_options options = harness_defaults(TINY);

    options.sequences = 2;
    options.ctx = 128;
    options.tokens_max = 32;
    harness_open(&options, &h);
    session.engine = h.engine;
    session.engine_config = h.config;
    session.model = h.model;
    CHECK_EQ(mp_tokenizer_load(TINY, &session.tokenizer), MP_OK);
    CHECK_EQ(mp_chat_load_as(TINY, "chatml", chatml, sizeof(chatml) - 1, &chat), MP_OK);
}

static struct mp_server_config server_config(void)
{
    return (struct mp_server_config){
        .session = &session,
        .heat = &heat,
        .chat = chat,
        .model_name = "tiny",
        .sampling = { .top_p = 1 },
        .max_tokens = 8,
        .waiting_max = 8,
        .chunk_tokens = 16,
        .grace_s = 10,
        .answer_s = 60,
        .clock = mp_clock_monotonic(),
        .stop = &stop,
        .reload = &reload,
        .on_reload = nothing,
        .on_stopping = nothing,
    };
}

/* ---- a client */

static const char *ask(uint16_t port, const char *line, const char *body)
{
    static char reply[REPLY_BYTES];

    http_ask(port, line, body, reply, sizeof(reply));
    return reply;
}

static const struct {
    const char *line, *body, *shows;
} requests[] = {
    { "POST /v1/completions",
      "{\"prompt\":[\"def\",\"a\"],\"n\":2,\"max_tokens\":4,\"stop\":\"zz\"}", "\"index\":3" },
    { "POST /v1/completions", "{\"prompt\":[[5,6],[7]],\"max_tokens\":3}", "\"total_tokens\":9" },
    { "POST /v1/chat/completions",
      "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}],"
      "\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
      "data: [DONE]" },
    { "POST /v1/chat/completions",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":8,\"response_format\":"
      "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"enum\":[true,[]]}}}}",
      "\"finish_reason\":\"" },
    { "POST /v1/completions", "{\"prompt\":\"a\",\"max_tokens\":3,\"logprobs\":2}",
      "\"text_offset\":[0," },
    { "POST /v1/chat/completions",
      "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},{\"role\":"
      "\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
      "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"b\"}],\"tools\":[{\"type\":\"function\","
      "\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}],\"tool_choice\":"
      "\"required\",\"parallel_tool_calls\":false,\"max_tokens\":60}",
      "\"finish_reason\":" },
    { "POST /tokenize", "{\"content\":\"a b\"}", "\"tokens\":[" },
    { "POST /detokenize", "{\"tokens\":[270,271]}", "\"content\":" },
    { "GET /moepager/state", "", "\"residents\":[" },
    { "POST /moepager/budget", "{\"budget\":\"all\"}", "\"budget_bytes\":" },
    { "GET /metrics", "", "moepager_steps_total" },
    { "GET /v1/models", "", "\"tiny\"" },
    { "GET /v1/models/tiny", "", "\"tiny\"" },
    { "GET /health", "", "ok" },
    { "POST /v1/nothing", "", "E_NO_PATH" },
    { "GET /v1/completions", "", "Allow: POST\r\n" },
    { "DELETE /v1/models/tiny", "", "Allow: GET, HEAD\r\n" },
};

/* ---- requests */

static void *run_server(void *server)
{
    CHECK_EQ(mp_server_run(server), MP_OK);
    return NULL;
}

/* Random names and dates differ: only what they say is compared. */
static const char *text_of(const char *reply)
{
    const char *text = strstr(reply, "\"choices\"");

    return text != NULL ? text : reply;
}

static void sweep_request(uint16_t port, const char *line, const char *body, const char *shows)
{
    uint64_t n;

    CHECK(strstr(ask(port, line, body), shows) != NULL);
    for (n = 0;; n++) {
        const char *reply;
        bool good;

        fault_nth(CALLS, n);
        reply = ask(port, line, body);
        good = strstr(reply, shows) != NULL;
        if (fault_end() == 0) {
            CHECK(good);
            break;
        }
        CHECK(good || reply[0] == '\0' || strstr(reply, "\"error\"") != NULL ||
              strstr(reply, "HTTP/1.1 200") != NULL); /* a stream that broke off */
        CHECK(strstr(ask(port, line, body), shows) != NULL);
    }
    fprintf(stderr, "    %s: %llu allocations\n", line, (unsigned long long)n);
}

static void every_allocation_of_a_request_fails_once(void)
{
    const struct mp_server_config config = server_config();
    struct mp_http_config http_config = {
        .host = "127.0.0.1", .request_bytes_max = 4096, .connections_max = 16, .idle_s = 10
    };
    struct mp_server *server;
    struct mp_http *http;
    pthread_t loop;
    char before[1024];

    stop = 0;
    CHECK_EQ(mp_server_create(&config, &server), MP_OK);
    http_config.server = server;
    CHECK_EQ(mp_http_start(&http_config, &http), MP_OK);
    CHECK_EQ(pthread_create(&loop, NULL, run_server, server), 0);
    snprintf(before, sizeof(before), "%s",
             text_of(ask(mp_http_port(http), requests[1].line, requests[1].body)));
    for (size_t i = 0; i < MP_ARRAY_LEN(requests); i++)
        sweep_request(mp_http_port(http), requests[i].line, requests[i].body, requests[i].shows);
    /* Still the same text; what is reused differs, and stands behind it. */
    CHECK(strncmp(text_of(ask(mp_http_port(http), requests[1].line, requests[1].body)), before,
                  strcspn(before, "]")) == 0);
    stop = 1;
    CHECK_EQ(pthread_join(loop, NULL), 0);
    mp_http_stop(http, 5);
    mp_server_destroy(server);
}

/* ---- start and stop */

static void every_allocation_of_a_start_fails_once(void)
{
    const struct mp_server_config config = server_config();
    uint64_t n;

    stop = 1;
    for (n = 0;; n++) {
        struct mp_http_config http_config = {
            .host = "::1", .request_bytes_max = 4096, .connections_max = 16, .idle_s = 10
        };
        struct mp_server *server = NULL;
        struct mp_http *http = NULL;
        enum mp_status status;

        mp_error_clear();
        fault_nth(CALLS, n);
        status = mp_keys_load(key_file, &http_config.keys);
        if (status == MP_OK)
            status = mp_server_create(&config, &server);
        http_config.server = server;
        if (status == MP_OK)
            status = mp_http_start(&http_config, &http);
        if (status == MP_OK) {
            http_config.keys = NULL;
            status = mp_server_run(server);
            mp_http_refuse(http);
        }
        mp_http_stop(http, 1);
        mp_server_destroy(server);
        mp_keys_destroy(http_config.keys);
        if (fault_end() == 0) {
            if (status == MP_ERR_IO && strcmp(mp_error_last()->code, "E_LISTEN") == 0)
                SKIP("this machine has no address ::1");
            CHECK_EQ(status, MP_OK);
            break;
        }
        CHECK(status != MP_OK && mp_error_last()->status == status);
        CHECK(mp_error_last()->text[0] != '\0');
    }
    CHECK(n >= 5);
}

/* ---- one daemon after another */

#define CONNECTIONS 4
#define RENEWALS 50
#define HEALTH "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

struct renewing {
    struct mp_server *server;
    struct mp_http *http;
    pthread_t loop;
    uint16_t port;
    uint32_t fds; /* without connections */
    _Atomic bool over;
};

static struct renewing begin_renewing(uint32_t connections)
{
    struct mp_server_config config = server_config();
    struct mp_http_config http_config = {
        .host = "127.0.0.1", .request_bytes_max = 4096, .connections_max = connections, .idle_s = 60
    };
    struct renewing r = { 0 };

    stop = 0;
    config.max_tokens = 100;
    CHECK_EQ(mp_server_create(&config, &r.server), MP_OK);
    http_config.server = r.server;
    CHECK_EQ(mp_http_start(&http_config, &r.http), MP_OK);
    CHECK_EQ(pthread_create(&r.loop, NULL, run_server, r.server), 0);
    r.port = mp_http_port(r.http);
    r.fds = fault_open_fds();
    return r;
}

static void end_renewing(struct renewing *r)
{
    stop = 1;
    CHECK_EQ(pthread_join(r->loop, NULL), 0);
    mp_http_stop(r->http, 5);
    mp_server_destroy(r->server);
}

/* Connections that have ended, and daemons without any, are closed by other threads. */
static void wait_for_fds(const struct renewing *r)
{
    for (int i = 0; i < 1000 && fault_open_fds() != r->fds; i++)
        poll(NULL, 0, 10);
    CHECK_EQ(fault_open_fds(), r->fds);
}

static void check_serves(const struct renewing *r)
{
    CHECK(strstr(ask(r->port, "GET /health", ""), "\"ok\"") != NULL);
}

/* One reply on a connection that stays open; "": it was closed. */
static const char *ask_again(int fd)
{
    static char reply[1024];
    const size_t bytes = sizeof(HEALTH) - 1;
    ssize_t n = -1;

    if (send(fd, HEALTH, bytes, MSG_NOSIGNAL) == (ssize_t)bytes)
        n = recv(fd, reply, sizeof(reply) - 1, 0);
    reply[n > 0 ? n : 0] = '\0';
    return reply;
}

static void an_answer_outlives_its_daemon(void)
{
    struct renewing r = begin_renewing(CONNECTIONS);
    static char reply[REPLY_BYTES];
    const int kept = http_connect(r.port);
    size_t got = 0;
    ssize_t n;
    int fd;

    CHECK(kept >= 0 && strstr(ask_again(kept), "\"ok\"") != NULL);
    fd = http_send(r.port, "POST /v1/completions",
                   "{\"prompt\":\"def\",\"max_tokens\":90,\"ignore_eos\":true,\"stream\":true}");
    CHECK(fd >= 0 && (n = recv(fd, reply, 100, 0)) > 0);
    for (got = (size_t)n; n > 0; got += (size_t)n) {
        if (got < 8000) /* some daemons without, or with a connection at their end */
            CHECK_EQ(mp_http_renew(r.http, NULL, NULL), MP_OK);
        CHECK(got < sizeof(reply) - 1);
        n = recv(fd, reply + got, sizeof(reply) - 1 - got, 0);
        CHECK(n >= 0);
    }
    reply[got] = '\0';
    CHECK(strstr(reply, "data: [DONE]") != NULL);
    CHECK(strstr(ask_again(kept), "Connection: close") != NULL);
    CHECK_EQ(recv(kept, reply, sizeof(reply), 0), 0);
    close(kept);
    close(fd);
    check_serves(&r);
    CHECK_EQ(mp_http_port(r.http), r.port);
    wait_for_fds(&r);
    end_renewing(&r);
}

static void *ask_all_the_time(void *renewing)
{
    const struct renewing *r = renewing;
    char reply[1024];

    while (!r->over) {
        http_ask(r->port, "GET /health", "", reply, sizeof(reply));
        CHECK(strstr(reply, "\"ok\"") != NULL);
    }
    return NULL;
}

static void nobody_is_refused_meanwhile(void)
{
    struct renewing r = begin_renewing(64);
    pthread_t clients[3];

    for (size_t i = 0; i < MP_ARRAY_LEN(clients); i++)
        CHECK_EQ(pthread_create(&clients[i], NULL, ask_all_the_time, &r), 0);
    for (int i = 0; i < RENEWALS; i++) {
        CHECK_EQ(mp_http_renew(r.http, NULL, NULL), MP_OK);
        poll(NULL, 0, 2);
    }
    r.over = true;
    for (size_t i = 0; i < MP_ARRAY_LEN(clients); i++)
        CHECK_EQ(pthread_join(clients[i], NULL), 0);
    wait_for_fds(&r);
    end_renewing(&r);
}

static void all_daemons_share_the_limit(void)
{
    struct renewing r = begin_renewing(CONNECTIONS);
    int fds[CONNECTIONS];

    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = http_connect(r.port);
        CHECK(fds[i] >= 0 && strstr(ask_again(fds[i]), "\"ok\"") != NULL);
    }
    CHECK_EQ(mp_http_renew(r.http, NULL, NULL), MP_OK);
    CHECK_STR(ask(r.port, "GET /health", ""), "");
    for (int i = 0; i < CONNECTIONS; i++)
        close(fds[i]);
    wait_for_fds(&r);
    check_serves(&r);
    end_renewing(&r);
}

/* Without the socket that it was given, or, as some versions do for some failures, with it. */
static bool keeps_socket;

static struct MHD_Daemon *start_nothing(unsigned flags, uint16_t port,
                                        MHD_AcceptPolicyCallback admit, void *admit_ctx,
                                        MHD_AccessHandlerCallback answer, void *answer_ctx, ...)
{
    va_list arguments;
    const struct MHD_OptionItem *items;

    (void)flags;
    (void)port;
    (void)admit;
    (void)admit_ctx;
    (void)answer;
    va_start(arguments, answer_ctx);
    CHECK_EQ(va_arg(arguments, int), MHD_OPTION_EXTERNAL_LOGGER);
    (void)va_arg(arguments, void *);
    (void)va_arg(arguments, void *);
    CHECK_EQ(va_arg(arguments, int), MHD_OPTION_ARRAY);
    items = va_arg(arguments, const struct MHD_OptionItem *);
    CHECK_EQ(items[0].option, MHD_OPTION_LISTEN_SOCKET);
    va_end(arguments);
    if (!keeps_socket)
        CHECK_EQ(close((int)items[0].value), 0);
    return NULL;
}

static const union MHD_DaemonInfo *know_nothing(struct MHD_Daemon *daemon,
                                                enum MHD_DaemonInfoType type, ...)
{
    (void)daemon;
    (void)type;
    return NULL;
}

static MHD_socket go_on(struct MHD_Daemon *daemon)
{
    (void)daemon;
    return MHD_INVALID_SOCKET;
}

static enum MHD_Result add_no_connection(struct MHD_Daemon *daemon, MHD_socket fd,
                                         const struct sockaddr *address, socklen_t bytes)
{
    (void)daemon;
    (void)address;
    (void)bytes;
    CHECK_EQ(close(fd), 0);
    return MHD_NO;
}

static bool no_pairs;

int __real_socketpair(int domain, int type, int protocol, int pair[2]);
int __wrap_socketpair(int domain, int type, int protocol, int pair[2]);

int __wrap_socketpair(int domain, int type, int protocol, int pair[2])
{
    return no_pairs ? -1 : __real_socketpair(domain, type, protocol, pair);
}

static enum MHD_Result add_nothing(struct MHD_Response *response, const char *name,
                                   const char *value)
{
    (void)response;
    (void)name;
    (void)value;
    return MHD_NO;
}

static void check_renewal_fails(const struct renewing *r, const char *cert, const char *code)
{
    mp_error_clear();
    CHECK(mp_http_renew(r->http, cert, cert) != MP_OK);
    CHECK_STR(mp_error_last()->code, code);
    CHECK_EQ(fault_open_fds(), r->fds);
    check_serves(r);
    wait_for_fds(r);
}

static void a_renewal_that_fails_changes_nothing(void)
{
    const struct mp_http_library library = mp_mhd;
    struct renewing r = begin_renewing(CONNECTIONS);
    enum mp_status status;
    uint64_t n;

    for (n = 0;; n++) {
        fault_nth(FAULT_ALLOCATIONS | FAULT_BIT(fcntl) | FAULT_BIT(fstat), n);
        status = mp_http_renew(r.http, NULL, NULL);
        if (fault_end() == 0)
            break;
        CHECK(status != MP_OK && mp_error_last()->status == status);
        CHECK_EQ(fault_open_fds(), r.fds);
        check_serves(&r);
        wait_for_fds(&r);
    }
    CHECK(status == MP_OK && n == 3);
    wait_for_fds(&r);
    check_renewal_fails(&r, "no certificate", "E_TLS");
    mp_mhd.start_daemon = start_nothing;
    check_renewal_fails(&r, NULL, "E_TLS");
    keeps_socket = true;
    check_renewal_fails(&r, NULL, "E_TLS");
    mp_mhd = library;
    mp_mhd.get_daemon_info = know_nothing;
    check_renewal_fails(&r, NULL, "E_LISTEN");
    mp_mhd = library;
    end_renewing(&r);
}

/* Where a daemon's own thread cannot be made to quiesce it, another one does. */
static void a_daemon_is_quiesced_anyhow(void)
{
    const struct mp_http_library library = mp_mhd;
    struct renewing r = begin_renewing(CONNECTIONS);

    no_pairs = true;
    CHECK_EQ(mp_http_renew(r.http, NULL, NULL), MP_OK);
    no_pairs = false;
    wait_for_fds(&r);
    mp_mhd.add_connection = add_no_connection;
    CHECK_EQ(mp_http_renew(r.http, NULL, NULL), MP_OK);
    mp_mhd = library;
    wait_for_fds(&r);
    check_serves(&r);
    end_renewing(&r);
}

/* A daemon that goes on accepting is closed like others, and so is what asks it. */
static void what_the_library_refuses_does_no_harm(void)
{
    const struct mp_http_library library = mp_mhd;
    struct renewing r = begin_renewing(CONNECTIONS);
    int fd = http_connect(r.port);

    CHECK(fd >= 0 && strstr(ask_again(fd), "\"ok\"") != NULL);
    mp_mhd.quiesce_daemon = go_on;
    CHECK_EQ(mp_http_renew(r.http, NULL, NULL), MP_OK);
    mp_mhd.add_response_header = add_nothing;
    CHECK(strstr(ask_again(fd), "\"ok\"") != NULL);
    mp_mhd = library;
    CHECK(strstr(ask_again(fd), "Connection: close") != NULL);
    close(fd);
    wait_for_fds(&r);
    check_serves(&r);
    end_renewing(&r);
}

static void nothing_is_renewed_at_the_end(void)
{
    struct renewing r = begin_renewing(CONNECTIONS);
    const int fd = http_connect(r.port);

    CHECK(fd >= 0 && strstr(ask_again(fd), "\"ok\"") != NULL);
    CHECK_EQ(mp_http_renew(r.http, NULL, NULL), MP_OK); /* one is retired, and has a connection */
    mp_http_refuse(r.http);
    CHECK_EQ(http_connect(r.port), -1);
    mp_error_clear();
    CHECK_EQ(mp_http_renew(r.http, NULL, NULL), MP_ERR_BUSY);
    CHECK_STR(mp_error_last()->code, "E_SERVER_STOPPING");
    CHECK(strstr(ask_again(fd), "\"ok\"") != NULL);
    close(fd);
    end_renewing(&r);
}

/* ---- keys, addresses */

static void write_keys(const char *text, mode_t mode)
{
    FILE *file = fopen(key_file, "w");

    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    CHECK_EQ(chmod(key_file, mode), 0);
}

static void keys_that_are_none_are_refused(void)
{
    static const struct {
        const char *text;
        mode_t mode;
    } bad[] = {
        { "", 0600 },
        { "# only this\n\n", 0600 },
        { "too-short-a-key\n", 0600 },
        { "sixteen characters\n", 0600 },
        { "0123456789abcdef\n", 0644 },
        { "0123456789abcdef\n\x01 0123456789abcdef\n", 0600 },
    };
    struct mp_keys *keys = NULL;
    char line[400];

    for (size_t i = 0; i < MP_ARRAY_LEN(bad); i++) {
        write_keys(bad[i].text, bad[i].mode);
        CHECK_EQ(mp_keys_load(key_file, &keys), MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_KEY_FILE");
    }
    memset(line, 'k', 257);
    line[257] = '\0';
    write_keys(line, 0600);
    CHECK_EQ(mp_keys_load(key_file, &keys), MP_ERR_CONFIG);
    CHECK_EQ(mp_keys_load("/nonexistent/keys", &keys), MP_ERR_IO);
    line[256] = '\0';
    write_keys(line, 0600);
    CHECK_EQ(mp_keys_load(key_file, &keys), MP_OK);
    CHECK(mp_keys_have(keys, line, 256) && !mp_keys_have(keys, line, 255));
    mp_keys_destroy(keys);
    write_keys("# mine\r\n0123456789abcdef\r\n\nfedcba9876543210", 0640);
    CHECK_EQ(mp_keys_load(key_file, &keys), MP_OK);
    CHECK(mp_keys_have(keys, "0123456789abcdef", 16));
    CHECK(mp_keys_have(keys, "fedcba9876543210", 16));
    CHECK(!mp_keys_have(keys, "fedcba9876543211", 16) && !mp_keys_have(keys, "", 0));
    mp_keys_destroy(keys);
}

/* The shortest time of many comparisons, in ns of this thread. */
static uint64_t time_of(const struct mp_keys *keys, const char *key, size_t bytes, bool found)
{
    uint64_t best = UINT64_MAX;

    for (int i = 0; i < 100; i++) {
        struct timespec from, to;
        uint64_t ns;

        CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from), 0);
        CHECK(mp_keys_have(keys, key, bytes) == found);
        CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to), 0);
        ns = (uint64_t)(to.tv_sec - from.tv_sec) * 1000000000u + (uint64_t)to.tv_nsec -
             (uint64_t)from.tv_nsec;
        best = ns < best ? ns : best;
    }
    return best;
}

/* Keys of 256 letters, which differ in the last four: one that is wrong from the first letter on
 * takes as long as one that is almost right or right, the first of 1024 as long as the last. A
 * comparison that ends early would be a hundred times faster. */
static void right_and_wrong_keys_take_the_same_time(void)
{
    static char text[MP_KEYS_MAX * 257 + 1];
    struct mp_keys *keys;
    char wrong[257], near[257];
    uint64_t ns[4], least = UINT64_MAX, most = 0;

    for (int i = 0; i < MP_KEYS_MAX; i++) {
        memset(text + i * 257, 'k', 252);
        snprintf(text + i * 257 + 252, 6, "%04d\n", i);
    }
    write_keys(text, 0600);
    CHECK_EQ(mp_keys_load(key_file, &keys), MP_OK);
    memset(wrong, 'w', 256);
    memcpy(near, text, 256);
    near[255] = 'x';
    ns[0] = time_of(keys, wrong, 256, false);
    ns[1] = time_of(keys, near, 256, false);
    ns[2] = time_of(keys, text, 256, true);
    ns[3] = time_of(keys, text + (MP_KEYS_MAX - 1) * 257, 256, true);
    for (int i = 0; i < 4; i++) {
        least = ns[i] < least ? ns[i] : least;
        most = ns[i] > most ? ns[i] : most;
    }
    fprintf(stderr, "    wrong %llu ns, almost right %llu, the first %llu, the last %llu\n",
            (unsigned long long)ns[0], (unsigned long long)ns[1], (unsigned long long)ns[2],
            (unsigned long long)ns[3]);
    CHECK(most < 10 * least);
    mp_keys_destroy(keys);
}

static void other_machines_need_a_key(void)
{
    static const struct {
        const char *host;
        bool keys, good;
    } cases[] = {
        { "127.0.0.1", false, true }, { "127.8.9.1", false, true },   { "::1", false, true },
        { "localhost", false, true }, { "0.0.0.0", false, false },    { "::", false, false },
        { "10.1.2.3", true, true },   { "example.com", true, false }, { "", true, false },
    };
    struct mp_keys *keys;

    write_keys("0123456789abcdef\n", 0600);
    CHECK_EQ(mp_keys_load(key_file, &keys), MP_OK);
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const struct mp_http_config config = { .host = cases[i].host,
                                               .keys = cases[i].keys ? keys : NULL };

        CHECK_EQ(mp_http_check(&config), cases[i].good ? MP_OK : MP_ERR_CONFIG);
    }
    mp_keys_destroy(keys);
}

int main(void)
{
    test_tmpdir();
    snprintf(key_file, sizeof(key_file), "%s/keys", test_tmpdir_path);
    RUN(keys_that_are_none_are_refused);
    RUN(right_and_wrong_keys_take_the_same_time);
    RUN(other_machines_need_a_key);
    open_session();
    RUN(every_allocation_of_a_request_fails_once);
    RUN(every_allocation_of_a_start_fails_once);
    RUN(an_answer_outlives_its_daemon);
    RUN(nobody_is_refused_meanwhile);
    RUN(all_daemons_share_the_limit);
    RUN(a_renewal_that_fails_changes_nothing);
    RUN(a_daemon_is_quiesced_anyhow);
    RUN(what_the_library_refuses_does_no_harm);
    RUN(nothing_is_renewed_at_the_end);
    mp_chat_destroy(chat);
    mp_tokenizer_destroy(session.tokenizer);
    harness_close(&h);
    return 0;
}
