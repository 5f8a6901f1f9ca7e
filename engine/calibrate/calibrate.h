#ifndef MP_CALIBRATE_H
#define MP_CALIBRATE_H

#include "engine/model/sidecar/calibration.h"
#include "engine/forward/engine.h"

/*
 * Collects a calibration from a run: set mp_calibrator_seen() as the observer of an engine, run a
 * text through it, then finish.
 */
struct mp_calibrator;

enum mp_status mp_calibrator_create(const struct mp_model_id *id, uint32_t sequences,
                                    uint32_t tokens_max,
                                    struct mp_calibrator **calibrator_p) MP_MUST_CHECK;
void mp_calibrator_destroy(struct mp_calibrator *calibrator);

/* For struct mp_observer. Positions of a sequence must be in order; position 0 begins a new text.
 */
void mp_calibrator_seen(void *calibrator, const struct mp_layer_seen *seen);

/*
 * Alternative to a run: use the first steps of a trace, at most `steps`, as one text. A trace has
 * only the choices, so all similarities and residuals are 0.
 */
struct mp_forced_routing;
enum mp_status mp_calibrator_trace(struct mp_calibrator *calibrator,
                                   const struct mp_forced_routing *from,
                                   uint64_t steps) MP_MUST_CHECK;

/* Numbers of the report that are not in the file. */
struct mp_calibration_summary {
    uint64_t tokens;
    double similar_pairs; /* share of the pairs of experts that were ever chosen together */
};

/* Fill `data`, which was created for the same model. */
void mp_calibrator_finish(const struct mp_calibrator *calibrator, struct mp_calibration_data *data,
                          struct mp_calibration_summary *summary_p);

/* Per layer, over all tokens: mean cosine of the router's input with that of the layer before (0
 * for the first), and mean share of the best expert in the chosen scores. */
double mp_calibrator_cosine(const struct mp_calibrator *calibrator, uint32_t layer);
double mp_calibrator_top_share(const struct mp_calibrator *calibrator, uint32_t layer);

/*
 * Cut `layers` layers into input, middle and output group (PreScope, section 3.1): group[l] 0,
 * 1, 2. A layer is described by two numbers, each scaled to variance 1: the similarity of its
 * router's input to those of its neighbours (mean cosine), and the dominance of its best expert
 * (mean share). The two borders minimise the sum of squared distances to the groups' means; ties:
 * the earlier border. cosine[l] is that of layer l with l - 1. Fewer than 3 layers: a group each.
 */
void mp_calibrate_groups(const double *cosine, const double *top_share, uint32_t layers,
                         uint32_t *group);

/*
 * Training data for predictors: of every token and layer the router's input, the chosen experts and
 * their scores, as safetensors: layer.<l>.input BF16 (N, H), .experts I32 (N, k), .weights F32
 * (N, k).
 */
#define MP_FEATURES_NAME "moepager-features.safetensors" /* beside the calibration */

struct mp_features;

/* `tokens`: their final number. No file exists at `path` before commit. */
enum mp_status mp_features_open(const char *path, const struct mp_model_id *id, uint64_t tokens,
                                uint32_t tokens_max, struct mp_features **features_p) MP_MUST_CHECK;
void mp_features_seen(struct mp_features *features, const struct mp_layer_seen *seen);
/* Also frees the object. */
enum mp_status mp_features_commit(struct mp_features *features) MP_MUST_CHECK;
void mp_features_abandon(struct mp_features *features);

#endif
