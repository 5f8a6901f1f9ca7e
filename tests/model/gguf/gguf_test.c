/*
 * Models from GGUF files: the same model as a directory of safetensors files and as GGUF, whole and
 * in parts, gives the same bits at every budget; its tokenizer gives the same ids; what is broken
 * or foreign is refused with a line that names it; every call fails once.
 */
#include <jansson.h>
#include <sys/stat.h>

#include "engine/cli/args/apart.h"
#include "engine/repack/repack.h"
#include "engine/text/chat.h"
#include "tests/model/fails.h"
#include "tests/model/harness.h"
#include "tests/model/rewrite.h"
#include "tests/model/gguf/to_gguf.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/tmpdir.h"
#include "vmm/format/gguf.h"

#define DATA "tests/data/models/"
#define QWEN3 DATA "qwen3moe-tiny"
#define TINY "models/tiny-moe"
#define PROMPT 6
#define STEPS 5
#define PATH_BYTES (sizeof(test_tmpdir_path) + 64)

static const char *in_tmpdir(const char *name)
{
    static char paths[8][PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % 8];

    snprintf(path, PATH_BYTES, "%s/%s", test_tmpdir(), name);
    return path;
}

static struct to_gguf plain(const char *model, const char *arch, const char *path)
{
    return (struct to_gguf){
        .model = model, .arch = arch, .path = path, .align_bytes = 32, .parts = 1
    };
}

/* ---- the same bits */

static float *logits_of(const char *model, uint64_t budget_bytes, size_t *bytes_p)
{
    static const int32_t tokens[PROMPT + STEPS] = { 5, 70, 33, 91, 42, 8, 64, 12, 7, 90, 11 };
    static const int32_t lens[1] = { PROMPT };
    struct harness_options options = harness_defaults(model);
    struct harness h;
    float *logits;

    options.budget_bytes = budget_bytes;
    harness_open(&options, &h);
    *bytes_p = (size_t)h.model.vocab * (STEPS + 1) * sizeof(*logits);
    logits = malloc(*bytes_p);
    CHECK(logits != NULL);
    CHECK_EQ(harness_run(&h, tokens, PROMPT + STEPS, lens, 1, STEPS, logits), MP_OK);
    CHECK_EQ(mp_engine_counters(h.engine)->invalid_decisions, 0);
    harness_close(&h);
    return logits;
}

/* Everything resident, the least that a budget can be, and something between. */
static void check_budgets(const char *model, const float *want, size_t bytes)
{
    const struct harness_options options = harness_defaults(model);
    const struct mp_space_plan plan = harness_plan(&options, NULL);
    const uint64_t budgets[] = { UINT64_MAX, plan.smallest_bytes,
                                 (plan.smallest_bytes + plan.full_bytes) / 2 };

    for (size_t i = 0; i < MP_ARRAY_LEN(budgets); i++) {
        size_t more;
        float *got = logits_of(model, budgets[i], &more);

        CHECK_EQ(more, bytes);
        if (memcmp(got, want, bytes) != 0) {
            fprintf(stderr, "%s: other logits at budget %zu\n", model, i);
            exit(1);
        }
        free(got);
    }
}

/* Routers, and what switches shared experts, become F32, as converters write them: products of
 * other types add in another order. */
static void widen_routers(struct rewritten *tensor)
{
    const char *const tails[] = { ".gate.weight", "shared_expert_gate.weight" };
    const size_t length = strlen(tensor->name);

    for (size_t i = 0; i < MP_ARRAY_LEN(tails); i++) {
        const size_t tail = strlen(tails[i]);
        float *wide;

        if (length < tail || strcmp(tensor->name + length - tail, tails[i]) != 0 ||
            strcmp(tensor->dtype, "F32") == 0)
            continue;
        wide = malloc(2 * tensor->bytes);
        CHECK(wide != NULL);
        mp_kernels_ref.convert(wide, tensor->data,
                               strcmp(tensor->dtype, "BF16") == 0 ? MP_WTYPE_BF16 : MP_WTYPE_F16,
                               tensor->bytes / 2);
        free(tensor->data);
        tensor->data = wide;
        tensor->dtype = "F32";
        tensor->bytes *= 2;
    }
}

