#ifndef MP_ENGINE_CALIBRATION_H
#define MP_ENGINE_CALIBRATION_H

#include "engine/model/sidecar/sidecar.h"
#include "policy/policy.h"

/*
 * The results of `moepager calibrate` for a model, and the file beside it that stores them;
 * docs/calibration.md explains each number. L MoE layers, E experts, H hidden.
 */
#define MP_CALIBRATION_NAME "moepager-calibration.safetensors"
#define MP_CALIBRATION_FORMAT "calibration 1"

struct mp_calibration_data {
    struct mp_calibration facts; /* for policies; points into `block` and `groups` */
    const float *residual; // (L, H): mean of the gate's input of layer l + 1 less that of l; the
                           // last row is 0
    float *block;
    uint32_t *groups;
};

/* Allocate all arrays, zeroed, to be filled. */
enum mp_status mp_calibration_create(const struct mp_model_id *id,
                                     struct mp_calibration_data **data_p) MP_MUST_CHECK;

/* MP_ERR_MODEL and others as in engine/model/sidecar/sidecar.h. */
enum mp_status mp_calibration_load(int dir_fd, const char *path, const struct mp_model_id *id,
                                   struct mp_calibration_data **data_p) MP_MUST_CHECK;

/* The same without a model, for a trace: load the file named by the setting `calibration`, for any
 * model of this shape, without residuals. "auto" and "none": NULL. */
enum mp_status mp_calibration_load_for(const char *setting, uint32_t layers, uint32_t experts,
                                       struct mp_calibration_data **data_p) MP_MUST_CHECK;

/* Write the file, complete or not at all. `tokens`: number of tokens of the calibration. */
enum mp_status mp_calibration_write(const char *path, const struct mp_calibration_data *data,
                                    const struct mp_model_id *id, uint64_t tokens) MP_MUST_CHECK;

void mp_calibration_destroy(struct mp_calibration_data *data);

#endif
