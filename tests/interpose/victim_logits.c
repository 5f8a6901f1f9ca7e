/*
 * A program that uses libllama and knows nothing of moepager: computes logits in the ways that
 * programs do and prints a hash of all of them.
 *
 *     victim_logits MODEL.gguf THREADS [load=mmap|none] [ubatch=N] [prompt=N] [gen=N] [out=FILE]
 *                   [check=LIST] [reload=1] [repack=0] [beside=MODEL.gguf] [contexts=N]
 *
 * prompt tokens at once, with the logits of each; then gen tokens one by one, of which each has the
 * largest logit of the one before; then four sequences side by side. check: in the middle, those of
 * victim_checks.h of the model's mapping. reload: the model is closed and loaded once more, in the
 * same process. beside: another model is open at the same time, and both compute in turns; the
 * logits are of both. contexts: so many others are there when its own is made, each of which has
 * computed a token, and are freed before that computes. repack=0: no copies of weights in another
 * order. out: all logits, float32.
 *
 * Prints the tokens, what the checks print, and `logits COUNT HASH`.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "llama.h"
#include "tests/interpose/victim_checks.h"

enum { SEQUENCES = 4, SEQUENCE_STEPS = 6, TOKENS_MAX = 4096, CONTEXTS_MAX = 64 };

struct victim {
    const char *path, *out, *load, *check, *beside;
    int threads, ubatch, prompt, gen, reload, repack, contexts;
    struct llama_model *model;
    struct llama_context *ctx;
    int vocab;
    uint64_t hash, count;
    FILE *file;
};

static void keep_errors(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

/* FNV-1a over the bits. */
static void add_row(struct victim *v, int row)
{
    const float *logits = llama_get_logits_ith(v->ctx, row);

    if (logits == NULL)
        victim_fail("no logits", "llama_get_logits_ith");
    for (int i = 0; i < v->vocab; i++) {
        uint32_t bits;

        memcpy(&bits, &logits[i], sizeof(bits));
        v->hash = (v->hash ^ bits) * 0x100000001b3u;
    }
    v->count += (uint64_t)v->vocab;
    if (v->file != NULL &&
        fwrite(logits, sizeof(float), (size_t)v->vocab, v->file) != (size_t)v->vocab)
        victim_fail("cannot write", v->out);
}

static llama_token best(struct victim *v, int row)
{
    const float *logits = llama_get_logits_ith(v->ctx, row);
    int at = 0;

    for (int i = 1; i < v->vocab; i++) {
        if (logits[i] > logits[at])
            at = i;
    }
    return at;
}

static void add_token(struct llama_batch *batch, llama_token token, int pos, int sequence)
{
    int i = batch->n_tokens++;

    batch->token[i] = token;
    batch->pos[i] = pos;
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = sequence;
    batch->logits[i] = 1;
}

static void run(struct victim *v, struct llama_batch *batch)
{
    if (llama_decode(v->ctx, *batch) != 0)
        victim_fail("llama_decode failed for", v->path);
    for (int i = 0; i < batch->n_tokens; i++)
        add_row(v, i);
}

/* Numbers that look random and are the same everywhere. */
static llama_token made_up(struct victim *v, uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (llama_token)((*state >> 8) % (uint32_t)(v->vocab - 8));
}

static struct llama_context *make_context(struct victim *v, struct llama_context_params params)
{
    struct llama_context *ctx = llama_init_from_model(v->model, params);

    if (ctx == NULL)
        victim_fail("no context for", v->path);
    return ctx;
}

/* Its own, and others that are used and end before. */
static void make_contexts(struct victim *v, struct llama_context_params params)
{
    struct llama_context *others[CONTEXTS_MAX];
    llama_token token = 1;

    for (int i = 0; i < v->contexts && i < CONTEXTS_MAX; i++) {
        others[i] = make_context(v, params);
        if (llama_decode(others[i], llama_batch_get_one(&token, 1)) != 0)
            victim_fail("llama_decode failed for", v->path);
    }
    v->ctx = make_context(v, params);
    for (int i = 0; i < v->contexts && i < CONTEXTS_MAX; i++)
        llama_free(others[i]);
}

static void open_model(struct victim *v)
{
    struct llama_model_params model = llama_model_default_params();
    struct llama_context_params params = llama_context_default_params();

    if (strcmp(v->load, "none") == 0)
        model.load_mode = LLAMA_LOAD_MODE_NONE;
    model.use_extra_bufts = v->repack != 0;
    v->model = llama_model_load_from_file(v->path, model);
    if (v->model == NULL)
        victim_fail("cannot load", v->path);
    params.n_ctx = 2048;
    params.n_batch = 1024;
    params.n_ubatch = (uint32_t)v->ubatch;
    params.n_seq_max = SEQUENCES + 1;
    params.n_threads = params.n_threads_batch = v->threads;
    params.kv_unified = true;
    v->vocab = llama_vocab_n_tokens(llama_model_get_vocab(v->model));
    make_contexts(v, params);
}

