#ifndef MP_APART_H
#define MP_APART_H

#include "engine/cli/args/args.h"

/*
 * Checks, before any file of a command line is opened, that no output is also an input (of the
 * model, a prompt, a trace, a calibration) or another output. Files are compared by device and
 * inode, those that do not exist yet by directory and name, so links and different spellings are
 * detected. Devices may be named repeatedly.
 *
 * An output named "-", or another name of standard output, replaces it: the path becomes /dev/fd/N,
 * and the command's other text goes to standard error.
 *
 * MP_ERR_CONFIG E_SAME_FILE: two are the same. MP_ERR_IO E_OUTPUT: standard output is closed.
 */
enum mp_status mp_files_apart(enum mp_command command, struct mp_args *args,
                              const struct mp_settings *settings) MP_MUST_CHECK;

#endif
