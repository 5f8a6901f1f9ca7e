/*
 * Ctrl-C in every phase: the run ends with 130 and leaves no file if it was loading, and whole
 * files of what there was until then, and a report, later. A phase is known by what it leaves
 * behind (a caught signal, an open file, text), never by the clock; where only time can show it,
 * the signal is sent at many moments and each outcome must be one of those allowed.
 */
#include "tests/system/cli/cli.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "policy/record/trace.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"

#define POLLS_MAX 60000

static void nap_us(long us)
{
    const struct timespec time = { us / 1000000, us % 1000000 * 1000 };

    nanosleep(&time, NULL);
}

/* Has the process installed its handler? False when it has ended. */
static bool catches_sigint(pid_t pid)
{
    char path[64], *text;
    const char *at;
    unsigned long long caught = 0;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    if (access(path, R_OK) != 0)
        return false;
    text = cli_read(path, NULL);
    at = strstr(text, "SigCgt:");
    if (at != NULL)
        caught = strtoull(at + 7, NULL, 16);
    free(text);
    return (caught & 1ull << (SIGINT - 1)) != 0;
}

static void wait_until_caught(pid_t pid)
{
    int polls = 0;

    while (!catches_sigint(pid)) {
        CHECK(polls++ < POLLS_MAX);
        nap_us(1000);
    }
}

/* Has the process an open file in the directory, with a name or without, that it has written to?
 * An empty one may be that of the check whether the output can be written, before loading. */
static bool has_written_into(pid_t pid, const char *dir)
{
    char path[64], link[4400], target[4400];
    struct dirent *entry;
    struct stat info;
    bool found = false;
    DIR *fds;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    fds = opendir(path);
    while (fds != NULL && !found && (entry = readdir(fds)) != NULL) {
        ssize_t bytes;

        snprintf(link, sizeof(link), "%s/%s", path, entry->d_name);
        bytes = readlink(link, target, sizeof(target));
        found = bytes > (ssize_t)strlen(dir) && memcmp(target, dir, strlen(dir)) == 0 &&
                stat(link, &info) == 0 && info.st_size > 0;
    }
    if (fds != NULL)
        closedir(fds);
    return found;
}

/* Rows of a trace, which is whole. */
static size_t count_rows(const char *path)
{
    struct mp_trace_reader *reader;
    struct mp_trace_row row;
    size_t rows = 0;

    CHECK_EQ(mp_trace_open(path, &reader), MP_OK);
    for (;; rows++) {
        CHECK_EQ(mp_trace_read(reader, &row), MP_OK);
        if (row.experts == NULL)
            break;
    }
    mp_trace_reader_destroy(reader);
    return rows;
}

static void check_json(const char *path)
{
    json_error_t error;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);

    CHECK(json != NULL);
    json_decref(json);
}

/* Everything until the end of its standard output. */
static char *read_all(int fd)
{
    char *text = calloc(1, 1u << 20);
    size_t bytes = 0;
    ssize_t got;

    CHECK(text != NULL);
    while ((got = read(fd, text + bytes, (1u << 20) - 1 - bytes)) > 0)
        bytes += (size_t)got;
    return text;
}

/* It would take minutes: the first Ctrl-C ends it, between two steps. */
static void while_it_simulates(void)
{
    const struct cli cli = { .args = { "simulate", "--machine", "h200", "--model", "mixtral-8x7b",
                                       "--budget", "50%", "--gen-tokens", "1048576" } };
    int out;
    const pid_t pid = cli_start(&cli, &out);

    wait_until_caught(pid);
    nap_us(300000); /* until it simulates, most likely; the result is the same if it does not yet */
    kill(pid, SIGINT);
    CHECK_EQ(cli_end(pid), 130);
    close(out);
}

/* What is complete is printed, and the object is closed. */
static void while_it_simulates_many(void)
{
    static char batches[4096] = "1";
    const struct cli cli = { .args = { "simulate", "--machine", "h200", "--model", "mixtral-8x7b",
                                       "--budget", "50%", "--gen-tokens", "4", "--prompt-tokens",
                                       "4", "--batches", batches, "--json" } };
    char *text, first;
    json_error_t error;
    json_t *json;
    int out;
    pid_t pid;

    for (int i = 0; i < 2000; i++)
        strcat(batches, ",1");
    pid = cli_start(&cli, &out);
    CHECK_EQ(read(out, &first, 1), 1);
    kill(pid, SIGINT);
    text = read_all(out);
    memmove(text + 1, text, strlen(text) + 1);
    text[0] = first;
    CHECK_EQ(cli_end(pid), 130);
    json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    CHECK(json_array_size(json_object_get(json, "rows")) > 0);
    CHECK(json_array_size(json_object_get(json, "rows")) < 2001);
    json_decref(json);
    free(text);
    close(out);
}

