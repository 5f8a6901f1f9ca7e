#ifndef MP_FLAGS_H
#define MP_FLAGS_H

#include "engine/cli/args/args.h"

/*
 * The table of the commands' flags: name, kind, range, where the value is stored, and the sentence
 * that --help and docs/options.md show. Settings (vmm/options/opt.h) have tables of their own; each
 * is a flag of every command, except those of the preloaded library.
 *
 * A name has one meaning: all its rows have the same value and sentence, and differ only in
 * commands and range. replay and simulate take lists for some settings (`--evict A,B`); their rows
 * have the setting's name.
 */
#define MP_COMMAND_BIT(name) (1u << MP_COMMAND_##name)

/* INPUT and OUTPUT: texts that name a file. LIST: one that must not be given twice, as only the
 * last one would count. */
enum mp_flag_kind {
    MP_FLAG_TEXT,
    MP_FLAG_LIST,
    MP_FLAG_INPUT,
    MP_FLAG_OUTPUT,
    MP_FLAG_STOP,
    MP_FLAG_NUMBER,
    MP_FLAG_BYTES,
    MP_FLAG_REAL,
    MP_FLAG_SWITCH
};

struct mp_flag {
    const char *name;
    enum mp_flag_kind kind;
    size_t offset; /* in struct mp_args */
    uint64_t min, max;
    double real_max;
    unsigned commands; /* MP_COMMAND_BIT() of each */
    bool expert;       /* shown by --help-all only */
    const char *value, *help;
};

/* True if the settings of this table are flags of the command. Those of the preloaded library
 * belong only to the commands that pass them on or show them, that of plug-ins to none. */
bool mp_flag_is_of(enum mp_command command, const struct mp_opt_group *group);

extern const struct mp_flag mp_flags[];
extern const size_t mp_flag_count;

/* Find a command's flag by name (`bytes` long, without dashes), or NULL. An old name that is still
 * accepted finds the present flag. */
const struct mp_flag *mp_flag_find(enum mp_command command, const char *name, size_t bytes);

/* The present name of a renamed flag ("--gen": "--gen-tokens") or, with MP_COMMAND_COUNT, of a
 * renamed command ("moepager eval --perplexity"); NULL if `name` is no old name. */
const char *mp_flag_new_name(enum mp_command command, const char *name);

/* What other programs call our flags: "--temp" or "-n", with dashes, is --temperature or
 * --max-tokens, in commands that have it. */
struct mp_flag_alias {
    const char *name, *ours;
};

extern const struct mp_flag_alias mp_flag_aliases[];
extern const size_t mp_flag_alias_count;

/* True if what the alias stands for is a flag of the command, or one of `settings` (or NULL). */
bool mp_flag_alias_fits(const struct mp_flag_alias *alias, enum mp_command command,
                        const struct mp_settings *settings);

/* As part of a sentence: "run, bench"; "all" if every command has it. Returns `out`. */
const char *mp_flag_commands(const struct mp_flag *flag, char out[128]);

struct mp_command_info {
    const char *name, *summary;
    const char *settings; /* the most useful ones */
    const char *examples;
};

extern const struct mp_command_info mp_commands[MP_COMMAND_COUNT];

#endif
