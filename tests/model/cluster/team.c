/* Ranks as threads; see team.h. */
#include "tests/model/cluster/team.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"
#include "vmm/base/error.h"

#define TOKENS_MAX 24

struct member {
    const struct team_options *options;
    struct loopback *net;
    struct mp_rank *rank;
    struct harness h;
    uint32_t number;
    uint64_t budget_bytes;
    const struct npy *tokens, *lens;
    const float *expected;
    struct team_rank *out;
};

static enum mp_status make_rank(void *ctx, struct mp_engine_config *config)
{
    struct member *member = ctx;
    const struct team_options *o = member->options;
    const struct mp_rank_config rank = {
        .transport = loopback_rank(member->net, member->number),
        .engine = config,
        .place = mp_place_find(o->place),
        .slots = UINT32_MAX,
        .reads = !o->no_reads,
        .seed = 1,
        .epoch_ns = o->epoch_ns,
        .horizon_ns = UINT64_C(300000000000),
        .deadline_ns = o->deadline_ns > 0 ? o->deadline_ns : UINT64_C(20000000000),
        .always_adopts = o->always_adopts,
        .restarts = o->restarts,
    };
    const enum mp_status status = mp_rank_create(&rank, &member->rank);

    if (status == MP_OK)
        config->peers = mp_rank_peers(member->rank);
    return status;
}

static struct harness_options harness_options(const struct team_options *o,
                                              const struct npy *tokens)
{
    struct harness_options options = harness_defaults(o->model);

    options.sequences = (uint32_t)tokens->dims[0];
    options.ctx = (uint32_t)tokens->dims[1];
    options.tokens_max = TOKENS_MAX;
    options.policies.profile = o->profile != NULL ? o->profile : "lru";
    return options;
}

/* Steps whose results are here: those of a rank whose place this one takes. */
static uint32_t steps_done(const struct member *member)
{
    uint32_t count, done = 0;
    const struct mp_message_result *all = mp_rank_results(member->rank, &count);

    for (uint32_t i = 0; i < count; i++)
        done += all[i].request == member->number;
    return done;
}

/* As harness_run(), with the hook before each step. */
static enum mp_status run(struct member *member, float *got)
{
    const struct team_options *o = member->options;
    const uint32_t sequences = (uint32_t)member->tokens->dims[0];
    const size_t stride = member->tokens->dims[1];
    const uint32_t done = steps_done(member);
    enum mp_status status = MP_OK;

    for (uint32_t step = 0; step <= o->steps && status == MP_OK; step++) {
        uint32_t token[TOKENS_MAX], sequence[TOKENS_MAX], position[TOKENS_MAX];
        uint8_t want[TOKENS_MAX];
        const size_t vocab = member->h.model.vocab;

        if (o->on_step != NULL)
            o->on_step(member->net, member->number, member->rank, step);
        for (uint32_t s = 0; s < sequences && status == MP_OK; s++) {
            const uint32_t len = (uint32_t)member->lens->i32[s];
            const uint32_t first = step == 0 ? 0 : len + step - 1, end = len + step;

            for (uint32_t p = first; p < end && status == MP_OK;) {
                struct mp_batch batch = {
                    .token = token, .sequence = sequence, .position = position, .want = want
                };
                const float *logits;

                for (; p < end && batch.count < TOKENS_MAX; p++, batch.count++) {
                    token[batch.count] = (uint32_t)member->tokens->i32[s * stride + p];
                    sequence[batch.count] = s;
                    position[batch.count] = p;
                    want[batch.count] = p + 1 == end;
                }
                status = mp_forward(member->h.engine, &batch, &logits);
                member->out->forwards++;
                if (status == MP_OK && p == end) {
                    memcpy(got + ((size_t)s * (o->steps + 1) + step) * vocab, logits,
                           vocab * sizeof(float));
                    member->out->same &=
                        memcmp(logits,
                               member->expected + ((size_t)s * (o->steps + 1) + step) * vocab,
                               vocab * sizeof(float)) == 0;
                    member->out->rows++;
                }
            }
        }
        if (status == MP_OK && step >= done)
            status = mp_rank_add_result(
                member->rank,
                &(struct mp_message_result){ .request = member->number, .tokens = step });
    }
    return status;
}

/* The results here: those of each rank in order and once. */
static void count_results(const struct member *member)
{
    uint32_t count;
    const struct mp_message_result *all = mp_rank_results(member->rank, &count);

    for (uint32_t i = 0; i < count; i++) {
        CHECK(all[i].request < TEAM_MAX);
        CHECK_EQ(all[i].tokens, member->out->results[all[i].request]++);
    }
    member->out->reports = mp_rank_reports(member->rank);
}

