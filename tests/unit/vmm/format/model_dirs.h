#ifndef MP_TESTS_MODEL_DIRS_H
#define MP_TESTS_MODEL_DIRS_H

/* Directories of small models, in one file or two, and what they load as. */
#include <sys/stat.h>

#include "engine/model/weights.h"
#include "tests/model/fails.h"
#include "tests/model/tiny_model.h"
#include "tests/support/tmpdir.h"

/* A fresh directory inside of the program's own. */
static inline const char *new_dir(void)
{
    static char path[sizeof(test_tmpdir_path) + 16];
    static unsigned count;

    snprintf(path, sizeof(path), "%s/%u", test_tmpdir(), count++);
    CHECK_EQ(mkdir(path, 0700), 0);
    return path;
}

static inline const char *in_dir(const char *dir, const char *name)
{
    static char path[sizeof(test_tmpdir_path) + 300];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

struct opened {
    struct mp_checkpoint *checkpoint;
    struct mp_model_config config;
    struct mp_weights *weights;
};

static inline enum mp_status load(const char *dir, const struct mp_progress *progress,
                                  struct opened *opened)
{
    enum mp_status status = mp_checkpoint_open(dir, &opened->checkpoint);

    opened->weights = NULL;
    if (status != MP_OK) {
        opened->checkpoint = NULL;
        return status;
    }
    status = mp_model_config_load(opened->checkpoint, &opened->config);
    if (status == MP_OK)
        status =
            mp_weights_load(opened->checkpoint, &opened->config, NULL, progress, &opened->weights);
    return status;
}

static inline void unload(struct opened *opened)
{
    mp_weights_destroy(opened->weights);
    mp_checkpoint_close(opened->checkpoint);
    opened->weights = NULL;
    opened->checkpoint = NULL;
}

static inline const char *write_model(const struct tiny_model *model, enum tiny_form form)
{
    const char *dir = new_dir();

    tiny_write_config(dir, form);
    tiny_write_shard(dir, "model.safetensors", model, 0, model->count, 0);
    return dir;
}

/* weight_map as a writer makes it; `wrong` of the tensors is said to lie in the first shard. */
static inline void write_index(const char *dir, const struct tiny_model *model, size_t split,
                               const char *first, const char *second, const char *wrong, long total)
{
    FILE *file = fopen(in_dir(dir, "model.safetensors.index.json"), "w");

    CHECK(file != NULL);
    fprintf(file, "{\"metadata\":{\"total_size\":%ld},\"weight_map\":{", total);
    for (size_t i = 0; i < model->count; i++) {
        const char *name = model->tensors[i].name;
        const bool in_first = i < split || (wrong != NULL && strcmp(wrong, name) == 0);

        fprintf(file, "%s\"%s\":\"%s\"", i > 0 ? "," : "", name, in_first ? first : second);
    }
    fputs("}}", file);
    CHECK_EQ(fclose(file), 0);
}

#define SHARD1 "model-00001-of-00002.safetensors"
#define SHARD2 "model-00002-of-00002.safetensors"

static inline const char *write_sharded(struct tiny_model *model, const char *wrong, long total)
{
    const char *dir = new_dir();

    tiny_model_make(model, TINY_QWEN3);
    tiny_write_config(dir, TINY_QWEN3);
    tiny_write_shard(dir, SHARD1, model, 0, 20, 0);
    tiny_write_shard(dir, SHARD2, model, 20, model->count, 0);
    write_index(dir, model, 20, SHARD1, SHARD2, wrong, total);
    return dir;
}

/* Bytes of all tensors of TINY_QWEN3. */
#define QWEN3_BYTES 5024

#endif
