/*
 * Every call that can fail while a model directory is loaded is made to fail, at every place in the
 * code that makes it, and then every allocation of the JSON library, one after the other. After
 * each failure: a status with a text, nothing left open, and loading again gives the same weights.
 */
#include <jansson.h>
#include <sys/stat.h>

#include "engine/model/weights.h"
#include "tests/model/tiny_model.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

struct loaded {
    struct mp_checkpoint *checkpoint;
    struct mp_model_config config;
    struct mp_weights *weights;
};

static unsigned failed_runs;

static enum mp_status load(const char *dir, struct loaded *loaded)
{
    enum mp_status status = mp_checkpoint_open(dir, &loaded->checkpoint);

    if (status != MP_OK)
        return status;
    status = mp_model_config_load(loaded->checkpoint, &loaded->config);
    if (status != MP_OK)
        return status;
    status = mp_weights_load(loaded->checkpoint, &loaded->config, NULL, NULL, &loaded->weights);
    if (status != MP_OK)
        return status;
    return mp_checkpoint_check_values(loaded->checkpoint, NULL);
}

static void unload(struct loaded *loaded)
{
    mp_weights_destroy(loaded->weights);
    mp_checkpoint_close(loaded->checkpoint);
    memset(loaded, 0, sizeof(*loaded));
}

/* FNV-1a of the block and of where the experts lie. */
static uint64_t weights_hash(const struct mp_weights *weights)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (uint32_t i = 0; i < weights->unit_count; i++) {
        for (unsigned p = 0; p < MP_EXPERT_PIECES; p++) {
            const struct mp_piece *piece = &weights->units[i].pieces[p];

            hash = (hash ^ piece->file) * 0x100000001b3u;
            hash = (hash ^ piece->offset_bytes) * 0x100000001b3u;
            hash = (hash ^ piece->bytes) * 0x100000001b3u;
        }
    }
    for (size_t i = 0; i < weights->embed.rows * weights->embed.cols; i++) {
        uint32_t element;

        memcpy(&element, (const char *)weights->embed.data + 4 * i, 4);
        hash = (hash ^ element) * 0x100000001b3u;
    }
    for (unsigned i = 0; i < 8; i++)
        hash = (hash ^ (uint64_t)(weights->layers[1].ffn_norm.w[i] * 64)) * 0x100000001b3u;
    return hash;
}

static void write_model(const char *dir)
{
    struct tiny_model model;
    FILE *index;
    char path[sizeof(test_tmpdir_path) + 64];

    tiny_model_make(&model, TINY_QWEN2);
    tiny_write_config(dir, TINY_QWEN2);
    tiny_write_text(dir, "generation_config.json", "{\"eos_token_id\":[1,2]}");
    tiny_write_shard(dir, "a.safetensors", &model, 0, 20, 0);
    tiny_write_shard(dir, "b.safetensors", &model, 20, model.count, 3);
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
    index = fopen(path, "w");
    CHECK(index != NULL);
    fputs("{\"weight_map\":{", index);
    for (size_t i = 0; i < model.count; i++)
        fprintf(index, "%s\"%s\":\"%c.safetensors\"", i > 0 ? "," : "", model.tensors[i].name,
                i < 20 ? 'a' : 'b');
    fputs("}}", index);
    CHECK_EQ(fclose(index), 0);
}

/* One load under the plan; returns how many calls were made to fail. */
static uint64_t run(const struct fault_plan *plan, const char *dir)
{
    static uint64_t good_hash;
    struct loaded loaded = { .checkpoint = NULL };
    enum mp_status status;
    uint64_t failures;

    mp_error_clear();
    fault_begin(plan);
    status = load(dir, &loaded);
    failures = fault_end();
    if (status != MP_OK) {
        CHECK(failures > 0);
        /* Never "bad model": nothing is wrong with it. */
        CHECK(status == MP_ERR_NO_MEMORY ||
              (status == MP_ERR_IO && plan->calls != FAULT_BIT(malloc)));
        CHECK_EQ(mp_error_last()->status, status);
        CHECK(mp_error_last()->text[0] != '\0');
        failed_runs++;
        unload(&loaded);
        CHECK_EQ(load(dir, &loaded), MP_OK);
    }
    CHECK_EQ(loaded.config.eos_count, 2);
    if (good_hash == 0)
        good_hash = weights_hash(loaded.weights);
    CHECK(weights_hash(loaded.weights) == good_hash);
    unload(&loaded);
    return failures;
}

static void body(const struct fault_plan *plan, void *dir)
{
    run(plan, dir);
}

static void every_call_site_of_the_loader(void)
{
    const uint32_t runs = fault_sweep(FAULT_ANY, body, test_tmpdir_path);

    fprintf(stderr, "    %u runs, %u failed, %u sites\n", runs, failed_runs,
            fault_sites_failed(FAULT_ANY));
    CHECK(failed_runs > 0);
}

/* Its error is the same, but for the name of the model inside, which takes calls that may fail. */
static void open_folder_of_models(const struct fault_plan *plan, void *folder)
{
    struct mp_checkpoint *checkpoint = NULL;
    enum mp_status status;

    fault_begin(plan);
    status = mp_checkpoint_open(folder, &checkpoint);
    if (fault_end() == 0)
        CHECK(strstr(mp_error_last()->text, "'model' in it?") != NULL);
    CHECK(status == MP_ERR_MODEL || status == MP_ERR_IO || status == MP_ERR_NO_MEMORY);
    CHECK(checkpoint == NULL);
}

static void every_call_site_of_a_folder_of_models(void)
{
    char folder[sizeof(test_tmpdir_path) + 16], model[sizeof(folder) + 16];

    snprintf(folder, sizeof(folder), "%s/folder", test_tmpdir_path);
    snprintf(model, sizeof(model), "%s/model", folder);
    CHECK_EQ(mkdir(folder, 0700), 0);
    CHECK_EQ(mkdir(model, 0700), 0);
    tiny_write_config(model, TINY_QWEN2);
    CHECK(fault_sweep(FAULT_ANY, open_folder_of_models, folder) > 2);
}

/* The library is not linked into the test, so its allocations are led through here. */
static void *json_allocate(size_t bytes)
{
    return malloc(bytes);
}

static void every_allocation_of_the_JSON_library(void)
{
    uint64_t calls = 0;

    for (;; calls++) {
        const struct fault_plan plan = { .mode = FAULT_ONCE,
                                         .calls = FAULT_BIT(malloc),
                                         .skip = calls };

        if (run(&plan, test_tmpdir_path) == 0)
            break;
    }
    const struct fault_plan count = { .mode = FAULT_COUNT, .calls = FAULT_BIT(malloc) };

    run(&count, test_tmpdir_path);
    CHECK_EQ(fault_matched(), calls);
    fprintf(stderr, "    %llu allocations\n", (unsigned long long)calls);
    CHECK(calls > 100);
}

int main(void)
{
    json_set_alloc_funcs(json_allocate, free);
    write_model(test_tmpdir());
    RUN(every_call_site_of_the_loader);
    RUN(every_call_site_of_a_folder_of_models);
    RUN(every_allocation_of_the_JSON_library);
    return 0;
}
