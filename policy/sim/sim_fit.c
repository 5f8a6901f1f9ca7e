/*
 * Fits parameters by bisection on a sample; see sim_fit.h. Each trial generates the same random
 * numbers. The load of a run is generated elsewhere (sim_load.c).
 */
#include "policy/sim/sim_fit.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"

enum { LAYERS = 4, TOKENS = 384, TRIALS = 24 };

/* What one trial needs: a few layers' worth of tokens. */
struct sample {
    uint32_t experts, k;
    double variation;
    uint64_t seed;
    float *fixed, *moving, *logits, *guess; // (experts) each
    uint32_t *best, *other;                 // (k)
    uint32_t *counts;                       // (experts)
};

static uint64_t next_random(uint64_t *random)
{
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

double mp_sim_uniform(uint64_t *random)
{
    return (double)(next_random(random) >> 11) * 0x1p-53;
}

/* Four uniform numbers of 16 bits: enough of a bell for ranks, and fast. */
float mp_sim_normal(uint64_t *random)
{
    const uint64_t bits = next_random(random);
    const uint64_t sum =
        (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);

    return ((float)sum - 131070.0f) * (1.7320508f / 65536.0f);
}

void mp_sim_top(const float *values, uint32_t count, uint32_t k, uint32_t *best)
{
    uint32_t used = 0;

    mp_assert(k > 0 && k <= count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = used;

        if (used == k && !(values[i] > values[best[k - 1]]))
            continue;
        while (at > 0 && values[i] > values[best[at - 1]])
            at--;
        if (used < k)
            used++;
        memmove(best + at + 1, best + at, (used - at - 1) * sizeof(best[0]));
        best[at] = i;
    }
}

static uint32_t count_common(const uint32_t *a, const uint32_t *b, uint32_t k)
{
    uint32_t common = 0;

    for (uint32_t i = 0; i < k; i++) {
        for (uint32_t j = 0; j < k; j++)
            common += a[i] == b[j];
    }
    return common;
}

static int by_size(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x < y) - (x > y);
}

double mp_sim_skew(uint32_t *counts, uint32_t experts)
{
    uint64_t quarter = 0, all = 0;

    qsort(counts, experts, sizeof(counts[0]), by_size);
    for (uint32_t e = 0; e < experts; e++) {
        quarter += e < (experts + 3) / 4 ? counts[e] : 0;
        all += counts[e];
    }
    return all > 0 ? (double)quarter / (double)all : 0;
}

struct statistics {
    double skew, overlap, mass, accuracy;
};

static double mass_of(const struct sample *s, double heat)
{
    double sum = 0, mine = 0;

    for (uint32_t e = 0; e < s->experts; e++)
        sum += exp(heat * (s->logits[e] - s->logits[s->best[0]]));
    for (uint32_t r = 0; r < s->k; r++)
        mine += exp(heat * (s->logits[s->best[r]] - s->logits[s->best[0]]));
    return mine / sum;
}

/* One layer's tokens, added to `sum`. */
static void run_layer(struct sample *s, float w, uint64_t *random, const struct mp_sim_fit *fit,
                      double blur, struct statistics *sum)
{
    const float rest = sqrtf(1 - w * w);
    const float keep = (float)fit->keep, fresh = sqrtf(1 - keep * keep);

    memset(s->counts, 0, s->experts * sizeof(s->counts[0]));
    for (uint32_t e = 0; e < s->experts; e++) {
        s->fixed[e] = mp_sim_normal(random);
        s->moving[e] = mp_sim_normal(random);
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t e = 0; e < s->experts; e++) {
            s->moving[e] = keep * s->moving[e] + fresh * mp_sim_normal(random);
            s->logits[e] = w * s->fixed[e] + rest * s->moving[e];
            s->guess[e] = s->logits[e] + (float)blur * mp_sim_normal(random);
        }
        memcpy(s->other, s->best, s->k * sizeof(s->best[0]));
        mp_sim_top(s->logits, s->experts, s->k, s->best);
        if (t > 0)
            sum->overlap += (double)count_common(s->best, s->other, s->k) / s->k / (TOKENS - 1);
        for (uint32_t r = 0; r < s->k; r++)
            s->counts[s->best[r]]++;
        sum->mass += mass_of(s, fit->heat) / TOKENS;
        mp_sim_top(s->guess, s->experts, s->k, s->other);
        sum->accuracy += (double)count_common(s->best, s->other, s->k) / s->k / TOKENS;
    }
    sum->skew += mp_sim_skew(s->counts, s->experts);
}

