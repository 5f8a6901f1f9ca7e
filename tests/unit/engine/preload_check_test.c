/*
 * `preload --check` without a process: what it notes of flags, models and the machine, and how it
 * is printed. Programs are in preload_program_test.c, the command in tests/system/cli.
 */
#include "engine/preload/check.h"

#include <inttypes.h>
#include <jansson.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/support/gguf.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

static struct mp_settings settings;

static const char *in(const char *name)
{
    static char path[GGUF_PATH_BYTES];

    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    return path;
}

static struct mp_check *make(const char *a, const char *b, const char *c)
{
    const char *const argv[] = { "/bin/sh", a, b, c, NULL };
    struct mp_check *check;

    CHECK_EQ(mp_check_make((char **)argv, &settings, &check), MP_OK);
    return check;
}

/* The note with these words, or NULL. */
static const struct mp_check_note *find_note(const struct mp_check *check, const char *part)
{
    for (uint32_t i = 0; i < check->note_count; i++) {
        if (strstr(check->notes[i].text, part) != NULL)
            return &check->notes[i];
    }
    return NULL;
}

/* Flags of llama.cpp that take the experts out of their file. */
static void flags_stand_in_the_way(void)
{
    static const struct {
        const char *args[2], *part; /* NULL: no note */
        bool fatal;
    } cases[] = {
        { { "--no-mmap" }, "--no-mmap: the model is copied", true },
        { { "-mmp", "0" }, "-mmp: the model is copied", true },
        { { "--mmap", "0" }, "--mmap: the model is copied", true },
        { { "-mmp", "1" }, NULL, false },
        { { "--mmap", "1" }, NULL, false },
        { { "-mmp" }, NULL, false },
        { { "-ngl", "0" }, NULL, false },
        { { "--load-mode", "none" }, "--load-mode none: the model is not mapped", true },
        { { "--load-mode", "mmap" }, NULL, false },
        { { "--load-mode" }, "--load-mode : the model is not mapped", true },
        { { "--mlock" }, "--mlock: locks", false },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct mp_check *check = make(cases[i].args[0], cases[i].args[1], NULL);
        const struct mp_check_note *note;

        if (cases[i].part != NULL) {
            note = find_note(check, cases[i].part);
            CHECK(note != NULL);
            CHECK_EQ(note->fatal, cases[i].fatal);
        }
        /* that no model is named, and that sh is none of these programs */
        CHECK_EQ(check->note_count, 2 + (cases[i].part != NULL));
        mp_check_destroy(check);
    }
}

/* Experts in one tensor of a layer and one by one; neither a bias, nor a layer of number 4096. */
static void tensors_are_recognised_by_name(void)
{
    static struct mp_check_model model;

    gguf_begin(6, 0);
    gguf_tensor_3d("blk.7.ffn_gate_exps.weight", 32, 2, 3, 0, 0);
    gguf_tensor("blk.4095.ffn_up.4.weight", 32, 2, 0, 768);
    gguf_tensor_3d("blk.4096.ffn_up_exps.weight", 32, 2, 9, 0, 1024);
    gguf_tensor("blk.7.ffn_gate_exps.bias", 32, 2, 0, 3328);
    gguf_tensor("blk.9.ffn_up_exps.weight", 32, 2, 1, 3584);
    gguf_tensor("output.weight", 32, 2, 0, 3712);
    gguf_data(3968);
    gguf_save(in("names.gguf"));
    CHECK(mp_check_look_at_model(in("names.gguf"), &model));
    CHECK_STR(model.error, "");
    CHECK(model.gguf);
    CHECK_EQ(model.expert_bytes, 768 + 256 + 128);
    CHECK_EQ(model.single_bytes, 256);
    CHECK_EQ(model.dense_bytes, 2304 + 256 + 256);
    CHECK_EQ(model.experts, 5);
    CHECK_EQ(model.kind_count, 2);
    CHECK_EQ(model.kinds[0].bytes, 768 + 256);
    CHECK_EQ(model.kinds[1].bytes, 128);
    CHECK_EQ(model.layer_count, 3);
    CHECK_EQ(model.layers[0].layer, 7);
    CHECK_EQ(model.layers[0].bytes, 768);
    CHECK_EQ(model.layers[1].layer, 9);
    CHECK_EQ(model.layers[2].layer, 4095);
    CHECK_EQ(model.layers[2].bytes, 256);
    free(model.layers);

    /* A tensor of two dimensions holds one expert, whatever its name says. */
    gguf_begin(1, 0);
    gguf_tensor("blk.0.ffn_gate_exps.weight", 32, 2, 0, 0);
    gguf_data(256);
    gguf_save(in("one.gguf"));
    CHECK(mp_check_look_at_model(in("one.gguf"), &model));
    CHECK_EQ(model.experts, 1);
    CHECK_EQ(model.layer_count, 1);
    free(model.layers);
}

