/*
 * The table of activations: which arrays each side has, with which shapes, and what their sum is;
 * and that both layouts of the KV cache give every key a place of its own.
 */
#include "engine/forward/state.h"

#include <stdlib.h>
#include <string.h>

#include "engine/forward/engine.h"
#include "engine/forward/kv.h"
#include "tests/support/test.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

#define TOKENS 5
#define SEQUENCES 2
#define CTX 7

static struct mp_model_config model = {
    .vocab = 11,
    .hidden = 12,
    .layers = 3,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 6,
    .positions_max = CTX,
    .experts = 8,
    .experts_per_token = 2,
    .expert_ffn = 10,
    .shared_ffn = 14,
    .moe_layers = 3,
};

static struct mp_engine_config config = {
    .model = &model, .sequences = SEQUENCES, .ctx = CTX, .tokens_max = TOKENS
};

struct seen {
    struct mp_array_info arrays[MP_ARRAY_COUNT]; /* bytes 0: not there */
    uint64_t bytes, kv_bytes;                    /* in whole pages */
    unsigned left;                               /* calls before one fails */
};

static enum mp_status see(void *ctx, const struct mp_array_info *array)
{
    struct seen *seen = ctx;
    uint64_t pages;

    if (seen->left-- == 0)
        return MP_ERR_NO_MEMORY;
    CHECK(array->bytes > 0 && seen->arrays[array->array].bytes == 0);
    CHECK(mp_round_up_u64(array->bytes, 4096, &pages));
    seen->arrays[array->array] = *array;
    if (strcmp(array->what, "the KV cache") == 0)
        seen->kv_bytes += pages;
    else
        seen->bytes += pages;
    return MP_OK;
}

static struct seen look(bool device, enum mp_place place)
{
    const struct mp_state_plan plan = {
        .config = &config, .device = device, .list_words = 100, .part_words = device ? 50 : 0
    };
    struct seen seen = { .left = UINT32_MAX };

    CHECK_EQ(mp_state_each(&plan, place, see, &seen), MP_OK);
    return seen;
}

static void check_shape(const struct seen *seen, enum mp_array array, uint64_t a, uint64_t b,
                        uint64_t c, uint64_t d)
{
    const uint64_t dims[] = { a, b, c, d };

    CHECK(memcmp(seen->arrays[array].dims, dims, sizeof(dims)) == 0);
    CHECK_EQ(seen->arrays[array].bytes, a * b * c * d * 4);
}

static void arrays_have_the_shapes_of_their_side(void)
{
    const struct seen host = look(false, MP_PLACE_HOST);
    const struct seen beside = look(true, MP_PLACE_HOST);
    const struct seen device = look(true, MP_PLACE_DEVICE);

    check_shape(&host, MP_ARRAY_X, TOKENS, 12, 1, 1);
    check_shape(&host, MP_ARRAY_RANK, TOKENS, 2, 12, 1);
    check_shape(&host, MP_ARRAY_LOGITS, SEQUENCES, 11, 1, 1);
    check_shape(&host, MP_ARRAY_PART, 2, 2, CTX, 1);
    check_shape(&host, MP_ARRAY_GATE, 8, 14, 1, 1); /* rows of 4 tokens for all their experts */
    CHECK_EQ(host.arrays[MP_ARRAY_K_CACHE].bytes, (uint64_t)36 * 4 * SEQUENCES * CTX);
    check_shape(&device, MP_ARRAY_GATE, TOKENS, 14, 1, 1);
    check_shape(&device, MP_ARRAY_K, TOKENS, 12, 1, 1);
    check_shape(&device, MP_ARRAY_ACT, TOKENS, 2, 10, 1);
    check_shape(&device, MP_ARRAY_LIST, 100, 1, 1, 1);
    check_shape(&device, MP_ARRAY_PART, 50, 1, 1, 1);
    CHECK_EQ(host.arrays[MP_ARRAY_K].bytes, 0);
    CHECK_EQ(host.arrays[MP_ARRAY_LIST].bytes, 0);
    CHECK_EQ(device.arrays[MP_ARRAY_DONE].bytes, 0);
    for (unsigned i = 0; i < MP_ARRAY_COUNT; i++)
        CHECK(!host.arrays[i].pinned);
    CHECK(beside.arrays[MP_ARRAY_XN].pinned && !beside.arrays[MP_ARRAY_X].pinned);
    CHECK(beside.arrays[MP_ARRAY_LIST].pinned);
    check_shape(&beside, MP_ARRAY_LIST, 100, 1, 1, 1);
}

static void the_sum_is_what_is_measured(void)
{
    const struct seen seen = look(false, MP_PLACE_HOST);
    uint64_t kv_bytes, state_bytes, more;

    CHECK_EQ(mp_engine_measure(&config, &kv_bytes, &state_bytes), MP_OK);
    CHECK_EQ(kv_bytes, seen.kv_bytes);
    CHECK_EQ(state_bytes, seen.bytes);
    config.policies.policy[MP_POLICY_PREDICT] = "partial";
    CHECK_EQ(mp_engine_measure(&config, &kv_bytes, &more), MP_OK);
    CHECK_EQ(more, state_bytes + 2 * 4096); /* its stream, and which results are there */
    config.policies.policy[MP_POLICY_PREDICT] = NULL;
}

