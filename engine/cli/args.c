#include "engine/cli/args.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "engine/repack/repack.h"
#include "engine/text/tokenizer.h"
#include "vmm/base/error.h"

enum {
    RUN = 1 << MP_COMMAND_RUN,
    BENCH = 1 << MP_COMMAND_BENCH,
    INFO = 1 << MP_COMMAND_INFO,
    ENV = 1 << MP_COMMAND_ENV,
    REPACK = 1 << MP_COMMAND_REPACK,
    REPLAY = 1 << MP_COMMAND_REPLAY,
    SIMULATE = 1 << MP_COMMAND_SIMULATE,
    CALIBRATE = 1 << MP_COMMAND_CALIBRATE,
    PERPLEXITY = 1 << MP_COMMAND_PERPLEXITY,
    PROBE = 1 << MP_COMMAND_PROBE
};

/* INPUT and OUTPUT: texts that name a file. */
enum kind { TEXT, INPUT, OUTPUT, STOP, NUMBER, BYTES, REAL, SWITCH };

struct flag {
    const char *name;
    enum kind kind;
    size_t offset;
    uint64_t min, max;
    double real_max;
    unsigned commands;
    const char *value, *help;
};

#define AT(field) offsetof(struct mp_args, field)

static const struct flag flags[] = {
    { "model", TEXT, AT(model), 0, 0, 0,
      RUN | BENCH | INFO | REPACK | CALIBRATE | PERPLEXITY | PROBE, "DIR",
      "model directory in Hugging Face layout" },
    { "prompt", TEXT, AT(prompt), 0, 0, 0, RUN, "TEXT", "what to continue" },
    { "prompt-file", INPUT, AT(prompt_file), 0, 0, 0, RUN, "FILE",
      "the same from a file, whose last newline counts; - is standard input" },
    { "batch-file", INPUT, AT(batch_file), 0, 0, 0, RUN, "FILE",
      "one prompt per line, 1 to 64, processed together" },
    { "chat", SWITCH, AT(chat), 0, 0, 0, RUN, NULL, "put the prompt into the model's chat format" },
    { "system", TEXT, AT(system), 0, 0, 0, RUN, "TEXT", "system message for --chat" },
    { "max-tokens", NUMBER, AT(max_tokens), 1, 1u << 24, 0, RUN, "N",
      "most tokens to generate per prompt (256)" },
    { "temperature", REAL, AT(temperature), 0, 0, 100, RUN, "T", "0 is greedy (0)" },
    { "top-k", NUMBER, AT(top_k), 0, 1u << 22, 0, RUN, "K",
      "sample from the K likeliest; 0: all (0)" },
    { "top-p", REAL, AT(top_p), 0, 0, 1, RUN, "P", "sample from the likeliest that reach P (1)" },
    { "stop", STOP, AT(stops), 0, 0, 0, RUN, "TEXT", "end before this text; may be repeated" },
    { "ignore-eos", SWITCH, AT(ignore_eos), 0, 0, 0, RUN, NULL,
      "go on after the model's end token" },
    { "logits-out", OUTPUT, AT(logits_out), 0, 0, 0, RUN | BENCH, "FILE.npy",
      "float32 [step, vocabulary] of the first prompt; bench: of the first run" },
    { "trace", OUTPUT, AT(trace), 0, 0, 0, RUN | BENCH, "FILE",
      "routing trace (docs/trace-format.md)" },
    { "trace-scores", SWITCH, AT(trace_scores), 0, 0, 0, RUN | BENCH, NULL,
      "what the router said of every expert goes into the trace" },
    { "decision-log", OUTPUT, AT(decision_log), 0, 0, 0, RUN | BENCH, "FILE",
      "arguments and results of policies' calls, for moepager replay" },
    { "timeline", OUTPUT, AT(timeline), 0, 0, 0, RUN | BENCH, "FILE",
      "timeline for ui.perfetto.dev" },
    { "prompt-tokens", NUMBER, AT(prompt_tokens), 1, 1u << 24, 0, BENCH, "N",
      "length of the prompt (64)" },
    { "gen-tokens", NUMBER, AT(gen_tokens), 1, 1u << 24, 0, BENCH, "N", "tokens to generate (64)" },
    { "tokens-file", INPUT, AT(tokens_file), 0, 0, 0, BENCH, "FILE",
      "token ids: the prompt, then what is generated, whatever the logits say" },
    { "route-from", INPUT, AT(route_from), 0, 0, 0, BENCH, "TRACE",
      "experts are chosen as in this trace, whatever the model's routers say" },
    { "route-from", INPUT, AT(route_from), 0, 0, 0, CALIBRATE, "TRACE",
      "instead of a text: which experts this trace chose, and nothing else" },
    { "batch", NUMBER, AT(batch), 1, 64, 0, BENCH | PERPLEXITY, "N",
      "prompts, or windows of text, at once (1)" },
    { "repeat", NUMBER, AT(repeat), 1, 1000, 0, BENCH, "R",
      "runs; the median one is reported (3)" },
    { "check-values", SWITCH, AT(check_values), 0, 0, 0, INFO, NULL,
      "open the tokenizer, read all weights and look for NaN and infinity" },
    { "markdown", SWITCH, AT(markdown), 0, 0, 0, ENV, NULL, "the text of docs/options.md" },
    { "out", TEXT, AT(out), 0, 0, 0, REPACK, "DIR", "new or empty directory for the copy" },
    { "shard-bytes", BYTES, AT(shard_bytes), 1, UINT64_MAX, 0, REPACK, "SIZE",
      "most bytes per file (5GiB)" },
    { "force", SWITCH, AT(force), 0, 0, 0, REPACK, NULL,
      "replace a model that is in --out, or write among other files" },
    { "evict", TEXT, AT(evicts), 0, 0, 0, REPLAY, "A,B",
      "policies: belady or evict policies (belady and all of them)" },
    { "profile", TEXT, AT(profiles), 0, 0, 0, REPLAY, "A,B",
      "profiles: evict, admit and partition of each" },
    { "partition", TEXT, AT(partition), 0, 0, 0, REPLAY, "P",
      "who competes for slots (global, or the profile's)" },
    { "budget", TEXT, AT(budgets), 0, 0, 0, REPLAY, "X,Y",
      "sizes, or shares of all experts such as 25%" },
    { "accounting", TEXT, AT(accounting), 0, 0, 0, REPLAY, "A",
      "pager or curve, see docs/replay.md (pager)" },
    { "machine", INPUT, AT(machine), 0, 0, 0, SIMULATE, "NAME",
      "its description: a built-in one or a file (docs/simulate.md)" },
    { "model", INPUT, AT(model), 0, 0, 0, SIMULATE, "NAME", "the same of the model" },
    { "set", TEXT, AT(changes), 0, 0, 0, SIMULATE, "KEY=N,...",
      "other numbers than those of the descriptions, such as launch_us=50" },
    { "profile", TEXT, AT(profiles), 0, 0, 0, SIMULATE, "A,B",
      "sets of policies (the default one)" },
    { "batch", TEXT, AT(batches), 0, 0, 0, SIMULATE, "N,M", "sequences at once (1)" },
    { "warm", NUMBER, AT(warm_tokens), 0, 1u << 20, 0, SIMULATE, "N",
      "steps of decode before the prompt, that nothing counts (0)" },
    { "prompt", NUMBER, AT(prompt_tokens), 1, 1u << 20, 0, SIMULATE, "N",
      "tokens of each prompt (64)" },
    { "gen", NUMBER, AT(gen_tokens), 0, 1u << 20, 0, SIMULATE, "N",
      "tokens to generate for each (64)" },
    { "trace", INPUT, AT(trace), 0, 0, 0, SIMULATE, "FILE",
      "routing from a trace instead of made-up routing" },
    { "timeline", OUTPUT, AT(timeline), 0, 0, 0, SIMULATE, "FILE",
      "timeline for ui.perfetto.dev, of one run" },
    { "text", INPUT, AT(text), 0, 0, 0, CALIBRATE | PERPLEXITY, "FILE",
      "text to run; - is standard input" },
    { "out", OUTPUT, AT(out), 0, 0, 0, CALIBRATE, "FILE",
      "where to write (moepager-calibration.safetensors beside the model)" },
    { "window", NUMBER, AT(window), 2, 1u << 20, 0, CALIBRATE | PERPLEXITY, "N",
      "tokens that see each other; the text is cut into such pieces (256)" },
    { "tokens", NUMBER, AT(tokens), 2, UINT64_MAX - 1, 0, CALIBRATE | PERPLEXITY, "N",
      "use only the first N tokens (all)" },
    { "features", SWITCH, AT(features), 0, 0, 0, CALIBRATE, NULL,
      "also write moepager-features.safetensors, to train predictors from" },
    { "evaluate", SWITCH, AT(evaluate), 0, 0, 0, CALIBRATE, NULL,
      "write nothing; show how well each predict policy does on the text" },
    { "sweep", TEXT, AT(sweep), 0, 0, 0, PERPLEXITY, "NAME=A,B",
      "once for each value of this setting, such as smoe-alpha=0,0.1,0.2" },
    { "receipt", SWITCH, AT(receipt), 0, 0, 0, RUN, NULL,
      "run again with the model's own routing and compare" },
    { "device", TEXT, AT(device), 0, 0, 0, PROBE, "cuda:N", "which GPU (cuda:0)" },
    { "hidden", NUMBER, AT(hidden), 1, 1u << 20, 0, PROBE, "N",
      "width of the expert that is timed (2048, or that of --model)" },
    { "channels", NUMBER, AT(channels), 1, 1u << 20, 0, PROBE, "N",
      "its channels (768, or those of --model)" },
    { "fresh", SWITCH, AT(fresh), 0, 0, 0, PROBE, NULL,
      "measure, even if it has been measured on this GPU and driver before" },
    { "child", SWITCH, AT(child), 0, 0, 0, PROBE, NULL,
      "measure in this process and print lines, as the command does for itself" },
    { "skip", TEXT, AT(skip), 0, 0, 0, PROBE, "A,B", "with --child: steps to leave out" },
    { "csv", SWITCH, AT(csv), 0, 0, 0, REPLAY, NULL, "one line per policy and budget" },
    { "plot", OUTPUT, AT(plot), 0, 0, 0, REPLAY, "FILE.svg", "hit rate in decode against budget" },
    { "json", SWITCH, AT(json), 0, 0, 0,
      RUN | BENCH | INFO | ENV | REPACK | REPLAY | SIMULATE | CALIBRATE | PERPLEXITY | PROBE, NULL,
      "one JSON object on standard output" },
    { "help", SWITCH, AT(help), 0, 0, 0,
      RUN | BENCH | INFO | ENV | REPACK | REPLAY | SIMULATE | CALIBRATE | PERPLEXITY | PROBE, NULL,
      "this page" },
};

