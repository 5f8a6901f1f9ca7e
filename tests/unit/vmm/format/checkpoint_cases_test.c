/* Model directories that are refused, cases M1 to M24, and progress of loading. */
#include <math.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/model/weights.h"
#include "tests/model/fails.h"
#include "tests/model/tiny_model.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/vmm/format/model_dirs.h"

static void check_load_fails(const char *dir, enum mp_status status, const char *code,
                             const char *text)
{
    struct opened opened;

    CHECK_FAILS(load(dir, NULL, &opened), status, code, text);
    unload(&opened);
}

/* A model, or a GGUF file, that is put into a directory without weights is what its error names. */
static void check_suggests(const char *dir, const char *name, bool is_folder)
{
    char want[sizeof(test_tmpdir_path) + 400];

    if (is_folder)
        CHECK_EQ(mkdir(in_dir(dir, name), 0700), 0);
    tiny_write_text(is_folder ? in_dir(dir, name) : dir, is_folder ? "config.json" : name, "");
    snprintf(want, sizeof(want),
             "'%s' has no 'model.safetensors' and no 'model.safetensors.index.json'; "
             "did you mean '%s' in it?",
             dir, name);
    check_load_fails(dir, MP_ERR_MODEL, "E_CKPT_FORMAT", want);
}

static void directories_without_weights(void)
{
    const char *dir = new_dir();
    char want[sizeof(test_tmpdir_path) + 400];

    snprintf(want, sizeof(want), "cannot open the model directory '%s': No such file or directory",
             in_dir(dir, "none"));
    check_load_fails(in_dir(dir, "none"), MP_ERR_MODEL, "E_CKPT_DIR", want);
    snprintf(want, sizeof(want),
             "'%s' has no 'model.safetensors' and no 'model.safetensors.index.json'", dir);
    check_load_fails(dir, MP_ERR_MODEL, "E_CKPT_FORMAT", want);
    check_suggests(dir, "b", true);
    check_suggests(dir, "a", true);
    check_suggests(dir, "z.gguf", false);
    check_suggests(dir, "y.gguf", false);
    tiny_write_text(dir, "pytorch_model.bin", "");
    snprintf(want, sizeof(want),
             "'%s' has 'pytorch_model.bin' but no 'model.safetensors' or "
             "'model.safetensors.index.json'; save the model with the transformers library first",
             dir);
    check_load_fails(dir, MP_ERR_MODEL, "E_CKPT_FORMAT", want);
    snprintf(want, sizeof(want),
             "'%s' is neither a GGUF file nor a directory, need one of them; a directory "
             "has config.json and model.safetensors",
             in_dir(dir, "pytorch_model.bin"));
    check_load_fails(in_dir(dir, "pytorch_model.bin"), MP_ERR_MODEL, "E_CKPT_DIR", want);
}

static void M1_short_file_in_a_directory(void)
{
    const char *dir = new_dir();

    tiny_write_text(dir, "model.safetensors", "");
    check_load_fails(dir, MP_ERR_MODEL, "E_ST_SHORT",
                     "file 'model.safetensors' is 0 bytes, need at least 8");
}

static void M8_interrupted_download(void)
{
    struct tiny_model model;
    struct stat info;

    tiny_model_make(&model, TINY_QWEN3);
    const char *dir = write_model(&model, TINY_QWEN3);

    CHECK_EQ(stat(in_dir(dir, "model.safetensors"), &info), 0);
    CHECK_EQ(truncate(in_dir(dir, "model.safetensors"), info.st_size - 1), 0);
    check_load_fails(dir, MP_ERR_MODEL, "E_ST_END",
                     "tensor 'model.norm.weight' in 'model.safetensors': data ends at byte 5024 of "
                     "the data, file has 5023; it is cut short, download it again");
}

static void M18_values_that_are_not_finite(void)
{
    static const char *const dtypes[] = { "F32", "BF16", "F16" };
    struct tiny_model model;
    struct opened opened;

    for (size_t i = 0; i < 3; i++) {
        tiny_model_make(&model, TINY_QWEN3);
        for (size_t t = 0; t < model.count; t++)
            model.tensors[t].dtype = dtypes[i];
        CHECK_EQ(load(write_model(&model, TINY_QWEN3), NULL, &opened), MP_OK);
        CHECK_EQ(mp_checkpoint_check_values(opened.checkpoint, NULL), MP_OK);
        unload(&opened);

        tiny_model_find(&model, "model.layers.1.mlp.gate.weight")->first = (double)NAN;
        CHECK_EQ(load(write_model(&model, TINY_QWEN3), NULL, &opened), MP_OK);
        CHECK_FAILS(mp_checkpoint_check_values(opened.checkpoint, NULL), MP_ERR_MODEL,
                    "E_CKPT_VALUE",
                    "tensor 'model.layers.1.mlp.gate.weight' in 'model.safetensors': element 0 is "
                    "NaN");
        unload(&opened);
    }
    tiny_model_make(&model, TINY_QWEN3);
    tiny_model_find(&model, "model.norm.weight")->first = -(double)INFINITY;
    CHECK_EQ(load(write_model(&model, TINY_QWEN3), NULL, &opened), MP_OK);
    CHECK_FAILS(mp_checkpoint_check_values(opened.checkpoint, NULL), MP_ERR_MODEL, "E_CKPT_VALUE",
                "tensor 'model.norm.weight' in 'model.safetensors': element 0 is infinite");
    unload(&opened);
}

