#ifndef MP_DRAFT_HEAD_H
#define MP_DRAFT_HEAD_H

#include "engine/session/draft/draft.h"
#include "engine/session/session.h"

/*
 * Drafts from the model's own layer that drafts tokens (engine/model/drafting.h), in an engine of
 * its own with the model's embedding and output head. It takes the states that the model computes
 * anyway; for a second guess and more, its own. How good its guesses are decides about time only
 * (engine/session/draft/drafts.h).
 *
 * The layer runs a text when a guess is wanted, or when so many states wait that a batch is full.
 */

/* What --draft-model calls it; a directory of this name is "./mtp". */
#define MP_DRAFT_HEAD_NAME "mtp"

bool mp_draft_head_wanted(const struct mp_run_settings *run);

/* Memory of texts and of states that wait, beside an engine of this configuration. */
uint64_t mp_draft_head_bytes(const struct mp_engine_config *config);

/*
 * Open it for the session that `outer` describes: `session` has a model, a memory plan and the
 * machine, and outlives the source. Else as mp_session_open(). It cannot guess before
 * mp_draft_head_share(), once the session has its weights.
 */
enum mp_status mp_draft_head_open(const struct mp_settings *settings,
                                  const struct mp_session_config *outer,
                                  const struct mp_session *session,
                                  struct mp_draft_source **source_p) MP_MUST_CHECK;
void mp_draft_head_share(struct mp_draft_source *source, const struct mp_weights *weights);

#endif
