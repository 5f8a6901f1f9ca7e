/*
 * Loads the weights: plan, then read. Planning is in weights_plan.c and weights_experts.c, reading
 * in weights_read.c.
 */
#include "engine/model/weights.h"

#include <stdlib.h>

#include "engine/model/weights_int.h"

/* Plan, and with `read` read. */
static enum mp_status make_weights(const struct mp_checkpoint *checkpoint,
                                   const struct mp_model_config *config, bool read,
                                   const struct mp_weights_io *io,
                                   const struct mp_progress *progress,
                                   struct mp_weights **weights_p)
{
    struct mp_weights *weights = calloc(1, sizeof(*weights));
    struct mp_weights_plan plan = { .checkpoint = checkpoint,
                                    .config = config,
                                    .weights = weights };
    enum mp_status status;

    if (weights == NULL)
        return mp_fail_no_memory("the weights", sizeof(*weights));
    status = mp_weights_plan_make(&plan);
    if (status == MP_OK && read)
        status = mp_weights_read(&plan, io, progress);
    mp_weights_plan_fini(&plan);
    if (status != MP_OK) {
        mp_weights_destroy(weights);
        return status;
    }
    *weights_p = weights;
    return MP_OK;
}

enum mp_status mp_weights_load(const struct mp_checkpoint *checkpoint,
                               const struct mp_model_config *config, const struct mp_weights_io *io,
                               const struct mp_progress *progress, struct mp_weights **weights_p)
{
    return make_weights(checkpoint, config, true, io, progress, weights_p);
}

enum mp_status mp_weights_describe(const struct mp_checkpoint *checkpoint,
                                   const struct mp_model_config *config,
                                   struct mp_weights **weights_p)
{
    return make_weights(checkpoint, config, false, NULL, NULL, weights_p);
}

void mp_weights_share(struct mp_weights *draft, const struct mp_weights *model)
{
    draft->embed = model->embed;
    draft->head = model->head;
    draft->head_bias = model->head_bias;
}

void mp_weights_destroy(struct mp_weights *weights)
{
    if (weights == NULL)
        return;
    free(weights->block);
    free(weights->parts);
    free(weights->tables);
    free(weights);
}
