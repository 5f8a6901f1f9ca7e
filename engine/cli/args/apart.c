/*
 * Finds files that a command line names twice. Opens and writes none of them.
 */
#include "engine/cli/args/apart.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/calibrate/calibrate.h"
#include "engine/model/sidecar/calibration.h"
#include "engine/model/sidecar/llapor.h"
#include "engine/model/sidecar/token_heat.h"
#include "vmm/base/error.h"

#define OUTPUTS_MAX (MP_ARGS_FILES_MAX + 4)

enum role { OUTPUT, LOG, STREAM };

struct file {
    const char *name; /* for messages: "--trace" */
    enum role role;
    bool exists;
    mode_t mode;
    dev_t device; /* of the file, or of the directory that it would be in */
    ino_t inode;
    char base[NAME_MAX + 1]; /* its name there, if it does not exist */
};

struct list {
    struct file files[OUTPUTS_MAX];
    char names[OUTPUTS_MAX][40];
    char paths[OUTPUTS_MAX][PATH_MAX];
    size_t count;
};

/* False: there is nothing of that name, and nothing can be made there. */
static bool identify(const char *path, struct file *file)
{
    char copy[PATH_MAX], other[PATH_MAX];
    struct stat info;

    file->exists = stat(path, &info) == 0;
    if (!file->exists) {
        if ((size_t)snprintf(copy, sizeof(copy), "%s", path) >= sizeof(copy))
            return false;
        memcpy(other, copy, sizeof(copy));
        if (stat(dirname(copy), &info) != 0 ||
            (size_t)snprintf(file->base, sizeof(file->base), "%s", basename(other)) >=
                sizeof(file->base))
            return false;
    }
    file->mode = info.st_mode;
    file->device = info.st_dev;
    file->inode = info.st_ino;
    return true;
}

static bool is_same(const struct file *a, const struct file *b)
{
    if (a->exists != b->exists || a->device != b->device || a->inode != b->inode)
        return false;
    return a->exists ? !S_ISCHR(a->mode) : strcmp(a->base, b->base) == 0;
}

static void add(struct list *list, const char *name, const char *path, enum role role)
{
    struct file *file = &list->files[list->count];

    *file = (struct file){ .name = list->names[list->count], .role = role };
    if (list->count == OUTPUTS_MAX || !identify(path, file))
        return;
    /* What else goes to a stream that is no file is nobody's loss. */
    if (role == STREAM && !S_ISREG(file->mode))
        return;
    snprintf(list->names[list->count], sizeof(list->names[0]), "%s", name);
    snprintf(list->paths[list->count++], sizeof(list->paths[0]), "%s", path);
}

static enum mp_status refuse(const struct list *list, size_t output, const char *other)
{
    char quoted[MP_QUOTE_BYTES], quoted_other[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_SAME_FILE", "%s '%s' is the same file as %s; name another one",
                   list->files[output].name,
                   mp_quote(quoted, list->paths[output], strlen(list->paths[output])),
                   mp_quote(quoted_other, other, strlen(other)));
}

static enum mp_status check_input(const struct list *outputs, const char *name, const char *path)
{
    struct file input;

    if (!identify(path, &input) || !input.exists)
        return MP_OK;
    for (size_t i = 0; i < outputs->count; i++) {
        if (is_same(&outputs->files[i], &input))
            return refuse(outputs, i, name);
    }
    return MP_OK;
}

static enum mp_status check_outputs(const struct list *outputs)
{
    for (size_t i = 0; i < outputs->count; i++) {
        for (size_t j = 0; j < i; j++) {
            const struct file *a = &outputs->files[i], *b = &outputs->files[j];

            /* A log is appended to, so it may share a stream's file; streams are as they came. */
            if ((a->role == OUTPUT || b->role == OUTPUT) && is_same(a, b))
                return refuse(outputs, a->role == OUTPUT ? i : j,
                              a->role == OUTPUT ? b->name : a->name);
        }
    }
    return MP_OK;
}

/* Is this what the program reads of a model's directory? Other files may be results. */
static bool is_read(enum mp_command command, const char *name)
{
    static const char *const names[] = { "config.json",
                                         MP_SLICED_CONFIG,
                                         "generation_config.json",
                                         "model.safetensors.index.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "chat_template.jinja" };
    static const char *const learned[] = { MP_CALIBRATION_NAME, MP_LLAPOR_NAME, MP_FEATURES_NAME };
    static const char suffix[] = ".safetensors";
    const size_t bytes = strlen(name), tail = strlen(suffix);

    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(learned); i++) {
        if (strcmp(name, learned[i]) == 0)
            return command != MP_COMMAND_CALIBRATE && strcmp(name, MP_FEATURES_NAME) != 0;
    }
    return bytes > tail && strcmp(name + bytes - tail, suffix) == 0;
}

/* A GGUF file: all parts of a split one, as their names are made. */
static enum mp_status check_parts(const struct list *outputs, const char *model)
{
    const size_t length = strlen(model), tail = strlen("-00001-of-00002.gguf");
    unsigned part = 0, count = 0;
    char path[PATH_MAX];
    int end = 0;
    enum mp_status status = check_input(outputs, "--model", model);

