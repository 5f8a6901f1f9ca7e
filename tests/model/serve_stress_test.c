/*
 * The server with its HTTP in one process, for the thread sanitizer: clients of all kinds at once,
 * some of which leave in the middle, while metrics are read, the budget changes, keys are read
 * again and daemons take over from one another, and at last the server is stopped with answers
 * under way. Each answer is the right one. Then the same where experts, kept prompts and KV caches
 * share one amount of memory.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "engine/batch/memory_share.h"
#include "engine/forward/kv.h"
#include "engine/serve/http.h"
#include "engine/serve/server.h"
#include "tests/model/harness.h"
#include "tests/model/http_client.h"
#include "tests/support/tmpdir.h"

#define TINY "models/tiny-moe"
#define CLIENTS 6u
#define ROUNDS 12u
#define REPLY_BYTES 65536
#define KEY "0123456789abcdef0123"
#define AUTHORIZED " HTTP/1.1\r\nAuthorization: Bearer " KEY "\r\nX-Rest:"

static const char chatml[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <tool_call> #}";

static struct harness h;
static struct mp_session session;
static struct mp_chat *chat;
static struct mp_heat heat;
static struct mp_http *http;
static uint16_t port;
static volatile sig_atomic_t stop, reload;
static _Atomic bool stopping;
static char key_file[sizeof(test_tmpdir_path) + 16];
static char wanted[3][REPLY_BYTES];

static const struct {
    const char *line, *body;
} requests[] = {
    { "POST /v1/completions",
      "{\"prompt\": \"def main(\", \"max_tokens\": 6, \"ignore_eos\": true}" },
    { "POST /v1/chat/completions",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"sort 5 3 1\"}], \"max_tokens\": 6}" },
    { "POST /v1/completions",
      "{\"prompt\": [\"class A:\", \"import \"], \"max_tokens\": 5, \"logprobs\": 2}" },
    { "GET /metrics", "" },
    { "GET /moepager/state", "" },
    { "GET /v1/models", "" },
    { "POST /moepager/budget", "{\"budget\": \"50%\"}" },
    { "POST /moepager/budget", "{\"budget\": \"all\"}" },
    { "POST /v1/completions", "{\"prompt\": [1, 2" },
};

/* Signals are the loop's, as in the program they are its thread's. */
static void on_signal(int number)
{
    if (number == SIGUSR1)
        reload = 1;
    else
        stop = 1;
}

static void on_reload(void *ctx)
{
    struct mp_keys *keys = NULL;

    (void)ctx;
    CHECK_EQ(mp_keys_load(key_file, &keys), MP_OK);
    mp_http_set_keys(http, keys);
    CHECK(stop || mp_http_renew(http, NULL, NULL) == MP_OK);
}

static void on_stopping(void *ctx)
{
    (void)ctx;
    mp_http_refuse(http);
}

static enum mp_status count_uses(void *ctx, struct mp_engine_config *config)
{
    config->routed = mp_heat_routed;
    config->routed_ctx = ctx;
    return MP_OK;
}

/* Beside half of the experts there is room for one sequence, which has it at first. */
static void share_memory(const struct mp_space_plan *plan)
{
    session.memory.sequences_bytes = mp_kv_sequence_bytes(&h.config, h.config.ctx);
    session.memory.budget_bytes = h.config.budget_bytes;
    session.memory.shared_bytes =
        h.config.budget_bytes + session.memory.sequences_bytes + (1 << 18);
    session.memory.smallest_bytes = plan->smallest_bytes;
    session.memory.full_bytes = plan->full_bytes;
}

static void open_session(bool shared)
{
    struct harness_options options = harness_defaults(TINY);
    const struct mp_space_plan plan = harness_plan(&options, NULL);

    options.before_engine = count_uses;
    options.before_engine_ctx = &heat;
    if (shared)
        options.budget_bytes = plan.full_bytes / 2;
    options.sequences = 3;
    options.ctx = 128;
    options.tokens_max = 32;
    harness_open(&options, &h);
    session = (struct mp_session){ .engine = h.engine,
                                   .engine_config = h.config,
                                   .model = h.model,
                                   .memory.kept_bytes = 1 << 20,
                                   .memory.expert_bytes = h.weights->expert_bytes };
    if (shared)
        share_memory(&plan);
    CHECK_EQ(mp_tokenizer_load(TINY, &session.tokenizer), MP_OK);
    CHECK_EQ(mp_chat_load_as(TINY, "chatml", chatml, sizeof(chatml) - 1, &chat), MP_OK);
}

static void ask(size_t i, char *reply)
{
    char line[256];

    snprintf(line, sizeof(line), "%s" AUTHORIZED, requests[i].line);
    http_ask(port, line, requests[i].body, reply, REPLY_BYTES);
}

/* Numbers, dates and what was reused differ. */
static const char *text_of(const char *reply)
{
    const char *text = strstr(reply, "\"choices\"");

    return text != NULL ? text : "";
}

static bool same_text(const char *reply, const char *other)
{
    const size_t bytes = strcspn(other, "]");

    return bytes > 0 && strncmp(reply, other, bytes) == 0;
}

