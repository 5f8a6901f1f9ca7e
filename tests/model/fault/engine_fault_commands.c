/*
 * The commands with every file that they read and write.
 */
#include <fcntl.h>
#include <unistd.h>

#include "engine/cli/commands.h"
#include "policy/record/decisions.h"
#include "tests/model/fault/engine_fault_parts.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

/* A file's bytes; empty if it does not exist. */
struct bytes {
    char data[262144];
    size_t count;
};

static void read_file(const char *path, struct bytes *bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    bytes->count = 0;
    if (fd < 0)
        return;
    bytes->count = (size_t)read(fd, bytes->data, sizeof(bytes->data));
    CHECK(bytes->count < sizeof(bytes->data));
    close(fd);
}

struct command {
    enum mp_command command;
    char **argv;
    int argc;
    const char *log;     /* decision log that it writes, or NULL */
    const char *made[2]; /* files that it writes, or NULL */
    struct bytes expected[2];
};

static enum mp_status run_command(const struct command *c)
{
    static struct mp_settings settings;
    struct mp_args args;
    enum mp_status status = mp_settings_load(&settings);

    if (status == MP_OK)
        status = mp_args_parse(c->command, c->argc, c->argv, &args, &settings);
    if (status != MP_OK)
        return status;
    switch (c->command) {
    case MP_COMMAND_RUN: return mp_cmd_run(&args, &settings);
    case MP_COMMAND_BENCH: return mp_cmd_bench(&args, &settings);
    case MP_COMMAND_REPLAY: return mp_cmd_replay(&args, &settings);
    case MP_COMMAND_SIMULATE: return mp_cmd_simulate(&args, &settings);
    case MP_COMMAND_CALIBRATE: return mp_cmd_calibrate(&args, &settings);
    case MP_COMMAND_EVAL: return mp_cmd_eval(&args, &settings);
    default: return mp_cmd_info(&args, &settings);
    }
}

/* After success the files are there and right; after a failure each is whole or not there. */
static void check_files(const struct command *c, enum mp_status status)
{
    static struct bytes got;

    for (size_t i = 0; i < 2 && c->made[i] != NULL; i++) {
        read_file(c->made[i], &got);
        if (status == MP_OK || got.count > 0) {
            CHECK_EQ(got.count, c->expected[i].count);
            CHECK(memcmp(got.data, c->expected[i].data, got.count) == 0);
        }
        unlink(c->made[i]);
    }
    if (c->log != NULL && access(c->log, F_OK) == 0) {
        struct mp_decisions_report report;

        CHECK_EQ(mp_decisions_replay(c->log, NULL, &report), MP_OK);
        CHECK(report.results > 0);
        unlink(c->log);
    } else if (c->log != NULL) {
        CHECK(status != MP_OK);
    }
}

static void command_once(const struct fault_plan *plan, void *ctx)
{
    const struct command *c = ctx;
    enum mp_status status;
    uint64_t hits;

    mp_error_clear();
    fault_begin(plan);
    status = run_command(c);
    hits = fault_end();
    if (status != MP_OK) {
        CHECK(hits > 0);
        fault_check_error(status);
    }
    check_files(c, status);
    if (status != MP_OK) {
        CHECK_EQ(run_command(c), MP_OK);
        check_files(c, MP_OK);
    }
}

static void run_well(struct command *c)
{
    c->argc = 0;
    while (c->argv[c->argc] != NULL)
        c->argc++;
    CHECK_EQ(run_command(c), MP_OK);
}

static void sweep_command(struct command *c, const char *sites_path)
{
    run_well(c);
    for (size_t i = 0; i < 2 && c->made[i] != NULL; i++) {
        read_file(c->made[i], &c->expected[i]);
        CHECK(c->expected[i].count > 0);
        unlink(c->made[i]);
    }
    fault_sweep_part(c->argv[1], command_once, c, sites_path);
}

/* A log written by a run is replayed, or refused with an error that says why. */
static void decisions_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_decisions_report report;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    (void)mp_decisions_is_log(ctx);
    status = mp_decisions_replay(ctx, NULL, &report);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    else
        CHECK(report.results > 0);
}

