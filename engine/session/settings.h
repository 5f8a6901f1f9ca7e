#ifndef MP_SETTINGS_H
#define MP_SETTINGS_H

#include "engine/gpu/cublas.h"
#include "engine/gpu/gpu.h"
#include "engine/pool/pool.h"
#include "policy/plugins.h"
#include "policy/policy.h"
#include "vmm/base/log.h"
#include "vmm/io/io_options.h"
#include "vmm/live/live.h"
#include "vmm/options/gpu_window_options.h"
#include "vmm/options/opt.h"
#include "vmm/options/preload_options.h"
#include "vmm/space/space.h"

/*
 * All settings of the program: environment variable and command line flag of an option use the same
 * table (vmm/options/opt.h). The command line overrides the environment, which overrides the
 * default.
 */
struct mp_run_settings {
    struct mp_share budget;
    uint64_t ctx;            /* 0: the model's, at most 4096 */
    uint64_t prefill_tokens; /* of one batch */
    uint64_t draft_tokens;   /* 0: no drafts */
    char draft_model[512];   /* empty: they come from the text */
    uint64_t lookahead;      /* tokens */
    uint64_t slices;         /* of an expert; 0: as the model is stored */
    char device[32];         /* see engine/session/device_choice.h */
    uint64_t graphs;
    uint64_t watchdog_s; /* see vmm/backend/cuda/cuda_watchdog.h */
    struct mp_share host_budget;
    uint64_t residency;  /* enum mp_host_residency */
    uint64_t addressing; /* enum mp_addressing, or MP_RUN_ADDRESSING_AUTO */
    uint64_t deterministic;
    uint64_t seed;
    uint64_t huge_pages;
    uint64_t populate;
    char calibration[512]; /* "auto", "none" or a path; see engine/model/sidecar/sidecar.h */
    char llapor[512];      /* the same */
    uint64_t llapor_learn; /* bool */
    char token_heat[512];  /* as calibration */
    char heat_map[512];    /* see engine/model/sidecar/heat_map.h */
    uint64_t probe;        /* enum mp_probe_use */
    char cache_dir[512];   /* "auto", "none" or a path; see engine/probe/probe.h */
    char kernels[32];      /* empty: the fastest */
    uint64_t math;         /* enum mp_math_choice */
    uint64_t kv_type;      /* enum mp_kv_type_choice */
    char backend[128];
    char profile[64];
    char policy[MP_POLICY_KIND_COUNT][64]; /* empty: the profile's */
};

/* Names are those of the types. */
enum mp_kv_type_choice {
    MP_KV_TYPE_F32,
    MP_KV_TYPE_F16,
    MP_KV_TYPE_BF16,
    MP_KV_TYPE_Q8_0,
    MP_KV_TYPE_COUNT
};

enum mp_math_choice {
    MP_MATH_CHOICE_AUTO,
    MP_MATH_CHOICE_F32,
    MP_MATH_CHOICE_NATIVE,
    MP_MATH_CHOICE_AMX
};

enum mp_probe_use { MP_PROBE_AUTO, MP_PROBE_CACHED, MP_PROBE_OFF };

enum { MP_RUN_ADDRESSING_AUTO = MP_ADDRESSING_COUNT };

struct mp_settings {
    struct mp_opt_config opt;
    struct mp_log_config log;
    struct mp_run_settings run;
    struct mp_pool_config pool;
    struct mp_gemm_config gemm;
    struct mp_gpu_config gpu;
    struct mp_io_config io;
    struct mp_preload_config preload;       /* passed on, not used by the program itself */
    struct mp_gpu_window_config gpu_window; /* the same */
    struct mp_plugin_config plugins;
    struct mp_live_config live;
    const struct mp_opt_group *groups; /* all tables, filled; for mp_opt_set() and listings */
};

/*
 * Fill `settings` from the environment. settings->groups lists all tables, those of the policies
 * included; it lies in static storage, so there is one settings object in a program. Plug-ins are
 * loaded first, at the first call. MP_ERR_CONFIG as mp_plugins_load() and mp_opt_load_all(), and
 * E_PLUGIN if an option of a plug-in has the variable of another one.
 */
enum mp_status mp_settings_load(struct mp_settings *settings) MP_MUST_CHECK;

/* Start the log with the settings, after the command line was parsed. MP_ERR_CONFIG as
 * mp_log_check(); a file that cannot be written only causes a warning. */
enum mp_status mp_settings_start_log(const struct mp_settings *settings) MP_MUST_CHECK;

/* The policies that the settings name. */
enum mp_status mp_settings_policies(const struct mp_settings *settings,
                                    struct mp_profile *chosen_p) MP_MUST_CHECK;

#endif
