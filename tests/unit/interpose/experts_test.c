/*
 * Which bytes of a model's files are routed experts, in GGUF and safetensors files that the test
 * writes: names, sizes, numbers of layers, parts, and what is no expert.
 */
#include "interpose/model/experts.h"

#include <unistd.h>

#include "tests/model/tiny_model.h"
#include "tests/support/gguf.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

#define EXPERT_BYTES 8192u /* two pages: the least that is paged */

static char path[sizeof(test_tmpdir_path) + 64];
static struct mp_experts experts;

/* (64, rows, count) of F32, `count` 0: without the last dimension. */
static void put(const char *name, uint64_t rows, uint64_t count, uint64_t offset)
{
    if (count > 0)
        gguf_tensor_3d(name, 64, rows, count, 0, offset);
    else
        gguf_tensor(name, 64, rows, 0, offset);
}

/* What has been put, with so many bytes of tensors, of which those beyond a page are a hole. */
static enum mp_status open_gguf(uint64_t data_bytes)
{
    uint64_t begin;

    mp_experts_close(&experts);
    snprintf(path, sizeof(path), "%s/model.gguf", test_tmpdir());
    gguf_data(0);
    begin = gguf_used;
    gguf_save(path);
    CHECK_EQ(truncate(path, (off_t)(begin + data_bytes)), 0);
    mp_error_clear();
    return mp_experts_open(path, false, &experts);
}

static void check_tensor(uint32_t i, uint32_t layer, uint64_t offset, uint64_t expert_bytes)
{
    const struct mp_expert_tensor *tensor = &experts.tensors[i];

    CHECK_EQ(tensor->file, 0);
    CHECK_EQ(tensor->layer, layer);
    CHECK_EQ(tensor->offset_bytes - experts.data_begin[0], offset);
    CHECK_EQ(tensor->expert_bytes, expert_bytes);
}

/* Blocks 2 and 7 have experts, listed in no order; block 3 has none. */
static void put_two_layers(void)
{
    gguf_begin(6, 0);
    put("blk.7.ffn_up_exps.weight", 32, 3, 49408);
    put("blk.3.ffn_up.weight", 1, 0, 49152);
    put("blk.2.ffn_up_exps.weight", 32, 3, 24576);
    put("blk.2.ffn_gate_exps.weight", 32, 3, 0);
    put("blk.7.ffn_down_exps.weight", 64, 3, 73984);
    put("output.weight", 1, 0, 123136);
}

static void experts_are_equal_parts_of_tensors(void)
{
    put_two_layers();
    CHECK_EQ(open_gguf(123392), MP_OK);
    CHECK_EQ(experts.layers, 2);
    CHECK_EQ(experts.experts, 3);
    CHECK_EQ(experts.top_k, 3);
    CHECK_EQ(experts.tensor_count, 4);
    check_tensor(0, 0, 0, EXPERT_BYTES);
    check_tensor(1, 0, 24576, EXPERT_BYTES);
    check_tensor(2, 1, 49408, EXPERT_BYTES);
    check_tensor(3, 1, 73984, 2 * EXPERT_BYTES);
    for (uint32_t b = 0; b < MP_BLOCKS_MAX; b++)
        CHECK_EQ(experts.layer_of[b], b == 2 ? 0 : b == 7 ? 1 : UINT32_MAX);
    for (uint32_t e = 0; e < 3; e++) {
        const struct mp_unit *first = &experts.units[e], *second = &experts.units[3 + e];

        CHECK_EQ(first->piece_count, 2);
        CHECK_EQ(second->piece_count, 2);
        CHECK_EQ(first->pieces[1].offset_bytes - experts.data_begin[0], 24576 + e * EXPERT_BYTES);
        CHECK_EQ(first->pieces[1].bytes, EXPERT_BYTES);
        CHECK_EQ(second->pieces[1].offset_bytes - experts.data_begin[0],
                 73984 + 2 * e * EXPERT_BYTES);
        CHECK_EQ(second->pieces[1].bytes, 2 * EXPERT_BYTES);
    }
}

