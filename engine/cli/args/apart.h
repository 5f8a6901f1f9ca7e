#ifndef MP_APART_H
#define MP_APART_H

#include "engine/cli/args/args.h"

/*
 * Keeps the files of a command line apart, before any of them is opened: an output is never a file
 * that is read (the model's, a prompt, a trace, what was learned of the model) and never another
 * output. Files are distinguished by device and inode, those that do not exist yet by their
 * directory and name, so links and other spellings do not matter. Devices may be named often.
 *
 * An output that is "-" or another name of standard output takes it: the path becomes /dev/fd/N,
 * and what the command says otherwise goes to standard error.
 *
 * MP_ERR_CONFIG E_SAME_FILE: two are the same. MP_ERR_IO E_OUTPUT: standard output is closed.
 */
enum mp_status mp_files_apart(enum mp_command command, struct mp_args *args,
                              const struct mp_settings *settings) MP_MUST_CHECK;

#endif
