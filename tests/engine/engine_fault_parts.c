#include "tests/engine/engine_fault_parts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/chat.h"
#include "engine/commands.h"
#include "engine/cublas.h"
#include "engine/gpu.h"
#include "engine/probe.h"
#include "engine/route_from.h"
#include "engine/st_out.h"
#include "policy/decisions.h"
#include "policy/replay.h"
#include "policy/trace.h"
#include "tests/fault/wrap.h"
#include "tests/policy/calibration.h"
#include "tests/test.h"
#include "tests/tmpdir.h"
#include "vmm/base/log.h"
#include "vmm/memory_room.h"

void fault_check_error(enum mp_status status)
{
    const struct mp_error *error = mp_error_last();

    CHECK_EQ(error->status, status);
    CHECK(status != MP_ERR_INVALID);
    CHECK(error->code[0] == 'E' && error->code[1] == '_');
    CHECK(error->text[0] != '\0' && strchr(error->text, '\n') == NULL);
}

static void sweep(const char *name, void (*body)(const struct fault_plan *plan, void *ctx),
                  void *ctx, const char *sites_path)
{
    const uint32_t runs = fault_sweep(FAULT_ANY, body, ctx);

    fault_write_failed(sites_path);
    fprintf(stderr, "  %s: %u sites, %u runs\n", name, fault_sites_failed(FAULT_ANY), runs);
}

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

