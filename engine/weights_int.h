#ifndef MP_ENGINE_WEIGHTS_INT_H
#define MP_ENGINE_WEIGHTS_INT_H

#include "engine/weights.h"

/*
 * Inside of engine/weights.h: the plan says what is read from where to where. The address goes to
 * `*floats` (elements are converted) or to `*data` (bytes are copied), whichever is not NULL.
 */
struct mp_weights_item {
    const struct mp_tensor *tensor;
    uint64_t block_offset;
    enum mp_wtype type; /* in the file */
    uint64_t count;     /* elements */
    const float **floats;
    const void **data;
};

struct mp_weights_plan {
    const struct mp_checkpoint *checkpoint;
    const struct mp_model_config *config;
    struct mp_weights *weights; /* views and units are filled in while planning */
    struct mp_weights_item *items;
    size_t item_count, item_capacity;
    bool *used; /* per tensor of the checkpoint */
    uint64_t block_bytes;
};

/*
 * Find and check every tensor that the configuration calls for. Everything in `weights` is set but
 * the addresses. The caller releases the plan, also after a failure.
 */
enum mp_status mp_weights_plan_make(struct mp_weights_plan *plan) MP_MUST_CHECK;
void mp_weights_plan_fini(struct mp_weights_plan *plan);

#endif
