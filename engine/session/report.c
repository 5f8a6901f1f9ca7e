/*
 * The report of a run, from its times and counters, as text and JSON. Measures nothing itself.
 */
#include "engine/session/report.h"

#include <string.h>

static double per_second(uint64_t count, uint64_t ns)
{
    return ns > 0 ? (double)count * 1e9 / (double)ns : 0;
}

struct mp_counters mp_report_counters(const struct mp_session *session)
{
    struct mp_counters counters = *mp_engine_counters(session->engine);

    counters.prefetch_unused_bytes += mp_pager_unused_bytes(mp_engine_pager(session->engine));
    return counters;
}

struct mp_counters mp_report_counters_since(const struct mp_session *session,
                                            const struct mp_counters *before)
{
    struct mp_counters now = mp_report_counters(session);

    if (now.prefetch_unused_bytes < before->prefetch_unused_bytes)
        now.prefetch_unused_bytes = before->prefetch_unused_bytes;
    return mp_counters_since(&now, before);
}

void mp_report_make(const struct mp_session *session, const struct mp_generate_stats *stats,
                    const struct mp_counters *before, double load_ms, struct mp_report *report_p)
{
    const struct mp_counters run = mp_report_counters_since(session, before);
    const uint64_t uses = run.hits + run.misses;
    const uint64_t later =
        stats->decode_steps > 0 ? stats->generated_tokens - stats->first_tokens : 0;

    *report_p = (struct mp_report){
        .prompt_tokens = stats->prompt_tokens,
        .generated_tokens = stats->generated_tokens,
        .load_ms = load_ms,
        .ttft_ms = (double)stats->prefill_ns * 1e-6,
        .tpot_ms = stats->decode_steps > 0
                       ? (double)stats->decode_ns * 1e-6 / (double)stats->decode_steps
                       : 0,
        .tokens_per_s = per_second(later, stats->decode_ns),
        .prefill_per_s = per_second(stats->prompt_tokens, stats->prefill_ns),
        .hit_rate = uses > 0 ? (double)run.hits / (double)uses : 1,
        .bytes_loaded = run.load_bytes + run.prefetch_bytes,
        .bytes_prefetched_unused = run.prefetch_unused_bytes,
        .exposed_wait_ms = (double)run.exposed_wait_ns * 1e-6,
        .drafts = stats->drafts,
        .bytes_per_token = later > 0 ? (double)stats->decode_bytes / (double)later : 0,
        .budget_bytes = session->memory.budget_bytes,
        .full_bytes = session->memory.full_bytes,
        .expert_bytes = session->memory.expert_bytes,
        .weights_bytes = session->memory.weights_bytes,
        .kv_bytes = session->memory.kv_bytes,
        .kv_type = session->engine_config.kv_type,
        .lost_bytes = mp_engine_lost_bytes(session->engine),
        .counters = run,
        .reader = mp_engine_reader(session->engine),
        .direct_io = session->direct_io,
        .policies = &session->engine_config.policies,
        .kernels = session->engine_config.kernels,
        .threads = mp_pool_threads(session->pool),
        .device = &session->device,
    };
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

void mp_report_print(const struct mp_report *r, FILE *out)
{
    /* Slots of the largest size take more than the experts' bytes, where these have several. */
    const uint64_t all = r->budget_bytes > r->expert_bytes ? r->full_bytes : r->expert_bytes;

    fprintf(out, "tokens        %llu prompt, %llu generated\n",
            (unsigned long long)r->prompt_tokens, (unsigned long long)r->generated_tokens);
    fprintf(
        out,
        "time          load %.0f ms, first token %.1f ms, then %.2f ms per step (%.1f tokens/s)\n",
        r->load_ms, r->ttft_ms, r->tpot_ms, r->tokens_per_s);
    fprintf(out,
            "%s  %.1f of %.1f MiB (%.0f %%), other weights %.1f MiB, KV cache up to %.1f MiB "
            "(%s)\n",
            r->device->cuda ? "expert HBM  " : "expert RAM  ", mib(r->budget_bytes), mib(all),
            all > 0 ? 100.0 * (double)r->budget_bytes / (double)all : 0.0, mib(r->weights_bytes),
            mib(r->kv_bytes), mp_wtype_name(r->kv_type));
    fprintf(out, "hit rate      %.1f %%: %llu of %llu expert uses were resident\n",
            100 * r->hit_rate, (unsigned long long)r->counters.hits,
            (unsigned long long)(r->counters.hits + r->counters.misses));
    fprintf(out, "bytes by tier %.1f MiB in %s now (at most %.1f), %.1f MiB came from %s\n",
            mib(r->counters.resident_bytes), r->device->cuda ? "HBM" : "RAM",
            mib(r->counters.resident_peak_bytes), mib(r->bytes_loaded),
            r->device->cuda ? "host memory" : "the file");
    fprintf(out, "read ahead    %.1f MiB, %.1f MiB of it unused; by %s%s\n",
            mib(r->counters.prefetch_bytes), mib(r->bytes_prefetched_unused), r->reader,
            r->direct_io ? " past the page cache" : " through the page cache");
    if (r->counters.guesses_planned + r->counters.swaps_planned > 0)
        fprintf(
            out,
            "carried out   guesses: %llu planned, %llu read, %llu dropped, %llu needed before they had "
            "come; swaps: %llu planned, %llu made, %llu dropped, %llu late\n",
            (unsigned long long)r->counters.guesses_planned,
            (unsigned long long)r->counters.guesses_started,
            (unsigned long long)r->counters.guesses_superseded,
            (unsigned long long)r->counters.guesses_late,
            (unsigned long long)r->counters.swaps_planned,
            (unsigned long long)r->counters.swaps_started,
            (unsigned long long)r->counters.swaps_superseded,
            (unsigned long long)r->counters.swaps_late);
    fprintf(out, "exposed wait  %.1f ms: time that compute stood still for a read\n",
            r->exposed_wait_ms);
    if (r->drafts.steps > 0)
        fprintf(
            out,
            "drafts        %llu tokens, %llu of them accepted (%.1f %%), in %llu steps; %.2f MiB "
            "read per generated token\n",
            (unsigned long long)r->drafts.drafted, (unsigned long long)r->drafts.accepted,
            100 * (double)r->drafts.accepted / (double)r->drafts.drafted,
            (unsigned long long)r->drafts.steps, r->bytes_per_token / (1 << 20));
    if (r->lost_bytes > 0)
        fprintf(out, "lost          %.1f MiB that the driver did not take back\n",
                mib(r->lost_bytes));
    if (r->counters.route_choices > 0)
        fprintf(out,
                "substituted   %.2f %% of %llu chosen experts are not the model's own choice\n",
                100 * (double)r->counters.route_substituted / (double)r->counters.route_choices,
                (unsigned long long)r->counters.route_choices);
    fprintf(out, "policies      ");
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        fprintf(out, "%s%s %s", kind > 0 ? ", " : "", mp_policy_kind_name(kind),
                r->policies->policy[kind]);
    fprintf(out, "\nmachine       %u threads, %s kernels, math %s", r->threads, r->kernels->name,
            mp_math_name(r->kernels->math));
    if (r->device->cuda)
        fprintf(out, ", cuda:%u %s", r->device->ordinal, r->device->device.name);
    fputc('\n', out);
}

void mp_report_json(const struct mp_report *r, struct mp_json_out *json)
{
    mp_json_put_u64(json, "prompt_tokens", r->prompt_tokens);
    mp_json_put_u64(json, "generated_tokens", r->generated_tokens);
    mp_json_put_f64(json, "load_ms", r->load_ms);
    mp_json_put_f64(json, "ttft_ms", r->ttft_ms);
    mp_json_put_f64(json, "tpot_ms", r->tpot_ms);
    mp_json_put_f64(json, "tokens_per_s", r->tokens_per_s);
    mp_json_put_f64(json, "prefill_tokens_per_s", r->prefill_per_s);
    mp_json_put_f64(json, "hit_rate", r->hit_rate);
    mp_json_put_u64(json, "bytes_loaded", r->bytes_loaded);
    mp_json_put_u64(json, "bytes_prefetched_unused", r->bytes_prefetched_unused);
    mp_json_put_f64(json, "exposed_wait_ms", r->exposed_wait_ms);
    mp_json_put_u64(json, "drafted_tokens", r->drafts.drafted);
    mp_json_put_u64(json, "accepted_tokens", r->drafts.accepted);
    mp_json_put_u64(json, "drafted_steps", r->drafts.steps);
    mp_json_put_f64(json, "decode_bytes_per_token", r->bytes_per_token);
    mp_json_put_u64(json, "budget_bytes", r->budget_bytes);
    mp_json_put_u64(json, "expert_bytes", r->expert_bytes);
    mp_json_put_u64(json, "weights_bytes", r->weights_bytes);
    mp_json_put_u64(json, "kv_bytes", r->kv_bytes);
    mp_json_put_string(json, "kv_type", mp_wtype_name(r->kv_type));
    mp_json_put_u64(json, "lost_bytes", r->lost_bytes);
    mp_json_put_string(json, "reader", r->reader);
    mp_json_put_bool(json, "direct_io", r->direct_io);
    mp_json_put_string(json, "kernels", r->kernels->name);
    mp_json_put_string(json, "math", mp_math_name(r->kernels->math));
    mp_json_put_u64(json, "threads", r->threads);
    mp_json_put_string(json, "device", r->device->cuda ? r->device->device.name : "cpu");
    mp_json_object_begin(json, "policies");
    mp_json_put_string(json, "profile", r->policies->name);
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        mp_json_put_string(json, mp_policy_kind_name(kind), r->policies->policy[kind]);
    mp_json_object_end(json);
    mp_counters_json(&r->counters, json, "counters");
}
