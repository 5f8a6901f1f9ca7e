/*
 * What the interposer computes of a later layer's router, against the sums themselves, and that
 * what was guessed is read ahead.
 */
#include "interpose/pager/scores.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/pager/ggml.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/interpose/family.h"
#include "tests/unit/interpose/made_up.h"

#define HIDDEN 64u
#define EXPERTS 8u
#define LAYERS 3u
#define TOP_K 2u
#define REPORT_BYTES (1 << 14)
#define ROWS 2048u /* of an expert, each of 128 bytes */

static char path[sizeof(test_tmpdir_path) + 32];
static struct mp_paged_span span;
static const struct mp_host host = {
    .real = { .mmap = mmap, .munmap = munmap, .mprotect = mprotect, .madvise = madvise },
    .span = &span,
};

struct options {
    uint32_t type;       /* of routers */
    uint64_t gating;     /* 0: nothing is said */
    const char *without; /* a kind of tensor that there is none of */
    bool bias, correction;
};

static float noise(uint64_t n)
{
    n = (n + 1) * UINT64_C(0x9e3779b97f4a7c15);
    n = (n ^ n >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return (float)(n >> 40) / (float)(1 << 24) - 0.5f;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, 4);
    return (uint16_t)(bits >> 16);
}

static float from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, 4);
    return value;
}

static float *floats_of(uint32_t block, const char *part)
{
    char name[64];

    snprintf(name, sizeof(name), "blk.%u.%s", block, part);
    return family_data(name);
}

static void fill_floats(float *to, uint32_t count, uint64_t seed, float middle)
{
    for (uint32_t i = 0; i < count; i++)
        to[i] = middle + noise(seed * 1000003 + i);
}

/* Block 0 has no experts: layer l is block l + 1. */
static void write_model(const struct options *o)
{
    family_begin("made");
    family_number("expert_used_count", TOP_K);
    if (o->gating > 0)
        family_number("expert_gating_func", o->gating);
    for (uint32_t b = 1; b <= LAYERS; b++) {
        for (uint32_t k = 0; k < 3; k++)
            family_tensor(FAMILY_BF16, HIDDEN, ROWS, EXPERTS, "blk.%u.ffn_%s_exps.weight", b,
                          k == 0   ? "gate"
                          : k == 1 ? "up"
                                   : "down");
        family_tensor(o->type, HIDDEN, EXPERTS, 0, "blk.%u.ffn_gate_inp.weight", b);
        if (o->without == NULL || strcmp(o->without, "norm") != 0)
            family_tensor(FAMILY_F32, HIDDEN, 0, 0, "blk.%u.ffn_norm.weight", b);
        if (o->bias)
            family_tensor(FAMILY_F32, EXPERTS, 0, 0, "blk.%u.ffn_gate_inp.bias", b);
        if (o->correction)
            family_tensor(FAMILY_F32, EXPERTS, 0, 0, "blk.%u.exp_probs_b.bias", b);
    }
    /* The last layer's experts come from a table of tokens. */
    family_tensor(FAMILY_I32, TOP_K, 100, 0, "blk.%u.ffn_gate_tid2eid.weight",
                  o->without != NULL && strcmp(o->without, "router") == 0 ? LAYERS : 9);
    family_fill();
    for (uint32_t b = 1; b <= LAYERS; b++) {
        float *gate = floats_of(b, "ffn_gate_inp.weight");

        for (uint32_t i = 0; i < EXPERTS * HIDDEN; i++) {
            const float value = 2 * noise(b * 7919 + i);

            if (o->type == FAMILY_F32)
                gate[i] = value;
            else
                ((uint16_t *)(void *)gate)[i] = to_bf16(value);
        }
        if (o->without == NULL || strcmp(o->without, "norm") != 0)
            fill_floats(floats_of(b, "ffn_norm.weight"), HIDDEN, b, 1);
        if (o->bias)
            fill_floats(floats_of(b, "ffn_gate_inp.bias"), EXPERTS, 10 + b, 0);
        if (o->correction)
            fill_floats(floats_of(b, "exp_probs_b.bias"), EXPERTS, 20 + b, 0);
    }
    snprintf(path, sizeof(path), "%s/scores.gguf", test_tmpdir());
    (void)family_save(path);
}

static struct mp_paged paged;