/* Settings that are worth naming in the help of a command. */
#define ENGINE_SETTINGS \
    "--budget 2GiB|25%|all, --ctx N, --threads N, --profile P, --evict NAME, --seed S, ..."

static const struct {
    const char *name, *summary, *settings, *examples;
} commands[MP_COMMAND_COUNT] = {
    { "run", "generate text", ENGINE_SETTINGS,
      "  moepager run --model models/tiny-moe --prompt 'def main():' --budget 25%\n"
      "  moepager run --model DIR --chat --prompt 'Why is the sky blue?' --temperature 0.7 --seed 3\n"
      "  moepager run --model DIR --batch-file prompts.txt --json --timeline out.json\n" },
    { "bench", "measure prefill and decode", ENGINE_SETTINGS,
      "  moepager bench --model models/tiny-moe --prompt-tokens 64 --gen-tokens 64 --budget 25%\n"
      "  moepager bench --model DIR --batch 4 --repeat 5 --evict lfu --json\n"
      "  moepager bench --model DIR --tokens-file ids.txt --logits-out logits.npy\n" },
    { "info", "machine, policies; with --model also its sizes", ENGINE_SETTINGS,
      "  moepager info\n"
      "  moepager info --model models/tiny-moe --json\n" },
    { "env", "every environment variable: default, range, current value", ENGINE_SETTINGS,
      "  moepager env\n"
      "  MOEPAGER_BUDGET=2GiB moepager env --json\n" },
    { "repack", "copy a model into the order that paging reads fastest",
      "--slices N: store each expert in so many slices (docs/repack.md)",
      "  moepager repack --model DIR --out DIR-repacked\n"
      "  moepager repack --model DIR --out NEW --shard-bytes 2GiB --json\n"
      "  moepager repack --model DIR --out NEW --slices 4\n" },
    { "replay", "what policies would have done on a trace; a decision log again",
      "--slices N, --predict NAME, --calibration FILE, --seed S, settings of policies, ...",
      "  moepager replay trace.txt --evict belady,lru,layer-lfu --budget 500MiB,1GiB,25%\n"
      "  moepager replay decisions.log\n"
      "  moepager replay trace.txt --profile lru,gate-lru --budget 10%,25%,50% --plot lines.svg\n"
      "  moepager replay trace.txt --evict lru --partition uniform --budget 25% --json\n" },
    { "simulate", "what profiles would do for a model on a described machine",
      "--budget 25%, --evict NAME and the like, --slices N, --calibration FILE, --seed S, ...",
      "  moepager simulate --machine rtx3090-epyc7532 --model deepseek-v2-lite --batch 8,16,32\n"
      "  moepager simulate --machine h200 --model mixtral-8x7b --profile lru,gate-lru --budget 25% "
      "--json\n"
      "  moepager simulate --machine rtx3090-epyc7532 --model qwen3-30b-a3b --profile dali \\\n"
      "      --batch 8 --gen 8 --set launch_us=50,skew=0.5 --timeline dali.json\n" },
    { "calibrate", "learn from a text what policies want to know of a model", ENGINE_SETTINGS,
      "  moepager calibrate --model models/tiny-moe --text train.txt\n"
      "  moepager calibrate --model DIR --text train.txt --features --tokens 65536\n"
      "  moepager calibrate --model DIR --route-from trace.txt --out hot.safetensors\n"
      "  moepager calibrate --model DIR --text heldout.txt --evaluate --budget 50% --json\n" },
    { "perplexity", "how well a model predicts a text, with any routing", ENGINE_SETTINGS,
      "  moepager perplexity --model models/tiny-moe --text heldout.txt\n"
      "  moepager perplexity --model DIR --text heldout.txt --route smoe --budget 50% \\\n"
      "      --sweep smoe-alpha=0,0.1,0.2,0.3\n" },
    { "probe", "measure GPU, link and CPU for the policies that choose who computes",
      "--cache-dir DIR, --watchdog SECONDS, ...",
      "  moepager probe\n"
      "  moepager probe --model DIR --device cuda:1 --fresh --json\n" },
};

