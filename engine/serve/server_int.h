#ifndef MP_SERVE_SERVER_INT_H
#define MP_SERVE_SERVER_INT_H

#include "engine/serve/server.h"
#include "engine/batch/batcher.h"
#include "engine/batch/memory_share.h"
#include "engine/text/grammar/token_mask.h"
#include "vmm/base/lock.h"
#include "vmm/output/json_out.h"

/*
 * Private to engine/serve: server.c (the loop), exchange.c (requests in, replies out), choice.c
 * (answers as JSON), logprobs.c (tokens with their probabilities), format.c (answers that must be
 * JSON), tool_choice.c (calls that must come), state.c (metrics, map of experts).
 */
struct mp_logprob {
    uint32_t token;
    float logprob;
};

/* Tokens of an answer: each is followed by the likeliest in its place. */
struct mp_logprobs {
    struct mp_logprob *list; // (capacity, 1 + request.top_logprobs)
    size_t count, capacity;  /* tokens that are not written yet */
    uint64_t offset;         /* characters of the answer before them */
};

struct mp_choice {
    struct mp_exchange *exchange;
    uint32_t index;
    struct mp_job *job; /* NULL: not submitted yet, or ended */
    bool begun;         /* its first event was written */
    bool ended;
    char *text; /* of completions, when it has ended */
    size_t bytes;
    struct mp_reply reply; /* of chats */
    size_t content_sent, thoughts_sent, calls_sent;
    enum mp_finish finish;
    struct mp_logprobs logprobs;
};

#define MP_HISTOGRAM_BOUNDS 9

/* Seconds; the last bucket has no upper bound. */
struct mp_histogram {
    uint64_t counts[MP_HISTOGRAM_BOUNDS + 1];
    double sum;
};

struct mp_server {
    struct mp_server_config config;
    struct mp_batcher *batcher;
    struct mp_memory_share *share; /* or NULL */
    struct mp_token_mask *mask;    /* of the loop; made for the first answer that needs it */
    struct mp_token_words words;   /* of the chat format */

    struct mp_mutex lock;
    struct mp_cond work;
    struct mp_exchange *exchanges;     /* MP_GUARDED_BY(lock): all that the loop has not ended */
    uint32_t waiting;                  /* MP_GUARDED_BY(lock): choices not yet with the batcher */
    uint64_t next_id;                  /* MP_GUARDED_BY(lock) */
    bool stopping;                     /* MP_GUARDED_BY(lock) */
    uint64_t events[MP_SERVER_EVENTS]; /* MP_GUARDED_BY(lock) */
    struct mp_batcher_stats batcher_stats; /* MP_GUARDED_BY(lock): copies, as all below */
    struct mp_prefix_stats prefixes;
    struct mp_memory_share_stats divided;
    struct mp_counters counters;
    uint64_t budget_bytes, failed_steps;
    struct mp_histogram waited, first, all; /* of answers, seconds */
};

struct mp_exchange {
    struct mp_server *server;
    struct mp_exchange *next; /* of server->exchanges */
    struct mp_request request;
    struct mp_exchange_config config;
    uint64_t id, created_s, begun_ns;

    struct mp_ids *prompts;    // (request.prompt_count, 1 for a chat)
    struct mp_choice *choices; // (choice_count): by prompt, then by n
    uint32_t choice_count, prompt_count;
    const struct mp_calls_style *style; /* of the answers; NULL: nothing is looked for in them */
    bool thinking;                      /* the prompt of a chat begins thoughts */
    struct mp_grammar *grammar;         /* NULL: answers are any text */
    struct mp_grammar_state *states;    // (choice_count)

    /* The loop's: */
    bool submitted;
    uint32_t open_choices;
    uint64_t prompt_tokens, reused_tokens, generated_tokens;

    /* MP_GUARDED_BY(server->lock): */
    unsigned refs;
    bool canceled, ended, asleep;
    unsigned status; /* of HTTP; 0: not known */
    char *out;       // (out_bytes): of them `sent` were taken
    size_t out_bytes, out_capacity, sent;
};

/* Append to the reply and wake the reader. False: no memory, or too much waits to be read; the
 * exchange is cancelled then. Takes the lock. */
bool mp_exchange_write(struct mp_exchange *exchange, const char *text, size_t bytes);

/* The reply is complete. Takes the lock. */
void mp_exchange_finish(struct mp_exchange *exchange, unsigned status);

/* Instead of a reply, or in the middle of a stream. Takes the lock. */
void mp_exchange_fail(struct mp_exchange *exchange, const struct mp_error *error);

/* Drop one reference. Takes the lock. */
void mp_exchange_put(struct mp_exchange *exchange);

/* A text written through `json`, as the whole of a reply or an event of a stream. */
struct mp_writing {
    struct mp_json_out json;
    FILE *file;
    char *text;
    size_t bytes;
};
enum mp_status mp_writing_begin(struct mp_writing *writing, bool event) MP_MUST_CHECK;
/* The text is the caller's to free. */
enum mp_status mp_writing_end(struct mp_writing *writing) MP_MUST_CHECK;

/* Hand the exchange's choices to the batcher. On failure none is left there. */
enum mp_status mp_choices_submit(struct mp_exchange *exchange) MP_MUST_CHECK;
void mp_choices_cancel(struct mp_exchange *exchange);

/* The tokens that are words of the model's chat format. */
void mp_tools_find_words(const struct mp_server_config *config, struct mp_token_words *words);

/* The calls that request.tool_choice asks for, behind the end of thoughts if `thinking`. */
enum mp_status mp_tools_grammar(const struct mp_request *request,
                                const struct mp_calls_style *style, bool thinking,
                                struct mp_grammar **grammar_p) MP_MUST_CHECK;

/* What request.format and request.tool_choice ask for. On failure mp_format_close() frees what is
 * there. */
enum mp_status mp_format_open(struct mp_exchange *exchange) MP_MUST_CHECK;
void mp_format_close(struct mp_exchange *exchange);

/* restrict_logits and chosen of a job; `choice` is a struct mp_choice. */
enum mp_status mp_format_restrict(void *choice, float *logits) MP_MUST_CHECK;
enum mp_status mp_format_chosen(void *choice, uint32_t token, bool *end_p) MP_MUST_CHECK;

/* on_token of a job; `choice` is a struct mp_choice. */
enum mp_status mp_logprobs_note(void *choice, uint32_t token, const float *logits) MP_MUST_CHECK;

/* "logprobs" of the choice: the tokens that were noted since the last call, or null. */
void mp_logprobs_put(struct mp_json_out *json, struct mp_choice *choice);

/* Requests that are answered at once, on the loop's thread. */
enum mp_status mp_state_reply(struct mp_exchange *exchange) MP_MUST_CHECK;
enum mp_status mp_budget_reply(struct mp_exchange *exchange) MP_MUST_CHECK;

/* Make the numbers of config.heat, or free them. */
enum mp_status mp_heat_open(const struct mp_server_config *config) MP_MUST_CHECK;
void mp_heat_close(struct mp_heat *heat);

void mp_histogram_add(struct mp_histogram *histogram, uint64_t ns);

#endif
