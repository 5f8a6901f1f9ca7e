/*
 * The settings of the program and the list of all option tables. How a value is parsed is in
 * vmm/options/opt.c.
 */
#include "engine/session/settings.h"

#include <stdio.h>
#include <string.h>

#include "engine/session/draft/draft.h"
#include "vmm/base/error.h"
#include "vmm/options/log_options.h"
#include "vmm/space/space.h"

static const char *const math_names[] = { "auto", "f32", "native", "amx", NULL };
static const char *const kv_type_names[] = { "f32", "f16", "bf16", "q8_0", NULL };
static const char *const probe_names[] = { "auto", "cached", "off", NULL };
static const char *const residency_names[] = { "inclusive", "exclusive", NULL };
static const char *const addressing_names[] = { "table", "window", "auto", NULL };

_Static_assert(sizeof(kv_type_names) / sizeof(kv_type_names[0]) == MP_KV_TYPE_COUNT + 1,
               "the names are those of enum mp_kv_type_choice");
_Static_assert(sizeof(residency_names) / sizeof(residency_names[0]) == MP_HOST_RESIDENCY_COUNT + 1,
               "the names are those of enum mp_host_residency");
_Static_assert(sizeof(addressing_names) / sizeof(addressing_names[0]) == MP_RUN_ADDRESSING_AUTO + 2,
               "the names are those of enum mp_addressing, and auto");

