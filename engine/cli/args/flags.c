/*
 * The tables of commands and of their flags. Nothing is parsed or printed here.
 */
#include "engine/cli/args/flags.h"

#include <stdio.h>
#include <string.h>

#define RUN MP_COMMAND_BIT(RUN)
#define BENCH MP_COMMAND_BIT(BENCH)
#define INFO MP_COMMAND_BIT(INFO)
#define ENV MP_COMMAND_BIT(ENV)
#define REPACK MP_COMMAND_BIT(REPACK)
#define REPLAY MP_COMMAND_BIT(REPLAY)
#define SIMULATE MP_COMMAND_BIT(SIMULATE)
#define CALIBRATE MP_COMMAND_BIT(CALIBRATE)
#define EVAL MP_COMMAND_BIT(EVAL)
#define PROBE MP_COMMAND_BIT(PROBE)
#define DOCTOR MP_COMMAND_BIT(DOCTOR)
#define PRELOAD MP_COMMAND_BIT(PRELOAD)
#define SERVE MP_COMMAND_BIT(SERVE)
#define CHAT MP_COMMAND_BIT(CHAT)
#define TOKENIZE MP_COMMAND_BIT(TOKENIZE)
#define PLAN MP_COMMAND_BIT(PLAN)
#define TOP MP_COMMAND_BIT(TOP)
#define PLOT MP_COMMAND_BIT(PLOT)
#define ALL ((1u << MP_COMMAND_COUNT) - 1)

#define AT(field) offsetof(struct mp_args, field)
#define BASIC false
#define EXPERT true

#define SWITCH(name, field, commands, expert, help)                            \
    {                                                                          \
        name, MP_FLAG_SWITCH, AT(field), 0, 0, 0, commands, expert, NULL, help \
    }
#define LIST(name, field, commands, expert, value, help)                      \
    {                                                                         \
        name, MP_FLAG_LIST, AT(field), 0, 0, 0, commands, expert, value, help \
    }
#define TEXT(name, field, commands, expert, value, help)                      \
    {                                                                         \
        name, MP_FLAG_TEXT, AT(field), 0, 0, 0, commands, expert, value, help \
    }
#define INPUT(name, field, commands, expert, value, help)                      \
    {                                                                          \
        name, MP_FLAG_INPUT, AT(field), 0, 0, 0, commands, expert, value, help \
    }
#define OUTPUT(name, field, commands, expert, value, help)                      \
    {                                                                           \
        name, MP_FLAG_OUTPUT, AT(field), 0, 0, 0, commands, expert, value, help \
    }
#define NUMBER(name, field, min, max, commands, expert, value, help)                \
    {                                                                               \
        name, MP_FLAG_NUMBER, AT(field), min, max, 0, commands, expert, value, help \
    }
#define REAL(name, field, max, commands, expert, value, help)                   \
    {                                                                           \
        name, MP_FLAG_REAL, AT(field), 0, 0, max, commands, expert, value, help \
    }

/* Sentences of flags with several rows. */
#define MODEL_HELP "directory, GGUF file or cached ORG/NAME; simulate, plan: a description"
#define OUT_HELP "repack: a new directory, or GGUF file; calibrate: a file (in the model's)"
#define PROMPT_TOKENS_HELP "tokens of each prompt (64)"
#define GEN_TOKENS_HELP "tokens to generate for each prompt (64)"