static void folders_and_other_files(void)
{
    static struct mp_check_model model;

    CHECK(mp_check_look_at_model("tests/data/models/qwen3moe-tiny", &model));
    CHECK(!model.gguf);
    CHECK_STR(model.error, "");
    CHECK(model.experts > 1 && model.expert_bytes > 0 && model.dense_bytes > 0);
    CHECK_EQ(model.single_bytes, model.expert_bytes);
    free(model.layers);
    CHECK(!mp_check_look_at_model("tests/data/models", &model));
    CHECK(!mp_check_look_at_model("README.md", &model));
    CHECK(!mp_check_look_at_model("/no/such", &model));
    CHECK_EQ(mkdir(in("folder"), 0700), 0);
    CHECK(!mp_check_look_at_model(in("folder"), &model));
}

/* One layer whose experts are so many. */
static struct mp_check *check_experts(uint64_t experts)
{
    gguf_begin(1, 0);
    gguf_tensor_3d("blk.0.ffn_gate_exps.weight", 1, 1, experts, 0, 0);
    gguf_data(experts * 4);
    gguf_save(in("many.gguf"));
    return make("-m", in("many.gguf"), NULL);
}

static void files_may_be_too_small(void)
{
    struct rlimit limit, low;
    struct mp_check *check;

    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 500000 };
    check = check_experts(4096);
    CHECK(find_note(check, "ulimit -f") == NULL);
    CHECK_EQ(check->budget_bytes, 8192);
    mp_check_destroy(check);
    for (uint64_t bytes = 8192; bytes >= 4096; bytes -= 4096) {
        const struct mp_check_note *found;

        low = limit;
        low.rlim_cur = bytes;
        CHECK_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
        check = make("-m", in("many.gguf"), NULL);
        CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
        found = find_note(check, "ulimit -f allows files of 4 KiB, and the budget needs 8");
        CHECK((found != NULL) == (bytes < 8192));
        CHECK(found == NULL || found->fatal);
        mp_check_destroy(check);
    }
    settings.run.budget = (struct mp_share){ 0 };
}

/* Three mappings for each expert, and some that the program needs. */
static void mappings_may_be_too_few(void)
{
    uint64_t count, max, fit;
    struct mp_check *check;
    struct rlimit limit;
    char part[96];

    CHECK(mp_memory_maps_read("", &count, &max));
    CHECK_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    check = make(NULL, NULL, NULL);
    CHECK_EQ(check->maps_max, max);
    CHECK(check->memlock_bytes == limit.rlim_cur);
    CHECK(check->everything);
    mp_check_destroy(check);
    fit = max > 4096 ? (max - 4096) / 3 : 0;
    if (fit == 0 || fit * 4 + 4096 > sizeof(gguf_out)) {
        fprintf(stderr, "    vm.max_map_count is %" PRIu64 ": not reached\n", max);
        return;
    }
    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 500000 };
    check = check_experts(fit);
    CHECK(find_note(check, "max_map_count") == NULL);
    CHECK_EQ(check->budget_bytes, fit * 4 / 2);
    mp_check_destroy(check);
    check = check_experts(fit + 1);
    snprintf(part, sizeof(part), "is %" PRIu64 ", and %" PRIu64 " may be wanted", max,
             4096 + 3 * (fit + 1));
    CHECK(find_note(check, part) != NULL);
    CHECK(!find_note(check, part)->fatal);
    snprintf(part, sizeof(part), "sysctl -w vm.max_map_count=%" PRIu64, 2 * (4096 + 3 * (fit + 1)));
    CHECK(find_note(check, part) != NULL);
    CHECK(!check->everything);
    mp_check_destroy(check);
    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 1000000 };
    check = check_experts(fit + 1);
    CHECK(find_note(check, "max_map_count") == NULL); /* nothing is paged then */
    CHECK(find_note(check, "the budget holds all experts")->fatal);
    mp_check_destroy(check);
}