#define POLICY_TEXT(KIND, help) \
    MP_OPT_TEXT(#KIND, struct mp_run_settings, policy[MP_POLICY_##KIND], "", help)

static const struct mp_opt run_opts[] = {
    MP_OPT_PART(
        "BUDGET", struct mp_run_settings, budget, "auto",
        "RAM for routed experts: a size, a share of all experts' bytes such as 25%, all, "
        "or auto, which takes what the machine, its control group and ulimit -v have to spare."),
    MP_OPT(MP_OPT_U64, "CTX", struct mp_run_settings, ctx, "0", 0, 1u << 24,
           "Positions per sequence that the KV cache has room for; 0: what the model was made "
           "for, at most 4096."),
    MP_OPT(MP_OPT_U64, "PREFILL_TOKENS", struct mp_run_settings, prefill_tokens, "256", 1, 65535,
           "Tokens of prompts that are processed together; each expert is loaded at most once "
           "for them."),
    MP_OPT(
        MP_OPT_U64, "DRAFT_TOKENS", struct mp_run_settings, draft_tokens, "0", 0, MP_DRAFT_MAX,
        "Most tokens per sequence that are guessed and checked in one step; the text is the same. "
        "How many are, and whether any, follows from measured tokens per second, or with "
        "--deterministic is always as many as are guessed. 0: none."),
    MP_OPT_TEXT("DRAFT_MODEL", struct mp_run_settings, draft_model, "",
                "Directory of a small model with the same tokens, all of it in memory, that makes "
                "the guesses of --draft-tokens, and of --lookahead where that pays; mtp: the layer "
                "that some models have for this; empty: they come from the text."),
    MP_OPT(MP_OPT_U64, "LOOKAHEAD", struct mp_run_settings, lookahead, "0", 0, MP_DRAFT_AHEAD_MAX,
           "Guess from the ids of the tokens being processed, and of so many guessed ones after "
           "them, which experts later layers choose, and read those ahead; 0: do not."),
    MP_OPT(MP_OPT_U64, "SLICES", struct mp_run_settings, slices, "0", 0, MP_SLICES_MAX,
           "Slices that each expert is read and kept in; 0: as the model is stored, another number "
           "must be that one (moepager repack --slices N stores them; there 0 means whole)."),
    MP_OPT_TEXT("DEVICE", struct mp_run_settings, device, "auto",
                "Where experts are kept and computed: cpu is RAM and CPU, cuda or cuda:N a GPU, "
                "auto the first GPU if there is one that can be used."),
    MP_OPT_PART("HOST_BUDGET", struct mp_run_settings, host_budget, "auto",
                "Pinned host memory for experts behind a GPU: a size, a share of all experts' "
                "bytes, all, or auto, which takes what is needed and there is room for. What it "
                "does not hold is read from its file when it is needed."),
    MP_OPT_ENUM("RESIDENCY", struct mp_run_settings, residency, "inclusive", residency_names,
                "Experts in the memory of a GPU keep a copy in host memory (inclusive), or give "
                "it up and are copied back when they leave (exclusive)."),
    MP_OPT_ENUM("ADDRESSING", struct mp_run_settings, addressing, "auto", addressing_names,
                "How kernels find an expert in the memory of a GPU: where a table says it is now, "
                "or at an address of its own for life, where it is mapped while it is there "
                "(window); auto: window where moepager probe has found that mapping an expert "
                "takes at most 5 % of the time of copying it, else table."),
    MP_OPT(MP_OPT_BOOL, "GRAPHS", struct mp_run_settings, graphs, "on", 0, 1,
           "Decoding steps that a GPU can do alone, all their experts being resident, are queued "
           "as one graph; off: the host drives every layer. The output is the same."),
    MP_OPT(MP_OPT_U64, "WATCHDOG", struct mp_run_settings, watchdog_s, "30", 0, 86400,
           "Seconds after which a call of a GPU's driver that has not returned ends the program, "
           "with exit code 5; 0: never."),
    MP_OPT(MP_OPT_BOOL, "DETERMINISTIC", struct mp_run_settings, deterministic, "off", 0, 1,
           "Decisions do not depend on timing: prefetches count from the next layer on."),
    MP_OPT(MP_OPT_U64, "SEED", struct mp_run_settings, seed, "1", 0, UINT64_MAX,
           "Start of all random numbers: sampling and the random policies."),
    MP_OPT(MP_OPT_BOOL, "HUGE_PAGES", struct mp_run_settings, huge_pages, "on", 0, 1,
           "Ask for huge pages behind expert slots of 2 MiB and more."),
    MP_OPT(
        MP_OPT_BOOL, "POPULATE", struct mp_run_settings, populate, "on", 0, 1,
        "Fill expert slots with memory in the background from the start, instead of when they are "
        "first used."),
    MP_OPT_TEXT(
        "KERNELS", struct mp_run_settings, kernels, "",
        "Arithmetic: ref, avx2, avx512, avx512bf16 or amx; empty: the fastest of the class that "
        "--math names."),
    MP_OPT_ENUM(
        "MATH", struct mp_run_settings, math, "auto", math_names,
        "What products with BF16 weights on the CPU round activations to: nothing (f32), or "
        "BF16 (native; amx, by tiles, which products with quantised weights use as well); auto: "
        "native where the CPU multiplies BF16 and experts are not on a GPU, else f32."),
    MP_OPT_ENUM("KV_TYPE", struct mp_run_settings, kv_type, "f32", kv_type_names,
                "Type in which keys and values of past tokens are kept: f16 and bf16 take half of "
                "the memory, q8_0 a quarter and a bit. They are rounded when they are stored, so "
                "logits differ from those of f32. A GPU has no q8_0."),
    MP_OPT_TEXT("BACKEND", struct mp_run_settings, backend, "host",
                "Memory backend, with wrappers in front: host, trace:host; --device puts cuda in "
                "the place of host."),
    MP_OPT_TEXT("PROFILE", struct mp_run_settings, profile, "",
                "Named set of policies; empty: the default one. moepager info lists them."),
    MP_OPT_TEXT("CALIBRATION", struct mp_run_settings, calibration, "auto",
                "What moepager calibrate learned of the model: auto takes "
                "moepager-calibration.safetensors beside the model if it is there, none does "
                "without, else a path."),
    MP_OPT_TEXT("LLAPOR", struct mp_run_settings, llapor, "auto",
                "Trained predictors for predict policy llapor: auto takes "
                "moepager-llapor.safetensors beside the model if it is there, none does without, "
                "else a path."),
    MP_OPT(MP_OPT_BOOL, "LLAPOR_LEARN", struct mp_run_settings, llapor_learn, "on", 0, 1,
           "Trained predictors that miss more than a tenth of the experts of their last 64 tokens "
           "go on learning in memory while they run; the file stays as it is."),
    MP_OPT_TEXT("TOKEN_HEAT", struct mp_run_settings, token_heat, "auto",
                "Which experts tokens choose, as moepager calibrate --by-token learned: where "
                "--lookahead begins. auto takes moepager-tokens.safetensors beside the model if it "
                "is there, none begins with nothing, else a path."),
    MP_OPT_TEXT("HEAT_MAP", struct mp_run_settings, heat_map, "none",
                "Which experts runs used lately: written at the end of a run, and at the start of "
                "the next the most used are read ahead. auto is moepager-heat.safetensors beside "
                "the model, none is nowhere, else a path. A file that is wrong costs time only."),
    MP_OPT_ENUM("PROBE", struct mp_run_settings, probe, "auto", probe_names,
                "What a GPU's policies know of costs at the start: auto is what moepager probe "
                "measured, or measures it once if they ask for it; cached measures nothing; off is "
                "nothing, they learn while running."),
    MP_OPT_TEXT("CACHE_DIR", struct mp_run_settings, cache_dir, "auto",
                "Where moepager probe keeps what it measured: auto is .cache/moepager in the home "
                "directory, none is nowhere, else a directory that exists."),
    POLICY_TEXT(ROUTE, "Policy that chooses experts; empty: the profile's."),
    POLICY_TEXT(ASSIGN, "Policy that chooses who computes an expert; empty: the profile's."),
    POLICY_TEXT(PREDICT, "Policy that guesses the next layer's scores; empty: the profile's."),
    POLICY_TEXT(PREFETCH, "Policy that chooses what is loaded ahead; empty: the profile's."),
    POLICY_TEXT(ADMIT, "Policy that decides what to keep; empty: the profile's."),
    POLICY_TEXT(EVICT, "Policy that chooses what leaves; empty: the profile's."),
    POLICY_TEXT(PARTITION, "Policy that divides slots among layers; empty: the profile's."),
    MP_OPT_END,
};

#define POLICY_GROUPS_MAX 64
#define POLICY_CONFIG_BYTES MP_PLUGIN_CONFIG_BYTES
#define FIXED_GROUPS 11
#define VARIABLE_BYTES 128

static struct mp_opt_group groups[FIXED_GROUPS + POLICY_GROUPS_MAX + 1];
static char prefixes[POLICY_GROUPS_MAX][MP_POLICY_PREFIX_BYTES];
static _Alignas(16) char scratch[POLICY_GROUPS_MAX][POLICY_CONFIG_BYTES];

static enum mp_status resolve(const struct mp_run_settings *run, struct mp_profile *chosen_p)
{
    struct mp_policy_names names = {
        .profile = run->profile[0] != '\0' ? run->profile : NULL,
    };

    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        names.policy[kind] = run->policy[kind][0] != '\0' ? run->policy[kind] : NULL;
    return mp_policy_resolve(&names, chosen_p);
}

/* The policy that an empty name of a kind gets from the profile, and the profile that an empty name
 * stands for. */
static const char *effect_of_names(const void *config, const struct mp_opt *opt)
{
    const struct mp_run_settings *run = config;
    struct mp_profile chosen;

    if (((const char *)config)[opt->offset] != '\0' || resolve(run, &chosen) != MP_OK)
        return NULL;
    if (opt->offset == offsetof(struct mp_run_settings, profile))
        return chosen.name;
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        if (opt->offset == offsetof(struct mp_run_settings, policy) + kind * sizeof(run->policy[0]))
            return chosen.policy[kind];
    }
    return NULL;
}

