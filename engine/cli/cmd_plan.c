/*
 * `moepager plan`: what a machine can do with a model. Simulates profiles at several budgets
 * (policy/sim/sim.h) and takes the best one of each; on this machine that one is then run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/cli/commands.h"
#include "engine/cli/plan_int.h"
#include "vmm/base/error.h"

#define PROFILES "gate-best,gate-lru,lru,auto"
#define BUDGETS "5%,10%,20%,30%,40%,50%,75%,100%"
#define WARM_STEPS 64  /* before the prompt: a run has more tokens than are simulated */
#define SEARCH_STEPS 7 /* halves the step of the table so often */

double mp_plan_simulated_ms(const struct mp_plan_row *row)
{
    const struct mp_sim_result *r = &row->result;

    return r->decode_steps > 0 ? (double)r->decode_ns / 1e6 / (double)r->decode_steps : 0;
}

double mp_plan_tpot_ms(const struct mp_plan_row *row)
{
    return row->trial.runs > 0 ? row->trial.tpot_ms : row->scale * mp_plan_simulated_ms(row);
}

/* How much longer a token took than simulated at this budget, by the nearest budgets that were
 * run. */
static double scale_at(const struct mp_plan *p, uint64_t budget_bytes)
{
    const struct mp_plan_row *below = NULL, *above = NULL;
    double scale[2], part;

    for (size_t i = 0; i < p->row_count; i++) {
        const struct mp_plan_row *row = &p->rows[i];
        const uint64_t bytes = row->result.budget_bytes;

        if (row->trial.runs == 0 || mp_plan_simulated_ms(row) <= 0)
            continue;
        if (bytes <= budget_bytes && (below == NULL || bytes > below->result.budget_bytes))
            below = row;
        if (bytes >= budget_bytes && (above == NULL || bytes < above->result.budget_bytes))
            above = row;
    }
    if (below == NULL && above == NULL)
        return 1;
    below = below != NULL ? below : above;
    above = above != NULL ? above : below;
    scale[0] = below->trial.tpot_ms / mp_plan_simulated_ms(below);
    scale[1] = above->trial.tpot_ms / mp_plan_simulated_ms(above);
    if (below->result.budget_bytes == above->result.budget_bytes)
        return scale[0];
    part = (double)(budget_bytes - below->result.budget_bytes) /
           (double)(above->result.budget_bytes - below->result.budget_bytes);
    return scale[0] + part * (scale[1] - scale[0]);
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
static enum mp_status run_budget(const struct mp_plan *p, const struct mp_sim_machine *machine,
                                 bool on_host, struct mp_share budget, struct mp_plan_row *row)
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
    row->scale = machine == &p->facts.machine ? scale_at(p, row->result.budget_bytes) : 1;
    row->memory_bytes = row->result.budget_bytes + p->facts.fixed_bytes;
    row->fits = (double)row->memory_bytes <= machine->device_gib * (1 << 30);
    row->limit = limit_of(machine, on_host, &row->result);
    return MP_OK;
}

static bool reaches(const struct mp_plan *p, const struct mp_plan_row *row)
{
    return row->profile != NULL && row->fits && mp_plan_tpot_ms(row) <= p->target_ms;
}

static enum mp_status run_table(struct mp_plan *p)
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
        if (p->row_count == MP_PLAN_ROWS_MAX)
            return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--budget: at most %d of them",
                           MP_PLAN_ROWS_MAX);
        status = run_budget(p, &p->facts.machine, p->facts.on_host, share, &p->rows[p->row_count]);
        p->row_count++;
    }
    return status;
}

/* Of the rows for this machine, as the simulator has chosen them; not where a trace or a change
 * asks what would be. */
static enum mp_status run_trials(struct mp_plan *p)
{
    struct mp_trial trials[MP_PLAN_ROWS_MAX];
    struct mp_plan_row *rows[MP_PLAN_ROWS_MAX];
    size_t count = 0;
    enum mp_status status;

    if (!p->facts.measured_run || p->args->from_trace != NULL || p->args->changes != NULL)
        return MP_OK;
    for (size_t i = 0; i < p->row_count; i++) {
        const struct mp_sim_result *r = &p->rows[i].result;

        if (p->rows[i].profile == NULL || !p->rows[i].fits)
            continue;
        rows[count] = &p->rows[i];
        trials[count++] = (struct mp_trial){
            .policies = p->rows[i].profile,
            .budget_bytes = r->budget_bytes,
            .expected_prefill_ns = r->prefill_ns,
            .expected_step_ns = (uint64_t)(1e6 * mp_plan_simulated_ms(&p->rows[i])),
        };
    }
    if (count == 0)
        return MP_OK;
    status = mp_plan_try(p->args, p->settings, trials, count);
    for (size_t i = 0; i < count && status == MP_OK; i++)
        rows[i]->trial = trials[i];
    return status;
}

/* From the smallest row that reaches the target down to the next smaller one, by halves. */
static enum mp_status find_least(struct mp_plan *p)
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
        struct mp_plan_row row;

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
static enum mp_status run_gpus(struct mp_plan *p)
{
    enum mp_status status = MP_OK;

    for (const struct mp_sim_text *text = mp_sim_machines; text->name != NULL; text++) {
        struct mp_sim_machine machine;
        struct mp_plan_row *row = &p->gpus[p->gpu_count];

        status = mp_sim_machine_read(text->name, &machine);
        if (status != MP_OK)
            return status;
        if (machine.cpu_gflops == 0 || p->gpu_count == MP_PLAN_GPUS_MAX)
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

static enum mp_status resolve_profiles(struct mp_plan *p)
{
    const char *list = p->args->profiles != NULL ? p->args->profiles : PROFILES;
    char name[MP_PART_BYTES];
    enum mp_status status = MP_OK;

    while (status == MP_OK && mp_next_part(&list, name)) {
        struct mp_policy_names names = { .profile = name };

        for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
            names.policy[kind] =
                p->settings->run.policy[kind][0] != '\0' ? p->settings->run.policy[kind] : NULL;
        if (p->profile_count == MP_PLAN_PROFILES_MAX)
            return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--profile: at most %d of them",
                           MP_PLAN_PROFILES_MAX);
        status = mp_policy_resolve(&names, &p->profiles[p->profile_count++]);
    }
    return status;
}

/* From the run that was measured, or from the file that is given, which says how many are chosen.
 */
static enum mp_status choose_routing(struct mp_plan *p)
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

static enum mp_status simulate_all(struct mp_plan *p)
{
    enum mp_status status;

    mp_log_set_sink(mp_plan_drop_line, NULL);
    status = run_table(p);
    if (status == MP_OK)
        status = run_trials(p);
    if (status == MP_OK && p->target_ms > 0)
        status = find_least(p);
    if (status == MP_OK)
        status = run_gpus(p);
    mp_log_set_sink(NULL, NULL);
    return status;
}

enum mp_status mp_cmd_plan(const struct mp_args *args, const struct mp_settings *settings)
{
    static struct mp_plan p;
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
        mp_plan_print_json(&p);
    else if (status == MP_OK)
        mp_plan_print_text(&p);
    mp_replay_trace_fini(&p.file);
    mp_plan_facts_fini(&p.facts);
    return status == MP_OK ? mp_check_stdout() : status;
}
