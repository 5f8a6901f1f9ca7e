/* What a rank of `moepager bench --cluster` prints at its end. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/cli/bench_cluster_int.h"
#include "vmm/output/json_out.h"

static uint64_t rank_number(const struct mp_bench_cluster *bench)
{
    return bench->c.transport->rank;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void put_latency(struct mp_json_out *json, const struct mp_message_result *all,
                        uint32_t count)
{
    double *s = calloc(count + 1, sizeof(*s)), sum = 0;
    uint32_t failed = 0, ok = 0;

    for (uint32_t i = 0; i < count && s != NULL; i++) {
        failed += all[i].failed;
        if (!all[i].failed) {
            s[ok] = all[i].end_s - all[i].arrival_s;
            sum += s[ok++];
        }
    }
    if (s != NULL)
        qsort(s, ok, sizeof(*s), compare);
    mp_json_put_u64(json, "all_requests", count);
    mp_json_put_u64(json, "failed_requests", failed);
    mp_json_put_f64(json, "mean_s", ok > 0 ? sum / ok : 0);
    mp_json_put_f64(json, "p95_s", ok > 0 ? s[(size_t)(ok - 1) * 95 / 100] : 0);
    free(s);
}

/* Of all ranks by the lowest one, its own by another: should rank 0 die while it prints, each
 * request is still printed by one. */
static void put_requests(const struct mp_bench_cluster *bench, struct mp_json_out *json,
                         const struct mp_message_result *all, uint32_t count)
{
    const bool reports = mp_rank_reports(bench->c.rank);

    mp_json_array_begin(json, "requests");
    for (uint32_t i = 0; i < count; i++) {
        char digest[24];

        if (!reports && !mp_bench_is_own(bench, all[i].request))
            continue;

        snprintf(digest, sizeof(digest), "%016" PRIx64, all[i].digest);
        mp_json_object_begin(json, NULL);
        mp_json_put_u64(json, "request", all[i].request);
        mp_json_put_string(json, "digest", digest);
        mp_json_put_f64(json, "arrival_s", all[i].arrival_s);
        mp_json_put_f64(json, "first_s", all[i].first_s);
        mp_json_put_f64(json, "end_s", all[i].end_s);
        mp_json_put_u64(json, "tokens", all[i].tokens);
        mp_json_put_u64(json, "failed", all[i].failed);
        mp_json_object_end(json);
    }
    mp_json_array_end(json);
}

static double share(const struct mp_rank_report *r)
{
    return r->all_tokens > 0 ? (double)r->local_tokens / (double)r->all_tokens : 1;
}

/* What placements were told, by rank. */
static void put_costs(const struct mp_bench_cluster *bench, struct mp_json_out *json,
                      const struct mp_rank_report *r)
{
    double fixed, row;

    mp_json_put_f64(json, "read_us", r->read_ns / 1e3);
    mp_json_put_f64(json, "read_more_us", r->read_more_ns / 1e3);
    mp_json_array_begin(json, "call_us");
    for (uint32_t p = 0; p < bench->c.transport->ranks; p++) {
        mp_rank_call_ns(bench->c.rank, p, &fixed, &row);
        mp_json_put_f64(json, NULL, fixed / 1e3);
    }
    mp_json_array_end(json);
    mp_json_array_begin(json, "row_us");
    for (uint32_t p = 0; p < bench->c.transport->ranks; p++) {
        mp_rank_call_ns(bench->c.rank, p, &fixed, &row);
        mp_json_put_f64(json, NULL, row / 1e3);
    }
    mp_json_array_end(json);
}

/* One line for each rank; the lowest one sums up. */
void mp_bench_print_json(const struct mp_bench_cluster *bench, const struct mp_rank_report *r)
{
    uint32_t count;
    const struct mp_message_result *all = mp_rank_results(bench->c.rank, &count);
    struct mp_json_out json;

    mp_json_begin(&json, stdout, false);
    mp_json_object_begin(&json, NULL);
    mp_json_put_u64(&json, "rank", rank_number(bench));
    mp_json_put_u64(&json, "ranks", bench->c.transport->ranks);
    mp_json_put_string(&json, "place", bench->c.place->name);
    mp_json_put_bool(&json, "survives", bench->c.transport->survives);
    mp_json_put_u64(&json, "own_requests", bench->done);
    mp_json_put_f64(&json, "local_share", share(r));
    mp_json_put_u64(&json, "calls", r->calls);
    mp_json_put_u64(&json, "served", r->served);
    mp_json_put_u64(&json, "sent_bytes", r->sent_bytes);
    mp_json_put_u64(&json, "messages", r->messages);
    mp_json_put_u64(&json, "long_messages", r->long_messages);
    mp_json_put_u64(&json, "redone", r->redone);
    mp_json_put_u64(&json, "late", r->late);
    mp_json_put_f64(&json, "cpu_s", (double)bench->cpu_ns / 1e9);
    mp_json_put_f64(&json, "wait_s", (double)r->wait_ns / 1e9);
    mp_json_put_u64(&json, "kept", r->kept);
    mp_json_put_u64(&json, "migrations", r->migrations);
    mp_json_put_u64(&json, "fetched", r->fetched);
    mp_json_put_u64(&json, "fetched_bytes", r->fetched_bytes);
    mp_json_put_u64(&json, "lent", r->lent);
    mp_json_put_u64(&json, "read_bytes", r->read_bytes);
    mp_json_put_f64(&json, "fetch_us", r->fetch_ns / 1e3);
    mp_json_put_f64(&json, "fill_us", r->fill_ns / 1e3);
    put_costs(bench, &json, r);
    mp_json_put_u64(&json, "lost", r->lost);
    mp_json_put_u64(&json, "returned", r->returned);
    mp_json_put_u64(&json, "taken", r->taken);
    mp_json_put_u64(&json, "silent", r->silent);
    if (mp_rank_reports(bench->c.rank))
        put_latency(&json, all, count);
    put_requests(bench, &json, all, count);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

void mp_bench_print_text(const struct mp_bench_cluster *bench, const struct mp_rank_report *r)
{
    uint32_t count;
    const struct mp_message_result *all = mp_rank_results(bench->c.rank, &count);
    double sum = 0;
    uint32_t ok = 0;

    printf("rank %" PRIu64 ": %u requests, %.1f %% of rows computed here, %" PRIu64
           " calls, %" PRIu64 " served, %.1f MB sent, %" PRIu64
           " computed again, %u migrations, %u experts kept, %" PRIu64
           " (%.1f MB) out of others' memory, %.1f MB from files%s\n",
           rank_number(bench), bench->done, 100 * share(r), r->calls, r->served,
           (double)r->sent_bytes / 1e6, r->redone, r->migrations, r->kept, r->fetched,
           (double)r->fetched_bytes / 1e6, (double)r->read_bytes / 1e6,
           bench->c.transport->survives ? "" : " (this MPI ends all ranks when one dies)");
    for (uint32_t i = 0; i < count; i++) {
        sum += all[i].failed ? 0 : all[i].end_s - all[i].arrival_s;
        ok += all[i].failed == 0;
    }
    if (mp_rank_reports(bench->c.rank))
        printf("%s: %u of %u requests, mean latency %.3f s\n", bench->c.place->name, ok, count,
               ok > 0 ? sum / ok : 0);
}
