/* Values go through the environment and through flags; log lines are caught by a sink. */
#include <inttypes.h>
#include <locale.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/options/opt.h"

static const char *const colors[] = { "red", "green", NULL };

struct config {
    uint64_t on, count, bytes, wait_ms, color, early;
    double ratio;
    char text[8];
    struct mp_share budget;
};

static const struct mp_opt table[] = {
    MP_OPT(MP_OPT_BOOL, "ON", struct config, on, "off", 0, 1, "A switch."),
    MP_OPT(MP_OPT_U64, "COUNT", struct config, count, "2", 1, 4096, "A count."),
    MP_OPT(MP_OPT_BYTES, "CHUNK_BYTES", struct config, bytes, "2M", 1, UINT64_MAX, "A size."),
    MP_OPT(MP_OPT_MS, "WAIT_MS", struct config, wait_ms, "10", 0, 1000, "A time."),
    MP_OPT_ENUM("COLOR", struct config, color, "green", colors, "A choice | of two."),
    MP_OPT_REAL("RATIO", struct config, ratio, "0.5", -1, 100, "A number."),
    MP_OPT_TEXT("TEXT", struct config, text, "abc", "Some text."),
    MP_OPT_PART("BUDGET", struct config, budget, "auto", "A part."),
    { .name = "EARLY",
      .dfl = "7",
      .kind = MP_OPT_U64,
      .offset = offsetof(struct config, early),
      .max = 9,
      .help = "A variable.",
      .only_variable = true },
    MP_OPT_END
};

static struct config config;
static struct mp_opt_config common;

static const char *effect_of_count(const void *values, const struct mp_opt *opt)
{
    return opt == &table[1] && ((const struct config *)values)->count == 2 ? "two" : NULL;
}

static const struct mp_opt_group groups[] = {
    { "MOEPAGER_T_", table, &config, effect_of_count },
    { "MOEPAGER_", mp_opt_opts, &common, NULL },
    { .prefix = NULL },
};

static char last_line[2048];
static unsigned line_count;

static void catch_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    CHECK_EQ(level, MP_LOG_WARN);
    snprintf(last_line, sizeof(last_line), "%s", line);
    line_count++;
}

static bool takes(const char *name, const char *value)
{
    return mp_opt_set_one(table, "MOEPAGER_T_", &config, name, value) == MP_OK;
}

static void defaults_come_from_the_same_parser(void)
{
    memset(&config, 0xff, sizeof(config));
    CHECK_EQ(mp_opt_load(table, "MOEPAGER_T_", &config), 0);
    CHECK_EQ(config.on, 0);
    CHECK_EQ(config.count, 2);
    CHECK_EQ(config.bytes, 2 << 20);
    CHECK_EQ(config.wait_ms, 10);
    CHECK_EQ(config.color, 1);
    CHECK(config.ratio == 0.5);
    CHECK_STR(config.text, "abc");
    CHECK_EQ(config.budget.kind, MP_SHARE_AUTO);
}

static void sizes_are_whole_strings_with_binary_suffixes(void)
{
    static const struct {
        const char *text;
        uint64_t bytes; /* 0: refused */
    } cases[] = {
        { "10", 10 },
        { "10B", 10 },
        { "10G", UINT64_C(10) << 30 },
        { "10GB", UINT64_C(10) << 30 },
        { "10GiB", UINT64_C(10) << 30 },
        { "10gib", UINT64_C(10) << 30 },
        { "64k", 65536 },
        { "1.5M", 3 << 19 },
        { "0.25KiB", 256 },
        { "16383T", UINT64_C(16383) << 40 },
        { "18446744073709551615", UINT64_MAX },
        { "18446744073709551616", 0 },
        { "16777216T", 0 },
        { "99999999999G", 0 },
        { "99999999999999999999999", 0 },
        { "", 0 },
        { "0", 0 }, /* below the minimum */
        { "-1", 0 },
        { "+1", 0 },
        { "1e9", 0 },
        { " 8G", 0 },
        { "8G ", 0 },
        { "8 G", 0 },
        { "0x10", 0 },
        { "10%", 0 },
        { "nan", 0 },
        { "1,5G", 0 },
        { "1.5", 0 },
        { "1.G", 0 },
        { ".5G", 0 },
        { "1.0000001G", 0 },
        { "10Gi", 0 },
        { "10GiBs", 0 },
        { "10P", 0 },
        { "all", 0 },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        config.bytes = 77;
        if (takes("CHUNK_BYTES", cases[i].text) != (cases[i].bytes != 0) ||
            config.bytes != (cases[i].bytes != 0 ? cases[i].bytes : 77)) {
            fprintf(stderr, "'%s' gives %" PRIu64 "\n", cases[i].text, config.bytes);
            exit(1);
        }
    }
    CHECK(!takes("CHUNK_BYTES", "x"));
    CHECK_STR(mp_error_last()->text,
              "option 'MOEPAGER_T_CHUNK_BYTES': got 'x', need a size such as 4096, 64K, 1.5M or "
              "2GiB (powers of 1024), from 1 to 18446744073709551615 (A size.)");
}

