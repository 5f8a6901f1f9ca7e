/*
 * Memory of a layer that drafts (multi-token prediction): it has all that every token needs, and
 * its experts have of a budget the share that they have of all experts, however little there is.
 */
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/model/drafting.h"
#include "engine/session/draft/head.h"
#include "engine/session/session.h"
#include "tests/support/test.h"

#define MODEL "tests/data/models/deepseek_v3-draft"
#define SEQUENCES 2
#define STEP_BYTES ((uint64_t)64 << 10)
#define MOST_BYTES ((uint64_t)16 << 20)

static struct mp_settings settings;

static void use(const char *draft_model)
{
    snprintf(settings.run.draft_model, sizeof(settings.run.draft_model), "%s", draft_model);
    settings.run.draft_tokens = 2;
    settings.run.deterministic = true;
}

static void open_session(bool plan_only, struct mp_session *session)
{
    const struct mp_session_config config = {
        .model = MODEL,
        .sequences = SEQUENCES,
        .drafts = true,
        .plan_only = plan_only,
        .clock = mp_clock_monotonic(),
    };

    CHECK_EQ(mp_session_open(&settings, &config, session), MP_OK);
}

/* All that is there for every token. */
static void check_resident(const struct mp_session *session)
{
    struct mp_engine_config engine = session->engine_config;
    struct mp_model_config model = session->model;
    const uint64_t states = SEQUENCES * engine.tokens_max * (uint64_t)model.hidden * sizeof(float);
    uint64_t kv_bytes, state_bytes;
    struct mp_weights *outline;

    mp_drafting_config(&model);
    engine.model = &model;
    engine.wanted_max = 0;
    CHECK_EQ(mp_engine_measure(&engine, &kv_bytes, &state_bytes), MP_OK);
    CHECK_EQ(mp_weights_describe(session->checkpoint, &model, &outline), MP_OK);
    CHECK(session->memory.draft.resident_bytes >=
          outline->resident_bytes + kv_bytes + state_bytes + states);
    mp_weights_destroy(outline);
}

static void its_experts_have_a_share_of_the_budget(void)
{
    struct mp_session session;
    const struct mp_memory_plan *m = &session.memory;
    uint64_t without, smallest;

    use("");
    settings.run.prefill_tokens = 64;
    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 500000 };
    open_session(false, &session);
    without = m->total_bytes;
    smallest = m->smallest_bytes;
    mp_session_close(&session);
    use(MP_DRAFT_HEAD_NAME);
    open_session(false, &session);
    check_resident(&session);
    CHECK_EQ(2 * m->draft.expert_bytes, m->expert_bytes);
    CHECK(m->draft.budget_bytes <= m->draft.expert_bytes / 2 + 4096);
    CHECK(m->draft.budget_bytes >= m->draft.smallest_bytes);
    CHECK(m->total_bytes >= without + m->draft.resident_bytes + m->draft.budget_bytes);
    mp_session_close(&session);
    settings.run.budget = (struct mp_share){ MP_SHARE_BYTES, smallest };
    open_session(false, &session); /* a token's experts have room always */
    CHECK_EQ(m->draft.budget_bytes, m->draft.smallest_bytes);
    CHECK(8 * m->draft.smallest_bytes >= 3 * m->draft.expert_bytes);
    mp_session_close(&session);
    settings.run.budget = (struct mp_share){ MP_SHARE_ALL, 0 };
    open_session(false, &session);
    CHECK_EQ(m->draft.budget_bytes, m->draft.full_bytes);
    mp_session_close(&session);
    settings.run.budget = (struct mp_share){ MP_SHARE_AUTO, 0 };
    open_session(false, &session);
    CHECK_EQ(m->draft.budget_bytes, m->draft.full_bytes);
    mp_session_close(&session);
}

/* ---- little RAM */

static uint64_t address_space_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;

    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The plan of a run that may take so many bytes more than the process has now. */
static void plan_in(uint64_t bytes, struct mp_session *session)
{
    struct rlimit before, limit;

    CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    limit.rlim_cur = address_space_bytes() + bytes;
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    open_session(true, session);
    CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
}

/* How much is enough differs between machines, so the limit is tried from little upwards: where a
 * part of the experts fits, those of the model and of the layer share what is left beside the
 * rest, and leave less than a few experts of it. */
static void an_automatic_budget_is_divided(void)
{
    struct mp_session session;
    const struct mp_memory_plan *m = &session.memory;
    uint32_t parts = 0;

    use(MP_DRAFT_HEAD_NAME);
    settings.run.budget = (struct mp_share){ MP_SHARE_AUTO, 0 };
    for (uint64_t bytes = STEP_BYTES; bytes <= MOST_BYTES; bytes += STEP_BYTES) {
        plan_in(bytes, &session);
        if (m->budget_bytes > m->smallest_bytes && m->budget_bytes < m->full_bytes) {
            const uint64_t needed = m->total_bytes + m->margin_bytes;

            parts++;
            CHECK(needed <= m->room_bytes);
            CHECK(m->room_bytes - needed <= 2 * m->smallest_bytes);
            CHECK(m->draft.budget_bytes >= m->draft.smallest_bytes);
        }
        mp_session_close(&session);
    }
    CHECK(parts > 0);
}

int main(void)
{
    CHECK_EQ(setenv("MOEPAGER_DEVICE", "cpu", 1), 0);
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    settings.pool.threads = 1;
    settings.run.ctx = 128;
    RUN(its_experts_have_a_share_of_the_budget);
    RUN(an_automatic_budget_is_divided);
    return 0;
}
