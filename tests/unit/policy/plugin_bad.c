/*
 * Plug-ins that must be refused, one for each BAD_... that the build defines.
 */
#include "policy/plugin.h"

struct config {
    uint64_t value;
};

static const struct mp_opt opts[] = {
#if defined(BAD_DEFAULT)
    MP_OPT(MP_OPT_U64, "VALUE", struct config, value, "ten", 0, 9, "A number."),
#elif defined(BAD_OFFSET)
    { .name = "VALUE", .dfl = "1", .kind = MP_OPT_U64, .offset = 8, .max = 9, .help = "A number." },
#elif defined(BAD_OPTION)
    MP_OPT(MP_OPT_U64, "value", struct config, value, "1", 0, 9, "A number."),
#else
    MP_OPT(MP_OPT_U64, "VALUE", struct config, value, "1", 0, 9, "A number."),
#endif
    MP_OPT_END,
};

static enum mp_status create(const void *config, const struct mp_shape *shape,
                             struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    (void)policy_p;
#ifdef BAD_CALL
    {
        extern void mp_no_such_function(void);

        mp_no_such_function();
    }
#endif
    return MP_ERR_UNSUPPORTED;
}

#ifndef BAD_LACKS
static bool admit(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    (void)policy;
    (void)id;
    (void)tokens;
    (void)now;
    return true;
}
#endif

static const struct mp_admit_ops ops = {
    .info = { .abi = MP_POLICY_ABI,
#ifdef BAD_CLASH
              .name = "always",
#else
              .name = "bad",
#endif
              .summary = "refused",
              .opts = opts,
              .config_size = sizeof(struct config) },
    .create = create,
    .destroy = mp_policy_free,
#ifndef BAD_LACKS
    .admit = admit,
#endif
};

static const struct mp_plugin_policy policies[] = {
#ifdef BAD_EMPTY
    { .info = NULL },
#endif
    { MP_POLICY_ADMIT, &ops.info },
    { .info = NULL },
};

#if defined(BAD_SYMBOL)
extern const struct mp_plugin mp_other;
const struct mp_plugin mp_other = { MP_POLICY_ABI, policies };
#elif defined(BAD_ABI)
const struct mp_plugin mp_plugin = { MP_POLICY_ABI + 1, policies };
#else
const struct mp_plugin mp_plugin = { MP_POLICY_ABI, policies };
#endif
