/*
 * What `preload --check` finds of a program: through scripts and loaders, which libraries in which
 * folder, modules and packages opened at run time, hooks. Nothing is started.
 */
#include "engine/preload/check.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/elf_file.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

#define LOADER "/lib/ld-made.so"
#define PATH_BYTES (sizeof(test_tmpdir_path) + 128)

static struct mp_environment environment;
static struct mp_check_program program;

/* A name in this test's own folder; eight of them are valid at a time. */
static char *in(const char *name)
{
    static char paths[8][PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % 8];

    snprintf(path, PATH_BYTES, "%s/%s", test_tmpdir(), name);
    return path;
}

static void make_folder(const char *name)
{
    CHECK_EQ(mkdir(in(name), 0700), 0);
}

static void write_script(const char *name, const char *text)
{
    FILE *file = fopen(in(name), "w");

    CHECK(file != NULL);
    fputs(text, file);
    CHECK_EQ(fclose(file), 0);
    CHECK_EQ(chmod(in(name), 0755), 0);
}

static void write_elf(const char *name, struct elf_file file)
{
    elf_file_write(in(name), &file);
}

#define LOOK_AT(...) \
    mp_check_look_at_program(&environment, (char **)(const char *[]){ __VA_ARGS__, NULL }, &program)

/* The libraries are these: a path in this test's folder, '-' before one that was not found, '+'
 * before one that is opened at run time. */
static void check_libraries(const char *const *names, uint32_t count)
{
    for (uint32_t i = 0; i < program.library_count; i++)
        fprintf(stderr, "    %s\n", program.libraries[i].path);
    CHECK_EQ(program.library_count, count);
    for (uint32_t i = 0; i < count; i++) {
        const bool absent = names[i][0] == '-', module = names[i][0] == '+';

        CHECK_STR(program.libraries[i].path, absent ? names[i] + 1 : in(names[i] + module));
        CHECK_EQ(program.libraries[i].found, !absent);
        CHECK_EQ(program.libraries[i].module, module);
    }
}

#define LIBRARIES(...)                                    \
    check_libraries((const char *const[]){ __VA_ARGS__ }, \
                    sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(const char *))

static void scripts_are_seen_through(void)
{
    static const struct {
        const char *text, *loaded; /* NULL: it is no script */
    } cases[] = {
        { "#!/bin/sh\n", "/bin/sh" },
        { "#! /bin/sh -e\n", "/bin/sh" },
        { "#!/usr/bin/env inner\n", "inner" },
        { "#!/usr/bin/env -S A=1 inner -u\n", "inner" },
        { "#!/usr/bin/env A=1\n", NULL },
        { "#!/usr/bin/env no-such-program\n", NULL },
        { "#!\n", NULL },
        { "!#/bin/sh\n", NULL },
        { "", NULL },
    };

    write_elf("inner", (struct elf_file){ .interpreter = LOADER });
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const char *loaded = cases[i].loaded;

        write_script("script", cases[i].text);
        LOOK_AT(in("script"));
        CHECK_STR(program.path, in("script"));
        CHECK_STR(program.loaded, loaded == NULL     ? in("script")
                                  : loaded[0] == '/' ? loaded
                                                     : in(loaded));
        CHECK_EQ(program.start, loaded != NULL ? MP_CHECK_DYNAMIC : MP_CHECK_UNKNOWN);
        CHECK_EQ(program.error[0] != '\0', loaded == NULL);
    }
}

/* As many as the kernel follows. */
static void scripts_of_scripts_have_an_end(void)
{
    for (int i = 0; i < 5; i++) {
        char name[16], text[PATH_BYTES + 16];

        snprintf(name, sizeof(name), "script%d", i + 1);
        snprintf(text, sizeof(text), "#!%s\n", in(name));
        snprintf(name, sizeof(name), "script%d", i);
        write_script(name, i < 4 ? text : "#!/bin/sh\n");
    }
    LOOK_AT(in("script1"));
    CHECK_STR(program.loaded, "/bin/sh");
    LOOK_AT(in("script0"));
    CHECK_STR(program.loaded, in("script4"));
}

