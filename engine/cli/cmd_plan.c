/*
 * `moepager plan`: what a machine can do with a model, before anything is run. Simulates profiles
 * at several budgets (policy/sim/sim.h) and takes the best one of each.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/cli/commands.h"
#include "engine/cli/plan_facts.h"
#include "policy/sim/sim.h"
#include "vmm/base/error.h"
#include "vmm/base/text.h"
#include "vmm/output/json_out.h"

#define ROWS_MAX 24
#define GPUS_MAX 16
#define PROFILES_MAX 16
#define PROFILES "gate-best,gate-lru,lru,auto"
#define BUDGETS "5%,10%,20%,30%,40%,50%,75%,100%"
#define READS_SHOW 1.02 /* steps that reads make no longer tell nothing of a read */
#define WARM_STEPS 64   /* before the prompt: a run has more tokens than are simulated */
#define SEARCH_STEPS 7  /* halves the step of the table so often */

struct row {
    char name[64];                    /* of a machine of the list of GPUs */
    const struct mp_profile *profile; /* the best one; NULL: the model does not fit */
    struct mp_sim_result result;
    uint64_t memory_bytes;
    bool fits; /* into the machine's memory */
    const char *limit;
};

struct plan {
    const struct mp_args *args;
    const struct mp_settings *settings;
    struct mp_plan_facts facts;
    struct mp_sim_fit fit;
    struct mp_replay_trace file;         /* of --from-trace */
    const struct mp_replay_trace *trace; /* NULL: routing is synthetic */
    struct mp_profile profiles[PROFILES_MAX];
    size_t profile_count;
    double target_ms; /* 0: none */
    struct row rows[ROWS_MAX], least, gpus[GPUS_MAX];
    size_t row_count, gpu_count;
};

static double tpot_ms(const struct mp_sim_result *r)
{
    return r->decode_steps > 0 ? (double)r->decode_ns / 1e6 / (double)r->decode_steps : 0;
}

static double tokens_per_s(const struct mp_sim_result *r)
{
    return r->decode_ns > 0 ? (double)r->decode_tokens * 1e9 / (double)r->decode_ns : 0;
}

static double hit_rate(const struct mp_sim_result *r)
{
    const uint64_t all = r->counters.hits + r->counters.misses + r->counters.elsewhere;

    return all > 0 ? (double)r->counters.hits / (double)all : 0;
}

/* Of the time of decode: waiting for experts, the device's work, or that of the CPU beside it. */
static const char *limit_of(const struct mp_sim_machine *machine, bool on_host,
                            const struct mp_sim_result *r)
{
    const uint64_t wait = r->counters.exposed_wait_ns;

    if (wait >= r->device_busy_ns && wait >= r->cpu_busy_ns)
        return on_host || machine->disk_gbps > 0 ? "disk" : "link";
    return on_host || r->cpu_busy_ns > r->device_busy_ns ? "CPU" : "GPU";
}

/* The best profile at this budget. Too small a budget is no failure: the row has no profile. */
static enum mp_status run_budget(const struct plan *p, const struct mp_sim_machine *machine,
                                 bool on_host, struct mp_share budget, struct row *row)
{
    row->profile = NULL;
    for (size_t i = 0; i < p->profile_count; i++) {
        const struct mp_sim_config config = {
            .machine = machine,
            .model = &p->facts.model,
            .trace = p->trace,
            .again = true,
            .profile = &p->profiles[i],
            .groups = p->settings->groups,
            .slices = 1,
            .batch = 1,
            .prompt = (uint32_t)p->args->prompt_tokens,
            .gen = (uint32_t)p->args->gen_tokens,
            .warm = p->trace != NULL ? 0 : WARM_STEPS,
            .budget = budget,
            .seed = p->settings->run.seed,
            .fit = &p->fit,
            .cancel = &mp_interrupted,
        };
        struct mp_sim_result result;
        const enum mp_status status = mp_sim_run(&config, &result);

        if (status != MP_OK && strcmp(mp_error_last()->code, "E_BUDGET_SMALL") == 0)
            continue;
        if (status != MP_OK)
            return status;
        if (row->profile == NULL || result.decode_ns < row->result.decode_ns) {
            row->profile = &p->profiles[i];
            row->result = result;
        }
    }
    if (row->profile == NULL)
        return MP_OK;
    row->memory_bytes = row->result.budget_bytes + p->facts.fixed_bytes;
    row->fits = (double)row->memory_bytes <= machine->device_gib * (1 << 30);
    row->limit = limit_of(machine, on_host, &row->result);
    return MP_OK;
}

static bool reaches(const struct plan *p, const struct row *row)
{
    return row->profile != NULL && row->fits && tpot_ms(&row->result) <= p->target_ms;
}

