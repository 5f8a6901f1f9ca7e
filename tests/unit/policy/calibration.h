#ifndef MP_TESTS_POLICY_CALIBRATION_H
#define MP_TESTS_POLICY_CALIBRATION_H

#include <stddef.h>

#include "policy/policy.h"

/*
 * A calibration of a small model, for tests that create every policy: expert e of layer l has a
 * share that falls with e, so the hottest expert of each layer is 0, layers differ in how steeply;
 * outputs of different experts are not similar. NULL if the model is too large for it.
 */
static inline const struct mp_calibration *test_calibration(uint32_t layers, uint32_t experts)
{
    static float hot[4096], similarity[65536];
    static const struct mp_calibration calibration = { .hot = hot, .similarity = similarity };

    if ((size_t)layers * experts > sizeof(hot) / sizeof(hot[0]) ||
        (size_t)layers * experts * experts > sizeof(similarity) / sizeof(similarity[0]))
        return NULL;
    for (uint32_t l = 0; l < layers; l++) {
        float sum = 0, share = 1;

        for (uint32_t e = 0; e < experts; e++, share *= 0.6f + 0.3f * (float)l / (float)layers)
            sum += hot[(size_t)l * experts + e] = share;
        for (uint32_t e = 0; e < experts; e++)
            hot[(size_t)l * experts + e] /= sum;
    }
    return &calibration;
}

#endif