/* As much of a paged model as the guess looks at. */
static char *open_model(bool to_write)
{
    struct mp_mapping map = { .prot = to_write ? PROT_READ | PROT_WRITE : PROT_READ,
                              .flags = to_write ? MAP_PRIVATE : MAP_SHARED };
    int fd;

    memset(&paged, 0, sizeof(paged));
    CHECK_EQ(mp_experts_open(path, false, &paged.experts), MP_OK);
    CHECK_EQ(paged.experts.layers, LAYERS);
    CHECK_EQ(mp_mappings_create(&host, &paged.experts, &paged.mappings), MP_OK);
    map.bytes = mp_files_bytes(paged.experts.files, 0);
    fd = open(path, O_RDONLY);
    map.at = mmap(NULL, map.bytes, map.prot, map.flags, fd, 0);
    CHECK(map.at != MAP_FAILED);
    CHECK(mp_mappings_add(paged.mappings, &map, fd));
    close(fd);
    paged.scores = mp_paged_scores_create(&paged);
    return map.at;
}

static void close_model(char *at)
{
    const size_t bytes = mp_files_bytes(paged.experts.files, 0);

    mp_paged_scores_destroy(paged.scores);
    mp_mappings_destroy(paged.mappings);
    mp_experts_close(&paged.experts);
    munmap(at, bytes);
}

static float input[MP_SCORES_TOKENS_MAX + 1][HIDDEN + 3]; /* rows with something behind them */

static struct mp_routing routing_of(uint32_t layer, uint32_t tokens)
{
    fill_floats(input[0], sizeof(input) / sizeof(float), 77, 0);
    return (struct mp_routing){ .layer = layer,
                                .tokens = tokens,
                                .k = TOP_K,
                                .input = (const char *)input,
                                .input_stride = sizeof(input[0]) };
}

/* products(EXPERTS) of a token, in double. */
static void multiply(const struct options *o, uint32_t from, uint32_t to, const float *x,
                     double products[EXPERTS])
{
    const bool norms = o->without == NULL || strcmp(o->without, "norm") != 0;
    const float *gate = floats_of(to + 1, "ffn_gate_inp.weight");

    for (uint32_t e = 0; e < EXPERTS; e++) {
        products[e] = o->bias ? floats_of(to + 1, "ffn_gate_inp.bias")[e] : 0;
        for (uint32_t i = 0; i < HIDDEN; i++) {
            const uint32_t at = e * HIDDEN + i;
            double value = x[i];

            if (norms)
                value *= floats_of(to + 1, "ffn_norm.weight")[i] /
                         (double)floats_of(from + 1, "ffn_norm.weight")[i];
            products[e] += value * (o->type == FAMILY_F32
                                        ? gate[at]
                                        : from_bf16(((const uint16_t *)(const void *)gate)[at]));
        }
    }
}

static void expect_scores(const struct options *o, enum mp_gating gating)
{
    float guess[MP_SCORES_TOKENS_MAX * EXPERTS];
    double products[EXPERTS], sum;
    char *at;

    write_model(o);
    at = open_model(false);
    for (uint32_t tokens = 1; tokens <= MP_SCORES_TOKENS_MAX; tokens += 7) {
        const struct mp_routing routing = routing_of(0, tokens);

        CHECK(mp_paged_scores_guess(&paged, &routing, 1, guess));
        for (uint32_t t = 0; t < tokens; t++) {
            multiply(o, 0, 1, input[t], products);
            sum = 0;
            for (uint32_t e = 0; e < EXPERTS; e++)
                sum += exp(products[e]);
            for (uint32_t e = 0; e < EXPERTS; e++) {
                double score = gating == MP_GATING_SOFTMAX   ? exp(products[e]) / sum
                               : gating == MP_GATING_SIGMOID ? 1 / (1 + exp(-products[e]))
                                                             : sqrt(log(1 + exp(products[e])));

                if (o->correction)
                    score += floats_of(2, "exp_probs_b.bias")[e];
                CHECK(fabs(guess[t * EXPERTS + e] - score) < 1e-4);
            }
        }
    }
    close_model(at);
}

static void a_guess_is_what_the_later_router_says(void)
{
    expect_scores(&(struct options){ .type = FAMILY_F32 }, MP_GATING_SOFTMAX);
    expect_scores(&(struct options){ .type = FAMILY_BF16, .bias = true }, MP_GATING_SOFTMAX);
    expect_scores(&(struct options){ .type = FAMILY_F32, .without = "norm" }, MP_GATING_SOFTMAX);
    expect_scores(&(struct options){ .type = FAMILY_F32, .gating = 2 }, MP_GATING_SIGMOID);
    /* Nothing is said of the function, but there are corrections. */
    expect_scores(&(struct options){ .type = FAMILY_F32, .correction = true }, MP_GATING_SIGMOID);
    expect_scores(&(struct options){ .type = FAMILY_F32, .gating = 4, .correction = true },
                  MP_GATING_SQRT_SOFTPLUS);
}

