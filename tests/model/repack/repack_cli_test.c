/* `moepager repack` as a program: what it prints, its exit codes, and that its copy runs. */
#include <jansson.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/model/repack_check.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

#define MODEL "models/tiny-moe"

static const char *program;
static char copy[sizeof(test_tmpdir_path) + 16];

/* Run the program; its standard output, or with "2>&1" in the arguments both, go to `text`. */
static int run(char *text, size_t text_bytes, const char *arguments)
{
    char command[8192];
    size_t used = 0, got;
    FILE *pipe;
    int status;

    snprintf(command, sizeof(command), "'%s' %s", program, arguments);
    pipe = popen(command, "r");
    CHECK(pipe != NULL);
    while (used + 1 < text_bytes && (got = fread(text + used, 1, text_bytes - 1 - used, pipe)) > 0)
        used += got;
    text[used] = '\0';
    status = pclose(pipe);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int repack(char *text, size_t text_bytes, const char *more)
{
    char arguments[6000];

    snprintf(arguments, sizeof(arguments), "repack --model " MODEL " --out '%s' %s 2>&1", copy,
             more);
    return run(text, text_bytes, arguments);
}

static json_int_t number(const json_t *root, const char *key)
{
    CHECK(json_is_integer(json_object_get(root, key)));
    return json_integer_value(json_object_get(root, key));
}

static void the_report_is_one_object(void)
{
    char text[8192];
    json_t *root;

    CHECK_EQ(repack(text, sizeof(text), "--shard-bytes 8MiB --json"), 0);
    root = json_loads(text, 0, NULL);
    CHECK(root != NULL);
    CHECK_STR(json_string_value(json_object_get(root, "out")), copy);
    CHECK_EQ(number(root, "experts"), 256);
    CHECK_EQ(number(root, "expert_bytes"), 256 * 73728);
    CHECK_EQ(number(root, "pad_bytes"), 0);
    CHECK_EQ(number(root, "files"), 3);
    CHECK_EQ(number(root, "files_kept"), 0);
    CHECK_EQ(number(root, "expert_reads_after"), 256);
    CHECK(number(root, "written_bytes") > number(root, "expert_bytes"));
    json_decref(root);
    check_repacked(MODEL, copy);
}

static void a_second_run_is_refused_and_a_forced_one_is_not(void)
{
    char text[8192];

    CHECK_EQ(repack(text, sizeof(text), ""), 2);
    CHECK(strstr(text, "error[E_REPACK_TARGET]") != NULL);
    CHECK_EQ(repack(text, sizeof(text), "--force"), 0);
    CHECK(strstr(text, "256 experts") != NULL);
    CHECK(strstr(text, "in 1 file ") != NULL);
    check_repacked(MODEL, copy);
}

static void the_copy_writes_the_same_text(void)
{
    static const char *const directories[] = { MODEL, copy };
    char texts[2][8192], arguments[6000];

    for (unsigned i = 0; i < 2; i++) {
        snprintf(arguments, sizeof(arguments),
                 "run --model '%s' --prompt 'def main():' --max-tokens 24 --budget 25%% "
                 "2>/dev/null",
                 directories[i]);
        CHECK_EQ(run(texts[i], sizeof(texts[i]), arguments), 0);
    }
    CHECK(strlen(texts[0]) > 20);
    CHECK_STR(texts[0], texts[1]);
}

/* The sizes that are said are those of the files, in text and in JSON. */
static void a_converted_file_has_the_size_that_is_said(void)
{
    char text[8192], want[96], arguments[6000];
    json_t *root;

    snprintf(arguments, sizeof(arguments),
             "repack --model " MODEL " --type q8_0 --out '%s.gguf' --json", copy);
    CHECK_EQ(run(text, sizeof(text), arguments), 0);
    root = json_loads(text, 0, NULL);
    CHECK(root != NULL);
    CHECK_STR(json_string_value(json_object_get(root, "type")), "q8_0");
    CHECK(number(root, "rounded") > 0);
    CHECK(number(root, "source_bytes") > number(root, "bytes"));
    snprintf(want, sizeof(want), "; %.1f MiB of weights became %.1f MiB in ",
             (double)number(root, "source_bytes") / 0x1p20, (double)number(root, "bytes") / 0x1p20);
    json_decref(root);
    snprintf(arguments, sizeof(arguments),
             "repack --model " MODEL " --type q8_0 --force --out '%s.gguf'", copy);
    CHECK_EQ(run(text, sizeof(text), arguments), 0);
    CHECK(strstr(text, want) != NULL);
}

static void wrong_use_has_its_codes(void)
{
    char text[8192];

    CHECK_EQ(run(text, sizeof(text), "repack --out /nowhere 2>&1"), 2);
    CHECK(strstr(text, "--model DIR") != NULL);
    CHECK_EQ(run(text, sizeof(text), "repack --model " MODEL " 2>&1"), 2);
    CHECK(strstr(text, "--out DIR") != NULL);
    CHECK_EQ(run(text, sizeof(text), "repack --model " MODEL " --out x --shard-bytes 0 2>&1"), 2);
    CHECK_EQ(run(text, sizeof(text), "repack --model /nowhere --out x 2>&1"), 3);
    CHECK_EQ(run(text, sizeof(text), "repack --model " MODEL " --out /proc/nowhere/x 2>&1"), 6);
    CHECK(strstr(text, "error[E_REPACK_WRITE]: cannot make the directory") != NULL);
    CHECK_EQ(run(text, sizeof(text),
                 "repack --model " MODEL " --out x --type q8_0 --to safetensors 2>&1"),
             2);
    CHECK(strstr(text, "--type 'q8_0' has no form in safetensors files; give --to gguf") != NULL);
    CHECK_EQ(run(text, sizeof(text),
                 "repack --model " MODEL " --out x --type mxfp4 --to safetensors 2>&1"),
             3);
    CHECK(strstr(text, "family Qwen3MoeForCausalLM have no experts in MXFP4") != NULL);
    CHECK_EQ(run(text, sizeof(text),
                 "repack --model " MODEL " --out x --type mxfp4 --to safetensors --slices 2 2>&1"),
             2);
    CHECK(strstr(text, "--slices is for --to safetensors without --type") != NULL);
    CHECK_EQ(run(text, sizeof(text), "repack --help-all"), 0);
    CHECK(strstr(text, "--shard-bytes SIZE") != NULL);
    CHECK(!dir_has(".", "x"));
}

int main(int argc, char **argv)
{
    CHECK_EQ(argc, 2);
    program = argv[1];
    snprintf(copy, sizeof(copy), "%s/copy", test_tmpdir());
    RUN(the_report_is_one_object);
    RUN(a_second_run_is_refused_and_a_forced_one_is_not);
    RUN(the_copy_writes_the_same_text);
    RUN(a_converted_file_has_the_size_that_is_said);
    RUN(wrong_use_has_its_codes);
    return 0;
}
