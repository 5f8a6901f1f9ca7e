/*
 * Loads, finds and sets options. Parsing is in opt_parse.c, printing in opt_print.c.
 */
#include "vmm/options/opt.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define NAME_BYTES 96
#define ENV_PREFIX "MOEPAGER_"

const struct mp_opt mp_opt_opts[] = { MP_OPT(MP_OPT_BOOL, "STRICT", struct mp_opt_config, strict,
                                             "off", 0, 1,
                                             "Refuse to start when a variable is unknown."),
                                      MP_OPT_END };

static void *field_of(const struct mp_opt *opt, void *config)
{
    mp_assert(config != NULL);
    return (char *)config + opt->offset;
}

static void full_name(const struct mp_opt *opt, const char *prefix, char name[NAME_BYTES])
{
    int length = snprintf(name, NAME_BYTES, "%s%s", prefix, opt->name);

    (void)length;
    mp_assert(length > 0 && length < NAME_BYTES);
}

/* The option's value in the environment, else its default; returns the value if it is bad, else
 * NULL. */
static const char *load_one(const struct mp_opt *opt, const char *name, void *config)
{
    const char *value = secure_getenv(name);
    bool ok;

    mp_assert(opt->dfl != NULL);
    if (value != NULL && mp_opt_parse(opt, value, field_of(opt, config)))
        return NULL;
    ok = mp_opt_parse(opt, opt->dfl, field_of(opt, config));
    (void)ok;
    mp_assert(ok); /* the table itself is wrong */
    return value;
}

unsigned mp_opt_load(const struct mp_opt *table, const char *prefix, void *config)
{
    unsigned bad = 0;

    mp_assert(table != NULL && prefix != NULL);
    for (const struct mp_opt *opt = table; opt->name != NULL; opt++) {
        char name[NAME_BYTES], wanted[MP_OPT_TEXT_BYTES], quoted[MP_QUOTE_BYTES];
        const char *value;

        full_name(opt, prefix, name);
        value = load_one(opt, name, config);
        if (value == NULL)
            continue;
        mp_log_warn("opt", "%s is '%s', need %s; using %s (%s)", name,
                    mp_quote(quoted, value, strlen(value)), mp_opt_describe(opt, wanted),
                    *opt->dfl != '\0' ? opt->dfl : "nothing", opt->help);
        bad++;
    }
    return bad;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters that are replaced, left out, too many, or exchanged with the one beside, of names shorter
 * than NAME_BYTES: optimal string alignment. Rows i, i - 1 and i - 2 of the table. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[3][NAME_BYTES + 1];
    const size_t a_length = strlen(a), b_length = strlen(b);

    mp_assert(b_length < NAME_BYTES);
    for (size_t j = 0; j <= b_length; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *now = row[i % 3];
        const size_t *before = row[(i - 1) % 3], *earlier = row[(i + 1) % 3];

        now[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            now[j] = least(before[j], now[j - 1]) + 1;
            now[j] = least(now[j], before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], earlier[j - 2] + 1);
        }
    }
    return row[a_length % 3][b_length];
}

/* Names at this distance or further are not taken for a misspelling of one of so many letters. */
static size_t distance_limit(size_t length)
{
    return (length + 2) / 3 + 1;
}

const char *mp_opt_nearest(const char *const *names, const char *name)
{
    size_t limit = distance_limit(strlen(name));
    const char *best = NULL;

    mp_assert(names != NULL);
    for (; *names != NULL; names++) {
        const size_t distance = edit_distance(name, *names);

        if (distance < limit) {
            limit = distance;
            best = *names;
        }
    }
    return best;
}

/* The known name most like `name`, or an empty string if none is close. */
static void nearest(const struct mp_opt_group *groups, const char *name, char best[NAME_BYTES])
{
    size_t limit = distance_limit(strlen(name) - strlen(ENV_PREFIX));

    mp_assert(strncmp(name, ENV_PREFIX, strlen(ENV_PREFIX)) == 0);
    best[0] = '\0';
    for (const struct mp_opt_group *group = groups; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            char known[NAME_BYTES];
            size_t distance;

            full_name(opt, group->prefix, known);
            distance = edit_distance(name + strlen(ENV_PREFIX), known + strlen(ENV_PREFIX));
            if (distance < limit) {
                limit = distance;
                memcpy(best, known, NAME_BYTES);
            }
        }
    }
}

/* "evict", "--evict" and "MOEPAGER_EVICT" all become MOEPAGER_EVICT. False if it is too long. */
static bool canonical_name(const char *name, char out[NAME_BYTES])
{
    const bool is_variable = strncmp(name, ENV_PREFIX, strlen(ENV_PREFIX)) == 0;
    int length;

    mp_assert(name != NULL);
    if (strncmp(name, "--", 2) == 0)
        name += 2;
    length = snprintf(out, NAME_BYTES, "%s%s", is_variable ? "" : ENV_PREFIX, name);
    if (length < 0 || length >= NAME_BYTES)
        return false;
    for (char *at = out; *at != '\0'; at++) {
        if (*at == '-')
            *at = '_';
        else if (*at >= 'a' && *at <= 'z')
            *at = (char)(*at - 'a' + 'A');
    }
    return true;
}

const struct mp_opt *mp_opt_find(const struct mp_opt_group *groups, const char *name,
                                 const struct mp_opt_group **group_p)
{
    char wanted[NAME_BYTES], known[NAME_BYTES];

    mp_assert(groups != NULL);
    if (!canonical_name(name, wanted))
        return NULL;
    for (const struct mp_opt_group *group = groups; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            full_name(opt, group->prefix, known);
            if (strcmp(known, wanted) != 0)
                continue;
            if (group_p != NULL)
                *group_p = group;
            return opt;
        }
    }
    return NULL;
}

