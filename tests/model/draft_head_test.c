/*
 * Drafts of a model's own layer (multi-token prediction): its logits are those of NumPy, for states
 * of the model and for its own, from directories, copies in other orders and GGUF files; the
 * tokens, greedy and sampled, are those of a run without drafts, whether it guesses noise, or is
 * right always or never; its experts are paged; what cannot be is refused by name.
 */
#include <unistd.h>

#include "engine/convert/convert.h"
#include "engine/model/drafting.h"
#include "engine/session/draft/head.h"
#include "engine/session/generate.h"
#include "engine/session/session.h"
#include "tests/model/gguf/to_gguf.h"
#include "tests/model/harness.h"
#include "tests/model/repack_check.h"
#include "tests/model/rewrite.h"
#include "tests/support/log_guard.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

#define DATA "tests/data/models/"
#define SEQUENCES 2
#define TOKENS 40
#define PROMPT 30
#define ROWS 24 /* tokens of the fixtures */

static const char *const models[] = { DATA "deepseek_v3-draft", DATA "glm4_moe-draft" };

static struct mp_settings settings;

/* ---- logits */

/* The layer that drafts, with an engine of its own beside the model's. */
struct layer {
    struct mp_model_config model;
    struct mp_weights *weights;
    struct mp_engine *engine;
};

static void open_layer(const struct harness *h, struct layer *layer)
{
    struct mp_engine_config config = h->config;

    layer->model = h->model;
    CHECK(mp_drafting_there(h->checkpoint, &h->model));
    mp_drafting_config(&layer->model);
    CHECK_EQ(mp_weights_load(h->checkpoint, &layer->model, NULL, NULL, &layer->weights), MP_OK);
    mp_weights_share(layer->weights, h->weights);
    config.model = &layer->model;
    config.weights = layer->weights;
    CHECK_EQ(mp_engine_create(&config, &layer->engine), MP_OK);
}

static void close_layer(struct layer *layer)
{
    mp_engine_destroy(layer->engine);
    mp_weights_destroy(layer->weights);
}

static struct mp_batch batch; /* the last one */

/* Tokens at positions from `first` on; with states: of a layer that drafts. Logits of the last
 * `wanted`. */
static const float *forward_some(struct mp_engine *engine, const uint32_t *token, uint32_t first,
                                 uint32_t count, uint32_t wanted, const float *states)
{
    static const uint32_t sequence[ROWS];
    static uint8_t want[ROWS];
    static uint32_t position[ROWS];
    const float *logits;

    for (uint32_t i = 0; i < count; i++) {
        position[i] = first + i;
        want[i] = i + wanted >= count;
    }
    batch = (struct mp_batch){ .count = count,
                               .token = token,
                               .sequence = sequence,
                               .position = position,
                               .want = want,
                               .states = states };
    CHECK_EQ(mp_forward(engine, &batch, &logits), MP_OK);
    return logits;
}

static const float *forward(struct mp_engine *engine, const uint32_t *token, uint32_t first,
                            uint32_t count, const float *states)
{
    return forward_some(engine, token, first, count, count, states);
}

static void read_array(const char *model, const char *name, struct npy *npy)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/expect/draft_%s.npy", model, name);
    CHECK(npy_read(path, npy));
}

static void compare(const float *got, const struct npy *want, size_t row, size_t rows)
{
    CHECK(npy_error(got, want->f32 + row * want->dims[1], rows * want->dims[1]) <= 1e-4);
}

