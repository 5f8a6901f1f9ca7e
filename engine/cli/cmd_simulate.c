/*
 * `moepager simulate`: simulates profiles for a model on a machine, on a virtual clock.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/cli/commands.h"
#include "engine/cli/simulate_cluster.h"
#include "engine/model/sidecar/calibration.h"
#include "policy/sim/sim.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

struct simulate {
    const struct mp_args *args;
    const struct mp_settings *settings;
    struct mp_sim_machine machine;
    struct mp_sim_model model;
    struct mp_replay_trace trace;
    struct mp_calibration_data *calibration; /* or NULL */
    struct mp_sim_fit fit;                   /* of the model's statistics, once for all runs */
    struct mp_json_out json;
    bool begun;
};

static double share(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

static double per_second(uint64_t tokens, uint64_t ns)
{
    return ns > 0 ? (double)tokens * 1e9 / (double)ns : 0;
}

static double tpot_ms(const struct mp_sim_result *r)
{
    return r->decode_steps > 0 ? (double)r->decode_ns / 1e6 / (double)r->decode_steps : 0;
}

static double hit_rate(const struct mp_sim_result *r)
{
    const struct mp_counters *c = &r->counters;

    return share(c->hits, c->hits + c->misses + c->elsewhere);
}

static const char *workload(const struct simulate *s)
{
    if (s->args->from_trace == NULL)
        return "synthetic";
    return s->trace.scores != NULL ? "recorded trace, predictions synthetic"
                                   : "recorded trace, scores and predictions synthetic";
}

static void put_begin(struct simulate *s)
{
    s->begun = true;
    if (!s->args->json) {
        printf("simulated: %s on %s, workload %s, seed %" PRIu64 "%s%s\n", s->model.name,
               s->machine.name, workload(s), s->settings->run.seed,
               s->args->changes != NULL ? ", changed: " : "",
               s->args->changes != NULL ? s->args->changes : "");
        printf("%-18s %5s %6s %9s %9s %8s %6s %6s %7s %7s %6s %6s\n", "profile", "batch", "slots",
               "TTFT ms", "TPOT ms", "tok/s", "hit %", "else %", "wait %", "device%", "cpu %",
               "link %");
        return;
    }
    mp_json_begin(&s->json, stdout, true);
    mp_json_object_begin(&s->json, NULL);
    mp_json_put_string(&s->json, "machine", s->machine.name);
    mp_json_put_string(&s->json, "model", s->model.name);
    mp_json_put_string(&s->json, "changes", s->args->changes != NULL ? s->args->changes : "");
    mp_json_put_string(&s->json, "workload", workload(s));
    mp_json_put_u64(&s->json, "seed", s->settings->run.seed);
    mp_json_array_begin(&s->json, "rows");
}

static void put_json(struct mp_json_out *json, const struct mp_profile *profile, uint32_t batch,
                     const struct mp_sim_result *r)
{
    mp_json_object_begin(json, NULL);
    mp_json_put_string(json, "profile", profile->name);
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        mp_json_put_string(json, mp_policy_kind_name((enum mp_policy_kind)kind),
                           profile->policy[kind]);
    mp_json_put_u64(json, "batch", batch);
    mp_json_put_u64(json, "budget_bytes", r->budget_bytes);
    mp_json_put_u64(json, "slots", r->slots);
    mp_json_put_u64(json, "slices", r->slices);
    mp_json_put_u64(json, "units", r->units);
    mp_json_put_f64(json, "ttft_ms", (double)r->prefill_ns / 1e6);
    mp_json_put_f64(json, "prefill_tokens_per_s", per_second(r->prefill_tokens, r->prefill_ns));
    mp_json_put_u64(json, "decode_steps", r->decode_steps);
    mp_json_put_f64(json, "tpot_ms", tpot_ms(r));
    mp_json_put_f64(json, "tokens_per_s", per_second(r->decode_tokens, r->decode_ns));
    mp_json_put_f64(json, "hit_rate", hit_rate(r));
    mp_json_put_f64(json, "elsewhere_rate",
                    share(r->counters.elsewhere,
                          r->counters.hits + r->counters.misses + r->counters.elsewhere));
    mp_json_put_f64(json, "exposed_wait_share", share(r->counters.exposed_wait_ns, r->decode_ns));
    mp_json_put_f64(json, "device_busy_share", share(r->device_busy_ns, r->decode_ns));
    mp_json_put_f64(json, "cpu_busy_share", share(r->cpu_busy_ns, r->decode_ns));
    mp_json_put_f64(json, "link_busy_share", share(r->link_busy_ns, r->decode_ns));
    mp_json_put_f64(json, "seen_skew", r->seen.skew);
    mp_json_put_f64(json, "seen_skew_spread", r->seen.skew_spread);
    mp_json_put_f64(json, "seen_overlap", r->seen.overlap);
    mp_json_put_f64(json, "seen_mass", r->seen.mass);
    mp_json_put_f64(json, "seen_accuracy", r->seen.accuracy);
    mp_counters_json(&r->counters, json, "counters");
    mp_json_object_end(json);
}

static void put_row(struct simulate *s, const struct mp_profile *profile, uint32_t batch,
                    const struct mp_sim_result *r)
{
    const struct mp_counters *c = &r->counters;

    if (!s->begun)
        put_begin(s);
    if (s->args->json) {
        put_json(&s->json, profile, batch, r);
        return;
    }
    printf("%-18s %5u %6u %9.1f %9.2f %8.2f %6.1f %6.1f %7.1f %7.1f %6.1f %6.1f\n", profile->name,
           batch, r->slots, (double)r->prefill_ns / 1e6, tpot_ms(r),
           per_second(r->decode_tokens, r->decode_ns), 100 * hit_rate(r),
           100 * share(c->elsewhere, c->hits + c->misses + c->elsewhere),
           100 * share(c->exposed_wait_ns, r->decode_ns),
           100 * share(r->device_busy_ns, r->decode_ns), 100 * share(r->cpu_busy_ns, r->decode_ns),
           100 * share(r->link_busy_ns, r->decode_ns));
}

static void put_end(struct simulate *s)
{
    if (!s->args->json)
        return;
    mp_json_array_end(&s->json);
    mp_json_object_end(&s->json);
    mp_json_end(&s->json);
}

/* MoEpic cuts at sixteenths; all others have whole experts unless they are asked for slices. */
static uint32_t slices_of(const struct simulate *s, const struct mp_profile *profile)
{
    if (s->settings->run.slices > 0)
        return (uint32_t)s->settings->run.slices;
    return strcmp(profile->name, "moepic") == 0 ? MP_SLICES_MAX : 1;
}

static enum mp_status open_trace(const struct simulate *s, struct mp_trace_writer **writer_p)
{
    struct mp_trace_shape shape = {
        .layers = (uint32_t)s->model.layers,
        .experts = (uint32_t)s->model.experts,
        .top_k = (uint32_t)s->model.top_k,
        .expert_bytes = mp_sim_expert_bytes(&s->model),
    };

    if (s->args->trace == NULL)
        return MP_OK;
    memcpy(shape.model, s->model.name, sizeof(s->model.name));
    return mp_trace_create(s->args->trace, &shape, writer_p);
}

static enum mp_status run_one(struct simulate *s, const struct mp_profile *profile, uint32_t batch)
{
    struct mp_timeline *timeline = NULL;
    struct mp_trace_writer *routing = NULL;
    enum mp_status status = open_trace(s, &routing);
    const struct mp_sim_config config = {
        .machine = &s->machine,
        .model = &s->model,
        .trace = s->args->from_trace != NULL ? &s->trace : NULL,
        .calibration = s->calibration != NULL ? &s->calibration->facts : NULL,
        .profile = profile,
        .groups = s->settings->groups,
        .slices = slices_of(s, profile),
        .batch = batch,
        .warm = (uint32_t)s->args->warm_tokens,
        .prompt = (uint32_t)s->args->prompt_tokens,
        .gen = (uint32_t)s->args->gen_tokens,
        .budget = s->settings->run.budget,
        .seed = s->settings->run.seed,
        .fit = &s->fit,
        .deterministic = s->settings->run.deterministic != 0,
        .timeline_p = s->args->timeline != NULL ? &timeline : NULL,
        .routing = routing,
        .cancel = &mp_interrupted,
    };
    struct mp_sim_result result;

    if (status == MP_OK)
        status = mp_sim_run(&config, &result);
    if (status == MP_OK && s->args->timeline != NULL)
        status = mp_timeline_write(timeline, s->args->timeline);
    mp_timeline_destroy(timeline);
    if (status == MP_OK && routing != NULL)
        status = mp_trace_close(routing);
    else
        mp_trace_abandon(routing);
    if (status == MP_OK)
        put_row(s, profile, batch, &result);
    return status;
}

static enum mp_status parse_batch(const char *text, uint32_t *batch_p)
{
    static const struct mp_opt opt = { .name = "batch", .kind = MP_OPT_U64, .min = 1, .max = 4096 };
    char quoted[MP_QUOTE_BYTES];
    uint64_t value;

    if (!mp_opt_parse(&opt, text, &value))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--batches: got '%s', need numbers from 1 to 4096 with commas between",
                       mp_quote(quoted, text, strlen(text)));
    *batch_p = (uint32_t)value;
    return MP_OK;
}

