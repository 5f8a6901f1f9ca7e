/*
 * Environments as arrays of "NAME=value", each entry allocated on its own.
 */
#include "vmm/options/environment.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define NAME_BYTES 96

enum mp_status mp_environment_copy(struct mp_environment *environment)
{
    size_t count = 0;

    *environment = (struct mp_environment){ 0 };
    while (environ != NULL && environ[count] != NULL)
        count++;
    environment->entries = calloc(count + 1, sizeof(char *));
    if (environment->entries == NULL)
        return mp_fail_no_memory("the environment", (count + 1) * sizeof(char *));
    for (size_t i = 0; i < count; i++) {
        environment->entries[i] = strdup(environ[i]);
        if (environment->entries[i] == NULL) {
            mp_environment_fini(environment);
            return mp_fail_no_memory("the environment", strlen(environ[i]) + 1);
        }
        environment->count++;
    }
    return MP_OK;
}

void mp_environment_fini(struct mp_environment *environment)
{
    for (size_t i = 0; i < environment->count; i++)
        free(environment->entries[i]);
    free(environment->entries);
    *environment = (struct mp_environment){ 0 };
}

/* The entry's place; `count` if there is none. */
static size_t find(const struct mp_environment *environment, const char *name)
{
    const size_t bytes = strlen(name);
    size_t i = 0;

    while (i < environment->count && (strncmp(environment->entries[i], name, bytes) != 0 ||
                                      environment->entries[i][bytes] != '='))
        i++;
    return i;
}

const char *mp_environment_get(const struct mp_environment *environment, const char *name)
{
    const size_t at = find(environment, name);

    return at < environment->count ? environment->entries[at] + strlen(name) + 1 : NULL;
}

enum mp_status mp_environment_set(struct mp_environment *environment, const char *name,
                                  const char *value)
{
    const size_t bytes = strlen(name) + strlen(value) + 2;
    const size_t at = find(environment, name);
    char *entry = malloc(bytes);
    char **grown;

    if (entry == NULL)
        return mp_fail_no_memory("the environment", bytes);
    snprintf(entry, bytes, "%s=%s", name, value);
    if (at < environment->count) {
        free(environment->entries[at]);
        environment->entries[at] = entry;
        return MP_OK;
    }
    grown = realloc(environment->entries, (environment->count + 2) * sizeof(char *));
    if (grown == NULL) {
        free(entry);
        return mp_fail_no_memory("the environment", (environment->count + 2) * sizeof(char *));
    }
    grown[environment->count++] = entry;
    grown[environment->count] = NULL;
    environment->entries = grown;
    return MP_OK;
}

/* As it would be written, of the value and of the default: equal texts are equal values. */
static bool is_default(const struct mp_opt *opt, const void *field)
{
    alignas(max_align_t) char parsed[MP_OPT_TEXT_BYTES];
    char value[MP_OPT_TEXT_BYTES], dfl[MP_OPT_TEXT_BYTES];
    const bool ok = mp_opt_parse(opt, opt->dfl, parsed);

    (void)ok;
    mp_assert(ok); /* the table itself is wrong */
    return strcmp(mp_opt_format(opt, field, value), mp_opt_format(opt, parsed, dfl)) == 0;
}

enum mp_status mp_environment_set_options(struct mp_environment *environment,
                                          const struct mp_opt_group *groups)
{
    enum mp_status status = MP_OK;

    for (const struct mp_opt_group *group = groups; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL && status == MP_OK; opt++) {
            const void *field = (const char *)group->config + opt->offset;
            char name[NAME_BYTES], value[MP_OPT_TEXT_BYTES];

            snprintf(name, sizeof(name), "%s%s", group->prefix, opt->name);
            if (!is_default(opt, field) || mp_environment_get(environment, name) != NULL)
                status = mp_environment_set(environment, name, mp_opt_format(opt, field, value));
        }
    }
    return status;
}
