/*
 * Parses a command line into flags and settings. The tables are in flags.c, help pages in help.c.
 */
#include "engine/cli/args/args.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/args/flags.h"
#include "engine/repack/repack.h"
#include "engine/session/session.h"
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
    case MP_FLAG_LIST:
        if (*(const char **)field != NULL)
            return bad_value(flag, value, "one list with commas: it is there twice");
        *(const char **)field = value;
        return MP_OK;
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
#define WORDS_MAX 3 /* more than any command takes */

/* Our name for a flag of another program, if the command has it; else NULL. '_' counts as '-'. */
static const char *find_alias(enum mp_command command, const char *name,
                              const struct mp_settings *settings)
{
    char dashed[FLAG_NAME_BYTES];

    snprintf(dashed, sizeof(dashed), "%s", name);
    for (char *at = dashed; *at != '\0'; at++)
        *at = *at == '_' ? '-' : *at;
    for (size_t i = 0; i < mp_flag_alias_count; i++) {
        if (strcmp(mp_flag_aliases[i].name, dashed) == 0 &&
            mp_flag_alias_fits(&mp_flag_aliases[i], command, settings))
            return mp_flag_aliases[i].ours;
    }
    return NULL;
}

/* Add a flag's name to the table that the nearest name is looked for in. */
static void add_name(char name[FLAG_NAME_BYTES], struct mp_opt *opt, const char *flag)
{
    snprintf(name, FLAG_NAME_BYTES, "%s", flag);
    for (char *at = name; *at != '\0'; at++)
        *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
    opt->name = name;
}

/* The flags and aliases of the command as options: the message finds the nearest name among all. */
static enum mp_status unknown_flag(enum mp_command command, const char *name,
                                   const struct mp_settings *settings)
{
    char names[FLAGS_MAX][FLAG_NAME_BYTES];
    struct mp_opt table[FLAGS_MAX + 1] = { 0 };
    struct mp_opt_group groups[GROUPS_MAX] = { { "MOEPAGER_", table, NULL, NULL } };
    const char *renamed = mp_flag_new_name(command, name);
    char quoted[MP_QUOTE_BYTES];
    size_t count = 0;

    if (renamed != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_OPTION", "option '%s' is now '%s'",
                       mp_quote(quoted, name, strlen(name)), renamed);
    for (size_t i = 0; i < mp_flag_count && count < FLAGS_MAX; i++) {
        if (!(mp_flags[i].commands & 1u << command))
            continue;
        add_name(names[count], &table[count], mp_flags[i].name);
        count++;
    }
    for (size_t i = 0; i < mp_flag_alias_count && count < FLAGS_MAX; i++) {
        const char *alias = mp_flag_aliases[i].name;

        if (strncmp(alias, "--", 2) != 0 || find_alias(command, alias, settings) == NULL)
            continue;
        add_name(names[count], &table[count], alias + 2);
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

/* An argument in two: "--max-tokens", under our name, and what is behind '=', or NULL. */
struct word {
    char name[128];
    const char *value;
};

static struct word split_word(enum mp_command command, const char *arg,
                              const struct mp_settings *settings)
{
    const char *equals = strchr(arg, '=');
    struct word word = { .value = equals != NULL ? equals + 1 : NULL };
    const char *ours;

    snprintf(word.name, sizeof(word.name), "%.*s",
             (int)(equals != NULL ? equals - arg : (long)strlen(arg)), arg);
    ours = find_alias(command, word.name, settings);
    if (ours != NULL)
        snprintf(word.name, sizeof(word.name), "--%s", ours);
    return word;
}

static enum mp_status parse_setting(enum mp_command command, const struct word *word, int argc,
                                    char **argv, int *i, struct mp_settings *settings)
{
    const char *name = word->name;
    char quoted[MP_QUOTE_BYTES];
    const struct mp_opt_group *group = NULL;
    const struct mp_opt *opt;
    const char *value;
    uint64_t ignored;

    opt = mp_opt_find(settings->groups, name, &group);
    if (opt == NULL || !mp_flag_is_of(command, group))
        return unknown_flag(command, name, settings);
    if (word->value != NULL)
        return mp_opt_set(settings->groups, name, word->value);
    if (opt->kind == MP_OPT_BOOL && !(*i + 1 < argc && mp_opt_parse(opt, argv[*i + 1], &ignored)))
        return mp_opt_set(settings->groups, name, NULL);
    value = take_value(argc, argv, i);
    if (value == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "'%s' needs a value",
                       mp_quote(quoted, name, strlen(name)));
    return mp_opt_set(settings->groups, name, value);
}

static enum mp_status no_flag(enum mp_command command, const char *arg)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                   "'%s' is not a flag; flags begin with -- (see moepager %s --help)",
                   mp_quote(quoted, arg, strlen(arg)), mp_commands[command].name);
}