static enum mp_status resolve(const struct simulate *s, const char *name,
                              struct mp_profile *profile)
{
    const struct mp_run_settings *run = &s->settings->run;
    struct mp_policy_names names = { .profile = name };

    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        names.policy[kind] = run->policy[kind][0] != '\0' ? run->policy[kind] : NULL;
    return mp_policy_resolve(&names, profile);
}

/* Both lists; with `run` false they are only checked, so that a mistake in the last part ends the
 * command before the first run. */
static enum mp_status run_all(struct simulate *s, bool run)
{
    const char *batches = s->args->batches != NULL ? s->args->batches : "1";
    char batch_text[MP_PART_BYTES], name[MP_PART_BYTES];
    enum mp_status status = MP_OK;

    while (status == MP_OK && mp_next_part(&batches, batch_text)) {
        const char *profiles = s->args->profiles != NULL ? s->args->profiles : mp_profiles[0].name;
        uint32_t batch = 0;

        status = parse_batch(batch_text, &batch);
        while (status == MP_OK && mp_next_part(&profiles, name)) {
            struct mp_profile profile;

            status = resolve(s, name, &profile);
            if (status == MP_OK && run)
                status = run_one(s, &profile, batch);
        }
    }
    return status;
}

static enum mp_status check_args(const struct mp_args *args)
{
    if (args->places != NULL || args->requests != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--%s needs --cluster",
                       args->places != NULL ? "place" : "requests");
    if (args->machine == NULL || args->model == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "need --machine and --model: moepager simulate --machine "
                       "rtx3090-epyc7532 --model deepseek-v2-lite");
    if (args->from_trace != NULL && (args->batches != NULL || args->warm_tokens > 0))
        return mp_fail(
            MP_ERR_CONFIG, "E_USAGE",
            "--%s and --from-trace exclude each other: a trace has its batches and steps",
            args->batches != NULL ? "batches" : "warm");
    if (args->trace != NULL && args->from_trace != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--trace-out and --from-trace exclude each other");
    if ((args->timeline != NULL || args->trace != NULL) &&
        ((args->batches != NULL && strchr(args->batches, ',')) ||
         (args->profiles != NULL && strchr(args->profiles, ','))))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--%s needs one profile and one batch: it is of one run",
                       args->trace != NULL ? "trace-out" : "timeline");
    return MP_OK;
}

