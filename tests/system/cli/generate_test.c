/*
 * What the command line generates: the same text whatever the budget, the threads and the company
 * in a batch; seeds, stop texts, chat, and the ends of a sequence.
 */
#include "tests/system/cli/cli.h"

#include <string.h>
#include <sys/stat.h>

#include "tests/support/test.h"

#define RUN_JSON "run", "--model", CLI_MODEL, "--json"
#define ARGS(...)                \
    (&(const struct cli){        \
        .args = { __VA_ARGS__ }, \
    })

static char *copy_text(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    CHECK(text != NULL);
    return strdup(text);
}

/* The member of a run's JSON as a text of its own. */
static char *text_of(const struct cli *cli, const char *key)
{
    json_t *json = cli_json(cli);
    char *text = copy_text(json, key);

    json_decref(json);
    return text;
}

static void same_text(const char *what, const struct cli *cli, const char *expected)
{
    char *text = text_of(cli, "text");

    if (strcmp(text, expected) != 0) {
        fprintf(stderr, "%s: \"%s\", expected \"%s\"\n", what, text, expected);
        exit(1);
    }
    free(text);
}

#define PROMPT "--prompt", "def main(argv):", "--max-tokens", "24"

static void budget_threads_and_policies_change_no_text(void)
{
    static const char *const budgets[] = { "147456", "10%", "25%", "60%" };
    static const char *const evicts[] = { "lru", "lfu", "random", "layer-lru", "layer-lfu" };
    char *expected = text_of(ARGS(RUN_JSON, PROMPT, "--budget", "all"), "text");

    CHECK(strlen(expected) > 10);
    for (size_t i = 0; i < 4; i++)
        same_text(budgets[i], ARGS(RUN_JSON, PROMPT, "--budget", budgets[i]), expected);
    for (size_t i = 0; i < 5; i++)
        same_text(evicts[i], ARGS(RUN_JSON, PROMPT, "--budget", "15%", "--evict", evicts[i]),
                  expected);
    same_text("threads", ARGS(RUN_JSON, PROMPT, "--threads", "1"), expected);
    same_text("no prefetch", ARGS(RUN_JSON, PROMPT, "--budget", "20%", "--prefetch", "none"),
              expected);
    same_text("deterministic", ARGS(RUN_JSON, PROMPT, "--budget", "20%", "--deterministic"),
              expected);
    same_text("threads that read",
              ARGS(RUN_JSON, PROMPT, "--budget", "20%", "--uring=off", "--io", "buffered"),
              expected);
    same_text("prefill in small pieces", ARGS(RUN_JSON, PROMPT, "--prefill-tokens", "3"), expected);
    free(expected);
}

/* What a heat map holds is read ahead, so the second run finds more; whatever the file holds, the
 * text is the same. */
static void a_heat_map_changes_no_text(void)
{
    static const char hostile[] = "\x10\0\0\0\0\0\0\0{\"heat\":[[[[[[[[[";
    char *expected = text_of(ARGS(RUN_JSON, PROMPT, "--budget", "all"), "text");
    char path[4200];
    double hits[2];
    FILE *file;

    snprintf(path, sizeof(path), "%s", cli_path("heat"));
    for (int i = 0; i < 2; i++) {
        json_t *json = cli_json(ARGS(RUN_JSON, PROMPT, "--budget", "75%", "--heat-map", path,
                                     "--deterministic", "--predict", "none", "--prefetch", "none"));

        CHECK_STR(json_string_value(json_object_get(json, "text")), expected);
        hits[i] = json_number_value(json_object_get(json, "hit_rate"));
        json_decref(json);
    }
    CHECK(hits[1] > hits[0] + 0.05);
    file = fopen(path, "w");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(hostile, 1, sizeof(hostile), file), sizeof(hostile));
    CHECK_EQ(fclose(file), 0);
    cli_expect(ARGS(RUN_JSON, PROMPT, "--budget", "20%", "--heat-map", path), 0,
               "starts without a heat map");
    same_text("replaced", ARGS(RUN_JSON, PROMPT, "--budget", "20%", "--heat-map", path), expected);
    free(expected);
}

/* Each type of the KV cache has its size and, at every budget, its text. */
static void a_type_of_the_cache_is_a_size_and_a_text(void)
{
    static const struct {
        const char *name;
        unsigned row_bytes; /* of 32 elements */
    } types[] = { { "f32", 128 }, { "f16", 64 }, { "bf16", 64 }, { "q8_0", 34 } };
    json_int_t f32_bytes = 0;

    for (size_t i = 0; i < 4; i++) {
        const char *type = types[i].name;
        json_t *run = cli_json(ARGS(RUN_JSON, PROMPT, "--budget", "all", "--kv-type", type));
        const json_int_t bytes = json_integer_value(json_object_get(run, "kv_bytes"));
        const char *text = json_string_value(json_object_get(run, "text"));

        f32_bytes = i == 0 ? bytes : f32_bytes;
        CHECK(bytes > 0);
        CHECK_EQ(bytes * 128, f32_bytes * types[i].row_bytes);
        CHECK_STR(json_string_value(json_object_get(run, "kv_type")), type);
        same_text(type, ARGS(RUN_JSON, PROMPT, "--budget", "147456", "--kv-type", type), text);
        json_decref(run);
    }
    cli_expect(ARGS("info", "--model", "tests/data/models/qwen3moe-tiny", "--kv-type", "q8_0"), 2,
               "error[E_KV_TYPE]: KV cache of type q8_0: heads of layer 0 have 16 elements, need a "
               "multiple of 32; f16 and bf16 take any");
}