static void nothing_is_guessed_where_nobody_can_say(void)
{
    const struct options tables = { .type = FAMILY_F32, .without = "router" };
    float guess[(MP_SCORES_TOKENS_MAX + 1) * EXPERTS];
    struct mp_routing routing;
    char *at;

    write_model(&tables);
    at = open_model(false);
    routing = routing_of(1, 1);
    CHECK(!mp_paged_scores_guess(&paged, &routing, 2, guess)); /* a table's layer */
    CHECK(mp_paged_scores_guess(&paged, &routing, 0, guess));
    routing = routing_of(0, MP_SCORES_TOKENS_MAX + 1);
    CHECK(!mp_paged_scores_guess(&paged, &routing, 1, guess));
    routing = routing_of(0, 1);
    routing.input = NULL;
    CHECK(!mp_paged_scores_guess(&paged, &routing, 1, guess));
    routing = routing_of(0, 1);
    input[0][5] = NAN;
    CHECK(!mp_paged_scores_guess(&paged, &routing, 1, guess));
    close_model(at);
    /* What the program may write to is not looked at. */
    at = open_model(true);
    routing = routing_of(0, 1);
    CHECK(!mp_paged_scores_guess(&paged, &routing, 1, guess));
    close_model(at);
    /* A type that nobody multiplies with here. */
    write_model(&(struct options){ .type = FAMILY_I32 });
    at = open_model(false);
    CHECK(paged.scores == NULL);
    CHECK(!mp_paged_scores_guess(&paged, &routing, 1, guess));
    close_model(at);
}

/* A channel that the present norm has taken out cannot be recovered. */
static void a_norm_of_zero_is_no_division(void)
{
    const struct options plain = { .type = FAMILY_F32 };
    float guess[EXPERTS], without[EXPERTS];
    struct mp_routing routing = routing_of(0, 1);
    char *at;

    write_model(&plain);
    floats_of(1, "ffn_norm.weight")[7] = 0;
    (void)family_save(path);
    at = open_model(false);
    CHECK(mp_paged_scores_guess(&paged, &routing, 1, guess));
    input[0][7] = 1e30f;
    CHECK(mp_paged_scores_guess(&paged, &routing, 1, without));
    CHECK(memcmp(guess, without, sizeof(guess)) == 0);
    close_model(at);
}

/* How run_operation shows its input. */
static struct mp_ggml_tensor shape;

static void be_usual(void)
{
    shape = (struct mp_ggml_tensor){ .ne = { HIDDEN, 1, 1, 1 },
                                     .nb = { 4, 4 * HIDDEN, 4 * HIDDEN, 4 * HIDDEN } };
}

/* The calls of one operation of a layer: input(1, HIDDEN), two experts. */
static void run_operation(const char *base, uint32_t layer, const int32_t ids[TOP_K],
                          const float *x)
{
    const struct mp_ggml_tensor chosen = { .ne = { TOP_K, 1, 1, 1 }, .nb = { 4, 8 }, .data = ids };
    struct mp_ggml_tensor rows = shape;
    char name[64];
    struct mp_ggml_tensor weights = { .ne = { HIDDEN, ROWS, EXPERTS, 1 } };
    const struct mp_ggml_tensor dst = { .src = { &weights, &rows, &chosen } };

    rows.data = x;
    snprintf(name, sizeof(name), "blk.%u.ffn_gate_exps.weight", layer + 1);
    weights.data = base + family_offset(name);
    for (int32_t e = 0; e < (int32_t)EXPERTS; e++) {
        if (e == ids[0] || e == ids[1])
            mp_interposer_table.expert(NULL, &dst, e, 1);
    }
}

static void choose(const struct options *o, uint32_t from, uint32_t to, const float *x,
                   int32_t ids[TOP_K])
{
    double products[EXPERTS];

    multiply(o, from, to, x, products);
    ids[0] = ids[1] = -1;
    for (uint32_t rank = 0; rank < TOP_K; rank++) {
        for (int32_t e = 0; e < (int32_t)EXPERTS; e++) {
            if ((rank == 0 || e != ids[0]) && (ids[rank] < 0 || products[e] > products[ids[rank]]))
                ids[rank] = e;
        }
    }
}

static double value_of(const char *report, const char *key)
{
    char quoted[64];
    const char *at;

    snprintf(quoted, sizeof(quoted), "\"%s\":", key);
    at = strstr(report, quoted);
    CHECK(at != NULL);
    return strtod(at + strlen(quoted), NULL);
}

