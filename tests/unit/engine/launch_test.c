/*
 * What a program is started with: environments as copies that change alone, which file a word
 * names, and every call of a start and of a check failing once. What a started program sees is in
 * tests/system/cli/preload_test.c.
 */
#include "engine/preload/check.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/gguf.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

static struct mp_settings settings;

static void an_environment_is_a_copy(void)
{
    struct mp_environment environment;

    CHECK_EQ(setenv("MP_TEST", "before", 1), 0);
    CHECK_EQ(unsetenv("MP_TES"), 0);
    CHECK_EQ(mp_environment_copy(&environment), MP_OK);
    CHECK_STR(mp_environment_get(&environment, "MP_TEST"), "before");
    CHECK(mp_environment_get(&environment, "MP_TES") == NULL);
    CHECK_EQ(mp_environment_set(&environment, "MP_TEST", "after"), MP_OK);
    CHECK_EQ(mp_environment_set(&environment, "MP_TES", ""), MP_OK);
    CHECK_STR(mp_environment_get(&environment, "MP_TEST"), "after");
    CHECK_STR(mp_environment_get(&environment, "MP_TES"), "");
    CHECK(environment.entries[environment.count] == NULL);
    CHECK_STR(getenv("MP_TEST"), "before");
    CHECK(getenv("MP_TES") == NULL);
    mp_environment_fini(&environment);
}

static void make_file(const char *name, const char *text, mode_t mode)
{
    char path[PATH_MAX];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    file = fopen(path, "w");
    CHECK(file != NULL);
    fputs(text, file);
    fclose(file);
    CHECK_EQ(chmod(path, mode), 0);
}

static void words_name_files(void)
{
    struct mp_environment environment;
    char list[3 * PATH_MAX], path[PATH_MAX], wanted[PATH_MAX];
    int exit_code;

    make_file("runs", "", 0755);
    make_file("text", "", 0644);
    snprintf(list, sizeof(list), "/no/such:%s::/", test_tmpdir());
    CHECK_EQ(mp_environment_copy(&environment), MP_OK);
    CHECK_EQ(mp_environment_set(&environment, "PATH", list), MP_OK);
    snprintf(wanted, sizeof(wanted), "%s/runs", test_tmpdir());
    CHECK(mp_preload_find_program(&environment, "runs", path, &exit_code));
    CHECK_STR(path, wanted);
    CHECK_EQ(exit_code, 0);
    CHECK(mp_preload_find_program(&environment, wanted, path, &exit_code));
    CHECK(!mp_preload_find_program(&environment, "text", path, &exit_code));
    CHECK_EQ(exit_code, 126);
    CHECK(!mp_preload_find_program(&environment, "walks", path, &exit_code));
    CHECK_EQ(exit_code, 127);
    CHECK(!mp_preload_find_program(&environment, "", path, &exit_code));
    CHECK_EQ(exit_code, 127);
    CHECK(!mp_preload_find_program(&environment, "/", path, &exit_code));
    CHECK_EQ(exit_code, 126);
    mp_environment_fini(&environment);
}

static bool is_python(const char *name, const char *text)
{
    char path[PATH_MAX];

    make_file(name, text, 0755);
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    return mp_preload_is_python(path);
}

static void python_is_known(void)
{
    CHECK(mp_preload_is_python("/usr/bin/python3"));
    CHECK(mp_preload_is_python("python3.11"));
    CHECK(mp_preload_is_python("pypy3"));
    CHECK(is_python("vllm", "#!/opt/venv/bin/python3\nimport sys\n"));
    CHECK(is_python("tool", "#!/usr/bin/env python3"));
    CHECK(!is_python("shell", "#!/bin/sh\npython3 x.py\n"));
    CHECK(!is_python("data", "python"));
    CHECK(!is_python("empty", ""));
    CHECK(!mp_preload_is_python("/no/such"));
}