/* -I, -E and -S, also among other letters, before the script. */
static void python_may_ignore_its_path(void)
{
    static const struct {
        const char *args[3];
        bool isolated;
    } cases[] = {
        { { "-I" }, true },    { { "-E" }, true },          { { "-S" }, true },
        { { "-sE" }, true },   { { "-u", "-I" }, true },    { { "-I", "-u" }, true },
        { { "-u" }, false },   { { "-cI" }, false },        { { "-mS" }, false },
        { { "--ES" }, false }, { { "x.py", "-I" }, false },
    };

    write_script("python3", "#!/bin/sh\n");
    write_script("shell", "#!/bin/sh\n");
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        LOOK_AT(in("python3"), cases[i].args[0], cases[i].args[1]);
        CHECK(program.python);
        CHECK_EQ(program.isolated, cases[i].isolated);
    }
    LOOK_AT(in("shell"), "-I");
    CHECK(!program.python && !program.isolated);
}

/* `ld.so --library-path LIST PROGRAM`, and its other options that have a value. */
static void a_loader_by_name_is_seen_through(void)
{
    char list[PATH_BYTES];

    snprintf(list, sizeof(list), "%s", in("given"));
    make_folder("given");
    write_elf("given/libggml-a.so", (struct elf_file){ 0 });
    write_elf("ld-own.so", (struct elf_file){ .interpreter = LOADER });
    write_elf("program", (struct elf_file){ .interpreter = LOADER, .needed = { "libggml-a.so" } });
    LOOK_AT(in("ld-own.so"), "--library-path", list, in("program"), "--argv0");
    CHECK_STR(program.loaded, in("program"));
    CHECK_STR(program.interpreter, in("ld-own.so"));
    LIBRARIES("given/libggml-a.so");
    LOOK_AT(in("ld-own.so"), "--preload", "x", "--argv0", "y", "--inhibit-rpath", "z",
            "--glibc-hwcaps-mask", "w", "--library-path", list, in("program"));
    CHECK_STR(program.loaded, in("program"));
    LIBRARIES("given/libggml-a.so");
    CHECK(!program.missing);
    LOOK_AT(in("ld-own.so"), "--list", in("program"));
    CHECK_STR(program.loaded, in("program"));
    LIBRARIES("-libggml-a.so");
    CHECK(program.missing);
    LOOK_AT(in("ld-own.so"), "--library-path");
    CHECK_STR(program.loaded, in("ld-own.so"));
    CHECK_EQ(program.library_count, 0);
    LOOK_AT(in("program"), "--library-path", list, in("ld-own.so"));
    CHECK_STR(program.loaded, in("program"));
    CHECK_STR(program.interpreter, LOADER);
}

/* ggml looks for its backends beside /proc/self/exe, which is the loader if it was named. */
static void backends_lie_beside_the_loader(void)
{
    make_folder("loader"), make_folder("libs");
    write_elf("loader/ld.so", (struct elf_file){ .interpreter = LOADER });
    write_elf("loader/libggml-cpu.so", (struct elf_file){ .exported = mp_check_hooks[0] });
    write_elf("libs/libggml.so", (struct elf_file){ 0 });
    write_elf("libs/program",
              (struct elf_file){ .interpreter = LOADER, .needed = { "libggml.so" } });
    LOOK_AT(in("loader/ld.so"), "--library-path", in("libs"), in("libs/program"));
    LIBRARIES("libs/libggml.so", "+loader/libggml-cpu.so");
    CHECK(program.hooks[0] && !program.hooks[1]);
}

