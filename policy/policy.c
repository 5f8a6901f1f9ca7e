/*
 * The lists of policies and profiles, and creation of a chosen set.
 */
#include "policy/policy.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/builtins.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

/* Add a policy here, in builtins.h and in CMakeLists.txt; nothing else needs to know of it. */
static const struct mp_policy_info *const route_list[] = {
    &mp_route_exact.info,
    &mp_route_smoe.info,
    &mp_route_smoe_similar.info,
};
static const struct mp_policy_info *const assign_list[] = {
    &mp_assign_gpu_only.info, &mp_assign_threshold.info, &mp_assign_two_pointer.info,
    &mp_assign_greedy.info,   &mp_assign_beam.info,      &mp_assign_exact.info,
    &mp_assign_queue.info,    &mp_assign_resident.info,  &mp_assign_presched.info,
    &mp_assign_cost.info,
};
static const struct mp_policy_info *const predict_list[] = {
    &mp_predict_none.info,     &mp_predict_gate.info,       &mp_predict_history.info,
    &mp_predict_residual.info, &mp_predict_partial.info,    &mp_predict_gate_around.info,
    &mp_predict_llapor.info,   &mp_predict_activation.info,
};
static const struct mp_policy_info *const prefetch_list[] = {
    &mp_prefetch_none.info,     &mp_prefetch_top.info,      &mp_prefetch_top_score.info,
    &mp_prefetch_workload.info, &mp_prefetch_hot.info,      &mp_prefetch_impact.info,
    &mp_prefetch_window.info,   &mp_prefetch_presched.info, &mp_prefetch_idle.info,
};
static const struct mp_policy_info *const admit_list[] = {
    &mp_admit_always.info,
    &mp_admit_window.info,
    &mp_admit_never.info,
};
static const struct mp_policy_info *const evict_list[] = {
    &mp_evict_lru.info,       &mp_evict_lfu.info,        &mp_evict_random.info,
    &mp_evict_layer_lru.info, &mp_evict_layer_lfu.info,  &mp_evict_score.info,
    &mp_evict_mrs.info,       &mp_evict_workload.info,   &mp_evict_none.info,
    &mp_evict_lfru.info,      &mp_evict_class_lru.info,  &mp_evict_lcp.info,
    &mp_evict_shadow.info,    &mp_evict_activation.info, &mp_evict_ema.info,
    &mp_evict_best.info,
};
static const struct mp_policy_info *const partition_list[] = {
    &mp_partition_global.info,      &mp_partition_uniform.info,       &mp_partition_random.info,
    &mp_partition_hot_table.info,   &mp_partition_static_layers.info, &mp_partition_adapmoe.info,
    &mp_partition_fixed_point.info,
};

static const struct {
    const char *name;
    const struct mp_policy_info *const *list;
    size_t count;
} kinds[MP_POLICY_KIND_COUNT] = {
#define X(kind, KIND) [MP_POLICY_##KIND] = { #kind, kind##_list, MP_ARRAY_LEN(kind##_list) },
    MP_POLICY_KIND_MAP(X)
#undef X
};

