/*
 * Who may join: a rank with the same version, model, kernels and batch. The hash of the model
 * changes with all that decides logits, and with nothing else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cluster/rank_int.h"
#include "tests/model/cluster/loopback.h"
#include "tests/model/harness.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"
#include "vmm/base/version.h"

static struct harness h;

static uint64_t hash_of(const struct mp_model_config *model)
{
    struct mp_engine_config config = h.config;
    uint64_t hash = 0;

    config.model = model;
    CHECK_EQ(mp_model_hash(&config, &hash), MP_OK);
    return hash;
}

static void numbers_that_decide_logits(void)
{
    const uint64_t before = hash_of(h.config.model);
    struct mp_model_config m = *h.config.model;

#define CHANGES(member, value)        \
    do {                              \
        m = *h.config.model;          \
        CHECK(m.member != (value));   \
        m.member = (value);           \
        CHECK(hash_of(&m) != before); \
    } while (0)
    CHANGES(rope_theta, m.rope_theta + 1);
    CHANGES(norm_eps, m.norm_eps * 2);
    CHANGES(rope.factor, m.rope.factor + 1);
    CHANGES(rope.factors[1][7], 3);
    CHANGES(window, m.window + 1);
    CHANGES(windowed[m.layers - 1], !m.windowed[m.layers - 1]);
    CHANGES(attention_scale, m.attention_scale + 1);
    CHANGES(q_gate, !m.q_gate);
    CHANGES(norm_topk, !m.norm_topk);
    CHANGES(experts_per_token, m.experts_per_token - 1);
    CHANGES(router, (enum mp_router)(m.router + 1));
    CHANGES(routed_scale, m.routed_scale + 1);
    CHANGES(logit_scale, m.logit_scale * 2);
    CHANGES(act_limit, m.act_limit + 1);
#undef CHANGES
    m = *h.config.model;
    m.positions_max++;
    m.eos_count = 0;
    m.sampling.temperature = 7;
    CHECK_EQ(hash_of(&m), before);
}

/* Each tensor in RAM, at its first and its last byte. */
static void bytes_in_ram(void)
{
    const struct mp_weights *weights = h.config.weights;
    const uint64_t before = hash_of(h.config.model);
    uint64_t bytes = 0;

    for (size_t i = 0; i < weights->part_count; i++) {
        char *part = (char *)weights->block + weights->parts[i].offset_bytes;
        const uint64_t last = weights->parts[i].bytes - 1;

        bytes += last + 1;
        for (uint64_t at = 0; at <= last; at += last > 0 ? last : 1) {
            part[at] ^= 1;
            CHECK(hash_of(h.config.model) != before);
            part[at] ^= 1;
        }
    }
    CHECK(bytes > 0 && bytes <= weights->resident_bytes);
    CHECK_EQ(hash_of(h.config.model), before);
}

/* Each matrix of an expert is looked at, and its type. */
static void experts(void)
{
    const struct mp_weights *weights = h.config.weights;
    const uint64_t before = hash_of(h.config.model);

    for (uint32_t p = 0; p < weights->units[0].piece_count; p++) {
        struct mp_piece *piece = &weights->units[0].pieces[p];
        const struct mp_piece kept = *piece;

        *piece = weights->units[1].pieces[p];
        CHECK(hash_of(h.config.model) != before);
        *piece = kept;
    }
    weights->unit_types[1].piece[MP_PIECE_DOWN]++;
    CHECK(hash_of(h.config.model) != before);
    weights->unit_types[1].piece[MP_PIECE_DOWN]--;
    CHECK_EQ(hash_of(h.config.model), before);
}

struct hello {
    struct mp_message_head head;
    struct mp_hello hello;
};

/* What rank 1 says if it is as rank 0. */
static struct hello same_hello(void)
{
    struct hello message = {
        .head = { .magic = MP_MESSAGE_MAGIC, .kind = MP_MESSAGE_HELLO, .bytes = sizeof(message) },
        .hello = { .model = hash_of(h.config.model),
                   .ranks = 2,
                   .layers = h.config.model->moe_layers,
                   .experts = h.config.model->experts,
                   .top_k = h.config.model->experts_per_token,
                   .hidden = h.config.model->hidden,
                   .tokens_max = h.config.tokens_max,
                   .reads = 1 },
    };