enum mp_command mp_command_find(const char *name)
{
    for (unsigned i = 0; i < MP_COMMAND_COUNT; i++) {
        if (!strcmp(commands[i].name, name))
            return (enum mp_command)i;
    }
    return MP_COMMAND_COUNT;
}

/* The flag called `name` (bytes long) of a command, or NULL. */
static const struct flag *find_flag(enum mp_command command, const char *name, size_t bytes)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(flags); i++) {
        if (strlen(flags[i].name) == bytes && !memcmp(flags[i].name, name, bytes) &&
            flags[i].commands & 1u << command)
            return &flags[i];
    }
    return NULL;
}

static enum mp_status bad_value(const struct flag *flag, const char *value, const char *need)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--%s: got '%s', need %s", flag->name,
                   mp_quote(quoted, value, strlen(value)), need);
}

/* Numbers of flags obey the same parser as settings. */
static enum mp_status set_number(const struct flag *flag, const char *value, void *field)
{
    const struct mp_opt opt = {
        .name = flag->name,
        .kind = flag->kind == REAL    ? MP_OPT_F64
                : flag->kind == BYTES ? MP_OPT_BYTES
                                      : MP_OPT_U64,
        .min = flag->min,
        .max = flag->max,
        .f64_max = flag->real_max,
    };
    char need[MP_OPT_TEXT_BYTES];

