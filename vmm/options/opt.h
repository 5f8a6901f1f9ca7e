#ifndef MP_OPTIONS_OPT_H
#define MP_OPTIONS_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "vmm/base/status.h"

/*
 * Option tables.
 *
 * One table per module describes every setting the module reads: its name, default, legal range,
 * where the value is stored, and the sentence a user reads. The environment variable
 * (MOEPAGER_EVICT=lru), the command line flag (--evict lru), `moepager env` and docs/options.md all
 * come from the same table and the same parser, so they cannot disagree. No other code reads the
 * environment.
 *
 * A program lists the tables it uses in one array of struct mp_opt_group, loads them once at
 * start, and lets the command line override single values; afterwards a config struct does not
 * change. Loading allocates no memory and takes no lock: the interposer does it before main(). In
 * a set-user-id or otherwise privileged program the environment is ignored altogether.
 *
 * Thread safety: none; start-up code only.
 */
enum mp_opt_kind {
    MP_OPT_BOOL,   /* uint64_t 0 or 1: "1" "on" "yes" "true", "0" "off" "no" "false" */
    MP_OPT_U64,    /* uint64_t: decimal digits */
    MP_OPT_BYTES,  /* uint64_t: "4096", "64K", "2MiB", "1.5GB"; all suffixes are binary */
    MP_OPT_MS,     /* uint64_t, milliseconds: decimal digits */
    MP_OPT_CHOICE, /* uint64_t: index into `choices` */
    MP_OPT_F64,    /* double: "0.25", "1e-3"; never locale-dependent; at most 15 digits */
    MP_OPT_STRING, /* char[N]: anything printable that fits with its NUL */
    MP_OPT_SHARE,  /* struct mp_share: a size, "25%", "all" or "auto" */
};

/* A share of a total that is not known yet. */
enum mp_share_kind { MP_SHARE_BYTES, MP_SHARE_PPM, MP_SHARE_ALL, MP_SHARE_AUTO };

struct mp_share {
    enum mp_share_kind kind;
    uint64_t amount; /* bytes for MP_SHARE_BYTES, millionths (0..1000000) for MP_SHARE_PPM */
};

/* The share in bytes of `whole_bytes`. A size is returned unchanged, `auto` gives `auto_bytes`. */
uint64_t mp_share_resolve(const struct mp_share *share, uint64_t whole_bytes, uint64_t auto_bytes);

/* A size of 1 to 100 bytes: who writes "25" most often means "25%". */
bool mp_share_seems_percent(const struct mp_share *share);

struct mp_opt {
    const char *name; /* without prefix: "CHUNK_BYTES"; NULL ends the table */
    const char *dfl;  /* parsed like user input, so it is validated too */
    enum mp_opt_kind kind;
    size_t offset;              /* of the field in the config struct */
    uint64_t min, max;          /* inclusive, in the unit of the kind; STRING: max = array size */
    double f64_min, f64_max;    /* inclusive, MP_OPT_F64 */
    const char *const *choices; /* MP_OPT_CHOICE: NULL-terminated; stores the index */
    const char *help;           /* one sentence */
    bool only_variable;         /* no command has a flag for it: listings name none */
};

