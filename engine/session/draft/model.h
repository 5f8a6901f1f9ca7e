#ifndef MP_DRAFT_MODEL_H
#define MP_DRAFT_MODEL_H

#include "engine/session/draft/draft.h"
#include "engine/session/session.h"

/*
 * Drafts from a second, smaller model with the same tokens: it runs the text, and guesses what it
 * finds likeliest, one token after the other. Everything of it is resident. How good its guesses
 * are decides about time only (engine/session/draft/drafts.h).
 *
 * A text is run when a guess is wanted, as far as it has not been, so a source that nobody asks
 * costs nothing but its memory.
 */

/*
 * Open settings->run.draft_model as a source for the session that `outer` describes, on the machine
 * of `session`, which must have that and outlive the source.
 *
 * MP_ERR_UNSUPPORTED E_DRAFT: its layers are recurrent and cannot take back a guess. Else as
 * mp_session_open().
 */
enum mp_status mp_draft_model_open(const struct mp_settings *settings,
                                   const struct mp_session_config *outer,
                                   const struct mp_session *session,
                                   struct mp_draft_source **source_p) MP_MUST_CHECK;

/* The settings of a model that drafts for one with `settings`: all resident, so that policies have
 * nothing to decide, and nothing that guesses for it. */
void mp_draft_settings(const struct mp_settings *settings, struct mp_settings *own);

/*
 * For a source that mp_draft_model_open() made: does an id mean the same to both models? With
 * tokenizers each id of both is compared; ids that only one has are no error, and never guessed.
 * MP_ERR_CONFIG E_DRAFT: it does not.
 */
enum mp_status mp_draft_model_check(struct mp_draft_source *source,
                                    const struct mp_session *session) MP_MUST_CHECK;

#endif