/* All that is printed, by hand. */
static void make_by_hand(struct mp_check *check)
{
    static struct mp_check_layer layers[] = { { 1, 96u << 20 },
                                              { 2, 3u << 20 },
                                              { 4, 128u << 20 } };
    struct mp_check_model *model = &check->models[0];
    struct mp_check_program *program = &check->program;

    memset(check, 0, sizeof(*check));
    strcpy(program->path, "/bin/serve");
    strcpy(program->loaded, "/bin/python3");
    strcpy(program->interpreter, "/lib/ld.so");
    program->start = MP_CHECK_DYNAMIC;
    program->python = true;
    program->library_count = 2;
    program->libraries[0] = (struct mp_check_library){ "/l/libggml.so", true, true };
    program->libraries[1] = (struct mp_check_library){ "libllama.so", false, false };
    program->hooks[0] = program->hooks[2] = program->missing = true;
    check->model_count = 2;
    strcpy(model->path, "/m/a.gguf");
    model->experts = 8;
    model->layer_count = 3;
    model->layers = layers;
    model->expert_bytes = 3 * (UINT64_C(1) << 30) / 2;
    model->dense_bytes = (1u << 30) - (1u << 19);
    model->kind_count = 2;
    model->kinds[0] = (struct mp_check_kind){ "Q4_K", 1u << 30 };
    model->kinds[1] = (struct mp_check_kind){ "F16", 1u << 29 };
    strcpy(check->models[1].path, "/m/b.gguf");
    strcpy(check->models[1].error, "it is broken");
    check->models[1].expert_bytes = 5;
    strcpy(check->library, "/l/libmoepager_preload.so");
    check->room = (struct mp_memory_room){ .room_bytes = UINT64_C(5) << 30,
                                           .limit_bytes = UINT64_C(6) << 30 };
    check->maps_max = 65530;
    check->memlock_bytes = 8 << 20;
    check->budget_bytes = 700u << 20;
    check->note_count = 1;
    check->notes[0] = (struct mp_check_note){ false, "a note" };
}

static const char *text_of(const struct mp_check *check, bool json)
{
    static char text[16384];
    FILE *out = fmemopen(text, sizeof(text), "w");

    CHECK(out != NULL);
    if (json)
        mp_check_json(check, &settings, out);
    else
        mp_check_print(check, &settings, out);
    CHECK_EQ(fclose(out), 0);
    return text;
}

static void the_text_is_this(void)
{
    struct mp_check *check = malloc(sizeof(*check));
    char want[4096];

    CHECK(check != NULL);
    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 500000 };
    make_by_hand(check);
    snprintf(want, sizeof(want),
             "program       /bin/serve, dynamic, run by /bin/python3\n"
             "loader        /lib/ld.so\n"
             "libraries     /l/libggml.so (opened at run time)\n"
             "              libllama.so (not found)\n"
             "hooks         %s\n"
             "              %s\n"
             "python        the module reports the router's choice, with transformers\n"
             "model         /m/a.gguf\n"
             "experts       1.50 GiB in 3 layers of 8 experts, 3.0 MiB to 128.0 MiB each layer; "
             "Q4_K 1.00 GiB, F16 512.0 MiB\n"
             "other weights 1023.5 MiB\n"
             "model         /m/b.gguf\n"
             "budget        50%%: 700.0 MiB\n"
             "mechanism     resident experts are mapped over the file's own mapping\n"
             "machine       5.00 GiB free, limit of the control group 6.00 GiB, "
             "vm.max_map_count 65530, ulimit -l 8192 KiB\n"
             "library       /l/libmoepager_preload.so\n"
             "note          a note\n",
             mp_check_hooks[0], mp_check_hooks[2]);
    CHECK_STR(text_of(check, false), want);

    /* The other half of each choice. */
    memset(&check->program, 0, sizeof(check->program));
    check->program.start = MP_CHECK_UNKNOWN;
    check->models[0].error[0] = '\0';
    check->models[0].expert_bytes = 0;
    check->model_count = 1;
    check->room.limit_bytes = check->memlock_bytes = UINT64_MAX;
    check->library[0] = '\0';
    check->notes[1] = (struct mp_check_note){ true, "a wall" };
    check->note_count = 2;
    CHECK_STR(text_of(check, false),
              "program       not found, unknown\n"
              "hooks         not looked at\n"
              "model         /m/a.gguf\n"
              "budget        50%: 700.0 MiB\n"
              "mechanism     none: the program runs as without moepager\n"
              "machine       5.00 GiB free, limit of the control group none, "
              "vm.max_map_count 65530, ulimit -l unlimited\n"
              "library       not found\n"
              "note          a note\n"
              "in the way    a wall\n");
    check->program.start = MP_CHECK_DYNAMIC;
    CHECK(strstr(text_of(check, false), "hooks         none but those of libc\n") != NULL);
    check->program.missing = true;
    CHECK(strstr(text_of(check, false), "hooks         not known, because a library was not "
                                        "found\n") != NULL);
    check->model_count = 0;
    CHECK(strstr(text_of(check, false), "budget        50% of a model that is not known yet\n") !=
          NULL);
    free(check);
}