/* In parts of `part` positions; and behind each the layer's own state, which is forgotten. */
static void check_logits(const char *path, const char *model, uint32_t part)
{
    struct harness_options options = harness_defaults(path);
    struct npy tokens, logits, second;
    struct harness h;
    struct layer layer;
    uint32_t token[ROWS];
    const size_t last = ROWS - 1;
    float *states, *own;

    options.wanted_max = ROWS;
    harness_open(&options, &h);
    open_layer(&h, &layer);
    read_array(model, "tokens", &tokens);
    read_array(model, "logits", &logits);
    read_array(model, "second", &second);
    CHECK(tokens.count == ROWS && logits.dims[0] == last && second.dims[0] == last - 1);
    CHECK(h.model.vocab == logits.dims[1] && h.model.vocab == second.dims[1]);
    for (size_t i = 0; i < ROWS; i++)
        token[i] = (uint32_t)tokens.i32[i];
    states = malloc(ROWS * h.model.hidden * sizeof(float));
    own = malloc(h.model.hidden * sizeof(float));
    CHECK(states != NULL && own != NULL);
    (void)forward(h.engine, token, 0, ROWS, NULL);
    memcpy(states, mp_engine_states(h.engine), ROWS * h.model.hidden * sizeof(float));
    for (uint32_t first = 0; first < last; first += part) {
        const uint32_t count = last - first < part ? (uint32_t)last - first : part;
        const uint32_t behind = first + count;

        compare(
            forward(layer.engine, token + first + 1, first, count, states + first * h.model.hidden),
            &logits, first, count);
        memcpy(own, mp_engine_states(layer.engine) + (count - 1) * h.model.hidden,
               h.model.hidden * sizeof(float));
        if (behind < last)
            compare(forward(layer.engine, token + behind + 1, behind, 1, own), &second, behind - 1,
                    1);
    }
    free(states);
    free(own);
    npy_free(&tokens);
    npy_free(&logits);
    npy_free(&second);
    close_layer(&layer);
    harness_close(&h);
}

static void logits_are_those_of_numpy(void)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(models); i++) {
        for (uint32_t part = 1; part < ROWS; part += 11)
            check_logits(models[i], models[i], part);
    }
}

static const char *in_tmpdir(const char *name)
{
    static char paths[8][4200];
    static unsigned next;
    char *path = paths[next++ % MP_ARRAY_LEN(paths)];

    snprintf(path, sizeof(paths[0]), "%s/%s", test_tmpdir(), name);
    return path;
}

static void convert(const char *model, const char *out)
{
    const struct mp_pool_config one = { .threads = 1 };
    struct mp_convert_config job = { .model = model, .out = out, .type = "bf16" };
    struct mp_convert_report report;

    CHECK_EQ(mp_pool_create(&one, NULL, MP_TOPOLOGY_ANY_NODE, &job.pool), MP_OK);
    CHECK_EQ(mp_convert(&job, &report), MP_OK);
    mp_pool_destroy(job.pool);
}

/* And a GGUF file that is made of such a file. */
static void a_gguf_file_has_the_layer_too(void)
{
    static const char *const archs[] = { "deepseek2", "glm4moe" };

    for (size_t i = 0; i < MP_ARRAY_LEN(models); i++) {
        const char *path = in_tmpdir("one.gguf"), *copy = in_tmpdir("copy.gguf");
        const struct to_gguf job = {
            .model = models[i], .arch = archs[i], .path = path, .align_bytes = 32, .parts = 1
        };

        to_gguf(&job);
        check_logits(path, models[i], 5);
        convert(path, copy);
        check_logits(copy, models[i], ROWS);
        CHECK(unlink(path) == 0 && unlink(copy) == 0);
    }
}

/* A family whose attention and router are those of DeepSeek-V3. */
static void a_family_like_it_has_the_layer_too(void)
{
    static const char config[] =
        "{\"model_type\":\"glm4_moe_lite\",\"architectures\":[\"Glm4MoeLiteForCausalLM\"],"
        "\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\"],\"hidden_act\":\"silu\","
        "\"hidden_size\":40,\"intermediate_size\":72,\"kv_lora_rank\":32,"
        "\"max_position_embeddings\":512,\"moe_intermediate_size\":24,\"n_group\":1,"
        "\"n_routed_experts\":8,\"n_shared_experts\":1,\"norm_topk_prob\":true,"
        "\"num_attention_heads\":4,\"num_experts_per_tok\":3,\"num_hidden_layers\":3,"
        "\"num_key_value_heads\":4,\"q_lora_rank\":24,\"qk_nope_head_dim\":16,"
        "\"qk_rope_head_dim\":8,\"rms_norm_eps\":1e-6,\"rope_theta\":50000.0,"
        "\"routed_scaling_factor\":2.446,\"tie_word_embeddings\":false,\"topk_group\":1,"
        "\"v_head_dim\":16,\"vocab_size\":97}";
    const char *lite = in_tmpdir("lite");

    rewrite_model(models[0], lite, config, rewrite_as_f32);
    check_logits(lite, models[0], ROWS);
}

/* ---- texts */

struct text {
    uint32_t id[SEQUENCES][TOKENS];
    struct mp_drafts_stats drafts;
};

