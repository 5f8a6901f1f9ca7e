#ifndef MP_TEST_ENGINE_FAULT_PARTS_H
#define MP_TEST_ENGINE_FAULT_PARTS_H

#include "tests/model/fault/engine_fault_run.h"
#include "tests/support/fault/wrap.h"
#include "vmm/base/status.h"

/*
 * Sweeps over parts that a plain run does not reach: commands with all their files, the kinds of
 * tokenizers, every policy, and single calls. Each appends the sites that it failed to the file
 * `sites_path`. See tests/model/fault/engine_fault_test.c.
 */
void fault_sweep_commands(const char *sites_path);
void fault_sweep_calibration(const char *sites_path);
void fault_sweep_tokenizers(const char *sites_path);
void fault_sweep_policies(const char *sites_path);
void fault_sweep_single_calls(const char *sites_path);

/* Sweep `body` over all calls, and append the sites that were failed. */
void fault_sweep_part(const char *name, void (*body)(const struct fault_plan *plan, void *ctx),
                      void *ctx, const char *sites_path);

void fault_write_file(const char *path, const char *text);

#endif