/* The tensor of a byte: from its first to its last, and none between. */
static void bytes_are_found(void)
{
    static const struct {
        uint64_t offset;
        int tensor;
    } cases[] = {
        { 0, 0 },     { 24575, 0 }, { 24576, 1 }, { 49151, 1 },  { 49152, -1 },  { 49407, -1 },
        { 49408, 2 }, { 73983, 2 }, { 73984, 3 }, { 123135, 3 }, { 123136, -1 },
    };
    const struct mp_expert_tensor *found;

    put_two_layers();
    CHECK_EQ(open_gguf(123392), MP_OK);
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        found = mp_experts_find(&experts, 0, experts.data_begin[0] + cases[i].offset);
        CHECK(found == (cases[i].tensor < 0 ? NULL : &experts.tensors[cases[i].tensor]));
    }
    CHECK(mp_experts_find(&experts, 0, experts.data_begin[0] - 1) == NULL);
    CHECK(mp_experts_find(&experts, 1, experts.data_begin[0]) == NULL);
}

static void other_tensors_are_dense(void)
{
    static const struct {
        const char *name;
        uint64_t rows, count;
        bool taken;
    } cases[] = {
        { "blk.4095.ffn_up_exps.weight", 32, 2, true },
        { "blk.4096.ffn_up_exps.weight", 32, 2, false },
        { "blk.1.ffn_up_exps.weight", 31, 2, false }, /* less than two pages */
        { "blk.1.ffn_up_exps.weight", 32, 3, false }, /* another number of experts */
        { "blk.1.ffn_up_exps.weight", 32, 0, false },
        { "blk.1.ffn_up_exps.bias", 32, 2, false },
        { "blk.1.ffn_up_shexp.weight", 32, 2, false },
        { "blk.1.ffn_up.1.weight", 32, 2, false }, /* one expert */
        { "blk.1.ffn_gate_up_exps.weight", 32, 2, true },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        gguf_begin(2, 0);
        put("blk.0.ffn_up_exps.weight", 32, 2, 0);
        put(cases[i].name, cases[i].rows, cases[i].count, 16384);
        CHECK_EQ(open_gguf(65536), MP_OK);
        CHECK_EQ(experts.tensor_count, 1 + cases[i].taken);
        CHECK_EQ(experts.layers, 1 + cases[i].taken);
    }
    for (uint64_t count = 4096; count <= 4097; count++) {
        gguf_begin(1, 0);
        put("blk.0.ffn_up_exps.weight", 32, count, 0);
        CHECK_EQ(open_gguf(count * EXPERT_BYTES), count == 4096 ? MP_OK : MP_ERR_UNSUPPORTED);
    }
    gguf_begin(1, 0);
    put("output.weight", 32, 0, 0);
    CHECK_EQ(open_gguf(EXPERT_BYTES), MP_ERR_UNSUPPORTED);
    CHECK(experts.files == NULL && experts.units == NULL);
    gguf_begin(1, 0);
    put("blk.0.ffn_up_exps.weight", 8, 2, 0); /* all too small */
    CHECK_EQ(open_gguf(4096), MP_ERR_UNSUPPORTED);
}

static uint32_t top_k_of(const char *architecture, bool given, uint64_t top_k, uint64_t count)
{
    char key[160];

    gguf_begin(1, given ? 2 : 1);
    gguf_text("general.architecture"), gguf_put(8, 4), gguf_text(architecture);
    snprintf(key, sizeof(key), "%s.expert_used_count", architecture);
    if (given)
        gguf_number(key, 4, top_k, 4);
    put("blk.0.ffn_up_exps.weight", 32, count, 0);
    CHECK_EQ(open_gguf(count * EXPERT_BYTES), MP_OK);
    return experts.top_k;
}

/* What the model says, if there are so many; else eight, or all. */
static void experts_of_a_token_are_the_models(void)
{
    char longest[65];

    memset(longest, 'a', sizeof(longest));
    longest[64] = '\0';
    CHECK_EQ(top_k_of("made", true, 1, 16), 1);
    CHECK_EQ(top_k_of("made", true, 16, 16), 16);
    CHECK_EQ(top_k_of("made", true, 17, 16), 8);
    CHECK_EQ(top_k_of("made", true, 0, 16), 8);
    CHECK_EQ(top_k_of("made", false, 0, 16), 8);
    CHECK_EQ(top_k_of("made", false, 0, 8), 8);
    CHECK_EQ(top_k_of("made", false, 0, 7), 7);
    CHECK_EQ(top_k_of(longest, true, 2, 16), 8); /* no architecture has so long a name */
    CHECK_EQ(top_k_of(longest + 1, true, 2, 16), 2);
}

