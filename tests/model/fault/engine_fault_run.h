#ifndef MP_TEST_ENGINE_FAULT_RUN_H
#define MP_TEST_ENGINE_FAULT_RUN_H

#include <stdbool.h>

#include "vmm/base/status.h"
#include "vmm/io/file.h"

/*
 * A run of a small model, from opening its directory to the last token, with every call that can
 * fail made to fail once, always, and always but twice, at every place in the code that makes it.
 * After each failure: a status with a code and one line of text or the right output to the bit,
 * nothing left over, and the same run tried again gives the right output.
 *
 * With MP_FAULTS=one-way each call fails in one way only: for sanitizers, with which whole runs are
 * slow, beside a build in which each fails in every way.
 */
struct fault_run {
    const char *name, *model, *device;
    enum mp_io_mode io;
    bool uring;
    const char *profile;
    const char *draft_model; /* "": guesses are of the text; NULL: there are none */
};

/* Before the first run; runs are then in one way where it says so or the environment does. Returns
 * whether they are. */
bool fault_run_init(bool one_way);

/* Sweep all calls of such runs; sites that were failed are appended to `sites_path`, or NULL. */
void fault_run_sweep(const struct fault_run *run, const char *sites_path);

/* The latest error is that of `status`: a code, and one line of text. */
void fault_check_error(enum mp_status status);

#endif