/* Our module stands first, and once; a folder whose name only begins like ours is another one. */
static void our_module_is_first_and_once(void)
{
    static const struct {
        const char *before, *behind; /* what follows our folder in PYTHONPATH, before and then */
        bool ours;                   /* it begins with our folder already */
    } cases[] = {
        { "", "", true },
        { ":/some/where", ":/some/where", true },
        { "x:/some", NULL, true },
        { "/some/where", ":/some/where", false },
    };
    char folder[PATH_MAX], before[2 * PATH_MAX], want[4 * PATH_MAX];

    CHECK(mp_preload_find_python(folder));
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct mp_environment environment;

        snprintf(before, sizeof(before), "%s%s", cases[i].ours ? folder : "", cases[i].before);
        if (cases[i].behind != NULL)
            snprintf(want, sizeof(want), "%s%s", folder, cases[i].behind);
        else
            snprintf(want, sizeof(want), "%s:%s", folder, before);
        CHECK_EQ(setenv("PYTHONPATH", before, 1), 0);
        CHECK_EQ(
            mp_preload_environment(&settings, "/lib/" MP_PRELOAD_LIBRARY, "python3", &environment),
            MP_OK);
        CHECK_STR(mp_environment_get(&environment, "PYTHONPATH"), want);
        mp_environment_fini(&environment);
    }
    CHECK_EQ(unsetenv("PYTHONPATH"), 0);
}

static void make(const struct fault_plan *plan, void *program)
{
    struct mp_environment environment = { 0 };
    enum mp_status status;
    uint64_t failures;

    mp_error_clear();
    fault_begin(plan);
    status = mp_preload_environment(&settings, "/lib/" MP_PRELOAD_LIBRARY, program, &environment);
    failures = fault_end();
    if (status != MP_OK) {
        CHECK(failures > 0 && status == MP_ERR_NO_MEMORY && environment.entries == NULL);
        CHECK(mp_error_last()->text[0] != '\0');
        return;
    }
    CHECK_STR(mp_environment_get(&environment, "LD_PRELOAD"),
              "/lib/first.so:/lib/" MP_PRELOAD_LIBRARY);
    CHECK_STR(mp_environment_get(&environment, "MOEPAGER_BUDGET"), "auto");
    mp_environment_fini(&environment);
}

static void every_allocation_fails_once(void)
{
    char python[] = "python3", other[] = "/bin/true";

    CHECK_EQ(setenv("LD_PRELOAD", "/lib/first.so", 1), 0);
    CHECK_EQ(setenv("PYTHONPATH", "/some/where", 1), 0);
    CHECK(fault_sweep(FAULT_ANY, make, python) > 5);
    CHECK_EQ(unsetenv("PYTHONPATH"), 0);
    CHECK(fault_sweep(FAULT_ANY, make, other) > 5);
    CHECK_EQ(unsetenv("LD_PRELOAD"), 0);
}

static void check(const struct fault_plan *plan, void *argv)
{
    struct mp_check *made = NULL;
    enum mp_status status;
    uint64_t failures;

    mp_error_clear();
    fault_begin(plan);
    status = mp_check_make(argv, &settings, &made);
    failures = fault_end();
    CHECK(status == MP_OK || (failures > 0 && status == MP_ERR_NO_MEMORY && made == NULL));
    mp_check_destroy(made);
}

/* What cannot be looked at is a note, never a crash. */
static void every_call_of_a_check_fails_once(void)
{
    char path[GGUF_PATH_BYTES], shell[] = "/bin/sh", python[] = "python3", script[GGUF_PATH_BYTES];
    char model[] = "models/tiny-moe";
    char *of_gguf[] = { shell, path, NULL }, *of_folder[] = { python, model, NULL };
    char *of_script[] = { script, NULL };

    snprintf(path, sizeof(path), "%s/model.gguf", test_tmpdir());
    gguf_begin(1, 0);
    gguf_tensor("output.weight", 256, 1, 0, 0);
    gguf_data(1024);
    gguf_save(path);
    CHECK(fault_sweep(FAULT_ANY, check, of_gguf) > 10);
    CHECK(fault_sweep(FAULT_ANY, check, of_folder) > 10);
    make_file("script", "#!/bin/sh\n", 0755);
    snprintf(script, sizeof(script), "%s/script", test_tmpdir());
    CHECK(fault_sweep(FAULT_ANY, check, of_script) > 10);
}

int main(void)
{
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    RUN(an_environment_is_a_copy);
    RUN(words_name_files);
    RUN(python_is_known);
    RUN(our_module_is_first_and_once);
    RUN(every_allocation_fails_once);
    RUN(every_call_of_a_check_fails_once);
    return 0;
}
