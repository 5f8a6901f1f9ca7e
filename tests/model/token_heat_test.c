/*
 * What calibrate learned of token ids: a file gives the same predictions as the heat that was
 * written to it, damaged ones are refused or say nothing, and a lookahead that begins with it finds
 * more experts resident than one that begins with nothing; the output is the same.
 */
#include <fcntl.h>
#include <unistd.h>

#include "engine/model/sidecar/token_heat.h"
#include "policy/builtins.h"
#include "tests/model/harness.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

#define TINY "models/tiny-moe"
#define TOKENS 120

static char file[4200];
static struct mp_heat *learned;
static struct mp_model_id id;
static uint32_t vocab;
static const char *partition = "global";

static uint32_t token_of(uint32_t i)
{
    return (i * i * 37 + i % 7 * 211) % 60 + 300;
}

static void on_layer(void *ctx, const struct mp_layer_seen *seen)
{
    (void)ctx;
    CHECK(seen->batch->count == 1 && seen->k == id.top_k);
    mp_heat_learn(learned, seen->layer, seen->batch->token[0], seen->experts);
}

static const struct mp_observer observer = { .layer = on_layer };

/* Token by token; returns hits, and a sum of the last logits by *sum_p. */
static uint64_t run(const struct mp_token_heat *heat, uint32_t lookahead, double *sum_p)
{
    struct harness_options options = harness_defaults(TINY);
    const float *logits;
    struct harness h;
    uint64_t hits;

    options.policies.policy[MP_POLICY_PREDICT] = "none";
    options.policies.policy[MP_POLICY_PREFETCH] = "none";
    options.policies.policy[MP_POLICY_EVICT] = "lru";
    options.policies.policy[MP_POLICY_PARTITION] = partition;
    options.ctx = TOKENS;
    options.budget_bytes = 100 * 73728;
    options.deterministic = true;
    options.lookahead = lookahead;
    options.token_heat = heat;
    options.observer = learned != NULL && lookahead == 0 ? &observer : NULL;
    harness_open(&options, &h);
    id = (struct mp_model_id){ .layers = h.model.moe_layers,
                               .experts = h.model.experts,
                               .top_k = h.model.experts_per_token,
                               .hidden = h.model.hidden };
    vocab = h.model.vocab;
    for (uint32_t i = 0; i < TOKENS; i++) {
        const uint32_t token = token_of(i), sequence = 0;
        const uint8_t want = 1;
        const struct mp_batch batch = {
            .count = 1, .token = &token, .sequence = &sequence, .position = &i, .want = &want
        };

        CHECK_EQ(mp_forward(h.engine, &batch, &logits), MP_OK);
    }
    *sum_p = 0;
    for (uint32_t i = 0; i < vocab; i++)
        *sum_p += (double)logits[i] * (1 + i % 13);
    hits = mp_engine_counters(h.engine)->hits;
    harness_close(&h);
    return hits;
}

static double plain_sum;

static void learn_text(void)
{
    struct mp_heat_shape shape;
    double sum;

    run(NULL, 0, &plain_sum);
    shape = (struct mp_heat_shape){ id.layers, id.experts, id.top_k, vocab };
    CHECK_EQ(mp_heat_create(&shape, &learned), MP_OK);
    run(NULL, 0, &sum);
    CHECK(sum == plain_sum);
    CHECK_EQ(mp_token_heat_write(file, learned, &id, TOKENS), MP_OK);
}

static void a_file_says_what_was_learned(void)
{
    const struct mp_heat_shape shape = { id.layers, id.experts, id.top_k, vocab };
    struct mp_token_heat *loaded;
    struct mp_heat *given;
    uint64_t predicted = 0;

    CHECK_EQ(mp_token_heat_load(AT_FDCWD, file, &id, vocab, &loaded), MP_OK);
    CHECK_EQ(mp_heat_create(&shape, &given), MP_OK);
    mp_token_heat_give(loaded, given);
    for (uint32_t token = 0; token < vocab; token++) {
        for (uint32_t l = 0; l < id.layers; l++) {
            float a[256] = { 0 }, b[256] = { 0 };

            CHECK(id.experts <= 256);
            mp_heat_add(learned, l, token, 1, a);
            mp_heat_add(given, l, token, 1, b);
            CHECK(memcmp(a, b, sizeof(a)) == 0);
            for (uint32_t e = 0; e < id.experts; e++)
                predicted += a[e] > 0;
        }
    }
    CHECK(predicted > 1000);
    mp_token_heat_destroy(loaded);
    mp_token_heat_destroy(NULL);
    mp_heat_destroy(given);
}

static void a_lookahead_begins_with_it(void)
{
    struct mp_token_heat *loaded;
    double without, with;
    uint64_t hits_without, hits_with;

    CHECK_EQ(mp_token_heat_load(AT_FDCWD, file, &id, vocab, &loaded), MP_OK);
    hits_without = run(NULL, 1, &without);
    hits_with = run(loaded, 1, &with);
    fprintf(stderr, "    %llu hits without, %llu with\n", (unsigned long long)hits_without,
            (unsigned long long)hits_with);
    CHECK(hits_with > hits_without + hits_without / 20);
    CHECK(without == plain_sum && with == plain_sum);
    mp_token_heat_destroy(loaded);
}