/* Longer and longer waits, until one row at least is complete. */
static void ends_with_rows(const struct cli *cli, const char *rows)
{
    json_t *json = NULL;

    for (long us = 200000; us < 20000000 && json_array_size(json_object_get(json, rows)) == 0;
         us *= 3) {
        int out;
        const pid_t pid = cli_start(cli, &out);
        json_error_t error;
        char *text;

        json_decref(json);
        wait_until_caught(pid);
        nap_us(us);
        kill(pid, SIGINT);
        text = read_all(out);
        CHECK_EQ(cli_end(pid), 130);
        json = text[0] != '\0' ? json_loads(text, JSON_REJECT_DUPLICATES, &error) : NULL;
        CHECK(text[0] == '\0' || json != NULL);
        free(text);
        close(out);
    }
    CHECK(json_array_size(json_object_get(json, rows)) > 0);
    json_decref(json);
}

static void while_it_replays(void)
{
    static char budgets[8192] = "25%";
    const char *trace = cli_path("replayed");

    cli_expect(
        &(const struct cli){ .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens",
                                       "200", "--ignore-eos", "--trace", trace } },
        0, "tokens");
    for (int i = 0; i < 2000; i++)
        strcat(budgets, ",9%");
    ends_with_rows(
        &(const struct cli){ .args = { "replay", trace, "--budget", budgets, "--json" } }, "rows");
}

static void while_it_evaluates(void)
{
    static char sweep[1024] = "evict=lru";

    for (int i = 0; i < 60; i++)
        strcat(sweep, ",lfu");
    ends_with_rows(&(const struct cli){ .args = { "eval", "--perplexity", "--model", CLI_MODEL,
                                                  "--device", "cpu", "--text", "LICENSE",
                                                  "--tokens", "512", "--sweep", sweep, "--json" } },
                   "rows");
}

/* Half a calibration would be wrong: there is none. */
static void while_it_calibrates(void)
{
    const char *dir = cli_path("calibrate"), *text = cli_path("text");
    char made[4300], *words = cli_long_prompt();
    const struct cli cli = { .args = { "calibrate", "--model", CLI_MODEL, "--text", text, "--out",
                                       made, "--features" } };
    int out, polls = 0;
    FILE *file = fopen(text, "w");
    pid_t pid;

    CHECK(file != NULL);
    for (int i = 0; i < 50; i++)
        fputs(words, file);
    fclose(file);
    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(made, sizeof(made), "%s/made.safetensors", dir);
    pid = cli_start(&cli, &out);
    while (!has_written_into(pid, dir)) {
        CHECK(polls++ < POLLS_MAX);
        nap_us(1000);
    }
    kill(pid, SIGINT);
    CHECK_EQ(cli_end(pid), 130);
    CHECK_EQ(cli_count_entries(dir), 0);
    close(out);
    free(words);
}

static void while_the_prompt_is_awaited(void)
{
    int input[2], out;
    struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt-file", "-" } };
    pid_t pid;

    CHECK_EQ(pipe2(input, O_CLOEXEC), 0);
    cli.input_fd = input[0];
    pid = cli_start(&cli, &out);
    wait_until_caught(pid);
    nap_us(50000); /* until it reads, most likely; the result is the same if it does not yet */
    kill(pid, SIGINT);
    nap_us(50000);
    close(input[1]);
    CHECK_EQ(cli_end(pid), 130);
    close(input[0]);
    close(out);
}

/* The trace is opened when everything is loaded, and grows while 900 batches follow. */
static void while_the_prompt_is_processed(void)
{
    const char *dir = cli_path("prefill");
    char trace[4300], *prompt = cli_long_prompt();
    struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", prompt, "--trace", trace,
                                 "--prefill-tokens", "1", "--budget", "147456", "--ctx", "2048" } };
    int out, polls = 0;
    pid_t pid;

    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(trace, sizeof(trace), "%s/trace", dir);
    pid = cli_start(&cli, &out);
    while (!has_written_into(pid, dir)) {
        CHECK(polls++ < POLLS_MAX);
        nap_us(1000);
    }
    kill(pid, SIGINT);
    CHECK_EQ(cli_end(pid), 130);
    CHECK_EQ(cli_count_entries(dir), 1);
    CHECK(count_rows(trace) < 900u * 8);
    close(out);
    free(prompt);
}

