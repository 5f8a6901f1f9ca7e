/*
 * Models from GGUF files: the same model as a directory of safetensors files and as GGUF, whole and
 * in parts, gives the same bits at every budget; its tokenizer gives the same ids; what is broken
 * or foreign is refused with a line that names it; every call fails once.
 */
#include "engine/text/chat.h"
#include "tests/model/fails.h"
#include "tests/model/gguf/to_gguf.h"
#include "vmm/format/gguf.h"
#include "tests/model/gguf/twin_runs.h"
#include "tests/model/harness.h"
#include "tests/support/tmpdir.h"

/* ---- the same bits */

static void qwen3moe_gives_the_same_bits(void)
{
    twin_check(QWEN3, "qwen3moe", NULL, NULL);
    twin_check(TINY, "qwen3moe", NULL, NULL);
}

/* Rows of queries and keys are put back in order. */
static void mixtral_gives_the_same_bits(void)
{
    twin_check(DATA "mixtral-tiny", "llama", NULL, NULL);
}

/* Of a model whose first layer has experts, as GGUF has no dense ones. */
static void qwen2moe_gives_the_same_bits(void)
{
    static const char config[] =
        "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"vocab_size\":320,\"hidden_size\":40,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":5,\"num_key_value_heads\":1,"
        "\"num_experts\":8,\"num_experts_per_tok\":3,\"moe_intermediate_size\":24,"
        "\"shared_expert_intermediate_size\":136,\"rope_theta\":1000000.0}";
    twin_check(DATA "qwen2moe-tiny", "qwen2moe", config, NULL);
}

/* Keys of their own, biases of the choice, leading layers without experts, and the same bits. */
static void other_families_give_the_same_bits(void)
{
    twin_check(DATA "deepseek-a", "deepseek", NULL, NULL);
    twin_check(DATA "ernie4_5_moe-b", "ernie4_5-moe", NULL, NULL);
    twin_check(DATA "glm4_moe-a", "glm4moe", NULL, NULL);
    twin_check(DATA "glm4_moe-b", "glm4moe", NULL, NULL);
    twin_check(DATA "gpt_oss-a", "gpt-oss", NULL, NULL);
    twin_check(DATA "gpt_oss-mxfp4", "gpt-oss", NULL, NULL);
    twin_check(DATA "granitemoe-a", "granitemoe", NULL, NULL);
    twin_check(DATA "minimax_m2-a", "minimax-m2", NULL, NULL);
    twin_check(DATA "minimax_m2-b", "minimax-m2", NULL, NULL);
    twin_check(DATA "olmoe-a", "olmoe", NULL, NULL);
}