static void write_file(const char *path, const char *text)
{
    FILE *out = fopen(path, "w");

    CHECK(out != NULL);
    CHECK(fputs(text, out) >= 0);
    CHECK_EQ(fclose(out), 0);
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
    case MP_COMMAND_PERPLEXITY: return mp_cmd_perplexity(&args, &settings);
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
        CHECK(report.answers > 0);
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

static void sweep_command(struct command *c, const char *sites_path)
{
    c->argc = 0;
    while (c->argv[c->argc] != NULL)
        c->argc++;
    CHECK_EQ(run_command(c), MP_OK);
    for (size_t i = 0; i < 2 && c->made[i] != NULL; i++) {
        read_file(c->made[i], &c->expected[i]);
        CHECK(c->expected[i].count > 0);
        unlink(c->made[i]);
    }
    sweep(c->argv[1], command_once, c, sites_path);
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
        CHECK(report.answers > 0);
}

/* The command `replay` with everything that it can write. */
static void sweep_replay(const char *sites_path)
{
    static char trace[4200], plot[4200];
    static struct command replay;
    const char *argv[] = { "moepager", "replay",  trace,       "--budget", "20,30,40",
                           "--evict",  "lru,lfu", "--profile", "lru",      "--csv",
                           "--plot",   plot,      NULL };

    snprintf(trace, sizeof(trace), "%s/replayed.txt", test_tmpdir());
    snprintf(plot, sizeof(plot), "%s/plot.svg", test_tmpdir());
    write_file(trace, "# moepager trace v1\n"
                      "# model=m layers=1 experts=3 top_k=1 expert_bytes=10 scores=all\n"
                      "0 0 0 0 1:0.5 | 0.25 0.5 0.25\n1 0 0 1 0:0.5 | 0.5 0.25 0.25\n");
    replay =
        (struct command){ .command = MP_COMMAND_REPLAY, .argv = (char **)argv, .made = { plot } };
    sweep_command(&replay, sites_path);
}

/* The command `simulate` with descriptions from files: made-up routing, and recorded routing. */
static void sweep_simulate(const char *sites_path)
{
    static char machine[4200], model[4200], trace[4200], timeline[4200];
    static struct command simulate;
    const char *argv[] = { "moepager",  "simulate", "--machine", machine,      "--model",  model,
                           "--prompt",  "2",        "--gen",     "2",          "--budget", "50%",
                           "--profile", "gate-lru", "--json",    "--timeline", timeline,   NULL };
    const char *trace_argv[] = { "moepager", "simulate", "--machine", machine, "--model", model,
                                 "--trace",  trace,      "--budget",  "50%",   NULL };

    snprintf(machine, sizeof(machine), "%s/m.machine", test_tmpdir());
    snprintf(model, sizeof(model), "%s/m.model", test_tmpdir());
    snprintf(trace, sizeof(trace), "%s/simulated.txt", test_tmpdir());
    snprintf(timeline, sizeof(timeline), "%s/timeline.json", test_tmpdir());
    write_file(machine, "link_gbps 10\ncopy_us 5\ndevice_gbps 100\ndevice_gflops 1000\n"
                        "device_gib 1\nlaunch_us 5\ncpu_gbps 10\ncpu_gflops 100\n");
    write_file(model, "layers 2\nexperts 4\ntop_k 1\nhidden 64\nexpert_ffn 64\nvocabulary 8\n"
                      "attention_params 64\nkv_bytes 8\n");
    write_file(trace, "# moepager trace v1\n"
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

void fault_sweep_commands(const char *sites_path)
{
    static struct command run, bench, info;
    static char model[4200], prompt[4200], trace[4200], logits[4200], ids[4200], log[4200];
    const char *run_argv[] = {
        "moepager",   "run",       "--model",    model,        "--prompt-file",
        prompt,       "--chat",    "--system",   "Be brief.",  "--max-tokens",
        "3",          "--json",    "--trace",    trace,        "--logits-out",
        logits,       "--ctx",     "128",        "--threads",  "2",
        "--timeline", "/dev/null", "--stop",     "never said", "--budget",
        "all",        "--backend", "trace:host", "--receipt",  "--decision-log",
        log,          NULL
    };
    const char *bench_argv[] = { "moepager",
                                 "bench",
                                 "--model",
                                 model,
                                 "--prompt-tokens",
                                 "4",
                                 "--gen-tokens",
                                 "2",
                                 "--batch",
                                 "2",
                                 "--repeat",
                                 "2",
                                 "--threads",
                                 "1",
                                 "--budget",
                                 "60%",
                                 "--json",
                                 "--trace",
                                 trace,
                                 "--tokens-file",
                                 ids,
                                 "--logits-out",
                                 logits,
                                 "--decision-log",
                                 log,
                                 NULL };
    const char *info_argv[] = { "moepager",       "info",   "--model", model,
                                "--check-values", "--json", NULL };

    make_model(model, sizeof(model));
    snprintf(prompt, sizeof(prompt), "%s/prompt.txt", test_tmpdir());
    snprintf(trace, sizeof(trace), "%s/trace.txt", test_tmpdir());
    snprintf(logits, sizeof(logits), "%s/logits.npy", test_tmpdir());
    snprintf(ids, sizeof(ids), "%s/ids.txt", test_tmpdir());
    snprintf(log, sizeof(log), "%s/decisions", test_tmpdir());
    write_file(prompt, "What is moepager?\n");
    write_file(ids, "9 8 7 6 5 4\n");

    run = (struct command){
        .command = MP_COMMAND_RUN, .argv = (char **)run_argv, .log = log, .made = { trace, logits }
    };
    sweep_command(&run, sites_path);
    bench = (struct command){ .command = MP_COMMAND_BENCH,
                              .argv = (char **)bench_argv,
                              .log = log,
                              .made = { trace, logits } };
    sweep_command(&bench, sites_path);
    CHECK_EQ(run_command(&bench), MP_OK);
    sweep("decision log", decisions_once, log, sites_path);
    info = (struct command){ .command = MP_COMMAND_INFO, .argv = (char **)info_argv };
    sweep_command(&info, sites_path);
    sweep_replay(sites_path);
    sweep_simulate(sites_path);
}

/* Calibration: made, read again for an evaluation of all predictors, and a text's perplexity. */
void fault_sweep_calibration(const char *sites_path)
{
    static struct command calibrate, evaluate, perplexity;
    static char model[4200], text[4200], made[4200], features[4200];
    const char *calibrate_argv[] = { "moepager", "calibrate", "--model", model,        "--text",
                                     text,       "--out",     made,      "--window",   "8",
                                     "--json",   "--threads", "1",       "--features", NULL };
    const char *evaluate_argv[] = { "moepager",  "calibrate", "--model",       model,
                                    "--text",    text,        "--calibration", made,
                                    "--tokens",  "6",         "--budget",      "60%",
                                    "--threads", "1",         "--evaluate",    NULL };
    const char *perplexity_argv[] = { "moepager",      "perplexity", "--model",  model,
                                      "--text",        text,         "--sweep",  "evict=lru,lfu",
                                      "--threads",     "1",          "--window", "8",
                                      "--calibration", made,         NULL };

    make_model(model, sizeof(model));
    snprintf(text, sizeof(text), "%s/text.txt", test_tmpdir());
    snprintf(made, sizeof(made), "%s/made.safetensors", test_tmpdir());
    snprintf(features, sizeof(features), "%s/moepager-features.safetensors", test_tmpdir());
    write_file(text, "It goes through the model, token by token, and is not kept.\n");

    calibrate = (struct command){ .command = MP_COMMAND_CALIBRATE,
                                  .argv = (char **)calibrate_argv,
                                  .made = { made, features } };
    sweep_command(&calibrate, sites_path);
    CHECK_EQ(run_command(&calibrate), MP_OK);
    evaluate = (struct command){ .command = MP_COMMAND_CALIBRATE, .argv = (char **)evaluate_argv };
    sweep_command(&evaluate, sites_path);
    perplexity =
        (struct command){ .command = MP_COMMAND_PERPLEXITY, .argv = (char **)perplexity_argv };
    sweep_command(&perplexity, sites_path);
}

/* Marks to be sorted, a word longer than any buffer's first size, broken bytes, special tokens. */
static const char tokenizer_text[] =
    "Hello  world\xcc\x81\xcc\xa3\xcc\x81\xcc\xa3 <|im_start|> <s> \xff\xf0\x9f\x98\x80 "
    "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnop"
    "qrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz 123 ";

struct tokenizer_case {
    const char *dir;
    uint32_t ids[1024];
    size_t count;
    char *text;
};

static enum mp_status stream(const struct mp_tokenizer *tok, const struct mp_ids *ids)
{
    struct mp_detok *detok;
    const char *text;
    size_t bytes;
    enum mp_status status = mp_detok_create(tok, 0, &detok);

    if (status != MP_OK)
        return status;
    for (size_t i = 0; i < ids->count && status == MP_OK; i++)
        status = mp_detok_push(detok, ids->ids[i], &text, &bytes);
    if (status == MP_OK)
        status = mp_detok_finish(detok, &text, &bytes);
    mp_detok_destroy(detok);
    return status;
}

static enum mp_status use_tokenizer(const struct tokenizer_case *c, struct mp_ids *ids,
                                    char **text_p)
{
    const struct mp_span spans[] = { { tokenizer_text, 12, true },
                                     { tokenizer_text + 12, sizeof(tokenizer_text) - 13, false } };
    struct mp_tokenizer *tok = NULL;
    size_t bytes;
    enum mp_status status = mp_tokenizer_load(c->dir, &tok);

    if (status == MP_OK)
        status = mp_tokenizer_encode(tok, tokenizer_text, sizeof(tokenizer_text) - 1,
                                     MP_ENCODE_ADD_SPECIAL, ids);
    if (status == MP_OK)
        status = mp_tokenizer_encode_spans(tok, spans, 2, 0, ids);
    if (status == MP_OK)
        status = stream(tok, ids);
    if (status == MP_OK)
        status = mp_tokenizer_decode(tok, ids->ids, ids->count, 0, text_p, &bytes);
    mp_tokenizer_destroy(tok);
    return status;
}

static void tokenizer_once(const struct fault_plan *plan, void *ctx)
{
    const struct tokenizer_case *c = ctx;
    struct mp_ids ids = { 0 };
    char *text = NULL;
    enum mp_status status;
    uint64_t hits;

    mp_error_clear();
    fault_begin(plan);
    status = use_tokenizer(c, &ids, &text);
    hits = fault_end();
    if (status != MP_OK) {
        CHECK(hits > 0);
        fault_check_error(status);
        mp_ids_free(&ids);
        CHECK_EQ(use_tokenizer(c, &ids, &text), MP_OK);
    }
    CHECK_EQ(ids.count, c->count);
    CHECK(memcmp(ids.ids, c->ids, c->count * sizeof(ids.ids[0])) == 0);
    CHECK_STR(text, c->text);
    mp_ids_free(&ids);
    free(text);
}

void fault_sweep_tokenizers(const char *sites_path)
{
    static const char *const dirs[] = { "models/tiny-moe", "tests/data/tokenizers/llama",
                                        "tests/data/tokenizers/nfkc", "tests/data/tokenizers/nfd" };

    for (size_t i = 0; i < MP_ARRAY_LEN(dirs); i++) {
        static struct tokenizer_case c;
        struct mp_ids ids = { 0 };

        c.dir = dirs[i];
        CHECK_EQ(use_tokenizer(&c, &ids, &c.text), MP_OK);
        CHECK(ids.count > 100 && ids.count <= MP_ARRAY_LEN(c.ids));
        c.count = ids.count;
        memcpy(c.ids, ids.ids, ids.count * sizeof(ids.ids[0]));
        mp_ids_free(&ids);
        sweep(dirs[i], tokenizer_once, &c, sites_path);
        free(c.text);
    }
}

/* ctx: what a calibration learned, or NULL: then without the policies that need it. */
static void policies_once(const struct fault_plan *plan, void *ctx)
{
    const struct mp_shape shape = {
        .layers = 2,
        .experts = 4,
        .top_k = 2,
        .tokens_max = 8,
        .slots = 4,
        .unit_bytes = 4096,
        .calibration = ctx,
    };
    const struct mp_policy_info *info;

    for (unsigned slot = 0; slot < MP_SLOT_COUNT; slot++) {
        for (size_t i = 0; (info = mp_policy_builtin(slot, i)) != NULL; i++) {
            struct mp_policy_names names = { 0 };
            struct mp_profile chosen;
            struct mp_policies set = { 0 };
            enum mp_status status;

            if (info->calibrated && ctx == NULL)
                continue;
            names.policy[slot] = info->name;
            CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_OK);
            fault_begin(plan);
            status = mp_policies_create(&chosen, &shape, NULL, &set);
            fault_end();
            if (status != MP_OK)
                CHECK_EQ(status, MP_ERR_NO_MEMORY);
            else
                mp_policies_destroy(&set);
            CHECK_EQ(mp_policies_create(&chosen, &shape, NULL, &set), MP_OK);
            mp_policies_destroy(&set);
        }
    }
}

void fault_sweep_policies(const char *sites_path)
{
    sweep("policies", policies_once, NULL, sites_path);
    sweep("calibrated policies", policies_once, (void *)(uintptr_t)test_calibration(2, 4),
          sites_path);
}

/* Model directories with several weight files. */
static void shards_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_checkpoint *checkpoint = NULL;
    enum mp_status status;

    (void)ctx;
    mp_error_clear();
    fault_begin(plan);
    status = mp_checkpoint_open("tests/data/models/qwen3moe-tiny-nonorm", &checkpoint);
    fault_end();
    if (status != MP_OK) {
        fault_check_error(status);
        CHECK_EQ(mp_checkpoint_open("tests/data/models/qwen3moe-tiny-nonorm", &checkpoint), MP_OK);
    }
    mp_checkpoint_close(checkpoint);
}

static void chain_once(const struct fault_plan *plan, void *ctx)
{
    const struct mp_backend_config config = { .numa_node = -1, .huge_pages = true };
    struct mp_backend *backend = NULL;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_backend_open(ctx, &config, &backend);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    mp_backend_close(backend);
}

static void gpu_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_gpu *gpu = NULL;
    struct mp_gemm *gemm = NULL;
    enum mp_status status;

    (void)ctx;
    mp_error_clear();
    fault_begin(plan);
    status = mp_gpu_open(0, &gpu);
    if (status == MP_OK)
        status = mp_gemm_open(gpu, MP_GEMM_OWN, 1, &gemm);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    mp_gemm_close(gemm);
    mp_gpu_close(gpu);
}

