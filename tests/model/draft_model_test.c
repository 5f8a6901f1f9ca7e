/*
 * Drafts of a second model: the tokens, greedy and sampled, are those of a run without drafts,
 * whether its guesses are all right, mostly, or never; it goes back where they were wrong; what
 * it cannot do is refused by name; and a lookahead is told its guesses.
 */
#include "engine/convert/convert.h"
#include "engine/session/generate.h"
#include "engine/session/session.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

#define TINY "models/tiny-moe"
#define STRANGER "tests/data/models/qwen3moe-tiny" /* noise, of 97 tokens */
#define RECURRENT "tests/data/models/qwen3_next-a"
#define SEQUENCES 2
#define TOKENS 48
#define PROMPT 30

static struct mp_settings settings;
static char rounded[4200], wrong[4200];

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

static enum mp_status open_session(bool tokenizer, struct mp_session *session)
{
    const struct mp_session_config config = {
        .model = TINY,
        .sequences = SEQUENCES,
        .tokenizer = tokenizer,
        .drafts = true,
        .clock = mp_clock_monotonic(),
    };

    return mp_session_open(&settings, &config, session);
}

/* What a lookahead is told before each step: so many ids behind those of the step. */
static struct {
    const struct mp_drafts *drafts;
    struct mp_drafts_expected next[TOKENS];
    uint32_t position[TOKENS]; /* of the first one, among the generated tokens */
    uint32_t steps;
} told;

static void on_step(void *ctx, uint32_t step, const struct mp_batch *batch)
{
    (void)ctx;
    if (told.drafts == NULL || step == 0)
        return;
    CHECK(step <= TOKENS);
    told.next[step - 1] = *mp_drafts_expected(told.drafts);
    told.position[step - 1] = batch->position[batch->count - 1] - PROMPT + 1;
    told.steps = step;
}

static void generate_some(struct mp_session *session, uint32_t sequences, double temperature,
                          uint64_t seed, struct text *text)
{
    const struct mp_generate_config config = {
        .engine = session->engine,
        .engine_config = &session->engine_config,
        .sampling = { .temperature = temperature, .top_p = 0.95, .seed = seed },
        .max_tokens = TOKENS,
        .ignore_eos = true,
        .clock = mp_clock_monotonic(),
        .drafts = session->drafts,
        .on_step = on_step,
    };
    struct mp_output outputs[SEQUENCES] = { 0 };
    struct mp_generate_stats stats;
    struct mp_ids prompts[SEQUENCES];
    uint32_t ids[SEQUENCES][PROMPT];

    for (uint32_t s = 0; s < SEQUENCES; s++) {
        prompts[s] = (struct mp_ids){ .ids = ids[s], .count = PROMPT - 7 * s };
        for (uint32_t i = 0; i < PROMPT; i++)
            ids[s][i] = (s * 311 + i % 11 * 41) % 900;
    }
    CHECK_EQ(mp_generate(&config, prompts, sequences, outputs, &stats), MP_OK);
    memset(text, 0, sizeof(*text));
    for (uint32_t s = 0; s < sequences; s++) {
        CHECK_EQ(outputs[s].ids.count, TOKENS);
        memcpy(text->id[s], outputs[s].ids.ids, sizeof(text->id[s]));
    }
    text->drafts = stats.drafts;
    mp_outputs_free(outputs, SEQUENCES);
}

static void generate(struct mp_session *session, double temperature, uint64_t seed,
                     struct text *text)
{
    generate_some(session, SEQUENCES, temperature, seed, text);
}

/* Twice with each session: the second text begins where the first has ended. */
static void check_same(const char *draft_model, uint64_t guesses, double temperature, double least,
                       double most)
{
    struct mp_session session;
    struct text plain, drafted;

    for (uint64_t seed = 1; seed <= 2; seed++) {
        use("", 0, true);
        CHECK_EQ(open_session(false, &session), MP_OK);
        generate(&session, temperature, seed, &plain);
        mp_session_close(&session);
        CHECK_EQ(plain.drafts.drafted, 0);
        use(draft_model, guesses, true);
        CHECK_EQ(open_session(false, &session), MP_OK);
        for (int again = 0; again < 2; again++) {
            generate(&session, temperature, seed, &drafted);
            CHECK(memcmp(plain.id, drafted.id, sizeof(plain.id)) == 0);
            CHECK(drafted.drafts.drafted > 0);
            CHECK((double)drafted.drafts.accepted >= least * (double)drafted.drafts.drafted);
            CHECK((double)drafted.drafts.accepted <= most * (double)drafted.drafts.drafted);
        }
        mp_session_close(&session);
    }
}

