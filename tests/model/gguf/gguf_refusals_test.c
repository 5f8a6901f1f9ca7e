/*
 * GGUF files that are refused by name, and every call failing once.
 */
#include <jansson.h>
#include <sys/stat.h>

#include "engine/cli/args/apart.h"
#include "engine/repack/repack.h"
#include "engine/text/chat.h"
#include "tests/model/fails.h"
#include "tests/model/gguf/to_gguf.h"
#include "tests/model/gguf/twins.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/tmpdir.h"
#include "vmm/format/gguf.h"

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
        { { "general.architecture", MP_GGUF_STRING, 0, "mamba" },
          "E_UNSUPPORTED",
          "got 'mamba', this engine supports deepseek, deepseek2, ernie4_5-moe, gemma4, glm4moe, "
          "gpt-oss, granitemoe, lfm2moe, llama, minimax-m2, olmoe, phimoe, qwen2moe, qwen35moe, "
          "qwen3moe, qwen3next" },
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
        { { Q "rope.scaling.type", MP_GGUF_STRING, 0, "longrope" },
          "E_CONFIG",
          "got no lists of 'longrope', need either 'rope_freqs.weight' or both" },
        { { Q "rope.scaling.type", MP_GGUF_STRING, 0, "" },
          "E_UNSUPPORTED",
          "supports 'none', 'linear', 'yarn' and 'longrope' only" },
        { { Q "rope.scaling.type", MP_GGUF_U32, 0, NULL }, "E_UNSUPPORTED", "and 'longrope' only" },
        { { Q "rope.scaling.factor", MP_GGUF_F32, -1, NULL }, "E_CONFIG", "got -1" },
        { { Q "rope.scaling.yarn_log_multiplier", MP_GGUF_F32, 1, NULL }, "E_UNSUPPORTED", "none" },
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
        { { T "model", MP_GGUF_STRING, 0, "t5" }, "E_TOK_TYPE", "got 't5', need 'gpt2'" },
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
    fault_end();
    CHECK(is_file); /* also where it cannot be opened or read */
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
    RUN(broken_metadata_is_refused_by_name);
    RUN(broken_tokenizers_are_refused_by_name);
    RUN(broken_tensors_are_refused_by_name);
    RUN(repack_refuses_the_file);
    RUN(no_output_overwrites_the_model);
    RUN(files_are_known_by_their_first_bytes);
    RUN(every_call_fails_once);
    return 0;
}
