/*
 * A man page and completions for shells, from the tables of commands, flags and settings. Help
 * pages are in help.c.
 */
#include "engine/cli/args/args.h"

#include <ctype.h>
#include <string.h>

#include "engine/cli/args/flags.h"
#include "vmm/base/error.h"
#include "vmm/base/version.h"

/* As roff reads it: no line begins with a control character, and dashes can be copied. */
static void put_roff(const char *text, FILE *out)
{
    for (const char *at = text; *at != '\0'; at++) {
        if ((*at == '.' || *at == '\'') && (at == text || at[-1] == '\n'))
            fputs("\\&", out);
        if (*at == '\\')
            fputs("\\e", out);
        else if (*at == '-')
            fputs("\\-", out);
        else
            fputc(*at, out);
    }
}

static bool is_first_of(const struct mp_flag *flag, unsigned commands)
{
    for (const struct mp_flag *other = mp_flags; other < flag; other++) {
        if (other->commands & commands && strcmp(other->name, flag->name) == 0)
            return false;
    }
    return (flag->commands & commands) != 0;
}

/* "evict" of MOEPAGER_EVICT. */
static const char *flag_of(const struct mp_opt_group *group, const struct mp_opt *opt,
                           char name[128])
{
    size_t used;

    snprintf(name, 128, "%s%s", group->prefix + strlen("MOEPAGER_"), opt->name);
    for (used = 0; name[used] != '\0'; used++)
        name[used] = name[used] == '_' ? '-' : (char)tolower((unsigned char)name[used]);
    return name;
}

static void print_man_command(enum mp_command command, FILE *out)
{
    fputs(".SS ", out);
    put_roff(mp_commands[command].name, out);
    fputs("\n", out);
    put_roff(mp_commands[command].summary, out);
    fputs("\n.nf\n", out);
    put_roff(mp_commands[command].examples, out);
    fputs(".fi\n", out);
}

static void print_man(const struct mp_settings *settings, FILE *out)
{
    char name[128], text[MP_OPT_TEXT_BYTES];

    fprintf(out,
            ".TH MOEPAGER 1 \"\" \"moepager %s\" \"User Commands\"\n.SH NAME\nmoepager \\- runs "
            "Mixture\\-of\\-Experts models whose experts do not fit into memory\n.SH SYNOPSIS\n"
            ".B moepager\n.I COMMAND\n[\\-\\-flag value]...\n.SH COMMANDS\n",
            mp_version);
    for (unsigned c = 0; c < MP_COMMAND_COUNT; c++)
        print_man_command((enum mp_command)c, out);
    fputs(".SH FLAGS\n", out);
    for (size_t i = 0; i < mp_flag_count; i++) {
        if (!is_first_of(&mp_flags[i], ~0u))
            continue;
        fputs(".TP\n.B \\-\\-", out);
        put_roff(mp_flags[i].name, out);
        fprintf(out, " %s\n", mp_flags[i].value != NULL ? mp_flags[i].value : "");
        put_roff(mp_flags[i].help, out);
        fprintf(out, " (%s)\n", mp_flag_commands(&mp_flags[i], text));
    }
    fputs(".SH SETTINGS\nFlags of every command, and variables of the environment.\n", out);
    for (const struct mp_opt_group *group = settings->groups; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            fputs(".TP\n.B \\-\\-", out);
            put_roff(flag_of(group, opt, name), out);
            fprintf(out, ", %s%s\n", group->prefix, opt->name);
            put_roff(opt->help, out);
            fputs("\n", out);
        }
    }
    fputs(".SH EXIT STATUS\n0 success, 2 usage, 3 bad model, 4 out of memory, 5 device lost, 6 "
          "input or output, 70 a bug, 130 interrupted\n",
          out);
}

/* Call for each flag and setting of a command; `file`: its value is a path. */
typedef void each_fn(const char *name, const char *help, bool file, FILE *out);

