#ifndef MP_POLICY_TEMPLATE_H
#define MP_POLICY_TEMPLATE_H

#include "policy/policy.h"

/* The policy of template.c. A copy of it is declared in builtins.h instead. */
extern const struct mp_evict_ops mp_evict_template;

#endif