static struct statistics measure(struct sample *s, const struct mp_sim_fit *fit, double blur)
{
    struct statistics sum = { 0 };
    uint64_t random = s->seed;

    for (int l = 0; l < LAYERS; l++)
        run_layer(s, mp_sim_fit_share(fit, s->variation, (l + 0.5) / LAYERS), &random, fit, blur,
                  &sum);
    sum.skew /= LAYERS;
    sum.overlap /= LAYERS;
    sum.mass /= LAYERS;
    sum.accuracy /= LAYERS;
    return sum;
}

/* Move *value in low..high until the statistic at `offset` is `target`; it grows with the value. */
static void search(struct sample *s, struct mp_sim_fit *fit, double *value, double low, double high,
                   size_t offset, double target)
{
    for (int i = 0; i < TRIALS / 2; i++) {
        struct statistics now;

        *value = (low + high) / 2;
        now = measure(s, fit, 0);
        if (*(const double *)((const char *)&now + offset) < target)
            low = *value;
        else
            high = *value;
    }
}

static void take_sample(struct sample *s, struct mp_arena *arena)
{
    s->fixed = mp_arena_take(arena, s->experts, sizeof(float));
    s->moving = mp_arena_take(arena, s->experts, sizeof(float));
    s->logits = mp_arena_take(arena, s->experts, sizeof(float));
    s->guess = mp_arena_take(arena, s->experts, sizeof(float));
    s->best = mp_arena_take(arena, s->k, sizeof(uint32_t));
    s->other = mp_arena_take(arena, s->k, sizeof(uint32_t));
    s->counts = mp_arena_take(arena, s->experts, sizeof(uint32_t));
}

enum mp_status mp_sim_fit(const struct mp_sim_model *model, uint64_t seed, struct mp_sim_fit *fit)
{
    struct sample s = {
        .experts = (uint32_t)model->experts,
        .k = (uint32_t)model->top_k,
        .variation = model->variation,
        .seed = seed,
    };
    struct mp_arena arena = { 0 };
    enum mp_status status;

    mp_assert(s.k > 0 && s.k <= s.experts);
    take_sample(&s, &arena);
    status = mp_arena_open(&arena, "a workload");
    if (status != MP_OK)
        return status;
    take_sample(&s, &arena);

    *fit = (struct mp_sim_fit){ .share = 0, .keep = 0, .heat = 1 };
    search(&s, fit, &fit->share, 0, 0.98, offsetof(struct statistics, skew), model->skew);
    search(&s, fit, &fit->keep, 0, 0.995, offsetof(struct statistics, overlap), model->overlap);
    search(&s, fit, &fit->heat, 0.02, 20, offsetof(struct statistics, mass), model->mass);
    for (uint32_t i = 0; i < MP_SIM_BLURS; i++) {
        fit->blur[i] = i == 0 ? 0 : 0.02 * pow(1.4, i);
        fit->accuracy[i] = measure(&s, fit, fit->blur[i]).accuracy;
    }
    free(arena.block);
    return MP_OK;
}

float mp_sim_fit_share(const struct mp_sim_fit *fit, double variation, double u)
{
    const double share = fit->share * (1 + variation * (2 * u - 1));

    mp_assert(u >= 0 && u <= 1);
    return (float)(share < 0.98 ? share : 0.98);
}

double mp_sim_fit_blur(const struct mp_sim_fit *fit, double accuracy)
{
    uint32_t i = 1;

    while (i + 1 < MP_SIM_BLURS && fit->accuracy[i] > accuracy)
        i++;
    if (fit->accuracy[i] >= fit->accuracy[i - 1] || accuracy >= fit->accuracy[i - 1])
        return fit->blur[i - 1];
    if (accuracy <= fit->accuracy[i])
        return fit->blur[i];
    return fit->blur[i - 1] + (fit->blur[i] - fit->blur[i - 1]) *
                                  (fit->accuracy[i - 1] - accuracy) /
                                  (fit->accuracy[i - 1] - fit->accuracy[i]);
}