static void add(struct tiny_model *model, const char *name, uint32_t dims, uint64_t count,
                uint64_t rows)
{
    struct tiny_tensor *tensor = &model->tensors[model->count++];

    *tensor = (struct tiny_tensor){ .dtype = "F32", .dims = dims, .shape = { count, rows, 64 } };
    if (dims == 2) {
        tensor->shape[0] = rows;
        tensor->shape[1] = 64;
    }
    snprintf(tensor->name, sizeof(tensor->name), "%s", name);
}

static enum mp_status open_part(const char *name)
{
    mp_experts_close(&experts);
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    mp_error_clear();
    return mp_experts_open(path, true, &experts);
}

/* Two parts: whichever is mapped, both are the model's. */
static void safetensors_have_all_experts_of_a_layer_in_one(void)
{
    struct tiny_model model = { .count = 0 };

    add(&model, "model.layers.1.mlp.experts.gate_up_proj", 3, 3, 64);
    add(&model, "model.layers.1.mlp.experts.down_proj", 3, 3, 32);
    add(&model, "model.layers.1.mlp.gate.weight", 2, 0, 3);
    add(&model, "model.layers.2.mlp.experts.gate_up_proj", 3, 3, 64);
    add(&model, "model.layers.2.mlp.experts.down_proj", 3, 3, 31);
    add(&model, "model.layers.4096.mlp.experts.down_proj", 3, 3, 32);
    add(&model, "model.layers.3.mlp.experts.down_proj", 3, 2, 32);
    add(&model, "model.layers.3.mlp.experts.1.down_proj.weight", 2, 0, 64);
    tiny_write_shard(test_tmpdir(), "m-00001-of-00002.safetensors", &model, 0, 3, 0);
    tiny_write_shard(test_tmpdir(), "m-00002-of-00002.safetensors", &model, 3, model.count, 4);
    for (int part = 1; part <= 2; part++) {
        CHECK_EQ(
            open_part(part == 1 ? "m-00001-of-00002.safetensors" : "m-00002-of-00002.safetensors"),
            MP_OK);
        CHECK_EQ(mp_files_count(experts.files), 2);
        CHECK_EQ(experts.tensor_count, 3);
        CHECK_EQ(experts.layers, 2);
        CHECK_EQ(experts.experts, 3);
        CHECK_EQ(experts.top_k, 3);
        CHECK_EQ(experts.tensors[0].expert_bytes, 2 * EXPERT_BYTES);
        CHECK_EQ(experts.tensors[1].expert_bytes, EXPERT_BYTES);
        CHECK_EQ(experts.tensors[2].file, 1);
        CHECK_EQ(experts.tensors[2].layer, 1);
        CHECK_EQ(experts.tensors[0].offset_bytes, experts.data_begin[0]);
        CHECK_EQ(experts.tensors[2].offset_bytes, experts.data_begin[1]);
    }
}

static void names_may_say_nothing_of_parts(void)
{
    static const char *const names[] = { "m.safetensors", "m-00000-of-00002.safetensors",
                                         "m-00003-of-00002.safetensors",
                                         "m-00001-of-04097.safetensors",
                                         "-00001-of-00001.safetensors" };
    struct tiny_model model = { .count = 0 };

    add(&model, "model.layers.1.mlp.experts.gate_up_proj", 3, 9, 32);
    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        tiny_write_shard(test_tmpdir(), names[i], &model, 0, 1, 0);
        CHECK_EQ(open_part(names[i]), MP_OK);
        CHECK_EQ(mp_files_count(experts.files), 1);
        CHECK_EQ(experts.top_k, 8);
    }
    model.tensors[0].shape[0] = 4097; /* more experts than there may be */
    model.tensors[0].shape[2] = 1;
    model.tensors[0].shape[1] = 1;
    tiny_write_shard(test_tmpdir(), names[0], &model, 0, 1, 0);
    CHECK_EQ(open_part(names[0]), MP_ERR_UNSUPPORTED);
    tiny_write_text(test_tmpdir(), "m.safetensors", "short");
    CHECK_EQ(open_part(names[0]), MP_ERR_UNSUPPORTED);
    CHECK(open_part("absent.safetensors") != MP_OK);
}

int main(void)
{
    RUN(experts_are_equal_parts_of_tensors);
    RUN(bytes_are_found);
    RUN(other_tensors_are_dense);
    RUN(experts_of_a_token_are_the_models);
    RUN(safetensors_have_all_experts_of_a_layer_in_one);
    RUN(names_may_say_nothing_of_parts);
    mp_experts_close(&experts);
    return 0;
}