static enum mp_status run_table(struct plan *p)
{
    static const struct mp_opt opt = { .name = "budget", .kind = MP_OPT_SHARE, .max = UINT64_MAX };
    const char *budgets = p->args->budgets != NULL ? p->args->budgets : BUDGETS;
    char part[MP_PART_BYTES], quoted[MP_QUOTE_BYTES];
    enum mp_status status = MP_OK;

    while (status == MP_OK && mp_next_part(&budgets, part)) {
        struct mp_share share;

        if (!mp_opt_parse(&opt, part, &share) || share.kind == MP_SHARE_AUTO)
            return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                           "--budget: got '%s', need a size or a share such as 25%%",
                           mp_quote(quoted, part, strlen(part)));
        if (p->row_count == ROWS_MAX)
            return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--budget: at most %d of them", ROWS_MAX);
        status = run_budget(p, &p->facts.machine, p->facts.on_host, share, &p->rows[p->row_count]);
        p->row_count++;
    }
    return status;
}

/* From the smallest row that reaches the target down to the next smaller one, by halves. */
static enum mp_status find_least(struct plan *p)
{
    enum mp_status status = MP_OK;
    uint64_t low = 0, high = UINT64_MAX;

    for (size_t i = 0; i < p->row_count; i++) {
        if (reaches(p, &p->rows[i]) && p->rows[i].result.budget_bytes < high) {
            p->least = p->rows[i];
            high = p->least.result.budget_bytes;
        }
    }
    for (size_t i = 0; i < p->row_count && high != UINT64_MAX; i++) {
        const uint64_t bytes = p->rows[i].profile != NULL ? p->rows[i].result.budget_bytes : 0;

        if (bytes < high && bytes > low)
            low = bytes;
    }
    for (unsigned i = 0; i < SEARCH_STEPS && high != UINT64_MAX && status == MP_OK; i++) {
        const uint64_t middle = low + (high - low) / 2;
        struct row row;

        status = run_budget(p, &p->facts.machine, p->facts.on_host,
                            (struct mp_share){ MP_SHARE_BYTES, middle }, &row);
        if (status != MP_OK || !reaches(p, &row)) {
            low = middle;
        } else {
            p->least = row;
            high = middle;
        }
    }
    return status;
}

/* The built-in machines with a GPU, each with what its memory leaves for experts. */
static enum mp_status run_gpus(struct plan *p)
{
    enum mp_status status = MP_OK;

    for (const struct mp_sim_text *text = mp_sim_machines; text->name != NULL; text++) {
        struct mp_sim_machine machine;
        struct row *row = &p->gpus[p->gpu_count];

        status = mp_sim_machine_read(text->name, &machine);
        if (status != MP_OK)
            return status;
        if (machine.cpu_gflops == 0 || p->gpu_count == GPUS_MAX)
            continue;
        snprintf(row->name, sizeof(row->name), "%s", text->name);
        status = run_budget(p, &machine, false, (struct mp_share){ MP_SHARE_AUTO, 0 }, row);
        if (status != MP_OK)
            return status;
        p->gpu_count++;
    }
    return status;
}

/* "100ms", "0.1s", "100" (ms) */
static enum mp_status parse_target(const char *text, double *ms_p)
{
    static const struct mp_opt opt = {
        .name = "target", .kind = MP_OPT_F64, .f64_min = 1e-3, .f64_max = 1e9
    };
    char number[32], quoted[MP_QUOTE_BYTES];
    const size_t bytes = strspn(text, "0123456789.");
    const bool seconds = strcmp(text + bytes, "s") == 0;

    snprintf(number, sizeof(number), "%.*s", (int)bytes, text);
    if (bytes >= sizeof(number) || !mp_opt_parse(&opt, number, ms_p) ||
        (!seconds && text[bytes] != '\0' && strcmp(text + bytes, "ms") != 0))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--target-tpot: got '%s', need a time for a token such as 100ms or 0.1s",
                       mp_quote(quoted, text, strlen(text)));
    *ms_p *= seconds ? 1000 : 1;
    return MP_OK;
}

static enum mp_status resolve_profiles(struct plan *p)
{
    const char *list = p->args->profiles != NULL ? p->args->profiles : PROFILES;
    char name[MP_PART_BYTES];
    enum mp_status status = MP_OK;

    while (status == MP_OK && mp_next_part(&list, name)) {
        struct mp_policy_names names = { .profile = name };

        for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
            names.policy[kind] =
                p->settings->run.policy[kind][0] != '\0' ? p->settings->run.policy[kind] : NULL;
        if (p->profile_count == PROFILES_MAX)
            return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--profile: at most %d of them", PROFILES_MAX);
        status = mp_policy_resolve(&names, &p->profiles[p->profile_count++]);
    }
    return status;
}

