/*
 * The check as text for a person and as JSON.
 */
#include "engine/preload/check.h"

#include <inttypes.h>
#include <string.h>

#include "vmm/base/text.h"
#include "vmm/output/json_out.h"

static const char *const start_names[] = { "dynamic", "static", "other machine", "unknown" };

static bool is_fatal(const struct mp_check *check)
{
    for (uint32_t i = 0; i < check->note_count; i++) {
        if (check->notes[i].fatal)
            return true;
    }
    return false;
}

/* Of "DIR/libggml-cpu-zen4.so" the bytes before "zen4"; 0: its name has no such part. */
static size_t stem_bytes(const char *path)
{
    const char *dash = strrchr(path, '-'), *slash = strrchr(path, '/');

    return dash == NULL || (slash != NULL && dash < slash) ? 0 : (size_t)(dash - path) + 1;
}

/* How many modules from the i-th on are the same for other processors: the program opens one. */
static uint32_t count_variants(const struct mp_check_program *program, uint32_t i)
{
    const char *path = program->libraries[i].path;
    const size_t stem = stem_bytes(path);
    uint32_t n = 1;

    while (stem > 0 && program->libraries[i].module && program->libraries[i].found &&
           i + n < program->library_count && program->libraries[i + n].module &&
           program->libraries[i + n].found && stem_bytes(program->libraries[i + n].path) == stem &&
           memcmp(program->libraries[i + n].path, path, stem) == 0)
        n++;
    return n;
}

static void print_libraries(const struct mp_check_program *program, FILE *out)
{
    for (uint32_t i = 0, n; i < program->library_count; i += n) {
        const char *path = program->libraries[i].path, *head = i == 0 ? "libraries" : "";

        n = count_variants(program, i);
        if (n > 1)
            fprintf(out, "%-14s%.*s*.so (one of %u, opened at run time)\n", head,
                    (int)stem_bytes(path), path, n);
        else
            fprintf(out, "%-14s%s%s%s\n", head, path,
                    program->libraries[i].module ? " (opened at run time)" : "",
                    program->libraries[i].found ? "" : " (not found)");
    }
}

static void print_program(const struct mp_check_program *program, FILE *out)
{
    unsigned hooks = 0;

    fprintf(out, "program       %s, %s", program->path[0] != '\0' ? program->path : "not found",
            start_names[program->start]);
    if (strcmp(program->path, program->loaded) != 0)
        fprintf(out, ", run by %s", program->loaded);
    fprintf(out, "\n");
    if (program->interpreter[0] != '\0')
        fprintf(out, "loader        %s\n", program->interpreter);
    print_libraries(program, out);
    for (size_t i = 0; mp_check_hooks[i] != NULL; i++) {
        if (program->hooks[i])
            fprintf(out, "%-14s%s\n", hooks++ == 0 ? "hooks" : "", mp_check_hooks[i]);
    }
    if (hooks == 0)
        fprintf(out, "hooks         %s\n",
                program->start != MP_CHECK_DYNAMIC ? "not looked at"
                : program->missing                 ? "not known, because a library was not found"
                                                   : "none but those of libc");
    if (program->python)
        fprintf(out, "python        the module reports the router's choice, with transformers\n");
}

static void print_model(const struct mp_check_model *model, FILE *out)
{
    uint64_t least = UINT64_MAX, most = 0;
    char text[MP_TEXT_SIZE_BYTES], low[MP_TEXT_SIZE_BYTES], high[MP_TEXT_SIZE_BYTES];

    fprintf(out, "model         %s\n", model->path);
    if (model->error[0] != '\0' || model->expert_bytes == 0)
        return;
    for (uint32_t i = 0; i < model->layer_count; i++) {
        least = model->layers[i].bytes < least ? model->layers[i].bytes : least;
        most = model->layers[i].bytes > most ? model->layers[i].bytes : most;
    }
    fprintf(out, "experts       %s in %u layers of %u experts, %s to %s each layer;",
            mp_text_size(model->expert_bytes, text), model->layer_count, model->experts,
            mp_text_size(least, low), mp_text_size(most, high));
    for (uint32_t i = 0; i < model->kind_count; i++)
        fprintf(out, "%s %s %s", i == 0 ? "" : ",", model->kinds[i].type,
                mp_text_size(model->kinds[i].bytes, text));
    fprintf(out, "\nother weights %s\n", mp_text_size(model->dense_bytes, text));
}

