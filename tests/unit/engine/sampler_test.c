/*
 * Sampling against its definition: greedy with ties, the sets that top-k and top-p leave,
 * frequencies by chi-square with fixed seeds, logits that are no numbers, and independence of the
 * sequences.
 */
#include "engine/forward/sampler.h"

#include <math.h>

#include "tests/support/test.h"
#include "vmm/base/compiler.h"

#define SAMPLES 200000

static struct mp_sampler *make(double temperature, uint32_t top_k, double top_p, uint64_t seed,
                               uint32_t vocab, uint32_t sequences)
{
    const struct mp_sampling sampling = { temperature, top_k, top_p, seed };
    struct mp_sampler *sampler;

    CHECK_EQ(mp_sampler_create(&sampling, vocab, sequences, &sampler), MP_OK);
    return sampler;
}

static uint32_t pick(struct mp_sampler *sampler, uint32_t sequence, const float *logits)
{
    uint32_t token = UINT32_MAX;

    CHECK_EQ(mp_sampler_pick(sampler, sequence, logits, &token), MP_OK);
    return token;
}

static void greedy_takes_the_highest_and_the_lower_of_equals(void)
{
    static const float rising[] = { -3, -2, -1, -0.5f }, ties[] = { 1, 7, 3, 7, 7 };
    static const float mixed[] = { -INFINITY, -INFINITY, -8, -9, -9 }, zeros[] = { -0.0f, 0.0f };
    struct mp_sampler *four = make(0, 0, 1, 1, 4, 1), *five = make(0, 3, 0.5, 1, 5, 1);
    struct mp_sampler *two = make(0, 0, 1, 1, 2, 1);

    CHECK_EQ(pick(four, 0, rising), 3);
    CHECK_EQ(pick(five, 0, ties), 1);
    CHECK_EQ(pick(five, 0, mixed), 2);
    CHECK_EQ(pick(two, 0, zeros), 0);
    mp_sampler_destroy(four);
    mp_sampler_destroy(five);
    mp_sampler_destroy(two);
}

/* Sample often; compare with probabilities in a chi-square test whose bound holds for 1 in 10^6. */
static void check_frequencies(struct mp_sampler *sampler, const float *logits,
                              const double *expected, uint32_t vocab)
{
    uint64_t counts[16] = { 0 };
    double chi = 0;
    unsigned degrees = 0;

    CHECK(vocab <= 16);
    for (uint32_t i = 0; i < SAMPLES; i++)
        counts[pick(sampler, 0, logits)]++;
    for (uint32_t v = 0; v < vocab; v++) {
        const double want = expected[v] * SAMPLES, off = (double)counts[v] - want;

        if (expected[v] == 0) {
            CHECK_EQ(counts[v], 0);
            continue;
        }
        chi += off * off / want;
        degrees++;
    }
    /* Wilson and Hilferty: the quantile of chi-square at 4.75 standard deviations. */
    degrees--;
    if (degrees > 0) {
        const double a = 2.0 / (9.0 * degrees), bound = degrees * pow(1 - a + 4.75 * sqrt(a), 3);

        if (chi > bound)
            fprintf(stderr, "chi-square %g with %u degrees of freedom\n", chi, degrees);
        CHECK(chi <= bound);
    }
}

/* What the header says, computed by sorting by hand: logits below are in no order. */
static const float logits8[] = { 0.5f, 2.0f, -1.0f, 1.0f, 2.5f, -INFINITY, 0.0f, 1.5f };
static const uint32_t order8[] = { 4, 1, 7, 3, 0, 6, 2, 5 };

static void expect8(double temperature, uint32_t keep, double top_p, double *out)
{
    double total = 0, kept = 0;
    uint32_t count = 0;

    memset(out, 0, 8 * sizeof(*out));
    for (uint32_t i = 0; i < keep; i++)
        total += exp(logits8[order8[i]] / temperature);
    while (count < keep && kept < top_p * total)
        kept += exp(logits8[order8[count++]] / temperature);
    for (uint32_t i = 0; i < count; i++)
        out[order8[i]] = exp(logits8[order8[i]] / temperature) / kept;
}

static void frequencies_are_the_probabilities(void)
{
    static const struct {
        double temperature, top_p;
        uint32_t top_k, keep;
    } cases[] = {
        { 1, 1, 0, 8 },     { 0.5, 1, 0, 8 },  { 2, 1, 0, 8 },   { 1, 1, 3, 3 },
        { 1, 1, 8, 8 },     { 1, 1, 100, 8 },  { 1, 0.6, 0, 8 }, { 1, 0.95, 4, 4 },
        { 0.7, 0.9, 5, 5 }, { 1, 0.01, 0, 8 }, { 100, 1, 0, 8 }, { 1.3, 0.999, 0, 8 },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct mp_sampler *sampler =
            make(cases[i].temperature, cases[i].top_k, cases[i].top_p, 1000 + i, 8, 1);
        double expected[8];

        expect8(cases[i].temperature, cases[i].keep, cases[i].top_p, expected);
        check_frequencies(sampler, logits8, expected, 8);
        mp_sampler_destroy(sampler);
    }
}

