#ifndef MP_OPTIONS_ENVIRONMENT_H
#define MP_OPTIONS_ENVIRONMENT_H

#include <stddef.h>

#include "vmm/options/opt.h"

/*
 * The environment of a program that is about to be started: a copy of this process's, changed. The
 * process's own stays as it is.
 *
 * Thread safety: one thread per object; nothing else may change the process's environment while it
 * is copied.
 */
struct mp_environment {
    char **entries; /* "NAME=value", NULL at the end: for execve() */
    size_t count;
};

/* MP_ERR_NO_MEMORY leaves an empty one. */
enum mp_status mp_environment_copy(struct mp_environment *environment) MP_MUST_CHECK;

/* Accepts a zeroed one. */
void mp_environment_fini(struct mp_environment *environment);

/* NULL: not set. Valid until it is set again. */
const char *mp_environment_get(const struct mp_environment *environment, const char *name);

/* Replace or append. MP_ERR_NO_MEMORY changes nothing. */
enum mp_status mp_environment_set(struct mp_environment *environment, const char *name,
                                  const char *value) MP_MUST_CHECK;

/* Set the variable of every option whose value is not the default, and of those that are set
 * already. MP_ERR_NO_MEMORY may leave some unset. */
enum mp_status mp_environment_set_options(struct mp_environment *environment,
                                          const struct mp_opt_group *groups) MP_MUST_CHECK;

#endif