static void numbers_respect_their_range(void)
{
    CHECK(takes("COUNT", "1") && config.count == 1);
    CHECK(takes("COUNT", "4096") && config.count == 4096);
    CHECK(!takes("COUNT", "4097") && !takes("COUNT", "0") && !takes("COUNT", "1K"));
    CHECK(!takes("COUNT", "-1") && !takes("COUNT", "18446744073709551617") &&
          !takes("COUNT", "1 "));
    CHECK_EQ(config.count, 4096);
    CHECK(takes("COUNT", "0010") && config.count == 10); /* never octal */
    CHECK(takes("WAIT_MS", "1000") && !takes("WAIT_MS", "1001") && !takes("WAIT_MS", "1s"));
}

static void reals_are_exact_and_ignore_the_locale(void)
{
    static const char *const bad[] = { "",    ".",     "1.",    "-",
                                       "1e",  "1e400", "nan",   "inf",
                                       "1,5", "101",   "-1.01", "0x1p3",
                                       " 1",  "1 ",    "1.5.2", "0.1234567890123456" };

    setlocale(LC_ALL, "de_DE.UTF-8");
    CHECK(takes("RATIO", "0.1") && config.ratio == 0.1);
    CHECK(takes("RATIO", "-.25") && config.ratio == -0.25);
    CHECK(takes("RATIO", "-1") && takes("RATIO", "100") && config.ratio == 100);
    CHECK(takes("RATIO", "1e-3") && config.ratio == 1e-3);
    CHECK(takes("RATIO", "2.5E+1") && config.ratio == 25);
    CHECK(takes("RATIO", "0.123456789012345") && config.ratio == 0.123456789012345);
    for (size_t i = 0; i < MP_ARRAY_LEN(bad); i++) {
        if (takes("RATIO", bad[i])) {
            fprintf(stderr, "'%s' was taken\n", bad[i]);
            exit(1);
        }
    }
    CHECK(config.ratio == 0.123456789012345);
    setlocale(LC_ALL, "C");
}

static void bools_and_choices_take_known_words_only(void)
{
    CHECK(takes("ON", "yes") && config.on == 1);
    CHECK(takes("ON", "FALSE") && config.on == 0);
    CHECK(takes("ON", NULL) && config.on == 1); /* a flag without a value */
    CHECK(!takes("ON", "2") && !takes("ON", "") && config.on == 1);
    CHECK(takes("COLOR", "red") && config.color == 0);
    CHECK(!takes("COLOR", "blue") && !takes("COLOR", "RED") && config.color == 0);
    CHECK_STR(mp_error_last()->text,
              "option 'MOEPAGER_T_COLOR': got 'RED', need one of red, green (A choice | of two.)");
    CHECK(!takes("COLOR", NULL));
    CHECK_STR(mp_error_last()->text,
              "option 'MOEPAGER_T_COLOR' needs a value: one of red, green (A choice | of two.)");
    CHECK(!takes("COLOUR", "red"));
}

static void strings_fit_with_their_end(void)
{
    CHECK(takes("TEXT", "1234567"));
    CHECK_STR(config.text, "1234567");
    CHECK(!takes("TEXT", "12345678") && !takes("TEXT", "a\nb"));
    CHECK_STR(config.text, "1234567");
    CHECK(takes("TEXT", ""));
    CHECK_STR(config.text, "");
}

