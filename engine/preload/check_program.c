/*
 * Programs and libraries, as the dynamic loader would find them: DT_NEEDED, starting at the
 * program, searched in LD_LIBRARY_PATH, in the files' run paths, and in the default folders.
 * Libraries opened at run time are guessed: ggml's backends are beside ggml or the program, PyTorch
 * and llama_cpp in the package folder of the Python.
 */
#include "engine/preload/check.h"

#include <elf.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "vmm/base/error.h"
#include "vmm/format/elf.h"

#define SEEN_MAX 256u
#define SCRIPTS_MAX 4

/* From interpose/preload/preload.map, as the build found them there. */
const char *const mp_check_hooks[] = { MP_HOOK_NAMES NULL };

_Static_assert(sizeof(mp_check_hooks) / sizeof(mp_check_hooks[0]) <=
                   sizeof(((struct mp_check_program *)0)->hooks) + 1,
               "hooks has room for all");

struct closure {
    struct mp_check_program *program;
    const char *library_path; /* LD_LIBRARY_PATH and a loader's argument, or NULL */
    char old_path[2048];      /* DT_RPATH of the program, which its libraries inherit */
    char origin[PATH_MAX];    /* the program's folder, which $ORIGIN means there */
    char started[PATH_MAX];   /* the folder of /proc/self/exe: the loader's if one is named */
    char seen[SEEN_MAX][PATH_MAX];
    uint32_t count, next;
};

static bool read_fd(void *context, uint64_t offset, uint64_t bytes, void *dst)
{
    char *to = dst;

    for (uint64_t done = 0; done < bytes;) {
        const ssize_t got =
            pread(*(const int *)context, to + done, bytes - done, (off_t)(offset + done));

        if (got <= 0)
            return false;
        done += (uint64_t)got;
    }
    return true;
}

