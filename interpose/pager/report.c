/*
 * The report: what the pager did, in the words of `moepager run`.
 */
#include "interpose/pager/paged.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "vmm/base/error.h"
#include "vmm/output/json_out.h"
#include "vmm/output/out.h"

#define MUTEX_PAUSE_NS 1000000
#define MUTEX_TRIES 2000
#define TOP_TRIES 200

static const char *const source_names[] = { "touches", "router", "expert", "module" };

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Is a report written, and to a file? */
static bool is_wanted(const char *to)
{
    return to[0] != '\0' && strcmp(to, "0") != 0;
}

static bool is_file(const char *to)
{
    return strcmp(to, "1") != 0 && strcmp(to, "json") != 0;
}

void mp_paged_check_report(struct mp_interpose_settings *settings)
{
    const struct mp_paged first = { .settings.first_number = settings->first_number };
    const char *to = settings->files.report;
    char path[PATH_MAX];

    if (!is_wanted(to) || !is_file(to))
        return;
    mp_paged_expand(&first, to, path);
    settings->no_report = mp_out_check(path, false) != MP_OK;
    if (settings->no_report)
        mp_log_warn("preload", "no report will be written: %s", mp_error_last()->text);
    mp_error_clear();
}

/* What others change: copied while `mutex` is held, and printed without it. */
struct facts {
    struct mp_counters c;
    struct mp_mappings_counts mappings;
    uint64_t dense_bytes;
    double hit_rate;
    uint64_t guessed, guessed_right, predict_ns;
    uint64_t layers_opened, layers_aborted;
    uint64_t copies, pinned_bytes; /* to devices */
};

static void collect(struct mp_paged *paged, struct facts *f)
{
    uint64_t uses;

    f->c = paged->counters;
    f->c.prefetch_unused_bytes += mp_pager_unused_bytes(paged->pager);
    mp_mappings_get_counts(paged->mappings, &f->mappings);
    f->dense_bytes = 0;
    if (paged->dense != NULL)
        (void)mp_paged_dense_done(paged->dense, &f->dense_bytes);
    mp_paged_ahead_counts(paged->ahead, &f->guessed, &f->guessed_right);
    f->predict_ns = paged->costs.predict_ns;
    f->layers_opened = paged->layers_opened;
    f->layers_aborted = paged->layers_aborted;
    f->copies = paged->uploads.copies;
    f->pinned_bytes = paged->uploads.pinned_bytes;
    uses = f->c.hits + f->c.misses;
    f->hit_rate = uses > 0 ? (double)f->c.hits / (double)uses : 1;
}

static void print_text(const struct mp_paged *paged, const struct facts *f, FILE *out)
{
    const struct mp_counters *c = &f->c;

    fprintf(out, "model         %s\n", paged->path);
    fprintf(out, "expert RAM    %.1f of %.1f MiB (%.0f %%), other weights %.1f MiB\n",
            mib(paged->budget_bytes), mib(paged->plan.unit_bytes),
            100.0 * (double)paged->budget_bytes / (double)paged->plan.unit_bytes,
            mib(mp_paged_dense_bytes(&paged->experts)));
    if (paged->experts.table_count > 0)
        fprintf(out, "tables        %.1f MiB stay the file's, page by page\n",
                mib(mp_experts_table_bytes(&paged->experts)));
    fprintf(out,
            "hit rate      %.1f %%: %" PRIu64 " of %" PRIu64 " expert uses were resident; %" PRIu64
            " more were read in place\n",
            100 * f->hit_rate, c->hits, c->hits + c->misses, c->elsewhere);
    fprintf(out, "bytes by tier %.1f MiB in RAM now (at most %.1f), %.1f MiB came from the file\n",
            mib(c->resident_bytes), mib(c->resident_peak_bytes),
            mib(c->load_bytes + c->prefetch_bytes));
    fprintf(out, "read ahead    %.1f MiB, %.1f MiB of it unused; by %s%s\n", mib(c->prefetch_bytes),
            mib(c->prefetch_unused_bytes), mp_space_reader_engine(paged->space),
            paged->plan.direct ? " past the page cache" : " through the page cache");
    if (f->guessed > 0)
        fprintf(out, "guesses       %.1f %% of %" PRIu64 " were right, by policy %s\n",
                100 * (double)f->guessed_right / (double)f->guessed, f->guessed,
                paged->profile.policy[MP_POLICY_PREDICT]);
    fprintf(out, "exposed wait  %.1f ms: time that compute stood still for a read\n",
            (double)c->exposed_wait_ns * 1e-6);
    fprintf(out, "unforeseen    %" PRIu64 " touches; experts are known by %s\n",
            atomic_load(&paged->touches), source_names[paged->source]);
    fprintf(out, "mappings      %" PRIu64 " mapped, %" PRIu64 " unmapped, %" PRIu64 " failed\n",
            f->mappings.maps, f->mappings.unmaps, f->mappings.failures);
    fprintf(out,
            "layers        %" PRIu64 " opened, %" PRIu64 " closed early, %" PRIu64
            " for all experts\n",
            f->layers_opened, f->layers_aborted, atomic_load(&paged->full_routings));
    if (f->copies > 0)
        fprintf(out, "to devices    %" PRIu64 " copies from %.1f MiB of pinned slots\n", f->copies,
                mib(f->pinned_bytes));
    fprintf(out, "policies      ");
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        fprintf(out, "%s%s %s", kind > 0 ? ", " : "", mp_policy_kind_name(kind),
                paged->profile.policy[kind]);
    fputc('\n', out);
}