static void shares_are_sizes_percentages_all_or_auto(void)
{
    char text[MP_OPT_TEXT_BYTES];
    const struct mp_opt *opt = mp_opt_find(groups, "t-budget", NULL);

    CHECK(opt != NULL);
    CHECK(takes("BUDGET", "25%"));
    CHECK_EQ(mp_share_resolve(&config.budget, 1000, 7), 250);
    CHECK_EQ(mp_share_resolve(&config.budget, UINT64_MAX, 7), UINT64_MAX / 4);
    CHECK_STR(mp_opt_format(opt, &config.budget, text), "25%");
    CHECK(takes("BUDGET", "12.0375%"));
    CHECK_STR(mp_opt_format(opt, &config.budget, text), "12.0375%");
    CHECK(takes("BUDGET", "100%"));
    CHECK_EQ(mp_share_resolve(&config.budget, UINT64_MAX, 7), UINT64_MAX);
    CHECK_STR(mp_opt_format(opt, &config.budget, text), "100%");
    CHECK(takes("BUDGET", "2GiB"));
    CHECK_EQ(mp_share_resolve(&config.budget, 1000, 7), UINT64_C(2) << 30);
    CHECK_STR(mp_opt_format(opt, &config.budget, text), "2GiB");
    CHECK(takes("BUDGET", "all"));
    CHECK_EQ(mp_share_resolve(&config.budget, 1000, 7), 1000);
    CHECK_STR(mp_opt_format(opt, &config.budget, text), "all");
    CHECK(takes("BUDGET", "auto"));
    CHECK_STR(mp_opt_format(opt, &config.budget, text), "auto");
    CHECK_EQ(mp_share_resolve(&config.budget, 1000, 7), 7);
    CHECK(!takes("BUDGET", "101%") && !takes("BUDGET", "100.1%") && !takes("BUDGET", "%"));
    CHECK(!takes("BUDGET", "-1%") && !takes("BUDGET", "") && !takes("BUDGET", "1%%"));
    CHECK(!takes("BUDGET", "0.00001%"));
    CHECK_EQ(config.budget.kind, MP_SHARE_AUTO);
}

static void a_bad_value_is_said_once_and_the_default_used(void)
{
    setenv("MOEPAGER_T_COUNT", "many\n", 1);
    setenv("MOEPAGER_T_COLOR", "red", 1);
    line_count = 0;
    CHECK_EQ(mp_opt_load(table, "MOEPAGER_T_", &config), 1);
    CHECK_EQ(line_count, 1);
    CHECK_STR(last_line, "moepager: warn: opt: MOEPAGER_T_COUNT is 'many\\x0a', need a whole "
                         "number from 1 to 4096; using 2 (A count.)");
    CHECK_EQ(config.count, 2);
    CHECK_EQ(config.color, 0);

    /* In a program of ours it is an error, as that of the flag. */
    CHECK_EQ(mp_opt_load_all(groups), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->text, "option 'MOEPAGER_T_COUNT': got 'many\\x0a', need a whole "
                                     "number from 1 to 4096 (A count.)");
    CHECK_EQ(config.count, 2);
    setenv("MOEPAGER_STRICT", "1", 1);
    unsetenv("MOEPAGER_T_COUNT");
    CHECK_EQ(mp_opt_load_all(groups), MP_OK);
    unsetenv("MOEPAGER_STRICT");
    unsetenv("MOEPAGER_T_COLOR");
}

static void an_unknown_variable_gets_the_nearest_name(void)
{
    char name[200] = "MOEPAGER_";

    setenv("MOEPAGER_T_BUGDET", "1G", 1);
    line_count = 0;
    CHECK_EQ(mp_opt_warn_unknown(groups), 1);
    CHECK_EQ(line_count, 1);
    CHECK_STR(last_line, "moepager: warn: opt: unknown variable MOEPAGER_T_BUGDET; "
                         "did you mean MOEPAGER_T_BUDGET?");
    setenv("MOEPAGER_STRICT", "on", 1);
    CHECK_EQ(mp_opt_load_all(groups), MP_ERR_CONFIG);
    unsetenv("MOEPAGER_STRICT");
    unsetenv("MOEPAGER_T_BUGDET");

    setenv("MOEPAGER_SOMETHING_ELSE_ALTOGETHER", "1", 1);
    CHECK_EQ(mp_opt_warn_unknown(groups), 1);
    CHECK_STR(last_line,
              "moepager: warn: opt: unknown variable MOEPAGER_SOMETHING_ELSE_ALTOGETHER");
    unsetenv("MOEPAGER_SOMETHING_ELSE_ALTOGETHER");

    memset(name + strlen(name), 'A', 150);
    setenv(name, "1", 1);
    CHECK_EQ(mp_opt_warn_unknown(groups), 1);
    CHECK(mp_opt_find(groups, name, NULL) == NULL);
    CHECK_EQ(mp_opt_set(groups, name, "1"), MP_ERR_CONFIG);
    unsetenv(name);
    CHECK_EQ(mp_opt_warn_unknown(groups), 0);
}