/* Load a Qwen3 model in which one tensor was changed. */
static void check_changed(const char *tensor, const struct tiny_tensor *change, const char *code,
                          const char *text)
{
    struct tiny_model model;
    struct tiny_tensor *t;

    tiny_model_make(&model, TINY_QWEN3);
    t = tiny_model_find(&model, tensor);
    if (change->name[0] != '\0')
        memcpy(t->name, change->name, sizeof(t->name));
    if (change->dtype != NULL)
        t->dtype = change->dtype;
    if (change->dims != 0) {
        t->dims = change->dims;
        memcpy(t->shape, change->shape, sizeof(t->shape));
    }
    check_load_fails(write_model(&model, TINY_QWEN3), MP_ERR_MODEL, code, text);
}

static void M20_tensors_against_the_configuration(void)
{
    check_changed("model.layers.0.self_attn.q_norm.weight",
                  &(struct tiny_tensor){ .name = "other" }, "E_TENSOR_MISSING",
                  "tensor 'model.layers.0.self_attn.q_norm.weight' is missing, config.json needs "
                  "it with shape [4]");
    check_changed("model.layers.1.mlp.experts.2.down_proj.weight",
                  &(struct tiny_tensor){ .name = "other" }, "E_TENSOR_MISSING",
                  "tensor 'model.layers.1.mlp.experts.2.down_proj.weight' is missing, config.json "
                  "needs it with shape [8, 5]");
    check_changed("model.layers.1.mlp.experts.2.down_proj.weight",
                  &(struct tiny_tensor){ .dims = 2, .shape = { 5, 8 } }, "E_TENSOR_SHAPE",
                  "tensor 'model.layers.1.mlp.experts.2.down_proj.weight' in 'model.safetensors': "
                  "got shape [5, 8], config.json needs [8, 5]");
    check_changed("model.norm.weight", &(struct tiny_tensor){ .dims = 2, .shape = { 8, 1 } },
                  "E_TENSOR_SHAPE",
                  "tensor 'model.norm.weight' in 'model.safetensors': got shape [8, 1], "
                  "config.json needs [8]");
    check_changed(
        "model.layers.0.self_attn.q_proj.weight", &(struct tiny_tensor){ .dtype = "F8_E4M3" },
        "E_TENSOR_DTYPE",
        "tensor 'model.layers.0.self_attn.q_proj.weight' in 'model.safetensors': got "
        "F8_E4M3, need F32, BF16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, "
        "Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, IQ2_XXS, IQ2_XS, IQ2_S, "
        "IQ3_XXS or IQ3_S");
    check_changed("model.layers.1.mlp.experts.0.up_proj.weight",
                  &(struct tiny_tensor){ .dtype = "U8" }, "E_TENSOR_DTYPE",
                  "tensor 'model.layers.1.mlp.experts.0.up_proj.weight' in 'model.safetensors': "
                  "got U8, need F32, BF16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, "
                  "Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, IQ2_XXS, IQ2_XS, IQ2_S, "
                  "IQ3_XXS or IQ3_S");
}

static void M20_extra_tensors_are_counted(void)
{
    struct tiny_model model;
    struct opened opened;

    tiny_model_make(&model, TINY_QWEN3);
    model.tensors[model.count] = model.tensors[0];
    strcpy(model.tensors[model.count++].name, "model.vision.weight");
    model.tensors[model.count] = model.tensors[0];
    strcpy(model.tensors[model.count++].name, "lm_head.weight"); /* Written though it is tied. */
    CHECK_EQ(load(write_model(&model, TINY_QWEN3), NULL, &opened), MP_OK);
    CHECK_EQ(opened.weights->extra_tensors, 1);
    CHECK_STR(opened.weights->extra_name, "model.vision.weight");
    unload(&opened);
}