const struct mp_flag mp_flags[] = {
    SWITCH("perplexity", perplexity, EVAL, BASIC,
           "how well the model predicts the text, with the chosen routing"),
    SWITCH("divergence", divergence, EVAL, BASIC,
           "how far the chosen routing moves the output from the model's own"),
    SWITCH("predictors", predictors, EVAL, BASIC,
           "how often each predict policy guesses the experts of the next layer"),
    SWITCH("tokens-ahead", tokens_ahead, EVAL, BASIC,
           "how well the next tokens' experts are guessed; what that gains"),
    TEXT("model", model, ALL & ~(ENV | REPLAY | SIMULATE | PRELOAD | TOP | PLOT), BASIC, "MODEL",
         MODEL_HELP),
    INPUT("model", model, SIMULATE, BASIC, "MODEL", MODEL_HELP),
    INPUT("machine", machine, SIMULATE | PLAN, BASIC, "NAME",
          "the machine's description: a built-in one or a file (docs/simulate.md)"),
    INPUT("cluster", cluster, SIMULATE | BENCH | SERVE, BASIC, "FILE",
          "servers (docs/simulate.md); bench, serve: MPI ranks (docs/cluster.md)"),
    INPUT("requests", requests, SIMULATE | BENCH, BASIC, "FILE",
          "with --cluster: what the users of each server ask for (docs/cluster.md)"),
    TEXT("place", places, SIMULATE | BENCH | SERVE, BASIC, "A,B",
         "with --cluster: placements to compare (all); bench, serve: one (prism)"),
    TEXT("prompt", prompt, RUN | TOKENIZE, BASIC, "TEXT", "text to continue"),
    INPUT("prompt-file", prompt_file, RUN | TOKENIZE, BASIC, "FILE",
          "the whole file is the prompt; -: standard input, without its last newline"),
    INPUT("batch-file", batch_file, RUN, BASIC, "FILE",
          "one prompt per line, 1 to 64, processed together"),
    SWITCH("special", special, RUN | TOKENIZE, BASIC,
           "names of special tokens in the prompt, such as <|im_end|>, mean them"),
    SWITCH("chat", chat, RUN, BASIC, "put the prompt into the model's chat format"),
    TEXT("system", system, RUN | CHAT, BASIC, "TEXT", "system message of a chat"),
    INPUT("chat-template", chat_template, RUN | CHAT | SERVE, BASIC, "NAME",
          "chat format instead of the model's: chatml, or a file with a template"),
    NUMBER("max-tokens", max_tokens, 1, 1u << 24, RUN | SERVE | CHAT, BASIC, "N",
           "most tokens to generate per prompt (256; serve, chat: the context)"),
    REAL("temperature", temperature, 100, RUN | SERVE | CHAT, BASIC, "T", "0 is greedy (0)"),
    NUMBER("top-k", top_k, 0, 1u << 22, RUN | SERVE | CHAT, BASIC, "K",
           "sample from the K most likely tokens; 0: from all (0)"),
    REAL("top-p", top_p, 1, RUN | SERVE | CHAT, BASIC, "P",
         "sample from the most likely tokens that together reach probability P (1)"),
    { "stop", MP_FLAG_STOP, AT(stops), 0, 0, 0, RUN | CHAT, BASIC, "TEXT",
      "end before this text; may be repeated" },
    SWITCH("ignore-eos", ignore_eos, RUN, EXPERT, "continue after the model's end token"),
    NUMBER("prompt-tokens", prompt_tokens, 1, 1u << 24, BENCH, BASIC, "N", PROMPT_TOKENS_HELP),
    NUMBER("prompt-tokens", prompt_tokens, 1, 1u << 20, SIMULATE | PLAN, BASIC, "N",
           PROMPT_TOKENS_HELP),
    NUMBER("gen-tokens", gen_tokens, 1, 1u << 24, BENCH, BASIC, "N", GEN_TOKENS_HELP),
    NUMBER("gen-tokens", gen_tokens, 1, 1u << 20, PLAN, BASIC, "N", GEN_TOKENS_HELP),
    NUMBER("gen-tokens", gen_tokens, 0, 1u << 20, SIMULATE, BASIC, "N", GEN_TOKENS_HELP),
    NUMBER("batch", batch, 1, 64, BENCH | EVAL | SERVE, BASIC, "N",
           "sequences at once (1; eval --predictors: 32; serve: 8)"),
    TEXT("batches", batches, SIMULATE, BASIC, "N,M",
         "numbers of sequences at once; simulates each (1)"),
    NUMBER("repeat", repeat, 1, 1000, BENCH, BASIC, "R", "runs; the median one is reported (3)"),
    INPUT("tokens-file", tokens_file, BENCH, EXPERT, "FILE",
          "token ids: the prompt, then what is generated, whatever the logits are"),
    INPUT("from-trace", from_trace, BENCH | CALIBRATE | SIMULATE | PLAN, EXPERT, "FILE",
          "take the routing from this trace instead of the model's routers"),
    OUTPUT("trace", trace, RUN | BENCH, BASIC, "FILE",
           "write which experts the router chose (docs/trace-format.md)"),
    OUTPUT("trace-out", trace, SIMULATE, EXPERT, "FILE",
           "write the made-up routing of one run (docs/trace-format.md)"),
    SWITCH("trace-scores", trace_scores, RUN | BENCH, EXPERT,
           "write the router's scores of all experts into the trace, too"),
    OUTPUT("decision-log", decision_log, RUN | BENCH, EXPERT, "FILE",
           "write all calls of policies and their results, for moepager replay"),
    OUTPUT("logits-out", logits_out, RUN | BENCH, EXPERT, "FILE",
           "write .npy, float32 [step, vocabulary], of the first prompt and run"),
    OUTPUT("timeline", timeline, RUN | BENCH | SIMULATE, EXPERT, "FILE",
           "write a timeline for ui.perfetto.dev (simulate: of one run only)"),
    INPUT("text", text, CALIBRATE | EVAL, BASIC, "FILE",
          "text to run through the model; - is standard input"),
    NUMBER("tokens", tokens, 2, UINT64_MAX - 1, CALIBRATE | EVAL, BASIC, "N",
           "use only the first N tokens of the text or trace (all)"),
    NUMBER("window", window, 2, 1u << 20, CALIBRATE | EVAL, EXPERT, "N",
           "cut the text into windows of N tokens that do not see each other (256)"),
    TEXT("sweep", sweep, EVAL, BASIC, "NAME=A,B",
         "--perplexity for each value of this setting, such as smoe-alpha=0,0.1,0.2"),
    TEXT("reference", reference, EVAL, BASIC, "MODEL",
         "--divergence from this model, such as the source of a quantised one"),
    SWITCH("features", features, CALIBRATE, EXPERT,
           "also write moepager-features.safetensors, to train predictors from"),
    SWITCH("by-token", token_heat, CALIBRATE, EXPERT,
           "also write moepager-tokens.safetensors, which --lookahead begins with"),
    TEXT("out", out, REPACK, BASIC, "PATH", OUT_HELP),
    OUTPUT("out", out, CALIBRATE, BASIC, "PATH", OUT_HELP),
    TEXT("type", type, REPACK, BASIC, "TYPE",
         "write weights as q8_0, q4_k_m, mxfp4, bf16, ... (docs/repack.md)"),
    TEXT("to", to, REPACK, BASIC, "FORM", "gguf or safetensors (with --type gguf)"),
    INPUT("imatrix", imatrix, REPACK, EXPERT, "FILE",
          "importance of columns from llama-imatrix, for --type"),
    { "shard-bytes", MP_FLAG_BYTES, AT(shard_bytes), 1, UINT64_MAX, 0, REPACK, EXPERT, "SIZE",
      "most bytes per file (5GiB)" },
    SWITCH("force", force, REPACK, BASIC, "replace what is in --out, or write among other files"),
    SWITCH("check-values", check_values, INFO, BASIC,
           "open the tokenizer, read all weights and look for NaN and infinity"),
    SWITCH("markdown", markdown, ENV, EXPERT, "print the text of docs/options.md"),
    TEXT("page", page, ENV, EXPERT, "KIND",
         "print a page: man, or completions for bash, zsh or fish"),
    TEXT("profile", profiles, REPLAY | SIMULATE | PLAN, BASIC, "A,B",
         "profiles to compare; replay takes evict, admit and partition of each"),
    TEXT("evict", evicts, REPLAY, BASIC, "A,B",
         "evict policies to compare, and belady, the bound (belady and all of them)"),
    TEXT("partition", partition, REPLAY, BASIC, "P",
         "who competes for slots (global, or the profile's)"),
    TEXT("budget", budgets, REPLAY | PLAN, BASIC, "X,Y",
         "sizes, or shares of all experts such as 25%, to compare"),
    TEXT("accounting", accounting, REPLAY, EXPERT, "A",
         "pager or curve, see docs/replay.md (pager)"),
    SWITCH("csv", csv, REPLAY, BASIC, "one line per policy and budget"),
    TEXT("target-tpot", target_tpot, PLAN, BASIC, "TIME",
         "find the least budget that gives a token in this time, such as 100ms"),
    LIST("set", changes, SIMULATE | PLAN, EXPERT, "KEY=N,...",
         "replace numbers of the descriptions, such as launch_us=50"),
    NUMBER("warm", warm_tokens, 0, 1u << 20, SIMULATE, EXPERT, "N",
           "decode steps before the prompt, which are not counted (0)"),
    SWITCH("fresh", fresh, PROBE, BASIC,
           "measure, even if it has been measured on this GPU and driver before"),
    NUMBER("hidden", hidden, 1, 1u << 20, PROBE, EXPERT, "N",
           "width of the expert that is timed (2048, or that of --model)"),
    NUMBER("channels", channels, 1, 1u << 20, PROBE, EXPERT, "N",
           "its channels (768, or those of --model)"),
    NUMBER("experts", experts, 1, 1024, PROBE, EXPERT, "N",
           "experts of a list, as a layer has for a token (8, or those of --model)"),
    TEXT("types", types, PROBE, EXPERT, "A,B",
         "types of gate and up, and of down (bf16, or those of --model)"),
    SWITCH("child", child, PROBE, EXPERT,
           "measure in this process and print lines, as the command does for itself"),
    TEXT("skip", skip, PROBE, EXPERT, "A,B", "with --child: steps to leave out"),
    TEXT("host", host, SERVE, BASIC, "ADDRESS",
         "address to listen on; with keys also a public one (127.0.0.1)"),
    NUMBER("port", port, 0, 65535, SERVE, BASIC, "N", "port to listen on; 0: any free one (8080)"),
    INPUT("api-key-file", api_key_file, SERVE, BASIC, "FILE",
          "serve only who has a key of this file; SIGHUP reads it again"),
    INPUT("tls-cert", tls_cert, SERVE, BASIC, "FILE",
          "certificate in PEM: serve https; SIGHUP reads it again"),
    INPUT("tls-key", tls_key, SERVE, BASIC, "FILE", "its key in PEM; SIGHUP reads it again"),
    NUMBER("queue", queue, 1, 65536, SERVE, BASIC, "N",
           "answers that may wait for a sequence; more are refused (64)"),
    NUMBER("chunk-tokens", chunk_tokens, 1, 65535, SERVE, EXPERT, "N",
           "tokens of prompts per step while answers are being generated (64)"),
    { "memory", MP_FLAG_BYTES, AT(memory), 1, 1ull << 50, 0, SERVE, BASIC, "SIZE",
      "RAM for everything, divided by measured worth; in place of --budget" },
    { "prefix-memory", MP_FLAG_BYTES, AT(prefix_memory), 0, 1ull << 50, 0, SERVE, EXPERT, "SIZE",
      "RAM for prompts that no sequence holds (256MiB, or 1/32 of the RAM)" },
    { "request-bytes", MP_FLAG_BYTES, AT(request_bytes), 1024, 1u << 28, 0, SERVE, EXPERT, "SIZE",
      "the largest request (4MiB)" },
    NUMBER("connections", connections, 1, 65536, SERVE, EXPERT, "N",
           "connections at once; more wait or are refused (256)"),
    NUMBER("idle", idle_s, 1, 86400, SERVE, EXPERT, "SECONDS",
           "time for a connection to send a whole request, and without one (30)"),
    NUMBER("answer-time", answer_s, 1, 604800, SERVE, EXPERT, "SECONDS",
           "the longest that a request may take (3600)"),
    NUMBER("grace", grace_s, 0, 86400, SERVE, EXPERT, "SECONDS",
           "time for answers in progress when the server is to end (30)"),
    SWITCH("check", check, PRELOAD, BASIC, "start nothing; show what would happen, and obstacles"),
    SWITCH("json", json, ALL & ~PLOT, BASIC, "print one JSON object on standard output"),
    SWITCH("help", help, ALL, BASIC, "print the main flags and examples"),
    SWITCH("help-all", help_all, ALL, BASIC, "print all flags and settings"),
};