/* False: it is no regular file, or cannot be opened. *fd is the source's context. */
static bool open_source(const char *path, int *fd, struct mp_elf_source *source)
{
    struct stat info;

    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return false;
    if (fstat(*fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(*fd);
        return false;
    }
    *source = (struct mp_elf_source){ read_fd, fd, (uint64_t)info.st_size };
    return true;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

/* Does a library of this name bear on paging? */
static bool is_of_interest(const char *name)
{
    static const char *const words[] = { "libggml",  "libllama", "libmtmd",   "libcudart",
                                         "libcuda.", "libtorch", "libvulkan", "libmoepager" };

    for (size_t i = 0; i < MP_ARRAY_LEN(words); i++) {
        if (strncmp(name, words[i], strlen(words[i])) == 0)
            return true;
    }
    return false;
}

static bool was_seen(const struct closure *closure, const char *name)
{
    for (uint32_t i = 0; i < closure->count; i++) {
        if (strcmp(base_of(closure->seen[i]), name) == 0)
            return true;
    }
    return false;
}

static void note_library(struct mp_check_program *program, const char *path, bool found,
                         bool module)
{
    struct mp_check_library *library = &program->libraries[program->library_count];

    if (!is_of_interest(base_of(path)) || program->library_count == MP_CHECK_LIBRARIES_MAX)
        return;
    snprintf(library->path, sizeof(library->path), "%s", path);
    library->found = found;
    library->module = module;
    program->missing = program->missing || !found;
    program->library_count++;
}

static void push(struct closure *closure, const char *path, bool module)
{
    if (closure->count == SEEN_MAX || was_seen(closure, base_of(path)))
        return;
    snprintf(closure->seen[closure->count++], PATH_MAX, "%s", path);
    note_library(closure->program, path, true, module);
}

/* One folder of a list, with $ORIGIN in it, and the name: is there such a file? */
static bool try_folder(const char *folder, size_t bytes, const char *origin, const char *name,
                       char path[PATH_MAX])
{
    static const char *const words[] = { "$ORIGIN", "${ORIGIN}" };
    int length = -1;

    for (size_t i = 0; i < MP_ARRAY_LEN(words) && length < 0; i++) {
        const size_t word = strlen(words[i]);

        if (bytes >= word && strncmp(folder, words[i], word) == 0)
            length = snprintf(path, PATH_MAX, "%s%.*s/%s", origin, (int)(bytes - word),
                              folder + word, name);
    }
    if (length < 0)
        length = snprintf(path, PATH_MAX, "%.*s/%s", (int)bytes, folder, name);
    return length < PATH_MAX && access(path, R_OK) == 0;
}

static bool try_list(const char *list, const char *origin, const char *name, char path[PATH_MAX])
{
    while (list != NULL && *list != '\0') {
        const size_t bytes = strcspn(list, ":;");

        if (bytes > 0 && try_folder(list, bytes, origin, name, path))
            return true;
        list += bytes + (list[bytes] != '\0');
    }
    return false;
}

static bool find_library(const struct closure *closure, const struct mp_elf *elf,
                         const char *origin, const char *name, char path[PATH_MAX])
{
    static const char usual[] = "/lib/" MP_MULTIARCH ":/usr/lib/" MP_MULTIARCH
                                ":/lib64:/usr/lib64:/lib:/usr/lib:/usr/local/lib";

    if (strchr(name, '/') != NULL)
        return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX && access(path, R_OK) == 0;
    return (elf->run_path == NULL && (try_list(elf->old_path, origin, name, path) ||
                                      try_list(closure->old_path, closure->origin, name, path))) ||
           try_list(closure->library_path, origin, name, path) ||
           try_list(elf->run_path, origin, name, path) || try_list(usual, origin, name, path);
}

/* Backends lie beside ggml or the program, or in a folder of their own below. */
static void push_modules(struct closure *closure, const char *folder)
{
    static const char *const patterns[] = { "/libggml-*.so", "/ggml/backends*/libggml-*.so" };

    for (size_t i = 0; i < MP_ARRAY_LEN(patterns); i++) {
        char pattern[PATH_MAX];
        glob_t found;

        if (snprintf(pattern, sizeof(pattern), "%s%s", folder, patterns[i]) >=
                (int)sizeof(pattern) ||
            glob(pattern, 0, NULL, &found) != 0)
            continue;
        for (size_t f = 0; f < found.gl_pathc; f++) {
            if (strcmp(base_of(found.gl_pathv[f]), "libggml-base.so") != 0) /* a name to link by */
                push(closure, found.gl_pathv[f], true);
        }
        globfree(&found);
    }
}

static void note_hooks(struct mp_check_program *program, const char *path,
                       const struct mp_elf_source *source)
{
    bool found[MP_ARRAY_LEN(mp_check_hooks)];
    const size_t count = MP_ARRAY_LEN(mp_check_hooks) - 1;

    if (mp_elf_find_exports(source, path, mp_check_hooks, count, found) != MP_OK)
        return;
    for (size_t i = 0; i < count; i++)
        program->hooks[i] = program->hooks[i] || found[i];
}

/* The folder of what `path` leads to. */
static void origin_of(const char *path, char origin[PATH_MAX])
{
    char *slash;

    if (realpath(path, origin) == NULL)
        snprintf(origin, PATH_MAX, "%s", path);
    slash = strrchr(origin, '/');
    if (slash != NULL)
        *slash = '\0';
}

/* What one file needs; files of another machine are not followed. */
static void follow(struct closure *closure, const char *path)
{
    char origin[PATH_MAX], found[PATH_MAX];
    struct mp_elf_source source;
    struct mp_elf elf;
    int fd;

    if (!open_source(path, &fd, &source))
        return;
    if (mp_elf_read(&source, path, &elf) == MP_OK) {
        origin_of(path, origin);
        for (uint32_t i = 0; i < elf.needed_count; i++) {
            if (was_seen(closure, base_of(elf.needed[i])))
                continue;
            if (find_library(closure, &elf, origin, elf.needed[i], found))
                push(closure, found, false);
            else
                note_library(closure->program, elf.needed[i], false, false);
        }
        if (strstr(base_of(path), "ggml") != NULL || strstr(base_of(path), "llama") != NULL) {
            note_hooks(closure->program, path, &source);
            push_modules(closure, origin);
            if (strcmp(origin, closure->started) != 0)
                push_modules(closure, closure->started);
        }
        mp_elf_fini(&elf);
    }
    mp_error_clear();
    close(fd);
}

/* What packages of this Python would load. */
static void push_packages(struct closure *closure, const char *python)
{
    static const char *const patterns[] = { "torch/lib/libtorch_cpu.so",
                                            "llama_cpp/lib/libllama.so" };
    char folder[PATH_MAX], pattern[PATH_MAX + 64];

    snprintf(folder, sizeof(folder), "%s", python);
    if (strrchr(folder, '/') == NULL)
        return;
    *strrchr(folder, '/') = '\0';
    for (size_t i = 0; i < MP_ARRAY_LEN(patterns); i++) {
        glob_t found;

        snprintf(pattern, sizeof(pattern), "%s/../lib/python3*/*-packages/%s", folder, patterns[i]);
        if (glob(pattern, 0, NULL, &found) != 0)
            continue;
        push(closure, found.gl_pathv[0], true);
        globfree(&found);
    }
}

/* The program of "#!/usr/bin/env -S python3 -u" and the like; false: it is no script. */
static bool interpreter_of(const struct mp_environment *environment, const char *path,
                           char interpreter[PATH_MAX])
{
    char line[512] = "", *save, *word;
    struct stat info;
    FILE *file = NULL;
    bool is_script;
    int unused;

    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) /* a pipe would be waited for */
        file = fopen(path, "re");
    if (file == NULL)
        return false;
    is_script = fgets(line, sizeof(line), file) != NULL && strncmp(line, "#!", 2) == 0;
    fclose(file);
    word = is_script ? strtok_r(line + 2, " \t\n", &save) : NULL;
    if (word == NULL)
        return false;
    if (strcmp(base_of(word), "env") != 0) {
        snprintf(interpreter, PATH_MAX, "%s", word);
        return true;
    }
    do {
        word = strtok_r(NULL, " \t\n", &save);
    } while (word != NULL && (word[0] == '-' || strchr(word, '=') != NULL));
    return word != NULL && mp_preload_find_program(environment, word, interpreter, &unused);
}

static bool is_loader(const char *path)
{
    const char *name = base_of(path);

    return strncmp(name, "ld-", 3) == 0 || strcmp(name, "ld.so") == 0;
}

static bool has_value(const char *option)
{
    static const char *const options[] = {
        "--library-path",        "--preload", "--argv0",
        "--inhibit-rpath",       "--audit",   "--glibc-hwcaps-mask",
        "--glibc-hwcaps-prepend"
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(options); i++) {
        if (strcmp(option, options[i]) == 0)
            return true;
    }
    return false;
}

/* A loader that is called by name: `ld.so --library-path LIST PROGRAM`. */
static void see_through_loader(char **argv, struct closure *closure)
{
    struct mp_check_program *program = closure->program;

    if (!is_loader(program->loaded))
        return;
    snprintf(program->interpreter, sizeof(program->interpreter), "%s", program->loaded);
    for (int i = 1; argv[i] != NULL; i++) {
        if (strncmp(argv[i], "--", 2) != 0) {
            snprintf(program->loaded, sizeof(program->loaded), "%s", argv[i]);
            return;
        }
        if (strcmp(argv[i], "--library-path") == 0 && argv[i + 1] != NULL)
            closure->library_path = argv[i + 1];
        if (has_value(argv[i]))
            i += argv[i + 1] != NULL;
    }
}

static void see_through_scripts(const struct mp_environment *environment,
                                struct mp_check_program *program)
{
    char interpreter[PATH_MAX];

    for (int i = 0; i < SCRIPTS_MAX && interpreter_of(environment, program->loaded, interpreter);
         i++)
        memcpy(program->loaded, interpreter, sizeof(interpreter));
}

/* `env NAME=VALUE... PROGRAM`, without options. Returns the arguments, from the program on. */
static char **see_through_env(const struct mp_environment *environment, char **argv,
                              struct closure *closure)
{
    static const char variable[] = "LD_LIBRARY_PATH=";
    const char *list = closure->library_path;
    char path[PATH_MAX], **at = argv;
    int unused;

    if (strcmp(base_of(closure->program->loaded), "env") != 0)
        return argv;
    for (at++; *at != NULL && **at != '-' && strchr(*at, '=') != NULL; at++) {
        if (strncmp(*at, variable, strlen(variable)) == 0)
            list = *at + strlen(variable);
    }
    if (*at == NULL || !mp_preload_find_program(environment, *at, path, &unused))
        return argv;
    closure->library_path = list;
    memcpy(closure->program->loaded, path, sizeof(path));
    see_through_scripts(environment, closure->program);
    return at;
}

static uint16_t own_machine(void)
{
    struct mp_elf_source source;
    struct mp_elf elf = { 0 };
    uint16_t machine = EM_NONE;
    int fd;

    if (!open_source("/proc/self/exe", &fd, &source))
        return EM_NONE;
    if (mp_elf_read(&source, "/proc/self/exe", &elf) == MP_OK)
        machine = elf.machine;
    mp_elf_fini(&elf);
    close(fd);
    return machine;
}

bool mp_check_is_static(const char *path)
{
    struct mp_elf_source source;
    struct mp_elf elf;
    bool is = false;
    int fd;

    if (is_loader(path) || !open_source(path, &fd, &source))
        return false;
    if (mp_elf_read(&source, path, &elf) == MP_OK) {
        is = elf.interpreter == NULL && !elf.foreign && elf.machine == own_machine();
        mp_elf_fini(&elf);
    }
    mp_error_clear();
    close(fd);
    return is;
}

static void look_at_file(struct closure *closure)
{
    struct mp_check_program *program = closure->program;
    struct mp_elf_source source;
    struct mp_elf elf;
    struct stat info;
    int fd;

    if (!open_source(program->loaded, &fd, &source)) {
        snprintf(program->error, sizeof(program->error), "it cannot be read");
        return;
    }
    if (fstat(fd, &info) == 0)
        program->privileged = (info.st_mode & (S_ISUID | S_ISGID)) != 0 ||
                              fgetxattr(fd, "security.capability", NULL, 0) > 0;
    if (mp_elf_read(&source, program->loaded, &elf) != MP_OK) {
        snprintf(program->error, sizeof(program->error), "%.250s", mp_error_last()->text);
        mp_error_clear();
    } else {
        const bool other = elf.foreign || elf.machine != own_machine();

        program->start = other                     ? MP_CHECK_FOREIGN
                         : elf.interpreter == NULL ? MP_CHECK_STATIC
                                                   : MP_CHECK_DYNAMIC;
        if (elf.interpreter != NULL && program->interpreter[0] == '\0')
            snprintf(program->interpreter, sizeof(program->interpreter), "%s", elf.interpreter);
        if (elf.old_path != NULL && elf.run_path == NULL)
            snprintf(closure->old_path, sizeof(closure->old_path), "%s", elf.old_path);
        mp_elf_fini(&elf);
    }
    close(fd);
}

void mp_check_look_at_program(const struct mp_environment *environment, char **argv,
                              struct mp_check_program *program)
{
    struct closure *closure = calloc(1, sizeof(*closure));
    int exit_code;

    memset(program, 0, sizeof(*program));
    program->start = MP_CHECK_UNKNOWN;
    if (closure == NULL ||
        !mp_preload_find_program(environment, argv[0], program->path, &exit_code)) {
        snprintf(program->path, sizeof(program->path), "%s", argv[0]);
        snprintf(program->loaded, sizeof(program->loaded), "%s", argv[0]);
        snprintf(program->error, sizeof(program->error), "%s",
                 closure == NULL    ? "out of memory"
                 : exit_code == 127 ? "there is no such command"
                                    : "it may not be executed");
        free(closure);
        return;
    }
    closure->program = program;
    closure->library_path = mp_environment_get(environment, "LD_LIBRARY_PATH");
    program->python = mp_preload_is_python(program->path);
    snprintf(program->loaded, sizeof(program->loaded), "%s", program->path);
    see_through_scripts(environment, program);
    for (int i = 1; program->python && argv[i] != NULL && argv[i][0] == '-'; i++)
        program->isolated =
            program->isolated || (argv[i][1] != '-' && argv[i][1] != 'c' && argv[i][1] != 'm' &&
                                  strpbrk(argv[i], "IES") != NULL);
    argv = see_through_env(environment, argv, closure);
    origin_of(program->loaded, closure->started);
    see_through_loader(argv, closure);
    look_at_file(closure);
    if (program->start == MP_CHECK_DYNAMIC) {
        origin_of(program->loaded, closure->origin);
        push(closure, program->loaded, false);
        if (program->python)
            push_packages(closure, program->loaded);
        while (closure->next < closure->count)
            follow(closure, closure->seen[closure->next++]);
    }
    free(closure);
}