#define SAMPLED "--prompt", "The ", "--max-tokens", "32", "--temperature", "1.2"

static void a_seed_is_a_text_and_another_seed_another(void)
{
    char *first = text_of(ARGS(RUN_JSON, SAMPLED, "--seed", "7"), "text");
    char *other = text_of(ARGS(RUN_JSON, SAMPLED, "--seed", "8"), "text");
    char *greedy = text_of(ARGS(RUN_JSON, "--prompt", "The ", "--max-tokens", "32"), "text");

    same_text("the same seed", ARGS(RUN_JSON, SAMPLED, "--seed", "7", "--budget", "20%"), first);
    CHECK(strcmp(first, other) != 0);
    same_text("only one to choose from", ARGS(RUN_JSON, SAMPLED, "--top-k", "1"), greedy);
    same_text("only the likeliest", ARGS(RUN_JSON, SAMPLED, "--top-p", "1e-6"), greedy);
    free(first);
    free(other);
    free(greedy);
}

static void a_stop_text_ends_before_itself(void)
{
    char *whole = text_of(ARGS(RUN_JSON, PROMPT), "text"), stop[4] = "";
    json_t *json;

    CHECK(strlen(whole) > 12);
    memcpy(stop, whole + 9, 3); /* ASCII, as the model writes for this prompt */
    *strstr(whole, stop) = '\0';
    json = cli_json(ARGS(RUN_JSON, PROMPT, "--stop", "no such text", "--stop", stop));
    CHECK_STR(json_string_value(json_object_get(json, "text")), whole);
    CHECK_STR(json_string_value(json_object_get(json, "finish")), "stop");
    json_decref(json);
    cli_expect(ARGS("run", "--model", CLI_MODEL, PROMPT, "--stop", ""), 2, "E_STOP_EMPTY");
    cli_expect(ARGS("run", "--model", CLI_MODEL, PROMPT, "--stop", "\xa9"), 2,
               "E_STOP_UTF8]: --stop: '\\xa9' is not UTF-8");
    free(whole);
}

static void the_context_ends_a_text(void)
{
    json_t *json =
        cli_json(ARGS(RUN_JSON, "--prompt", "The quick brown fox", "--ctx", "24", "--ignore-eos"));
    const size_t prompt = (size_t)json_integer_value(json_object_get(json, "prompt_tokens"));
    const size_t made = json_array_size(json_object_get(json, "tokens"));

    CHECK_STR(json_string_value(json_object_get(json, "finish")), "context");
    CHECK(prompt + made >= 24 && prompt + made <= 25); /* the last one needs no room of its own */
    json_decref(json);
}

static void chat_wraps_the_prompt_and_ends_by_itself(void)
{
    json_t *plain = cli_json(ARGS(RUN_JSON, "--prompt", "What is 12+7?", "--max-tokens", "40"));
    json_t *chat =
        cli_json(ARGS(RUN_JSON, "--prompt", "What is 12+7?", "--max-tokens", "40", "--chat"));

    CHECK(json_integer_value(json_object_get(chat, "prompt_tokens")) >
          json_integer_value(json_object_get(plain, "prompt_tokens")));
    CHECK_STR(json_string_value(json_object_get(chat, "finish")), "eos");
    CHECK(strstr(json_string_value(json_object_get(chat, "text")), "<|im_") == NULL);
    json_decref(plain);
    json_decref(chat);
    cli_expect(ARGS("run", "--model", CLI_MODEL, PROMPT, "--system", "x"), 2, "--chat");
}

static const char *const starts[] = {
    "def f(x):", "The ", "sort 5 3 9 ->",           "import", "7+5=",
    "NAME\n",    "#",    "reverse lake book sun ->"
};

/* Prompts of different lengths; line i of `count`. */
static void make_prompt(unsigned i, char out[128])
{
    int used = snprintf(out, 128, "%s", starts[i % 8]);

    for (unsigned j = 0; j < i / 8; j++)
        used += snprintf(out + used, 128 - (size_t)used, " %u", i * 7 + j);
    for (char *at = out; *at != '\0'; at++)
        *at = *at == '\n' ? ' ' : *at;
}