/* Order of the names: route, assign, predict, prefetch, admit, evict, partition. */
const struct mp_profile mp_profiles[] = {
    { "gate-best",
      "the best of several policies decides what stays, and the next layer's router guesses",
      { "exact", "gpu-only", "gate", "top", "always", "best", "global" } },
    { "gate-ema",
      "what the router lately scored high stays or comes in, and the next layer's router guesses",
      { "exact", "gpu-only", "gate", "top", "always", "ema", "global" } },
    { "gate-lru",
      "least recently used, and the next layer's router guesses what to load ahead",
      { "exact", "gpu-only", "gate", "top", "always", "lru", "global" } },
    { "lru",
      "least recently used, loads on demand only",
      { "exact", "gpu-only", "none", "none", "always", "lru", "global" } },
    { "smoe",
      "SMoE: low-score experts are substituted by resident ones; changes the output",
      { "smoe", "two-pointer", "partial", "top-score", "always", "score", "uniform" } },
    { "dali",
      "DALI: greedy assignment, prefetch and replacement by workload",
      { "exact", "greedy", "residual", "workload", "window", "workload", "random" } },
    { "hybrimoe",
      "HybriMoE: queues, prefetch by simulated impact, cache by scores",
      { "exact", "queue", "gate", "impact", "always", "mrs", "uniform" } },
    { "fiddler",
      "Fiddler: popular experts stay on the device, a threshold decides about the others",
      { "exact", "threshold", "none", "none", "never", "none", "hot-table" } },
    { "klotski",
      "Klotski: the device computes large batches, hot experts are loaded ahead",
      { "exact", "gpu-only", "history", "hot", "never", "lru", "global" } },
    { "prescope",
      "PreScope: a hot table that stays, CPU and link planned for two layers at once",
      { "exact", "presched", "llapor", "presched", "never", "none", "hot-table" } },
    { "moepic",
      "MoEpic: fading counts, slots that move between layers, prefetch until the router speaks",
      { "exact", "gpu-only", "gate-around", "window", "always", "lcp", "fixed-point" } },
    { "static",
      "whole layers stay, the CPU computes the others, as in llama.cpp and KTransformers",
      { "exact", "resident", "none", "none", "never", "none", "static-layers" } },
    { "mixtral-offloading",
      "Mixtral-offloading: equal shares by layer, least recently used, and the next gate",
      { "exact", "gpu-only", "gate", "top", "always", "lru", "uniform" } },
    { "adapmoe",
      "AdapMoE without its gating: shares by what a calibration expects, LRU, the next gate",
      { "exact", "gpu-only", "gate-around", "top", "always", "lru", "adapmoe" } },
    { "moe-infinity",
      "MoE-Infinity: what similar requests chose before, and this one so far, is kept and loaded",
      { "exact", "gpu-only", "activation", "top", "always", "activation", "global" } },
    { "auto",
      "measured times decide who computes, the best of several policies what stays",
      { "exact", "cost", "gate", "idle", "always", "shadow", "global" } },
    { .name = NULL },
};

const char *mp_policy_kind_name(enum mp_policy_kind kind)
{
    return (unsigned)kind < MP_POLICY_KIND_COUNT ? kinds[kind].name : "?";
}

/* The policies of plug-ins, in the order in which they came. */
static struct {
    enum mp_policy_kind kind;
    const struct mp_policy_info *info;
} added[MP_POLICIES_ADDED_MAX];
static size_t added_count;

const struct mp_policy_info *mp_policy_builtin(enum mp_policy_kind kind, size_t i)
{
    if ((unsigned)kind >= MP_POLICY_KIND_COUNT)
        return NULL;
    if (i < kinds[kind].count)
        return kinds[kind].list[i];
    i -= kinds[kind].count;
    for (size_t a = 0; a < added_count; a++) {
        if (added[a].kind == kind && i-- == 0)
            return added[a].info;
    }
    return NULL;
}

const struct mp_policy_info *mp_policy_find(enum mp_policy_kind kind, const char *name)
{
    const struct mp_policy_info *info;

    if (name == NULL)
        return NULL;
    for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL; i++) {
        if (!strcmp(info->name, name))
            return info;
    }
    return NULL;
}