static void for_each(enum mp_command command, const struct mp_settings *settings, each_fn *each,
                     FILE *out)
{
    char name[128];

    for (size_t i = 0; i < mp_flag_count; i++) {
        const struct mp_flag *flag = &mp_flags[i];

        if (is_first_of(flag, 1u << command))
            each(flag->name, flag->help,
                 flag->kind == MP_FLAG_INPUT || flag->kind == MP_FLAG_OUTPUT ||
                     strcmp(flag->name, "model") == 0,
                 out);
    }
    for (const struct mp_opt_group *group = settings->groups; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            flag_of(group, opt, name);
            if (mp_flag_is_of(command, group) && mp_flag_find(command, name, strlen(name)) == NULL)
                each(name, opt->help, false, out);
        }
    }
}

static void each_bash(const char *name, const char *help, bool file, FILE *out)
{
    (void)help;
    (void)file;
    fprintf(out, " --%s", name);
}

static void print_bash(const struct mp_settings *settings, FILE *out)
{
    fputs("_moepager()\n{\n    local word=${COMP_WORDS[COMP_CWORD]} flags=\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W 'help",
          out);
    for (unsigned c = 0; c < MP_COMMAND_COUNT; c++)
        fprintf(out, " %s", mp_commands[c].name);
    fputs("' -- \"$word\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n", out);
    for (unsigned c = 0; c < MP_COMMAND_COUNT; c++) {
        fprintf(out, "    %s) flags='", mp_commands[c].name);
        for_each((enum mp_command)c, settings, each_bash, out);
        fputs("' ;;\n", out);
    }
    fputs("    esac\n    case $word in\n    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$word\")) "
          ";;\n    *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n    esac\n}\n"
          "complete -o filenames -F _moepager moepager\n",
          out);
}

/* A sentence for a shell: in single quotes, without its brackets and colons. */
static void put_shell(const char *text, FILE *out)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fputc(strchr("[]:\\", *text) != NULL ? ' ' : *text, out);
    }
}

static void each_zsh(const char *name, const char *help, bool file, FILE *out)
{
    fprintf(out, "        '--%s[", name);
    put_shell(help, out);
    fputs(file ? "]:file:_files'\n" : "]'\n", out);
}

static void print_zsh(const struct mp_settings *settings, FILE *out)
{
    fputs("#compdef moepager\nlocal -a flags\nif (( CURRENT == 2 )); then\n    local -a commands\n"
          "    commands=(\n",
          out);
    for (unsigned c = 0; c < MP_COMMAND_COUNT; c++) {
        fprintf(out, "        '%s:", mp_commands[c].name);
        put_shell(mp_commands[c].summary, out);
        fputs("'\n", out);
    }
    fputs("    )\n    _describe command commands\n    return\nfi\ncase $words[2] in\n", out);
    for (unsigned c = 0; c < MP_COMMAND_COUNT; c++) {
        fprintf(out, "%s)\n    flags=(\n", mp_commands[c].name);
        for_each((enum mp_command)c, settings, each_zsh, out);
        fputs("    ) ;;\n", out);
    }
    fputs("esac\n_arguments $flags '*:file:_files'\n", out);
}

static const char *fish_command;

static void each_fish(const char *name, const char *help, bool file, FILE *out)
{
    fprintf(out, "complete -c moepager -n '__fish_seen_subcommand_from %s' -l %s %s-d '",
            fish_command, name, file ? "-r -F " : "");
    put_shell(help, out);
    fputs("'\n", out);
}

static void print_fish(const struct mp_settings *settings, FILE *out)
{
    for (unsigned c = 0; c < MP_COMMAND_COUNT; c++) {
        fprintf(out, "complete -c moepager -n __fish_use_subcommand -a %s -d '",
                mp_commands[c].name);
        put_shell(mp_commands[c].summary, out);
        fputs("'\n", out);
        fish_command = mp_commands[c].name;
        for_each((enum mp_command)c, settings, each_fish, out);
    }
}

enum mp_status mp_args_print_page(const char *kind, const struct mp_settings *settings, FILE *out)
{
    char quoted[MP_QUOTE_BYTES];

    if (strcmp(kind, "man") == 0)
        print_man(settings, out);
    else if (strcmp(kind, "bash") == 0)
        print_bash(settings, out);
    else if (strcmp(kind, "zsh") == 0)
        print_zsh(settings, out);
    else if (strcmp(kind, "fish") == 0)
        print_fish(settings, out);
    else
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--page: got '%s', need man, bash, zsh or fish",
                       mp_quote(quoted, kind, strlen(kind)));
    return MP_OK;
}