static void the_first_error_ends_it(void)
{
    const struct mp_state_plan plan = { .config = &config };
    struct seen seen = { .left = 3 };

    CHECK_EQ(mp_state_each(&plan, MP_PLACE_HOST, see, &seen), MP_ERR_NO_MEMORY);
    CHECK_EQ(seen.left, UINT32_MAX);
    model.vocab = UINT32_MAX;
    model.hidden = UINT32_MAX;
    config.tokens_max = UINT32_MAX;
    seen.left = UINT32_MAX;
    CHECK_EQ(mp_state_each(&plan, MP_PLACE_HOST, see, &seen), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_STATE_SIZE");
    model.vocab = 11;
    model.hidden = 12;
    config.tokens_max = TOKENS;
}

static void every_key_has_a_place_of_its_own(void)
{
    static const enum mp_kv_order orders[] = { MP_KV_BY_HEAD, MP_KV_BY_POSITION };
    static uint8_t taken[3 * SEQUENCES * CTX * 24];
    uint64_t dims[4];

    config.kv_type = MP_WTYPE_F16;
    mp_kv_shape(&config, dims);
    CHECK_EQ(dims[0] * dims[1] * dims[2] * dims[3], sizeof(taken));
    for (int i = 0; i < 2; i++) {
        const struct mp_kv kv = mp_kv_layout(&config, orders[i]);

        memset(taken, 0, sizeof(taken));
        for (uint32_t n = 0; n < 3 * SEQUENCES * 2 * CTX; n++) {
            const uint32_t layer = n / (SEQUENCES * 2 * CTX), sequence = n / (2 * CTX) % SEQUENCES;
            const size_t at = mp_kv_at(&kv, layer, sequence, n / CTX % 2, n % CTX);

            CHECK(at + 12 <= sizeof(taken));
            for (size_t d = 0; d < 12; d++)
                CHECK_EQ(taken[at + d]++, 0);
        }
        CHECK_EQ(mp_kv_at(&kv, 0, 0, 0, 1), i == 0 ? 12u : 24u);
        CHECK_EQ(mp_kv_at(&kv, 0, 0, 1, 0), i == 0 ? 12u * CTX : 12u);
        CHECK_EQ(mp_kv_stride(&kv, 0), i == 0 ? 6u : 12u);
    }
    config.kv_type = MP_WTYPE_F32;
}

static void layers_without_attention_have_no_place(void)
{
    uint64_t dims[4];
    struct mp_kv kv;

    model.linear[1] = true;
    model.wide[2] = true;
    model.wide_kv_heads = 1;
    model.wide_head_dim = 10;
    mp_kv_shape(&config, dims);
    CHECK_EQ(dims[0] * dims[3], 4 * (12 + 10u));
    kv = mp_kv_layout(&config, MP_KV_BY_HEAD);
    CHECK_EQ(mp_kv_at(&kv, 2, 0, 0, 0), (uint64_t)SEQUENCES * CTX * 12 * 4);
    CHECK_EQ(mp_kv_at(&kv, 2, 1, 0, 2) - mp_kv_at(&kv, 2, 0, 0, 0), 4 * (CTX * 10 + 20u));
    memset(model.linear, 0, sizeof(model.linear));
    memset(model.wide, 0, sizeof(model.wide));
}

/* Blocks of 32 elements: a head must be some of them. */
static void types_need_whole_blocks(void)
{
    uint64_t kv_bytes, state_bytes, dims[4];

    config.kv_type = MP_WTYPE_Q8_0;
    CHECK_EQ(mp_engine_measure(&config, &kv_bytes, &state_bytes), MP_ERR_UNSUPPORTED);
    CHECK_STR(mp_error_last()->code, "E_KV_TYPE");
    CHECK_STR(mp_error_last()->text, "KV cache of type q8_0: heads of layer 0 have 6 elements, "
                                     "need a multiple of 32; f16 and bf16 take any");
    model.linear[0] = true;
    model.linear[1] = true;
    model.linear[2] = true;
    CHECK_EQ(mp_kv_check(&config), MP_OK);
    memset(model.linear, 0, sizeof(model.linear));
    model.head_dim = 64;
    CHECK_EQ(mp_kv_check(&config), MP_OK);
    mp_kv_shape(&config, dims);
    CHECK_EQ(dims[0], 3 * 2 * 68u);
    model.wide[2] = true; /* layers with other heads count by them */
    model.wide_kv_heads = 1;
    model.wide_head_dim = 48;
    CHECK_EQ(mp_kv_check(&config), MP_ERR_UNSUPPORTED);
    CHECK(strstr(mp_error_last()->text, "heads of layer 2 have 48 elements") != NULL);
    model.wide_head_dim = 96;
    CHECK_EQ(mp_kv_check(&config), MP_OK);
    mp_kv_shape(&config, dims);
    CHECK_EQ(dims[0], 2 * 2 * 68u + 102);
    memset(model.wide, 0, sizeof(model.wide));
    model.head_dim = 6;
    config.kv_type = MP_WTYPE_F32;
}

int main(void)
{
    const struct mp_pool_config threads = { .threads = 2 };

    CHECK_EQ(mp_pool_create(&threads, NULL, 0, &config.pool), MP_OK);
    arrays_have_the_shapes_of_their_side();
    the_sum_is_what_is_measured();
    the_first_error_ends_it();
    every_key_has_a_place_of_its_own();
    layers_without_attention_have_no_place();
    types_need_whole_blocks();
    mp_pool_destroy(config.pool);
    return 0;
}