static void use(const char *draft_model, uint64_t guesses, bool deterministic)
{
    snprintf(settings.run.draft_model, sizeof(settings.run.draft_model), "%s", draft_model);
    settings.run.draft_tokens = guesses;
    settings.run.deterministic = deterministic;
}

static enum mp_status open_session(const char *model, struct mp_session *session)
{
    const struct mp_session_config config = {
        .model = model,
        .sequences = SEQUENCES,
        .drafts = true,
        .clock = mp_clock_monotonic(),
    };

    return mp_session_open(&settings, &config, session);
}

static void generate(struct mp_session *session, double temperature, struct text *text)
{
    const struct mp_generate_config config = {
        .engine = session->engine,
        .engine_config = &session->engine_config,
        .sampling = { .temperature = temperature, .top_p = 0.95, .seed = 7 },
        .max_tokens = TOKENS,
        .ignore_eos = true,
        .clock = mp_clock_monotonic(),
        .drafts = session->drafts,
    };
    struct mp_output outputs[SEQUENCES] = { 0 };
    struct mp_generate_stats stats;
    struct mp_ids prompts[SEQUENCES];
    uint32_t ids[SEQUENCES][PROMPT];

    for (uint32_t s = 0; s < SEQUENCES; s++) {
        prompts[s] = (struct mp_ids){ .ids = ids[s], .count = s == 0 ? PROMPT : 1 };
        for (uint32_t i = 0; i < PROMPT; i++)
            ids[s][i] = (s * 31 + i % 11 * 41 + i) % 97;
    }
    CHECK_EQ(mp_generate(&config, prompts, SEQUENCES, outputs, &stats), MP_OK);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        CHECK_EQ(outputs[s].ids.count, TOKENS);
        memcpy(text->id[s], outputs[s].ids.ids, sizeof(text->id[s]));
    }
    text->drafts = stats.drafts;
    mp_outputs_free(outputs, SEQUENCES);
}

static void expect_text(struct mp_session *session, double temperature, const struct text *want,
                        struct mp_drafts_stats *drafts)
{
    struct text text;

    generate(session, temperature, &text);
    CHECK(memcmp(want->id, text.id, sizeof(text.id)) == 0);
    drafts->drafted += text.drafts.drafted;
    drafts->accepted += text.drafts.accepted;
}

/* Texts without drafts: greedy, and drawn. */
static void make_plain_texts(const char *model, struct text plain[2])
{
    struct mp_session session;

    use("", 0, true);
    CHECK_EQ(open_session(model, &session), MP_OK);
    CHECK_EQ(session.weights->extra_tensors, 0);
    CHECK_EQ(session.memory.draft.budget_bytes, 0);
    generate(&session, 0, &plain[0]);
    generate(&session, 0.9, &plain[1]);
    mp_session_close(&session);
}

/* With drafts, one text behind the other; returns how many guesses were right, of all. */
static struct mp_drafts_stats check_same(const char *model, uint64_t guesses, bool deterministic,
                                         const struct text plain[2])
{
    struct mp_drafts_stats drafts = { 0 };
    struct mp_session session;

    use(MP_DRAFT_HEAD_NAME, guesses, deterministic);
    CHECK_EQ(open_session(model, &session), MP_OK);
    expect_text(&session, 0, &plain[0], &drafts);
    CHECK(drafts.drafted > 0 || !deterministic);
    if (plain[1].id[0][0] != UINT32_MAX)
        expect_text(&session, 0.9, &plain[1], &drafts);
    expect_text(&session, 0, &plain[0], &drafts);
    mp_session_close(&session);
    return drafts;
}

static void tokens_are_the_same_whatever_is_guessed(void)
{
    static const uint64_t prefill[] = { 1, 7, 256 };
    static const struct mp_share budgets[] = { { MP_SHARE_PPM, 250000 },
                                               { MP_SHARE_PPM, 500000 },
                                               { MP_SHARE_ALL, 0 } };
    struct text plain[2];

    for (size_t m = 0; m < MP_ARRAY_LEN(models); m++) {
        for (size_t i = 0; i < 3; i++) {
            settings.run.prefill_tokens = prefill[i];
            settings.run.budget = budgets[i];
            settings.run.lookahead = i;
            make_plain_texts(models[m], plain);
            for (uint64_t guesses = 1; guesses <= 8; guesses += 7)
                (void)check_same(models[m], guesses, true, plain);
            /* Steps that draft nothing leave states that wait. */
            (void)check_same(models[m], 8, false, plain);
        }
    }
    settings.run.lookahead = 0;
}