static uint32_t told, told_well;

static void on_told(struct mp_policy *policy, uint32_t layer, uint32_t tokens, const float *scores)
{
    (void)policy;
    CHECK(layer > 0 && layer < id.layers && tokens == 1);
    told++;
    for (uint32_t e = 0; e < id.experts; e++)
        told_well += scores[e] > 0.4f;
}

/* Where no predict policy does, the lookahead tells the partition what the next layer may choose.
 */
static void a_partition_is_told(void)
{
    static struct mp_partition_ops watching;
    struct mp_token_heat *loaded;
    double sum;

    watching = mp_partition_uniform;
    watching.info.name = "watching";
    watching.predicted = on_told;
    CHECK_EQ(mp_policy_add(MP_POLICY_PARTITION, &watching.info), MP_OK);
    CHECK_EQ(mp_token_heat_load(AT_FDCWD, file, &id, vocab, &loaded), MP_OK);
    partition = "watching";
    run(loaded, 1, &sum);
    CHECK(sum == plain_sum);
    CHECK_EQ(told, TOKENS * (id.layers - 1));
    CHECK(told_well > told);
    run(loaded, 0, &sum);
    CHECK_EQ(told, TOKENS * (id.layers - 1));
    partition = "global";
    mp_token_heat_destroy(loaded);
}

static void expect_refusal(const char *path, const struct mp_model_id *of, uint32_t ids,
                           const char *code)
{
    struct mp_token_heat *loaded = NULL;

    CHECK(mp_token_heat_load(AT_FDCWD, path, of, ids, &loaded) != MP_OK);
    CHECK(loaded == NULL);
    CHECK_STR(mp_error_last()->code, code);
    mp_error_clear();
}

static void what_is_of_another_model_is_refused(void)
{
    struct mp_model_id other = id;

    other.top_k++;
    expect_refusal(file, &other, vocab, "E_SIDECAR_MODEL");
    expect_refusal(file, &id, 300, "E_SIDECAR"); /* ids from 300 on are in it */
    expect_refusal("tests/data/llapor/llapor.safetensors", &id, vocab, "E_SIDECAR");
}

/* Numbers that no heat has count as nothing. */
static void rows_are_not_trusted(void)
{
    const struct mp_heat_shape shape = { 1, 8, 2, 100 };
    float expert[4] = { 1, 1e9f, -3, 7 }, count[4] = { 2, 5, 5, 65 };
    struct mp_heat_row row = { .id = 5, .seen = 4, .expert = expert, .count = count };
    struct mp_heat *heat;
    float share[8] = { 0 };

    CHECK_EQ(mp_heat_create(&shape, &heat), MP_OK);
    mp_heat_put(heat, &row);
    row = (struct mp_heat_row){ .id = 6, .seen = 1e9f, .expert = expert, .count = count };
    mp_heat_put(heat, &row);
    mp_heat_add(heat, 0, 5, 1, share);
    for (uint32_t e = 0; e < 8; e++)
        CHECK_EQ(share[e] > 0, e == 1);
    mp_heat_add(heat, 0, 6, 1, share);
    CHECK(share[7] == 0 && share[0] == 0);
    mp_heat_destroy(heat);
}

/* Every call that can fail does, once: an error or the same file. */
static void load_and_write(const struct fault_plan *plan, void *ctx)
{
    struct mp_token_heat *loaded = NULL;
    enum mp_status status;
    uint64_t hits;

    (void)ctx;
    mp_error_clear();
    fault_begin(plan);
    status = mp_token_heat_load(AT_FDCWD, file, &id, vocab, &loaded);
    if (status == MP_OK)
        status = mp_token_heat_write(file, learned, &id, TOKENS);
    hits = fault_end();
    if (status != MP_OK) {
        CHECK(hits > 0);
        CHECK(mp_error_last()->status == status && mp_error_last()->text[0] != '\0');
    }
    mp_token_heat_destroy(loaded);
    CHECK_EQ(mp_token_heat_load(AT_FDCWD, file, &id, vocab, &loaded), MP_OK);
    mp_token_heat_destroy(loaded);
}

static void every_call_may_fail(void)
{
    CHECK(fault_sweep(FAULT_ANY, load_and_write, NULL) > 10);
}

int main(void)
{
    snprintf(file, sizeof(file), "%s/tokens.safetensors", test_tmpdir());
    learn_text();
    RUN(a_file_says_what_was_learned);
    RUN(a_lookahead_begins_with_it);
    RUN(a_partition_is_told);
    RUN(what_is_of_another_model_is_refused);
    RUN(rows_are_not_trusted);
    RUN(every_call_may_fail);
    mp_heat_destroy(learned);
    return 0;
}