static void the_model_itself_is_always_right(void)
{
    for (uint64_t guesses = 1; guesses <= 8; guesses += 7)
        check_same(TINY, guesses, 0, 1, 1);
}

static void tokens_are_the_same_whatever_is_guessed(void)
{
    static const double temperatures[] = { 0, 0.9 };

    for (size_t t = 0; t < 2; t++) {
        check_same(rounded, 4, temperatures[t], 0.05, 0.999);
        check_same(TINY, 3, 0.9, 0.05, 0.999); /* a sampled token need not be the likeliest */
        check_same(wrong, 2, temperatures[t], 0, 0.5);
    }
}

/* By measured times, which may mislead for some texts on a busy machine; whatever they say, nobody
 * sees it. */
static void it_may_not_pay(void)
{
    struct mp_session session;
    struct text plain, drafted;

    use("", 0, false);
    CHECK_EQ(open_session(false, &session), MP_OK);
    generate(&session, 0, 1, &plain);
    mp_session_close(&session);
    use(wrong, 8, false);
    CHECK_EQ(open_session(false, &session), MP_OK);
    for (int again = 0; again < 6; again++) {
        generate(&session, 0, 1, &drafted);
        CHECK(memcmp(plain.id, drafted.id, sizeof(plain.id)) == 0);
        if (drafted.drafts.steps < TOKENS / 2)
            break;
    }
    CHECK(drafted.drafts.steps < TOKENS / 2);
    mp_session_close(&session);
}

/* A text with tokens that the other model does not have is none for it. */
static void tokens_that_it_does_not_have_end_its_guesses(void)
{
    struct mp_session session;
    struct text plain, drafted;

    use("", 0, true);
    CHECK_EQ(open_session(false, &session), MP_OK);
    generate(&session, 0, 1, &plain);
    mp_session_close(&session);
    use(STRANGER, 2, true);
    CHECK_EQ(open_session(false, &session), MP_OK);
    generate(&session, 0, 1, &drafted);
    CHECK(memcmp(plain.id, drafted.id, sizeof(plain.id)) == 0);
    CHECK_EQ(drafted.drafts.drafted, 0);
    mp_session_close(&session);
}

/* One text, with a lookahead and guesses of a model; what that was told is in `told`. */
static void generate_ahead(const char *draft_model, uint64_t guesses, bool deterministic,
                           struct text *text)
{
    struct mp_session session;

    use(draft_model, guesses, deterministic);
    settings.run.lookahead = 3;
    CHECK_EQ(open_session(false, &session), MP_OK);
    memset(&told, 0, sizeof(told));
    told.drafts = session.drafts;
    generate_some(&session, 1, 0, 1, text);
    told.drafts = NULL;
    settings.run.lookahead = 0;
    mp_session_close(&session);
}

/* Ids that were told, and how many of them came. */
static uint32_t count_told(const struct text *text, uint32_t *right_p)
{
    uint32_t count = 0;

    *right_p = 0;
    for (uint32_t i = 0; i < told.steps; i++) {
        for (uint32_t j = 0; j < told.next[i].count; j++) {
            CHECK(told.position[i] + j < TOKENS);
            count++;
            *right_p += told.next[i].token[j] == text->id[0][told.position[i] + j];
        }
    }
    return count;
}

static void a_lookahead_is_told_its_guesses(void)
{
    static const bool deterministic[] = { true, false };
    struct text plain, text;
    uint32_t right;

    generate_ahead("", 0, true, &plain);
    generate_ahead(TINY, 2, true, &text);
    CHECK(memcmp(plain.id, text.id, sizeof(plain.id)) == 0);
    CHECK(text.drafts.drafted > 0);
    CHECK(count_told(&plain, &right) >= 3 * (told.steps - 2)); /* at the end there is no room */
    CHECK_EQ(right, count_told(&plain, &right));
    for (size_t i = 0; i < 2; i++) {
        generate_ahead(wrong, 2, deterministic[i], &text);
        CHECK(memcmp(plain.id, text.id, sizeof(plain.id)) == 0);
        CHECK(count_told(&plain, &right) > 0);
        generate_ahead(rounded, 1, deterministic[i], &text);
        CHECK(memcmp(plain.id, text.id, sizeof(plain.id)) == 0);
    }
}

