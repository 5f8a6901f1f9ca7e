/*
 * `moepager replay`: runs evict policies on a recorded trace.
 */
#include "policy/replay/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cli/commands.h"
#include "engine/cli/replay_report.h"
#include "engine/model/sidecar/calibration.h"
#include "policy/record/decisions.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

#define LIST_BYTES 1024
#define CURVE_EVICTS "belady,lru,lfu,random,layer-lru,layer-lfu"

struct replay {
    const struct mp_args *args;
    struct mp_replay_trace trace;
    struct mp_replay_config config;
    struct mp_replay_report report;
    struct mp_calibration_data *calibration; /* or NULL */
    const char *predict;                     /* as named by the user, or "" */
    char evicts[LIST_BYTES];                 /* those of the command line, or the default */
};

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
    if (args->partition != NULL || args->profiles != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--partition and --profile cannot be chosen with --accounting curve: "
                       "layer-lru and layer-lfu are uniform there, the others global");
    *accounting_p = MP_REPLAY_CURVE;
    return MP_OK;
}

/* Which evict policies: those named, those that the accounting has, or with profiles none. */
static void list_evicts(struct replay *replay)
{
    const struct mp_args *args = replay->args;
    const struct mp_policy_info *info;
    size_t used = (size_t)snprintf(replay->evicts, LIST_BYTES, "belady");

    if (args->evicts == NULL && args->profiles == NULL &&
        replay->config.accounting == MP_REPLAY_CURVE)
        snprintf(replay->evicts, LIST_BYTES, "%s", CURVE_EVICTS);
    if (args->evicts == NULL && args->profiles == NULL &&
        replay->config.accounting == MP_REPLAY_PAGER) {
        for (size_t i = 0;
             used < LIST_BYTES && (info = mp_policy_builtin(MP_POLICY_EVICT, i)) != NULL; i++)
            used += (size_t)snprintf(replay->evicts + used, LIST_BYTES - used, ",%s", info->name);
    }
}

/* One row. What only this policy cannot do on this trace is a reason in its row. */
static enum mp_status replay_one(struct replay *replay, const char *profile)
{
    struct mp_replay_row row = { .profile = profile, .budget_bytes = replay->config.budget_bytes };
    enum mp_status status = mp_replay(&replay->trace, &replay->config, &row.result);

    if (status == MP_ERR_UNSUPPORTED) {
        snprintf(row.reason, sizeof(row.reason), "%s", mp_error_last()->text);
        status = MP_OK;
    }
    if (status == MP_OK)
        status = mp_replay_report_add(&replay->report, &row);
    if (status == MP_OK && mp_interrupted)
        status = mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted");
    return status;
}

static const char *named_predictor(const struct replay *replay)
{
    return replay->predict[0] != '\0' ? replay->predict : NULL;
}

/* That of the profile, if it needs no more than a trace has: routing of the past. */
static const char *predictor(const struct replay *replay, const struct mp_profile *profile)
{
    const struct mp_predict_ops *ops =
        (const void *)mp_policy_find(MP_POLICY_PREDICT, profile->policy[MP_POLICY_PREDICT]);
    const char *named = named_predictor(replay);

    return named != NULL || ops->source != MP_SCORES_NONE ? named : ops->info.name;
}

static enum mp_status replay_evicts(struct replay *replay)
{
    const struct mp_args *args = replay->args;
    const char *unless_named = args->profiles != NULL ? NULL : replay->evicts;
    const char *evicts = args->evicts != NULL ? args->evicts : unless_named;
    enum mp_status status = MP_OK;
    char evict[MP_PART_BYTES];

    replay->config.partition = args->partition != NULL ? args->partition : "global";
    replay->config.admit = NULL;
    replay->config.predict = named_predictor(replay);
    while (status == MP_OK && mp_next_part(&evicts, evict)) {
        replay->config.evict = evict;
        status = replay_one(replay, NULL);
    }
    return status;
}

static enum mp_status replay_profiles(struct replay *replay)
{
    const char *profiles = replay->args->profiles;
    enum mp_status status = MP_OK;
    char profile[MP_PART_BYTES];

    while (status == MP_OK && mp_next_part(&profiles, profile)) {
        const struct mp_policy_names names = {
            .profile = profile, .policy = { [MP_POLICY_PARTITION] = replay->args->partition }
        };
        struct mp_profile chosen;

        status = mp_policy_resolve(&names, &chosen);
        if (status != MP_OK)
            break;
        replay->config.evict = chosen.policy[MP_POLICY_EVICT];
        replay->config.admit = chosen.policy[MP_POLICY_ADMIT];
        replay->config.predict = predictor(replay, &chosen);
        replay->config.partition = chosen.policy[MP_POLICY_PARTITION];
        status = replay_one(replay, chosen.name);
    }
    return status;
}