void mp_check_print(const struct mp_check *check, const struct mp_settings *settings, FILE *out)
{
    const struct mp_opt *opt = mp_opt_find(settings->groups, "MOEPAGER_BUDGET", NULL);
    char text[MP_OPT_TEXT_BYTES], memlock[32] = "unlimited";
    char room[MP_TEXT_SIZE_BYTES], group[MP_TEXT_SIZE_BYTES] = "none";

    print_program(&check->program, out);
    for (uint32_t i = 0; i < check->model_count; i++)
        print_model(&check->models[i], out);
    mp_opt_format(opt, &settings->run.budget, text);
    if (check->model_count > 0)
        fprintf(out, "budget        %s: %s\n", text, mp_text_size(check->budget_bytes, room));
    else
        fprintf(out, "budget        %s of a model that is not known yet\n", text);
    fprintf(out, "mechanism     %s\n",
            is_fatal(check) ? "none: the program runs as without moepager"
                            : "resident experts are mapped over the file's own mapping");
    if (check->room.limit_bytes != UINT64_MAX)
        mp_text_size(check->room.limit_bytes, group);
    if (check->memlock_bytes != UINT64_MAX)
        snprintf(memlock, sizeof(memlock), "%" PRIu64 " KiB", check->memlock_bytes >> 10);
    fprintf(out,
            "machine       %s free, limit of the control group %s, vm.max_map_count "
            "%" PRIu64 ", ulimit -l %s\n",
            mp_text_size(check->room.room_bytes, room), group, check->maps_max, memlock);
    fprintf(out, "library       %s\n", check->library[0] != '\0' ? check->library : "not found");
    for (uint32_t i = 0; i < check->note_count; i++)
        fprintf(out, "%-14s%s\n", check->notes[i].fatal ? "in the way" : "note",
                check->notes[i].text);
}

static void json_program(const struct mp_check_program *program, struct mp_json_out *json)
{
    mp_json_object_begin(json, "program");
    mp_json_put_string(json, "path", program->path);
    mp_json_put_string(json, "loaded", program->loaded);
    mp_json_put_string(json, "loader", program->interpreter);
    mp_json_put_string(json, "start", start_names[program->start]);
    mp_json_put_bool(json, "privileged", program->privileged);
    mp_json_put_bool(json, "python", program->python);
    mp_json_array_begin(json, "libraries");
    for (uint32_t i = 0; i < program->library_count; i++) {
        mp_json_object_begin(json, NULL);
        mp_json_put_string(json, "path", program->libraries[i].path);
        mp_json_put_bool(json, "found", program->libraries[i].found);
        mp_json_put_bool(json, "module", program->libraries[i].module);
        mp_json_object_end(json);
    }
    mp_json_array_end(json);
    mp_json_put_bool(json, "hooks_known", program->start == MP_CHECK_DYNAMIC && !program->missing);
    mp_json_object_begin(json, "hooks");
    for (size_t i = 0; mp_check_hooks[i] != NULL; i++)
        mp_json_put_bool(json, mp_check_hooks[i], program->hooks[i]);
    mp_json_object_end(json);
    mp_json_object_end(json);
}

static void json_model(const struct mp_check_model *model, struct mp_json_out *json)
{
    mp_json_object_begin(json, NULL);
    mp_json_put_string(json, "path", model->path);
    mp_json_put_string(json, "error", model->error[0] != '\0' ? model->error : NULL);
    mp_json_put_u64(json, "experts", model->experts);
    mp_json_put_u64(json, "expert_bytes", model->expert_bytes);
    mp_json_put_u64(json, "dense_bytes", model->dense_bytes);
    mp_json_object_begin(json, "expert_types");
    for (uint32_t i = 0; i < model->kind_count; i++)
        mp_json_put_u64(json, model->kinds[i].type, model->kinds[i].bytes);
    mp_json_object_end(json);
    mp_json_array_begin(json, "layers");
    for (uint32_t i = 0; i < model->layer_count; i++) {
        mp_json_object_begin(json, NULL);
        mp_json_put_u64(json, "layer", model->layers[i].layer);
        mp_json_put_u64(json, "expert_bytes", model->layers[i].bytes);
        mp_json_object_end(json);
    }
    mp_json_array_end(json);
    mp_json_object_end(json);
}

/* No limit is null. */
static void json_limit(struct mp_json_out *json, const char *key, uint64_t bytes)
{
    if (bytes == UINT64_MAX)
        mp_json_put_null(json, key);
    else
        mp_json_put_u64(json, key, bytes);
}

void mp_check_json(const struct mp_check *check, const struct mp_settings *settings, FILE *out)
{
    const struct mp_opt *opt = mp_opt_find(settings->groups, "MOEPAGER_BUDGET", NULL);
    char text[MP_OPT_TEXT_BYTES];
    struct mp_json_out json;

    mp_json_begin(&json, out, true);
    mp_json_object_begin(&json, NULL);
    json_program(&check->program, &json);
    mp_json_array_begin(&json, "models");
    for (uint32_t i = 0; i < check->model_count; i++)
        json_model(&check->models[i], &json);
    mp_json_array_end(&json);
    mp_json_put_string(&json, "budget", mp_opt_format(opt, &settings->run.budget, text));
    mp_json_put_u64(&json, "budget_bytes", check->budget_bytes);
    mp_json_put_bool(&json, "pages", !is_fatal(check));
    mp_json_put_u64(&json, "room_bytes", check->room.room_bytes);
    json_limit(&json, "limit_bytes", check->room.limit_bytes);
    json_limit(&json, "memlock_bytes", check->memlock_bytes);
    mp_json_put_u64(&json, "max_map_count", check->maps_max);
    mp_json_put_string(&json, "library", check->library);
    mp_json_array_begin(&json, "notes");
    for (uint32_t i = 0; i < check->note_count; i++) {
        mp_json_object_begin(&json, NULL);
        mp_json_put_bool(&json, "in_the_way", check->notes[i].fatal);
        mp_json_put_string(&json, "text", check->notes[i].text);
        mp_json_object_end(&json);
    }
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}