/* `env NAME=VALUE... PROGRAM`; options of env are not followed. */
static void env_is_seen_through(void)
{
    char set[PATH_BYTES + 32];

    make_folder("set");
    write_elf("set/libggml-e.so", (struct elf_file){ 0 });
    write_elf("ld-e.so", (struct elf_file){ .interpreter = LOADER });
    write_elf("started", (struct elf_file){ .interpreter = LOADER, .needed = { "libggml-e.so" } });
    write_elf("env", (struct elf_file){ .interpreter = LOADER });
    snprintf(set, sizeof(set), "LD_LIBRARY_PATH=%s", in("set"));
    LOOK_AT("env", "A=1", set, "started", "B=2");
    CHECK_STR(program.path, in("env"));
    CHECK_STR(program.loaded, in("started"));
    LIBRARIES("set/libggml-e.so");
    LOOK_AT("env", set, in("ld-e.so"), in("started"));
    CHECK_STR(program.loaded, in("started"));
    CHECK_STR(program.interpreter, in("ld-e.so"));
    LIBRARIES("set/libggml-e.so");
    LOOK_AT("env", set, in("ld-e.so"), "--library-path", "/no/such", in("started"));
    LIBRARIES("-libggml-e.so");
    LOOK_AT("env", "started");
    LIBRARIES("-libggml-e.so");
    write_script("of-env", "#!/usr/bin/env started\n");
    LOOK_AT("env", set, "of-env");
    CHECK_STR(program.loaded, in("started"));
    LIBRARIES("set/libggml-e.so");
    LOOK_AT("env", set);
    CHECK_STR(program.loaded, in("env"));
    LOOK_AT("env", set, "no-such-program");
    CHECK_STR(program.loaded, in("env"));
    LOOK_AT("env", "-i", set, "started");
    CHECK_STR(program.loaded, in("env"));
    CHECK_EQ(program.library_count, 0);
    CHECK_EQ(unlink(in("env")), 0); /* scripts of the other tests name it */
}

static void write_everywhere(const char *name, struct elf_file file)
{
    static const char *const folders[] = { "old", "env", "run" };

    for (size_t i = 0; i < MP_ARRAY_LEN(folders); i++) {
        char path[64];

        snprintf(path, sizeof(path), "%s/%s", folders[i], name);
        write_elf(path, file);
    }
}

/* RPATH, LD_LIBRARY_PATH, RUNPATH; an RPATH beside a RUNPATH counts for nothing, and one of the
 * program also for its libraries. */
static void folders_are_tried_in_the_loaders_order(void)
{
    char list[2 * PATH_BYTES];

    make_folder("old"), make_folder("env"), make_folder("run");
    write_everywhere("libggml-a.so", (struct elf_file){ .needed = { "libllama-b.so" } });
    write_everywhere("libllama-b.so", (struct elf_file){ 0 });
    snprintf(list, sizeof(list), ":/no/such;%s:", in("env"));
    CHECK_EQ(mp_environment_set(&environment, "LD_LIBRARY_PATH", list), MP_OK);
    write_elf("program", (struct elf_file){ .interpreter = LOADER,
                                            .old_path = "${ORIGIN}/old",
                                            .needed = { "libggml-a.so" } });
    LOOK_AT(in("program"));
    LIBRARIES("old/libggml-a.so", "old/libllama-b.so");
    write_elf("program", (struct elf_file){ .interpreter = LOADER,
                                            .old_path = "$ORIGIN/old",
                                            .run_path = "$ORIGIN/run",
                                            .needed = { "libggml-a.so" } });
    LOOK_AT(in("program"));
    LIBRARIES("env/libggml-a.so", "env/libllama-b.so");
    CHECK_EQ(mp_environment_set(&environment, "LD_LIBRARY_PATH", ""), MP_OK);
    LOOK_AT(in("program"));
    LIBRARIES("run/libggml-a.so", "-libllama-b.so");
    write_elf("run/libggml-a.so",
              (struct elf_file){ .old_path = "$ORIGIN/../old", .needed = { "libllama-b.so" } });
    LOOK_AT(in("program"));
    LIBRARIES("run/libggml-a.so", "run/../old/libllama-b.so");
}

/* Each once; of a link the folder that it leads to; a name with a slash is a path. */
static void libraries_are_listed_once(void)
{
    make_folder("far");
    write_elf(
        "far/libggml-a.so",
        (struct elf_file){ .run_path = "$ORIGIN", .needed = { "libllama-b.so", "libother.so" } });
    write_elf("far/libllama-b.so",
              (struct elf_file){ .run_path = "$ORIGIN", .needed = { "libggml-a.so" } });
    write_elf("far/libother.so", (struct elf_file){ 0 });
    make_folder("near");
    CHECK_EQ(symlink("../far/libggml-a.so", in("near/libggml-a.so")), 0);
    write_elf("program", (struct elf_file){ .interpreter = LOADER,
                                            .run_path = "$ORIGIN/near",
                                            .needed = { "libggml-a.so", "libggml-none.so" } });
    LOOK_AT(in("program"));
    LIBRARIES("near/libggml-a.so", "-libggml-none.so", "far/libllama-b.so");
    write_elf("program",
              (struct elf_file){ .interpreter = LOADER,
                                 .needed = { in("far/libllama-b.so"), in("far/libggml-no.so") } });
    LOOK_AT(in("program"));
    CHECK_EQ(program.library_count, 3);
    CHECK_STR(program.libraries[0].path, in("far/libllama-b.so"));
    CHECK_STR(program.libraries[1].path, in("far/libggml-no.so"));
    CHECK(!program.libraries[1].found);
    CHECK_STR(program.libraries[2].path, in("far/libggml-a.so"));
}

