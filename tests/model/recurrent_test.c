/*
 * Recurrent states: a sequence goes on, repeats its last batch or begins again, with the same bits,
 * beside another one; it does not go back. And published models that also see have their text in an
 * object of config.json.
 */
#include "tests/model/fails.h"
#include "tests/model/harness.h"
#include "tests/model/rewrite.h"
#include "tests/support/tmpdir.h"

#define MODEL "tests/data/models/qwen3_5_moe_text-a"
#define TOKENS 9
#define VOCAB 97

static const uint32_t text[2][TOKENS] = { { 5, 66, 33, 61, 42, 8, 64, 12, 7 },
                                          { 9, 1, 80, 3, 3, 17, 29, 90, 2 } };

/* Tokens [first, first + count) of one sequence; logits of the last one. */
static enum mp_status feed(struct harness *h, uint32_t sequence, uint32_t first, uint32_t count,
                           float *logits)
{
    uint32_t owner[TOKENS], position[TOKENS];
    uint8_t want[TOKENS] = { 0 };
    const float *got = NULL;
    enum mp_status status;

    for (uint32_t i = 0; i < count; i++) {
        owner[i] = sequence;
        position[i] = first + i;
    }
    want[count - 1] = 1;
    status = mp_forward(h->engine,
                        &(struct mp_batch){ .count = count,
                                            .token = text[sequence] + first,
                                            .sequence = owner,
                                            .position = position,
                                            .want = want },
                        &got);
    if (status == MP_OK)
        memcpy(logits, got, VOCAB * sizeof(float));
    return status;
}

static void must_be(struct harness *h, uint32_t sequence, uint32_t first, uint32_t count,
                    const float *want)
{
    float got[VOCAB];

    CHECK_EQ(feed(h, sequence, first, count, got), MP_OK);
    CHECK(memcmp(got, want, sizeof(got)) == 0);
}

static void check_sequences(const char *model)
{
    struct harness_options options = harness_defaults(model);
    float five[2][VOCAB], nine[2][VOCAB], none[VOCAB];
    struct harness h;

    options.sequences = 2;
    harness_open(&options, &h);
    CHECK_EQ(h.model.vocab, VOCAB);
    for (uint32_t s = 0; s < 2; s++) {
        CHECK_EQ(feed(&h, s, 0, 5, five[s]), MP_OK);
        CHECK_EQ(feed(&h, s, 5, 4, nine[s]), MP_OK);
    }
    CHECK(memcmp(five[0], five[1], sizeof(five[0])) != 0);
    must_be(&h, 0, 5, 4, nine[0]); /* once more, the other sequence untouched */
    must_be(&h, 1, 5, 4, nine[1]);
    must_be(&h, 0, 5, 4, nine[0]);
    must_be(&h, 0, 0, 9, nine[0]); /* from the beginning, in one batch */
    CHECK_FAILS(feed(&h, 0, 5, 4, none), MP_ERR_INVALID, "E_BATCH",
                "sequence 0 cannot go to position 5: layers without attention keep its last state "
                "only");
    must_be(&h, 0, 0, 5, five[0]);
    CHECK_EQ(feed(&h, 0, 9, 0 + 1, none), MP_ERR_INVALID); /* nor does it leave tokens out */
    for (uint32_t i = 5; i < TOKENS; i++)
        CHECK_EQ(feed(&h, 0, i, 1, none), MP_OK);
    CHECK(memcmp(none, nine[0], sizeof(none)) == 0);
    must_be(&h, 1, 5, 4, nine[1]);
    harness_close(&h);
}

static void sequences_go_on_repeat_or_begin_again(void)
{
    check_sequences(MODEL);
    check_sequences("tests/data/models/lfm2_moe-a"); /* short convolutions */
}

/* ---- text of a model that also sees */

static const char config[] =
    "{\"architectures\":[\"Qwen3_5MoeForConditionalGeneration\"],\"vision_config\":{},"
    "\"text_config\":{\"vocab_size\":97,\"hidden_size\":40,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"num_experts\":8,"
    "\"num_experts_per_tok\":3,\"moe_intermediate_size\":24,\"max_position_embeddings\":512,"
    "\"shared_expert_intermediate_size\":56,\"linear_num_key_heads\":2,"
    "\"linear_num_value_heads\":4,\"linear_key_head_dim\":8,\"linear_value_head_dim\":12,"
    "\"linear_conv_kernel_dim\":4,\"full_attention_interval\":3,"
    "\"rope_parameters\":{\"rope_theta\":10000000.0,\"rope_type\":\"default\","
    "\"partial_rotary_factor\":0.25}}}";

static void to_language_model(struct rewritten *tensor)
{
    char old[sizeof(tensor->name)];

    strcpy(old, tensor->name);
    if (strncmp(old, "model.", 6) == 0)
        CHECK((size_t)snprintf(tensor->name, sizeof(tensor->name), "model.language_model.%s",
                               old + 6) < sizeof(tensor->name));
}

static void text_of_a_larger_model(void)
{
    char path[sizeof(test_tmpdir_path) + 8];
    float want[VOCAB], got[VOCAB];
    struct harness_options options = harness_defaults(MODEL);
    struct mp_model_config out;
    struct harness h;
    static const char no_text[] = "{\"architectures\":[\"Qwen3_5MoeForConditionalGeneration\"]}";

    harness_open(&options, &h);
    CHECK_EQ(feed(&h, 0, 0, TOKENS, want), MP_OK);
    harness_close(&h);
    snprintf(path, sizeof(path), "%s/m", test_tmpdir());
    rewrite_model(MODEL, path, config, to_language_model);
    options.model = path;
    harness_open(&options, &h);
    CHECK_EQ(h.weights->extra_tensors, 0);
    CHECK_EQ(feed(&h, 0, 0, TOKENS, got), MP_OK);
    harness_close(&h);
    CHECK(memcmp(want, got, sizeof(want)) == 0);
    CHECK_FAILS(mp_model_config_parse(no_text, sizeof(no_text) - 1, NULL, 0, &out), MP_ERR_MODEL,
                "E_UNSUPPORTED",
                "key 'text_config' in 'config.json': got nothing, this engine supports an object "
                "about text only");
}

int main(void)
{
    RUN(sequences_go_on_repeat_or_begin_again);
    RUN(text_of_a_larger_model);
    return 0;
}
