/*
 * Model files of families whose programs nobody has here: made-up bytes under their names and
 * strides. What is an expert, what every token reads, and what is a table of rows.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/model/experts.h"
#include "interpose/pager/paged.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/interpose/family.h"
#include "tests/unit/interpose/made_up.h"

#define HIDDEN 256u

static char path[sizeof(test_tmpdir_path) + 32];
static struct mp_experts model;

static void open_family(void)
{
    snprintf(path, sizeof(path), "%s/family.gguf", test_tmpdir());
    (void)family_save(path);
    CHECK_EQ(mp_experts_open(path, false, &model), MP_OK);
}

static const struct mp_expert_tensor *find(const char *name)
{
    return mp_experts_find(&model, 0, family_offset(name));
}

static void expect_expert(const char *name, uint32_t layer, uint64_t bytes)
{
    const struct mp_expert_tensor *tensor = find(name);

    CHECK(tensor != NULL);
    CHECK_EQ(tensor->layer, layer);
    CHECK_EQ(tensor->expert_bytes, bytes);
    CHECK_EQ(tensor->offset_bytes, family_offset(name));
}

/*
 * DeepSeek-V4: experts in MXFP4 in every block, one shared expert, a table of tokens instead of a
 * router's choice in the first blocks, corrections in the others, the root of a softplus, streams
 * of hidden states that are mixed (hc_*), and a block that predicts further tokens behind the last.
 */
static void deepseek4(void)
{
    const uint32_t experts = 16, blocks = 6, hashed = 3;
    const uint64_t expert_bytes = HIDDEN * 128u / 32 * 17;
    uint32_t layers;

    family_begin("deepseek4");
    family_number("expert_count", experts);
    family_number("expert_used_count", 6);
    family_number("expert_gating_func", 4);
    family_number("hash_layer_count", hashed);
    family_tensor(FAMILY_BF16, HIDDEN, 512, 0, "token_embd.weight");
    for (uint32_t b = 0; b < blocks; b++) {
        family_tensor(FAMILY_F32, HIDDEN, 0, 0, "blk.%u.ffn_norm.weight", b);
        family_tensor(FAMILY_F32, 4 * HIDDEN, 24, 0, "blk.%u.hc_ffn_fn.weight", b);
        family_tensor(FAMILY_F32, HIDDEN, experts, 0, "blk.%u.ffn_gate_inp.weight", b);
        if (b < hashed)
            family_tensor(FAMILY_I32, 6, 512, 0, "blk.%u.ffn_gate_tid2eid.weight", b);
        else
            family_tensor(FAMILY_F32, experts, 0, 0, "blk.%u.exp_probs_b.bias", b);
        family_tensor(FAMILY_MXFP4, HIDDEN, 128, experts, "blk.%u.ffn_gate_exps.weight", b);
        family_tensor(FAMILY_MXFP4, HIDDEN, 128, experts, "blk.%u.ffn_up_exps.weight", b);
        family_tensor(FAMILY_MXFP4, 128, HIDDEN, experts, "blk.%u.ffn_down_exps.weight", b);
        family_tensor(FAMILY_BF16, HIDDEN, 128, 0, "blk.%u.ffn_gate_shexp.weight", b);
        family_tensor(FAMILY_BF16, HIDDEN, 128, 0, "blk.%u.ffn_up_shexp.weight", b);
        family_tensor(FAMILY_BF16, 128, HIDDEN, 0, "blk.%u.ffn_down_shexp.weight", b);
    }
    family_tensor(FAMILY_BF16, HIDDEN, HIDDEN, 0, "blk.%u.nextn.e_proj.weight", blocks - 1);
    family_fill();
    open_family();
    layers = model.layers;
    CHECK_EQ(layers, blocks);
    CHECK_EQ(model.experts, experts);
    CHECK_EQ(model.top_k, 6);
    expect_expert("blk.0.ffn_gate_exps.weight", 0, expert_bytes);
    expect_expert("blk.5.ffn_down_exps.weight", 5, expert_bytes);
    CHECK_EQ(model.units[3 * experts + 7].piece_count, 3);
    CHECK(find("blk.0.ffn_gate_shexp.weight") == NULL);
    CHECK(find("blk.0.ffn_gate_tid2eid.weight") == NULL);
    CHECK(find("blk.1.ffn_gate_inp.weight") == NULL);
    CHECK_EQ(model.gating, MP_GATING_SQRT_SOFTPLUS);
    for (uint32_t l = 0; l < layers; l++) {
        CHECK_EQ(model.routers[l].weight.bytes > 0, l >= hashed);
        CHECK_EQ(model.routers[l].correction.bytes > 0, l >= hashed);
    }
    CHECK_EQ(model.table_count, 0);
    mp_experts_close(&model);
}