    return mp_opt_parse(&opt, value, field) ? MP_OK
                                            : bad_value(flag, value, mp_opt_describe(&opt, need));
}

static enum mp_status set_flag(const struct flag *flag, const char *value, struct mp_args *args)
{
    void *field = (char *)args + flag->offset;
    char quoted[MP_QUOTE_BYTES];

    switch (flag->kind) {
    case SWITCH: *(uint64_t *)field = 1; return MP_OK;
    case TEXT:
    case INPUT:
    case OUTPUT: *(const char **)field = value; return MP_OK;
    case STOP:
        if (args->stop_count == MP_STOPS_MAX)
            return bad_value(flag, value, "at most 16 stop texts");
        if (*value == '\0')
            return mp_fail(MP_ERR_CONFIG, "E_STOP_EMPTY", "--stop: a stop text is empty");
        if (!mp_is_utf8(value, strlen(value)))
            return mp_fail(MP_ERR_CONFIG, "E_STOP_UTF8",
                           "--stop: '%s' is not UTF-8, so no text can have it",
                           mp_quote(quoted, value, strlen(value)));
        args->stops[args->stop_count++] = value;
        return MP_OK;
    case NUMBER:
    case BYTES:
    case REAL: return set_number(flag, value, field);
    }
    return MP_OK;
}