static const char *routing_of(const struct plan *p)
{
    return p->args->from_trace != NULL ? "recorded" : p->trace != NULL ? "measured" : "synthetic";
}

static void print_row(const struct row *row)
{
    const struct mp_sim_result *r = &row->result;
    char budget[MP_TEXT_SIZE_BYTES], memory[MP_TEXT_SIZE_BYTES];

    printf("%8.1f %10s %10s %9.1f %9.2f %8.2f %6.1f  %-10s %s%s\n",
           100 * (double)r->budget_bytes / (double)r->expert_bytes_all,
           mp_text_size(r->budget_bytes, budget), mp_text_size(row->memory_bytes, memory),
           (double)r->prefill_ns / 1e6, tpot_ms(r), tokens_per_s(r), 100 * hit_rate(r),
           row->profile->name, row->limit, row->fits ? "" : ", too large");
}

static void print_target(const struct plan *p)
{
    const struct row *row = &p->least;
    char budget[MP_TEXT_SIZE_BYTES], memory[MP_TEXT_SIZE_BYTES];

    if (p->target_ms == 0)
        return;
    if (row->profile == NULL)
        printf("\nno budget of the table that fits reaches %g ms per token\n", p->target_ms);
    else
        printf("\n%g ms per token: budget %s (%.1f %%), %s in all, profile %s\n", p->target_ms,
               mp_text_size(row->result.budget_bytes, budget),
               100 * (double)row->result.budget_bytes / (double)row->result.expert_bytes_all,
               mp_text_size(row->memory_bytes, memory), row->profile->name);
}

static void print_gpus(const struct plan *p)
{
    printf("\nGPUs (simulated, from descriptions; the budget is what their memory leaves)\n");
    for (size_t i = 0; i < p->gpu_count; i++) {
        const struct row *row = &p->gpus[i];

        if (row->profile == NULL)
            printf("  %-28s does not hold the other weights and two experts\n", row->name);
        else
            printf("  %-28s %9.2f ms %8.2f tok/s  %-10s %s%s\n", row->name, tpot_ms(&row->result),
                   tokens_per_s(&row->result), row->profile->name, row->limit,
                   p->target_ms == 0                       ? ""
                   : tpot_ms(&row->result) <= p->target_ms ? ", reaches the target"
                                                           : ", does not reach the target");
    }
}

static double step_ms(const struct mp_plan_facts *facts, enum mp_pattern pattern)
{
    return (double)facts->measured.step_ns[pattern] / 1e6;
}

/* Reads that computing hides have no speed. */
static void print_measured(const struct mp_plan_facts *f)
{
    const double none = step_ms(f, MP_PATTERN_NONE_READ), all = step_ms(f, MP_PATTERN_ALL_READ);
    char disk[32] = "reads do not show";

    if (all > READS_SHOW * none)
        snprintf(disk, sizeof(disk), "%.2f GB/s", f->disk_gbps);
    if (f->measured_run)
        printf("measured: %.2f ms per token with nothing to read, %.2f with one expert per layer, "
               "%.2f with all; %s\n",
               none, step_ms(f, MP_PATTERN_ONE_READ), all, disk);
    else if (f->disk_gbps > 0)
        printf(
            "measured: the disk reads %.2f GB/s; taken from %s: all else of the machine's speed\n",
            f->disk_gbps, f->machine.name);
    if (f->why_not[0] != '\0')
        printf("not measured: %s\n", f->why_not);
}

static void print_text(const struct plan *p)
{
    const struct mp_plan_facts *f = &p->facts;
    char fixed[MP_TEXT_SIZE_BYTES];

    printf("simulated: %s on %s, %s routing, seed %" PRIu64 "\n", f->model.name, f->machine.name,
           routing_of(p), p->settings->run.seed);
    print_measured(f);
    printf("memory: %.2f GiB %s, %s of it for all but experts\n\n", f->machine.device_gib,
           f->room_known ? "free here" : "in the description", mp_text_size(f->fixed_bytes, fixed));
    printf("budget %% %10s %10s %9s %9s %8s %6s  %-10s %s\n", "experts", "in all", "TTFT ms",
           "TPOT ms", "tok/s", "hit %", "profile", "limit");
    for (size_t i = 0; i < p->row_count; i++) {
        if (p->rows[i].profile != NULL)
            print_row(&p->rows[i]);
    }
    print_target(p);
    print_gpus(p);
}

