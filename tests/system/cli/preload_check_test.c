/*
 * `moepager preload --check`: what it says of programs and models, and that it starts nothing.
 */
#include "tests/system/cli/cli.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/gguf.h"
#include "tests/support/test.h"

#define CHECKED(...) \
    (&(const struct cli){ .args = { "preload", "--check", "--json", __VA_ARGS__ } })

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    CHECK(text != NULL);
    return text;
}

/* Is there a note with these words, and does it say that nothing is paged? */
static bool has_note(const json_t *check, const char *part, bool in_the_way)
{
    const json_t *note;
    size_t i;

    json_array_foreach(json_object_get(check, "notes"), i, note)
    {
        if (strstr(text_of(note, "text"), part) != NULL)
            return json_is_true(json_object_get(note, "in_the_way")) == in_the_way;
    }
    return false;
}

static bool pages(const json_t *check)
{
    return json_is_true(json_object_get(check, "pages"));
}

static void copy(const char *from, const char *to, mode_t mode, long at, int value)
{
    size_t bytes;
    char *data = cli_read(from, &bytes);

    if (at >= 0)
        data[at] = (char)value;
    cli_write(to, data, bytes);
    free(data);
    CHECK_EQ(chmod(to, mode), 0);
}

static void expect_start(const char *path, const char *start, const char *part)
{
    json_t *check = cli_json(CHECKED(path));
    const json_t *program = json_object_get(check, "program");

    CHECK_STR(text_of(program, "start"), start);
    CHECK(part == NULL || has_note(check, part, true));
    CHECK_EQ(pages(check), part == NULL);
    json_decref(check);
}

static void programs_of_all_kinds(void)
{
    const char *path = cli_path("program");

    expect_start("sh", "dynamic", NULL);
    copy("tests/data/fuzz/elf_fuzz/static", path, 0755, -1, 0);
    expect_start(path, "static", "linked statically");
    copy("tests/data/fuzz/elf_fuzz/static", path, 0755, 18, 0x28);
    expect_start(path, "other machine", "another machine");
    copy("tests/data/fuzz/elf_fuzz/static", path, 0755, 4, 1);
    expect_start(path, "other machine", "another machine");
    copy("tests/data/fuzz/elf_fuzz/program", path, 0755, 0x21, 0xff);
    expect_start(path, "unknown", "is no whole ELF file");
    copy("/bin/true", path, 04755, -1, 0);
    expect_start(path, "dynamic", "set-user-id");
    cli_write(path, "text", 4);
    CHECK_EQ(chmod(path, 0755), 0);
    expect_start(path, "unknown", "is no whole ELF file");
    CHECK_EQ(chmod(path, 0644), 0);
    expect_start(path, "unknown", "it may not be executed");
    expect_start("no-such-program", "unknown", "there is no such command");
}

/* A script is its interpreter's program. Nothing is started: the file would be there. */
static void a_script_is_seen_through(void)
{
    const char *script = cli_path("script"), *made = cli_path("made");
    char text[4400];
    json_t *check;

    snprintf(text, sizeof(text), "#!/usr/bin/env sh\ntouch %s\n", made);
    cli_write(script, text, strlen(text));
    CHECK_EQ(chmod(script, 0755), 0);
    check = cli_json(CHECKED("--", script));
    CHECK_STR(text_of(json_object_get(check, "program"), "path"), script);
    CHECK(strstr(text_of(json_object_get(check, "program"), "loaded"), "/sh") != NULL);
    CHECK(access(made, F_OK) != 0);
    CHECK(has_note(check, "no argument names a model", false));
    json_decref(check);
}

/* Two layers of four experts: F16 16384 bytes a tensor, F32 32768; 1024 bytes are dense. */
static void write_model(const char *path)
{
    gguf_begin(5, 0);
    gguf_tensor_3d("blk.1.ffn_gate_exps.weight", 256, 8, 4, 1, 0);
    gguf_tensor_3d("blk.1.ffn_up_exps.weight", 256, 8, 4, 1, 16384);
    gguf_tensor_3d("blk.2.ffn_gate_exps.weight", 256, 8, 4, 1, 32768);
    gguf_tensor_3d("blk.2.ffn_up_exps.weight", 256, 8, 4, 0, 49152);
    gguf_tensor("output.weight", 256, 1, 0, 81920);
    gguf_data(82944);
    gguf_save(path);
}