enum mp_status mp_cmd_simulate(const struct mp_args *args, const struct mp_settings *settings)
{
    struct simulate s = { .args = args, .settings = settings };
    enum mp_status status;

    if (args->cluster != NULL)
        return mp_simulate_cluster(args, settings);
    status = check_args(args);
    if (status == MP_OK)
        status = run_all(&s, false);
    if (status == MP_OK)
        status = mp_sim_machine_read(args->machine, &s.machine);
    if (status == MP_OK)
        status = mp_sim_model_read(args->model, &s.model);
    if (status == MP_OK && args->from_trace != NULL)
        status = mp_replay_trace_read(args->from_trace, &s.trace);
    if (status == MP_OK && args->from_trace != NULL)
        s.model.top_k = s.trace.top_k; /* some recorders leave out a model's last ranks */
    if (status == MP_OK && args->changes != NULL)
        status = mp_sim_change(args->changes, &s.machine, &s.model);
    if (status == MP_OK && args->from_trace == NULL)
        status = mp_sim_fit(&s.model, settings->run.seed, &s.fit);
    if (status == MP_OK)
        status = mp_calibration_load_for(settings->run.calibration, (uint32_t)s.model.layers,
                                         (uint32_t)s.model.experts, &s.calibration);
    if (status == MP_OK)
        status = run_all(&s, true);
    if (s.begun) /* also after an interruption: with the rows that are complete */
        put_end(&s);
    mp_calibration_destroy(s.calibration);
    if (args->from_trace != NULL)
        mp_replay_trace_fini(&s.trace);
    return mp_printed(status);
}