/* Evaluates to 0; does not compile unless type.field has the type that the kind stores. */
#define MP_OPT_FIELD_IS(type, field, ctype)                                                  \
    (0 * sizeof(struct {                                                                     \
         _Static_assert(_Generic(&((type *)0)->field, __typeof__(ctype) * : 1, default : 0), \
                        "the option's field has the wrong type, need " #ctype);              \
         int unused;                                                                         \
     }))

#define MP_OPT_AT(type, field, ctype) offsetof(type, field) + MP_OPT_FIELD_IS(type, field, ctype)

/* MP_OPT_BOOL, MP_OPT_U64, MP_OPT_BYTES, MP_OPT_MS into a uint64_t. */
#define MP_OPT(kind_, name_, type_, field_, dfl_, min_, max_, help_)                             \
    {                                                                                            \
        .name = name_, .dfl = dfl_, .kind = kind_, .offset = MP_OPT_AT(type_, field_, uint64_t), \
        .min = min_, .max = max_, .help = help_                                                  \
    }

/* The index of one of the names in `choices_`, into a uint64_t. */
#define MP_OPT_ENUM(name_, type_, field_, dfl_, choices_, help_)                         \
    {                                                                                    \
        .name = name_, .dfl = dfl_, .kind = MP_OPT_CHOICE,                               \
        .offset = MP_OPT_AT(type_, field_, uint64_t), .choices = choices_, .help = help_ \
    }

/* A number into a double. */
#define MP_OPT_REAL(name_, type_, field_, dfl_, min_, max_, help_)                    \
    {                                                                                 \
        .name = name_, .dfl = dfl_, .kind = MP_OPT_F64,                               \
        .offset = MP_OPT_AT(type_, field_, double), .f64_min = min_, .f64_max = max_, \
        .help = help_                                                                 \
    }

/* Text into a char array inside the struct. */
#define MP_OPT_TEXT(name_, type_, field_, dfl_, help_)                          \
    {                                                                           \
        .name = name_, .dfl = dfl_, .kind = MP_OPT_STRING,                      \
        .offset = MP_OPT_AT(type_, field_, char[sizeof(((type_ *)0)->field_)]), \
        .max = sizeof(((type_ *)0)->field_), .help = help_                      \
    }

/* A size, a percentage, "all" or "auto" into a struct mp_share. */
#define MP_OPT_PART(name_, type_, field_, dfl_, help_)                                        \
    {                                                                                         \
        .name = name_, .dfl = dfl_, .kind = MP_OPT_SHARE,                                     \
        .offset = MP_OPT_AT(type_, field_, struct mp_share), .max = UINT64_MAX, .help = help_ \
    }

#define MP_OPT_END   \
    {                \
        .name = NULL \
    }

/* One module's table; an array of these ends with { .prefix = NULL }. */
struct mp_opt_group {
    const char *prefix; /* "MOEPAGER_LRU_" */
    const struct mp_opt *table;
    void *config; /* the struct that the table's offsets are into */
    /* The effective value where it differs from the one in `config` (such as "auto"), else NULL.
     * The pointer may be NULL. */
    const char *(*effect)(const void *config, const struct mp_opt *opt);
};

/* MOEPAGER_STRICT; list it with the prefix "MOEPAGER_". */
struct mp_opt_config {
    uint64_t strict;
};

extern const struct mp_opt mp_opt_opts[];

/*
 * Fill *config from the environment; unset variables give the default. A variable is named
 * <prefix><name>. A value that does not parse or is out of range is reported by one warning, and
 * the default is used. Returns the number of such values.
 */
unsigned mp_opt_load(const struct mp_opt *table, const char *prefix, void *config);

/*
 * Warn about every MOEPAGER_* variable in the environment that is in no table, with the nearest
 * known name. Returns their number.
 */
unsigned mp_opt_warn_unknown(const struct mp_opt_group *groups);

/*
 * For our own program: load all groups and warn about unknown variables. A bad value is
 * MP_ERR_CONFIG with the text of mp_opt_set(), and so is an unknown variable with
 * MOEPAGER_STRICT=1; the configs are filled all the same. In a host process use mp_opt_load(),
 * which only warns.
 */
enum mp_status mp_opt_load_all(const struct mp_opt_group *groups) MP_MUST_CHECK;

/*
 * Find an option by its variable ("MOEPAGER_EVICT") or by its flag ("evict"; a leading "--" and
 * '-' for '_' are allowed). Returns NULL if there is none; group_p may be NULL.
 */
const struct mp_opt *mp_opt_find(const struct mp_opt_group *groups, const char *name,
                                 const struct mp_opt_group **group_p);

/*
 * Set one option by such a name, with the same parser, range and message as the environment.
 * `value` NULL sets a bool. On MP_ERR_CONFIG, with a text that has the nearest name, the config is
 * unchanged.
 */
enum mp_status mp_opt_set(const struct mp_opt_group *groups, const char *name,
                          const char *value) MP_MUST_CHECK;

/*
 * Returns MP_ERR_CONFIG with a text: no option has this name, and the nearest name in the tables.
 * Uses only the names of the tables, no config.
 */
enum mp_status mp_opt_unknown(const struct mp_opt_group *groups, const char *name) MP_MUST_CHECK;

/* The name in a NULL-terminated list that `name` is probably a misspelling of, or NULL. The names
 * in the list are shorter than 96 bytes. */
const char *mp_opt_nearest(const char *const *names, const char *name);

/* As mp_opt_set() for one table, by the name in the table ("PROTECT"). */
enum mp_status mp_opt_set_one(const struct mp_opt *table, const char *prefix, void *config,
                              const char *name, const char *value) MP_MUST_CHECK;

/* Parse all of `s` into *field (of the kind's type). False: invalid; the field is unchanged. */
bool mp_opt_parse(const struct mp_opt *opt, const char *s, void *field) MP_MUST_CHECK;

#define MP_OPT_TEXT_BYTES 1200 /* enough for any value and for any description */

/* Write the value as mp_opt_parse() reads it. Returns `out`. */
const char *mp_opt_format(const struct mp_opt *opt, const void *field, char out[MP_OPT_TEXT_BYTES]);

/* Describe the accepted values: "a size such as 4096, 64K or 2GiB, from 4KiB to 1TiB". Returns
 * `out`. */
const char *mp_opt_describe(const struct mp_opt *opt, char out[MP_OPT_TEXT_BYTES]);

/* Write "25%", "2GiB", "all": the shortest exact form of a size. Returns `out`. */
const char *mp_opt_format_bytes(uint64_t bytes, char out[32]);

/* Write the groups with their current and effective values, as lines that a shell can source. */
void mp_opt_print(const struct mp_opt_group *groups, FILE *out);

/* Write the groups as flags of a help page: name, default, and the help sentence below. Flags
 * ("evict") for which `hidden` returns true are omitted. */
void mp_opt_print_flags(const struct mp_opt_group *groups,
                        bool (*hidden)(const void *ctx, const char *flag), const void *ctx,
                        FILE *out);

/* Write the table of docs/options.md: variables, flags, defaults and ranges, without current
 * values. */
void mp_opt_print_markdown(const struct mp_opt_group *groups, FILE *out);

/* Write a JSON array of objects with name, flag, value, effective, default, accepted and help. */
void mp_opt_print_json(const struct mp_opt_group *groups, FILE *out);

#endif