static void a_flag_is_the_variable_by_another_name(void)
{
    const struct mp_opt_group *group = NULL;

    CHECK(mp_opt_find(groups, "--t-chunk-bytes", &group) == &table[2] && group == &groups[0]);
    CHECK(mp_opt_find(groups, "t_chunk_bytes", NULL) == &table[2]);
    CHECK(mp_opt_find(groups, "MOEPAGER_T_CHUNK_BYTES", NULL) == &table[2]);
    CHECK(mp_opt_find(groups, "--strict", NULL) == &mp_opt_opts[0]);
    CHECK(mp_opt_find(groups, "chunk-bytes", NULL) == NULL);

    CHECK_EQ(mp_opt_set(groups, "--t-color", "green"), MP_OK);
    CHECK_EQ(config.color, 1);
    CHECK_EQ(mp_opt_set(groups, "--t-color", "pink"), MP_ERR_CONFIG);
    CHECK_EQ(config.color, 1);
    CHECK_STR(mp_error_last()->text,
              "option '--t-color': got 'pink', need one of red, green (A choice | of two.)");
    CHECK_EQ(mp_opt_set(groups, "--t-colour", "red"), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->text, "unknown option '--t-colour'; did you mean '--t-color'?");
    CHECK_EQ(mp_opt_set(groups, "MOEPAGER_T_COLOUR", "red"), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->text,
              "unknown option 'MOEPAGER_T_COLOUR'; did you mean 'MOEPAGER_T_COLOR'?");
    /* A known name is the nearest to itself; asking needs no config. */
    CHECK_EQ(mp_opt_unknown(groups, "--t_color"), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->text, "unknown option '--t_color'; did you mean '--t-color'?");
    CHECK_EQ(mp_opt_set(groups, "--entirely-other", "red"), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->text, "unknown option '--entirely-other'");
}

static char *printed(void (*print)(const struct mp_opt_group *, FILE *))
{
    static char text[16384];
    FILE *file = fmemopen(text, sizeof(text), "w");

    CHECK(file != NULL);
    print(groups, file);
    CHECK_EQ(fclose(file), 0);
    return text;
}

/* The lines, sourced by a shell and loaded again, give the same config. */
static void printed_lines_can_be_sourced(void)
{
    struct config before;
    char script[32768];
    FILE *pipe;

    CHECK(takes("TEXT", "a'b $c") && takes("RATIO", "0.1") && takes("BUDGET", "12.5%"));
    before = config;
    snprintf(script, sizeof(script),
             "%s\nprintf '%%s|%%s|%%s|%%s' \"$MOEPAGER_T_TEXT\" "
             "\"$MOEPAGER_T_RATIO\" \"$MOEPAGER_T_BUDGET\" \"$MOEPAGER_T_CHUNK_BYTES\"\n",
             printed(mp_opt_print));
    setenv("SCRIPT", script, 1);
    pipe = popen("sh -c \"$SCRIPT\"", "r");
    CHECK(pipe != NULL);
    CHECK(fgets(script, sizeof(script), pipe) != NULL);
    CHECK_EQ(pclose(pipe), 0);
    unsetenv("SCRIPT");
    CHECK_STR(script, "a'b $c|0.1|12.5%|2MiB");
    CHECK_EQ(config.bytes, before.bytes);
}