/*
 * Qwen3.8-Flash-Next: very many small experts, ten of them for a token, gate and up in one tensor
 * or in two, a shared expert behind a gate, and a table of n-grams larger than all of that.
 */
static void add_qwen4(bool fused, const char *table, uint64_t table_rows)
{
    const uint32_t experts = 64;

    family_begin("qwen4exp");
    family_number("expert_used_count", 10);
    family_tensor(FAMILY_Q4_K, HIDDEN, 1000, 0, "token_embd.weight");
    family_tensor(FAMILY_BF16, HIDDEN, 1000, 0, "output.weight");
    family_tensor(FAMILY_Q4_K, HIDDEN, table_rows, 0, "%s", table);
    family_tensor(FAMILY_BF16, HIDDEN, 64, 0, "per_layer_model_proj.weight");
    for (uint32_t b = 0; b < 4; b++) {
        family_tensor(FAMILY_F32, HIDDEN, 0, 0, "blk.%u.post_attention_norm.weight", b);
        family_tensor(FAMILY_F32, HIDDEN, experts, 0, "blk.%u.ffn_gate_inp.weight", b);
        family_tensor(FAMILY_F32, HIDDEN, 0, 0, "blk.%u.ffn_gate_inp_shexp.weight", b);
        family_tensor(FAMILY_Q4_K, HIDDEN, 64, experts, "blk.%u.ffn_down_exps.weight", b);
        if (fused) {
            family_tensor(FAMILY_Q4_K, HIDDEN, 128, experts, "blk.%u.ffn_gate_up_exps.weight", b);
        } else {
            family_tensor(FAMILY_Q4_K, HIDDEN, 64, experts, "blk.%u.ffn_gate_exps.weight", b);
            family_tensor(FAMILY_Q4_K, HIDDEN, 64, experts, "blk.%u.ffn_up_exps.weight", b);
        }
        family_tensor(FAMILY_Q4_K, HIDDEN, 64, 0, "blk.%u.ffn_gate_shexp.weight", b);
    }
    family_fill();
}

/* Whatever their order in the file, pieces are in that in which they are used. */
static void expect_piece(const char *name, uint32_t piece)
{
    const struct mp_expert_tensor *tensor = find(name);

    CHECK(tensor != NULL);
    CHECK_EQ(tensor->piece, piece);
    for (uint32_t e = 0; e < model.experts; e++) {
        const struct mp_unit *unit = &model.units[tensor->layer * model.experts + e];

        CHECK_EQ(unit->pieces[piece].offset_bytes, tensor->offset_bytes + e * tensor->expert_bytes);
        CHECK_EQ(unit->pieces[piece].bytes, tensor->expert_bytes);
    }
}

static void qwen4(void)
{
    const uint64_t row = HIDDEN / 256 * 144, table_bytes = 20000 * row;
    uint64_t dense_bytes;

    for (uint32_t fused = 0; fused < 2; fused++) {
        add_qwen4(fused != 0, "per_layer_token_embd.weight", 20000);
        open_family();
        CHECK_EQ(model.layers, 4);
        CHECK_EQ(model.experts, 64);
        CHECK_EQ(model.top_k, 10);
        expect_expert("blk.3.ffn_down_exps.weight", 3, 64 * row);
        if (fused)
            expect_expert("blk.2.ffn_gate_up_exps.weight", 2, 128 * row);
        CHECK_EQ(model.units[5].piece_count, fused ? 2 : 3);
        expect_piece(fused ? "blk.1.ffn_gate_up_exps.weight" : "blk.1.ffn_gate_exps.weight", 0);
        if (!fused)
            expect_piece("blk.1.ffn_up_exps.weight", 1);
        expect_piece("blk.1.ffn_down_exps.weight", fused ? 1 : 2);
        CHECK(find("blk.3.ffn_gate_shexp.weight") == NULL);
        CHECK_EQ(model.gating, MP_GATING_SOFTMAX);
        CHECK(model.routers[3].norm.bytes > 0);
        CHECK_EQ(model.table_count, 1);
        CHECK_EQ(model.tables[0].offset_bytes, family_offset("per_layer_token_embd.weight"));
        CHECK_EQ(mp_experts_table_bytes(&model), table_bytes);
        mp_experts_close(&model);
    }
    /* Nobody reads the table as a whole: it is no part of what stays in memory. */
    add_qwen4(true, "ple_ngram_embd.0.weight", 20000);
    open_family();
    dense_bytes = mp_paged_dense_bytes(&model);
    CHECK_EQ(mp_experts_table_bytes(&model), table_bytes);
    mp_experts_close(&model);
    add_qwen4(true, "some_other_table.weight", 20000);
    open_family();
    CHECK_EQ(model.table_count, 0);
    CHECK(mp_paged_dense_bytes(&model) >= dense_bytes + table_bytes - 2 * MP_SPACE_PAGE_BYTES);
    CHECK(mp_paged_dense_bytes(&model) <= dense_bytes + table_bytes + 2 * MP_SPACE_PAGE_BYTES);
    mp_experts_close(&model);
    /* One that is small is read with what is around it; a projection is no table. */
    add_qwen4(true, "per_layer_token_embd.weight", 100);
    open_family();
    CHECK_EQ(model.table_count, 0);
    mp_experts_close(&model);
}

