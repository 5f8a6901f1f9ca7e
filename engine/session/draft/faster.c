/*
 * The time of the way in use is an exponential mean; that of a trial is the mean of its steps, as
 * what is known from trials long ago says little.
 */
#include "engine/session/draft/faster.h"

#include "vmm/base/assert.h"

#define TRIED 8u /* steps of a trial */
#define PAUSE_FIRST 16u
#define PAUSE_MOST 1024u
#define STEP_WEIGHT 0.125 /* of a new time */
#define BETTER 0.98       /* of the time in use: less than this is no gain, but noise */

void mp_faster_init(struct mp_faster *faster)
{
    *faster = (struct mp_faster){ .pause = PAUSE_FIRST, .left = PAUSE_FIRST };
}

unsigned mp_faster_way(const struct mp_faster *faster)
{
    return faster->trying ? !faster->way : faster->way;
}

static void end_trial(struct mp_faster *faster)
{
    const double ns = faster->trial_ns / TRIED;

    faster->trying = false;
    faster->settled = ns < BETTER * faster->ns;
    faster->pause = 2 * faster->pause < PAUSE_MOST ? 2 * faster->pause : PAUSE_MOST;
    if (faster->settled) {
        faster->way = !faster->way;
        faster->ns = ns;
        faster->pause = PAUSE_FIRST;
    }
    faster->left = faster->pause;
}

void mp_faster_note(struct mp_faster *faster, uint64_t ns)
{
    mp_assert(faster->pause > 0);
    if (!faster->settled) {
        faster->settled = true;
        return;
    }
    if (faster->trying) {
        faster->trial_ns += (double)ns;
        if (++faster->tried == TRIED)
            end_trial(faster);
        return;
    }
    faster->ns += ((double)ns - faster->ns) * (faster->ns > 0 ? STEP_WEIGHT : 1);
    if (--faster->left > 0)
        return;
    faster->trying = true;
    faster->settled = false;
    faster->tried = 0;
    faster->trial_ns = 0;
}

void mp_faster_forget(struct mp_faster *faster)
{
    faster->ns = 0;
    faster->trying = false;
    faster->settled = false;
    faster->left = faster->pause;
}

void mp_faster_interrupt(struct mp_faster *faster)
{
    faster->settled = false;
}
