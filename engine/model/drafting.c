#include "engine/model/drafting.h"

#include <stdio.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "vmm/format/checkpoint.h"

#define PATTERN_BYTES 128

bool mp_drafting_there(const struct mp_checkpoint *checkpoint, const struct mp_model_config *model)
{
    const char *pattern = model->arch->names[MP_ROLE_DRAFT_IN].name;
    const struct mp_name_numbers numbers = { .layer = model->layers };
    char name[PATTERN_BYTES];

    return pattern != NULL &&
           mp_arch_format(name, sizeof(name), pattern, &numbers) < sizeof(name) &&
           mp_checkpoint_find(checkpoint, name) != NULL;
}

void mp_drafting_config(struct mp_model_config *model)
{
    model->windowed[0] = model->windowed[model->layers - 1];
    model->wide[0] = model->linear[0] = false;
    model->is_moe[0] = true;
    model->first_layer = model->layers;
    model->layers = model->moe_layers = 1;
    model->drafting = true;
}

/* All names of a layer begin as one of them does, up to what is behind its number. */
bool mp_drafting_name(const struct mp_model_config *model, const char *name)
{
    static const char place[] = "{layer}.";
    const char *pattern = model->arch->names[MP_ROLE_DRAFT_IN].name;
    const char *at = pattern != NULL ? strstr(pattern, place) : NULL;
    const struct mp_name_numbers numbers = { .layer = model->layers };
    char start[PATTERN_BYTES], prefix[PATTERN_BYTES];

    if (at == NULL)
        return false;
    snprintf(start, sizeof(start), "%.*s", (int)(at - pattern + (ptrdiff_t)strlen(place)), pattern);
    mp_arch_format(prefix, sizeof(prefix), start, &numbers);
    return strncmp(name, prefix, strlen(prefix)) == 0;
}
