/*
 * Help pages and the tables of docs/options.md: the tables of flags.c and of the settings in words.
 */
#include "engine/cli/args/args.h"
#include "engine/cli/args/flags.h"

#include <string.h>

#include "vmm/base/version.h"

#define LEFT_COLUMNS 24

void mp_args_print_usage(FILE *out)
{
    fprintf(out,
            "moepager %s: runs Mixture-of-Experts models whose experts do not fit into memory\n\n"
            "usage: moepager COMMAND [--flag value]...\n\n",
            mp_version);
    for (unsigned i = 0; i < MP_COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n", mp_commands[i].name, mp_commands[i].summary);
    fprintf(out,
            "\nmoepager help COMMAND shows the main flags and examples, --help-all every flag and "
            "setting.\n"
            "exit codes: 0 ok, 2 usage, 3 bad model, 4 out of memory, 5 device lost, 6 input or "
            "output, 70 a bug, 130 interrupted\n");
}

/* Rows of one name show the same: only the first is shown. */
static bool is_first(const struct mp_flag *flag, unsigned commands)
{
    for (const struct mp_flag *other = mp_flags; other < flag; other++) {
        if (other->commands & commands && strcmp(other->name, flag->name) == 0)
            return false;
    }
    return (flag->commands & commands) != 0;
}

static void print_flag(const struct mp_flag *flag, FILE *out)
{
    char left[64];

    snprintf(left, sizeof(left), "--%s %s", flag->name, flag->value != NULL ? flag->value : "");
    fprintf(out, "  %-*s%s\n", LEFT_COLUMNS, left, flag->help);
}

struct shown {
    enum mp_command command;
    const struct mp_opt_group *groups;
};

/* A list that takes the place of a setting, or a setting of other commands. */
static bool is_hidden(const void *ctx, const char *name)
{
    const struct shown *shown = ctx;
    const struct mp_opt_group *group = NULL;

    return mp_flag_find(shown->command, name, strlen(name)) != NULL ||
           (mp_opt_find(shown->groups, name, &group) != NULL &&
            !mp_flag_is_of(shown->command, group));
}

/* The arguments that are no flags. */
static const char *words_of(enum mp_command command)
{
    if (command == MP_COMMAND_REPLAY)
        return " TRACE";
    if (mp_flag_find(command, "prompt", 6) != NULL)
        return " [MODEL] [PROMPT]";
    return mp_flag_find(command, "model", 5) != NULL ? " [MODEL]" : "";
}

/* What other programs call the flags of the command, and with `settings` the settings. */
static void print_aliases(enum mp_command command, const struct mp_settings *settings, FILE *out)
{
    size_t column = 0, shown = 0;

    for (size_t i = 0; i < mp_flag_alias_count; i++) {
        if (!mp_flag_alias_fits(&mp_flag_aliases[i], command, settings))
            continue;
        if (column > 40)
            column = 0;
        if (shown++ == 0)
            fputs("\nalso understood", out);
        fputs(column > 0 ? ", " : "\n    ", out);
        column +=
            (size_t)fprintf(out, "%s for --%s", mp_flag_aliases[i].name, mp_flag_aliases[i].ours);
    }
    if (shown > 0)
        fputc('\n', out);
}

void mp_args_print_help(enum mp_command command, const struct mp_settings *settings, bool all,
                        FILE *out)
{
    const struct mp_command_info *info = &mp_commands[command];
    const struct shown shown = { command, settings->groups };

    fprintf(out, "moepager %s: %s\n\nusage: moepager %s%s [--flag value]...%s\n\n", info->name,
            info->summary, info->name, words_of(command),
            command == MP_COMMAND_PRELOAD ? " -- COMMAND [ARGUMENT]..."
            : command == MP_COMMAND_PLOT  ? " KIND [FILE]... [--out OUT] [--title TEXT]"
                                          : "");
    for (size_t i = 0; i < mp_flag_count; i++) {
        if (is_first(&mp_flags[i], 1u << command) && (all || !mp_flags[i].expert))
            print_flag(&mp_flags[i], out);
    }
    if (all) {
        fputs("\nsettings, each also a variable of the environment: --evict is MOEPAGER_EVICT\n\n",
              out);
        mp_opt_print_flags(settings->groups, is_hidden, &shown, out);
    } else if (info->settings[0] != '\0') {
        fprintf(out, "\nsettings, among others\n  %s\n", info->settings);
    }
    print_aliases(command, all || info->settings[0] != '\0' ? settings : NULL, out);
    fprintf(out, "\nexamples\n%s", info->examples);
}

void mp_args_print_options(const struct mp_settings *settings, FILE *out)
{
    fputs(
        "## Settings\n\n"
        "A setting is a variable of the environment and a flag of every command; what begins with "
        "`Preloaded` is a flag\nof `preload` only, which hands all settings on. A flag goes "
        "before the variable, and that before the default. A variable with a bad value ends the "
        "program with exit code 2, as a flag does; in a\nprocess that uses `libmoepager.so` it "
        "is reported by one warning and its default is used. An unknown\n`MOEPAGER_` variable is "
        "reported with the nearest known name, and ends the program too with\n"
        "`MOEPAGER_STRICT=1`. Switches are given as `--deterministic` or `--uring=off`. "
        "`moepager env` shows the values\nin force, as lines that a shell can read.\n\n",
        out);
    mp_opt_print_markdown(settings->groups, out);
    fputs("\n## Flags of commands\n\n"
          "`replay` and `simulate` take lists of the settings `--profile`, `--evict` and "
          "`--budget` where this table says so. An argument that is no flag is the model, a second "
          "one the prompt,\nwhere a command has these and no flag gives them. Also understood: ",
          out);
    for (size_t i = 0; i < mp_flag_alias_count; i++)
        fprintf(out, "%s`%s` for `--%s`", i > 0 ? ", " : "", mp_flag_aliases[i].name,
                mp_flag_aliases[i].ours);
    fputs(".\n\n"
          "| Flag | Commands | Meaning |\n|---|---|---|\n",
          out);
    for (size_t i = 0; i < mp_flag_count; i++) {
        const struct mp_flag *flag = &mp_flags[i];
        char commands[128];

        if (is_first(flag, ~0u))
            fprintf(out, "| `--%s%s%s` | %s | %s |\n", flag->name, flag->value != NULL ? " " : "",
                    flag->value != NULL ? flag->value : "", mp_flag_commands(flag, commands),
                    flag->help);
    }
}