/* The experts of the layer stay whole, those of the others may be in slices. */
static void a_copy_in_another_order_has_the_layer_too(void)
{
    static const char *const names[] = { "whole", "halves" };
    struct text plain[2];

    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 500000 };
    for (uint32_t slices = 1; slices <= 2; slices++) {
        const char *out = in_tmpdir(names[slices - 1]);
        struct mp_repack_config config = repack_config(models[0], out);

        config.slices = slices;
        CHECK_EQ(repack_must(&config).slices, slices);
        check_logits(out, models[0], ROWS);
        make_plain_texts(out, plain);
        (void)check_same(out, 2, true, plain);
    }
}

#define ONE 0x3f80 /* as BF16 */

/* Layers add nothing, so that a token depends on the one before it alone; the layer that drafts
 * takes the embedding and leaves the state, and both norms behind are ones. */
static void make_right(struct rewritten *tensor)
{
    static const char *const ones[] = { ".enorm.", "model.norm.", ".shared_head.norm." };
    const char *name = tensor->name;
    uint16_t *data = tensor->data;

    if (strstr(name, "o_proj") != NULL || strstr(name, "down_proj") != NULL)
        memset(data, 0, tensor->bytes);
    for (size_t i = 0; i < MP_ARRAY_LEN(ones); i++) {
        for (size_t k = 0; strstr(name, ones[i]) != NULL && k < tensor->shape[0]; k++)
            data[k] = ONE;
    }
    if (strstr(name, "eh_proj") == NULL)
        return;
    memset(data, 0, tensor->bytes);
    for (size_t i = 0; i < tensor->shape[0]; i++)
        data[i * tensor->shape[1] + i] = ONE;
}

/* The same model with a layer that has all logits negated, and so guesses the least likely token.
 */
static void make_wrong(struct rewritten *tensor)
{
    uint16_t *data = tensor->data;

    make_right(tensor);
    for (size_t i = 0; strstr(tensor->name, "eh_proj") != NULL && i < tensor->bytes / 2; i++)
        data[i] ^= data[i] != 0 ? 0x8000 : 0;
}

static void a_layer_that_is_right_always_or_never(void)
{
    const char *const paths[] = { in_tmpdir("wrong"), in_tmpdir("right") };
    struct text plain[2];

    rewrite_model(models[0], paths[0], NULL, make_wrong);
    rewrite_model(models[0], paths[1], NULL, make_right);
    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 500000 };
    settings.pool.threads = 2;
    make_plain_texts(paths[0], plain);
    plain[1].id[0][0] = UINT32_MAX; /* what is drawn is no matter of the layer */
    for (uint64_t right = 0; right < 2; right++) {
        for (uint64_t guesses = 1; guesses <= 8; guesses += 7) {
            const struct mp_drafts_stats drafts = check_same(paths[right], guesses, true, plain);

            CHECK_EQ(drafts.accepted, right * drafts.drafted);
        }
        (void)check_same(paths[right], 4, false, plain);
    }
    settings.pool.threads = 1;
}

/* ---- the source */

/* The model runs tokens at positions from `first` on. */
static void run(struct mp_session *session, struct mp_draft_source *source, const uint32_t *token,
                uint32_t first, uint32_t count)
{
    (void)forward_some(session->engine, token, first, count, 0, NULL);
    CHECK_EQ(source->ops->seen(source, &batch, mp_engine_states(session->engine)), MP_OK);
}

static void expect_guess(struct mp_draft_source *source, const struct npy *logits, size_t row)
{
    const float *at = logits->f32 + row * logits->dims[1];
    struct mp_draft draft;
    uint32_t best = 0;

    for (uint32_t i = 1; i < logits->dims[1]; i++)
        best = at[i] > at[best] ? i : best;
    CHECK_EQ(source->ops->guess(source, 0, 3, &draft), MP_OK);
    CHECK_EQ(draft.count, 3);
    CHECK_EQ(draft.token[0], best);
}

static void expect_none(struct mp_draft_source *source)
{
    struct mp_draft draft;

    CHECK_EQ(source->ops->guess(source, 0, 3, &draft), MP_OK);
    CHECK_EQ(draft.count, 0);
}