/* The next argument, whatever it begins with; NULL if there is none. */
static const char *take_value(int argc, char **argv, int *i)
{
    if (*i + 1 >= argc)
        return NULL;
    return argv[++*i];
}

#define GROUPS_MAX 128
#define FLAG_NAME_BYTES 32

/* What other programs call a flag of ours, with their dashes. */
static const struct {
    const char *theirs, *ours;
} other_names[] = {
    { "--temp", "temperature" },
    { "--n-predict", "max-tokens" },
    { "-n", "max-tokens" },
    { "--max-new-tokens", "max-tokens" },
    { "-p", "prompt" },
    { "-f", "prompt-file" },
    { "--file", "prompt-file" },
    { "-m", "model" },
    { "-c", "ctx" },
    { "--ctx-size", "ctx" },
    { "-t", "threads" },
    { "-s", "seed" },
    { "--system-prompt", "system" },
};

/* Our name for a flag of another program, if the command has it; else NULL. '_' counts as '-'. */
static const char *find_other_name(enum mp_command command, const char *name,
                                   const struct mp_settings *settings)
{
    char dashed[FLAG_NAME_BYTES];

    snprintf(dashed, sizeof(dashed), "%s", name);
    for (char *at = dashed; *at != '\0'; at++)
        *at = *at == '_' ? '-' : *at;
    for (size_t i = 0; i < MP_ARRAY_LEN(other_names); i++) {
        const char *ours = other_names[i].ours;

        if (strcmp(other_names[i].theirs, dashed) == 0 &&
            (find_flag(command, ours, strlen(ours)) != NULL ||
             mp_opt_find(settings->groups, ours, NULL) != NULL))
            return ours;
    }
    return NULL;
}

/* The flags of the command as options, so that the message finds the nearest name among both. */
static enum mp_status unknown_flag(enum mp_command command, const char *name,
                                   const struct mp_settings *settings)
{
    char names[MP_ARRAY_LEN(flags)][FLAG_NAME_BYTES];
    struct mp_opt table[MP_ARRAY_LEN(flags) + 1] = { 0 };
    struct mp_opt_group groups[GROUPS_MAX] = { { "MOEPAGER_", table, NULL, NULL } };
    const char *ours = find_other_name(command, name, settings);
    char quoted[MP_QUOTE_BYTES];
    size_t count = 0;

    if (ours != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_OPTION", "unknown option '%s'; did you mean '--%s'?",
                       mp_quote(quoted, name, strlen(name)), ours);
    for (size_t i = 0; i < MP_ARRAY_LEN(flags); i++) {
        if (!(flags[i].commands & 1u << command))
            continue;
        snprintf(names[count], FLAG_NAME_BYTES, "%s", flags[i].name);
        for (char *at = names[count]; *at != '\0'; at++)
            *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
        table[count].name = names[count];
        count++;
    }
    for (count = 0; settings->groups[count].prefix != NULL && count + 2 < GROUPS_MAX; count++)
        groups[count + 1] = settings->groups[count];
    return mp_opt_unknown(groups, name);
}

static enum mp_status parse_setting(enum mp_command command, const char *arg, int argc, char **argv,
                                    int *i, struct mp_settings *settings)
{
    const char *equals = strchr(arg, '=');
    char name[128], quoted[MP_QUOTE_BYTES];
    const struct mp_opt *opt;
    const char *value;
    uint64_t ignored;

    snprintf(name, sizeof(name), "%.*s", (int)(equals != NULL ? equals - arg : (long)strlen(arg)),
             arg);
    opt = mp_opt_find(settings->groups, name, NULL);
    if (opt == NULL)
        return unknown_flag(command, name, settings);
    if (equals != NULL)
        return mp_opt_set(settings->groups, name, equals + 1);
    if (opt->kind == MP_OPT_BOOL && !(*i + 1 < argc && mp_opt_parse(opt, argv[*i + 1], &ignored)))
        return mp_opt_set(settings->groups, name, NULL);
    value = take_value(argc, argv, i);
    if (value == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "'%s' needs a value",
                       mp_quote(quoted, name, strlen(name)));
    return mp_opt_set(settings->groups, name, value);
}

static enum mp_status parse_one(enum mp_command command, int argc, char **argv, int *i,
                                struct mp_args *args, struct mp_settings *settings)
{
    const char *arg = argv[*i];
    const char *equals = strchr(arg, '=');
    char quoted[MP_QUOTE_BYTES];
    const struct flag *flag;
    const char *value;