/* The command `replay` on a trace. */
static void sweep_replay(const char *sites_path)
{
    static char trace[4200];
    static struct command replay;
    const char *argv[] = { "moepager", "replay",    trace, "--budget", "20,30,40", "--evict",
                           "lru,lfu",  "--profile", "lru", "--csv",    NULL };

    snprintf(trace, sizeof(trace), "%s/replayed.txt", test_tmpdir());
    fault_write_file(trace, "# moepager trace v1\n"
                            "# model=m layers=1 experts=3 top_k=1 expert_bytes=10 scores=all\n"
                            "0 0 0 0 1:0.5 | 0.25 0.5 0.25\n1 0 0 1 0:0.5 | 0.5 0.25 0.25\n");
    replay = (struct command){ .command = MP_COMMAND_REPLAY, .argv = (char **)argv };
    sweep_command(&replay, sites_path);
}

/* The command `simulate` with descriptions from files: made-up routing, and recorded routing. */
static void sweep_simulate(const char *sites_path)
{
    static char machine[4200], model[4200], trace[4200], timeline[4200];
    static struct command simulate;
    const char *argv[] = { "moepager",     "simulate", "--machine",       machine,
                           "--model",      model,      "--prompt-tokens", "2",
                           "--gen-tokens", "2",        "--budget",        "50%",
                           "--profile",    "gate-lru", "--json",          "--timeline",
                           timeline,       NULL };
    const char *trace_argv[] = { "moepager",     "simulate", "--machine", machine, "--model", model,
                                 "--from-trace", trace,      "--budget",  "50%",   NULL };

    snprintf(machine, sizeof(machine), "%s/m.machine", test_tmpdir());
    snprintf(model, sizeof(model), "%s/m.model", test_tmpdir());
    snprintf(trace, sizeof(trace), "%s/simulated.txt", test_tmpdir());
    snprintf(timeline, sizeof(timeline), "%s/timeline.json", test_tmpdir());
    fault_write_file(machine, "link_gbps 10\ncopy_us 5\ndevice_gbps 100\ndevice_gflops 1000\n"
                              "device_gib 1\nlaunch_us 5\ncpu_gbps 10\ncpu_gflops 100\n");
    fault_write_file(model, "layers 2\nexperts 4\ntop_k 1\nhidden 64\nexpert_ffn 64\nvocabulary 8\n"
                            "attention_params 64\nkv_bytes 8\n");
    fault_write_file(trace, "# moepager trace v1\n"
                            "# model=m layers=2 experts=4 top_k=1 expert_bytes=10\n"
                            "0 0 0 0 1:0.5\n0 1 0 0 1:0.5\n1 0 0 1 0:0.5\n1 1 0 1 3:0.5\n");
    simulate = (struct command){ .command = MP_COMMAND_SIMULATE,
                                 .argv = (char **)argv,
                                 .made = { timeline } };
    sweep_command(&simulate, sites_path);
    simulate = (struct command){ .command = MP_COMMAND_SIMULATE, .argv = (char **)trace_argv };
    sweep_command(&simulate, sites_path);
}

/* Two layers, small experts, and weights large enough for huge pages; made once. */
static void make_model(char *dir, size_t bytes)
{
    static bool made;
    char command[9000];

    snprintf(dir, bytes, "%s/model", test_tmpdir());
    if (made)
        return;
    made = true;
    snprintf(command, sizeof(command),
             "tools/make_bench_model --layers 2 --experts 4 --hidden 256 --ffn 256 --top-k 2 "
             "--heads 4 --kv-heads 1 --head-dim 64 --tokenizer models/tiny-moe --out '%s' "
             ">'%s/sizes'",
             dir, test_tmpdir());
    CHECK_EQ(system(command), 0);
}

/* What the commands below read and write, in the test's own directory. */
static char model[4200], prompt[4200], trace[4200], logits[4200], ids[4200], decisions[4200];
static char text[4200], made[4200], features[4200];

static void name_files(void)
{
    static const struct {
        char *path;
        const char *name;
    } files[] = { { prompt, "prompt.txt" },     { trace, "trace.txt" },
                  { logits, "logits.npy" },     { ids, "ids.txt" },
                  { decisions, "decisions" },   { text, "text.txt" },
                  { made, "made.safetensors" }, { features, "moepager-features.safetensors" } };

    make_model(model, sizeof(model));
    for (size_t i = 0; i < MP_ARRAY_LEN(files); i++)
        snprintf(files[i].path, sizeof(prompt), "%s/%s", test_tmpdir(), files[i].name);
    fault_write_file(prompt, "What is moepager?\n");
    fault_write_file(ids, "9 8 7 6 5 4\n");
    fault_write_file(text, "It goes through the model, token by token, and is not kept.\n");
}

