/*
 * Symptom: with --json an error was one line of text, which a program has to take apart.
 * Cause: nothing but the result was JSON.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#include <string.h>

static void check(const struct cli *cli, int exit_code, const char *code, const char *part)
{
    struct cli_result result;
    json_t *json, *error;
    json_error_t why;

    cli_run(cli, &result);
    CHECK_EQ(result.exit_code, exit_code);
    CHECK_EQ(result.out_bytes, 0);
    json = json_loadb(result.err, result.err_bytes, JSON_REJECT_DUPLICATES, &why);
    CHECK(json != NULL);
    CHECK(strchr(result.err, '\n') == result.err + result.err_bytes - 1);
    error = json_object_get(json, "error");
    CHECK_STR(json_string_value(json_object_get(error, "code")), code);
    CHECK(strstr(json_string_value(json_object_get(error, "message")), part) != NULL);
    CHECK_EQ(json_integer_value(json_object_get(error, "exit_code")), exit_code);
    json_decref(json);
    cli_free(&result);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    check(&(const struct cli){ .args = { "info", "--model", "/nonexistent \"x\"", "--json" } }, 3,
          "E_CKPT_DIR", "/nonexistent \"x\"");
    check(&(const struct cli){ .args = { "run", "--json", "--bugdet", "1" } }, 2, "E_OPTION",
          "did you mean '--budget'?");
    check(&(const struct cli){ .args = { "rnu", "--json" } }, 2, "E_USAGE",
          "unknown command 'rnu'");
    check(&(const struct cli){ .args = { "env", "--json" }, .env = { "MOEPAGER_CTX=x" } }, 2,
          "E_OPTION", "option 'MOEPAGER_CTX': got 'x'");
    return 0;
}