/* Of the mapping that holds the address: is it the file's, and read by pages, without those around?
 */
static bool is_the_files(const char *at, bool *random_p)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    bool here = false, is = false;

    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL) {
        char *dash;
        const unsigned long begin = strtoul(line, &dash, 16);

        if (*dash == '-') {
            here = (uintptr_t)at >= begin && (uintptr_t)at < strtoul(dash + 1, NULL, 16);
            is = here ? strstr(line, "family.gguf") != NULL : is;
        } else if (here && strncmp(line, "VmFlags:", 8) == 0 && random_p != NULL) {
            *random_p = strstr(line, " rr") != NULL;
        }
    }
    fclose(maps);
    return is;
}

/* What every token reads comes into memory, before and behind the table, which does not. */
static void a_table_stays_the_files(void)
{
    uint64_t bytes, output, table, norm;
    bool random = false;
    char *base;
    int fd;

    add_qwen4(true, "per_layer_token_embd.weight", 20000);
    bytes = family_save(path);
    output = family_offset("output.weight");
    table = family_offset("per_layer_token_embd.weight");
    norm = family_offset("blk.1.ffn_gate_inp.weight") + HIDDEN * 64; /* 64 KiB, and more around */
    made_start("50%", "expert");
    fd = open(path, O_RDONLY);
    base = made_map(fd, bytes, MAP_SHARED, 0);
    close(fd);
    CHECK(made_is_paged(base));
    for (int n = 0;
         n < 1000 && (is_the_files(base + output + 8192, NULL) || is_the_files(base + norm, NULL));
         n++)
        usleep(10000);
    CHECK(!is_the_files(base + output + 8192, NULL));
    CHECK(!is_the_files(base + norm, NULL));
    CHECK(is_the_files(base + table + 8192, &random));
    CHECK(random);
    CHECK(is_the_files(base + table + 20000 * 144 - 8192, NULL));
    CHECK(memcmp(base + table, family_data("per_layer_token_embd.weight"), 20000 * 144) == 0);
    CHECK(memcmp(base + output, family_data("output.weight"), 1000 * HIDDEN * 2) == 0);
    made_unmap(base, bytes);
}

/* Parts of an expert that are no multiple of anything, and what looks like experts. */
static void odd_parts(void)
{
    family_begin("odd");
    family_tensor(FAMILY_BF16, 88, 99, 7, "blk.1.ffn_gate_exps.weight");
    family_tensor(FAMILY_BF16, 99, 88, 7, "blk.1.ffn_down_exps.weight");
    family_tensor(FAMILY_F32, 99, 7, 0, "blk.1.ffn_gate_exps.bias");
    family_tensor(FAMILY_BF16, 88, 99, 6, "blk.2.ffn_gate_exps.weight"); /* another number */
    family_tensor(FAMILY_BF16, 8, 9, 7, "blk.3.ffn_gate_exps.weight");   /* too small */
    family_tensor(FAMILY_BF16, 88, 99, 7, "blk.4.ffn_gate_chexps.weight");
    family_fill();
    open_family();
    CHECK_EQ(model.layers, 1);
    CHECK_EQ(model.experts, 7);
    CHECK_EQ(model.top_k, 7);
    expect_expert("blk.1.ffn_gate_exps.weight", 0, 88 * 99 * 2);
    expect_expert("blk.1.ffn_down_exps.weight", 0, 88 * 99 * 2);
    CHECK_EQ(model.tensor_count, 2);
    CHECK_EQ(model.hidden, 0);
    CHECK(find("blk.1.ffn_gate_exps.bias") == NULL);
    CHECK(find("blk.2.ffn_gate_exps.weight") == NULL);
    mp_experts_close(&model);
}

int main(void)
{
    RUN(deepseek4);
    RUN(qwen4);
    RUN(odd_parts);
    RUN(a_table_stays_the_files);
    return 0;
}