/* ggml has a module for each kind of processor, of which a program opens one. */
static void variants_of_a_module_are_one_line(void)
{
    static const char *const paths[] = { "/l/libggml-cpu-x64.so",  "/l/libggml-cpu-zen4.so",
                                         "/k/libggml-cpu-zen4.so", "/l-1/libggml.so",
                                         "/l-1/libggml.so",        "libggml-cpu-a.so",
                                         "libggml-cpu-b.so" };
    struct mp_check *check = malloc(sizeof(*check));
    struct mp_check_program *program;

    CHECK(check != NULL);
    make_by_hand(check);
    program = &check->program;
    program->library_count = 7;
    for (uint32_t i = 0; i < 7; i++) {
        strcpy(program->libraries[i].path, paths[i]);
        program->libraries[i].found = i < 5;
        program->libraries[i].module = i != 4;
    }
    CHECK(strstr(text_of(check, false),
                 "libraries     /l/libggml-cpu-*.so (one of 2, opened at run time)\n"
                 "              /k/libggml-cpu-zen4.so (opened at run time)\n"
                 "              /l-1/libggml.so (opened at run time)\n"
                 "              /l-1/libggml.so\n"
                 "              libggml-cpu-a.so (opened at run time) (not found)\n"
                 "              libggml-cpu-b.so (opened at run time) (not found)\n"
                 "hooks ") != NULL);
    free(check);
}

static uint64_t number_of(json_t *object, const char *key)
{
    CHECK(json_is_integer(json_object_get(object, key)));
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static bool is_true(json_t *object, const char *key)
{
    CHECK(json_is_boolean(json_object_get(object, key)));
    return json_is_true(json_object_get(object, key));
}

static void check_json_of_program(json_t *program)
{
    json_t *libraries = json_object_get(program, "libraries");

    CHECK_STR(json_string_value(json_object_get(program, "path")), "/bin/serve");
    CHECK_STR(json_string_value(json_object_get(program, "loaded")), "/bin/python3");
    CHECK_STR(json_string_value(json_object_get(program, "loader")), "/lib/ld.so");
    CHECK_STR(json_string_value(json_object_get(program, "start")), "dynamic");
    CHECK(!is_true(program, "hooks_known")); /* as libllama was not found */
    CHECK(is_true(program, "python") && !is_true(program, "privileged"));
    CHECK_EQ(json_array_size(libraries), 2);
    CHECK(is_true(json_array_get(libraries, 0), "found"));
    CHECK(is_true(json_array_get(libraries, 0), "module"));
    CHECK(!is_true(json_array_get(libraries, 1), "found"));
    for (size_t i = 0; mp_check_hooks[i] != NULL; i++)
        CHECK_EQ(is_true(json_object_get(program, "hooks"), mp_check_hooks[i]), i == 0 || i == 2);
}

static void the_json_has_the_same(void)
{
    struct mp_check *check = malloc(sizeof(*check));
    json_t *json, *model, *note;

    CHECK(check != NULL);
    make_by_hand(check);
    json = json_loads(text_of(check, true), JSON_REJECT_DUPLICATES, NULL);
    CHECK(json != NULL);
    check_json_of_program(json_object_get(json, "program"));
    CHECK_EQ(json_array_size(json_object_get(json, "models")), 2);
    model = json_array_get(json_object_get(json, "models"), 0);
    CHECK(json_is_null(json_object_get(model, "error")));
    CHECK_EQ(number_of(json_object_get(model, "expert_types"), "Q4_K"), 1u << 30);
    CHECK_EQ(json_array_size(json_object_get(model, "layers")), 3);
    CHECK_EQ(number_of(json_array_get(json_object_get(model, "layers"), 2), "layer"), 4);
    model = json_array_get(json_object_get(json, "models"), 1);
    CHECK_STR(json_string_value(json_object_get(model, "error")), "it is broken");
    CHECK_EQ(number_of(json, "budget_bytes"), 700u << 20);
    CHECK_EQ(number_of(json, "limit_bytes"), UINT64_C(6) << 30);
    CHECK_EQ(number_of(json, "memlock_bytes"), 8 << 20);
    CHECK_EQ(number_of(json, "max_map_count"), 65530);
    CHECK(is_true(json, "pages"));
    note = json_array_get(json_object_get(json, "notes"), 0);
    CHECK(!is_true(note, "in_the_way"));
    json_decref(json);

    check->room.limit_bytes = UINT64_MAX;
    check->notes[0].fatal = true;
    json = json_loads(text_of(check, true), JSON_REJECT_DUPLICATES, NULL);
    CHECK(json != NULL);
    CHECK(json_is_null(json_object_get(json, "limit_bytes")));
    CHECK(!is_true(json, "pages"));
    json_decref(json);
    free(check);
}

int main(void)
{
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    RUN(flags_stand_in_the_way);
    RUN(tensors_are_recognised_by_name);
    RUN(folders_and_other_files);
    RUN(files_may_be_too_small);
    RUN(mappings_may_be_too_few);
    RUN(the_text_is_this);
    RUN(variants_of_a_module_are_one_line);
    RUN(the_json_has_the_same);
    return 0;
}