/* The first required function of `kind` that is missing, or NULL. */
static const char *missing_function(enum mp_policy_kind kind, const struct mp_policy_info *info)
{
/* `info` is the first member of every ops table. */
#define NEED(type, function)                                                    \
    if (((const struct mp_##type##_ops *)(const void *)info)->function == NULL) \
    return #function
#define X(type, TYPE)        \
    case MP_POLICY_##TYPE:   \
        NEED(type, create);  \
        NEED(type, destroy); \
        break;
    switch (kind) {
        MP_POLICY_KIND_MAP(X)
    case MP_POLICY_KIND_COUNT: break;
    }
#undef X
    switch (kind) {
    case MP_POLICY_ROUTE: NEED(route, route); break;
    case MP_POLICY_ASSIGN: NEED(assign, assign); break;
    case MP_POLICY_ADMIT: NEED(admit, admit); break;
    case MP_POLICY_EVICT:
        NEED(evict, on_insert);
        NEED(evict, on_remove);
        NEED(evict, pick);
        break;
    case MP_POLICY_PARTITION:
        if (!((const struct mp_partition_ops *)(const void *)info)->global)
            NEED(partition, quota);
        break;
    case MP_POLICY_PREDICT:  /* may never predict */
    case MP_POLICY_PREFETCH: /* may never prefetch */
    case MP_POLICY_KIND_COUNT: break;
    }
#undef NEED
    return NULL;
}

enum mp_status mp_policy_check(enum mp_policy_kind kind, const struct mp_policy_info *info)
{
    const char *missing;

    if ((unsigned)kind >= MP_POLICY_KIND_COUNT || info->name == NULL || info->summary == NULL)
        return mp_fail(MP_ERR_INVALID, "E_POLICY_CHECK", "a policy without name or summary");
    for (const char *at = info->name; *at != '\0'; at++) {
        if (!islower((unsigned char)*at) && !isdigit((unsigned char)*at) && *at != '-')
            return mp_fail(MP_ERR_INVALID, "E_POLICY_CHECK",
                           "policy name '%s' has other characters than a-z, 0-9 and '-'",
                           info->name);
    }
    if (info->name[0] == '\0' || strlen(info->name) > MP_POLICY_NAME_MAX)
        return mp_fail(MP_ERR_INVALID, "E_POLICY_CHECK", "policy name '%s' is not 1 to %d long",
                       info->name, MP_POLICY_NAME_MAX);
    if (info->abi != MP_POLICY_ABI)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_POLICY_ABI", "policy '%s' is for ABI %u, need %u",
                       info->name, info->abi, MP_POLICY_ABI);
    if ((info->opts == NULL) != (info->config_size == 0))
        return mp_fail(MP_ERR_INVALID, "E_POLICY_CHECK",
                       "policy '%s' has options without config_size, or the reverse", info->name);
    missing = missing_function(kind, info);
    if (missing != NULL)
        return mp_fail(MP_ERR_INVALID, "E_POLICY_CHECK", "%s policy '%s' lacks %s",
                       mp_policy_kind_name(kind), info->name, missing);
    return MP_OK;
}

enum mp_status mp_policy_add(enum mp_policy_kind kind, const struct mp_policy_info *info)
{
    enum mp_status status = mp_policy_check(kind, info);

    if (status != MP_OK)
        return status;
    if (mp_policy_find(kind, info->name) != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_POLICY_ADD", "there is a %s policy '%s' already",
                       mp_policy_kind_name(kind), info->name);
    if (added_count == MP_POLICIES_ADDED_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_POLICY_ADD", "%s policy '%s': at most %d can be added",
                       mp_policy_kind_name(kind), info->name, MP_POLICIES_ADDED_MAX);
    added[added_count].kind = kind;
    added[added_count++].info = info;
    return MP_OK;
}

/* "lru, lfu, random": for messages. */
static void list_names(enum mp_policy_kind kind, char *out, size_t bytes)
{
    const struct mp_policy_info *info;
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", i > 0 ? ", " : "", info->name);
}

static const struct mp_profile *find_profile(const char *name)
{
    for (const struct mp_profile *p = mp_profiles; p->name != NULL; p++) {
        if (name == NULL || !strcmp(p->name, name))
            return p;
    }
    return NULL;
}

enum mp_status mp_policy_resolve(const struct mp_policy_names *names, struct mp_profile *chosen_p)
{
    const struct mp_profile *profile = find_profile(names->profile);
    char quoted[MP_QUOTE_BYTES], known[512];
    struct mp_profile chosen;

    if (profile == NULL) {
        size_t used = 0;

        for (const struct mp_profile *p = mp_profiles; p->name != NULL && used < sizeof(known); p++)
            used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
                                     p == mp_profiles ? "" : ", ", p->name);
        return mp_fail(MP_ERR_CONFIG, "E_PROFILE", "unknown profile '%s'; known are %s",
                       mp_quote(quoted, names->profile, strlen(names->profile)), known);
    }
    chosen = *profile;
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        const char *name = names->policy[kind];
        const struct mp_policy_info *info;

        if (name == NULL)
            continue;
        info = mp_policy_find(kind, name);
        if (info == NULL) {
            list_names(kind, known, sizeof(known));
            return mp_fail(MP_ERR_CONFIG, "E_POLICY", "unknown %s policy '%s'; known are %s",
                           mp_policy_kind_name(kind), mp_quote(quoted, name, strlen(name)), known);
        }
        chosen.policy[kind] = info->name;
    }
    *chosen_p = chosen;
    return MP_OK;
}

bool mp_policies_want_costs(const struct mp_profile *chosen)
{
    bool want = false;

    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        const struct mp_policy_info *info =
            mp_policy_find((enum mp_policy_kind)kind, chosen->policy[kind]);

        want |= info != NULL && info->costs;
    }
    return want;
}