static enum mp_status replay_all(struct replay *replay)
{
    const char *budgets = replay->args->budgets;
    enum mp_status status = MP_OK;
    char budget[MP_PART_BYTES];

    list_evicts(replay);
    while (status == MP_OK && mp_next_part(&budgets, budget)) {
        status = parse_budget(budget, replay->trace.total_bytes, &replay->config.budget_bytes);
        if (status == MP_OK)
            status = replay_evicts(replay);
        if (status == MP_OK)
            status = replay_profiles(replay);
    }
    return status;
}

/* After an interruption: the rows that were complete. */
static enum mp_status print_report(const struct replay *replay, enum mp_status ended)
{
    const struct mp_args *args = replay->args;

    if (args->json)
        mp_replay_report_json(&replay->report, stdout);
    else if (args->csv)
        mp_replay_report_csv(&replay->report, stdout);
    else
        mp_replay_report_text(&replay->report, stdout);
    return mp_printed(ended);
}

static void print_decisions_json(const struct mp_decisions_report *report)
{
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_u64(&json, "calls", report->calls);
    mp_json_put_u64(&json, "results", report->results);
    mp_json_put_bool(&json, "equal", true);
    mp_json_object_begin(&json, "policies");
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        mp_json_put_string(&json, mp_policy_kind_name(kind), report->policy[kind]);
    mp_json_object_end(&json);
    mp_json_object_begin(&json, "calls_of");
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        mp_json_put_u64(&json, mp_policy_kind_name(kind), report->calls_of[kind]);
    mp_json_object_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

/* A decision log brings its own policies; all that is left to say is how to print. */
static enum mp_status replay_decisions(const struct mp_args *args)
{
    struct mp_decisions_report report;
    enum mp_status status;

    if (args->evicts != NULL || args->profiles != NULL || args->partition != NULL ||
        args->budgets != NULL || args->accounting != NULL || args->csv)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "a decision log is replayed with its own policies and budget; only --json "
                       "can be chosen");
    status = mp_decisions_replay(args->replayed, &mp_interrupted, &report);
    if (status != MP_OK)
        return status;
    if (args->json) {
        print_decisions_json(&report);
        return mp_check_stdout();
    }
    printf("%" PRIu64 " calls, %" PRIu64 " results made again, all equal\n", report.calls,
           report.results);
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        printf("%-10s %-16s %12" PRIu64 " calls\n", mp_policy_kind_name(kind), report.policy[kind],
               report.calls_of[kind]);
    return mp_check_stdout();
}

enum mp_status mp_cmd_replay(const struct mp_args *args, const struct mp_settings *settings)
{
    struct replay replay = {
        .args = args,
        .config = { .slices = (uint32_t)settings->run.slices,
                    .seed = settings->run.seed,
                    .groups = settings->groups },
        .predict = settings->run.policy[MP_POLICY_PREDICT],
    };
    enum mp_status status;

    if (args->replayed != NULL && mp_decisions_is_log(args->replayed))
        return replay_decisions(args);
    /* A file that cannot be read says so before what would be missing for it. */
    if (args->replayed == NULL || (args->budgets == NULL && access(args->replayed, R_OK) == 0))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "need a trace and --budget: moepager replay TRACE --budget 500MiB,25%%");
    if (args->json && args->csv)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--json and --csv exclude each other");
    status = parse_accounting(args, &replay.config.accounting);
    if (status == MP_OK)
        status = mp_replay_trace_read(args->replayed, &replay.trace);
    if (status != MP_OK)
        return status;
    replay.report.cycle_bytes = replay.trace.cycle_bytes;
    status = mp_calibration_load_for(settings->run.calibration, replay.trace.layers,
                                     replay.trace.experts, &replay.calibration);
    if (replay.calibration != NULL)
        replay.config.calibration = &replay.calibration->facts;
    if (status == MP_OK)
        status = replay_all(&replay);
    mp_calibration_destroy(replay.calibration);
    if (status == MP_OK || (status == MP_ERR_CANCELED && replay.report.count > 0))
        status = print_report(&replay, status);
    mp_replay_report_fini(&replay.report);
    mp_replay_trace_fini(&replay.trace);
    return status;
}
