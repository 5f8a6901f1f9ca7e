#ifndef MP_TEST_ENGINE_FAULT_PARTS_H
#define MP_TEST_ENGINE_FAULT_PARTS_H

#include "vmm/base/status.h"

/*
 * Sweeps over parts that a plain run does not reach: commands with all their files, the kinds of
 * tokenizers, every policy, and single calls. Each appends the sites that it failed to the file
 * `sites_path`. See tests/engine/engine_fault_test.c.
 */
void fault_sweep_commands(const char *sites_path);
void fault_sweep_calibration(const char *sites_path);
void fault_sweep_tokenizers(const char *sites_path);
void fault_sweep_policies(const char *sites_path);
void fault_sweep_single_calls(const char *sites_path);

/* The latest error is that of `status`: a code, and one line of text. */
void fault_check_error(enum mp_status status);

#endif