static void json_row(struct mp_json_out *json, const char *key, const struct plan *p,
                     const struct row *row)
{
    const struct mp_sim_result *r = &row->result;

    mp_json_object_begin(json, key);
    if (row->name[0] != '\0')
        mp_json_put_string(json, "machine", row->name);
    mp_json_put_bool(json, "possible", row->profile != NULL);
    if (row->profile != NULL) {
        mp_json_put_string(json, "profile", row->profile->name);
        mp_json_put_u64(json, "budget_bytes", r->budget_bytes);
        mp_json_put_u64(json, "memory_bytes", row->memory_bytes);
        mp_json_put_bool(json, "fits", row->fits);
        mp_json_put_f64(json, "ttft_ms", (double)r->prefill_ns / 1e6);
        mp_json_put_f64(json, "tpot_ms", tpot_ms(r));
        mp_json_put_f64(json, "tokens_per_s", tokens_per_s(r));
        mp_json_put_f64(json, "hit_rate", hit_rate(r));
        mp_json_put_string(json, "limit", row->limit);
        if (p->target_ms > 0)
            mp_json_put_bool(json, "reaches_target", tpot_ms(r) <= p->target_ms);
    }
    mp_json_object_end(json);
}

static void print_json(const struct plan *p)
{
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_bool(&json, "simulated", true);
    mp_json_put_string(&json, "machine", p->facts.machine.name);
    mp_json_put_string(&json, "model", p->facts.model.name);
    mp_json_put_string(&json, "routing", routing_of(p));
    if (p->facts.measured_run) {
        mp_json_object_begin(&json, "measured_step_ms");
        mp_json_put_f64(&json, "none_read", step_ms(&p->facts, MP_PATTERN_NONE_READ));
        mp_json_put_f64(&json, "one_per_layer", step_ms(&p->facts, MP_PATTERN_ONE_READ));
        mp_json_put_f64(&json, "all_read", step_ms(&p->facts, MP_PATTERN_ALL_READ));
        mp_json_object_end(&json);
    }
    if (p->facts.why_not[0] != '\0')
        mp_json_put_string(&json, "not_measured", p->facts.why_not);
    mp_json_put_f64(&json, "measured_disk_gbps", p->facts.disk_gbps);
    mp_json_put_f64(&json, "memory_gib", p->facts.machine.device_gib);
    mp_json_put_u64(&json, "fixed_bytes", p->facts.fixed_bytes);
    mp_json_put_f64(&json, "target_tpot_ms", p->target_ms);
    mp_json_array_begin(&json, "rows");
    for (size_t i = 0; i < p->row_count; i++)
        json_row(&json, NULL, p, &p->rows[i]);
    mp_json_array_end(&json);
    if (p->target_ms > 0)
        json_row(&json, "least", p, &p->least);
    mp_json_array_begin(&json, "gpus");
    for (size_t i = 0; i < p->gpu_count; i++)
        json_row(&json, NULL, p, &p->gpus[i]);
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

/* From the run that was measured, or from the file that is given, which says how many are chosen.
 */
static enum mp_status choose_routing(struct plan *p)
{
    enum mp_status status = MP_OK;

    if (p->args->from_trace != NULL) {
        status = mp_replay_trace_read(p->args->from_trace, &p->file);
        p->trace = &p->file;
        p->facts.model.top_k = p->file.top_k;
    } else if (p->facts.measured_run) {
        p->trace = &p->facts.measured.routing;
    } else {
        status = mp_sim_fit(&p->facts.model, p->settings->run.seed, &p->fit);
    }
    return status;
}

static enum mp_status simulate_all(struct plan *p)
{
    enum mp_status status;

    mp_log_set_sink(mp_plan_drop_line, NULL);
    status = run_table(p);
    if (status == MP_OK && p->target_ms > 0)
        status = find_least(p);
    if (status == MP_OK)
        status = run_gpus(p);
    mp_log_set_sink(NULL, NULL);
    return status;
}

enum mp_status mp_cmd_plan(const struct mp_args *args, const struct mp_settings *settings)
{
    static struct plan p;
    enum mp_status status;

    memset(&p, 0, sizeof(p));
    p.args = args;
    p.settings = settings;
    status = mp_require_model(args);
    if (status == MP_OK && args->target_tpot != NULL)
        status = parse_target(args->target_tpot, &p.target_ms);
    if (status == MP_OK)
        status = resolve_profiles(&p);
    if (status == MP_OK)
        status = mp_plan_read(args, settings, &p.facts);
    if (status == MP_OK)
        status = choose_routing(&p);
    if (status == MP_OK)
        status = simulate_all(&p);
    if (status == MP_OK && args->json)
        print_json(&p);
    else if (status == MP_OK)
        print_text(&p);
    mp_replay_trace_fini(&p.file);
    mp_plan_facts_fini(&p.facts);
    return status == MP_OK ? mp_check_stdout() : status;
}