static void expect_refusal(bool tokenizer, const char *code, const char *words)
{
    struct mp_session session;

    CHECK(open_session(tokenizer, &session) != MP_OK);
    CHECK_STR(mp_error_last()->code, code);
    CHECK(strstr(mp_error_last()->text, words) != NULL);
    mp_error_clear();
}

/* A copy of the model whose tokenizer has two tokens exchanged. */
static const char *make_other_tokens(void)
{
    static char path[4200];
    char command[16384];

    snprintf(path, sizeof(path), "%s/exchanged", test_tmpdir());
    snprintf(command, sizeof(command),
             "mkdir -p '%s' && cp models/tiny-moe/* '%s' && python3 - '%s/tokenizer.json' <<'END'\n"
             "import json, sys\n"
             "tokens = json.load(open(sys.argv[1]))\n"
             "vocab = tokens['model']['vocab']\n"
             "a, b = [t for t in vocab if len(t) == 1 and t.isalpha()][:2]\n"
             "vocab[a], vocab[b] = vocab[b], vocab[a]\n"
             "json.dump(tokens, open(sys.argv[1], 'w'))\n"
             "END\n",
             path, path, path);
    CHECK_EQ(system(command), 0);
    return path;
}

static void what_cannot_be_is_refused(void)
{
    struct mp_session session;

    use(RECURRENT, 4, false);
    expect_refusal(false, "E_DRAFT", "recurrent");
    use(TINY, 0, false);
    expect_refusal(false, "E_DRAFT", "--draft-tokens");
    use("/nowhere/at/all", 4, false);
    expect_refusal(false, "E_CKPT_DIR", "/nowhere/at/all");
    use(make_other_tokens(), 4, false);
    expect_refusal(true, "E_DRAFT", "tokenizer");
    use(rounded, 4, false); /* the same tokens, though in a file of another format */
    CHECK_EQ(open_session(true, &session), MP_OK);
    mp_session_close(&session);
}

/* A copy of the model that finds all tokens equally likely. */
static void make_wrong(void)
{
    char command[16384];

    snprintf(wrong, sizeof(wrong), "%s/wrong", test_tmpdir());
    snprintf(
        command, sizeof(command),
        "mkdir -p '%s' && cp models/tiny-moe/* '%s' && python3 - '%s/model.safetensors' <<'END'\n"
        "import json, struct, sys\n"
        "with open(sys.argv[1], 'r+b') as file:\n"
        "    size = struct.unpack('<Q', file.read(8))[0]\n"
        "    tensor = json.loads(file.read(size))['model.norm.weight']\n"
        "    begin, end = tensor['data_offsets']\n"
        "    file.seek(8 + size + begin)\n"
        "    file.write(bytes(end - begin))\n"
        "END\n",
        wrong, wrong, wrong);
    CHECK_EQ(system(command), 0);
}

/* The model with fewer bits: another one that is mostly of the same mind. */
static void make_rounded(void)
{
    struct mp_convert_config config = { .model = TINY, .out = rounded, .type = "q4_0" };
    struct mp_convert_report report;
    struct mp_session session;

    snprintf(rounded, sizeof(rounded), "%s/rounded.gguf", test_tmpdir());
    use("", 0, false);
    CHECK_EQ(open_session(false, &session), MP_OK);
    config.pool = session.pool;
    CHECK_EQ(mp_convert(&config, &report), MP_OK);
    mp_session_close(&session);
}

int main(void)
{
    CHECK_EQ(setenv("MOEPAGER_DEVICE", "cpu", 1), 0);
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    settings.pool.threads = 2;
    settings.run.ctx = 128;
    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 300000 };
    make_rounded();
    make_wrong();
    RUN(the_model_itself_is_always_right);
    RUN(tokens_are_the_same_whatever_is_guessed);
    RUN(it_may_not_pay);
    RUN(tokens_that_it_does_not_have_end_its_guesses);
    RUN(a_lookahead_is_told_its_guesses);
    RUN(what_cannot_be_is_refused);
    return 0;
}