static void ties_at_the_cut_go_to_lower_ids(void)
{
    static const float equal[] = { 1, 1, 1, 1, 1, 1 };
    static const double first_two[] = { 0.5, 0.5, 0, 0, 0, 0 };
    struct mp_sampler *top_k = make(1, 2, 1, 5, 6, 1), *top_p = make(1, 0, 0.3, 5, 6, 1);
    struct mp_sampler *half = make(1, 0, 0.5, 5, 4, 1); /* two of four: just what is wanted */

    check_frequencies(top_k, equal, first_two, 6);
    check_frequencies(top_p, equal, first_two, 6);
    check_frequencies(half, equal, first_two, 4);
    mp_sampler_destroy(top_k);
    mp_sampler_destroy(top_p);
    mp_sampler_destroy(half);
}

/* One NaN is enough, wherever it stands: to pass over it would be another text than the model's. */
static void nan_is_an_error_and_minus_infinity_is_never_sampled(void)
{
    static const float masked[] = { -INFINITY, 1, -INFINITY, 1 };
    static const float first[] = { NAN, 1, 2, 1 }, last[] = { 1, 3, 2, NAN };
    static const float none[] = { NAN, NAN, NAN, NAN };
    static const float least[] = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    static const float most[] = { 1, INFINITY, 2, 3 };
    static const float *const bad[] = { first, last, none, least, most };
    static const double half[] = { 0, 0.5, 0, 0.5 };

    for (int warm = 0; warm < 2; warm++) {
        struct mp_sampler *sampler = make(warm, 0, 1, 9, 4, 1);

        if (warm)
            check_frequencies(sampler, masked, half, 4);
        else
            CHECK_EQ(pick(sampler, 0, masked), 1);
        for (size_t i = 0; i < MP_ARRAY_LEN(bad); i++) {
            uint32_t token;

            CHECK_EQ(mp_sampler_pick(sampler, 0, bad[i], &token), MP_ERR_MODEL);
            CHECK_STR(mp_error_last()->code, "E_LOGITS_NAN");
        }
        mp_sampler_destroy(sampler);
    }
}

/* Extremes of float and of temperature give a token, not a NaN. */
static void extreme_values_still_give_the_best(void)
{
    static const float wide[] = { -3e38f, 3e38f, 1e-45f, 0 };
    struct mp_sampler *cold = make(1e-300, 0, 1, 1, 4, 1), *hot = make(1, 0, 1e-300, 1, 4, 1);

    for (int i = 0; i < 100; i++) {
        CHECK_EQ(pick(cold, 0, wide), 1);
        CHECK_EQ(pick(hot, 0, wide), 1);
    }
    mp_sampler_destroy(cold);
    mp_sampler_destroy(hot);
}

/* The draws of a sequence depend on seed and number of the sequence, not on the others' draws. */
static void sequences_are_independent(void)
{
    struct mp_sampler *alone = make(1, 0, 1, 77, 8, 3), *together = make(1, 0, 1, 77, 8, 64);
    struct mp_sampler *other = make(1, 0, 1, 78, 8, 3);
    unsigned equal_to_first = 0, equal_to_other = 0;

    for (int i = 0; i < 1000; i++) {
        uint32_t first = 0, token = pick(alone, 2, logits8);

        for (uint32_t s = 64; s-- > 0;) {
            const uint32_t got = s % 5 == 3 ? 0 : pick(together, s, logits8);

            if (s == 2)
                CHECK_EQ(got, token);
            first = s == 0 ? got : first;
        }
        equal_to_first += first == token;
        equal_to_other += pick(other, 2, logits8) == token;
    }
    /* Equal by chance in about a quarter of the draws; the same stream would be equal in all. */
    CHECK(equal_to_first > 100 && equal_to_first < 500);
    CHECK(equal_to_other > 100 && equal_to_other < 500);
    mp_sampler_destroy(alone);
    mp_sampler_destroy(together);
    mp_sampler_destroy(other);
}

static void values_out_of_range_are_refused(void)
{
    static const struct mp_sampling bad[] = {
        { -1, 0, 1, 1 }, { 101, 0, 1, 1 },   { NAN, 0, 1, 1 },
        { 1, 0, 0, 1 },  { 1, 0, 1.001, 1 }, { 1, 0, NAN, 1 },
    };
    struct mp_sampler *sampler;

    for (size_t i = 0; i < MP_ARRAY_LEN(bad); i++) {
        CHECK_EQ(mp_sampler_create(&bad[i], 8, 1, &sampler), MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_SAMPLING");
    }
    mp_sampler_destroy(NULL);
}

int main(void)
{
    RUN(greedy_takes_the_highest_and_the_lower_of_equals);
    RUN(frequencies_are_the_probabilities);
    RUN(ties_at_the_cut_go_to_lower_ids);
    RUN(nan_is_an_error_and_minus_infinity_is_never_sampled);
    RUN(extreme_values_still_give_the_best);
    RUN(sequences_are_independent);
    RUN(values_out_of_range_are_refused);
    return 0;
}