/* A model that such a file can say: sines and cosines as large as they are. */
static void numbers_of_other_families_are_checked(void)
{
    static const struct {
        const char *model, *arch;
        struct gguf_change change;
        const char *code, *part;
    } cases[] = {
        { DATA "glm4_moe-b",
          "glm4moe",
          { "glm4moe.expert_gating_func", MP_GGUF_U32, 1, NULL },
          "E_UNSUPPORTED",
          "this engine supports a sigmoid of each score (2) only" },
        { DATA "glm4_moe-b",
          "glm4moe",
          { "glm4moe.expert_group_count", MP_GGUF_U32, 5, NULL },
          "E_CONFIG",
          "got 5 for 12 experts, need equal ones, of which 2 hold the 2 experts of a token" },
        { DATA "glm4_moe-b",
          "glm4moe",
          { "glm4moe.leading_dense_block_count", MP_GGUF_U32, 2, NULL },
          "E_CONFIG",
          "got 2, need 0 to 1" },
        { DATA "glm4_moe-b",
          "glm4moe",
          { "glm4moe.nextn_predict_layers", MP_GGUF_U32, 2, NULL },
          "E_CONFIG",
          "got 2, need 0 to 1" },
        { DATA "glm4_moe-b",
          "glm4moe",
          { "glm4moe.expert_weights_norm", MP_GGUF_U32, 1, NULL },
          "E_GGUF_VALUE",
          "expert_weights_norm" },
        { DATA "ernie4_5_moe-b",
          "ernie4_5-moe",
          { "ernie4_5-moe.interleave_moe_layer_step", MP_GGUF_U32, 9, NULL },
          "E_CONFIG",
          "no layer has experts; need at least one" },
        { DATA "olmoe-a",
          "olmoe",
          { "olmoe.expert_weights_scale", MP_GGUF_F32, 2, NULL },
          "E_UNSUPPORTED",
          "a scale of 1" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct to_gguf job = plain(cases[i].model, cases[i].arch, in_tmpdir("wrong.gguf"));
        struct harness_options options = harness_defaults(job.path);
        struct harness h;

        job.change = cases[i].change;
        to_gguf(&job);
        CHECK_EQ(harness_try_open(&options, &h), MP_ERR_MODEL);
        CHECK_STR(mp_error_last()->code, cases[i].code);
        if (strstr(mp_error_last()->text, cases[i].part) == NULL)
            CHECK_STR(mp_error_last()->text, cases[i].part);
    }
}

/* ---- text */

static void check_ids(const struct mp_tokenizer *a, const struct mp_tokenizer *b, const char *text)
{
    struct mp_ids x = { 0 }, y = { 0 };
    char *back;
    size_t bytes;

    CHECK_EQ(mp_tokenizer_encode(a, text, strlen(text), MP_ENCODE_PARSE_SPECIAL, &x), MP_OK);
    CHECK_EQ(mp_tokenizer_encode(b, text, strlen(text), MP_ENCODE_PARSE_SPECIAL, &y), MP_OK);
    CHECK_EQ(x.count, y.count);
    CHECK(memcmp(x.ids, y.ids, x.count * sizeof(*x.ids)) == 0);
    CHECK_EQ(mp_tokenizer_decode(b, y.ids, y.count, 0, &back, &bytes), MP_OK);
    CHECK(bytes > 0);
    free(back);
    mp_ids_free(&x);
    mp_ids_free(&y);
}

static void tokens_are_those_of_the_directory(void)
{
    struct to_gguf job = plain(TINY, "qwen3moe", in_tmpdir("text.gguf"));
    struct mp_tokenizer *a, *b;

    job.pre = "qwen2";
    to_gguf(&job);
    CHECK_EQ(mp_tokenizer_load(TINY, &a), MP_OK);
    CHECK_EQ(mp_tokenizer_load(job.path, &b), MP_OK);
    CHECK_EQ(mp_tokenizer_vocab_count(a), mp_tokenizer_vocab_count(b));
    CHECK_EQ(mp_tokenizer_bos(b), 2045);
    CHECK_EQ(mp_tokenizer_eos(b), 2047);
    CHECK(mp_tokenizer_is_special(b, 2046) && !mp_tokenizer_is_special(b, 7));
    check_ids(a, b, "Once upon a time, there were 1234 dragons;  they'll FLY\n\n  again.");
    check_ids(a, b, "<|im_start|>user\nHello<|im_end|>\nna\xc3\xafve e\xcc\x81 \xf0\x9f\x90\x89");
    mp_tokenizer_destroy(a);
    mp_tokenizer_destroy(b);
}

/* Ids of a text by the tokenizer of TINY with words cut as `pre` does it. */
static struct mp_ids ids_of(const char *pre, const char *text)
{
    struct to_gguf job = plain(TINY, "qwen3moe", in_tmpdir("pre.gguf"));
    struct mp_ids ids = { 0 };
    struct mp_tokenizer *tok;

    job.pre = pre;
    to_gguf(&job);
    CHECK_EQ(mp_tokenizer_load(job.path, &tok), MP_OK);
    CHECK_EQ(mp_tokenizer_encode(tok, text, strlen(text), 0, &ids), MP_OK);
    mp_tokenizer_destroy(tok);
    return ids;
}

/* Names of one way to cut words; they differ in what the text does not show. */
static void pre_tokenizers_have_several_names(void)
{
    static const char *const names[][2] = { { "llama-bpe", "glm4" },
                                            { "llama-bpe", "chatglm-bpe" },
                                            { "gpt-2", "olmo" } };
    static const char text[] =
        "def f(self, name):\n    for line in lines:\n        self.append(name)\n\n"
        "    return \"don't\"; 12345 na\xc3\xafve\t!!";

    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        struct mp_ids a = ids_of(names[i][0], text), b = ids_of(names[i][1], text);

        CHECK(a.count > 10);
        CHECK_EQ(a.count, b.count);
        CHECK(memcmp(a.ids, b.ids, a.count * sizeof(*a.ids)) == 0);
        mp_ids_free(&a);
        mp_ids_free(&b);
    }
    /* The two ways differ here. */
    struct mp_ids a = ids_of("llama-bpe", text), b = ids_of("gpt-2", text);

    CHECK(a.count != b.count || memcmp(a.ids, b.ids, a.count * sizeof(*a.ids)) != 0);
    mp_ids_free(&a);
    mp_ids_free(&b);
}

static void chat_formats_are_found(void)
{
    struct to_gguf job = plain(QWEN3, "qwen3moe", in_tmpdir("chat.gguf"));
    struct mp_chat *chat;
    char want[PATH_BYTES + 128];

    to_gguf(&job);
    snprintf(want, sizeof(want),
             "the model has no chat template (no key 'tokenizer.chat_template' in '%s'); use "
             "--prompt without --chat",
             job.path);
    CHECK_FAILS(mp_chat_load(job.path, &chat), MP_ERR_MODEL, "E_CHAT_NONE", want);
    job.chat = chatml;
    to_gguf(&job);
    CHECK_EQ(mp_chat_load(job.path, &chat), MP_OK);
    mp_chat_destroy(chat);
}

int main(void)
{
    RUN(qwen3moe_gives_the_same_bits);
    RUN(mixtral_gives_the_same_bits);
    RUN(qwen2moe_gives_the_same_bits);
    RUN(other_families_give_the_same_bits);
    RUN(numbers_of_other_families_are_checked);
    RUN(tokens_are_those_of_the_directory);
    RUN(pre_tokenizers_have_several_names);
    RUN(chat_formats_are_found);
    return 0;
}
