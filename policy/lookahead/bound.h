#ifndef MP_LOOKAHEAD_BOUND_H
#define MP_LOOKAHEAD_BOUND_H

#include <stdint.h>

#include "vmm/base/status.h"

/*
 * What lookahead over tokens is worth for a recorded text: the share of uses of experts that find
 * them among `slots` residents of all layers, with what is known of later tokens. A simulation of
 * hits; it has no time, so whatever is read ahead of a layer is there.
 */
struct mp_routed_text {
    uint32_t layers, experts, top_k, vocab;
    uint32_t tokens;
    const uint32_t *id;     // (tokens)
    const uint32_t *chosen; // (tokens, layers, top_k)
};

enum mp_known {
    MP_KNOWN_NOTHING, /* the victim is the one used least lately, by an exponential mean */
    MP_KNOWN_PERFECT, /* the victim's next use in `window` tokens is the farthest */
    MP_KNOWN_HEAT,    /* as NOTHING, and the next layer's likely experts are read ahead */
};

struct mp_bound {
    double hits;  /* share of uses, of tokens from `from` on */
    double reads; /* experts per token */
};

/* MP_ERR_NO_MEMORY. `from` < text->tokens; slots > 2 * top_k. */
enum mp_status mp_lookahead_bound(const struct mp_routed_text *text, uint32_t slots,
                                  enum mp_known known, uint32_t window, uint32_t from,
                                  struct mp_bound *bound_p) MP_MUST_CHECK;

#endif
