/*
 * Teacher-forced run of a GGUF model in llama.cpp, by its public C API: the other side of
 * tools/bench/compare_llamacpp and compare_preload, which build this program.
 *
 *     llama_forced MODEL.gguf TOKENS.txt PROMPT GEN THREADS REPEAT [LOGITS|- [HOW...]]
 *
 * As `moepager bench --tokens-file`: the first PROMPT ids of the file are the prompt, one batch;
 * the next GEN - 1 are given one by one, whatever the logits say. REPEAT times with an empty
 * context. Everything else is llama.cpp's default. Prints one JSON object. With a REPEAT of 0 it
 * runs on command, as bench_steps_* (steps.c): a line "FIRST COUNT" on stdin, the ids from FIRST on
 * are one batch, in an empty context if FIRST is 0; prints its nanoseconds. LOGITS: float32
 * [GEN, vocabulary] of the first run, without a header. HOW: `plain` makes no copies of weights in
 * another order; `cache32` keeps keys and values in float32, without flash attention; `advice`
 * advises the kernel which experts a layer is going to read, as soon as its router has chosen them,
 * and leaves everything else to the page cache.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "ggml-backend.h"
#include "llama.h"

struct forced {
    struct llama_model *model;
    struct llama_context *ctx;
    llama_token *tokens; // (prompt + gen)
    int prompt, gen, vocab;
    bool plain, advice, cache32;
    FILE *logits;
};

static void fail(const char *what, const char *name)
{
    fprintf(stderr, "llama_forced: %s '%s'\n", what, name);
    exit(1);
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void keep_errors(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static llama_token *read_tokens(const char *path, int count)
{
    llama_token *tokens = calloc((size_t)count, sizeof(*tokens));
    FILE *file = fopen(path, "r");

    if (file == NULL || tokens == NULL)
        fail("cannot open", path);
    for (int i = 0; i < count; i++) {
        if (fscanf(file, "%d", &tokens[i]) != 1)
            fail("too few token ids in", path);
    }
    fclose(file);
    return tokens;
}

/* Runs some tokens and waits for the logits behind the last. */
static void decode(struct forced *f, llama_token *tokens, int count)
{
    const float *logits;

    if (llama_decode(f->ctx, llama_batch_get_one(tokens, count)) != 0)
        fail("llama_decode", "failed");
    logits = llama_get_logits_ith(f->ctx, -1);
    if (logits == NULL)
        fail("no logits from", "llama_decode");
    if (f->logits != NULL &&
        fwrite(logits, sizeof(float), (size_t)f->vocab, f->logits) != (size_t)f->vocab)
        fail("cannot write", "the logits");
}

static void run_once(struct forced *f, const char *separator)
{
    double start, first, end;

    llama_memory_clear(llama_get_memory(f->ctx), true);
    start = now_s();
    decode(f, f->tokens, f->prompt);
    first = now_s();
    for (int i = 0; i + 1 < f->gen; i++)
        decode(f, f->tokens + f->prompt + i, 1);
    end = now_s();
    printf("%s{\"ttft_ms\": %.3f, \"prefill_tokens_per_s\": %.6g, \"tokens_per_s\": %.6g}",
           separator, 1e3 * (first - start), f->prompt / (first - start),
           f->gen > 1 ? (f->gen - 1) / (end - first) : 0.0);
}

/* Batches on command: each line's FIRST is 0, or follows the ids of the line before. */
static void run_on_command(struct forced *f)
{
    int next = 0, first, count;

    while (scanf("%d %d", &first, &count) == 2) {
        double start;

        if (count == 0)
            continue;
        if (count < 0 || (first != 0 && first != next) || count > f->prompt + f->gen - first)
            fail("tokens out of order or beyond the end of", "the file");
        if (first == 0)
            llama_memory_clear(llama_get_memory(f->ctx), true);
        start = now_s();
        decode(f, f->tokens + first, count);
        printf("%.0f\n", 1e9 * (now_s() - start));
        if (fflush(stdout) != 0)
            fail("cannot write", "a time");
        next = first + count;
    }
}