static void print_json(const struct mp_paged *paged, const struct facts *f, FILE *out)
{
    struct mp_json_out json;

    mp_json_begin(&json, out, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string(&json, "model", paged->path);
    mp_json_put_f64(&json, "hit_rate", f->hit_rate);
    mp_json_put_u64(&json, "bytes_loaded", f->c.load_bytes + f->c.prefetch_bytes);
    mp_json_put_u64(&json, "bytes_prefetched_unused", f->c.prefetch_unused_bytes);
    mp_json_put_u64(&json, "experts_guessed", f->guessed);
    mp_json_put_u64(&json, "experts_guessed_right", f->guessed_right);
    mp_json_put_f64(&json, "predict_us", (double)f->predict_ns * 1e-3);
    mp_json_put_f64(&json, "exposed_wait_ms", (double)f->c.exposed_wait_ns * 1e-6);
    mp_json_put_u64(&json, "budget_bytes", paged->budget_bytes);
    mp_json_put_u64(&json, "expert_bytes", paged->plan.unit_bytes);
    mp_json_put_u64(&json, "weights_bytes", mp_paged_dense_bytes(&paged->experts));
    mp_json_put_u64(&json, "tables_bytes", mp_experts_table_bytes(&paged->experts));
    mp_json_put_u64(&json, "weights_read_bytes", f->dense_bytes);
    mp_json_put_string(&json, "reader", mp_space_reader_engine(paged->space));
    mp_json_put_bool(&json, "direct_io", paged->plan.direct);
    mp_json_put_string(&json, "hooks", source_names[paged->source]);
    mp_json_put_bool(&json, "paged", !atomic_load(&paged->off));
    mp_json_put_u64(&json, "unforeseen_touches", atomic_load(&paged->touches));
    mp_json_put_u64(&json, "experts_mapped", f->mappings.maps);
    mp_json_put_u64(&json, "experts_unmapped", f->mappings.unmaps);
    mp_json_put_u64(&json, "device_copies", f->copies);
    mp_json_put_u64(&json, "layers_opened", f->layers_opened);
    mp_json_put_u64(&json, "layers_closed_early", f->layers_aborted);
    mp_json_object_begin(&json, "policies");
    mp_json_put_string(&json, "profile", paged->profile.name);
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        mp_json_put_string(&json, mp_policy_kind_name(kind), paged->profile.policy[kind]);
    mp_json_object_end(&json);
    mp_counters_json(&f->c, &json, "counters");
    mp_json_object_end(&json);
    mp_json_end(&json);
}

/* At the end of a program somebody may have been stopped while it held the mutex. */
static bool lock_within(struct mp_paged *paged, int tries)
{
    while (pthread_mutex_trylock(&paged->mutex) != 0) {
        if (--tries < 0)
            return false;
        nanosleep(&(struct timespec){ .tv_nsec = MUTEX_PAUSE_NS }, NULL);
    }
    return true;
}

void mp_paged_tell_top(struct mp_paged *paged)
{
    struct mp_live_facts live = {
        .command = "preload",
        .model = paged->path,
        .index = paged->index,
        .started_ns = paged->started_ns,
        .budget_bytes = paged->budget_bytes,
        .expert_bytes = paged->plan.unit_bytes,
        .weights_bytes = mp_paged_dense_bytes(&paged->experts),
        .tokens = UINT64_MAX,
    };

    if (!mp_live_is_watched(&paged->settings.live_dirs) || !lock_within(paged, TOP_TRIES))
        return;
    live.counters = paged->counters;
    pthread_mutex_unlock(&paged->mutex);
    mp_live_send(&paged->settings.live_dirs, &live, mp_clock_monotonic());
}

void mp_paged_report(struct mp_paged *paged)
{
    const char *to = paged->settings.files.report;
    const size_t bytes = strlen(to);
    const bool json =
        strcmp(to, "json") == 0 || (bytes > 5 && strcmp(to + bytes - 5, ".json") == 0);
    char path[PATH_MAX];
    struct mp_out out;
    struct facts facts;

    if (!is_wanted(to))
        return;
    if (!lock_within(paged, MUTEX_TRIES))
        return;
    collect(paged, &facts);
    pthread_mutex_unlock(&paged->mutex);
    if (is_file(to))
        mp_paged_expand(paged, to, path);
    else
        snprintf(path, sizeof(path), "/dev/stderr");
    if (mp_out_open(&out, path) == MP_OK) {
        if (json)
            print_json(paged, &facts, out.file);
        else
            print_text(paged, &facts, out.file);
        if (mp_out_commit(&out) == MP_OK)
            return;
    }
    if (!paged->settings.no_report) /* was said at the start, and may have been mended since */
        mp_log_failure("preload");
    mp_error_clear();
}
