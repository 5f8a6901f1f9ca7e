/*
 * Combines the parts of the check and lists obstacles.
 */
#include "engine/preload/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/base/error.h"

static MP_PRINTF(3, 4) void note(struct mp_check *check, bool fatal, const char *format, ...)
{
    struct mp_check_note *to = &check->notes[check->note_count];
    va_list args;

    if (check->note_count == MP_CHECK_NOTES_MAX)
        return;
    check->note_count++;
    to->fatal = fatal;
    va_start(args, format);
    vsnprintf(to->text, sizeof(to->text), format, args);
    va_end(args);
}

static bool ends_as_model(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot != NULL && (strcmp(dot, ".gguf") == 0 || strcmp(dot, ".safetensors") == 0);
}

/* Beside a model that is there it may be a file that is to be written or fetched; else it is the
 * model, and nothing can be paged. */
static void note_missing(struct mp_check *check, const char *name, int error_number)
{
    const bool alone = check->model_count == 0;

    note(check, alone, "%s: %s%s", name, strerror(error_number),
         alone ? "; no model is there: look at its name" : "");
}

/* Arguments, and what follows a '=' in them. */
static void find_models(char **argv, struct mp_check *check)
{
    const char *missing = NULL;
    int error_number = 0;

    for (int i = 1; argv[i] != NULL && check->model_count < MP_CHECK_MODELS_MAX; i++) {
        const char *equals = strchr(argv[i], '=');
        const char *name = equals != NULL && access(argv[i], F_OK) != 0 ? equals + 1 : argv[i];

        if (mp_check_look_at_model(name, &check->models[check->model_count])) {
            check->model_count++;
            check->names_model = true;
        } else if (missing == NULL && ends_as_model(name) && access(name, F_OK) != 0) {
            error_number = errno;
            missing = name;
            check->names_model = true;
        }
    }
    if (missing != NULL)
        note_missing(check, missing, error_number);
}

static void notes_of_program(struct mp_check *check)
{
    const struct mp_check_program *program = &check->program;

    if (program->error[0] != '\0')
        note(check, true, "%s: %s", program->path[0] != '\0' ? program->path : "the command",
             program->error);
    if (program->start == MP_CHECK_STATIC)
        note(check, true,
             "it is linked statically, so nothing can be preloaded; take a build with "
             "shared libraries");
    if (program->start == MP_CHECK_FOREIGN)
        note(check, true, "it is for another machine or word size than the library");
    if (program->privileged)
        note(check, true,
             "it runs with other rights than its caller's, so the loader preloads "
             "nothing; take the set-user-id bit or the capabilities away");
    if (strstr(program->interpreter, "ld-musl") != NULL)
        note(check, true, "it uses musl, and the library glibc; build the library with musl");
    if (program->isolated)
        note(check, false,
             "Python ignores PYTHONPATH (-I, -E, -S): experts are known by "
             "what is read, not by the router; leave that flag out");
}

/* Flags of llama.cpp that take the experts out of their file. */
static void notes_of_flags(char **argv, struct mp_check *check)
{
    for (int i = 1; argv[i] != NULL; i++) {
        const char *next = argv[i + 1] != NULL ? argv[i + 1] : "";

        if (strcmp(argv[i], "--no-mmap") == 0 ||
            ((strcmp(argv[i], "-mmp") == 0 || strcmp(argv[i], "--mmap") == 0) &&
             strcmp(next, "0") == 0))
            note(check, true, "%s: the model is copied into memory instead of mapped; leave it out",
                 argv[i]);
        if (strcmp(argv[i], "--load-mode") == 0 && strcmp(next, "mmap") != 0)
            note(check, true, "--load-mode %s: the model is not mapped; take mmap", next);
        if (strcmp(argv[i], "--mlock") == 0)
            note(check, false,
                 "--mlock: locks the file's pages in memory, also those of experts; "
                 "leave it out");
    }
}

static void notes_of_model(const struct mp_check_model *model, struct mp_check *check)
{
    if (model->error[0] != '\0')
        note(check, true, "%s", model->error);
    else if (model->expert_bytes == 0)
        note(check, true, "%s has no experts: nothing is paged", model->path);
    else if (model->single_bytes > 0 && model->gguf)
        note(check, true,
             "%s has a tensor for each expert, as files of 2023 have: convert the "
             "model again",
             model->path);
    else if (model->single_bytes > 0)
        note(check, true,
             "%s has a tensor for each expert, which transformers joins in memory of "
             "its own; save it once with model.save_pretrained(DIR, "
             "save_original_format=False) and use that",
             model->path);
}

/* Bytes of experts of all models that can be paged, and of the rest. */
static uint64_t sum(const struct mp_check *check, uint64_t *dense_p)
{
    uint64_t experts = 0;

    *dense_p = 0;
    for (uint32_t i = 0; i < check->model_count; i++) {
        experts += check->models[i].expert_bytes - check->models[i].single_bytes;
        *dense_p += check->models[i].dense_bytes + check->models[i].single_bytes;
    }
    return experts;
}

/* Two of the largest experts. */
static uint64_t smallest(const struct mp_check *check)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < check->model_count; i++) {
        const struct mp_check_model *model = &check->models[i];

        for (uint32_t l = 0; l < model->layer_count; l++) {
            if (2 * model->layers[l].bytes / model->experts > bytes)
                bytes = 2 * model->layers[l].bytes / model->experts;
        }
    }
    return bytes;
}