void mp_policy_prefix(const struct mp_policy_info *info, char out[MP_POLICY_PREFIX_BYTES])
{
    size_t used = (size_t)snprintf(out, MP_POLICY_PREFIX_BYTES, "MOEPAGER_");

    for (const char *at = info->name; *at != '\0' && used < MP_POLICY_PREFIX_BYTES - 2; at++)
        out[used++] = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
    out[used++] = '_';
    out[used] = '\0';
}

/* The filled config of a policy's table in `groups`, or NULL. */
static const void *find_config(const struct mp_opt_group *groups, const struct mp_opt *table)
{
    if (groups == NULL)
        return NULL;
    for (; groups->prefix != NULL; groups++) {
        if (groups->table == table)
            return groups->config;
    }
    return NULL;
}

/* Make an instance, with options from `groups` or else from the environment. */
static enum mp_status create_one(const struct mp_policy_info *info, mp_policy_create_fn create,
                                 const struct mp_shape *shape, const struct mp_opt_group *groups,
                                 struct mp_policy **policy_p)
{
    const void *given = info->opts != NULL ? find_config(groups, info->opts) : NULL;
    char prefix[MP_POLICY_PREFIX_BYTES];
    void *config = NULL;
    enum mp_status status;

    if (given == NULL && info->config_size > 0) {
        config = calloc(1, info->config_size);
        if (config == NULL)
            return mp_fail_no_memory("a policy's options", info->config_size);
        mp_policy_prefix(info, prefix);
        mp_opt_load(info->opts, prefix, config);
    }
    status = create(given != NULL ? given : config, shape, policy_p);
    free(config);
    return status;
}

enum mp_status mp_policies_create(const struct mp_profile *chosen, const struct mp_shape *shape,
                                  const struct mp_opt_group *groups, struct mp_policies *policies_p)
{
    struct mp_policies set = { 0 };
    enum mp_status status = MP_OK;

#define X(kind, KIND)                                                                           \
    if (status == MP_OK) {                                                                      \
        const char *name = chosen->policy[MP_POLICY_##KIND];                                    \
        set.kind##_ops = (const void *)mp_policy_find(MP_POLICY_##KIND, name);                  \
        status = set.kind##_ops == NULL                                                         \
                     ? mp_fail(MP_ERR_CONFIG, "E_POLICY", "unknown %s policy '%s'", #kind,      \
                               name != NULL ? name : "")                                        \
                     : create_one(&set.kind##_ops->info, set.kind##_ops->create, shape, groups, \
                                  &set.kind);                                                   \
    }
    MP_POLICY_KIND_MAP(X)
#undef X
    if (status != MP_OK) {
        mp_policies_destroy(&set);
        return status;
    }
    *policies_p = set;
    return MP_OK;
}

void mp_policies_destroy(struct mp_policies *policies)
{
#define X(kind, KIND)           \
    if (policies->kind != NULL) \
        policies->kind##_ops->destroy(policies->kind);
    MP_POLICY_KIND_MAP(X)
#undef X
    memset(policies, 0, sizeof(*policies));
}

enum mp_status mp_policy_make(struct mp_policy *draft, size_t bytes, mp_policy_take_fn take,
                              const struct mp_shape *shape, struct mp_policy **policy_p)
{
    char what[MP_POLICY_NAME_MAX + 16];
    struct mp_arena arena = { 0 };
    struct mp_policy *policy;
    enum mp_status status;

    mp_assert(bytes >= sizeof(*draft));
    mp_arena_take(&arena, 1, bytes);
    if (take != NULL)
        take(draft, shape, &arena);
    snprintf(what, sizeof(what), "policy '%s'", draft->info->name);
    status = mp_arena_open(&arena, what);
    if (status != MP_OK)
        return status;
    policy = mp_arena_take(&arena, 1, bytes);
    memcpy(policy, draft, bytes);
    if (take != NULL)
        take(policy, shape, &arena);
    *policy_p = policy;
    return MP_OK;
}

enum mp_status mp_policy_create_plain(const struct mp_policy_info *info,
                                      struct mp_policy **policy_p)
{
    struct mp_policy draft = { .info = info };

    return mp_policy_make(&draft, sizeof(draft), NULL, NULL, policy_p);
}

void mp_policy_free(struct mp_policy *policy)
{
    free(policy);
}
