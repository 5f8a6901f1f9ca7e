#ifndef MP_PLACE_H
#define MP_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * Placement: which experts does each of several servers keep, and on which of its devices?
 *
 * A placement is a policy: it decides and never acts. It reads facts, writes a struct mp_placement
 * and has no state, so the same facts give the same placement; all randomness comes from
 * facts->seed. One algorithm, one file; place.c has the list and what is common.
 *
 * Expert e of layer l has the id l * experts + e, as in policy/policy.h. A server keeps an expert
 * at most once. `devices` of a server are consecutive: those of server n are first_device[n] up to
 * first_device[n + 1] - 1.
 *
 * Thread safety: none is needed for different placements; facts are only read.
 */
struct mp_place_facts {
    uint32_t layers, experts;     /* 1..4096 each */
    uint32_t servers;             /* 1..MP_PLACE_SERVERS_MAX */
    const uint32_t *first_device; // (servers + 1): ascending, first_device[0] is 0
    const uint32_t *slots; // (devices): experts that fit, without what the device needs to load one

    /* What was seen in `seconds` (> 0), or all zero: nothing is known. A call is a group of tokens
     * of one step that goes to one expert. */
    const double *tokens; // (servers, layers, experts), finite, >= 0
    const double *calls;  // (servers, layers, experts), finite, >= 0
    double seconds;
    const double *steps; // (servers): steps in `seconds`, finite, >= 0; NULL or 0: not known

    /* Measured: a message from server a to server b and back takes call_s[a * servers + b], and
     * token_s more for each token. It has all calls of one step and layer for that server; where
     * steps are not known, each call counts as a message. The diagonal is not read. */
    const double *call_s, *token_s; // (servers, servers), finite, >= 0
    const double *page_s; // (servers): reading an expert for one use; < 0: the server cannot
    const double *copy_s; // (servers): how long the arrival of an expert that stays takes
    uint64_t seed;
};
#define MP_PLACE_SERVERS_MAX 1024u
#define MP_PLACE_DEVICES_MAX 65534u /* of one server */

struct mp_placement {
    uint16_t *device; // (servers, layers, experts): 1 + number within the server; 0: not kept there
    uint32_t *copies; // (layers, experts): how many servers keep it

    /* For the algorithms; contents are arbitrary between calls. */
    uint32_t *free;   // (devices): slots that are left
    uint32_t *number; // (devices)
    double *load;     // (devices)
    double *total;    // (layers, experts)
    uint32_t *count;  // (servers, layers)
    uint32_t *order;  // (servers, layers, experts), and layers + servers + experts more
    double *value;    // (servers, layers, experts)
    double *miss;     // (servers, layers, experts)
    double *guess;    // (servers, layers, experts)
    double *share;    // (servers, layers)
    void *block;      /* of all arrays */
};

/* Arrays for placements under `facts`, of which only the numbers are read; nothing is placed.
 * MP_ERR_NO_MEMORY. */
enum mp_status mp_placement_init(struct mp_placement *placement,
                                 const struct mp_place_facts *facts) MP_MUST_CHECK;
void mp_placement_fini(struct mp_placement *placement);

struct mp_place_ops {
    const char *name;    /* [a-z0-9-]+ */
    const char *summary; /* one line */
    bool pages;          /* a server reads what it does not keep, where it can, instead of asking */
    bool calls;          /* a server asks others for what it does not keep */
    bool redirects;      /* requests may move to another server before they start */
    bool migrates;       /* may be called again with newer facts, see mp_place_adopts() */

    /* `placement` is empty, free[] has the slots. Must end, exceed no free[], and, unless the
     * policy pages, keep every expert somewhere: mp_place() has checked that this is possible. */
    void (*place)(const struct mp_place_facts *facts, struct mp_placement *placement);
};

/* Entry i of the list; NULL past its end. */
const struct mp_place_ops *mp_place_builtin(size_t i);
const struct mp_place_ops *mp_place_find(const char *name); /* NULL: unknown */

/*
 * Decide. MP_ERR_CONFIG E_PLACE_ROOM, with both numbers: the servers together cannot keep every
 * expert once and the policy needs that. `placement` is then empty.
 */
enum mp_status mp_place(const struct mp_place_ops *ops, const struct mp_place_facts *facts,
                        struct mp_placement *placement) MP_MUST_CHECK;

/* Check what every placement must be: no device above its slots, copies[] right and, if `covers`,
 * every expert somewhere. MP_ERR_INVALID E_PLACE_CHECK says what is wrong. */
enum mp_status mp_place_check(const struct mp_place_facts *facts,
                              const struct mp_placement *placement, bool covers) MP_MUST_CHECK;

/* True if `ops` has to keep every expert somewhere under these facts. */
bool mp_place_covers(const struct mp_place_ops *ops, const struct mp_place_facts *facts);

/*
 * C(P) of Prism eq. 2 in seconds, for horizon_s seconds with the facts' rates: every call to an
 * expert that is not kept takes its cheapest way, of those that `ops` has, where calls of one step
 * and layer share messages and wait together. A call without any way costs MP_PLACE_LOST_S. What a
 * server without slots keeps in an earlier placement is not there.
 */
#define MP_PLACE_LOST_S 1e3
double mp_place_cost_s(const struct mp_place_ops *ops, const struct mp_place_facts *facts,
                       const struct mp_placement *placement, double horizon_s);

/* T_mig of eq. 3, in seconds: the sum of copy_s over experts that arrive at a server. What only
 * leaves costs nothing, unlike in the printed equation. */
double mp_place_copy_s(const struct mp_place_facts *facts, const struct mp_placement *from,
                       const struct mp_placement *to);

/* Eq. 4: C(P') + T_mig < C(P). */
bool mp_place_adopts(const struct mp_place_ops *ops, const struct mp_place_facts *facts,
                     const struct mp_placement *from, const struct mp_placement *to,
                     double horizon_s);

#endif