static void resolve_budget(const struct mp_settings *settings, struct mp_check *check)
{
    const struct mp_share *share = &settings->run.budget;
    uint64_t dense;
    const uint64_t experts = sum(check, &dense);

    check->budget_bytes =
        mp_share_resolve(share, experts, mp_memory_room_beside(&check->room, dense));
    check->everything = experts == 0 || check->budget_bytes >= experts;
    if (experts > 0 && check->everything)
        note(check, true, "the budget holds all experts: nothing changes");
    else if (share->kind != MP_SHARE_AUTO && check->budget_bytes < smallest(check))
        note(check, true,
             "the budget of %" PRIu64 " bytes holds no two experts, %" PRIu64 " bytes: "
             "nothing is paged",
             check->budget_bytes, smallest(check));
    if (dense > check->room.room_bytes)
        note(check, false,
             "%.1f GiB are not experts and do not fit into the memory that is free, "
             "%.1f GiB",
             (double)dense / (1u << 30), (double)check->room.room_bytes / (1u << 30));
}

/* Frames lie in a file in memory. */
static void note_file_limit(struct mp_check *check)
{
    struct rlimit limit;

    if (!check->everything && getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
        limit.rlim_cur < check->budget_bytes)
        note(check, true,
             "ulimit -f allows files of %" PRIu64 " KiB, and the budget needs %" PRIu64
             ": nothing is paged; ulimit -f unlimited",
             (uint64_t)limit.rlim_cur >> 10, check->budget_bytes >> 10);
}

static void look_at_machine(struct mp_check *check)
{
    struct rlimit limit;
    uint64_t count;

    mp_memory_room_read("", &check->room);
    if (!mp_memory_maps_read("", &count, &check->maps_max))
        check->maps_max = 0;
    check->memlock_bytes = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 ? limit.rlim_cur : 0;
}

/* An expert has up to three pieces, and whichever of them are resident, there are no more mappings
 * than pieces. */
static void notes_of_machine(struct mp_check *check)
{
    uint64_t wanted = MP_MEMORY_MAPS_SPARE;

    for (uint32_t i = 0; i < check->model_count; i++)
        wanted += 3 * (uint64_t)check->models[i].layer_count * check->models[i].experts;
    if (check->maps_max > 0 && wanted > check->maps_max && !check->everything)
        note(check, false,
             "vm.max_map_count is %" PRIu64 ", and %" PRIu64 " may be wanted: fewer "
             "experts are kept if so; sysctl -w vm.max_map_count=%" PRIu64,
             check->maps_max, wanted, 2 * wanted);
}

/* What the functions say that the program's libraries have. */
static void notes_of_hooks(struct mp_check *check)
{
    const struct mp_check_program *program = &check->program;
    bool ggml = false, any = false;

    for (uint32_t i = 0; i < program->library_count; i++)
        ggml = ggml || strstr(program->libraries[i].path, "ggml") != NULL;
    for (size_t i = 0; mp_check_hooks[i] != NULL; i++)
        any = any || program->hooks[i];
    if (program->start != MP_CHECK_DYNAMIC)
        return;
    for (uint32_t i = 0; i < program->library_count && program->missing; i++) {
        if (!program->libraries[i].found) {
            note(check, false,
                 "%.120s was not found where the loader looks, so its hooks are not known; name "
                 "its folder in LD_LIBRARY_PATH or --library-path, as the program needs it too",
                 program->libraries[i].path);
            break;
        }
    }
    if (program->library_count == 0 && !program->python)
        note(check, false,
             "it loads no ggml, llama.cpp, CUDA or PyTorch; programs that it starts, as a shell "
             "does, are not looked at");
    if (ggml && !any && !program->missing)
        note(check, false,
             "this ggml exports none of the functions that say which experts are "
             "read: they are known by what is touched");
    if (!check->names_model)
        note(check, false,
             "no argument names a model: what the program maps later is looked at "
             "then");
}

enum mp_status mp_check_make(char **argv, const struct mp_settings *settings,
                             struct mp_check **check_p)
{
    struct mp_check *check = calloc(1, sizeof(*check));
    struct mp_environment environment;
    enum mp_status status;

    if (check == NULL)
        return mp_fail_no_memory("the check", sizeof(*check));
    status = mp_environment_copy(&environment);
    if (status != MP_OK) {
        free(check);
        return status;
    }
    if (mp_preload_find_library(check->library) != MP_OK) {
        note(check, true, "%s", mp_error_last()->text);
        check->library[0] = '\0';
        mp_error_clear();
    }
    mp_check_look_at_program(&environment, argv, &check->program);
    mp_environment_fini(&environment);
    notes_of_program(check);
    notes_of_flags(argv, check);
    find_models(argv, check);
    for (uint32_t i = 0; i < check->model_count; i++)
        notes_of_model(&check->models[i], check);
    look_at_machine(check);
    resolve_budget(settings, check);
    note_file_limit(check);
    notes_of_machine(check);
    notes_of_hooks(check);
    *check_p = check;
    return MP_OK;
}

void mp_check_destroy(struct mp_check *check)
{
    if (check == NULL)
        return;
    for (uint32_t i = 0; i < check->model_count; i++)
        free(check->models[i].layers);
    free(check);
}