static void log_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_log_config config = { .levels = "warn" };

    (void)ctx;
    snprintf(config.file, sizeof(config.file), "%.900s/log.txt", test_tmpdir());
    fault_begin(plan);
    (void)mp_log_init(&config); /* without its file it writes to stderr */
    fault_end();
    mp_log_fini();
}

/* The files of a machine with one control group, whatever this machine has. */
static void make_group(const char *root)
{
    static const char *const dirs[] = { "proc",   "proc/self",     "sys",
                                        "sys/fs", "sys/fs/cgroup", "sys/fs/cgroup/a" };
    static const char *const files[][2] = {
        { "proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n" },
        { "proc/self/cgroup", "0::/a\n" },
        { "proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n" },
        { "sys/fs/cgroup/a/memory.max", "1073741824\n" },
        { "sys/fs/cgroup/a/memory.current", "4096\n" },
        { "sys/fs/cgroup/a/memory.stat", "inactive_file 4096\n" },
    };
    char path[4300];

    CHECK_EQ(mkdir(root, 0700), 0);
    for (size_t i = 0; i < MP_ARRAY_LEN(dirs); i++) {
        snprintf(path, sizeof(path), "%s/%s", root, dirs[i]);
        CHECK_EQ(mkdir(path, 0700), 0);
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", root, files[i][0]);
        write_file(path, files[i][1]);
    }
}

