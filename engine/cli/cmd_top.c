/*
 * `moepager top`: what the running processes of this user do, drawn again each second, or once.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/cli/commands.h"
#include "engine/top/top.h"
#include "vmm/base/text.h"
#include "vmm/base/utf8.h"
#include "vmm/output/json_out.h"

#define REDRAW_NS UINT64_C(1000000000)
#define ONCE_NS UINT64_C(2300000000) /* two messages of everybody */
#define PROGRAM_COLUMNS 22
#define MODEL_COLUMNS 24

/* Texts of other processes, cut to the columns; nothing in them acts on the terminal. */
static void put_cell(const char *text, int columns)
{
    const size_t bytes = strlen(text);

    for (size_t i = 0; i < bytes && columns > 0; columns--) {
        const size_t length = mp_utf8_sequence(text + i, bytes - i);

        if (length == 0 || mp_utf8_is_control(text + i, length))
            putchar('?');
        else
            fwrite(text + i, 1, length, stdout);
        i += length > 0 ? length : 1;
    }
    printf("%*s  ", columns, "");
}

/* The last name of a path. */
static const char *name_of(const char *model)
{
    const char *slash = strrchr(model, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : model;
}

static void print_process(const struct mp_top_process *p)
{
    struct mp_top_rates rates;
    char what[2 * MP_TOP_TEXT_BYTES + 4];
    char resident[MP_TEXT_SIZE_BYTES], experts[MP_TEXT_SIZE_BYTES], ram[MP_TEXT_SIZE_BYTES];
    const unsigned s = (unsigned)(p->age_ns / 1000000000);

    mp_top_rates_of(p, &rates);
    if (strcmp(p->command, "preload") == 0)
        snprintf(what, sizeof(what), "%s (preload)", p->program);
    else
        snprintf(what, sizeof(what), "%s", p->command);
    printf("%7" PRIu64 "  ", p->pid);
    put_cell(what, PROGRAM_COLUMNS);
    put_cell(name_of(p->model), MODEL_COLUMNS);
    printf("%3u:%02u:%02u  ", s / 3600, s / 60 % 60, s % 60);
    if (p->has_tokens)
        printf("%8.1f", rates.tokens_per_s);
    else
        printf("%8s", "-");
    printf("  %5.1f %%  %4.0f %%  %8.1f  %10s of %10s  %10s\n", 100 * rates.hit_rate,
           100 * rates.wait_share, rates.read_bytes_per_s * 1e-6,
           mp_text_size(p->last.resident_bytes, resident), mp_text_size(p->expert_bytes, experts),
           mp_text_size(mp_top_resident_bytes(p->pid), ram));
}

static void print_table(const struct mp_top *top)
{
    size_t count;
    const struct mp_top_process *processes = mp_top_processes(top, &count);

    if (count == 0) {
        puts("no process of this user runs a model");
        return;
    }
    printf("%7s  %-*s  %-*s  %9s  %8s  %7s  %6s  %8s  %24s  %10s\n", "PID", PROGRAM_COLUMNS,
           "COMMAND", MODEL_COLUMNS, "MODEL", "TIME", "TOKENS/S", "HITS", "WAIT", "READ MB/S",
           "EXPERTS", "RAM");
    for (size_t i = 0; i < count; i++)
        print_process(&processes[i]);
}

static void json_process(const struct mp_top_process *p, struct mp_json_out *json)
{
    struct mp_top_rates rates;

    mp_top_rates_of(p, &rates);
    mp_json_object_begin(json, NULL);
    mp_json_put_u64(json, "pid", p->pid);
    mp_json_put_string(json, "program", p->program);
    mp_json_put_string(json, "command", p->command);
    mp_json_put_string(json, "model", p->model);
    mp_json_put_f64(json, "age_s", (double)p->age_ns * 1e-9);
    if (p->has_tokens) {
        mp_json_put_u64(json, "tokens", p->last.tokens);
        mp_json_put_u64(json, "generated_tokens", p->last.generated);
        mp_json_put_f64(json, "tokens_per_s", rates.tokens_per_s);
    }
    mp_json_put_u64(json, "hits", p->last.hits);
    mp_json_put_u64(json, "misses", p->last.misses);
    mp_json_put_f64(json, "hit_rate", rates.hit_rate);
    mp_json_put_f64(json, "wait_share", rates.wait_share);
    mp_json_put_f64(json, "read_bytes_per_s", rates.read_bytes_per_s);
    mp_json_put_u64(json, "bytes_loaded", p->last.load_bytes + p->last.prefetch_bytes);
    mp_json_put_u64(json, "resident_bytes", p->last.resident_bytes);
    mp_json_put_u64(json, "budget_bytes", p->budget_bytes);
    mp_json_put_u64(json, "expert_bytes", p->expert_bytes);
    mp_json_put_u64(json, "weights_bytes", p->weights_bytes);
    mp_json_put_u64(json, "rss_bytes", mp_top_resident_bytes(p->pid));
    mp_json_object_end(json);
}

static void print_json(const struct mp_top *top)
{
    size_t count;
    const struct mp_top_process *processes = mp_top_processes(top, &count);
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_array_begin(&json, "processes");
    for (size_t i = 0; i < count; i++)
        json_process(&processes[i], &json);
    mp_json_array_end(&json);
    mp_json_put_u64(&json, "refused_messages", mp_top_refused(top));
    mp_json_object_end(&json);
    mp_json_end(&json);
}

/* On a terminal until Ctrl-C, which is the way to end it and no failure. */
static void watch(struct mp_top *top)
{
    while (!mp_interrupted && !ferror(stdout)) {
        mp_top_listen(top, REDRAW_NS, &mp_interrupted);
        if (mp_interrupted)
            break;
        fputs("\033[H\033[2J", stdout);
        print_table(top);
        puts("\nCtrl-C ends");
        fflush(stdout);
    }
}

enum mp_status mp_cmd_top(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_live_dirs dirs;
    struct mp_top *top;
    enum mp_status status;

    (void)settings;
    mp_live_dirs_find(&dirs);
    status = mp_top_open(&dirs, mp_clock_monotonic(), &top);
    if (status != MP_OK)
        return status;
    if (!args->json && isatty(STDOUT_FILENO) == 1) {
        watch(top);
    } else {
        mp_top_listen(top, ONCE_NS, &mp_interrupted);
        if (args->json)
            print_json(top);
        else
            print_table(top);
    }
    mp_top_close(top);
    return mp_check_stdout();
}
