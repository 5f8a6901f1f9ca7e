/*
 * The interposer's option table, and which policies it can use.
 */
#include "interpose/pager/settings.h"

#include <string.h>

#include "vmm/options/log_options.h"

#define POLICY_TEXT(KIND, help) \
    MP_OPT_TEXT(#KIND, struct mp_interpose_settings, policy[MP_POLICY_##KIND], "", help)

/* The same names, defaults and ranges as the engine's. */
static const struct mp_opt shared_opts[] = {
    MP_OPT_PART("BUDGET", struct mp_interpose_settings, budget, "auto",
                "RAM for routed experts: a size, a share of all experts' bytes such as 25%, all, "
                "or auto, which takes what the machine, its control group and ulimit -v leave "
                "beside the other weights."),
    MP_OPT(MP_OPT_U64, "SEED", struct mp_interpose_settings, seed, "1", 0, UINT64_MAX,
           "Start of all random numbers of policies."),
    MP_OPT(MP_OPT_BOOL, "HUGE_PAGES", struct mp_interpose_settings, huge_pages, "on", 0, 1,
           "Ask for huge pages behind expert slots of 2 MiB and more."),
    MP_OPT(MP_OPT_BOOL, "POPULATE", struct mp_interpose_settings, populate, "on", 0, 1,
           "Fill expert slots with memory in the background from the start, instead of when they "
           "are first used."),
    MP_OPT_TEXT("PROFILE", struct mp_interpose_settings, profile, "",
                "Named set of policies; empty: the default one. moepager info lists them."),
    POLICY_TEXT(ROUTE, "Policy that chooses experts; the program's own choice stands."),
    POLICY_TEXT(ASSIGN, "Policy that chooses who computes an expert; the program computes all."),
    POLICY_TEXT(PREDICT, "Policy that guesses the next layer's scores; empty: the profile's."),
    POLICY_TEXT(PREFETCH, "Policy that chooses what is loaded ahead; empty: the profile's."),
    POLICY_TEXT(ADMIT, "Policy that decides what to keep; empty: the profile's."),
    POLICY_TEXT(EVICT, "Policy that chooses what leaves; empty: the profile's."),
    POLICY_TEXT(PARTITION, "Policy that divides slots among layers; empty: the profile's."),
    MP_OPT_END,
};

void mp_interpose_settings_load(struct mp_interpose_settings *settings)
{
    mp_opt_load(mp_log_opts, "MOEPAGER_", &settings->log);
    mp_log_init(&settings->log);
    mp_opt_load(shared_opts, "MOEPAGER_", settings);
    mp_opt_load(mp_preload_opts, "MOEPAGER_", &settings->files);
    mp_opt_load(mp_io_opts, "MOEPAGER_", &settings->io);
    mp_opt_load(mp_live_opts, "MOEPAGER_", &settings->live);
    settings->live_dirs.count = 0;
    if (settings->live.top)
        mp_live_dirs_find(&settings->live_dirs);
}

/* Does the policy need what only somebody who runs the model can know? */
static bool needs_scores(enum mp_policy_kind kind, const struct mp_policy_info *info, bool routers)
{
    if (kind == MP_POLICY_PREDICT) {
        const struct mp_predict_ops *ops = mp_container_of(info, struct mp_predict_ops, info);

        return ops->source != MP_SCORES_NONE && (ops->source != MP_SCORES_GATE || !routers);
    }
    if (kind == MP_POLICY_EVICT) {
        const struct mp_evict_ops *ops = mp_container_of(info, struct mp_evict_ops, info);

        return ops->on_scores != NULL && !ops->scores_optional;
    }
    return false;
}

enum mp_status mp_interpose_settings_policies(const struct mp_interpose_settings *settings,
                                              bool routers, struct mp_profile *chosen_p)
{
    const char *const without[MP_POLICY_KIND_COUNT] = {
        [MP_POLICY_PREDICT] = routers ? "gate" : "history",
        [MP_POLICY_EVICT] = "shadow",
    };
    struct mp_policy_names names = { .profile = settings->profile };
    struct mp_profile chosen;
    enum mp_status status;

    if (settings->profile[0] == '\0')
        names.profile = "auto";
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        if (settings->policy[kind][0] != '\0')
            names.policy[kind] = settings->policy[kind];
    }
    status = mp_policy_resolve(&names, &chosen);
    for (unsigned kind = 0; status == MP_OK && kind < MP_POLICY_KIND_COUNT; kind++) {
        const struct mp_policy_info *info =
            mp_policy_find((enum mp_policy_kind)kind, chosen.policy[kind]);

        if (!needs_scores((enum mp_policy_kind)kind, info, routers))
            continue;
        mp_log_info("preload", "%s policy %s needs the router's scores: %s instead",
                    mp_policy_kind_name((enum mp_policy_kind)kind), chosen.policy[kind],
                    without[kind]);
        chosen.policy[kind] = without[kind];
    }
    /* The program routes and computes by itself. */
    chosen.policy[MP_POLICY_ROUTE] = "exact";
    chosen.policy[MP_POLICY_ASSIGN] = "gpu-only";
    if (status == MP_OK)
        *chosen_p = chosen;
    return status;
}
