/* The list of model families, and names from their patterns. Each family is in its own file. */
#include "engine/model/arch/arch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "vmm/base/compiler.h"

static const struct mp_arch *const archs[] = {
#define X(name) &mp_arch_##name,
    MP_ARCH_MAP(X)
#undef X
};

const struct mp_arch *mp_arch_at(size_t index)
{
    return index < MP_ARRAY_LEN(archs) ? archs[index] : NULL;
}

void mp_arch_parts(const struct mp_arch *arch, struct mp_model_config *config)
{
    config->qk_norm_rows = arch->qk_norm_rows;
    config->q_gate = arch->q_gate;
    config->v_norm = arch->v_norm;
    config->norms_after = arch->names[MP_ROLE_ATTN_AFTER].name != NULL;
    config->router_norm = arch->names[MP_ROLE_ROUTER_NORM].name != NULL;
    config->expert_scale = arch->names[MP_ROLE_EXPERT_SCALE].name != NULL;
    config->layer_scale = arch->names[MP_ROLE_LAYER_SCALE].name != NULL;
    config->sinks = arch->names[MP_ROLE_SINKS].name != NULL;
    config->norm_bias = arch->names[MP_ROLE_ATTN_NORM_BIAS].name != NULL;
    config->router_bias = arch->names[MP_ROLE_ROUTER_BIAS].name != NULL;
    config->expert_bias = arch->names[MP_ROLE_EXPERT_GATE_BIAS].name != NULL;
    config->transposed_experts = arch->fused_transposed;
    config->delta.in_parts = arch->names[MP_ROLE_DELTA_QKV].name != NULL;
    config->delta.step_parts = arch->names[MP_ROLE_DELTA_SHARE].name != NULL;
}

/* The number whose place the pattern has at `at`; *length_p: bytes of "{layer}" and so on, 0 where
 * there is none. */
static uint32_t number_at(const char *at, const struct mp_name_numbers *numbers, size_t *length_p)
{
    const struct {
        const char *place;
        uint32_t number;
    } places[] = {
        { "{layer}", numbers->layer },
        { "{expert}", numbers->expert },
        { "{slice}", numbers->slice },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(places); i++) {
        *length_p = strlen(places[i].place);
        if (strncmp(at, places[i].place, *length_p) == 0)
            return places[i].number;
    }
    *length_p = 0;
    return 0;
}

size_t mp_arch_format(char *out, size_t bytes, const char *pattern,
                      const struct mp_name_numbers *numbers)
{
    size_t length = 0;

    while (*pattern != '\0') {
        char *to = length < bytes ? out + length : NULL;
        const size_t room = length < bytes ? bytes - length : 0;
        size_t place = 0, plain;
        const uint32_t number = number_at(pattern, numbers, &place);

        if (place > 0) {
            length += (size_t)snprintf(to, room, "%" PRIu32, number);
            pattern += place;
            continue;
        }
        plain = 1 + strcspn(pattern + 1, "{");
        length += (size_t)snprintf(to, room, "%.*s", (int)plain, pattern);
        pattern += plain;
    }
    return length;
}

bool mp_arch_match(const char *pattern, const char *name, uint32_t *layer_p)
{
    static const char place[] = "{layer}";
    const char *at = strstr(pattern, place);
    const size_t before = at != NULL ? (size_t)(at - pattern) : 0;
    uint64_t layer = 0;
    size_t digits = 0;

    if (at == NULL || strncmp(pattern, name, before) != 0)
        return false;
    for (name += before; name[digits] >= '0' && name[digits] <= '9' && layer <= UINT32_MAX;
         digits++)
        layer = layer * 10 + (uint64_t)(name[digits] - '0');
    /* As it is written: no digit is missing, none is there for nothing. */
    if (digits == 0 || (digits > 1 && name[0] == '0') || layer > UINT32_MAX ||
        strcmp(name + digits, at + strlen(place)) != 0)
        return false;
    *layer_p = (uint32_t)layer;
    return true;
}
