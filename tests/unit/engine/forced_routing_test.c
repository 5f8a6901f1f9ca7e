/*
 * Routing of a trace in place of a model's own: what was recorded is chosen, by step, layer and
 * sequence; traces of other shapes are refused.
 */
#include "engine/forward/forced_routing.h"

#include <unistd.h>

#include "engine/forward/engine.h"
#include "policy/record/trace.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define LAYERS 3
#define EXPERTS 16
#define K 2
#define STEPS 5

static char path[64];

/* What step s chooses in layer l, as rank r. */
static uint32_t choice(uint32_t s, uint32_t l, uint32_t r)
{
    return (3 * s + 5 * l + 7 * r) % EXPERTS;
}

/* A prompt of three tokens, then STEPS tokens. */
static void write_trace(uint32_t steps)
{
    const struct mp_trace_shape shape = {
        .model = "test", .layers = LAYERS, .experts = EXPERTS, .top_k = K, .expert_bytes = 4096
    };
    const float weights[K] = { 0.6f, 0.4f };
    struct mp_trace_writer *writer;

    CHECK_EQ(mp_trace_create(path, &shape, &writer), MP_OK);
    for (uint32_t s = 0; s <= steps; s++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            for (uint32_t t = 0; t < (s == 0 ? 3u : 1u); t++) {
                const uint32_t experts[K] = { s == 0 ? 0 : choice(s - 1, l, 0),
                                              s == 0 ? 1 : choice(s - 1, l, 1) };
                const struct mp_trace_row row = { .step = s,
                                                  .layer = l,
                                                  .position = s == 0 ? t : 2 + s,
                                                  .experts = experts,
                                                  .weights = weights };

                mp_trace_write(writer, &row);
            }
        }
    }
    CHECK_EQ(mp_trace_close(writer), MP_OK);
}

static void chooses_as_recorded(void)
{
    const uint32_t sequence[3] = { 0, 0, 1 }, position[3] = { 0, 4, 6 }, token[3] = { 0 };
    const uint8_t want[3] = { 0 };
    const struct mp_batch batch = {
        .count = 3, .token = token, .sequence = sequence, .position = position, .want = want
    };
    struct mp_forced_routing *from;

    write_trace(STEPS);
    CHECK_EQ(mp_forced_routing_load(path, LAYERS - 1, EXPERTS, K, &from), MP_OK);
    for (uint32_t l = 0; l < LAYERS - 1; l++) {
        float scores[3 * EXPERTS], sum = 0;

        mp_forced_routing_scores(from, &batch, l, scores);
        for (uint32_t t = 0; t < 3; t++) {
            const uint32_t step = (position[t] + 17 * sequence[t]) % STEPS;
            const float *row = scores + t * EXPERTS;
            const float low = row[choice(step, l, K - 1)];

            for (uint32_t e = 0; e < EXPERTS; e++) {
                bool chosen = false;

                for (uint32_t r = 0; r < K; r++)
                    chosen = chosen || choice(step, l, r) == e;
                CHECK(chosen ? row[e] >= low : row[e] < low);
                sum += row[e];
            }
            CHECK(row[choice(step, l, 0)] > low);
        }
        CHECK(sum > 2.999f && sum < 3.001f);
    }
    mp_forced_routing_destroy(from);
    mp_forced_routing_destroy(NULL);
}

static void other_shapes_are_refused(void)
{
    struct mp_forced_routing *from;

    write_trace(STEPS);
    CHECK_EQ(mp_forced_routing_load(path, LAYERS + 1, EXPERTS, K, &from), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_FORCED_ROUTING");
    CHECK_EQ(mp_forced_routing_load(path, LAYERS, EXPERTS / 2, K, &from), MP_ERR_CONFIG);
    CHECK_EQ(mp_forced_routing_load(path, LAYERS, EXPERTS, K + 1, &from), MP_ERR_CONFIG);
    write_trace(0);
    CHECK_EQ(mp_forced_routing_load(path, LAYERS, EXPERTS, K, &from), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_FORCED_ROUTING");
    unlink(path);
    CHECK(mp_forced_routing_load(path, LAYERS, EXPERTS, K, &from) != MP_OK);
    CHECK_STR(mp_error_last()->code, "E_TRACE_READ");
}

int main(void)
{
    snprintf(path, sizeof(path), "/tmp/moepager-route-from-%d.txt", (int)getpid());
    RUN(chooses_as_recorded);
    RUN(other_shapes_are_refused);
    return 0;
}