/* Each flag stands beside its value. */
/* clang-format off */
static const char *const run_argv[] = {
    "moepager", "run", "--model", model, "--prompt-file", prompt, "--chat", "--system", "Be brief.",
    "--max-tokens", "3", "--json", "--trace", trace, "--logits-out", logits, "--ctx", "128",
    "--threads", "2", "--timeline", "/dev/null", "--stop", "never said", "--budget", "all",
    "--backend", "trace:host", "--decision-log", decisions, NULL
};
static const char *const bench_argv[] = {
    "moepager", "bench", "--model", model, "--prompt-tokens", "4", "--gen-tokens", "2",
    "--batch", "2", "--repeat", "2", "--threads", "1", "--budget", "60%", "--json", "--trace",
    trace, "--tokens-file", ids, "--logits-out", logits, "--decision-log", decisions, NULL
};
static const char *const info_argv[] = {
    "moepager", "info", "--model", model, "--check-values", "--json", NULL
};
static const char *const calibrate_argv[] = {
    "moepager", "calibrate", "--model", model, "--text", text, "--out", made, "--window", "8",
    "--json", "--threads", "1", "--features", NULL
};
static const char *const predictors_argv[] = {
    "moepager", "eval", "--predictors", "--model", model, "--text", text, "--calibration", made,
    "--tokens", "6", "--budget", "60%", "--threads", "1", NULL
};
static const char *const ahead_argv[] = {
    "moepager", "eval", "--tokens-ahead", "--model", model, "--draft-model", model, "--text", text,
    "--tokens", "6", "--budget", "60%", "--threads", "1", NULL
};
static const char *const perplexity_argv[] = {
    "moepager", "eval", "--perplexity", "--model", model, "--text", text, "--sweep",
    "evict=lru,lfu", "--threads", "1", "--window", "8", "--calibration", made, NULL
};
static const char *const divergence_argv[] = {
    "moepager", "eval", "--divergence", "--model", model, "--text", text, "--route", "smoe",
    "--budget", "60%", "--threads", "1", "--window", "8", "--json", "--calibration", made, NULL
};
static const char *const trace_argv[] = {
    "moepager", "bench", "--model", model, "--prompt-tokens", "2", "--gen-tokens", "4", "--trace",
    trace, "--repeat", "1", NULL
};
static const char *const traced_argv[] = {
    "moepager", "calibrate", "--model", model, "--from-trace", trace, "--out", made,
    "--threads", "1", "--device", "cpu", NULL
};
/* clang-format on */

static void sweep_args(enum mp_command number, const char *const *argv, const char *log,
                       const char *made_0, const char *made_1, const char *sites_path)
{
    static struct command command;

    command = (struct command){
        .command = number, .argv = (char **)argv, .log = log, .made = { made_0, made_1 }
    };
    sweep_command(&command, sites_path);
}

/* What it writes stays. */
static void run_args(enum mp_command number, const char *const *argv)
{
    static struct command command;

    command = (struct command){ .command = number, .argv = (char **)argv };
    run_well(&command);
}

void fault_sweep_commands(const char *sites_path)
{
    name_files();
    sweep_args(MP_COMMAND_RUN, run_argv, decisions, trace, logits, sites_path);
    sweep_args(MP_COMMAND_BENCH, bench_argv, decisions, trace, logits, sites_path);
    run_args(MP_COMMAND_BENCH, bench_argv);
    fault_sweep_part("decision log", decisions_once, decisions, sites_path);
    sweep_args(MP_COMMAND_INFO, info_argv, NULL, NULL, NULL, sites_path);
    sweep_replay(sites_path);
    sweep_simulate(sites_path);
}

/* Calibration: made, read again for an evaluation of all predictors, and a text's perplexity. */
void fault_sweep_calibration(const char *sites_path)
{
    name_files();
    sweep_args(MP_COMMAND_CALIBRATE, calibrate_argv, NULL, made, features, sites_path);
    run_args(MP_COMMAND_CALIBRATE, calibrate_argv);
    sweep_args(MP_COMMAND_EVAL, predictors_argv, NULL, NULL, NULL, sites_path);
    sweep_args(MP_COMMAND_EVAL, ahead_argv, NULL, NULL, NULL, sites_path);
    sweep_args(MP_COMMAND_EVAL, perplexity_argv, NULL, NULL, NULL, sites_path);
    sweep_args(MP_COMMAND_EVAL, divergence_argv, NULL, NULL, NULL, sites_path);
    run_args(MP_COMMAND_BENCH, trace_argv);
    sweep_args(MP_COMMAND_CALIBRATE, traced_argv, NULL, made, NULL, sites_path);
}
