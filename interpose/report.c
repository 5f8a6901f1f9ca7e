/*
 * What the pager did, in the words of `moepager run`.
 */
#include "interpose/paged.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/base/error.h"
#include "vmm/output/json_out.h"
#include "vmm/output/out.h"

static const char *const source_names[] = { "touches", "the scheduler's callback", "every expert" };

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static double hit_rate(const struct mp_counters *c)
{
    const uint64_t uses = c->hits + c->misses;

    return uses > 0 ? (double)c->hits / (double)uses : 1;
}

static void print_text(struct mp_paged *paged, const struct mp_counters *c, FILE *out)
{
    struct mp_shown_counts shown;

    mp_shown_get_counts(paged->shown, &shown);
    fprintf(out, "model         %s\n", paged->path);
    fprintf(out, "experts       %.1f MiB of %.1f MiB resident at most, %u of %u\n",
            mib(paged->budget_bytes), mib(paged->plan.unit_bytes), paged->plan.slots,
            paged->experts.layers * paged->experts.experts);
    fprintf(out, "hit rate      %.4f (%llu of %llu uses), %llu read in place\n", hit_rate(c),
            (unsigned long long)c->hits, (unsigned long long)(c->hits + c->misses),
            (unsigned long long)c->elsewhere);
    fprintf(out, "read          %.1f MiB on demand, %.1f MiB ahead, %.1f MiB of that unused\n",
            mib(c->load_bytes), mib(c->prefetch_bytes), mib(c->prefetch_unused_bytes));
    fprintf(out, "exposed wait  %.1f ms\n", (double)c->exposed_wait_ns * 1e-6);
    fprintf(out, "mappings      %llu shown, %llu hidden, %llu failed\n",
            (unsigned long long)shown.shows, (unsigned long long)shown.hides,
            (unsigned long long)shown.failures);
    fprintf(out, "layers        %llu opened, %llu closed early, %llu for all experts\n",
            (unsigned long long)paged->layers_opened, (unsigned long long)paged->layers_aborted,
            (unsigned long long)atomic_load(&paged->wholes));
    fprintf(out, "seen by       %s, %llu touches that nobody foresaw\n",
            source_names[paged->source], (unsigned long long)atomic_load(&paged->touches));
    if (paged->seam.copies > 0)
        fprintf(out, "to devices    %llu copies from %.1f MiB of pinned slots\n",
                (unsigned long long)paged->seam.copies, mib(paged->seam.pinned_bytes));
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        fprintf(out, "%s%s", kind == 0 ? "policies      " : " ", paged->profile.policy[kind]);
    fprintf(out, "\n");
}

static void print_json(struct mp_paged *paged, const struct mp_counters *c, FILE *out)
{
    struct mp_json_out json;

    mp_json_begin(&json, out, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string(&json, "model", paged->path);
    mp_json_put_u64(&json, "budget_bytes", paged->budget_bytes);
    mp_json_put_u64(&json, "expert_bytes", paged->plan.unit_bytes);
    mp_json_put_f64(&json, "hit_rate", hit_rate(c));
    mp_json_put_u64(&json, "bytes_loaded", c->load_bytes + c->prefetch_bytes);
    mp_json_put_f64(&json, "exposed_wait_ms", (double)c->exposed_wait_ns * 1e-6);
    mp_json_put_u64(&json, "device_copies", paged->seam.copies);
    mp_counters_json(c, &json, "counters");
    mp_json_object_end(&json);
    mp_json_end(&json);
}

void mp_paged_report(struct mp_paged *paged)
{
    const char *to = paged->settings.files.report;
    const size_t bytes = strlen(to);
    struct mp_counters now;
    struct mp_out out;

    if (bytes == 0 || strcmp(to, "0") == 0)
        return;
    pthread_mutex_lock(&paged->turn);
    now = paged->counters;
    if (paged->pager != NULL)
        now.prefetch_unused_bytes += mp_pager_unused_bytes(paged->pager);
    pthread_mutex_unlock(&paged->turn);
    if (mp_out_open(&out, strcmp(to, "1") == 0 ? "/dev/stderr" : to) != MP_OK) {
        mp_log_failure("preload");
        return;
    }
    if (bytes > 5 && strcmp(to + bytes - 5, ".json") == 0)
        print_json(paged, &now, out.file);
    else
        print_text(paged, &now, out.file);
    if (mp_out_commit(&out) != MP_OK)
        mp_log_failure("preload");
}