static void a_batch_equals_its_prompts_alone(void)
{
    static const unsigned sizes[] = { 1, 2, 5, 64 };
    char prompt[128], *alone[64], lines[64 * 128];

    for (unsigned i = 0; i < 64; i++) {
        make_prompt(i, prompt);
        alone[i] = text_of(ARGS(RUN_JSON, "--prompt", prompt, "--max-tokens", "8", "--ctx", "128"),
                           "text");
    }
    for (unsigned s = 0; s < 4; s++) {
        json_t *json, *sequences, *sequence;
        size_t used = 0, i;

        for (unsigned p = 0; p < sizes[s]; p++) {
            make_prompt(p, prompt);
            used += (size_t)snprintf(lines + used, sizeof(lines) - used, "%s\n%s", prompt,
                                     p % 2 ? "\r\n" : "");
        }
        cli_write(cli_path("batch"), lines, used);
        json = cli_json(ARGS(RUN_JSON, "--batch-file", cli_path("batch"), "--max-tokens", "8",
                             "--ctx", "128", "--budget", "30%"));
        sequences = json_object_get(json, "sequences");
        CHECK_EQ(json_array_size(sequences), sizes[s]);
        json_array_foreach(sequences, i, sequence)
        {
            CHECK_STR(json_string_value(json_object_get(sequence, "text")), alone[i]);
        }
        json_decref(json);
    }
    for (unsigned i = 0; i < 64; i++)
        free(alone[i]);
}

/* With a word about those that the tokenizer does not see as they are. */
static void any_bytes_can_be_a_prompt(void)
{
    static const char bytes[] = "a \xff\xfe\x80 \xe2\x82 \xf0\x9f\x98\x80 \xed\xa0\x80 end";
    static const char said[] = "byte 2 of prompt 0 (0xff) is not UTF-8";
    const struct cli *run = ARGS(RUN_JSON, "--prompt-file", cli_path("bytes"), "--max-tokens", "4");
    struct cli_result result;
    json_t *json;

    cli_write(cli_path("bytes"), bytes, sizeof(bytes)); /* with its NUL */
    json = cli_json(run);
    CHECK(json_integer_value(json_object_get(json, "prompt_tokens")) > 5);
    json_decref(json);
    cli_run(run, &result);
    CHECK(strstr(result.err, said) != NULL);
    cli_free(&result);
    cli_run(ARGS("eval", "--perplexity", "--model", CLI_MODEL, "--text", cli_path("bytes"),
                 "--tokens", "4"),
            &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.err, "byte 2 of the text (0xff) is not UTF-8") != NULL);
    cli_free(&result);
    cli_run(ARGS(RUN_JSON, "--prompt", "gr\xc3\xbc\xc3\x9f", "--max-tokens", "1", "--chat",
                 "--system", "\xc3"),
            &result);
    CHECK(strstr(result.err, "prompt 0") == NULL);
    CHECK(strstr(result.err, "byte 0 of the system message (0xc3) is not UTF-8") != NULL);
    cli_free(&result);
}

static void bench_reports_medians_and_runs(void)
{
    struct cli_result result;
    json_t *json =
        cli_json(ARGS("bench", "--model", CLI_MODEL, "--json", "--prompt-tokens", "12",
                      "--gen-tokens", "6", "--batch", "3", "--repeat", "3", "--budget", "25%"));

    CHECK_EQ(json_array_size(json_object_get(json, "runs")), 3);
    CHECK(json_is_real(json_object_get(json_object_get(json, "median"), "tokens_per_s")));
    json_decref(json);
    cli_run(ARGS("bench", "--model", CLI_MODEL, "--prompt-tokens", "4", "--gen-tokens", "2",
                 "--repeat", "1"),
            &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.out, "median") != NULL && strstr(result.out, "hit rate") != NULL);
    cli_free(&result);
}

static double number_of(const json_t *run, const char *key)
{
    return json_number_value(json_object_get(run, key));
}

/* Whoever compares a start with what follows takes steps that read nothing. */
static void bench_counts_steps_that_read_nothing(void)
{
    json_t *json =
        cli_json(ARGS("bench", "--model", CLI_MODEL, "--json", "--prompt-tokens", "1",
                      "--gen-tokens", "8", "--repeat", "2", "--budget", "all", "--profile", "lru"));
    const json_t *runs = json_object_get(json, "runs"), *cold = json_array_get(runs, 0);
    const json_t *warm = json_array_get(runs, 1);

    CHECK(number_of(cold, "hit_rate") < 1);
    CHECK(number_of(cold, "hit_steps") < 7);
    CHECK_EQ(json_integer_value(json_object_get(warm, "hit_steps")), 7);
    CHECK(number_of(warm, "hit_steps_ms") > 0);
    CHECK(number_of(warm, "hit_steps_ms") <= 7 * number_of(warm, "tpot_ms") * 1.01);
    json_decref(json);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(budget_threads_and_policies_change_no_text);
    RUN(a_heat_map_changes_no_text);
    RUN(a_type_of_the_cache_is_a_size_and_a_text);
    RUN(a_seed_is_a_text_and_another_seed_another);
    RUN(a_stop_text_ends_before_itself);
    RUN(the_context_ends_a_text);
    RUN(chat_wraps_the_prompt_and_ends_by_itself);
    RUN(a_batch_equals_its_prompts_alone);
    RUN(any_bytes_can_be_a_prompt);
    RUN(bench_reports_medians_and_runs);
    RUN(bench_counts_steps_that_read_nothing);
    return 0;
}