static void M21_shard_names_that_are_paths(void)
{
    static const struct {
        const char *json, *shown;
    } names[] = {
        { "../../etc/x", "'../../etc/x'" },
        { "/etc/passwd", "'/etc/passwd'" },
        { "sub/a.safetensors", "'sub/a.safetensors'" },
        { "..", "'..'" },
        { ".", "'.'" },
        { "", "''" },
        { "a\\nb", "'a\\x0ab'" },
    };
    const char *dir = new_dir();
    char longest[257], long_index[400], missing[400];

    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        char index[200], want[300];

        snprintf(index, sizeof(index), "{\"weight_map\":{\"w\":\"%s\"}}", names[i].json);
        snprintf(want, sizeof(want),
                 "shard of tensor 'w' in 'model.safetensors.index.json': got %s, shard name must "
                 "be a plain file name",
                 names[i].shown);
        tiny_write_text(dir, "model.safetensors.index.json", index);
        check_load_fails(dir, MP_ERR_MODEL, "E_PATH", want);
    }
    tiny_write_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"w\":7}}");
    check_load_fails(dir, MP_ERR_MODEL, "E_PATH",
                     "shard of tensor 'w' in 'model.safetensors.index.json': got 7, shard name "
                     "must be a plain file name");
    tiny_write_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"w\":\"a\\u0000b\"}}");
    check_load_fails(dir, MP_ERR_MODEL, "E_JSON",
                     "'model.safetensors.index.json' at byte 29: a string contains \\u0000");

    memset(longest, 'n', sizeof(longest));
    snprintf(long_index, sizeof(long_index), "{\"weight_map\":{\"w\":\"%.255s\"}}", longest);
    snprintf(missing, sizeof(missing),
             "shard '%.128s...' listed in 'model.safetensors.index.json' is missing; download it",
             longest);
    tiny_write_text(dir, "model.safetensors.index.json", long_index);
    check_load_fails(dir, MP_ERR_MODEL, "E_CKPT_SHARD", missing);
    snprintf(long_index, sizeof(long_index), "{\"weight_map\":{\"w\":\"%.256s\"}}", longest);
    snprintf(missing, sizeof(missing),
             "shard of tensor 'w' in 'model.safetensors.index.json': got '%.128s...', shard name "
             "must be a plain file name",
             longest);
    tiny_write_text(dir, "model.safetensors.index.json", long_index);
    check_load_fails(dir, MP_ERR_MODEL, "E_PATH", missing);
}

static void M22_shards_and_index_disagree(void)
{
    struct tiny_model model;
    struct opened opened;
    const char *dir = write_sharded(&model, NULL, QWEN3_BYTES);

    CHECK_EQ(unlink(in_dir(dir, SHARD2)), 0);
    check_load_fails(dir, MP_ERR_MODEL, "E_CKPT_SHARD",
                     "shard '" SHARD2 "' listed in 'model.safetensors.index.json' is missing; "
                     "download it");

    dir = write_sharded(&model, "model.norm.weight", QWEN3_BYTES);
    check_load_fails(dir, MP_ERR_MODEL, "E_CKPT_INDEX",
                     "tensor 'model.norm.weight' is not in '" SHARD1
                     "', where 'model.safetensors.index.json' says it is");

    dir = write_sharded(&model, NULL, QWEN3_BYTES);
    strcpy(tiny_model_find(&model, "model.layers.1.self_attn.v_proj.weight")->name, "gone");
    tiny_write_shard(dir, SHARD2, &model, 20, model.count, 0);
    check_load_fails(dir, MP_ERR_MODEL, "E_CKPT_INDEX",
                     "tensor 'model.layers.1.self_attn.v_proj.weight' is not in '" SHARD2
                     "', where 'model.safetensors.index.json' says it is");

    dir = write_sharded(&model, NULL, QWEN3_BYTES);
    tiny_write_shard(dir, SHARD2, &model, 19, model.count, 0);
    check_load_fails(dir, MP_ERR_MODEL, "E_CKPT_DUP",
                     "tensor 'model.layers.1.input_layernorm.weight' is in '" SHARD1
                     "' and in '" SHARD2 "'");

    dir = write_sharded(&model, NULL, 1);
    CHECK_EQ(load(dir, NULL, &opened), MP_OK);
    CHECK_STR(mp_checkpoint_warning(opened.checkpoint),
              "total_size in 'model.safetensors.index.json' is 1, the tensors have 5024 bytes");
    unload(&opened);
}

