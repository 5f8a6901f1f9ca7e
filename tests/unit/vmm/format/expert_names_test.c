/* Names of expert tensors as files of many families have them, and names that are close. */
#include "vmm/format/expert_names.h"

#include "tests/support/test.h"

static void check_all(const char *name, uint32_t layer, enum mp_expert_part part, bool weight)
{
    struct mp_expert_name got;

    CHECK(mp_expert_name_parse(name, &got));
    CHECK(got.all);
    CHECK_EQ(got.layer, layer);
    CHECK_EQ(got.part, part);
    CHECK_EQ(got.weight, weight);
}

static void check_one(const char *name, uint32_t layer, enum mp_expert_part part, uint32_t expert)
{
    struct mp_expert_name got;

    CHECK(mp_expert_name_parse(name, &got));
    CHECK(!got.all);
    CHECK(got.weight);
    CHECK_EQ(got.layer, layer);
    CHECK_EQ(got.part, part);
    CHECK_EQ(got.expert, expert);
}

static void all_experts_of_a_layer(void)
{
    check_all("blk.0.ffn_gate_exps.weight", 0, MP_EXPERT_GATE, true);
    check_all("blk.61.ffn_up_exps.weight", 61, MP_EXPERT_UP, true);
    check_all("blk.7.ffn_down_exps.weight", 7, MP_EXPERT_DOWN, true);
    check_all("blk.12.ffn_gate_up_exps.weight", 12, MP_EXPERT_GATE_UP, true);
    check_all("blk.12.ffn_gate_exps.bias", 12, MP_EXPERT_GATE, false);
    check_all("blk.12.ffn_down_exps.scale", 12, MP_EXPERT_DOWN, false);
    check_all("model.layers.3.mlp.experts.gate_up_proj", 3, MP_EXPERT_GATE_UP, true);
    check_all("model.layers.3.mlp.experts.down_proj", 3, MP_EXPERT_DOWN, true);
    check_all("model.layers.3.mlp.experts.gate_up_proj_bias", 3, MP_EXPERT_GATE_UP, false);
    check_all("model.layers.3.mlp.experts.gate_up_proj_blocks", 3, MP_EXPERT_GATE_UP, true);
    check_all("model.layers.3.mlp.experts.down_proj_scales", 3, MP_EXPERT_DOWN, false);
    check_all("model.language_model.layers.40.mlp.experts.down_proj", 40, MP_EXPERT_DOWN, true);
}

static void one_expert(void)
{
    check_one("blk.5.ffn_gate.7.weight", 5, MP_EXPERT_GATE, 7);
    check_one("model.layers.5.mlp.experts.127.up_proj.weight", 5, MP_EXPERT_UP, 127);
    check_one("model.layers.5.mlp.experts.0.gate_proj.weight", 5, MP_EXPERT_GATE, 0);
    check_one("model.layers.5.block_sparse_moe.experts.7.w1.weight", 5, MP_EXPERT_GATE, 7);
    check_one("model.layers.5.block_sparse_moe.experts.7.w2.weight", 5, MP_EXPERT_DOWN, 7);
    check_one("model.layers.5.block_sparse_moe.experts.7.w3.weight", 5, MP_EXPERT_UP, 7);
}

static void no_routed_expert(void)
{
    static const char *const names[] = {
        "",
        "blk.",
        "blk.0",
        "blk.x.ffn_gate_exps.weight",
        "blk.1234567890.ffn_gate_exps.weight",
        "blk.0.ffn_gate.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_gate_shexp.weight",
        "blk.0.ffn_gate_expsx.weight",
        "blk.0.exp_probs_b.bias",
        "token_embd.weight",
        "model.layers.3.mlp.gate.weight",
        "model.layers.3.mlp.gate_proj.weight",
        "model.layers.3.mlp.shared_experts.gate_proj.weight",
        "model.layers.3.mlp.shared_expert.up_proj.weight",
        "model.layers.3.mlp.experts.",
        "model.layers.3.mlp.experts.5",
        "model.layers.3.mlp.experts.5.",
        "model.layers.3.mlp.experts.e_score_correction_bias",
        "model.layers.3.mlp.experts.w1x",
        "model.players.3.mlp.experts.w1",
        "model.layers.mlp.experts.w1",
        "model.embed_tokens.weight",
    };
    struct mp_expert_name got;

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (mp_expert_name_parse(names[i], &got))
            fprintf(stderr, "taken for an expert's: '%s'\n", names[i]);
        CHECK(!mp_expert_name_parse(names[i], &got));
    }
}

int main(void)
{
    RUN(all_experts_of_a_layer);
    RUN(one_expert);
    RUN(no_routed_expert);
    return 0;
}