/* What cannot be read counts as no limit, never as a smaller or a random one. */
static void memory_room_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_memory_room room;

    fault_begin(plan);
    mp_memory_room_read(ctx, &room);
    fault_end();
    CHECK(room.limit_bytes == UINT64_C(1) << 30 || room.limit_bytes == UINT64_MAX);
    CHECK(room.total_bytes == UINT64_C(4) << 30 || room.total_bytes == 0);
}

static void trace_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_trace_reader *reader = NULL;
    struct mp_trace_row row;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_trace_open(ctx, &reader);
    if (status == MP_OK)
        status = mp_trace_read(reader, &row);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    else
        CHECK(row.experts != NULL && row.experts[0] == 2 && row.experts[1] == 0);
    mp_trace_reader_destroy(reader);
}

/* Read a trace and replay it: with the offline optimum, and with a policy, in both accountings. */
static void replay_once(const struct fault_plan *plan, void *ctx)
{
    static const char *const evict[] = { "belady", "lru" };
    struct mp_replay_trace trace = { 0 };
    struct mp_replay_result result;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_replay_trace_read(ctx, &trace);
    for (int i = 0; i < 4 && status == MP_OK; i++) {
        const struct mp_replay_config config = {
            .evict = evict[i % 2],
            .partition = "global",
            .predict = i == 1 ? "history" : NULL,
            .accounting = i < 2 ? MP_REPLAY_PAGER : MP_REPLAY_CURVE,
            .budget_bytes = 4 * trace.unit_bytes,
        };

        status = mp_replay(&trace, &config, &result);
    }
    mp_replay_trace_fini(&trace);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
}

