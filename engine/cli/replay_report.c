/*
 * The table of replay as text, CSV, JSON and plot. Replays nothing itself.
 */
#include "engine/cli/replay_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

#define NAME_BYTES 128
#define MIB (1024.0 * 1024.0)

enum mp_status mp_replay_report_add(struct mp_replay_report *report,
                                    const struct mp_replay_row *row)
{
    const size_t wanted = report->room == 0 ? 64 : 2 * report->room;

    if (report->count == report->room) {
        struct mp_replay_row *grown = realloc(report->rows, wanted * sizeof(*grown));

        if (grown == NULL)
            return mp_fail_no_memory("the rows of a replay", wanted * sizeof(*grown));
        report->rows = grown;
        report->room = wanted;
    }
    report->rows[report->count++] = *row;
    return MP_OK;
}

void mp_replay_report_fini(struct mp_replay_report *report)
{
    free(report->rows);
    *report = (struct mp_replay_report){ 0 };
}

static double rate(uint64_t hits, uint64_t lookups)
{
    return lookups > 0 ? (double)hits / (double)lookups : 0;
}

static double decode_rate(const struct mp_replay_row *row)
{
    return rate(row->result.decode_hits, row->result.decode_lookups);
}

static double bound_rate(const struct mp_replay_row *row)
{
    return rate(row->result.bound_decode_hits, row->result.decode_lookups);
}

static const char *partition_of(const struct mp_replay_row *row)
{
    return row->result.partition != NULL ? row->result.partition : "";
}

/* "lru", or of a profile "dali/workload". */
static const char *name_of(const struct mp_replay_row *row, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "%s%s%s", row->profile != NULL ? row->profile : "",
             row->profile != NULL ? "/" : "", row->result.evict);
    return out;
}

void mp_replay_report_text(const struct mp_replay_report *report, FILE *out)
{
    char name[NAME_BYTES];
    int width = 10;

    for (size_t i = 0; i < report->count; i++) {
        const int bytes = (int)strlen(name_of(&report->rows[i], name));

        width = bytes > width ? bytes : width;
    }
    fprintf(out,
            "token cycle %.1f MiB; hit rates in percent\n"
            "%-*s %-11s %12s %8s %8s %12s %8s\n",
            (double)report->cycle_bytes / MIB, width, "evict", "partition", "budget MiB", "decode",
            "all", "read MiB", "bound");
    for (size_t i = 0; i < report->count; i++) {
        const struct mp_replay_row *row = &report->rows[i];
        const struct mp_replay_result *r = &row->result;

        fprintf(out, "%-*s %-11s %12.1f ", width, name_of(row, name), partition_of(row),
                (double)row->budget_bytes / MIB);
        if (row->reason[0] != '\0')
            fprintf(out, "n/a: %s\n", row->reason);
        else
            fprintf(out, "%8.3f %8.3f %12.1f %8.3f\n", 100 * decode_rate(row),
                    100 * rate(r->hits, r->lookups), (double)r->bytes_read / MIB,
                    100 * bound_rate(row));
    }
}

void mp_replay_report_csv(const struct mp_replay_report *report, FILE *out)
{
    fprintf(out, "evict,partition,budget_bytes,hit_rate_decode,hit_rate_all,bytes_read,"
                 "bound_hit_rate_decode,profile\n");
    for (size_t i = 0; i < report->count; i++) {
        const struct mp_replay_row *row = &report->rows[i];
        const struct mp_replay_result *r = &row->result;

        fprintf(out, "%s,%s,%" PRIu64 ",", r->evict, partition_of(row), row->budget_bytes);
        if (row->reason[0] != '\0')
            fprintf(out, ",,,");
        else
            fprintf(out, "%.6f,%.6f,%" PRIu64 ",%.6f", decode_rate(row), rate(r->hits, r->lookups),
                    r->bytes_read, bound_rate(row));
        fprintf(out, ",%s\n", row->profile != NULL ? row->profile : "");
    }
}

static void put_row(struct mp_json_out *json, const struct mp_replay_row *row)
{
    const struct mp_replay_result *r = &row->result;

    mp_json_object_begin(json, NULL);
    if (row->profile != NULL)
        mp_json_put_string(json, "profile", row->profile);
    mp_json_put_string(json, "evict", r->evict);
    mp_json_put_string(json, "partition", r->partition);
    mp_json_put_u64(json, "budget_bytes", row->budget_bytes);
    if (row->reason[0] != '\0') {
        mp_json_put_string(json, "not_available", row->reason);
    } else {
        mp_json_put_f64(json, "hit_rate_decode", decode_rate(row));
        mp_json_put_f64(json, "hit_rate_all", rate(r->hits, r->lookups));
        mp_json_put_u64(json, "bytes_read", r->bytes_read);
        if (r->partial_hits > 0) /* of experts in slices */
            mp_json_put_u64(json, "partial_hits", r->partial_hits);
        mp_json_put_f64(json, "bound_hit_rate_decode", bound_rate(row));
    }
    mp_json_object_end(json);
}

void mp_replay_report_json(const struct mp_replay_report *report, FILE *out)
{
    struct mp_json_out json;

    mp_json_begin(&json, out, true);
    mp_json_object_begin(&json, NULL);
    mp_json_array_begin(&json, "rows");
    for (size_t i = 0; i < report->count; i++)
        put_row(&json, &report->rows[i]);
    mp_json_array_end(&json);
    mp_json_put_u64(&json, "token_cycle_bytes", report->cycle_bytes);
    mp_json_object_end(&json);
    mp_json_end(&json);
}