/* The report is printed, and each file holds the steps that had ended. */
static void while_text_is_written(int number)
{
    const char *dir = cli_path(number == SIGINT ? "decode-int" : "decode-term");
    char timeline[4300], logits[4300], trace[4300], log[4300], errors[4300], byte, *text;
    struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "def", "--max-tokens",
                                 "2000", "--ignore-eos", "--budget", "147456", "--timeline",
                                 timeline, "--logits-out", logits, "--trace", trace,
                                 "--decision-log", log } };
    struct npy npy = { 0 };
    int out;
    pid_t pid;

    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(timeline, sizeof(timeline), "%s/timeline", dir);
    snprintf(logits, sizeof(logits), "%s/logits", dir);
    snprintf(trace, sizeof(trace), "%s/trace", dir);
    snprintf(log, sizeof(log), "%s/log", dir);
    snprintf(errors, sizeof(errors), "%s", cli_path("errors"));
    cli.errors_fd = open(errors, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid = cli_start(&cli, &out);
    CHECK_EQ(read(out, &byte, 1), 1); /* the text so far has been printed */
    kill(pid, number);
    while (read(out, &byte, 1) > 0)
        ;
    CHECK_EQ(cli_end(pid), 130);
    CHECK_EQ(cli_count_entries(dir), 4);
    check_json(timeline);
    CHECK(npy_read(logits, &npy));
    CHECK(npy.dims[0] >= 1 && npy.dims[0] < 2000 && npy.dims[1] == 2048);
    CHECK(count_rows(trace) >= 8 * (npy.dims[0] - 1)); /* a step that was begun may be in it */
    npy_free(&npy);
    cli_expect(&(const struct cli){ .args = { "replay", log } }, 0, NULL);
    text = cli_read(errors, NULL);
    CHECK(strstr(text, "ended by      interrupted\n") != NULL);
    CHECK(strstr(text, "hit rate") != NULL);
    CHECK(strstr(text, "error[E_CANCELED]: interrupted\n") != NULL);
    free(text);
    close(cli.errors_fd);
    close(out);
}

static void while_text_is_written_by_ctrl_c(void)
{
    while_text_is_written(SIGINT);
}

static void while_text_is_written_by_sigterm(void)
{
    while_text_is_written(SIGTERM);
}

/* The trace grows while it runs, so the first run is in work, or a later one. */
static void while_it_benches(void)
{
    const char *dir = cli_path("bench");
    char trace[4300], *text;
    struct cli cli = { .args = { "bench", "--model", CLI_MODEL, "--repeat", "1000", "--gen-tokens",
                                 "32", "--json", "--trace", trace } };
    json_error_t error;
    json_t *json;
    int out, polls = 0;
    pid_t pid;

    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(trace, sizeof(trace), "%s/trace", dir);
    pid = cli_start(&cli, &out);
    while (!has_written_into(pid, dir)) {
        CHECK(polls++ < POLLS_MAX);
        nap_us(1000);
    }
    nap_us(500000); /* until a run has ended, most likely; else there is nothing to report */
    kill(pid, SIGINT);
    text = read_all(out);
    CHECK_EQ(cli_end(pid), 130);
    CHECK_EQ(cli_count_entries(dir), 1);
    if (text[0] != '\0') {
        json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
        CHECK(json != NULL);
        CHECK(json_array_size(json_object_get(json, "runs")) >= 1);
        CHECK_EQ(json_integer_value(json_object_get(json, "repeat")),
                 json_array_size(json_object_get(json, "runs")));
        json_decref(json);
    }
    count_rows(trace);
    free(text);
    close(out);
}

static void json_says_interrupted(void)
{
    const char *dir = cli_path("json");
    char trace[4300], *text;
    struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "def", "--max-tokens",
                                 "2000", "--ignore-eos", "--json", "--trace", trace, "--budget",
                                 "147456" } };
    json_error_t error;
    json_t *json;
    int out, polls = 0;
    pid_t pid;

    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(trace, sizeof(trace), "%s/trace", dir);
    pid = cli_start(&cli, &out);
    while (!has_written_into(pid, dir)) {
        CHECK(polls++ < POLLS_MAX);
        nap_us(1000);
    }
    kill(pid, SIGTERM);
    text = read_all(out);
    CHECK_EQ(cli_end(pid), 130);
    json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    CHECK(json != NULL);
    CHECK_STR(json_string_value(json_object_get(json, "finish")), "interrupted");
    json_decref(json);
    free(text);
    close(out);
}

/* Loading is too short to be met: forty moments from the first on, each a little later. */
static void at_any_moment(void)
{
    const char *dir = cli_path("moments");
    char trace[4300];
    struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "def", "--max-tokens",
                                 "8", "--trace", trace } };
    unsigned interrupted = 0;

    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(trace, sizeof(trace), "%s/trace", dir);
    for (long moment = 0; moment < 40; moment++) {
        int out, code;
        pid_t pid = cli_start(&cli, &out);

        wait_until_caught(pid);
        nap_us(moment * 1000);
        kill(pid, SIGINT);
        code = cli_end(pid);
        CHECK(code == 130 || code == 0);
        CHECK(cli_count_entries(dir) == 1 || (code == 130 && cli_count_entries(dir) == 0));
        if (cli_count_entries(dir) == 1)
            count_rows(trace);
        interrupted += code == 130;
        unlink(trace);
        close(out);
    }
    CHECK(interrupted > 0);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(while_the_prompt_is_awaited);
    RUN(while_it_simulates);
    RUN(while_it_simulates_many);
    RUN(while_it_replays);
    RUN(while_it_evaluates);
    RUN(while_it_calibrates);
    RUN(while_the_prompt_is_processed);
    RUN(while_text_is_written_by_ctrl_c);
    RUN(while_text_is_written_by_sigterm);
    RUN(while_it_benches);
    RUN(json_says_interrupted);
    RUN(at_any_moment);
    return 0;
}