static uint64_t number_of(const json_t *object, const char *key)
{
    CHECK(json_is_integer(json_object_get(object, key)));
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static void a_model_is_counted(void)
{
    const char *path = cli_path("model.gguf");
    char option[4400];
    const json_t *model, *layers;
    json_t *check;

    write_model(path);
    snprintf(option, sizeof(option), "--model=%s", path);
    check = cli_json(CHECKED("--budget", "50%", "--", "sh", option));
    model = json_array_get(json_object_get(check, "models"), 0);
    layers = json_object_get(model, "layers");
    CHECK_EQ(number_of(model, "experts"), 4);
    CHECK_EQ(number_of(model, "expert_bytes"), 81920);
    CHECK_EQ(number_of(model, "dense_bytes"), 1024);
    CHECK_EQ(number_of(json_object_get(model, "expert_types"), "F16"), 49152);
    CHECK_EQ(number_of(json_object_get(model, "expert_types"), "F32"), 32768);
    CHECK_EQ(json_array_size(layers), 2);
    CHECK_EQ(number_of(json_array_get(layers, 0), "layer"), 1);
    CHECK_EQ(number_of(json_array_get(layers, 0), "expert_bytes"), 32768);
    CHECK_EQ(number_of(json_array_get(layers, 1), "expert_bytes"), 49152);
    CHECK_EQ(number_of(check, "budget_bytes"), 40960);
    CHECK(pages(check));
    json_decref(check);

    check = cli_json(CHECKED("--budget", "1GiB", "--", "sh", "-m", path));
    CHECK(!pages(check) && has_note(check, "nothing changes", true));
    json_decref(check);
    check = cli_json(CHECKED("--budget", "24575", "--", "sh", "-m", path));
    CHECK(!pages(check) && has_note(check, "holds no two experts, 24576 bytes", true));
    json_decref(check);
    check = cli_json(CHECKED("--budget", "24576", "--", "sh", "-m", path));
    CHECK(pages(check));
    json_decref(check);
    check = cli_json(CHECKED("--budget", "50%", "--", "sh", "-m", path, "--no-mmap"));
    CHECK(!pages(check) && has_note(check, "--no-mmap", true));
    json_decref(check);
}

/* Beside one that is there it may be about to be written. */
static void a_model_that_is_not_there(void)
{
    const char *path = cli_path("beside.gguf");
    char option[4400];
    json_t *check;

    snprintf(option, sizeof(option), "--model=%s", cli_path("none.gguf"));
    check = cli_json(CHECKED("--", "sh", option));
    CHECK(!pages(check) && has_note(check, "none.gguf: No such file", true));
    CHECK(!has_note(check, "no argument names a model", false));
    json_decref(check);
    write_model(path);
    check = cli_json(CHECKED("--budget", "50%", "--", "sh", option, "-m", path));
    CHECK(pages(check) && has_note(check, "none.gguf: No such file", false));
    json_decref(check);
}

static void models_that_cannot_be_paged(void)
{
    const char *path = cli_path("broken.gguf"), *dense = cli_path("dense.gguf");
    json_t *check = cli_json(CHECKED("--budget", "50%", "--", "sh", CLI_MODEL));

    CHECK(!pages(check) && has_note(check, "save_original_format=False", true));
    json_decref(check);
    write_model(path);
    CHECK_EQ(truncate(path, 200), 0);
    check = cli_json(CHECKED("--", "sh", "-m", path));
    CHECK(!pages(check) && has_note(check, "broken.gguf", true));
    json_decref(check);
    gguf_begin(1, 0);
    gguf_tensor("output.weight", 256, 1, 0, 0);
    gguf_data(1024);
    gguf_save(dense);
    check = cli_json(CHECKED("--", "sh", "-m", dense));
    CHECK(!pages(check) && has_note(check, "has no experts", true));
    json_decref(check);
}

/* The same as text. */
static void text_has_the_same(void)
{
    const char *path = cli_path("model.gguf");
    struct cli_result result;

    write_model(path);
    cli_run(&(const struct cli){ .args = { "preload", "--check", "--budget", "50%", "--", "sh",
                                           "-m", path } },
            &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK_EQ(result.err_bytes, 0);
    CHECK(strstr(result.out,
                 "experts       80.0 KiB in 2 layers of 4 experts, 32.0 KiB to 48.0 KiB each "
                 "layer; F16 48.0 KiB, F32 32.0 KiB\n") != NULL);
    CHECK(strstr(result.out, "budget        50%: 40.0 KiB\n") != NULL);
    CHECK(strstr(result.out, "hooks         none but those of libc\n") != NULL);
    CHECK(strstr(result.out, "in the way") == NULL);
    cli_free(&result);
    cli_run(&(const struct cli){ .args = { "preload", "--check", "--", "no-such" } }, &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.out, "program       no-such, unknown\n") != NULL);
    CHECK(strstr(result.out, "in the way    no-such: there is no such command\n") != NULL);
    cli_free(&result);
    cli_expect(&(const struct cli){ .args = { "preload", "--check" } }, 2, "no command");
    cli_expect(&(const struct cli){ .args = { "run", "--check" } }, 2, "unknown option '--check'");
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(programs_of_all_kinds);
    RUN(a_script_is_seen_through);
    RUN(a_model_is_counted);
    RUN(a_model_that_is_not_there);
    RUN(models_that_cannot_be_paged);
    RUN(text_has_the_same);
    return 0;
}