static void route_from_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_route_from *from = NULL;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_route_from_load(ctx, 1, 4, 1, &from);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    mp_route_from_destroy(from);
}

/* The probe's file: what cannot be kept or found again is measured again, and is no error. */
static void probe_file_once(const struct fault_plan *plan, void *ctx)
{
    const struct mp_probe_shape shape = { .hidden = 64, .channels = 32 };
    struct mp_probe probe = { .shape = shape, .uuid = "GPU-0", .driver = 13000 };
    bool kept;

    mp_error_clear();
    fault_begin(plan);
    kept = mp_probe_store(ctx, &probe);
    if (mp_probe_load(ctx, "GPU-0", 13000, &shape, &probe))
        CHECK(kept || plan != NULL);
    (void)mp_probe_load("auto", "GPU-none", 13000, &shape, &probe);
    fault_end();
    CHECK_EQ(mp_error_last()->status, MP_OK);
}

static const struct mp_model_id llapor_id = { .layers = 2, .experts = 4, .top_k = 2, .hidden = 8 };

static void write_llapor(const char *path)
{
    static const struct mp_st_out_tensor tensors[] = {
        { "layer.1.pca.weight", MP_ST_F32, 2, { 2, 8 } },
        { "layer.1.pca.bias", MP_ST_F32, 1, { 2 } },
        { "layer.1.in.weight", MP_ST_F32, 2, { 3, 10 } },
        { "layer.1.in.bias", MP_ST_F32, 1, { 3 } },
        { "layer.1.out.weight", MP_ST_F32, 2, { 4, 3 } },
        { "layer.1.out.bias", MP_ST_F32, 1, { 4 } },
    };
    struct mp_st_out out;

    CHECK_EQ(
        mp_st_out_open(&out, path, MP_LLAPOR_FORMAT, &llapor_id, 1, tensors, MP_ARRAY_LEN(tensors)),
        MP_OK);
    for (size_t i = 0; i < MP_ARRAY_LEN(tensors); i++) {
        for (uint64_t b = 0; b < mp_st_out_bytes(&tensors[i]); b++)
            fputc(0, out.out.file);
    }
    CHECK_EQ(mp_st_out_commit(&out), MP_OK);
}