/* A program whose layers change nothing, so that every guess is right; or never, if `wrong`. What
 * it reported. */
static void run_program(bool wrong, uint32_t tokens, char report[REPORT_BYTES])
{
    const struct options plain = { .type = FAMILY_F32 };
    char file[sizeof(test_tmpdir_path) + 32];
    uint64_t bytes;
    char *base;
    FILE *in;
    int fd;

    write_model(&plain);
    bytes = family_save(path);
    snprintf(file, sizeof(file), "%s/report.json", test_tmpdir());
    setenv("MOEPAGER_REPORT", file, 1);
    setenv("MOEPAGER_PREFETCH", "top", 1);
    made_start("60%", "expert");
    fd = open(path, O_RDONLY);
    base = made_map(fd, bytes, MAP_SHARED, 0);
    close(fd);
    CHECK(made_is_paged(base));
    for (uint32_t n = 0; n < tokens; n++) {
        float x[HIDDEN];
        int32_t ids[TOP_K];

        for (uint32_t l = 0; l < LAYERS; l++) {
            fill_floats(x, HIDDEN, 500 + n, 0);
            choose(&plain, 0, l, x, ids);
            /* What layer l has as its input. */
            for (uint32_t i = 0; i < HIDDEN; i++)
                x[i] *= floats_of(l + 1, "ffn_norm.weight")[i] / floats_of(1, "ffn_norm.weight")[i];
            if (wrong) {
                const int32_t first = ids[0], second = ids[1];

                do
                    ids[0] = (ids[0] + 1) % (int32_t)EXPERTS;
                while (ids[0] == first || ids[0] == second);
                do
                    ids[1] = (ids[1] + 3) % (int32_t)EXPERTS;
                while (ids[1] == first || ids[1] == second || ids[1] == ids[0]);
            }
            run_operation(base, l, ids, x);
            usleep(1000); /* time to read */
        }
    }
    made_unmap(base, bytes);
    in = fopen(file, "r");
    CHECK(in != NULL);
    memset(report, 0, REPORT_BYTES);
    CHECK(fread(report, 1, REPORT_BYTES - 1, in) > 0);
    fclose(in);
    CHECK_EQ(unlink(file), 0); /* the next one starts as another program of this process */
    CHECK(strstr(report, "\"predict\": \"gate\"") != NULL);
}

static void what_is_guessed_is_read_ahead(void)
{
    char report[REPORT_BYTES];

    run_program(false, 40, report);
    CHECK(value_of(report, "experts_guessed") >= 40);
    CHECK(value_of(report, "experts_guessed_right") >= 0.95 * value_of(report, "experts_guessed"));
    CHECK(value_of(report, "prefetch_used") >= 10);
    CHECK(value_of(report, "prefetch_used") >= 0.8 * value_of(report, "prefetch_issued"));
}

/* 32 tries of both ranks together, and what was there when it was guessed. */
static void what_is_always_wrong_is_no_longer_read(void)
{
    char report[REPORT_BYTES];

    run_program(true, 500, report);
    CHECK(value_of(report, "experts_guessed") >= 1000);
    CHECK(value_of(report, "experts_guessed_right") <= 10); /* where two scores are nearly equal */
    CHECK(value_of(report, "guesses_started") >= 10);
    CHECK(value_of(report, "guesses_started") <= 55);
}

/* Only a row of floats for each token is looked at. */
static void an_input_of_another_shape_says_nothing(void)
{
    char report[REPORT_BYTES];

    for (int part = 0; part <= 5; part++) {
        be_usual();
        switch (part) {
        case 0: shape.type = 1; break;
        case 1: shape.ne[0] = HIDDEN - 1; break;
        case 2: shape.nb[0] = 2; break;
        case 3: shape.ne[1] = 2; break;
        case 4: shape.ne[2] = 2; break;
        default: shape.ne[3] = 2; break;
        }
        run_program(false, 3, report);
        CHECK_EQ(value_of(report, "experts_guessed"), 0);
    }
    be_usual();
    run_program(false, 3, report);
    CHECK(value_of(report, "experts_guessed") > 0);
}

int main(void)
{
    be_usual();
    RUN(a_guess_is_what_the_later_router_says);
    RUN(nothing_is_guessed_where_nobody_can_say);
    RUN(a_norm_of_zero_is_no_division);
    RUN(what_is_guessed_is_read_ahead);
    RUN(what_is_always_wrong_is_no_longer_read);
    RUN(an_input_of_another_shape_says_nothing);
    return 0;
}
