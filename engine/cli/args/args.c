/*
 * Parses a command line into flags and settings. The tables are in flags.c, help pages in help.c.
 */
#include "engine/cli/args/args.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/args/flags.h"
#include "engine/repack/repack.h"
#include "engine/text/tokenizer.h"
#include "vmm/base/error.h"

enum mp_command mp_command_find(const char *name)
{
    for (unsigned i = 0; i < MP_COMMAND_COUNT; i++) {
        if (!strcmp(mp_commands[i].name, name))
            return (enum mp_command)i;
    }
    return MP_COMMAND_COUNT;
}

static enum mp_status bad_value(const struct mp_flag *flag, const char *value, const char *need)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--%s: got '%s', need %s", flag->name,
                   mp_quote(quoted, value, strlen(value)), need);
}

/* Numbers of flags obey the same parser as settings. */
static enum mp_status set_number(const struct mp_flag *flag, const char *value, void *field)
{
    const struct mp_opt opt = {
        .name = flag->name,
        .kind = flag->kind == MP_FLAG_REAL    ? MP_OPT_F64
                : flag->kind == MP_FLAG_BYTES ? MP_OPT_BYTES
                                              : MP_OPT_U64,
        .min = flag->min,
        .max = flag->max,
        .f64_max = flag->real_max,
    };
    char need[MP_OPT_TEXT_BYTES];

    return mp_opt_parse(&opt, value, field) ? MP_OK
                                            : bad_value(flag, value, mp_opt_describe(&opt, need));
}

static enum mp_status set_flag(const struct mp_flag *flag, const char *value, struct mp_args *args)
{
    void *field = (char *)args + flag->offset;
    char quoted[MP_QUOTE_BYTES];

    switch (flag->kind) {
    case MP_FLAG_SWITCH: *(uint64_t *)field = 1; return MP_OK;
    case MP_FLAG_TEXT:
    case MP_FLAG_INPUT:
    case MP_FLAG_OUTPUT: *(const char **)field = value; return MP_OK;
    case MP_FLAG_STOP:
        if (args->stop_count == MP_STOPS_MAX)
            return bad_value(flag, value, "at most 16 stop texts");
        if (*value == '\0')
            return mp_fail(MP_ERR_CONFIG, "E_STOP_EMPTY", "--stop: a stop text is empty");
        if (!mp_is_utf8(value, strlen(value)))
            return mp_fail(MP_ERR_CONFIG, "E_STOP_UTF8",
                           "--stop: '%s' is not UTF-8, so no text can have it",
                           mp_quote(quoted, value, strlen(value)));
        args->stops[args->stop_count++] = value;
        return MP_OK;
    case MP_FLAG_NUMBER:
    case MP_FLAG_BYTES:
    case MP_FLAG_REAL: return set_number(flag, value, field);
    }
    return MP_OK;
}

/* The next argument, whatever it begins with; NULL if there is none. */
static const char *take_value(int argc, char **argv, int *i)
{
    if (*i + 1 >= argc)
        return NULL;
    return argv[++*i];
}

#define GROUPS_MAX 128
#define FLAGS_MAX 128
#define FLAG_NAME_BYTES 32

/* What other programs call a flag of ours, with their dashes. */
static const struct {
    const char *theirs, *ours;
} other_names[] = {
    { "--temp", "temperature" },
    { "--n-predict", "max-tokens" },
    { "-n", "max-tokens" },
    { "--max-new-tokens", "max-tokens" },
    { "-p", "prompt" },
    { "-f", "prompt-file" },
    { "--file", "prompt-file" },
    { "-m", "model" },
    { "-c", "ctx" },
    { "--ctx-size", "ctx" },
    { "-t", "threads" },
    { "-s", "seed" },
    { "--system-prompt", "system" },
};

/* Our name for a flag of another program, if the command has it; else NULL. '_' counts as '-'. */
static const char *find_other_name(enum mp_command command, const char *name,
                                   const struct mp_settings *settings)
{
    char dashed[FLAG_NAME_BYTES];

    snprintf(dashed, sizeof(dashed), "%s", name);
    for (char *at = dashed; *at != '\0'; at++)
        *at = *at == '_' ? '-' : *at;
    for (size_t i = 0; i < MP_ARRAY_LEN(other_names); i++) {
        const char *ours = other_names[i].ours;

        if (strcmp(other_names[i].theirs, dashed) == 0 &&
            (mp_flag_find(command, ours, strlen(ours)) != NULL ||
             mp_opt_find(settings->groups, ours, NULL) != NULL))
            return ours;
    }
    return NULL;
}

/* The flags of the command as options, so that the message finds the nearest name among both. */
static enum mp_status unknown_flag(enum mp_command command, const char *name,
                                   const struct mp_settings *settings)
{
    char names[FLAGS_MAX][FLAG_NAME_BYTES];
    struct mp_opt table[FLAGS_MAX + 1] = { 0 };
    struct mp_opt_group groups[GROUPS_MAX] = { { "MOEPAGER_", table, NULL, NULL } };
    const char *ours = find_other_name(command, name, settings);
    const char *renamed = mp_flag_new_name(command, name);
    char quoted[MP_QUOTE_BYTES];
    size_t count = 0;

    if (renamed != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_OPTION", "option '%s' is now '%s'",
                       mp_quote(quoted, name, strlen(name)), renamed);
    if (ours != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_OPTION", "unknown option '%s'; did you mean '--%s'?",
                       mp_quote(quoted, name, strlen(name)), ours);
    for (size_t i = 0; i < mp_flag_count && count < FLAGS_MAX; i++) {
        if (!(mp_flags[i].commands & 1u << command))
            continue;
        snprintf(names[count], FLAG_NAME_BYTES, "%s", mp_flags[i].name);
        for (char *at = names[count]; *at != '\0'; at++)
            *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
        table[count].name = names[count];
        count++;
    }
    count = 1;
    for (const struct mp_opt_group *group = settings->groups;
         group->prefix != NULL && count + 1 < GROUPS_MAX; group++) {
        if (mp_flag_is_of(command, group))
            groups[count++] = *group;
    }
    return mp_opt_unknown(groups, name);
}