unsigned mp_opt_warn_unknown(const struct mp_opt_group *groups)
{
    unsigned unknown = 0;

    if (getauxval(AT_SECURE) != 0 || environ == NULL)
        return 0;
    for (char **entry = environ; *entry != NULL; entry++) {
        const size_t length = strcspn(*entry, "=");
        char name[NAME_BYTES], best[NAME_BYTES], quoted[MP_QUOTE_BYTES];

        if (strncmp(*entry, ENV_PREFIX, strlen(ENV_PREFIX)) != 0)
            continue;
        best[0] = '\0';
        if (length < NAME_BYTES) {
            memcpy(name, *entry, length);
            name[length] = '\0';
            if (mp_opt_find(groups, name, NULL) != NULL)
                continue;
            nearest(groups, name, best);
        }
        unknown++;
        mp_quote(quoted, *entry, length);
        if (best[0] != '\0')
            mp_log_warn("opt", "unknown variable %s; did you mean %s?", quoted, best);
        else
            mp_log_warn("opt", "unknown variable %s", quoted);
    }
    return unknown;
}

static bool is_strict(void)
{
    struct mp_opt_config config;
    const char *value = secure_getenv(ENV_PREFIX "STRICT");

    /* A value that is not understood is strict: whoever sets it wants to know. */
    return value != NULL &&
           (!mp_opt_parse(&mp_opt_opts[0], value, &config.strict) || config.strict != 0);
}

static enum mp_status bad_value(const struct mp_opt *opt, const char *shown, const char *value)
{
    char wanted[MP_OPT_TEXT_BYTES], quoted[MP_QUOTE_BYTES];

    mp_assert(value != NULL);
    return mp_fail(MP_ERR_CONFIG, "E_OPTION", "option '%s': got '%s', need %s (%s)", shown,
                   mp_quote(quoted, value, strlen(value)), mp_opt_describe(opt, wanted), opt->help);
}

enum mp_status mp_opt_load_all(const struct mp_opt_group *groups)
{
    enum mp_status status = MP_OK;
    unsigned unknown;

    for (const struct mp_opt_group *group = groups; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            char name[NAME_BYTES];
            const char *value;

            full_name(opt, group->prefix, name);
            value = load_one(opt, name, group->config);
            if (value != NULL && status == MP_OK)
                status = bad_value(opt, name, value);
        }
    }
    unknown = mp_opt_warn_unknown(groups);
    if (status == MP_OK && unknown > 0 && is_strict())
        return mp_fail(MP_ERR_CONFIG, "E_OPTION",
                       "%u variables in the environment are unknown and MOEPAGER_STRICT is set; "
                       "correct them, or unset MOEPAGER_STRICT",
                       unknown);
    return status;
}

static enum mp_status set(const struct mp_opt *opt, const char *shown, void *config,
                          const char *value)
{
    char wanted[MP_OPT_TEXT_BYTES];

    mp_assert(opt->name != NULL);
    if (value == NULL && opt->kind == MP_OPT_BOOL)
        value = "1";
    if (value == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_OPTION", "option '%s' needs a value: %s (%s)", shown,
                       mp_opt_describe(opt, wanted), opt->help);
    return mp_opt_parse(opt, value, field_of(opt, config)) ? MP_OK : bad_value(opt, shown, value);
}

enum mp_status mp_opt_unknown(const struct mp_opt_group *groups, const char *name)
{
    char wanted[NAME_BYTES], best[NAME_BYTES] = "", quoted[MP_QUOTE_BYTES];

    mp_assert(name != NULL);
    mp_quote(quoted, name, strlen(name));
    if (canonical_name(name, wanted))
        nearest(groups, wanted, best);
    if (best[0] == '\0')
        return mp_fail(MP_ERR_CONFIG, "E_OPTION", "unknown option '%s'", quoted);
    if (strncmp(name, ENV_PREFIX, strlen(ENV_PREFIX)) != 0) {
        char *to = best;

        for (const char *at = best + strlen(ENV_PREFIX); *at != '\0'; at++)
            *to++ = *at == '_' ? '-' : *at >= 'A' && *at <= 'Z' ? (char)(*at - 'A' + 'a') : *at;
        *to = '\0';
    }
    return mp_fail(MP_ERR_CONFIG, "E_OPTION", "unknown option '%s'; did you mean '%s%s'?", quoted,
                   strncmp(name, "--", 2) == 0 ? "--" : "", best);
}

enum mp_status mp_opt_set(const struct mp_opt_group *groups, const char *name, const char *value)
{
    const struct mp_opt_group *group = NULL;
    const struct mp_opt *opt = mp_opt_find(groups, name, &group);
    char quoted[MP_QUOTE_BYTES];

    if (opt == NULL)
        return mp_opt_unknown(groups, name);
    mp_assert(group != NULL);
    return set(opt, mp_quote(quoted, name, strlen(name)), group->config, value);
}

enum mp_status mp_opt_set_one(const struct mp_opt *table, const char *prefix, void *config,
                              const char *name, const char *value)
{
    char shown[NAME_BYTES], quoted[MP_QUOTE_BYTES];

    mp_assert(name != NULL);
    for (const struct mp_opt *opt = table; opt->name != NULL; opt++) {
        if (strcmp(opt->name, name) == 0) {
            full_name(opt, prefix, shown);
            return set(opt, shown, config, value);
        }
    }
    return mp_fail(MP_ERR_CONFIG, "E_OPTION", "unknown option '%s%s'", prefix,
                   mp_quote(quoted, name, strlen(name)));
}