const size_t mp_flag_count = MP_ARRAY_LEN(mp_flags);

const struct mp_flag_alias mp_flag_aliases[] = {
    { "-m", "model" },
    { "-p", "prompt" },
    { "-f", "prompt-file" },
    { "--file", "prompt-file" },
    { "-n", "max-tokens" },
    { "--n-predict", "max-tokens" },
    { "-n", "gen-tokens" },
    { "--n-predict", "gen-tokens" },
    { "--max-new-tokens", "max-tokens" },
    { "--temp", "temperature" },
    { "-c", "ctx" },
    { "--ctx-size", "ctx" },
    { "-t", "threads" },
    { "-s", "seed" },
    { "--system-prompt", "system" },
};

const size_t mp_flag_alias_count = MP_ARRAY_LEN(mp_flag_aliases);

bool mp_flag_alias_fits(const struct mp_flag_alias *alias, enum mp_command command,
                        const struct mp_settings *settings)
{
    return mp_flag_find(command, alias->ours, strlen(alias->ours)) != NULL ||
           (settings != NULL && mp_opt_find(settings->groups, alias->ours, NULL) != NULL);
}

/* Names of the version before; they are gone with the next one. `accepted`: still understood. */
static const struct {
    unsigned commands;
    const char *was, *is;
    bool accepted;
} renamed[] = {
    { SIMULATE, "--trace", "--from-trace", true },
    { SIMULATE, "--prompt", "--prompt-tokens", false },
    { SIMULATE, "--gen", "--gen-tokens", false },
    { SIMULATE, "--batch", "--batches", false },
    { BENCH | CALIBRATE, "--route-from", "--from-trace", false },
    { CALIBRATE, "--evaluate", "moepager eval --predictors", false },
    { RUN, "--receipt", "moepager eval --divergence", false },
    { REPLAY, "--plot", "--csv, drawn by moepager plot hits", false },
    { 1u << MP_COMMAND_COUNT, "perplexity", "moepager eval --perplexity", false },
};

