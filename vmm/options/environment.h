#ifndef MP_OPTIONS_ENVIRONMENT_H
#define MP_OPTIONS_ENVIRONMENT_H

#include <stddef.h>

#include "vmm/options/opt.h"

/*
 * The environment of a program to be started: a modified copy of this process's environment, which
 * does not change.
 *
 * Thread safety: one thread per object; nothing else may change the process's environment while it
 * is copied.
 */
struct mp_environment {
    char **entries; /* "NAME=value", NULL at the end: for execve() */
    size_t count;
};

/* On MP_ERR_NO_MEMORY the copy is empty. */
enum mp_status mp_environment_copy(struct mp_environment *environment) MP_MUST_CHECK;

/* Accepts a zeroed one. */
void mp_environment_fini(struct mp_environment *environment);

/* NULL: not set. Valid until it is set again. */
const char *mp_environment_get(const struct mp_environment *environment, const char *name);

/* Replace or append. MP_ERR_NO_MEMORY changes nothing. */
enum mp_status mp_environment_set(struct mp_environment *environment, const char *name,
                                  const char *value) MP_MUST_CHECK;

/* Set the variables of all options whose value is not the default or whose variable is already set.
 * On MP_ERR_NO_MEMORY some may be unset. */
enum mp_status mp_environment_set_options(struct mp_environment *environment,
                                          const struct mp_opt_group *groups) MP_MUST_CHECK;

#endif
