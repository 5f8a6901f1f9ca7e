/* Model directories: the forms that are accepted, and cases M1 and M18 to M24. */
#include <fcntl.h>
#include <math.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/model/weights.h"
#include "tests/model/fails.h"
#include "tests/model/tiny_model.h"
#include "tests/support/tmpdir.h"

/* A fresh directory inside of the program's own. */
static const char *new_dir(void)
{
    static char path[sizeof(test_tmpdir_path) + 16];
    static unsigned count;

    snprintf(path, sizeof(path), "%s/%u", test_tmpdir(), count++);
    CHECK_EQ(mkdir(path, 0700), 0);
    return path;
}

static const char *in_dir(const char *dir, const char *name)
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

static enum mp_status load(const char *dir, const struct mp_progress *progress,
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

static void unload(struct opened *opened)
{
    mp_weights_destroy(opened->weights);
    mp_checkpoint_close(opened->checkpoint);
    opened->weights = NULL;
    opened->checkpoint = NULL;
}

static void check_load_fails(const char *dir, enum mp_status status, const char *code,
                             const char *text)
{
    struct opened opened;

    CHECK_FAILS(load(dir, NULL, &opened), status, code, text);
    unload(&opened);
}

static const char *write_model(const struct tiny_model *model, enum tiny_form form)
{
    const char *dir = new_dir();

    tiny_write_config(dir, form);
    tiny_write_shard(dir, "model.safetensors", model, 0, model->count, 0);
    return dir;
}

/* Element i of a view or piece in any of the three types, from its bytes. */
static double element(const void *data, enum mp_wtype type, uint64_t i)
{
    float value;

    mp_kernels_ref.convert(&value, (const char *)data + mp_wtype_bytes(type, i), type, 1);
    return value;
}

static void check_view(struct tiny_model *model, const struct mp_view *view, const char *name)
{
    const struct tiny_tensor *tensor = tiny_model_find(model, name);

    CHECK(view->data != NULL);
    CHECK_EQ(view->rows, tensor->shape[0]);
    CHECK_EQ(view->cols, tensor->shape[1]);
    CHECK_STR(mp_wtype_name(view->type), strcmp(tensor->dtype, "F32") == 0    ? "f32"
                                         : strcmp(tensor->dtype, "BF16") == 0 ? "bf16"
                                                                              : "f16");
    CHECK(element(view->data, view->type, 7) == tiny_value(tensor, 7) ||
          strcmp(tensor->dtype, "F32") != 0);
    CHECK(element(view->data, view->type, 0) == tiny_value(tensor, 0));
}

static void check_vector(struct tiny_model *model, const float *vector, const char *name)
{
    const struct tiny_tensor *tensor = tiny_model_find(model, name);

    CHECK(vector != NULL);
    for (uint64_t i = 0; i < tensor->shape[0]; i++)
        CHECK(vector[i] == tiny_value(tensor, i) || strcmp(tensor->dtype, "F32") != 0);
    CHECK(vector[0] == tiny_value(tensor, 0));
}

/* The piece's bytes are those of `rows` x `cols` elements from element `skip` of the tensor. */
static void check_piece(struct tiny_model *model, const struct opened *opened, uint32_t unit,
                        unsigned piece, const char *name, uint64_t skip, uint64_t count)
{
    const struct tiny_tensor *tensor = tiny_model_find(model, name);
    const struct mp_piece *p = &opened->weights->units[unit].pieces[piece];
    const enum mp_wtype type = opened->weights->unit_types[unit].piece[piece];
    char data[1024];

    CHECK_EQ(opened->weights->units[unit].piece_count, 3);
    CHECK_EQ(p->bytes, mp_wtype_bytes(type, count));
    CHECK_EQ(mp_files_read(mp_checkpoint_files(opened->checkpoint), p->file, p->offset_bytes,
                           p->bytes, data),
             MP_OK);
    CHECK(element(data, type, 0) == tiny_value(tensor, skip));
    CHECK(element(data, type, count - 1) == tiny_value(tensor, skip + count - 1));
}

static void mixtral_in_one_file(void)
{
    struct tiny_model model;
    struct opened opened;

    tiny_model_make(&model, TINY_MIXTRAL);
    CHECK_EQ(load(write_model(&model, TINY_MIXTRAL), NULL, &opened), MP_OK);
    const struct mp_weights *w = opened.weights;

    CHECK_EQ(mp_checkpoint_count(opened.checkpoint), model.count);
    CHECK_EQ(w->extra_tensors, 0);
    CHECK_EQ(w->unit_count, 6);
    CHECK_EQ(w->expert_bytes, 6 * 3 * 5 * 8 * 4);
    CHECK_EQ(w->layers[1].first_unit, 3);
    check_view(&model, &w->embed, "model.embed_tokens.weight");
    check_view(&model, &w->head, "lm_head.weight");
    check_vector(&model, w->final_norm, "model.norm.weight");
    check_view(&model, &w->layers[1].q, "model.layers.1.self_attn.q_proj.weight");
    check_view(&model, &w->layers[1].k, "model.layers.1.self_attn.k_proj.weight");
    check_view(&model, &w->layers[1].v, "model.layers.1.self_attn.v_proj.weight");
    check_view(&model, &w->layers[1].o, "model.layers.1.self_attn.o_proj.weight");
    check_view(&model, &w->layers[1].router, "model.layers.1.block_sparse_moe.gate.weight");
    check_vector(&model, w->layers[1].attn_norm, "model.layers.1.input_layernorm.weight");
    check_vector(&model, w->layers[1].ffn_norm, "model.layers.1.post_attention_layernorm.weight");
    CHECK(w->layers[0].q_bias == NULL && w->layers[0].q_norm == NULL);
    CHECK(w->layers[0].shared.gate.data == NULL && w->layers[0].dense.gate.data == NULL);
    check_piece(&model, &opened, 5, MP_PIECE_GATE,
                "model.layers.1.block_sparse_moe.experts.2.w1.weight", 0, 40);
    check_piece(&model, &opened, 5, MP_PIECE_UP,
                "model.layers.1.block_sparse_moe.experts.2.w3.weight", 0, 40);
    check_piece(&model, &opened, 5, MP_PIECE_DOWN,
                "model.layers.1.block_sparse_moe.experts.2.w2.weight", 0, 40);
    unload(&opened);
}

static void qwen2_with_dense_layer_shared_expert_and_biases(void)
{
    struct tiny_model model;
    struct opened opened;

    tiny_model_make(&model, TINY_QWEN2);
    CHECK_EQ(load(write_model(&model, TINY_QWEN2), NULL, &opened), MP_OK);
    const struct mp_weights *w = opened.weights;

    CHECK_EQ(w->unit_count, 3);
    CHECK_EQ(w->extra_tensors, 0);
    check_view(&model, &w->layers[0].dense.gate, "model.layers.0.mlp.gate_proj.weight");
    check_view(&model, &w->layers[0].dense.down, "model.layers.0.mlp.down_proj.weight");
    CHECK(w->layers[0].router.data == NULL);
    check_view(&model, &w->layers[1].shared.up, "model.layers.1.mlp.shared_expert.up_proj.weight");
    check_view(&model, &w->layers[1].shared_gate, "model.layers.1.mlp.shared_expert_gate.weight");
    check_vector(&model, w->layers[1].q_bias, "model.layers.1.self_attn.q_proj.bias");
    check_vector(&model, w->layers[1].v_bias, "model.layers.1.self_attn.v_proj.bias");
    CHECK(w->layers[1].o_bias == NULL);
    check_piece(&model, &opened, 2, MP_PIECE_DOWN, "model.layers.1.mlp.experts.2.down_proj.weight",
                0, 40);
    unload(&opened);
}

static void qwen3_with_tied_head_in_half_precision(void)
{
    static const char *const dtypes[] = { "BF16", "F16" };
    struct tiny_model model;
    struct opened opened;

    for (size_t i = 0; i < 2; i++) {
        tiny_model_make(&model, TINY_QWEN3);
        for (size_t t = 0; t < model.count; t++)
            model.tensors[t].dtype = dtypes[i];
        CHECK_EQ(load(write_model(&model, TINY_QWEN3), NULL, &opened), MP_OK);
        const struct mp_weights *w = opened.weights;

        check_view(&model, &w->embed, "model.embed_tokens.weight");
        CHECK(w->head.data == w->embed.data && w->head.rows == 6);
        check_vector(&model, w->layers[0].q_norm, "model.layers.0.self_attn.q_norm.weight");
        check_vector(&model, w->layers[1].k_norm, "model.layers.1.self_attn.k_norm.weight");
        CHECK_EQ(w->expert_bytes, 6 * 3 * 5 * 8 * 2);
        CHECK_EQ(w->unit_types[5].piece[0], i == 0 ? MP_WTYPE_BF16 : MP_WTYPE_F16);
        unload(&opened);
    }
}

static void fused_experts_are_ranges_of_rows(void)
{
    static const enum tiny_form forms[] = { TINY_QWEN3_FUSED, TINY_MIXTRAL_FUSED };
    struct tiny_model model;
    struct opened opened;

    for (size_t i = 0; i < MP_ARRAY_LEN(forms); i++) {
        tiny_model_make(&model, forms[i]);
        CHECK_EQ(load(write_model(&model, forms[i]), NULL, &opened), MP_OK);
        CHECK_EQ(opened.weights->unit_count, 6);
        CHECK_EQ(opened.weights->expert_bytes, 6 * 3 * 5 * 8 * 4);
        CHECK_EQ(opened.weights->extra_tensors, 0);
        check_view(&model, &opened.weights->layers[1].router, "model.layers.1.mlp.gate.weight");
        check_piece(&model, &opened, 4, MP_PIECE_GATE, "model.layers.1.mlp.experts.gate_up_proj",
                    80, 40);
        check_piece(&model, &opened, 4, MP_PIECE_UP, "model.layers.1.mlp.experts.gate_up_proj", 120,
                    40);
        check_piece(&model, &opened, 4, MP_PIECE_DOWN, "model.layers.1.mlp.experts.down_proj", 40,
                    40);
        unload(&opened);
    }
}

/* weight_map as a writer makes it; `wrong` of the tensors is said to lie in the first shard. */
static void write_index(const char *dir, const struct tiny_model *model, size_t split,
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

static const char *write_sharded(struct tiny_model *model, const char *wrong, long total)
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

static void shards_with_an_index(void)
{
    struct tiny_model model;
    struct opened opened;

    CHECK_EQ(load(write_sharded(&model, NULL, QWEN3_BYTES), NULL, &opened), MP_OK);
    CHECK_EQ(mp_files_count(mp_checkpoint_files(opened.checkpoint)), 2);
    CHECK_EQ(mp_checkpoint_bytes(opened.checkpoint), QWEN3_BYTES);
    CHECK(mp_checkpoint_warning(opened.checkpoint) == NULL);
    check_view(&model, &opened.weights->embed, "model.embed_tokens.weight");
    check_piece(&model, &opened, 5, MP_PIECE_UP, "model.layers.1.mlp.experts.2.up_proj.weight", 0,
                40);
    unload(&opened);
}

static void links_of_the_hub_cache_are_followed(void)
{
    struct tiny_model model;
    struct opened opened;
    const char *dir = new_dir();

    tiny_model_make(&model, TINY_QWEN3);
    CHECK_EQ(mkdir(in_dir(dir, "blobs"), 0700), 0);
    CHECK_EQ(mkdir(in_dir(dir, "snapshot"), 0700), 0);
    tiny_write_shard(dir, "blobs/0123abcd", &model, 0, model.count, 0);
    tiny_write_config(in_dir(dir, "blobs"), TINY_QWEN3);
    CHECK_EQ(symlink("../blobs/0123abcd", in_dir(dir, "snapshot/model.safetensors")), 0);
    CHECK_EQ(symlink("../blobs/config.json", in_dir(dir, "snapshot/config.json")), 0);
    CHECK_EQ(load(in_dir(dir, "snapshot"), NULL, &opened), MP_OK);
    unload(&opened);
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
    tiny_write_text(dir, "pytorch_model.bin", "");
    snprintf(want, sizeof(want),
             "'%s' has 'pytorch_model.bin' but no 'model.safetensors' or "
             "'model.safetensors.index.json'; save the model with the transformers library first",
             dir);
    check_load_fails(dir, MP_ERR_MODEL, "E_CKPT_FORMAT", want);
    snprintf(want, sizeof(want),
             "'%s' is not a directory, need one with config.json and model.safetensors",
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

static void M19_data_at_odd_addresses(void)
{
    struct tiny_model model;
    struct opened opened;

    for (unsigned pad = 0; pad < 8; pad++) {
        const char *dir = new_dir();

        tiny_model_make(&model, TINY_QWEN3);
        tiny_write_config(dir, TINY_QWEN3);
        tiny_write_shard(dir, "model.safetensors", &model, 0, model.count, pad);
        CHECK_EQ(load(dir, NULL, &opened), MP_OK);
        check_view(&model, &opened.weights->embed, "model.embed_tokens.weight");
        check_vector(&model, opened.weights->final_norm, "model.norm.weight");
        check_piece(&model, &opened, 3, MP_PIECE_GATE,
                    "model.layers.1.mlp.experts.0.gate_proj.weight", 0, 40);
        unload(&opened);
    }
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
        "Q3_K, Q4_K, Q5_K, Q6_K or IQ4_XS");
    check_changed("model.layers.1.mlp.experts.0.up_proj.weight",
                  &(struct tiny_tensor){ .dtype = "U8" }, "E_TENSOR_DTYPE",
                  "tensor 'model.layers.1.mlp.experts.0.up_proj.weight' in 'model.safetensors': "
                  "got U8, need F32, BF16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, "
                  "Q3_K, Q4_K, Q5_K, Q6_K or IQ4_XS");
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
    RUN(mixtral_in_one_file);
    RUN(qwen2_with_dense_layer_shared_expert_and_biases);
    RUN(qwen3_with_tied_head_in_half_precision);
    RUN(fused_experts_are_ranges_of_rows);
    RUN(shards_with_an_index);
    RUN(links_of_the_hub_cache_are_followed);
    RUN(directories_without_weights);
    RUN(M1_short_file_in_a_directory);
    RUN(M8_interrupted_download);
    RUN(M18_values_that_are_not_finite);
    RUN(M19_data_at_odd_addresses);
    RUN(M20_tensors_against_the_configuration);
    RUN(M20_extra_tensors_are_counted);
    RUN(M21_shard_names_that_are_paths);
    RUN(M22_shards_and_index_disagree);
    RUN(M23_files_that_are_no_files);
    RUN(M24_pointers_and_web_pages);
    RUN(progress_ends_at_the_total_and_can_stop);
    return 0;
}