    if (length < tail || length >= sizeof(path) ||
        sscanf(model + length - tail, "-%5u-of-%5u.gguf%n", &part, &count, &end) != 2 ||
        (size_t)end != tail)
        return status;
    for (part = 1; status == MP_OK && part <= count; part++) {
        snprintf(path, sizeof(path), "%.*s-%05u-of-%05u.gguf", (int)(length - tail), model, part,
                 count);
        status = check_input(outputs, "a part of --model", path);
    }
    return status;
}

/* A directory that cannot be read is an error of whoever reads the model. */
static enum mp_status check_model(enum mp_command command, const struct list *outputs,
                                  const char *model)
{
    char path[PATH_MAX + NAME_MAX + 2], name[NAME_MAX + 32];
    enum mp_status status = MP_OK;
    DIR *directory = outputs->count > 0 ? opendir(model) : NULL;
    const struct dirent *entry;
    struct file file;

    if (identify(model, &file) && file.exists && S_ISREG(file.mode))
        status = check_parts(outputs, model);
    while (directory != NULL && status == MP_OK && (entry = readdir(directory)) != NULL) {
        if (!is_read(command, entry->d_name))
            continue;
        snprintf(path, sizeof(path), "%s/%s", model, entry->d_name);
        snprintf(name, sizeof(name), "%s of --model", entry->d_name);
        status = check_input(outputs, name, path);
    }
    if (directory != NULL)
        closedir(directory);
    return status;
}

static bool is_stdout(const char *path)
{
    static const char *const names[] = { "-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1" };

    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        if (strcmp(path, names[i]) == 0)
            return true;
    }
    return false;
}

/* Standard output becomes the file's alone. */
static enum mp_status take_stdout(const struct mp_args_file *files, size_t count)
{
    static char path[32];
    const struct mp_args_file *taker = NULL;
    int fd;

    for (size_t i = 0; i < count; i++) {
        if (!files[i].output || !is_stdout(*files[i].path))
            continue;
        if (taker != NULL)
            return mp_fail(MP_ERR_CONFIG, "E_SAME_FILE",
                           "%s and %s are both standard output; name a file for one of them",
                           taker->name, files[i].name);
        taker = &files[i];
    }
    if (taker == NULL)
        return MP_OK;
    fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (fd < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return mp_fail(MP_ERR_IO, "E_OUTPUT", "cannot give standard output to %s: %s", taker->name,
                       strerror(errno));
    snprintf(path, sizeof(path), "/dev/fd/%d", fd);
    *taker->path = path;
    return MP_OK;
}

/* What calibrate writes besides the files of flags. */
static void add_defaults(struct list *outputs, const struct mp_args *args)
{
    char path[PATH_MAX], out[PATH_MAX];

    snprintf(path, sizeof(path), "%s/" MP_CALIBRATION_NAME,
             args->model != NULL ? args->model : ".");
    if (args->out == NULL)
        add(outputs, "the calibration", path, OUTPUT);
    snprintf(out, sizeof(out), "%s", args->out != NULL ? args->out : path);
    if (args->features && mp_sidecar_beside(out, MP_FEATURES_NAME, path, sizeof(path)))
        add(outputs, "the features", path, OUTPUT);
    if (args->token_heat && mp_sidecar_beside(out, MP_TOKEN_HEAT_NAME, path, sizeof(path)))
        add(outputs, "the experts by token", path, OUTPUT);
}

static enum mp_status check_inputs(enum mp_command command, const struct list *outputs,
                                   const struct mp_args *args, const struct mp_settings *settings,
                                   const struct mp_args_file *files, size_t count)
{
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < count && status == MP_OK; i++) {
        if (files[i].output)
            continue;
        status = check_input(outputs, files[i].name,
                             strcmp(*files[i].path, "-") == 0 ? "/dev/stdin" : *files[i].path);
    }
    if (status == MP_OK && command != MP_COMMAND_CALIBRATE)
        status = check_input(outputs, "--calibration", settings->run.calibration);
    if (status == MP_OK)
        status = check_input(outputs, "--llapor", settings->run.llapor);
    if (status == MP_OK)
        status = check_input(outputs, "--heat-map", settings->run.heat_map);
    if (status == MP_OK && args->model != NULL && command != MP_COMMAND_SIMULATE)
        status = check_model(command, outputs, args->model);
    return status;
}

enum mp_status mp_files_apart(enum mp_command command, struct mp_args *args,
                              const struct mp_settings *settings)
{
    static struct list outputs;
    struct mp_args_file files[MP_ARGS_FILES_MAX];
    const size_t count = mp_args_files(command, args, files);
    enum mp_status status = take_stdout(files, count);

    if (status != MP_OK)
        return status;
    outputs.count = 0;
    for (size_t i = 0; i < count; i++) {
        if (files[i].output)
            add(&outputs, files[i].name, *files[i].path, OUTPUT);
    }
    if (command == MP_COMMAND_CALIBRATE)
        add_defaults(&outputs, args);
    if (settings->log.file[0] != '\0')
        add(&outputs, "--log-file", settings->log.file, LOG);
    add(&outputs, "standard output", "/dev/fd/1", STREAM);
    add(&outputs, "standard error", "/dev/fd/2", STREAM);
    status = check_outputs(&outputs);
    return status == MP_OK ? check_inputs(command, &outputs, args, settings, files, count) : status;
}