    if (command == MP_COMMAND_REPLAY && arg[0] != '-' && args->replayed == NULL) {
        args->replayed = arg;
        return MP_OK;
    }
    if (strcmp(arg, "-h") == 0)
        arg = "--help";
    if (find_other_name(command, arg, settings) != NULL)
        return unknown_flag(command, arg, settings);
    if (strncmp(arg, "--", 2) != 0)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "'%s' is not a flag; flags begin with -- (see moepager %s --help)",
                       mp_quote(quoted, arg, strlen(arg)), commands[command].name);
    flag =
        find_flag(command, arg + 2, equals != NULL ? (size_t)(equals - arg - 2) : strlen(arg + 2));
    if (flag == NULL)
        return parse_setting(command, arg, argc, argv, i, settings);
    if (flag->kind == SWITCH && equals != NULL)
        return bad_value(flag, equals + 1, "no value");
    value = equals != NULL ? equals + 1 : flag->kind == SWITCH ? "" : take_value(argc, argv, i);
    if (value == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--%s needs a value: %s", flag->name, flag->help);
    return set_flag(flag, value, args);
}

enum mp_status mp_args_parse(enum mp_command command, int argc, char **argv, struct mp_args *args,
                             struct mp_settings *settings)
{
    enum mp_status status = MP_OK;

    *args = (struct mp_args){
        .max_tokens = 256,
        .prompt_tokens = 64,
        .gen_tokens = 64,
        .batch = 1,
        .repeat = 3,
        .window = 256,
        .tokens = UINT64_MAX,
        .shard_bytes = MP_REPACK_SHARD_BYTES_DEFAULT,
        .temperature = -1,
        .top_p = -1,
        .top_k = UINT64_MAX,
    };
    for (int i = 2; i < argc && status == MP_OK; i++)
        status = parse_one(command, argc, argv, &i, args, settings);
    return status;
}

size_t mp_args_files(enum mp_command command, struct mp_args *args,
                     struct mp_args_file files[MP_ARGS_FILES_MAX])
{
    size_t count = 0;

    if (args->replayed != NULL)
        files[count++] = (struct mp_args_file){ "the replayed file", &args->replayed, false };
    for (size_t i = 0; i < MP_ARRAY_LEN(flags) && count < MP_ARGS_FILES_MAX; i++) {
        const char **path = (const char **)((char *)args + flags[i].offset);

        if ((flags[i].kind != INPUT && flags[i].kind != OUTPUT) ||
            !(flags[i].commands & 1u << command) || *path == NULL)
            continue;
        files[count] = (struct mp_args_file){ "", path, flags[i].kind == OUTPUT };
        snprintf(files[count].name, sizeof(files[count].name), "--%s", flags[i].name);
        count++;
    }
    return count;
}

void mp_args_print_usage(FILE *out)
{
    fprintf(out,
            "moepager %s: runs Mixture-of-Experts models whose experts do not fit into memory\n\n"
            "usage: moepager COMMAND [--flag value]...\n\n",
            MP_VERSION);
    for (unsigned i = 0; i < MP_COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(out,
            "\nmoepager COMMAND --help has flags and examples; every variable of moepager env is "
            "also a flag.\n"
            "exit codes: 0 ok, 2 usage, 3 bad model, 4 out of memory, 5 device lost, 6 input or "
            "output, 70 a bug, 130 interrupted\n");
}

void mp_args_print_help(enum mp_command command, FILE *out)
{
    fprintf(out, "moepager %s: %s\n\nusage: moepager %s%s [--flag value]...\n\n",
            commands[command].name, commands[command].summary, commands[command].name,
            command == MP_COMMAND_REPLAY ? " TRACE" : "");
    for (size_t i = 0; i < MP_ARRAY_LEN(flags); i++) {
        char left[64];

        if (!(flags[i].commands & 1u << command))
            continue;
        snprintf(left, sizeof(left), "--%s %s", flags[i].name,
                 flags[i].value != NULL ? flags[i].value : "");
        fprintf(out, "  %-22s %s\n", left, flags[i].help);
    }
    fprintf(out,
            "\n  %s\n"
            "  also every variable that moepager env lists, in lower case and with dashes\n"
            "\nexamples\n%s",
            commands[command].settings, commands[command].examples);
}