/* ggml's backends lie beside it; PyTorch and llama_cpp in the folder of a Python's packages. */
static void what_is_opened_at_run_time_is_guessed(void)
{
    make_folder("ggml"), make_folder("ggml/ggml"), make_folder("ggml/ggml/backends1");
    write_elf("ggml/libggml.so", (struct elf_file){ .exported = mp_check_hooks[1] });
    write_elf("ggml/libggml-base.so", (struct elf_file){ 0 });
    write_elf("ggml/libggml-cpu.so", (struct elf_file){ 0 });
    write_elf("ggml/libother.so", (struct elf_file){ .exported = mp_check_hooks[0] });
    write_elf("ggml/ggml/backends1/libggml-hip.so", (struct elf_file){ 0 });
    write_elf("program", (struct elf_file){ .interpreter = LOADER,
                                            .run_path = "$ORIGIN/ggml",
                                            .needed = { "libggml.so", "libother.so" } });
    LOOK_AT(in("program"));
    LIBRARIES("ggml/libggml.so", "+ggml/libggml-cpu.so", "+ggml/ggml/backends1/libggml-hip.so");
    for (size_t i = 0; mp_check_hooks[i] != NULL; i++)
        CHECK_EQ(program.hooks[i], i == 1);

    make_folder("bin"), make_folder("lib"), make_folder("lib/python3.9");
    make_folder("lib/python3.9/site-packages");
    make_folder("lib/python3.9/site-packages/torch");
    make_folder("lib/python3.9/site-packages/torch/lib");
    make_folder("lib/python3.9/site-packages/llama_cpp");
    make_folder("lib/python3.9/site-packages/llama_cpp/lib");
    write_elf("bin/python3", (struct elf_file){ .interpreter = LOADER });
    write_elf("lib/python3.9/site-packages/torch/lib/libtorch_cpu.so", (struct elf_file){ 0 });
    write_elf("lib/python3.9/site-packages/llama_cpp/lib/libllama.so", (struct elf_file){ 0 });
    LOOK_AT(in("bin/python3"));
    LIBRARIES("+bin/../lib/python3.9/site-packages/torch/lib/libtorch_cpu.so",
              "+bin/../lib/python3.9/site-packages/llama_cpp/lib/libllama.so");
    write_elf("bin/other", (struct elf_file){ .interpreter = LOADER });
    LOOK_AT(in("bin/other"));
    CHECK_EQ(program.library_count, 0);
}

static void other_rights_are_seen(void)
{
    write_elf("program", (struct elf_file){ .interpreter = LOADER });
    LOOK_AT(in("program"));
    CHECK(!program.privileged);
    CHECK_EQ(chmod(in("program"), 02755), 0);
    LOOK_AT(in("program"));
    CHECK(program.privileged);
    CHECK_EQ(chmod(in("program"), 04755), 0);
    LOOK_AT(in("program"));
    CHECK(program.privileged);
}

int main(void)
{
    CHECK_EQ(mp_environment_copy(&environment), MP_OK);
    CHECK_EQ(mp_environment_set(&environment, "PATH", test_tmpdir()), MP_OK);
    CHECK_EQ(mp_environment_set(&environment, "LD_LIBRARY_PATH", ""), MP_OK);
    RUN(scripts_are_seen_through);
    RUN(scripts_of_scripts_have_an_end);
    RUN(python_may_ignore_its_path);
    RUN(a_loader_by_name_is_seen_through);
    RUN(backends_lie_beside_the_loader);
    RUN(env_is_seen_through);
    RUN(folders_are_tried_in_the_loaders_order);
    RUN(libraries_are_listed_once);
    RUN(what_is_opened_at_run_time_is_guessed);
    RUN(other_rights_are_seen);
    mp_environment_fini(&environment);
    return 0;
}
