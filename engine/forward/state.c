/*
 * Shapes and sizes of the state, from the table in state.h. The owner of each memory allocates it.
 */
#include "engine/forward/state.h"

#include <inttypes.h>
#include <string.h>

#include "engine/forward/engine_int.h"
#include "engine/forward/recurrent.h"
#include "engine/model/roles.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

enum kind { OWN, CROSS, STAGED };

struct row {
    const char *name, *what;
    enum kind kind;
    uint64_t element_bytes;
    uint64_t dims[MP_PLACE_COUNT][4];
};

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

bool mp_state_has_partial(const struct mp_engine_config *config)
{
    const char *name = config->policies.policy[MP_POLICY_PREDICT];
    const struct mp_policy_info *info =
        name != NULL ? mp_policy_find(MP_POLICY_PREDICT, name) : NULL;

    return info != NULL && ((const struct mp_predict_ops *)info)->source == MP_SCORES_PARTIAL;
}

static void fill_rows(const struct mp_state_plan *plan, struct row rows[MP_ARRAY_COUNT])
{
    const struct mp_engine_config *c = plan->config;
    const struct mp_model_config *m = c->model;
    const uint64_t T = c->tokens_max, H = m->hidden, V = m->vocab, C = c->ctx;
    const uint64_t N = mp_engine_wanted_max(c);
    const uint64_t D = m->head_dim, Dw = m->wide_head_dim, Q = m->heads * max_u64(D, Dw);
    const uint64_t K = max_u64(m->kv_heads * D, m->wide_kv_heads * Dw), E = m->experts;
    const uint64_t R = m->experts_per_token, W = mp_engine_expert_rows(T, R), X = m->expert_ffn;
    const uint64_t M = max_u64(m->shared_ffn, m->dense_ffn), F = max_u64(K, max_u64(X, M));
    const uint64_t J = mp_pool_threads(c->pool), S = mp_engine_heads_once(m);
    const uint64_t P = mp_state_has_partial(c) ? T : 0, G = mp_model_config_selects(m) ? T : 0;
    const uint64_t lists = plan->list_words, parts = plan->part_words;
    const uint64_t O = max_u64(Q, mp_dim_size(m, MP_DIM_O_COLS, 0));
    const uint64_t L = m->kv_rank > 0 || m->q_gate ? m->q_rank + mp_dim_size(m, MP_DIM_Q, 0) : 0;
    const uint64_t Z = m->drafting ? T : 0;
    const bool conv = m->short_conv > 0;
    const uint64_t B = max_u64(Q, conv ? H : mp_delta_values(&m->delta));
    const uint64_t Y =
        conv ? mp_dim_size(m, MP_DIM_CONV_IN, 0)
             : mp_dim_size(m, MP_DIM_DELTA_IN, 0) + mp_dim_size(m, MP_DIM_DELTA_STEPS, 0);
    const uint64_t state_count = 2 * mp_recurrent_layers(m) * c->sequences;
    const uint64_t states = state_count * mp_recurrent_floats(m);
    const uint64_t tiles = m->transposed_experts ? J * mp_engine_tile_floats(m) : 0;
    uint64_t kv[4];

    mp_kv_shape(c, kv);
#define KV kv[0], kv[1], kv[2], kv[3]
#define VALUES kv[0], kv[1], kv[2], (m->kv_rank > 0 ? 0 : kv[3])
#define PAD(a, b, c, d, ...) \
    {                        \
        a, b, c, d           \
    }
#define DIMS(...) PAD(__VA_ARGS__, 1, 1, 1, 1)
#define ROW(name, member, type, kind, host, device, what) \
    { #member, what, kind, sizeof(type), { DIMS host, DIMS device } },
    const struct row all[MP_ARRAY_COUNT] = { MP_STATE_ARRAYS(ROW) };

    memcpy(rows, all, sizeof(all));
}

enum mp_status mp_state_too_large(const struct mp_engine_config *config)
{
    return mp_fail(MP_ERR_CONFIG, "E_STATE_SIZE",
                   "KV cache and activations for %u sequences of %u positions do not fit into any "
                   "memory; lower --ctx or the batch",
                   config->sequences, config->ctx);
}

/* Half of all addresses can be rounded up to pages. */
static bool measure(uint64_t element_bytes, struct mp_array_info *info)
{
    info->bytes = element_bytes;
    for (int d = 0; d < 4; d++) {
        if (!mp_mul_u64(info->bytes, info->dims[d], &info->bytes))
            return false;
    }
    return info->bytes <= SIZE_MAX / 2;
}

enum mp_status mp_state_each(const struct mp_state_plan *plan, enum mp_place place,
                             enum mp_status (*fn)(void *ctx, const struct mp_array_info *array),
                             void *ctx)
{
    struct row rows[MP_ARRAY_COUNT];
    enum mp_status status = MP_OK;

    fill_rows(plan, rows);
    for (unsigned i = 0; i < MP_ARRAY_COUNT && status == MP_OK; i++) {
        const bool staged = rows[i].kind == STAGED && plan->device && place == MP_PLACE_HOST;
        struct mp_array_info info = {
            .array = (enum mp_array)i,
            .name = rows[i].name,
            .what = rows[i].what,
            .pinned = rows[i].kind != OWN && plan->device,
        };

        memcpy(info.dims, rows[i].dims[staged ? MP_PLACE_DEVICE : place], sizeof(info.dims));
        if (!measure(rows[i].element_bytes, &info))
            return mp_state_too_large(plan->config);
        if (info.bytes > 0)
            status = fn(ctx, &info);
    }
    return status;
}

void mp_state_log(const struct mp_array_info *array, enum mp_place place)
{
    const uint64_t *d = array->dims;

    mp_log_debug("engine",
                 "%s %s: (%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 "), %" PRIu64 " bytes",
                 place == MP_PLACE_HOST ? "host" : "device", array->name, d[0], d[1], d[2], d[3],
                 array->bytes);
}