static void effects_are_listed_where_a_value_does_not_say_them(void)
{
    CHECK(takes("COUNT", "2"));
    CHECK(strstr(printed(mp_opt_print), "# in effect: two\nexport MOEPAGER_T_COUNT=2\n") != NULL);
    CHECK(strstr(printed(mp_opt_print_json), "\"effective\": \"two\"") != NULL);
    CHECK(takes("COUNT", "3"));
    CHECK(strstr(printed(mp_opt_print), "in effect") == NULL);
    CHECK(strstr(printed(mp_opt_print_json), "\"effective\": \"3\"") != NULL);
}

static void markdown_and_json_list_every_option(void)
{
    const char *text = printed(mp_opt_print_markdown);

    CHECK(strstr(text, "| `MOEPAGER_T_COUNT` | `--t-count` | `2` | a whole number from 1 to 4096 "
                       "| A count. |\n") != NULL);
    CHECK(strstr(text, "| `MOEPAGER_STRICT` | `--strict` | `off` |") != NULL);
    CHECK(strstr(text, "A choice \\| of two.") != NULL);
    CHECK(strstr(text, "| `MOEPAGER_T_EARLY` |  | `7` |") != NULL);
    CHECK(strstr(text, "from -1 to 100 |") != NULL);
    text = printed(mp_opt_print_json);
    CHECK(strstr(text, "\"name\": \"MOEPAGER_T_RATIO\"") != NULL);
    CHECK(strstr(text, "\"flag\": \"t-ratio\"") != NULL);
    CHECK(strstr(text, "\"flag\": \"\"") != NULL);
    CHECK(strstr(text, "\"value\": \"0.1\"") != NULL);
}

/*
 * A copy of this program with the set-user-id bit of another user: AT_SECURE. It exits 0 if the
 * bad value in its environment was not looked at.
 */
static int in_secure_mode(void)
{
    struct config mine;

    if (mp_opt_load(table, "MOEPAGER_T_", &mine) != 0 || mine.count != 2)
        return 1;
    return mp_opt_warn_unknown(groups) == 0 ? 0 : 1;
}

static void a_privileged_program_ignores_the_environment(void)
{
    char directory[] = "/tmp/moepager-opt-XXXXXX", command[256];
    int result;

    if (geteuid() != 0) {
        fprintf(stderr, "    not root: not checked\n");
        return;
    }
    CHECK(mkdtemp(directory) != NULL);
    snprintf(command, sizeof(command),
             "cp /proc/%d/exe %s/p && chmod 755 %s && chown nobody %s/p && chmod 4755 %s/p",
             (int)getpid(), directory, directory, directory, directory);
    CHECK_EQ(system(command), 0);
    setenv("MOEPAGER_T_COUNT", "many", 1);
    setenv("MOEPAGER_T_BUGDET", "1", 1);
    snprintf(command, sizeof(command), "%s/p secure 2>/dev/null", directory);
    result = system(command);
    unsetenv("MOEPAGER_T_COUNT");
    unsetenv("MOEPAGER_T_BUGDET");
    snprintf(command, sizeof(command), "rm -r %s", directory);
    CHECK_EQ(system(command), 0);
    CHECK(WIFEXITED(result));
    if (WEXITSTATUS(result) == 77 || WEXITSTATUS(result) == 126)
        fprintf(stderr, "    set-user-id has no effect here: not checked\n");
    else
        CHECK_EQ(WEXITSTATUS(result), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "secure") == 0) {
        if (geteuid() == getuid())
            return 77;
        _exit(in_secure_mode()); /* the leak check at exit does not work in this mode */
    }
    mp_log_set_sink(catch_line, NULL);
    RUN(defaults_come_from_the_same_parser);
    RUN(sizes_are_whole_strings_with_binary_suffixes);
    RUN(numbers_respect_their_range);
    RUN(reals_are_exact_and_ignore_the_locale);
    RUN(bools_and_choices_take_known_words_only);
    RUN(strings_fit_with_their_end);
    RUN(shares_are_sizes_percentages_all_or_auto);
    RUN(a_bad_value_is_said_once_and_the_default_used);
    RUN(an_unknown_variable_gets_the_nearest_name);
    RUN(a_flag_is_the_variable_by_another_name);
    RUN(printed_lines_can_be_sourced);
    RUN(effects_are_listed_where_a_value_does_not_say_them);
    RUN(markdown_and_json_list_every_option);
    RUN(a_privileged_program_ignores_the_environment);
    return 0;
}
