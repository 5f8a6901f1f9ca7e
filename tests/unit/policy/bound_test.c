/*
 * What lookahead is worth, on made-up texts whose hits are counted by hand.
 */
#include "policy/lookahead/bound.h"

#include "tests/support/test.h"

#define LAYERS 2
#define EXPERTS 8
#define TOKENS 400

static uint32_t ids[TOKENS], chosen[TOKENS * LAYERS];
static const struct mp_routed_text text = { LAYERS, EXPERTS, 1, 64, TOKENS, ids, chosen };

static struct mp_bound bound(uint32_t slots, enum mp_known known, uint32_t window)
{
    struct mp_bound result;

    CHECK_EQ(mp_lookahead_bound(&text, slots, known, window, TOKENS / 2, &result), MP_OK);
    return result;
}

static int near(double a, double b)
{
    return a > b - 1e-9 && a < b + 1e-9;
}

/* Token t has id t % 4, which chooses expert 2 * id (+ 1 in the second layer). */
static void make_text(void)
{
    for (uint32_t t = 0; t < TOKENS; t++) {
        ids[t] = t % 4;
        chosen[t * LAYERS] = 2 * (t % 4);
        chosen[t * LAYERS + 1] = 2 * (t % 4) + 1;
    }
}

static void all_hit_where_all_have_room(void)
{
    make_text();
    CHECK(near(bound(8, MP_KNOWN_NOTHING, 0).hits, 1));
    CHECK(near(bound(8, MP_KNOWN_NOTHING, 0).reads, 0));
}

/* Eight experts in turn, six slots. With the next use known, of seven uses after a miss five hit
 * (the optimum for a cycle of n in s slots: (s - 1) / (n - 1)). */
static void the_farthest_next_use_is_the_optimum_of_a_cycle(void)
{
    const struct mp_bound perfect = bound(6, MP_KNOWN_PERFECT, 4);

    make_text();
    CHECK(perfect.hits > 0.68 && perfect.hits < 0.74);
    CHECK(near(perfect.reads, LAYERS * (1 - perfect.hits)));
    CHECK(bound(6, MP_KNOWN_NOTHING, 0).hits < perfect.hits);
}

/* The second layer is read ahead by the token's id; the first one never is. */
static void ids_bring_the_next_layer(void)
{
    make_text();
    CHECK(bound(3, MP_KNOWN_HEAT, 0).hits >= 0.5);
    for (uint32_t t = 0; t < TOKENS; t++)
        ids[t] = 40 + t % 2; /* says little */
    CHECK(bound(3, MP_KNOWN_HEAT, 0).hits < 0.5);
}

int main(void)
{
    RUN(all_hit_where_all_have_room);
    RUN(the_farthest_next_use_is_the_optimum_of_a_cycle);
    RUN(ids_bring_the_next_layer);
    return 0;
}
