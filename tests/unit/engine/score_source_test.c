/* Which scores a predictor gets: what it asks for, or what there is instead. */
#include "engine/forward/engine_int.h"
#include "tests/support/test.h"

static struct mp_engine engine;
static const uint32_t chosen[1];

/* Three things may be there: the shared part of the layer, a network, a calibration. */
static void set(bool shared, bool llapor, bool calibration)
{
    static const char there; /* only its address is looked at */

    engine.predict.shared = shared;
    engine.predict.chosen = llapor ? chosen : NULL;
    engine.config.llapor = llapor ? (const void *)&there : NULL;
    engine.config.calibration = calibration ? (const void *)&there : NULL;
}

static void what_is_asked_for_or_what_there_is(void)
{
    static const struct {
        enum mp_score_source asked;
        uint32_t target; /* from layer 3 */
        bool shared, llapor, calibration;
        enum mp_score_source given;
    } cases[] = {
        { MP_SCORES_PARTIAL, 4, true, false, false, MP_SCORES_PARTIAL },
        { MP_SCORES_PARTIAL, 4, false, false, false, MP_SCORES_GATE },
        { MP_SCORES_PARTIAL, 4, false, true, true, MP_SCORES_GATE },
        { MP_SCORES_PARTIAL, 5, true, true, true, MP_SCORES_GATE },
        { MP_SCORES_PARTIAL, 0, true, true, true, MP_SCORES_GATE },
        { MP_SCORES_LLAPOR, 4, true, true, true, MP_SCORES_LLAPOR },
        { MP_SCORES_LLAPOR, 4, true, false, true, MP_SCORES_RESIDUAL },
        { MP_SCORES_LLAPOR, 4, true, false, false, MP_SCORES_GATE },
        { MP_SCORES_LLAPOR, 5, true, true, true, MP_SCORES_RESIDUAL },
        { MP_SCORES_LLAPOR, 5, true, true, false, MP_SCORES_GATE },
        { MP_SCORES_LLAPOR, 0, true, true, true, MP_SCORES_GATE },
        { MP_SCORES_RESIDUAL, 4, true, true, true, MP_SCORES_RESIDUAL },
        { MP_SCORES_RESIDUAL, 6, true, true, true, MP_SCORES_RESIDUAL },
        { MP_SCORES_RESIDUAL, 4, true, true, false, MP_SCORES_GATE },
        { MP_SCORES_RESIDUAL, 3, true, true, true, MP_SCORES_GATE },
        { MP_SCORES_GATE, 4, true, true, true, MP_SCORES_GATE },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        set(cases[i].shared, cases[i].llapor, cases[i].calibration);
        CHECK_EQ(mp_engine_source_of(&engine, 3, cases[i].target, cases[i].asked), cases[i].given);
    }
    set(false, true, false);
    engine.config.llapor = NULL; /* each half of a network alone is none */
    CHECK_EQ(mp_engine_source_of(&engine, 3, 4, MP_SCORES_LLAPOR), MP_SCORES_GATE);
    set(false, true, false);
    engine.predict.chosen = NULL;
    CHECK_EQ(mp_engine_source_of(&engine, 3, 4, MP_SCORES_LLAPOR), MP_SCORES_GATE);
}

int main(void)
{
    RUN(what_is_asked_for_or_what_there_is);
    return 0;
}
