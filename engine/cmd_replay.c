/*
 * `moepager replay`: what evict policies would have done on a recorded trace.
 */
#include "policy/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/commands.h"
#include "vmm/base/error.h"
#include "vmm/base/json_out.h"

#define EVICTS_DEFAULT "belady,lru,lfu,random,layer-lru,layer-lfu"

struct report {
    const struct mp_args *args;
    const struct mp_replay_trace *trace;
    struct mp_json_out json;
    bool begun;
};

static double rate(uint64_t hits, uint64_t lookups)
{
    return lookups > 0 ? (double)hits / (double)lookups : 0;
}

static void put_json(struct mp_json_out *json, uint64_t budget_bytes,
                     const struct mp_replay_result *r)
{
    mp_json_object_begin(json, NULL);
    mp_json_put_string(json, "evict", r->evict);
    mp_json_put_string(json, "partition", r->partition);
    mp_json_put_u64(json, "budget_bytes", budget_bytes);
    mp_json_put_f64(json, "hit_rate_decode", rate(r->decode_hits, r->decode_lookups));
    mp_json_put_f64(json, "hit_rate_all", rate(r->hits, r->lookups));
    mp_json_put_u64(json, "bytes_read", r->bytes_read);
    mp_json_put_f64(json, "bound_hit_rate_decode", rate(r->bound_decode_hits, r->decode_lookups));
    mp_json_object_end(json);
}

static void put_begin(struct report *report)
{
    report->begun = true;
    if (report->args->json) {
        mp_json_begin(&report->json, stdout, true);
        mp_json_object_begin(&report->json, NULL);
        mp_json_array_begin(&report->json, "rows");
    } else if (report->args->csv) {
        printf("evict,partition,budget_bytes,hit_rate_decode,hit_rate_all,bytes_read,"
               "bound_hit_rate_decode\n");
    } else {
        printf("token cycle %.1f MiB; hit rates in percent\n"
               "%-10s %-9s %12s %8s %8s %12s %8s\n",
               (double)report->trace->cycle_bytes / (1 << 20), "evict", "partition", "budget MiB",
               "decode", "all", "read MiB", "bound");
    }
}

static void put_row(struct report *report, uint64_t budget_bytes, const struct mp_replay_result *r)
{
    const double decode = rate(r->decode_hits, r->decode_lookups);
    const double all = rate(r->hits, r->lookups);
    const double bound = rate(r->bound_decode_hits, r->decode_lookups);

    if (!report->begun)
        put_begin(report);
    if (report->args->json)
        put_json(&report->json, budget_bytes, r);
    else if (report->args->csv)
        printf("%s,%s,%" PRIu64 ",%.6f,%.6f,%" PRIu64 ",%.6f\n", r->evict, r->partition,
               budget_bytes, decode, all, r->bytes_read, bound);
    else
        printf("%-10s %-9s %12.1f %8.3f %8.3f %12.1f %8.3f\n", r->evict, r->partition,
               (double)budget_bytes / (1 << 20), 100 * decode, 100 * all,
               (double)r->bytes_read / (1 << 20), 100 * bound);
}

static void put_end(struct report *report)
{
    if (!report->begun)
        put_begin(report);
    if (!report->args->json)
        return;
    mp_json_array_end(&report->json);
    mp_json_put_u64(&report->json, "token_cycle_bytes", report->trace->cycle_bytes);
    mp_json_object_end(&report->json);
    mp_json_end(&report->json);
}

/* The next part of a list with commas; false at its end. Parts that do not fit are cut, and no
 * name or size is that long. */
static bool next_part(const char **list, char part[64])
{
    const size_t bytes = *list != NULL ? strcspn(*list, ",") : 0;

    if (*list == NULL)
        return false;
    snprintf(part, 64, "%.*s", bytes < 63 ? (int)bytes : 63, *list);
    *list = (*list)[bytes] == ',' ? *list + bytes + 1 : NULL;
    return true;
}

static enum mp_status parse_budget(const char *text, uint64_t total_bytes, uint64_t *bytes_p)
{
    static const struct mp_opt opt = { .name = "budget", .kind = MP_OPT_SHARE, .max = UINT64_MAX };
    struct mp_share share;
    char quoted[MP_QUOTE_BYTES];

    if (!mp_opt_parse(&opt, text, &share) || share.kind == MP_SHARE_AUTO)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--budget: got '%s', need a size such as 500MiB, a percentage or all",
                       mp_quote(quoted, text, strlen(text)));
    *bytes_p = mp_share_resolve(&share, total_bytes, 0);
    return MP_OK;
}

static enum mp_status parse_accounting(const struct mp_args *args,
                                       enum mp_replay_accounting *accounting_p)
{
    char quoted[MP_QUOTE_BYTES];

    *accounting_p = MP_REPLAY_PAGER;
    if (args->accounting == NULL || !strcmp(args->accounting, "pager"))
        return MP_OK;
    if (strcmp(args->accounting, "curve") != 0)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--accounting: got '%s', need pager or curve",
                       mp_quote(quoted, args->accounting, strlen(args->accounting)));
    if (args->partition != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--partition cannot be chosen with --accounting curve: layer-lru and "
                       "layer-lfu are uniform there, the others global");
    *accounting_p = MP_REPLAY_CURVE;
    return MP_OK;
}

static enum mp_status replay_all(struct report *report, struct mp_replay_config *config)
{
    const char *budgets = report->args->budgets;
    char budget[64], evict[64];
    enum mp_status status = MP_OK;

    while (status == MP_OK && next_part(&budgets, budget)) {
        const char *evicts = report->args->evicts != NULL ? report->args->evicts : EVICTS_DEFAULT;

        status = parse_budget(budget, report->trace->total_bytes, &config->budget_bytes);
        while (status == MP_OK && next_part(&evicts, evict)) {
            struct mp_replay_result result;

            config->evict = evict;
            status = mp_replay(report->trace, config, &result);
            if (status == MP_OK && mp_interrupted)
                status = mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted");
            if (status == MP_OK)
                put_row(report, config->budget_bytes, &result);
        }
    }
    if (status == MP_OK)
        put_end(report);
    return status;
}

enum mp_status mp_cmd_replay(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_replay_config config = {
        .partition = args->partition != NULL ? args->partition : "global",
        .seed = settings->run.seed,
        .groups = settings->groups,
    };
    struct mp_replay_trace trace;
    struct report report = { .args = args, .trace = &trace };
    enum mp_status status;

    if (args->replayed == NULL || args->budgets == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "need a trace and --budget: moepager replay TRACE --budget 500MiB,25%%");
    if (args->json && args->csv)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--json and --csv exclude each other");
    status = parse_accounting(args, &config.accounting);
    if (status != MP_OK)
        return status;
    status = mp_replay_trace_read(args->replayed, &trace);
    if (status != MP_OK)
        return status;
    status = replay_all(&report, &config);
    mp_replay_trace_fini(&trace);
    return status == MP_OK ? mp_check_stdout() : status;
}
