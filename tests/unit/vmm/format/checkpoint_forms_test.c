/*
 * The forms of model directories that are accepted: every view, vector and piece is where the
 * tensor is. checkpoint_cases_test.c has what is refused.
 */
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/weights.h"
#include "tests/model/fails.h"
#include "tests/model/tiny_model.h"
#include "tests/unit/vmm/format/model_dirs.h"

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
    check_vector(&model, w->final_norm.w, "model.norm.weight");
    check_view(&model, &w->layers[1].q, "model.layers.1.self_attn.q_proj.weight");
    check_view(&model, &w->layers[1].k, "model.layers.1.self_attn.k_proj.weight");
    check_view(&model, &w->layers[1].v, "model.layers.1.self_attn.v_proj.weight");
    check_view(&model, &w->layers[1].o, "model.layers.1.self_attn.o_proj.weight");
    check_view(&model, &w->layers[1].router, "model.layers.1.block_sparse_moe.gate.weight");
    check_vector(&model, w->layers[1].attn_norm.w, "model.layers.1.input_layernorm.weight");
    check_vector(&model, w->layers[1].ffn_norm.w, "model.layers.1.post_attention_layernorm.weight");
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
        check_vector(&model, opened.weights->final_norm.w, "model.norm.weight");
        check_piece(&model, &opened, 3, MP_PIECE_GATE,
                    "model.layers.1.mlp.experts.0.gate_proj.weight", 0, 40);
        unload(&opened);
    }
}

int main(void)
{
    RUN(mixtral_in_one_file);
    RUN(qwen2_with_dense_layer_shared_expert_and_biases);
    RUN(qwen3_with_tied_head_in_half_precision);
    RUN(fused_experts_are_ranges_of_rows);
    RUN(shards_with_an_index);
    RUN(links_of_the_hub_cache_are_followed);
    RUN(M19_data_at_odd_addresses);
    return 0;
}