/* What is left after Ctrl-C. */
#define KEEPS_ROWS "\n\nInterrupted, it prints the rows that are complete."
#define KEEPS_NOTHING "\n\nInterrupted, it writes nothing."

#define ENGINE_SETTINGS \
    "--budget 2GiB|25%|all, --ctx N, --threads N, --profile P, --evict NAME, --seed S"

/* In the order of MP_COMMAND_MAP. */
const struct mp_command_info mp_commands[MP_COMMAND_COUNT] = {
    { "run", "generate text", ENGINE_SETTINGS,
      "  moepager run --model models/tiny-moe --prompt 'def main():' --budget 25%\n"
      "  moepager run --model DIR --chat --prompt 'Why is the sky blue?' --temperature 0.7 --seed 3\n"
      "  moepager run --model DIR --batch-file prompts.txt --json --timeline out.json\n" },
    { "bench", "measure prefill and decode", ENGINE_SETTINGS,
      "  moepager bench --model models/tiny-moe --prompt-tokens 64 --gen-tokens 64 --budget 25%\n"
      "  moepager bench --model DIR --batch 4 --repeat 5 --evict lfu --json\n"
      "  moepager bench --model DIR --tokens-file ids.txt --logits-out logits.npy\n"
      "  mpirun -n 3 moepager bench --model DIR --cluster FILE --requests FILE --place prism\n" },
    { "info", "show machine and policies; with --model also its sizes", ENGINE_SETTINGS,
      "  moepager info\n"
      "  moepager info --model models/tiny-moe --json\n" },
    { "env", "show every setting: value, default, range", ENGINE_SETTINGS,
      "  moepager env\n"
      "  MOEPAGER_BUDGET=2GiB moepager env --json\n" },
    { "repack", "copy a model into the order that paging reads fastest, or quantise it",
      "--slices N: store each expert in N slices (docs/repack.md)",
      "  moepager repack --model DIR --out DIR-repacked\n"
      "  moepager repack --model DIR --out NEW --shard-bytes 2GiB --json\n"
      "  moepager repack --model DIR --out NEW --slices 4\n"
      "  moepager repack --model DIR --out NEW.gguf --type q4_k_m\n"
      "  moepager repack --model GPT-OSS-DIR --out NEW --type mxfp4 --to safetensors\n" },
    { "replay", "compare policies on a trace; replay a decision log",
      "--slices N, --predict NAME, --calibration FILE, --seed S, settings of policies" KEEPS_ROWS,
      "  moepager replay trace.txt --evict belady,lru,layer-lfu --budget 500MiB,1GiB,25%\n"
      "  moepager replay decisions.log\n"
      "  moepager replay trace.txt --profile lru,gate-lru --budget 10%,25%,50% --csv\n"
      "  moepager replay trace.txt --evict lru --partition uniform --budget 25% --json\n" },
    { "simulate", "compare profiles for a model on a described machine",
      "--budget 25%, --evict NAME, ..., --slices N, --calibration FILE, --seed S" KEEPS_ROWS,
      "  moepager simulate --machine rtx3090-epyc7532 --model deepseek-v2-lite --batches 8,16,32\n"
      "  moepager simulate --machine h200 --model mixtral-8x7b --profile lru,gate-lru --budget 25% "
      "--json\n"
      "  moepager simulate --machine rtx3090-epyc7532 --model qwen3-30b-a3b --profile dali \\\n"
      "      --batches 8 --gen-tokens 8 --set launch_us=50,skew=0.5 --timeline dali.json\n"
      "  moepager simulate --cluster tools/machines/bigbench.cluster --place uniform,prism,united\n" },
    { "calibrate", "measure a model on a text, for policies that use it",
      ENGINE_SETTINGS KEEPS_NOTHING,
      "  moepager calibrate --model models/tiny-moe --text train.txt\n"
      "  moepager calibrate --model DIR --text train.txt --features --tokens 65536\n"
      "  moepager calibrate --model DIR --from-trace trace.txt --out hot.safetensors\n" },
    { "eval", "measure what routing and predict policies do on a text", ENGINE_SETTINGS KEEPS_ROWS,
      "  moepager eval --perplexity --model models/tiny-moe --text heldout.txt\n"
      "  moepager eval --perplexity --model DIR --text heldout.txt --route smoe --budget 50% \\\n"
      "      --sweep smoe-alpha=0,0.1,0.2,0.3\n"
      "  moepager eval --divergence --model DIR --text heldout.txt --route smoe --budget 50%\n"
      "  moepager eval --divergence --model Q4.gguf --reference DIR --text heldout.txt\n"
      "  moepager eval --predictors --model DIR --text heldout.txt --budget 50% --json\n" },
    { "probe", "measure GPU, link and CPU, for policies that assign experts",
      "--device cuda:N: which GPU (cuda:0), --cache-dir DIR, --watchdog SECONDS",
      "  moepager probe\n"
      "  moepager probe --model DIR --device cuda:1 --fresh --json\n" },
    { "doctor", "find what of this machine is slow or missing",
      "--model MODEL: measure the disk that it lies on",
      "  moepager doctor\n"
      "  moepager doctor --model DIR --json\n" },
    { "preload", "start another program with its experts paged (docs/interpose.md)",
      "--budget 3GiB|60%|auto, --profile P, --evict NAME, --report 1|FILE, --trace FILE",
      "  moepager preload --budget 3GiB -- llama-server -m model.gguf\n"
      "  moepager preload --budget 60% --report 1 -- llama-cli -m model.gguf -p 'Once upon a time'\n"
      "  moepager preload -- python3 generate.py\n"
      "  moepager preload --check -- llama-bench -m model.gguf\n" },
    { "serve", "serve a model to OpenAI clients and browsers (docs/serve.md)", ENGINE_SETTINGS,
      "  moepager serve --model models/tiny-moe --budget 25%\n"
      "  moepager serve --model DIR --port 8000 --batch 16 --ctx 8192\n"
      "  moepager serve --model DIR --host 0.0.0.0 --api-key-file keys.txt\n" },
    { "chat", "talk to a model; /reset, /system, /save, /stats, /exit", ENGINE_SETTINGS,
      "  moepager chat --model models/tiny-moe --budget 25%\n"
      "  moepager chat --model DIR --system 'Be brief.' --temperature 0.7\n"
      "  printf 'hi\\nand now?\\n' | moepager chat --model DIR\n" },
    { "tokenize", "show the tokens of a text", "--log LEVEL",
      "  moepager tokenize --model models/tiny-moe --prompt 'def main():'\n"
      "  moepager tokenize --model DIR --prompt-file - --json\n" },
    { "plan", "what this or a described machine can do with a model",
      "--evict NAME, ..., --ctx N, --seed S" KEEPS_NOTHING,
      "  moepager plan --model DIR --target-tpot 100ms\n"
      "  moepager plan --model qwen3-30b-a3b --machine host-disk --budget 25%,50% --json\n"
      "  moepager plan --model DIR --from-trace trace.txt --profile lru,gate-best\n" },
    { "top", "what your running models do: tokens per second, hits, reads, RAM", "",
      "  moepager top\n"
      "  moepager top --json\n" },
    { "plot", "draw hit rates, experts, timelines or speed (Python, matplotlib)", "",
      "  moepager replay trace.txt --evict lru,lfu --budget 10%,25%,50% --csv | moepager plot hits\n"
      "  moepager plot heat trace.txt --out heat.svg\n"
      "  moepager plot timeline timeline.json\n"
      "  moepager plot speed plan.json bench.json\n" },
};