static void llapor_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_llapor *llapor = NULL;
    enum mp_status status;

    mp_error_clear();
    fault_begin(plan);
    status = mp_llapor_load(AT_FDCWD, ctx, &llapor_id, &llapor);
    fault_end();
    if (status != MP_OK)
        fault_check_error(status);
    else
        CHECK(llapor->nets[0].width == 3 && llapor->nets[0].inputs == 2);
    mp_llapor_destroy(llapor);
}

/* A file that has become shorter than it was when it was opened. */
static void truncated_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_files *files = NULL;
    uint32_t index;
    char buffer[64];
    enum mp_status status;

    write_file(ctx, "0123456789");
    mp_error_clear();
    fault_begin(plan);
    status = mp_files_create(&files);
    if (status == MP_OK)
        status = mp_files_add(files, AT_FDCWD, ctx, &index);
    if (status == MP_OK) {
        (void)!truncate(ctx, 5);
        status = mp_files_read(files, index, 0, 10, buffer);
        CHECK(status == MP_ERR_IO);
    }
    fault_end();
    fault_check_error(status);
    mp_files_destroy(files);
}

void fault_sweep_single_calls(const char *sites_path)
{
    static const struct mp_trace_shape shape = { "m", 1, 4, 2, 4096, false };
    static const uint32_t experts[] = { 2, 0 };
    static const float weights[] = { 0.75f, 0.25f };
    const struct mp_trace_row row = { .experts = experts, .weights = weights };
    struct mp_trace_writer *writer;
    char path[4200];

    sweep("shards", shards_once, NULL, sites_path);
    sweep("backend chain", chain_once, (char[]){ "trace:fault:host" }, sites_path);
    sweep("cuda backend", chain_once, (char[]){ "cuda" }, sites_path); /* on the fake driver */
    sweep("cuda device", gpu_once, NULL, sites_path);
    sweep("log", log_once, NULL, sites_path);
    snprintf(path, sizeof(path), "%s/machine", test_tmpdir());
    make_group(path);
    sweep("memory room", memory_room_once, path, sites_path);
    snprintf(path, sizeof(path), "%s/trace.txt", test_tmpdir());
    CHECK_EQ(mp_trace_create(path, &shape, &writer), MP_OK);
    mp_trace_write(writer, &row);
    CHECK_EQ(mp_trace_close(writer), MP_OK);
    sweep("trace", trace_once, path, sites_path);
    sweep("replay", replay_once, path, sites_path);
    snprintf(path, sizeof(path), "%s/route.csv", test_tmpdir());
    write_file(path, "# route_trace v1\n"
                     "# model=m arch=a n_layer=1 n_expert=4 n_expert_used=1\n"
                     "# layer=0 expert_bytes=10 dense_bytes=5\n"
                     "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"
                     "0,0,0,0,0,3,0.5,0,10\n"
                     "0,1,1,0,0,2,0.5,0,10\n");
    sweep("route_trace", replay_once, path, sites_path);
    sweep("route from", route_from_once, path, sites_path);
    sweep("probe file", probe_file_once, (void *)test_tmpdir(), sites_path);
    snprintf(path, sizeof(path), "%s/llapor.safetensors", test_tmpdir());
    write_llapor(path);
    sweep("trained predictors", llapor_once, path, sites_path);
    snprintf(path, sizeof(path), "%s/short.bin", test_tmpdir());
    sweep("truncated file", truncated_once, path, sites_path);
}
