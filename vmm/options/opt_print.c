/* Prints option tables as shell lines, as Markdown, as flags of a help page, and as JSON. */
#include "vmm/options/opt.h"

#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/output/json_out.h"

#define NAME_BYTES 96

/* MOEPAGER_LRU_PROTECT is --lru-protect. */
static void flag_name(const struct mp_opt_group *group, const struct mp_opt *opt,
                      char out[NAME_BYTES])
{
    char name[NAME_BYTES];
    const char *from = name;
    char *to = out;

    snprintf(name, sizeof(name), "%s%s", group->prefix, opt->name);
    if (strncmp(name, "MOEPAGER_", strlen("MOEPAGER_")) == 0)
        from += strlen("MOEPAGER_");
    for (; *from != '\0'; from++)
        *to++ = *from == '_'                   ? '-'
                : *from >= 'A' && *from <= 'Z' ? (char)(*from - 'A' + 'a')
                                               : *from;
    mp_assert((size_t)(to - out) < NAME_BYTES);
    *to = '\0';
}

/* In single quotes unless every character is harmless to a shell. */
static void print_quoted(const char *s, FILE *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./:,+-%@";

    mp_assert(s != NULL);
    if (s[strspn(s, plain)] == '\0') {
        fputs(s, out);
        return;
    }
    putc('\'', out);
    for (; *s != '\0'; s++) {
        if (*s == '\'')
            fputs("'\\''", out);
        else
            putc(*s, out);
    }
    putc('\'', out);
}

static const char *effect_of(const struct mp_opt_group *group, const struct mp_opt *opt)
{
    return group->effect != NULL ? group->effect(group->config, opt) : NULL;
}

void mp_opt_print(const struct mp_opt_group *groups, FILE *out)
{
    char text[MP_OPT_TEXT_BYTES];

    for (const struct mp_opt_group *group = groups; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            const char *effect = effect_of(group, opt);

            fprintf(out, "# %s\n# %s\n", opt->help, mp_opt_describe(opt, text));
            if (effect != NULL)
                fprintf(out, "# in effect: %s\n", effect);
            fprintf(out, "export %s%s=", group->prefix, opt->name);
            print_quoted(mp_opt_format(opt, (const char *)group->config + opt->offset, text), out);
            putc('\n', out);
        }
    }
}

/* The words of `text` in lines that end before column 100. */
static void print_wrapped(const char *text, const char *indent, FILE *out)
{
    size_t column = 100;

    mp_assert(strlen(indent) < 100);
    for (const char *word = text; *word != '\0';) {
        const size_t bytes = strcspn(word, " ");

        if (column + bytes + 1 >= 100) {
            fprintf(out, "%s%s", word == text ? "" : "\n", indent);
            column = strlen(indent);
        } else {
            putc(' ', out);
            column++;
        }
        fwrite(word, 1, bytes, out);
        column += bytes;
        word += bytes + (word[bytes] == ' ');
    }
    putc('\n', out);
}

void mp_opt_print_flags(const struct mp_opt_group *groups,
                        bool (*hidden)(const void *ctx, const char *flag), const void *ctx,
                        FILE *out)
{
    char flag[NAME_BYTES];

    mp_assert(hidden != NULL);
    for (const struct mp_opt_group *group = groups; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            flag_name(group, opt, flag);
            if (hidden(ctx, flag))
                continue;
            fprintf(out, "  --%s", flag);
            if (*opt->dfl != '\0')
                fprintf(out, " (%s)", opt->dfl);
            putc('\n', out);
            print_wrapped(opt->help, "      ", out);
        }
    }
}

/* A cell of a table: a bar would end it. */
static void print_cell(const char *s, FILE *out)
{
    mp_assert(s != NULL);
    for (; *s != '\0'; s++) {
        if (*s == '|')
            putc('\\', out);
        putc(*s, out);
    }
}

void mp_opt_print_markdown(const struct mp_opt_group *groups, FILE *out)
{
    char text[MP_OPT_TEXT_BYTES], flag[NAME_BYTES];

    fputs("| Variable | Flag | Default | Accepted | Meaning |\n|---|---|---|---|---|\n", out);
    for (const struct mp_opt_group *group = groups; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            flag_name(group, opt, flag);
            fprintf(out, "| `%s%s` | ", group->prefix, opt->name);
            if (!opt->only_variable)
                fprintf(out, "`--%s`", flag);
            fputs(" | ", out);
            if (*opt->dfl != '\0')
                fprintf(out, "`%s`", opt->dfl);
            fputs(" | ", out);
            print_cell(mp_opt_describe(opt, text), out);
            fputs(" | ", out);
            print_cell(opt->help, out);
            fputs(" |\n", out);
        }
    }
}

void mp_opt_print_json(const struct mp_opt_group *groups, FILE *out)
{
    char text[MP_OPT_TEXT_BYTES], name[NAME_BYTES];
    struct mp_json_out json;

    mp_json_begin(&json, out, true);
    mp_json_array_begin(&json, NULL);
    for (const struct mp_opt_group *group = groups; group->prefix != NULL; group++) {
        for (const struct mp_opt *opt = group->table; opt->name != NULL; opt++) {
            const char *effect = effect_of(group, opt);

            mp_json_object_begin(&json, NULL);
            snprintf(name, sizeof(name), "%s%s", group->prefix, opt->name);
            mp_json_put_string(&json, "name", name);
            flag_name(group, opt, name);
            mp_json_put_string(&json, "flag", opt->only_variable ? "" : name);
            mp_opt_format(opt, (const char *)group->config + opt->offset, text);
            mp_json_put_string(&json, "value", text);
            mp_json_put_string(&json, "effective", effect != NULL ? effect : text);
            mp_json_put_string(&json, "default", opt->dfl);
            mp_json_put_string(&json, "accepted", mp_opt_describe(opt, text));
            mp_json_put_string(&json, "help", opt->help);
            mp_json_object_end(&json);
        }
    }
    mp_json_array_end(&json);
    mp_json_end(&json);
}
