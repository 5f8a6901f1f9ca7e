#ifndef MP_ARGS_H
#define MP_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/session/generate.h"
#include "engine/session/settings.h"

/*
 * The command line: flags of the commands, and every setting as a flag (--evict is MOEPAGER_EVICT).
 */
struct mp_args {
    const char *model, *prompt, *prompt_file, *batch_file, *system;
    const char *chat_template;
    const char *page; /* of env */
    const char *logits_out, *trace, *timeline, *decision_log, *out, *tokens_file, *from_trace;
    const char *replayed, *evicts, *profiles, *partition, *budgets, *accounting; /* of replay */
    const char *machine, *batches, *changes;              /* of simulate; profiles also */
    const char *target_tpot;                              /* of plan; budgets, machine also */
    const char *cluster, *places;                         /* of simulate, bench: several servers */
    const char *requests;                                 /* the same */
    const char *text, *sweep, *reference;                 /* of calibrate and eval */
    const char *skip;                                     /* of probe */
    const char *type, *to, *imatrix;                      /* of repack */
    const char *host, *api_key_file, *tls_cert, *tls_key; /* of serve */
    uint64_t port, queue, chunk_tokens, request_bytes, connections, idle_s, answer_s, grace_s;
    uint64_t prefix_memory; /* of serve; MP_KEPT_AUTO: not given */
    uint64_t memory;        /* of serve; 0: not given */
    const char *stops[MP_STOPS_MAX];
    uint64_t stop_count;
    uint64_t max_tokens, warm_tokens, prompt_tokens, gen_tokens, repeat, shard_bytes;
    uint64_t batch;            /* 0: not given */
    double temperature, top_p; /* negative: not given */
    uint64_t top_k;            /* UINT64_MAX: not given */
    uint64_t window, tokens;   /* tokens: UINT64_MAX: not given */
    uint64_t perplexity, divergence, predictors, tokens_ahead, features, token_heat;
    uint64_t hidden, channels, experts, fresh, child, check;
    const char *types; /* of probe */
    uint64_t chat, special, json, csv, ignore_eos, trace_scores, check_values, markdown, force;
    uint64_t help, help_all;
    char **program; /* of preload: the command and its arguments; of plot: all; NULL: not given */
};

/* The commands: for each a function mp_cmd_NAME() of engine/cli, and its help in flags.c. */
#define MP_COMMAND_MAP(X)   \
    X(RUN, run)             \
    X(BENCH, bench)         \
    X(INFO, info)           \
    X(ENV, env)             \
    X(REPACK, repack)       \
    X(REPLAY, replay)       \
    X(SIMULATE, simulate)   \
    X(CALIBRATE, calibrate) \
    X(EVAL, eval)           \
    X(PROBE, probe)         \
    X(DOCTOR, doctor)       \
    X(PRELOAD, preload)     \
    X(SERVE, serve)         \
    X(CHAT, chat)           \
    X(TOKENIZE, tokenize)   \
    X(PLAN, plan)           \
    X(TOP, top)             \
    X(PLOT, plot)

enum mp_command {
#define X(upper, lower) MP_COMMAND_##upper,
    MP_COMMAND_MAP(X)
#undef X
        MP_COMMAND_COUNT
};

/* "run", ...; MP_COMMAND_COUNT if there is no such command. */
enum mp_command mp_command_find(const char *name);

/*
 * Parse argv[2..argc) of a command. Arguments that are not flags: replay takes a file, preload and
 * plot a command line, after -- or from the first non-flag on; the others take the model and the
 * prompt, in this order, where they have such flags and these are not given. Settings go to
 * `settings`, which must be loaded. MP_ERR_CONFIG E_USAGE or E_OPTION: unknown flag (with its new
 * name, or the nearest one), missing or bad value, extra arguments.
 */
enum mp_status mp_args_parse(enum mp_command command, int argc, char **argv, struct mp_args *args,
                             struct mp_settings *settings) MP_MUST_CHECK;

/* A file that the command line names: a flag, or replay's argument. */
struct mp_args_file {
    char name[32];     /* "--trace", or "the replayed file" */
    const char **path; /* in struct mp_args */
    bool output;       /* written, else read */
};

#define MP_ARGS_FILES_MAX 16

/* List the files that are given and return their number. Includes names of built-in descriptions
 * and "-" for standard input; excludes --model if it is a directory. */
size_t mp_args_files(enum mp_command command, struct mp_args *args,
                     struct mp_args_file files[MP_ARGS_FILES_MAX]);

/* Print the overview; the help of one command with its main flags and examples, or with `all` all
 * flags and settings; the tables of docs/options.md. */
void mp_args_print_usage(FILE *out);
void mp_args_print_help(enum mp_command command, const struct mp_settings *settings, bool all,
                        FILE *out);
void mp_args_print_options(const struct mp_settings *settings, FILE *out);

/* Print a man page ("man") or what completes command lines in a shell ("bash", "zsh", "fish").
 * MP_ERR_CONFIG E_USAGE for another kind. */
enum mp_status mp_args_print_page(const char *kind, const struct mp_settings *settings,
                                  FILE *out) MP_MUST_CHECK;

#endif
