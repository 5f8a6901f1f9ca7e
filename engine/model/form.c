/* The forms of roles in files; the header describes them. */
#include "engine/model/form.h"

#include "engine/model/arch/arch.h"

/* The rows of a head that rotate; of latent attention, those behind the others. */
static void set_heads(const struct mp_model_config *config, enum mp_role role,
                      struct mp_role_form *form)
{
    form->head_rows = config->head_dim;
    if (config->kv_rank == 0)
        return;
    form->head_first = role == MP_ROLE_Q ? config->nope_dim : config->kv_rank;
    form->head_rows = form->head_first + config->rotary_dim;
}

/* Parts that belong to heads of values, where these take turns among those of keys. */
static void set_tiles(const struct mp_delta *delta, enum mp_role role, struct mp_role_form *form)
{
    form->tiles = delta->value_heads / delta->key_heads;
    form->tile_keys = delta->key_heads;
    switch (role) {
    case MP_ROLE_DELTA_QKV:
    case MP_ROLE_DELTA_CONV: form->tile_first = 2 * mp_delta_keys(delta); /* fall through */
    case MP_ROLE_DELTA_GATE: form->tile_rows = delta->value_dim; break;
    case MP_ROLE_DELTA_SHARE:
    case MP_ROLE_DELTA_TIME:
    case MP_ROLE_DELTA_STEP_BIAS:
    case MP_ROLE_DELTA_DECAY: form->tile_rows = 1; break;
    case MP_ROLE_DELTA_OUT: form->tile_cols = delta->value_dim; break;
    default: form->tiles = 0;
    }
}

/* What is missing in the weights of norms. */
static float norm_offset(const struct mp_arch *arch, enum mp_role role)
{
    const bool norm = role == MP_ROLE_FINAL_NORM || role == MP_ROLE_ATTN_NORM ||
                      role == MP_ROLE_FFN_NORM || role == MP_ROLE_Q_NORM || role == MP_ROLE_K_NORM;

    return norm && arch->norm_offset ? 1 : 0;
}

struct mp_role_form mp_role_form(const struct mp_model_config *config, const struct mp_arch *arch,
                                 enum mp_role role)
{
    struct mp_role_form form = { .offset = norm_offset(arch, role),
                                 .exponent = role == MP_ROLE_DELTA_DECAY && !arch->decays };

    if (arch->rotary_neighbours && (role == MP_ROLE_Q || role == MP_ROLE_K))
        set_heads(config, role, &form);
    if (role == MP_ROLE_K_UP) {
        form.turn_rows = config->kv_rank;
        form.turn_cols = config->nope_dim;
    }
    if (arch->tiled && config->delta.value_heads > config->delta.key_heads)
        set_tiles(&config->delta, role, &form);
    return form;
}
