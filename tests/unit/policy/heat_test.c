/*
 * Token-conditional heat: what was chosen for an id is predicted for it and for no other, more of
 * it with each occurrence; old occurrences fade; ids seen often are not lost to those seen once.
 */
#include "policy/lookahead/heat.h"

#include "tests/support/test.h"

#define EXPERTS 16
#define K 2

static struct mp_heat *make(uint32_t vocab)
{
    const struct mp_heat_shape shape = { 3, EXPERTS, K, vocab };
    struct mp_heat *heat;

    CHECK_EQ(mp_heat_create(&shape, &heat), MP_OK);
    return heat;
}

static void learn(struct mp_heat *heat, uint32_t id, uint32_t a, uint32_t b)
{
    for (uint32_t layer = 0; layer < 3; layer++) {
        const uint32_t chosen[K] = { (a + layer) % EXPERTS, (b + layer) % EXPERTS };

        mp_heat_learn(heat, layer, id, chosen);
    }
}

static float share_of(const struct mp_heat *heat, uint32_t layer, uint32_t id, uint32_t expert)
{
    float share[EXPERTS] = { 0 };

    mp_heat_add(heat, layer, id, 1, share);
    for (uint32_t e = 0; e < EXPERTS; e++)
        CHECK(share[e] >= 0 && share[e] < 1);
    return share[expert];
}

static void an_id_predicts_what_it_chose(void)
{
    struct mp_heat *heat = make(1000);
    float once;

    learn(heat, 7, 3, 4);
    once = share_of(heat, 2, 7, 5);
    CHECK(once > 0.3f && once < 0.5f);
    CHECK(share_of(heat, 2, 7, 6) == once);
    CHECK(share_of(heat, 2, 7, 3) == 0);
    CHECK(share_of(heat, 2, 8, 5) == 0);
    learn(heat, 7, 3, 9);
    CHECK(share_of(heat, 0, 7, 3) > once);
    CHECK(share_of(heat, 0, 7, 4) < once);
    CHECK(share_of(heat, 0, 7, 9) == share_of(heat, 0, 7, 4));
    mp_heat_destroy(heat);
    mp_heat_destroy(NULL);
}

static void old_choices_fade(void)
{
    struct mp_heat *heat = make(1000);

    for (unsigned i = 0; i < 1000; i++)
        learn(heat, 7, 3, 4);
    CHECK(share_of(heat, 0, 7, 3) > 0.9f);
    for (unsigned i = 0; i < 200; i++)
        learn(heat, 7, 10, 11);
    CHECK(share_of(heat, 0, 7, 10) > 0.7f);
    CHECK(share_of(heat, 0, 7, 3) < 0.3f);
    mp_heat_destroy(heat);
}

static void ids_seen_often_stay(void)
{
    struct mp_heat *heat = make(100000);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < 40; i++) {
        for (uint32_t id = 0; id < 500; id++)
            learn(heat, id, id % 16, (id + 1) % 16);
        for (uint32_t id = 0; id < 50; id++)
            learn(heat, 1000 + 50 * i + id, 1, 2); /* each once */
    }
    for (uint32_t id = 0; id < 500; id++)
        kept += share_of(heat, 1, id, (id + 1) % 16) > 0.8f;
    CHECK(kept > 450);
    mp_heat_destroy(heat);
}

static void several_tokens_add_up_and_the_list_is_sorted(void)
{
    struct mp_heat *heat = make(1000);
    float share[EXPERTS] = { 0 };
    uint32_t list[EXPERTS];

    learn(heat, 1, 3, 4);
    learn(heat, 2, 4, 5);
    mp_heat_add(heat, 0, 1, 1, share);
    mp_heat_add(heat, 0, 2, 0.5f, share);
    CHECK(share[4] > share[3] && share[3] > share[5] && share[5] > 0);
    CHECK_EQ(mp_heat_list(share, EXPERTS, 0.01f, EXPERTS, list), 3);
    CHECK(list[0] == 4 && list[1] == 3 && list[2] == 5);
    CHECK_EQ(mp_heat_list(share, EXPERTS, 0.01f, 2, list), 2);
    CHECK(list[0] == 4 && list[1] == 3);
    CHECK_EQ(mp_heat_list(share, EXPERTS, share[3], EXPERTS, list), 2);
    CHECK_EQ(mp_heat_list(share, EXPERTS, 0.99f, EXPERTS, list), 0);
    CHECK_EQ(mp_heat_list(share, EXPERTS, 0.01f, 0, list), 0);
    mp_heat_destroy(heat);
}

int main(void)
{
    RUN(an_id_predicts_what_it_chose);
    RUN(old_choices_fade);
    RUN(ids_seen_often_stay);
    RUN(several_tokens_add_up_and_the_list_is_sorted);
    return 0;
}
