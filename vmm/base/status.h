#ifndef MP_BASE_STATUS_H
#define MP_BASE_STATUS_H

#include "vmm/base/compiler.h"

/*
 * Every function that can fail returns one of these. Add at the end only: the values are part of
 * the ABI. The third column is the exit code of the command line when the status ends a program:
 * 0 ok, 2 usage or configuration, 3 bad model, 4 out of memory, 5 device lost, 6 input or output,
 * 7 cluster, 70 our own bug, 130 interrupted.
 */
#define MP_STATUS_MAP(X)                                \
    X(OK, 0, 0, "success")                              \
    X(ERR_INVALID, -1, 70, "invalid argument")          \
    X(ERR_NO_SPACE, -2, 4, "tier is full")              \
    X(ERR_NO_MEMORY, -3, 4, "out of host memory")       \
    X(ERR_DEVICE, -4, 5, "device call failed")          \
    X(ERR_UNSUPPORTED, -5, 2, "not supported here")     \
    X(ERR_BUSY, -6, 70, "in use by pending work")       \
    X(ERR_IO, -7, 6, "input or output failed")          \
    X(ERR_MODEL, -8, 3, "bad model")                    \
    X(ERR_CONFIG, -9, 2, "bad option or configuration") \
    X(ERR_CANCELED, -10, 130, "canceled")               \
    X(ERR_OVERFLOW, -11, 3, "size does not fit")        \
    X(ERR_CLUSTER, -12, 7, "another machine failed")

enum mp_status {
#define X(name, value, exit_code, text) MP_##name = value,
    MP_STATUS_MAP(X)
#undef X
};

/* Returns a static string; never NULL, also for values not listed above. */
const char *mp_status_str(enum mp_status status);

/* The exit code of the table; 70 for values not listed above. */
int mp_status_exit_code(enum mp_status status);

#endif
