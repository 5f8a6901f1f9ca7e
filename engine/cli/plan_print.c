/*
 * What `moepager plan` prints.
 */
#include <inttypes.h>
#include <stdio.h>

#include "engine/cli/plan_int.h"
#include "vmm/base/text.h"
#include "vmm/output/json_out.h"

#define READS_SHOW 1.02 /* steps that reads make no longer tell nothing of a read */

static double ttft_ms(const struct mp_plan_row *row)
{
    return row->trial.runs > 0 ? row->trial.ttft_ms : (double)row->result.prefill_ns / 1e6;
}

static double tokens_per_s(const struct mp_plan_row *row) /* of one sequence */
{
    const struct mp_sim_result *r = &row->result;

    if (row->trial.runs > 0)
        return row->trial.tpot_ms > 0 ? 1e3 / row->trial.tpot_ms : 0;
    return r->decode_ns > 0 ? (double)r->decode_tokens * 1e9 / (double)r->decode_ns / row->scale
                            : 0;
}

static double hit_rate(const struct mp_plan_row *row)
{
    const struct mp_counters *counters = &row->result.counters;
    const uint64_t all = counters->hits + counters->misses + counters->elsewhere;

    if (row->trial.runs > 0)
        return row->trial.hit_rate;
    return all > 0 ? (double)counters->hits / (double)all : 0;
}

static const char *routing_of(const struct mp_plan *p)
{
    return p->args->from_trace != NULL ? "recorded" : p->trace != NULL ? "measured" : "synthetic";
}

static void print_row(const struct mp_plan_row *row)
{
    const struct mp_sim_result *r = &row->result;
    char budget[MP_TEXT_SIZE_BYTES], memory[MP_TEXT_SIZE_BYTES];

    printf("%8.1f %10s %10s %9.1f %9.2f %8.2f %6.1f  %-10s %s%s",
           100 * (double)r->budget_bytes / (double)r->expert_bytes_all,
           mp_text_size(r->budget_bytes, budget), mp_text_size(row->memory_bytes, memory),
           ttft_ms(row), mp_plan_tpot_ms(row), tokens_per_s(row), 100 * hit_rate(row),
           row->profile->name, row->limit, row->fits ? "" : ", too large");
    if (row->trial.runs > 0)
        printf("; %.2f ms simulated", mp_plan_simulated_ms(row));
    printf("\n");
}

static void print_target(const struct mp_plan *p)
{
    const struct mp_plan_row *row = &p->least;
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

static void print_gpus(const struct mp_plan *p)
{
    printf("\nGPUs (simulated, from descriptions; the budget is what their memory leaves)\n");
    for (size_t i = 0; i < p->gpu_count; i++) {
        const struct mp_plan_row *row = &p->gpus[i];

        if (row->profile == NULL)
            printf("  %-28s does not hold the other weights and two experts\n", row->name);
        else
            printf("  %-28s %9.2f ms %8.2f tok/s  %-10s %s%s\n", row->name, mp_plan_tpot_ms(row),
                   tokens_per_s(row), row->profile->name, row->limit,
                   p->target_ms == 0                      ? ""
                   : mp_plan_tpot_ms(row) <= p->target_ms ? ", reaches the target"
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

void mp_plan_print_text(const struct mp_plan *p)
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

static void json_row(struct mp_json_out *json, const char *key, const struct mp_plan *p,
                     const struct mp_plan_row *row)
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
        mp_json_put_u64(json, "runs", row->trial.runs);
        mp_json_put_f64(json, "ttft_ms", ttft_ms(row));
        mp_json_put_f64(json, "tpot_ms", mp_plan_tpot_ms(row));
        mp_json_put_f64(json, "simulated_tpot_ms", mp_plan_simulated_ms(row));
        mp_json_put_f64(json, "tokens_per_s", tokens_per_s(row));
        mp_json_put_f64(json, "hit_rate", hit_rate(row));
        mp_json_put_string(json, "limit", row->limit);
        if (p->target_ms > 0)
            mp_json_put_bool(json, "reaches_target", mp_plan_tpot_ms(row) <= p->target_ms);
    }
    mp_json_object_end(json);
}

void mp_plan_print_json(const struct mp_plan *p)
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