static void M23_files_that_are_no_files(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    const char *dir = new_dir();
    char path[sizeof(test_tmpdir_path) + 300];

    strcpy(path, in_dir(dir, "model.safetensors"));
    CHECK_EQ(mkdir(path, 0700), 0);
    check_load_fails(dir, MP_ERR_IO, "E_NOT_A_FILE",
                     "'model.safetensors' is a directory: need a regular file");
    CHECK_EQ(rmdir(path), 0);
    CHECK_EQ(mkfifo(path, 0600), 0);
    check_load_fails(dir, MP_ERR_IO, "E_NOT_A_FILE",
                     "'model.safetensors' is a FIFO: need a regular file");
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(symlink("/dev/zero", path), 0);
    check_load_fails(dir, MP_ERR_IO, "E_NOT_A_FILE",
                     "'model.safetensors' is a character device: need a regular file");
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(symlink("nothing", path), 0);
    check_load_fails(dir, MP_ERR_IO, "E_OPEN",
                     "cannot open 'model.safetensors': ENOENT (No such file or directory); check "
                     "the path and its permissions");
    CHECK_EQ(unlink(path), 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    CHECK_EQ(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);
    check_load_fails(dir, MP_ERR_IO, "E_NOT_A_FILE",
                     "'model.safetensors' is a socket: need a regular file");
    CHECK_EQ(unlink(path), 0);
    close(sock);
    if (geteuid() != 0) { /* Root may read everything. */
        tiny_write_text(dir, "model.safetensors", "x");
        CHECK_EQ(chmod(path, 0), 0);
        check_load_fails(dir, MP_ERR_IO, "E_OPEN",
                         "cannot open 'model.safetensors': EACCES (Permission denied); check the "
                         "path and its permissions");
    }
}

static void M24_pointers_and_web_pages(void)
{
    const char *dir = new_dir();

    tiny_write_text(dir, "model.safetensors",
                    "version https://git-lfs.github.com/spec/v1\n"
                    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
                    "size 12345678\n");
    check_load_fails(dir, MP_ERR_MODEL, "E_FILE_LFS",
                     "'model.safetensors' is a Git LFS pointer, not the model; run 'git lfs pull' "
                     "in its folder");
    tiny_write_text(dir, "model.safetensors", "\n<!DOCTYPE html>\n<html>Not found</html>");
    check_load_fails(dir, MP_ERR_MODEL, "E_FILE_HTML",
                     "'model.safetensors' is an HTML page, not the model; download the file again");
    tiny_write_text(dir, "config.json", "<html></html>");
    unlink(in_dir(dir, "model.safetensors"));
    struct tiny_model model;

    tiny_model_make(&model, TINY_QWEN3);
    tiny_write_shard(dir, "model.safetensors", &model, 0, model.count, 0);
    check_load_fails(dir, MP_ERR_MODEL, "E_FILE_HTML",
                     "'config.json' is an HTML page, not the model; download the file again");
}

struct seen {
    uint64_t done_bytes, total_bytes;
    unsigned calls, stop_at;
};

static bool see(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct seen *seen = context;

    CHECK(done_bytes > seen->done_bytes && done_bytes <= total_bytes);
    seen->done_bytes = done_bytes;
    seen->total_bytes = total_bytes;
    return ++seen->calls != seen->stop_at;
}

static void progress_ends_at_the_total_and_can_stop(void)
{
    struct seen seen = { 0 };
    const struct mp_progress progress = { .report = see, .context = &seen };
    struct mp_weights *outline;
    struct tiny_model model;
    struct opened opened;

    tiny_model_make(&model, TINY_QWEN3);
    const char *dir = write_model(&model, TINY_QWEN3);

    CHECK_EQ(load(dir, &progress, &opened), MP_OK);
    CHECK_EQ(seen.done_bytes, seen.total_bytes);
    CHECK_EQ(seen.total_bytes + opened.weights->expert_bytes,
             mp_checkpoint_bytes(opened.checkpoint));
    CHECK_EQ(mp_weights_describe(opened.checkpoint, &opened.config, &outline), MP_OK);
    CHECK_EQ(outline->resident_bytes, opened.weights->resident_bytes);
    CHECK_EQ(outline->expert_bytes, opened.weights->expert_bytes);
    CHECK(outline->embed.data == NULL);
    mp_weights_destroy(outline);
    unload(&opened);

    seen = (struct seen){ .stop_at = 1 };
    CHECK_FAILS(load(dir, &progress, &opened), MP_ERR_CANCELED, "E_CANCELED",
                "loading the weights was canceled");
    CHECK_EQ(seen.calls, 1);
    seen = (struct seen){ .stop_at = 3 };
    CHECK_EQ(mp_checkpoint_check_values(opened.checkpoint, &progress), MP_ERR_CANCELED);
    unload(&opened);
}

int main(void)
{
    RUN(directories_without_weights);
    RUN(M1_short_file_in_a_directory);
    RUN(M8_interrupted_download);
    RUN(M18_values_that_are_not_finite);
    RUN(M20_tensors_against_the_configuration);
    RUN(M20_extra_tensors_are_counted);
    RUN(M21_shard_names_that_are_paths);
    RUN(M22_shards_and_index_disagree);
    RUN(M23_files_that_are_no_files);
    RUN(M24_pointers_and_web_pages);
    RUN(progress_ends_at_the_total_and_can_stop);
    return 0;
}