static void *run_member(void *ctx)
{
    struct member *member = ctx;
    const struct team_options *o = member->options;
    struct harness_options options = harness_options(o, member->tokens);
    float *got;
    enum mp_status status;

    options.budget_bytes = member->budget_bytes;
    options.before_engine = make_rank;
    options.before_engine_ctx = member;
    if (o->kernels != NULL && member->number + 1 == o->ranks)
        options.kernels = o->kernels;
    harness_open(&options, &member->h);
    got = calloc(member->tokens->dims[0] * (o->steps + 1), member->h.model.vocab * sizeof(float));
    CHECK(got != NULL);
    member->out->same = true;
    status = mp_rank_join(member->rank, member->h.engine);
    if (status == MP_OK)
        status = run(member, got);
    if (status == MP_OK && o->on_end != NULL)
        o->on_end(member->net, member->number, member->rank);
    if (status == MP_OK)
        status = mp_rank_idle(member->rank, UINT64_MAX);
    member->out->status = status;
    snprintf(member->out->code, sizeof(member->out->code), "%s",
             status == MP_OK ? "" : mp_error_last()->code);
    if (status != MP_OK)
        fprintf(stderr, "rank %u: error[%s]: %s\n", member->number, mp_error_last()->code,
                mp_error_last()->text);
    CHECK(mp_pager_check(mp_engine_pager(member->h.engine)));
    mp_rank_report(member->rank, &member->out->report);
    count_results(member);
    free(got);
    if (status != MP_OK)
        loopback_kill(member->net, member->number);
    harness_close(&member->h);
    mp_rank_destroy(member->rank);
    loopback_leave(member->net, member->number);
    return NULL;
}

/* What one engine with everything resident computes. */
static float *run_alone(const struct team_options *o, const struct npy *tokens,
                        const struct npy *lens)
{
    const struct harness_options options = harness_options(o, tokens);
    struct harness h;
    float *logits;

    harness_open(&options, &h);
    logits = calloc(tokens->dims[0] * (o->steps + 1), h.model.vocab * sizeof(float));
    CHECK(logits != NULL);
    CHECK_EQ(harness_run(&h, tokens->i32, tokens->dims[1], lens->i32, options.sequences, o->steps,
                         logits),
             MP_OK);
    harness_close(&h);
    return logits;
}

static uint64_t budget_of(const struct team_options *o, const struct mp_space_plan *plan,
                          uint32_t rank)
{
    const double shares = o->ranks == 3 ? 4 : o->ranks;
    const double share = o->ranks == 3 && rank == 0 ? 2 / shares : 1 / shares;
    const double other = rank == 0 ? o->first_room : o->room;
    const double room = o->first_room > 0 ? other : o->room * share;
    const double bytes = ceil((double)plan->full_bytes * room) + 2.0 * (double)plan->smallest_bytes;

    return bytes < (double)plan->full_bytes ? (uint64_t)bytes : plan->full_bytes;
}

struct team {
    struct member members[TEAM_MAX];
    pthread_t threads[TEAM_MAX], later[TEAM_MAX];
    bool again[TEAM_MAX]; /* the rank came back, and its second thread is in `later` */
};

/* The first thread of the rank has left the transport, and touches nothing any more. */
static void start_again(void *ctx, uint32_t rank)
{
    struct team *team = ctx;
    struct member *member = &team->members[rank];

    memset(&member->h, 0, sizeof(member->h));
    member->rank = NULL;
    memset(member->out, 0, sizeof(*member->out));
    CHECK(!team->again[rank]);
    team->again[rank] = true;
    CHECK_EQ(pthread_create(&team->later[rank], NULL, run_member, member), 0);
}

void team_run(const struct team_options *options, struct team_rank ranks[TEAM_MAX])
{
    struct team team = { 0 };
    struct loopback *net = loopback_create(options->ranks);
    struct harness_options alone;
    struct mp_space_plan plan;
    struct npy tokens, lens;
    char path[512];
    float *expected;

    CHECK(options->ranks <= TEAM_MAX);
    snprintf(path, sizeof(path), "%s/%s_tokens.npy", options->expect, options->batch);
    CHECK(npy_read(path, &tokens));
    snprintf(path, sizeof(path), "%s/%s_lens.npy", options->expect, options->batch);
    CHECK(npy_read(path, &lens));
    expected = run_alone(options, &tokens, &lens);
    alone = harness_options(options, &tokens);
    plan = harness_plan(&alone, NULL);
    memset(ranks, 0, TEAM_MAX * sizeof(ranks[0]));
    if (options->comes_back)
        loopback_on_restart(net, start_again, &team);
    for (uint32_t r = 0; r < options->ranks; r++) {
        team.members[r] = (struct member){
            .options = options,
            .net = net,
            .number = r,
            .budget_bytes = budget_of(options, &plan, r),
            .tokens = &tokens,
            .lens = &lens,
            .expected = expected,
            .out = &ranks[r],
        };
        CHECK_EQ(pthread_create(&team.threads[r], NULL, run_member, &team.members[r]), 0);
    }
    for (uint32_t r = 0; r < options->ranks; r++)
        pthread_join(team.threads[r], NULL);
    for (uint32_t r = 0; r < options->ranks; r++) {
        if (team.again[r]) /* whoever started it has ended */
            pthread_join(team.later[r], NULL);
    }
    free(expected);
    npy_free(&tokens);
    npy_free(&lens);
    loopback_destroy(net);
}