/* The scheduler asks of each node whether we want to see it computed, and goes on to the next ones
 * until it has been: behind a router's choice the products are asked about with their ids known. */
static bool advise(struct ggml_tensor *t, bool ask, void *ctx)
{
    const struct ggml_tensor *weights = t->src[0], *ids = t->src[2];

    (void)ctx;
    if (strncmp(t->name, "ffn_moe_topk", 12) == 0)
        return true;
    if (!ask || t->op != GGML_OP_MUL_MAT_ID || ids == NULL || ids->data == NULL)
        return false;
    for (int64_t token = 0; token < ids->ne[1]; token++) {
        for (int64_t rank = 0; rank < ids->ne[0]; rank++) {
            const char *id = (const char *)ids->data + token * (int64_t)ids->nb[1] + rank * 4;
            uintptr_t expert =
                (uintptr_t)weights->data + (size_t) * (const int32_t *)id * weights->nb[2];
            uintptr_t page = expert & ~(uintptr_t)4095;

            madvise((void *)page, expert + weights->nb[2] - page, MADV_WILLNEED);
        }
    }
    return false;
}

/* One JSON object. */
static void run_repeatedly(struct forced *f, int repeat, double load_s)
{
    printf("{\"version\": \"%s\", \"system\": \"%s\", \"load_ms\": %.3f, \"runs\": [",
           llama_version(), llama_print_system_info(), 1e3 * load_s);
    for (int i = 0; i < repeat; i++) {
        run_once(f, i > 0 ? ", " : "");
        if (f->logits != NULL && fclose(f->logits) != 0)
            fail("cannot write", "the logits");
        f->logits = NULL;
    }
    puts("]}");
}

static void open_model(struct forced *f, const char *path, int threads)
{
    struct llama_context_params params = llama_context_default_params();
    struct llama_model_params loading = llama_model_default_params();

    llama_log_set(keep_errors, NULL);
    ggml_backend_load_all();
    llama_backend_init();
    loading.use_extra_bufts = !f->plain;
    f->model = llama_model_load_from_file(path, loading);
    if (f->model == NULL)
        fail("cannot load", path);
    params.n_ctx = (uint32_t)(f->prompt + f->gen);
    params.n_threads = params.n_threads_batch = threads;
    if (f->cache32) {
        params.type_k = params.type_v = GGML_TYPE_F32;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    }
    if (f->advice)
        params.cb_eval = advise;
    f->ctx = llama_init_from_model(f->model, params);
    if (f->ctx == NULL)
        fail("no context for", path);
    f->vocab = llama_vocab_n_tokens(llama_model_get_vocab(f->model));
}

int main(int argc, char **argv)
{
    struct forced f = { 0 };
    double start = now_s();
    int repeat;

    if (argc < 7)
        fail("usage: llama_forced MODEL.gguf TOKENS.txt PROMPT GEN THREADS REPEAT [LOGITS], got",
             argc > 1 ? argv[1] : "nothing");
    f.prompt = atoi(argv[3]);
    f.gen = atoi(argv[4]);
    repeat = atoi(argv[6]);
    if (f.prompt < 1 || f.gen < 1 || repeat < 0 || atoi(argv[5]) < 1)
        fail("numbers begin at 1, got", argv[3]);
    for (int i = 8; i < argc; i++) {
        f.plain |= strcmp(argv[i], "plain") == 0;
        f.advice |= strcmp(argv[i], "advice") == 0;
        f.cache32 |= strcmp(argv[i], "cache32") == 0;
    }
    f.tokens = read_tokens(argv[2], f.prompt + f.gen);
    open_model(&f, argv[1], atoi(argv[5]));
    if (argc > 7 && strcmp(argv[7], "-") != 0 && (f.logits = fopen(argv[7], "wb")) == NULL)
        fail("cannot open", argv[7]);
    if (repeat > 0)
        run_repeatedly(&f, repeat, now_s() - start);
    else
        run_on_command(&f);
    llama_free(f.ctx);
    llama_model_free(f.model);
    llama_backend_free();
    free(f.tokens);
    return fflush(stdout) != 0;
}