static void check_twin(const char *source, const char *arch, const char *config)
{
    static unsigned count;
    char name[32];
    struct to_gguf job = plain(NULL, arch, in_tmpdir("twin.gguf"));
    size_t bytes;
    float *want;

    snprintf(name, sizeof(name), "twin%u", count++);
    job.model = in_tmpdir(name);
    rewrite_model(source, job.model, config, widen_routers);
    want = logits_of(job.model, UINT64_MAX, &bytes);
    to_gguf(&job);
    check_budgets(job.path, want, bytes);
    job.align_bytes = 4096;
    to_gguf(&job);
    check_budgets(job.path, want, bytes);
    job.align_bytes = 8;
    job.parts = 3;
    to_gguf(&job);
    check_budgets(in_tmpdir("twin-00002-of-00003.gguf"), want, bytes);
    free(want);
}

static void qwen3moe_gives_the_same_bits(void)
{
    check_twin(QWEN3, "qwen3moe", NULL);
    check_twin(TINY, "qwen3moe", NULL);
}

/* Rows of queries and keys are put back in order. */
static void mixtral_gives_the_same_bits(void)
{
    check_twin(DATA "mixtral-tiny", "llama", NULL);
}

/* Of a model whose first layer has experts, as GGUF has no dense ones. */
static void qwen2moe_gives_the_same_bits(void)
{
    static const char config[] =
        "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"vocab_size\":320,\"hidden_size\":40,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":5,\"num_key_value_heads\":1,"
        "\"num_experts\":8,\"num_experts_per_tok\":3,\"moe_intermediate_size\":24,"
        "\"shared_expert_intermediate_size\":136,\"rope_theta\":1000000.0}";
    check_twin(DATA "qwen2moe-tiny", "qwen2moe", config);
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

static const char chatml[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt "
    "%}{{ '<|im_start|>assistant\\n' }}{% endif %}";

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
    CHECK_STR(mp_chat_name(chat), "chatml");
    mp_chat_destroy(chat);
}

/* ---- refusals */

/* What load() reads besides the weights. */
static bool with_tokenizer = true, with_chat;

static enum mp_status load(const char *path)
{
    struct mp_checkpoint *checkpoint = NULL;
    struct mp_chat *chat = NULL;
    struct mp_weights *weights = NULL;
    struct mp_tokenizer *tok = NULL;
    struct mp_model_config config;
    enum mp_status status = mp_checkpoint_open(path, &checkpoint);

    if (status == MP_OK)
        status = mp_model_config_load(checkpoint, &config);
    if (status == MP_OK)
        status = mp_weights_load(checkpoint, &config, NULL, NULL, &weights);
    if (status == MP_OK && with_tokenizer)
        status = mp_tokenizer_load(path, &tok);
    if (status == MP_OK && with_chat)
        status = mp_chat_load(path, &chat);
    mp_chat_destroy(chat);
    mp_tokenizer_destroy(tok);
    mp_weights_destroy(weights);
    mp_checkpoint_close(checkpoint);
    return status;
}

static void check_refused(const char *path, const char *code, const char *part)
{
    mp_error_clear();
    CHECK(load(path) != MP_OK);
    if (strcmp(mp_error_last()->code, code) != 0 || strstr(mp_error_last()->text, part) == NULL ||
        strchr(mp_error_last()->text, '\n') != NULL) {
        fprintf(stderr, "%s: %s\nexpected %s: ...%s...\n", mp_error_last()->code,
                mp_error_last()->text, code, part);
        exit(1);
    }
}

#define ABSENT -1
#define Q "qwen3moe."
#define T "tokenizer.ggml."

static void broken_metadata_is_refused_by_name(void)
{
    static const struct {
        struct gguf_change change;
        const char *code, *part;
    } cases[] = {
        { { "general.architecture", ABSENT, 0, NULL }, "E_GGUF_KEY", "no key 'general.arch" },
        { { "general.architecture", MP_GGUF_U32, 1, NULL }, "E_GGUF_VALUE", "need a string" },
        { { "general.architecture", MP_GGUF_STRING, 0, "gemma4" },
          "E_UNSUPPORTED",
          "got 'gemma4', this engine supports llama, qwen2moe, qwen3moe" },
        { { Q "block_count", ABSENT, 0, NULL }, "E_GGUF_KEY", "no key 'qwen3moe.block_count'" },
        { { Q "block_count", MP_GGUF_U32, 0, NULL }, "E_CONFIG", "got 0, need 1 to 512" },
        { { Q "block_count", MP_GGUF_U32, 513, NULL }, "E_CONFIG", "got 513, need 1 to 512" },
        { { Q "block_count", MP_GGUF_U32, 5, NULL },
          "E_TENSOR_MISSING",
          "tensor 'blk.4.attn_norm.weight' is missing, its metadata needs it" },
        { { Q "block_count", MP_GGUF_F32, 4, NULL }, "E_GGUF_VALUE", "is an f32" },
        { { Q "embedding_length", MP_GGUF_U32, 48, NULL }, "E_TENSOR_SHAPE", "token_embd" },
        { { Q "context_length", MP_GGUF_U32, 0, NULL }, "E_CONFIG", "context_length" },
        { { Q "attention.head_count", MP_GGUF_U32, 0, NULL }, "E_CONFIG", "got 0" },
        { { Q "attention.head_count", MP_GGUF_U32, 5, NULL }, "E_CONFIG", "got 5 of 16" },
        { { Q "attention.head_count_kv", MP_GGUF_U32, 3, NULL }, "E_CONFIG", "heads in" },
        { { Q "attention.key_length", MP_GGUF_U32, 17, NULL }, "E_CONFIG", "of 17 elements" },
        { { Q "attention.value_length", MP_GGUF_U32, 8, NULL }, "E_CONFIG", "heads in" },
        { { Q "rope.dimension_count", MP_GGUF_U32, 8, NULL }, "E_CONFIG", "heads in" },
        { { Q "attention.layer_norm_rms_epsilon", MP_GGUF_F32, -1, NULL }, "E_CONFIG", "got -1" },
        { { Q "rope.freq_base", MP_GGUF_F32, 0, NULL }, "E_CONFIG", "rope.freq_base" },
        { { Q "rope.scaling.type", MP_GGUF_STRING, 0, "yarn" }, "E_UNSUPPORTED", "'none' only" },
        { { Q "rope.scaling.factor", MP_GGUF_F32, 4, NULL }, "E_UNSUPPORTED", "not scaled" },
        { { Q "attention.sliding_window", MP_GGUF_U32, 16, NULL }, "E_UNSUPPORTED", "all pos" },
        { { Q "expert_gating_func", MP_GGUF_U32, 2, NULL }, "E_UNSUPPORTED", "softmax" },
        { { Q "expert_weights_scale", MP_GGUF_F32, 2.5, NULL }, "E_UNSUPPORTED", "scale of 1" },
        { { Q "expert_shared_count", MP_GGUF_U32, 1, NULL }, "E_UNSUPPORTED", "routed experts" },
        { { Q "leading_dense_block_count", MP_GGUF_U32, 1, NULL }, "E_UNSUPPORTED", "all layers" },
        { { Q "expert_count", MP_GGUF_U32, 4097, NULL }, "E_CONFIG", "need 1 to 4096" },
        { { Q "expert_count", MP_GGUF_U32, 9, NULL }, "E_TENSOR_SHAPE", "ffn_gate_inp" },
        { { Q "expert_used_count", MP_GGUF_U32, 64, NULL }, "E_CONFIG", "got 64" },
        { { Q "expert_feed_forward_length", MP_GGUF_U32, 8, NULL }, "E_TENSOR_SHAPE", "_exps" },
        { { T "eos_token_id", MP_GGUF_U32, 999999, NULL }, "E_CONFIG", "rows of the embedding" },
        { { T "model", MP_GGUF_STRING, 0, "none" }, "E_FILE_MISSING", "has no vocabulary" },
        { { T "model", MP_GGUF_STRING, 0, "llama" }, "E_TOK_TYPE", "got 'llama', need 'gpt2'" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct to_gguf job = plain(QWEN3, "qwen3moe", in_tmpdir("broken.gguf"));

        job.change = cases[i].change;
        to_gguf(&job);
        check_refused(job.path, cases[i].code, cases[i].part);
    }
}

static void broken_tokenizers_are_refused_by_name(void)
{
    static const struct {
        struct gguf_change change;
        const char *code, *part;
    } cases[] = {
        { { T "pre", MP_GGUF_STRING, 0, "jais" }, "E_TOK_PATTERN", "got 'jais', this engine" },
        { { T "pre", ABSENT, 0, NULL }, "E_GGUF_KEY", "tokenizer.ggml.pre" },
        { { T "bos_token_id", MP_GGUF_BOOL, 1, NULL }, "E_GGUF_VALUE", "is a bool" },
        { { T "add_bos_token", MP_GGUF_U32, 1, NULL }, "E_GGUF_VALUE", "need a bool" },
        { { T "add_bos_token", MP_GGUF_BOOL, 1, NULL }, "", "" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct to_gguf job = plain(TINY, "qwen3moe", in_tmpdir("broken.gguf"));

        job.pre = "qwen2";
        job.change = cases[i].change;
        to_gguf(&job);
        if (cases[i].code[0] != '\0')
            check_refused(job.path, cases[i].code, cases[i].part);
        else
            CHECK_EQ(load(job.path), MP_OK);
    }
}

static void broken_tensors_are_refused_by_name(void)
{
    struct to_gguf job = plain(TINY, "qwen3moe", in_tmpdir("tensors.gguf"));
    struct stat info;

    job.retype = "blk.0.ffn_down_exps.weight";
    job.type = 12;
    to_gguf(&job);
    check_refused(job.path, "E_GGUF_SHAPE", "blk.0.ffn_down_exps.weight");
    job.retype = "blk.0.ffn_gate_exps.weight";
    job.type = 9;
    to_gguf(&job);
    check_refused(job.path, "E_UNSUPPORTED", "is of type Q8_1, which is not computed yet");
    job.type = 24;
    to_gguf(&job);
    check_refused(job.path, "E_TENSOR_DTYPE", "got I8, need F32, BF16, F16, Q4_0");
    job.type = 5;
    to_gguf(&job);
    check_refused(job.path, "E_GGUF_TYPE", "");
    job.retype = NULL;
    job.leave = "blk.1.attn_q.weight";
    to_gguf(&job);
    check_refused(job.path, "E_TENSOR_MISSING", "'blk.1.attn_q.weight' is missing");
    job.leave = "token_embd.weight";
    to_gguf(&job);
    check_refused(job.path, "E_CONFIG", "token_embd.weight");
    job.leave = NULL;
    to_gguf(&job);
    CHECK_EQ(stat(job.path, &info), 0);
    CHECK_EQ(truncate(job.path, info.st_size - 4096), 0);
    check_refused(job.path, "E_GGUF_END", "cut short");
    CHECK_EQ(truncate(job.path, 100), 0);
    check_refused(job.path, "E_GGUF_SHORT", "");
    CHECK_EQ(truncate(job.path, 0), 0);
    check_refused(job.path, "E_GGUF_SHORT", "");
    CHECK_EQ(unlink(job.path), 0);
    check_refused(job.path, "E_OPEN", "tensors.gguf");
    job.parts = 3;
    to_gguf(&job);
    CHECK_EQ(unlink(in_tmpdir("tensors-00002-of-00003.gguf")), 0);
    check_refused(in_tmpdir("tensors-00001-of-00003.gguf"), "E_OPEN", "00002-of");
}

static void repack_refuses_the_file(void)
{
    struct to_gguf job = plain(QWEN3, "qwen3moe", in_tmpdir("repack.gguf"));
    const struct mp_repack_config config = { .model = job.path, .out = in_tmpdir("out") };
    struct mp_repack_report report;
    char want[PATH_BYTES + 128];

    to_gguf(&job);
    snprintf(want, sizeof(want),
             "'%s' is a GGUF file; repack reads directories with safetensors files only", job.path);
    CHECK_FAILS(mp_repack(&config, &report), MP_ERR_MODEL, "E_UNSUPPORTED", want);
}

static void no_output_overwrites_the_model(void)
{
    static struct mp_settings settings;
    struct to_gguf job = plain(QWEN3, "qwen3moe", in_tmpdir("apart.gguf"));
    const char *first = in_tmpdir("apart-00001-of-00002.gguf");
    const char *second = in_tmpdir("apart-00002-of-00002.gguf");
    struct mp_args args = { .model = first, .trace = second };

    job.parts = 2;
    to_gguf(&job);
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    CHECK_EQ(mp_files_apart(MP_COMMAND_RUN, &args, &settings), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_SAME_FILE");
    args.trace = first;
    CHECK_EQ(mp_files_apart(MP_COMMAND_RUN, &args, &settings), MP_ERR_CONFIG);
    args.trace = in_tmpdir("apart-trace");
    CHECK_EQ(mp_files_apart(MP_COMMAND_RUN, &args, &settings), MP_OK);
}

/* A name without the suffix, as caches give. */
static void files_are_known_by_their_first_bytes(void)
{
    struct to_gguf job = plain(QWEN3, "qwen3moe", in_tmpdir("sha256-1234.gguf"));

    to_gguf(&job);
    CHECK_EQ(rename(job.path, in_tmpdir("sha256-1234")), 0);
    CHECK(mp_gguf_is_file(in_tmpdir("sha256-1234")));
    CHECK(!mp_gguf_is_file(TINY) && !mp_gguf_is_file(TINY "/config.json"));
    CHECK(mp_gguf_is_file("/none/there.gguf") && !mp_gguf_is_file("/none/there"));
    CHECK_EQ(mkdir(in_tmpdir("dir.gguf"), 0700), 0);
    CHECK(!mp_gguf_is_file(in_tmpdir("dir.gguf")));
}

/* ---- every call */

static unsigned failed_runs;

static uint64_t run(const struct fault_plan *plan, const char *path)
{
    enum mp_status status;
    uint64_t failures;

    mp_error_clear();
    fault_begin(plan);
    status = load(path);
    failures = fault_end();
    if (status == MP_OK)
        return failures;
    CHECK(failures > 0);
    CHECK(status == MP_ERR_NO_MEMORY || status == MP_ERR_IO);
    CHECK(mp_error_last()->text[0] != '\0');
    failed_runs++;
    return failures;
}

static void body(const struct fault_plan *plan, void *path)
{
    run(plan, path);
    CHECK_EQ(load(path), MP_OK);
}

static void *json_allocate(size_t bytes)
{
    return malloc(bytes);
}

static void look(const struct fault_plan *plan, void *path)
{
    bool is_file;

    fault_begin(plan);
    is_file = mp_gguf_is_file(path);
    CHECK(fault_end() > 0 || is_file);
}

static void sweep(const struct to_gguf *job)
{
    to_gguf(job);
    failed_runs = 0;
    CHECK(fault_sweep(FAULT_ANY, body, (void *)(uintptr_t)job->path) > 0);
    CHECK(failed_runs > 0);
}

static void every_call_fails_once(void)
{
    struct to_gguf text = plain(TINY, "qwen3moe", in_tmpdir("fault.gguf"));
    struct to_gguf rotated = plain(DATA "mixtral-tiny", "llama", in_tmpdir("rotated.gguf"));

    fault_sweep_briefly(true);
    with_tokenizer = false;
    sweep(&rotated);
    with_tokenizer = with_chat = true;
    text.pre = "qwen2";
    text.chat = chatml;
    sweep(&text);
    CHECK_EQ(rename(rotated.path, in_tmpdir("rotated")), 0);
    CHECK(fault_sweep(FAULT_ANY, look, (void *)(uintptr_t)in_tmpdir("rotated")) > 0);
    /* Of the JSON library, some of its very many. */
    json_set_alloc_funcs(json_allocate, free);
    for (uint64_t skip = 0; skip < 200; skip++) {
        const struct fault_plan plan = { .mode = FAULT_ONCE,
                                         .calls = FAULT_BIT(malloc),
                                         .skip = skip * 7 };

        run(&plan, text.path);
    }
}

int main(void)
{
    RUN(qwen3moe_gives_the_same_bits);
    RUN(mixtral_gives_the_same_bits);
    RUN(qwen2moe_gives_the_same_bits);
    RUN(tokens_are_those_of_the_directory);
    RUN(chat_formats_are_found);
    RUN(broken_metadata_is_refused_by_name);
    RUN(broken_tokenizers_are_refused_by_name);
    RUN(broken_tensors_are_refused_by_name);
    RUN(repack_refuses_the_file);
    RUN(no_output_overwrites_the_model);
    RUN(files_are_known_by_their_first_bytes);
    RUN(every_call_fails_once);
    return 0;
}