static enum mp_status parse_flag(enum mp_command command, int argc, char **argv, int *i,
                                 struct mp_args *args, struct mp_settings *settings)
{
    const char *arg = strcmp(argv[*i], "-h") == 0 ? "--help" : argv[*i];
    const struct word word = split_word(command, arg, settings);
    const struct mp_flag *flag;
    const char *value = word.value;

    if (strncmp(word.name, "--", 2) != 0)
        return no_flag(command, arg);
    flag = mp_flag_find(command, word.name + 2, strlen(word.name + 2));
    if (flag == NULL)
        return parse_setting(command, &word, argc, argv, i, settings);
    if (flag->kind == MP_FLAG_SWITCH && value != NULL)
        return bad_value(flag, value, "no value");
    if (value == NULL)
        value = flag->kind == MP_FLAG_SWITCH ? "" : take_value(argc, argv, i);
    if (value == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--%s needs a value: %s", flag->name, flag->help);
    return set_flag(flag, value, args);
}

/* Arguments that are no flags: replay's trace; else the model, and then the prompt, where flags
 * have not given them. */
static enum mp_status place_words(enum mp_command command, const char *const *words, size_t count,
                                  struct mp_args *args)
{
    const bool replay = command == MP_COMMAND_REPLAY;
    const bool model = mp_flag_find(command, "model", 5) != NULL;
    const bool prompt = mp_flag_find(command, "prompt", 6) != NULL;

    for (size_t i = 0; i < count; i++) {
        if (replay && args->replayed == NULL)
            args->replayed = words[i];
        else if (model && args->model == NULL)
            args->model = words[i];
        else if (prompt && args->prompt == NULL)
            args->prompt = words[i];
        else
            return no_flag(command, words[i]);
    }
    return MP_OK;
}

enum mp_status mp_args_parse(enum mp_command command, int argc, char **argv, struct mp_args *args,
                             struct mp_settings *settings)
{
    const char *words[WORDS_MAX];
    size_t word_count = 0;
    enum mp_status status = MP_OK;

    *args = (struct mp_args){
        .max_tokens = command == MP_COMMAND_SERVE || command == MP_COMMAND_CHAT ? 1u << 24 : 256,
        .port = 8080,
        .queue = 64,
        .chunk_tokens = 64,
        .prefix_memory = MP_KEPT_AUTO,
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

        if ((command == MP_COMMAND_PRELOAD || command == MP_COMMAND_PLOT) &&
            (ends || argv[i][0] != '-')) {
            args->program = argv[i + ends] != NULL ? &argv[i + ends] : NULL;
            break;
        }
        if (argv[i][0] == '-')
            status = parse_flag(command, argc, argv, &i, args, settings);
        else if (word_count < WORDS_MAX)
            words[word_count++] = argv[i];
        else
            status = no_flag(command, argv[i]);
    }
    return status == MP_OK ? place_words(command, words, word_count, args) : status;
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
