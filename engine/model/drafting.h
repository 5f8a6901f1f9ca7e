#ifndef MP_ENGINE_DRAFTING_H
#define MP_ENGINE_DRAFTING_H

#include <stdbool.h>

#include "engine/model/config.h"

/*
 * Layers that draft tokens (multi-token prediction, `nextn`) stand behind those of a model. From
 * the state of a token behind the model's final norm, and the embedding of the token after it, such
 * a layer makes what the model's output head takes for a state, too: it guesses the token after
 * that.
 *
 * The first of them alone is a model of one layer for everything from here down: the tensors have
 * numbers of their own (config->first_layer), embedding and output head are the model's.
 */
struct mp_checkpoint;

/* True if the checkpoint has a layer that drafts, with names that the family knows. A key of the
 * configuration says nothing: programs that leave out the tensors keep it. */
bool mp_drafting_there(const struct mp_checkpoint *checkpoint, const struct mp_model_config *model);

/* Make the model's configuration that of its first layer that drafts. */
void mp_drafting_config(struct mp_model_config *model);

/* Is a tensor of this name part of the first layer behind the model's, which drafts? */
bool mp_drafting_name(const struct mp_model_config *model, const char *name);

#endif