static const struct mp_flag *find_exactly(enum mp_command command, const char *name, size_t bytes)
{
    for (size_t i = 0; i < mp_flag_count; i++) {
        if (strlen(mp_flags[i].name) == bytes && !memcmp(mp_flags[i].name, name, bytes) &&
            mp_flags[i].commands & 1u << command)
            return &mp_flags[i];
    }
    return NULL;
}

const struct mp_flag *mp_flag_find(enum mp_command command, const char *name, size_t bytes)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(renamed); i++) {
        const char *was = renamed[i].was + 2, *is = renamed[i].is + 2;

        if (renamed[i].accepted && renamed[i].commands & 1u << command && strlen(was) == bytes &&
            !memcmp(was, name, bytes))
            return find_exactly(command, is, strlen(is));
    }
    return find_exactly(command, name, bytes);
}

bool mp_flag_is_of(enum mp_command command, const struct mp_opt_group *group)
{
    const bool preloaded = group->table == mp_preload_opts || group->table == mp_gpu_window_opts;

    if (group->table == mp_plugin_opts) /* loaded before flags are read */
        return false;
    return !preloaded || command == MP_COMMAND_PRELOAD || command == MP_COMMAND_ENV;
}

const char *mp_flag_new_name(enum mp_command command, const char *name)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(renamed); i++) {
        if (!renamed[i].accepted && renamed[i].commands & 1u << command &&
            strcmp(renamed[i].was, name) == 0)
            return renamed[i].is;
    }
    return NULL;
}

const char *mp_flag_commands(const struct mp_flag *flag, char out[128])
{
    unsigned commands = 0;
    size_t used = 0;

    for (size_t i = 0; i < mp_flag_count; i++)
        commands |= strcmp(mp_flags[i].name, flag->name) == 0 ? mp_flags[i].commands : 0;
    if (commands == ALL) {
        snprintf(out, 128, "all");
        return out;
    }
    for (unsigned c = 0; c < MP_COMMAND_COUNT; c++) {
        if (commands & 1u << c)
            used += (size_t)snprintf(out + used, 128 - used, "%s%s", used > 0 ? ", " : "",
                                     mp_commands[c].name);
    }
    return out;
}
