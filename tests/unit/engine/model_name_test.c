/* Models by name: the caches of Hugging Face and llama.cpp, in every place that the environment can
 * give them, with what is broken in them. */
#include <stdio.h>
#include <sys/stat.h>

#include "engine/session/model_name.h"
#include "tests/model/fails.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/tmpdir.h"

#define PATH_BYTES (sizeof(test_tmpdir_path) + 256)

static const char *at(const char *path)
{
    static char paths[8][PATH_BYTES];
    static unsigned next;
    char *out = paths[next++ % 8];

    snprintf(out, PATH_BYTES, "%s/%s", test_tmpdir(), path);
    return out;
}

/* A file with this text, and the folders that it is in. */
static void make(const char *path, const char *text)
{
    char full[PATH_BYTES];
    FILE *file;

    snprintf(full, sizeof(full), "%s", at(path));
    for (char *c = full + strlen(test_tmpdir()) + 1; (c = strchr(c, '/')) != NULL; c++) {
        *c = '\0';
        mkdir(full, 0700);
        *c = '/';
    }
    file = fopen(full, "w");
    CHECK(file != NULL);
    fputs(text, file);
    fclose(file);
}

/* Lives until the next call. */
static struct mp_environment environment(const char *a, const char *b)
{
    static char texts[2][PATH_BYTES];
    static char *entries[3];

    snprintf(texts[0], PATH_BYTES, "%s", a);
    snprintf(texts[1], PATH_BYTES, "%s", b != NULL ? b : "UNUSED=1");
    entries[0] = texts[0];
    entries[1] = texts[1];
    entries[2] = NULL;
    return (struct mp_environment){ .entries = entries, .count = 2 };
}

static const char *entry(const char *name, const char *folder)
{
    static char texts[4][PATH_BYTES];
    static unsigned next;
    char *out = texts[next++ % 4];

    snprintf(out, PATH_BYTES, "%s=%s", name, at(folder));
    return out;
}

static void check_found(struct mp_environment where, const char *name, const char *want)
{
    char path[MP_MODEL_PATH_BYTES];

    CHECK_EQ(mp_model_find(&where, name, path), MP_OK);
    CHECK_STR(path, want);
}