    snprintf(message.hello.version, sizeof(message.hello.version), "%s", mp_version);
    snprintf(message.hello.kernels, sizeof(message.hello.kernels), "%s", h.config.kernels->name);
    return message;
}

static void joins(const struct hello *message, const char *code)
{
    struct loopback *net = loopback_create(2);
    const struct mp_rank_config config = { .transport = loopback_rank(net, 0),
                                           .engine = &h.config,
                                           .place = mp_place_find("uniform"),
                                           .slots = UINT32_MAX,
                                           .reads = true,
                                           .deadline_ns = UINT64_C(1000000000) };
    const struct mp_message_head ready = { .magic = MP_MESSAGE_MAGIC,
                                           .kind = MP_MESSAGE_READY,
                                           .bytes = sizeof(ready) };
    struct mp_rank *rank = NULL;
    enum mp_status status;

    CHECK_EQ(mp_rank_create(&config, &rank), MP_OK);
    loopback_inject(net, 1, 0, message, sizeof(*message));
    loopback_inject(net, 1, 0, &ready, sizeof(ready));
    status = mp_rank_join(rank, h.engine);
    CHECK_EQ(status, code != NULL ? MP_ERR_CLUSTER : MP_OK);
    if (code != NULL)
        CHECK_STR(mp_error_last()->code, code);
    mp_rank_destroy(rank);
    loopback_destroy(net);
}

static void who_may_join(void)
{
    struct hello message = same_hello();

    joins(&message, NULL);
    message.hello.version[0]++;
    joins(&message, "E_CLUSTER_VERSION");
    message = same_hello();
    strcat(message.hello.version, "-1");
    joins(&message, "E_CLUSTER_VERSION");
    message = same_hello();
    message.hello.model ^= 1;
    joins(&message, "E_CLUSTER_MODEL");
    message = same_hello();
    message.hello.experts++;
    joins(&message, "E_CLUSTER_MODEL");
    message = same_hello();
    message.hello.kernels[0]++;
    joins(&message, "E_CLUSTER_KERNELS");
    message = same_hello();
    message.hello.tokens_max++;
    joins(&message, "E_CLUSTER_SHAPE");
    message = same_hello();
    message.hello.ranks++;
    joins(&message, "E_CLUSTER_SHAPE");
}

/* What rank 1 has measured of calls to rank 2 is a fact of that pair only. */
static void what_others_measured(void)
{
    struct loopback *net = loopback_create(3);
    const struct mp_rank_config config = { .transport = loopback_rank(net, 0),
                                           .engine = &h.config,
                                           .place = mp_place_find("prism") };
    const uint32_t ids = h.config.model->moe_layers * h.config.model->experts;
    const uint64_t bytes = sizeof(struct mp_message_head) + sizeof(struct mp_message_stats) +
                           2 * (ids + 3) * sizeof(double);
    struct mp_message_head *head = calloc(1, bytes);
    double *measured = (double *)(void *)((char *)head + bytes) - 6;
    struct mp_rank *rank = NULL;

    CHECK(head != NULL);
    *head = (struct mp_message_head){ .magic = MP_MESSAGE_MAGIC,
                                      .kind = MP_MESSAGE_STATS,
                                      .bytes = (uint32_t)bytes };
    measured[2] = 0.25;
    measured[3 + 2] = 0.125;
    CHECK_EQ(mp_rank_create(&config, &rank), MP_OK);
    loopback_inject(net, 1, 0, head, bytes);
    CHECK_EQ(mp_rank_idle(rank, 0), MP_OK);
    for (uint32_t pair = 0; pair < 9; pair++) {
        CHECK(rank->call_s[pair] == (pair == 5 ? 0.25 : 0));
        CHECK(rank->row_s[pair] == (pair == 5 ? 0.125 : 0));
    }
    CHECK(rank->peer[1].fixed_ns == 0); /* this rank has not called it */
    mp_rank_destroy(rank);
    loopback_destroy(net);
    free(head);
}

int main(void)
{
    struct harness_options options = harness_defaults("models/tiny-moe");

    harness_open(&options, &h);
    RUN(numbers_that_decide_logits);
    RUN(bytes_in_ram);
    RUN(experts);
    RUN(who_may_join);
    RUN(what_others_measured);
    harness_close(&h);
    return 0;
}