/* One that leaves while its stream comes. */
static void leave(unsigned client)
{
    char line[256], some[64];
    int fd;

    snprintf(line, sizeof(line), "%s" AUTHORIZED, requests[0].line);
    fd = http_send(port, line,
                   "{\"prompt\": \"x = [\", \"max_tokens\": 90, \"stream\": true, "
                   "\"ignore_eos\": true}");
    CHECK(fd >= 0);
    if (client % 2 == 0)
        (void)recv(fd, some, sizeof(some), 0);
    close(fd);
}

static void *be_a_client(void *number)
{
    const unsigned client = *(unsigned *)number;
    char *reply = malloc(REPLY_BYTES);

    CHECK(reply != NULL);
    for (unsigned round = 0; round < ROUNDS; round++) {
        const size_t i = (client * 5 + round) % MP_ARRAY_LEN(requests);

        ask(i, reply);
        if (i < MP_ARRAY_LEN(wanted))
            CHECK(same_text(text_of(reply), wanted[i]));
        if (round % 3 == client % 3)
            leave(client);
    }
    free(reply);
    return NULL;
}

/* Until the server is gone: answers are right, or are none. */
static void *ask_until_the_end(void *number)
{
    char *reply = malloc(REPLY_BYTES);

    (void)number;
    CHECK(reply != NULL);
    while (!stopping) {
        ask(0, reply);
        CHECK(text_of(reply)[0] == '\0' || same_text(text_of(reply), wanted[0]));
    }
    free(reply);
    return NULL;
}

static void *run_loop(void *server)
{
    CHECK_EQ(mp_server_run(server), MP_OK);
    return NULL;
}

static void start_clients(pthread_t *threads, unsigned *numbers, void *(*fn)(void *))
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        numbers[i] = i;
        CHECK_EQ(pthread_create(&threads[i], NULL, fn, &numbers[i]), 0);
    }
}

static void close_session(void)
{
    mp_chat_destroy(chat);
    mp_tokenizer_destroy(session.tokenizer);
    harness_close(&h);
    stop = reload = 0;
    stopping = false;
}

static void serve_all(bool first)
{
    const struct mp_server_config config = { .session = &session,
                                             .heat = &heat,
                                             .chat = chat,
                                             .model_name = "tiny",
                                             .sampling = { .top_p = 1 },
                                             .max_tokens = 100,
                                             .waiting_max = 64,
                                             .chunk_tokens = 16,
                                             .grace_s = 60,
                                             .answer_s = 600,
                                             .clock = mp_clock_monotonic(),
                                             .stop = &stop,
                                             .reload = &reload,
                                             .on_reload = on_reload,
                                             .on_stopping = on_stopping };
    struct mp_http_config http_config = {
        .host = "127.0.0.1", .request_bytes_max = 4096, .connections_max = 64, .idle_s = 60
    };
    struct mp_server *server;
    pthread_t loop, clients[CLIENTS];
    unsigned numbers[CLIENTS];
    struct mp_memory_share_stats memory;

    CHECK_EQ(mp_keys_load(key_file, &http_config.keys), MP_OK);
    CHECK_EQ(mp_server_create(&config, &server), MP_OK);
    http_config.server = server;
    CHECK_EQ(mp_http_start(&http_config, &http), MP_OK);
    port = mp_http_port(http);
    CHECK_EQ(pthread_create(&loop, NULL, run_loop, server), 0);
    for (size_t i = 0; i < MP_ARRAY_LEN(wanted); i++) {
        static char reply[REPLY_BYTES];

        ask(i, reply);
        if (first)
            snprintf(wanted[i], REPLY_BYTES, "%s", text_of(reply));
        CHECK(wanted[i][0] != '\0' && same_text(text_of(reply), wanted[i]));
    }
    start_clients(clients, numbers, be_a_client);
    for (unsigned i = 0; i < CLIENTS; i++) {
        CHECK_EQ(pthread_kill(loop, SIGUSR1), 0);
        CHECK_EQ(pthread_join(clients[i], NULL), 0);
    }
    start_clients(clients, numbers, ask_until_the_end);
    CHECK_EQ(pthread_kill(loop, SIGUSR2), 0);
    CHECK_EQ(pthread_join(loop, NULL), 0);
    stopping = true;
    mp_http_stop(http, 5);
    for (unsigned i = 0; i < CLIENTS; i++)
        CHECK_EQ(pthread_join(clients[i], NULL), 0);
    CHECK_EQ(mp_server_memory(server, &memory), !first);
    CHECK(first || memory.to_sequences > 0);
    mp_server_destroy(server);
}

static void clients_of_all_kinds_at_once(void)
{
    open_session(false);
    serve_all(true);
    close_session();
}

static void the_same_in_one_memory(void)
{
    open_session(true);
    serve_all(false);
    close_session();
}

int main(void)
{
    const struct sigaction action = { .sa_handler = on_signal };
    FILE *file;

    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    test_tmpdir();
    snprintf(key_file, sizeof(key_file), "%s/keys", test_tmpdir_path);
    file = fopen(key_file, "w");
    CHECK(file != NULL && fputs(KEY "\n", file) >= 0 && fclose(file) == 0);
    CHECK_EQ(chmod(key_file, 0600), 0);
    RUN(clients_of_all_kinds_at_once);
    RUN(the_same_in_one_memory);
    return 0;
}