/* Of what llama.cpp has mapped, while some experts are in memory of the pager's own. */
static void check(struct victim *v)
{
    struct victim_mapping mapping;

    victim_find(v->path, &mapping);
    putchar('\n');
    victim_check(&mapping, v->check);
    close(mapping.fd);
}

static void compute(struct victim *v)
{
    struct llama_batch batch = llama_batch_init(1024, 0, 1);
    llama_token last[SEQUENCES];
    uint32_t state = 1;

    for (int i = 0; i < v->prompt; i++)
        add_token(&batch, made_up(v, &state), i, 0);
    run(v, &batch);
    printf(" tokens");
    for (int i = 0; i < v->gen; i++) {
        llama_token token = best(v, batch.n_tokens - 1);

        printf(" %d", token);
        batch.n_tokens = 0;
        add_token(&batch, token, v->prompt + i, 0);
        run(v, &batch);
        if (v->check != NULL && i == v->gen / 2)
            check(v);
    }
    for (int s = 0; s < SEQUENCES; s++)
        last[s] = made_up(v, &state);
    for (int step = 0; step < SEQUENCE_STEPS; step++) {
        batch.n_tokens = 0;
        for (int s = 0; s < SEQUENCES; s++)
            add_token(&batch, last[s], step, s + 1);
        run(v, &batch);
        for (int s = 0; s < SEQUENCES; s++)
            last[s] = best(v, s);
    }
    llama_batch_free(batch);
}

static void close_model(struct victim *v)
{
    llama_free(v->ctx);
    llama_model_free(v->model);
}

static void read_argument(struct victim *v, const char *text)
{
    const char *value = strchr(text, '=');
    size_t key = value != NULL ? (size_t)(value - text) : 0;
    const struct {
        const char *name;
        int *number;
    } numbers[] = {
        { "ubatch", &v->ubatch }, { "prompt", &v->prompt }, { "gen", &v->gen },
        { "reload", &v->reload }, { "repack", &v->repack }, { "contexts", &v->contexts }
    };

    const struct {
        const char *name;
        const char **text;
    } texts[] = {
        { "out", &v->out }, { "load", &v->load }, { "check", &v->check }, { "beside", &v->beside }
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (key == strlen(texts[i].name) && strncmp(text, texts[i].name, key) == 0) {
            *texts[i].text = value + 1;
            return;
        }
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (key == strlen(numbers[i].name) && strncmp(text, numbers[i].name, key) == 0) {
            *numbers[i].number = atoi(value + 1);
            return;
        }
    }
    victim_fail("what is", text);
}

/* The first, the other, and the first once more. */
static void compute_in_turns(struct victim *v)
{
    struct victim other = *v;

    other.path = v->beside;
    other.check = NULL;
    open_model(&other);
    compute(v);
    other.hash = v->hash;
    other.count = v->count;
    compute(&other);
    v->hash = other.hash;
    v->count = other.count;
    llama_memory_clear(llama_get_memory(v->ctx), true);
    compute(v);
    close_model(&other);
}

int main(int argc, char **argv)
{
    struct victim v = { .load = "mmap", .ubatch = 64, .prompt = 96, .gen = 24, .repack = 1 };

    if (argc < 3)
        victim_fail("usage: victim_logits MODEL.gguf THREADS [NAME=VALUE...], got", argv[argc - 1]);
    v.path = argv[1];
    v.threads = atoi(argv[2]);
    for (int i = 3; i < argc; i++)
        read_argument(&v, argv[i]);
    if (v.out != NULL && (v.file = fopen(v.out, "wb")) == NULL)
        victim_fail("cannot open", v.out);
    llama_log_set(keep_errors, NULL);
    ggml_backend_load_all();
    llama_backend_init();
    for (int i = 0; i <= v.reload; i++) {
        v.hash = 0xcbf29ce484222325u;
        v.count = 0;
        open_model(&v);
        if (v.beside != NULL)
            compute_in_turns(&v);
        else
            compute(&v);
        close_model(&v);
        printf("\nlogits %llu %016llx\n", (unsigned long long)v.count, (unsigned long long)v.hash);
    }
    llama_backend_free();
    if (v.file != NULL && fclose(v.file) != 0)
        victim_fail("cannot write", v.out);
    return fflush(stdout) != 0;
}