static const struct mp_opt_group *list_groups(struct mp_settings *settings)
{
    const struct mp_opt_group fixed[FIXED_GROUPS] = {
        { "MOEPAGER_", run_opts, &settings->run, effect_of_names },
        { "MOEPAGER_", mp_io_opts, &settings->io, NULL },
        { "MOEPAGER_", mp_pool_opts, &settings->pool, NULL },
        { "MOEPAGER_", mp_gemm_opts, &settings->gemm, NULL },
        { "MOEPAGER_", mp_gpu_opts, &settings->gpu, NULL },
        { "MOEPAGER_", mp_preload_opts, &settings->preload, NULL },
        { "MOEPAGER_", mp_gpu_window_opts, &settings->gpu_window, NULL },
        { "MOEPAGER_", mp_plugin_opts, &settings->plugins, NULL },
        { "MOEPAGER_", mp_live_opts, &settings->live, NULL },
        { "MOEPAGER_", mp_log_opts, &settings->log, NULL },
        { "MOEPAGER_", mp_opt_opts, &settings->opt, NULL },
    };
    const struct mp_policy_info *info;
    size_t count = 0;

    memcpy(groups, fixed, sizeof(fixed));
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL; i++) {
            if (info->opts == NULL || count == POLICY_GROUPS_MAX ||
                info->config_size > POLICY_CONFIG_BYTES)
                continue;
            mp_policy_prefix(info, prefixes[count]);
            groups[FIXED_GROUPS + count] =
                (struct mp_opt_group){ prefixes[count], info->opts, scratch[count], NULL };
            count++;
        }
    }
    groups[FIXED_GROUPS + count] = (struct mp_opt_group){ .prefix = NULL };
    return groups;
}