static enum mp_status parse_setting(enum mp_command command, const char *arg, int argc, char **argv,
                                    int *i, struct mp_settings *settings)
{
    const char *equals = strchr(arg, '=');
    char name[128], quoted[MP_QUOTE_BYTES];
    const struct mp_opt_group *group = NULL;
    const struct mp_opt *opt;
    const char *value;
    uint64_t ignored;

    snprintf(name, sizeof(name), "%.*s", (int)(equals != NULL ? equals - arg : (long)strlen(arg)),
             arg);
    opt = mp_opt_find(settings->groups, name, &group);
    if (opt == NULL || !mp_flag_is_of(command, group))
        return unknown_flag(command, name, settings);
    if (equals != NULL)
        return mp_opt_set(settings->groups, name, equals + 1);
    if (opt->kind == MP_OPT_BOOL && !(*i + 1 < argc && mp_opt_parse(opt, argv[*i + 1], &ignored)))
        return mp_opt_set(settings->groups, name, NULL);
    value = take_value(argc, argv, i);
    if (value == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "'%s' needs a value",
                       mp_quote(quoted, name, strlen(name)));
    return mp_opt_set(settings->groups, name, value);
}

static enum mp_status parse_one(enum mp_command command, int argc, char **argv, int *i,
                                struct mp_args *args, struct mp_settings *settings)
{
    const char *arg = argv[*i];
    const char *equals = strchr(arg, '=');
    char quoted[MP_QUOTE_BYTES];
    const struct mp_flag *flag;
    const char *value;

    if (command == MP_COMMAND_REPLAY && arg[0] != '-' && args->replayed == NULL) {
        args->replayed = arg;
        return MP_OK;
    }
    if (strcmp(arg, "-h") == 0)
        arg = "--help";
    if (find_other_name(command, arg, settings) != NULL)
        return unknown_flag(command, arg, settings);
    if (strncmp(arg, "--", 2) != 0)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "'%s' is not a flag; flags begin with -- (see moepager %s --help)",
                       mp_quote(quoted, arg, strlen(arg)), mp_commands[command].name);
    flag = mp_flag_find(command, arg + 2,
                        equals != NULL ? (size_t)(equals - arg - 2) : strlen(arg + 2));
    if (flag == NULL)
        return parse_setting(command, arg, argc, argv, i, settings);
    if (flag->kind == MP_FLAG_SWITCH && equals != NULL)
        return bad_value(flag, equals + 1, "no value");
    if (equals != NULL)
        value = equals + 1;
    else
        value = flag->kind == MP_FLAG_SWITCH ? "" : take_value(argc, argv, i);
    if (value == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--%s needs a value: %s", flag->name, flag->help);
    return set_flag(flag, value, args);
}

enum mp_status mp_args_parse(enum mp_command command, int argc, char **argv, struct mp_args *args,
                             struct mp_settings *settings)
{
    enum mp_status status = MP_OK;

    *args = (struct mp_args){
        .max_tokens = command == MP_COMMAND_SERVE || command == MP_COMMAND_CHAT ? 1u << 24 : 256,
        .port = 8080,
        .queue = 64,
        .chunk_tokens = 64,
        .request_bytes = 4u << 20,
        .connections = 256,
        .idle_s = 30,
        .answer_s = 3600,
        .grace_s = 30,
        .prompt_tokens = 64,
        .gen_tokens = 64,
        .repeat = 3,
        .window = 256,
        .tokens = UINT64_MAX,
        .shard_bytes = MP_REPACK_SHARD_BYTES_DEFAULT,
        .temperature = -1,
        .top_p = -1,
        .top_k = UINT64_MAX,
    };
    for (int i = 2; i < argc && status == MP_OK; i++) {
        const bool ends = strcmp(argv[i], "--") == 0;

        if (command == MP_COMMAND_PRELOAD && (ends || argv[i][0] != '-')) {
            args->program = argv[i + ends] != NULL ? &argv[i + ends] : NULL;
            break;
        }
        status = parse_one(command, argc, argv, &i, args, settings);
    }
    return status;
}

size_t mp_args_files(enum mp_command command, struct mp_args *args,
                     struct mp_args_file files[MP_ARGS_FILES_MAX])
{
    size_t count = 0;

    if (args->replayed != NULL)
        files[count++] = (struct mp_args_file){ "the replayed file", &args->replayed, false };
    for (size_t i = 0; i < mp_flag_count && count < MP_ARGS_FILES_MAX; i++) {
        const char **path = (const char **)((char *)args + mp_flags[i].offset);

        if ((mp_flags[i].kind != MP_FLAG_INPUT && mp_flags[i].kind != MP_FLAG_OUTPUT) ||
            !(mp_flags[i].commands & 1u << command) || *path == NULL)
            continue;
        files[count] = (struct mp_args_file){ "", path, mp_flags[i].kind == MP_FLAG_OUTPUT };
        snprintf(files[count].name, sizeof(files[count].name), "--%s", mp_flags[i].name);
        count++;
    }
    return count;
}