static void check_guesses(uint64_t prefill_tokens)
{
    const struct mp_session_config config = {
        .model = models[0], .sequences = 1, .drafts = true, .clock = mp_clock_monotonic()
    };
    struct mp_draft_source *source;
    struct npy tokens, logits;
    struct mp_session session;
    uint32_t token[ROWS], wrong[2];

    use(MP_DRAFT_HEAD_NAME, 3, true);
    settings.run.prefill_tokens = prefill_tokens;
    CHECK_EQ(mp_session_open(&settings, &config, &session), MP_OK);
    CHECK_EQ(mp_draft_head_open(&settings, &config, &session, &source), MP_OK);
    mp_draft_head_share(source, session.weights);
    read_array(models[0], "tokens", &tokens);
    read_array(models[0], "logits", &logits);
    for (size_t i = 0; i < ROWS; i++)
        token[i] = (uint32_t)tokens.i32[i];
    for (int again = 0; again < 2; again++) {
        source->ops->begin(source);
        expect_none(source);
        for (uint32_t i = 0; i < 15; i++)
            source->ops->push(source, 0, token[i]);
        expect_none(source);
        for (uint32_t i = 0; i < 14; i += 2)
            run(&session, source, token + i, i, 2);
        expect_guess(source, &logits, 13);
        expect_none(source); /* the state is gone */
        wrong[0] = token[14];
        wrong[1] = (token[15] + 1) % 97;
        run(&session, source, wrong, 14, 2);
        source->ops->push(source, 0, token[15]);
        expect_guess(source, &logits, 14);
        run(&session, source, token + 15, 15, 1); /* in place of the wrong one */
        source->ops->push(source, 0, token[16]);
        expect_guess(source, &logits, 15);
        run(&session, source, token + 16, 16, 1); /* a step that nobody asks about */
        source->ops->push(source, 0, token[17]);
        run(&session, source, token + 17, 17, 1);
        source->ops->push(source, 0, token[18]);
        expect_guess(source, &logits, 17);
        run(&session, source, token + 19, 19, 1); /* what is between is missing */
        source->ops->push(source, 0, token[19]);
        source->ops->push(source, 0, token[20]);
        expect_none(source);
    }
    npy_free(&tokens);
    npy_free(&logits);
    source->ops->destroy(source);
    mp_session_close(&session);
}

static void guesses_follow_the_states(void)
{
    check_guesses(4); /* more come than can wait, or are run at once */
    check_guesses(64);
}

/* ---- refusals */

static void expect_error(const char *model, const char *code, const char *words)
{
    struct mp_session session;

    CHECK(open_session(model, &session) != MP_OK);
    CHECK_STR(mp_error_last()->code, code);
    CHECK(strstr(mp_error_last()->text, words) != NULL);
    CHECK(strchr(mp_error_last()->text, '\n') == NULL);
    mp_error_clear();
}

static void expect_refusal(const char *model, const char *words)
{
    expect_error(model, "E_DRAFT", words);
}

static void what_cannot_be_is_refused(void)
{
    struct mp_session_config config = {
        .model = models[0],
        .sequences = 1,
        .draft_model = true,
        .clock = mp_clock_monotonic(),
    };
    struct mp_session session;

    settings.run.budget = (struct mp_share){ MP_SHARE_ALL, 0 };
    use(MP_DRAFT_HEAD_NAME, 2, true);
    expect_refusal(DATA "deepseek_v3-a", "no layer that drafts");
    expect_refusal(DATA "qwen3_next-a", "recurrent");
    CHECK(mp_session_open(&settings, &config, &session) != MP_OK);
    CHECK_STR(mp_error_last()->code, "E_DRAFT");
    mp_error_clear();
    use(MP_DRAFT_HEAD_NAME, 0, true);
    expect_refusal(models[0], "--draft-tokens");
}

