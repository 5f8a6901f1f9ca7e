#ifndef MP_ENGINE_TOKEN_HEAT_H
#define MP_ENGINE_TOKEN_HEAT_H

#include "engine/model/sidecar/sidecar.h"
#include "policy/lookahead/heat.h"

/*
 * What `moepager calibrate --by-token` learned of token ids, a file beside the model: which
 * experts each layer chooses for them. A lookahead (engine/forward/lookahead.h) begins with it
 * instead of with nothing.
 */
#define MP_TOKEN_HEAT_NAME "moepager-tokens.safetensors"
#define MP_TOKEN_HEAT_FORMAT "tokens 1"

struct mp_token_heat;

/* Read the file; vocab: ids are below it. MP_ERR_MODEL and others as in
 * engine/model/sidecar/sidecar.h. */
enum mp_status mp_token_heat_load(int dir_fd, const char *path, const struct mp_model_id *id,
                                  uint32_t vocab, struct mp_token_heat **heat_p) MP_MUST_CHECK;
void mp_token_heat_destroy(struct mp_token_heat *heat);

/* Let a heat of the same model, which has seen nothing, know what the file says. */
void mp_token_heat_give(const struct mp_token_heat *from, struct mp_heat *to);

/* Write the file, complete or not at all. `tokens`: that were run for it. */
enum mp_status mp_token_heat_write(const char *path, const struct mp_heat *heat,
                                   const struct mp_model_id *id, uint64_t tokens) MP_MUST_CHECK;

#endif
