#ifndef MP_ENGINE_LLAPOR_H
#define MP_ENGINE_LLAPOR_H

#include "engine/model/sidecar/sidecar.h"

/*
 * Trained predictors, one for each MoE layer but the first (PreScope, section 4.2, "LLaPor"), as
 * tools/train/llapor.py writes them. docs/calibration.md has the training.
 *
 * The network of layer l uses input and routing of layer l - 1. With z(P) = pca x + pca_bias of the
 * router's input x(H), c(E) = 1 for each chosen expert, w(E) = its share of the chosen scores:
 *
 *     f = [z w c]                                                      (P + 2 E)
 *     h = gelu(in f + in_bias)                                         (D)
 *     h += sigmoid(gate z + gate_bias) * (b gelu(a h + a_bias) + b_bias)   middle layers only
 *     p = sigmoid(out h + out_bias)                                    (E)
 *
 * gelu is the exact one, with erf.
 */
#define MP_LLAPOR_NAME "moepager-llapor.safetensors"
#define MP_LLAPOR_FORMAT "llapor 1"
#define MP_LLAPOR_WIDTH_MAX 65536u

struct mp_llapor_linear {
    struct mp_view weight; // (rows, cols), F32
    const float *bias;     // (rows)
};

struct mp_llapor_net {
    uint32_t inputs; /* P */
    uint32_t width;  /* D */
    bool deep;
    struct mp_llapor_linear pca, in, a, b, gate, out; /* a, b, gate: deep networks only */
};

struct mp_llapor {
    uint32_t count;             /* layers - 1 */
    struct mp_llapor_net *nets; // (count): entry i predicts layer i + 1
    uint32_t inputs_max, width_max;
    uint64_t bytes; /* of the block */
    float *block;
};

/* MP_ERR_MODEL and others as in engine/model/sidecar/sidecar.h. */
enum mp_status mp_llapor_load(int dir_fd, const char *path, const struct mp_model_id *id,
                              struct mp_llapor **llapor_p) MP_MUST_CHECK;
void mp_llapor_destroy(struct mp_llapor *llapor);

#endif