/* Once in a process: the lists of policies keep what was added. */
static enum mp_status load_plugins(struct mp_plugin_config *config)
{
    static bool loaded;
    enum mp_status status = MP_OK;

    mp_opt_load(mp_plugin_opts, "MOEPAGER_", config);
    if (!loaded)
        status = mp_plugins_load(config->path);
    loaded = loaded || status == MP_OK;
    return status;
}

/* The first group behind `group` that has the variable `name`, or NULL. */
static const struct mp_opt_group *find_variable(const struct mp_opt_group *group, const char *name)
{
    char other[VARIABLE_BYTES];

    while ((++group)->prefix != NULL) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            snprintf(other, sizeof(other), "%s%s", group->prefix, opt->name);
            if (!strcmp(name, other))
                return group;
        }
    }
    return NULL;
}

/* Two options with one variable would be set together. */
static enum mp_status check_variables(const struct mp_opt_group *group)
{
    char name[VARIABLE_BYTES];

    for (; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            snprintf(name, sizeof(name), "%s%s", group->prefix, opt->name);
            if (find_variable(group, name) != NULL)
                return mp_fail(MP_ERR_CONFIG, "E_PLUGIN",
                               "an option of a plug-in has the variable %s of another option; "
                               "rename the policy or the option",
                               name);
        }
    }
    return MP_OK;
}

enum mp_status mp_settings_load(struct mp_settings *settings)
{
    enum mp_status status;

    memset(settings, 0, sizeof(*settings));
    status = load_plugins(&settings->plugins);
    settings->groups = list_groups(settings);
    if (status == MP_OK && settings->plugins.path[0] != '\0')
        status = check_variables(settings->groups);
    return status == MP_OK ? mp_opt_load_all(settings->groups) : status;
}

enum mp_status mp_settings_start_log(const struct mp_settings *settings)
{
    const enum mp_status status = mp_log_check(&settings->log);

    if (status == MP_OK)
        mp_log_init(&settings->log);
    return status;
}

enum mp_status mp_settings_policies(const struct mp_settings *settings, struct mp_profile *chosen_p)
{
    return resolve(&settings->run, chosen_p);
}