static void check_missing(struct mp_environment where, const char *name)
{
    char path[MP_MODEL_PATH_BYTES];

    CHECK_EQ(mp_model_find(&where, name, path), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_MODEL_NAME");
    CHECK(strstr(mp_error_last()->text, name) != NULL);
}

#define MODEL "hub/models--Org--Model-1.5/"
#define FILES "hub/models--Org--Files-GGUF/"

static void fill(void)
{
    make(MODEL "refs/main", "bbb\n");
    make(MODEL "snapshots/aaa/config.json", "{}");
    make(MODEL "snapshots/bbb/config.json", "{}");
    make(MODEL "snapshots/bbb/model.safetensors.index.json", "{}");
    make(FILES "snapshots/ccc/m-Q4_K_M-00002-of-00002.gguf", "");
    make(FILES "snapshots/ccc/m-Q4_K_M-00001-of-00002.gguf", "");
    make(FILES "snapshots/ccc/m-BF16.gguf", "");
    make(FILES "snapshots/ccc/mmproj-a.gguf", "");
    make("hub/models--Org--Empty/snapshots/ddd/README.md", "");
    make("hub/models--Org--Looked-At/snapshots/eee/config.json", "{}"); /* without weights */
    make("hub/models--Org--Bad/refs/main", "../../../etc");
    make("hub/models--nothing", "");
    make("llama/Org_Old_old-q8_0.gguf", "");
    make("llama/Org_Old_old-q8_0.gguf.json", "");
}

static void names_are_found_where_the_environment_says(void)
{
    const char *model = at(MODEL "snapshots/bbb");

    check_found(environment(entry("HF_HUB_CACHE", "hub"), NULL), "Org/Model-1.5", model);
    check_found(environment(entry("HF_HOME", "."), NULL), "Org/Model-1.5",
                at("./" MODEL "snapshots/bbb"));
    make("home/.cache/huggingface/" MODEL "snapshots/aaa/config.json", "{}");
    make("home/.cache/huggingface/" MODEL "snapshots/aaa/model.safetensors", "");
    check_found(environment(entry("HOME", "home"), NULL), "Org/Model-1.5",
                at("home/.cache/huggingface/" MODEL "snapshots/aaa"));
    check_found(environment(entry("XDG_CACHE_HOME", "home/.cache"), "HOME=/nowhere"),
                "Org/Model-1.5", at("home/.cache/huggingface/" MODEL "snapshots/aaa"));
    /* The nearest one counts, and an empty variable is none. */
    check_missing(environment("HF_HUB_CACHE=/nowhere", entry("HF_HOME", ".")), "Org/Model-1.5");
    check_found(environment("HF_HUB_CACHE=", entry("HF_HOME", ".")), "Org/Model-1.5",
                at("./" MODEL "snapshots/bbb"));
    check_missing(environment("A=b", NULL), "Org/Model-1.5");
}

static void files_are_chosen_by_tags(void)
{
    const struct mp_environment hub =
        environment(entry("HF_HUB_CACHE", "hub"), entry("LLAMA_CACHE", "llama"));

    check_found(hub, "Org/Files-GGUF", at(FILES "snapshots/ccc/m-BF16.gguf"));
    check_found(hub, "Org/Files-GGUF:q4_k_m",
                at(FILES "snapshots/ccc/m-Q4_K_M-00001-of-00002.gguf"));
    check_missing(hub, "Org/Files-GGUF:Q5_0");
    check_missing(hub, "Org/Model-1.5:Q4_0");
    check_found(hub, "Org/Old", at("llama/Org_Old_old-q8_0.gguf"));
    check_found(hub, "Org/Old:Q8_0", at("llama/Org_Old_old-q8_0.gguf"));
    check_missing(hub, "Org/Ol");
    check_missing(hub, "Org/Empty");
    check_missing(hub, "Org/Bad");
}

static void paths_stay_as_they_are(void)
{
    static const char *const paths[] = { "a",    "/a/b",          "./a",        "../a/b", "a/b/c",
                                         "a/",   "a/b:",          "a/b:c/d",    "a b/c",  "",
                                         "a/.b", "tests/nothing", "tests/model" };
    const struct mp_environment hub = environment(entry("HF_HUB_CACHE", "hub"), NULL);

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        check_found(hub, paths[i], paths[i]);
}

static char listed[4096];

static void add(void *ctx, const char *name, const char *path)
{
    const size_t used = strlen(listed), root = strlen(test_tmpdir());

    (void)ctx;
    CHECK(strncmp(path, test_tmpdir(), root) == 0);
    snprintf(listed + used, sizeof(listed) - used, "%s %s\n", name, path + root + 1);
}

static void models_are_listed(void)
{
    const struct mp_environment both =
        environment(entry("HF_HUB_CACHE", "hub"), entry("LLAMA_CACHE", "llama"));
    const struct mp_environment none = { .entries = (char *[]){ NULL }, .count = 0 };

    mp_model_each(&both, add, NULL);
    CHECK_STR(listed, "Org/Files-GGUF:m-BF16 " FILES "snapshots/ccc/m-BF16.gguf\n"
                      "Org/Files-GGUF:m-Q4_K_M-00001-of-00002 " FILES
                      "snapshots/ccc/m-Q4_K_M-00001-of-00002.gguf\n"
                      "Org/Model-1.5 " MODEL "snapshots/bbb\n"
                      "Org_Old_old-q8_0 llama/Org_Old_old-q8_0.gguf\n");
    listed[0] = '\0';
    mp_model_each(&none, add, NULL);
    CHECK_STR(listed, "");
}

/* A reference that cannot be read is an error: the first snapshot may be another revision. */
static void find(const struct fault_plan *plan, void *ctx)
{
    char path[MP_MODEL_PATH_BYTES];
    enum mp_status status;
    uint32_t failed;

    fault_begin(plan);
    status = mp_model_find(ctx, "Org/Model-1.5", path);
    failed = fault_end();
    CHECK_EQ(status, failed > 0 ? MP_ERR_IO : MP_OK);
    if (failed == 0)
        CHECK_STR(path, at(MODEL "snapshots/bbb"));
}

static void every_call_fails_once(void)
{
    struct mp_environment hub = environment(entry("HF_HUB_CACHE", "hub"), NULL);

    make(MODEL "snapshots/aaa/model.safetensors", "");
    CHECK(fault_sweep(FAULT_ANY, find, &hub) > 0);
}

int main(void)
{
    fill();
    RUN(names_are_found_where_the_environment_says);
    RUN(files_are_chosen_by_tags);
    RUN(paths_stay_as_they_are);
    RUN(models_are_listed);
    RUN(every_call_fails_once);
    return 0;
}