/* A tensor of the layer by the end of its name, what is wrong with it, and what is said. */
static const struct broken {
    const char *end, *type;
    bool turned;
    const char *code, *words;
} broken[] = {
    { "eh_proj.weight", NULL, false, "E_DRAFT", "no layer that drafts" },
    { "enorm.weight", NULL, false, "E_TENSOR_MISSING", "model.layers.3.enorm.weight" },
    { "3.shared_head.norm.weight", NULL, false, "E_TENSOR_MISSING", "shared_head.norm" },
    { "3.self_attn.kv_b_proj.weight", NULL, false, "E_TENSOR_MISSING", "kv_b_proj" },
    { "3.mlp.experts.5.up_proj.weight", NULL, false, "E_TENSOR_MISSING", "experts.5" },
    { "eh_proj.weight", NULL, true, "E_TENSOR_SHAPE", "model.layers.3.eh_proj.weight" },
    { "3.mlp.experts.5.up_proj.weight", NULL, true, "E_TENSOR_SHAPE", "experts.5" },
    { "hnorm.weight", "I16", false, "E_TENSOR_DTYPE", "model.layers.3.hnorm.weight" },
};

static const struct broken *what;

static void break_tensor(struct rewritten *tensor)
{
    const size_t length = strlen(tensor->name), end = strlen(what->end);
    const uint64_t rows = tensor->shape[0];

    if (length < end || strcmp(tensor->name + length - end, what->end) != 0)
        return;
    if (what->type != NULL) {
        tensor->dtype = what->type;
    } else if (what->turned) {
        tensor->shape[0] = tensor->shape[1];
        tensor->shape[1] = rows;
    } else {
        strcpy(tensor->name + length - strlen("weight"), "gone");
    }
}

/* The model itself is whole, and runs. */
static void a_broken_layer_is_named(void)
{
    struct mp_session session;
    char name[32];

    for (size_t i = 0; i < MP_ARRAY_LEN(broken); i++) {
        const char *path;

        snprintf(name, sizeof(name), "broken%zu", i);
        path = in_tmpdir(name);
        what = &broken[i];
        rewrite_model(models[0], path, NULL, break_tensor);
        use(MP_DRAFT_HEAD_NAME, 2, true);
        expect_error(path, what->code, what->words);
        use("", 0, true);
        CHECK_EQ(open_session(path, &session), MP_OK);
        CHECK_EQ(session.weights->extra_tensors, 0);
        mp_session_close(&session);
    }
}

static void a_broken_layer_of_a_file_is_named(void)
{
    static const char *const missing[] = { "blk.3.nextn.eh_proj.weight",
                                           "blk.3.nextn.hnorm.weight" };
    const char *path = in_tmpdir("broken.gguf");

    use(MP_DRAFT_HEAD_NAME, 2, true);
    for (size_t i = 0; i < MP_ARRAY_LEN(missing); i++) {
        const struct to_gguf job = { .model = models[0],
                                     .arch = "deepseek2",
                                     .path = path,
                                     .align_bytes = 32,
                                     .parts = 1,
                                     .leave = missing[i] };

        to_gguf(&job);
        if (i == 0)
            expect_refusal(path, "no layer that drafts");
        else
            expect_error(path, "E_TENSOR_MISSING", missing[i]);
    }
}

static void find_warning(void *ctx, enum mp_log_level level, const char *line)
{
    bool *found = ctx;

    *found |= level == MP_LOG_WARN && strstr(line, "the layer that drafts tokens is not") != NULL;
}

/* What --type writes of a directory. */
static void a_gguf_file_of_a_directory_has_no_layer(void)
{
    bool warned = false;
    const char *path = in_tmpdir("none.gguf");
    struct mp_session session;

    mp_log_set_sink(find_warning, &warned);
    convert(models[0], path);
    mp_log_set_sink(NULL, NULL);
    CHECK(warned);
    use(MP_DRAFT_HEAD_NAME, 2, true);
    expect_refusal(path, "no layer that drafts");
    use("", 0, true);
    CHECK_EQ(open_session(path, &session), MP_OK);
    mp_session_close(&session);
}

int main(void)
{
    CHECK_EQ(setenv("MOEPAGER_DEVICE", "cpu", 1), 0);
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    settings.pool.threads = 1;
    settings.run.ctx = 128;
    RUN(logits_are_those_of_numpy);
    RUN(a_gguf_file_has_the_layer_too);
    RUN(a_family_like_it_has_the_layer_too);
    RUN(tokens_are_the_same_whatever_is_guessed);
    RUN(a_copy_in_another_order_has_the_layer_too);
    RUN(a_layer_that_is_right_always_or_never);
    RUN(guesses_follow_the_states);
    RUN(what_cannot_be_is_refused);
    RUN(a_broken_layer_is_named);
    RUN(a_broken_layer_of_a_file_is_named);
    RUN(a_gguf_file_of_a_directory_has_no_layer);
    return 0;
}
