/*
 * The list of placements, what they have in common, and the rule of migration (Prism eq. 2 to 4).
 */
#include "policy/place/place_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

/* Add a placement here, in place_int.h and in CMakeLists.txt; nothing else needs to know of it. */
static const struct mp_place_ops *const list[] = {
    &mp_place_prism, &mp_place_uniform, &mp_place_redundance, &mp_place_smartmoe, &mp_place_eplb,
    &mp_place_naive, &mp_place_local,   &mp_place_redirect,   &mp_place_united,
};

const struct mp_place_ops *mp_place_builtin(size_t i)
{
    return i < MP_ARRAY_LEN(list) ? list[i] : NULL;
}

const struct mp_place_ops *mp_place_find(const char *name)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(list); i++) {
        if (!strcmp(list[i]->name, name))
            return list[i];
    }
    return NULL;
}

static void take(struct mp_placement *p, const struct mp_place_facts *facts, struct mp_arena *arena)
{
    const uint64_t ids = mp_place_ids(facts), all = ids * facts->servers;
    const uint64_t devices = mp_place_devices(facts);

    p->device = mp_arena_take(arena, all, sizeof(*p->device));
    p->copies = mp_arena_take(arena, ids, sizeof(*p->copies));
    p->free = mp_arena_take(arena, devices, sizeof(*p->free));
    p->number = mp_arena_take(arena, devices, sizeof(*p->number));
    p->load = mp_arena_take(arena, devices, sizeof(*p->load));
    p->total = mp_arena_take(arena, ids, sizeof(*p->total));
    p->count = mp_arena_take(arena, (uint64_t)facts->servers * facts->layers, sizeof(*p->count));
    p->order = mp_arena_take(arena, all + facts->layers + facts->servers + facts->experts,
                             sizeof(*p->order));
    p->value = mp_arena_take(arena, all, sizeof(*p->value));
    p->miss = mp_arena_take(arena, all, sizeof(*p->miss));
    p->guess = mp_arena_take(arena, all, sizeof(*p->guess));
    p->share = mp_arena_take(arena, (uint64_t)facts->servers * facts->layers, sizeof(*p->share));
}

enum mp_status mp_placement_init(struct mp_placement *placement, const struct mp_place_facts *facts)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    take(placement, facts, &arena);
    status = mp_arena_open(&arena, "a placement");
    placement->block = arena.block;
    if (status == MP_OK)
        take(placement, facts, &arena);
    return status;
}

void mp_placement_fini(struct mp_placement *placement)
{
    free(placement->block);
    memset(placement, 0, sizeof(*placement));
}

uint32_t mp_place_room(const struct mp_place_facts *facts, uint32_t server)
{
    const uint32_t ids = mp_place_ids(facts);
    uint64_t sum = 0;

    for (uint32_t d = facts->first_device[server]; d < facts->first_device[server + 1]; d++)
        sum += facts->slots[d];
    return sum < ids ? (uint32_t)sum : ids;
}

uint32_t mp_place_server(const struct mp_place_facts *facts, uint32_t device)
{
    uint32_t low = 0, high = facts->servers;

    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;

        if (facts->first_device[middle] <= device)
            low = middle;
        else
            high = middle;
    }
    return low;
}

bool mp_place_covers(const struct mp_place_ops *ops, const struct mp_place_facts *facts)
{
    if (!ops->pages)
        return true;
    for (uint32_t n = 0; ops->calls && n < facts->servers; n++) {
        if (facts->page_s[n] < 0)
            return true; /* it has to ask */
    }
    return false;
}

void mp_place_clear(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const size_t ids = mp_place_ids(facts);

    memset(placement->device, 0, ids * facts->servers * sizeof(*placement->device));
    memset(placement->copies, 0, ids * sizeof(*placement->copies));
    for (uint32_t n = 0; n < facts->servers; n++) {
        uint32_t left = mp_place_room(facts, n);

        for (uint32_t d = facts->first_device[n]; d < facts->first_device[n + 1]; d++) {
            placement->free[d] = facts->slots[d] < left ? facts->slots[d] : left;
            left -= placement->free[d];
            placement->load[d] = 0;
        }
    }
}

enum mp_status mp_place(const struct mp_place_ops *ops, const struct mp_place_facts *facts,
                        struct mp_placement *placement)
{
    uint64_t room = 0;

    mp_place_clear(facts, placement);
    for (uint32_t n = 0; n < facts->servers; n++)
        room += mp_place_room(facts, n);
    if (mp_place_covers(ops, facts) && room < mp_place_ids(facts))
        return mp_fail(MP_ERR_CONFIG, "E_PLACE_ROOM",
                       "placement '%s': the servers together keep %" PRIu64
                       " experts, need all %" PRIu32 " of the model",
                       ops->name, room, mp_place_ids(facts));
    ops->place(facts, placement);
    return MP_OK;
}

static enum mp_status broken(const char *what, uint32_t at, uint64_t got, uint64_t need)
{
    return mp_fail(MP_ERR_INVALID, "E_PLACE_CHECK",
                   "%s %" PRIu32 ": got %" PRIu64 ", need %" PRIu64, what, at, got, need);
}

enum mp_status mp_place_check(const struct mp_place_facts *facts,
                              const struct mp_placement *placement, bool covers)
{
    const uint32_t ids = mp_place_ids(facts);

    for (uint32_t n = 0; n < facts->servers; n++) {
        const uint32_t devices = facts->first_device[n + 1] - facts->first_device[n];
        const uint16_t *device = placement->device + (size_t)n * ids;

        for (uint32_t d = 0; d < devices; d++) {
            uint32_t used = 0;

            for (uint32_t u = 0; u < ids; u++)
                used += device[u] == d + 1;
            if (used > facts->slots[facts->first_device[n] + d])
                return broken("experts on device", facts->first_device[n] + d, used,
                              facts->slots[facts->first_device[n] + d]);
        }
        for (uint32_t u = 0; u < ids; u++) {
            if (device[u] > devices)
                return broken("device of expert", u, device[u], devices);
        }
    }
    for (uint32_t u = 0; u < ids; u++) {
        uint32_t copies = 0;

        for (uint32_t n = 0; n < facts->servers; n++)
            copies += mp_place_keeps(facts, placement, n, u);
        if (copies != placement->copies[u])
            return broken("copies of expert", u, placement->copies[u], copies);
        if (covers && copies == 0)
            return broken("copies of expert", u, 0, 1);
    }
    return MP_OK;
}

void mp_place_put(const struct mp_place_facts *facts, struct mp_placement *placement,
                  uint32_t device, uint32_t id)
{
    const uint32_t server = mp_place_server(facts, device);
    const size_t at = (size_t)server * mp_place_ids(facts) + id;

    mp_assert(placement->free[device] > 0);
    mp_assert(placement->device[at] == 0);
    placement->device[at] = (uint16_t)(device - facts->first_device[server] + 1);
    placement->copies[id]++;
    placement->free[device]--;
}

double mp_place_share(const struct mp_place_facts *facts, const struct mp_placement *placement,
                      uint32_t n, uint32_t l)
{
    const uint32_t first = l * facts->experts;
    const double *calls = facts->calls + (size_t)n * mp_place_ids(facts);
    const double steps = facts->steps != NULL ? facts->steps[n] : 0;
    double sum = 0, silent = 1;

    for (uint32_t u = first; u < first + facts->experts; u++) {
        if (calls[u] == 0 || mp_place_keeps(facts, placement, n, u))
            continue;
        sum += calls[u];
        silent *= calls[u] < steps ? 1 - calls[u] / steps : 0;
    }
    return steps > 0 && steps * (1 - silent) < sum ? steps * (1 - silent) / sum : 1;
}

/* A server without slots is not there, or will not be: what it kept before is not counted on. */
static bool has(const struct mp_place_facts *facts, const struct mp_placement *placement,
                uint32_t n, uint32_t id)
{
    return mp_place_keeps(facts, placement, n, id) && mp_place_room(facts, n) > 0;
}

/* The holder that server n asks for an expert, the lowest of equal ones; UINT32_MAX: there is none.
 */
static uint32_t nearest(const struct mp_place_facts *facts, const struct mp_placement *placement,
                        uint32_t n, uint32_t id, double share)
{
    const size_t at = (size_t)n * mp_place_ids(facts) + id;
    uint32_t best = UINT32_MAX;
    double least = 0;

    for (uint32_t m = 0; m < facts->servers; m++) {
        const size_t pair = (size_t)n * facts->servers + m;
        const double asking = facts->calls[at] * share * facts->call_s[pair] +
                              facts->tokens[at] * facts->token_s[pair];

        if (m != n && has(facts, placement, m, id) && (best == UINT32_MAX || asking < least)) {
            best = m;
            least = asking;
        }
    }
    return best;
}

/* What server n's misses of layer l cost: those with many tokens may be read though others are
 * asked for, and if reading all of them is cheaper, none is asked for. */
static double misses_s(const struct mp_place_ops *ops, const struct mp_place_facts *facts,
                       const struct mp_placement *placement, uint32_t n, uint32_t l)
{
    const uint32_t first = l * facts->experts;
    const size_t row = (size_t)n * mp_place_ids(facts);
    const double share = mp_place_share(facts, placement, n, l);
    const bool reads = ops->pages && facts->page_s[n] >= 0;
    double mixed = 0, read = 0;

    for (uint32_t u = first; u < first + facts->experts; u++) {
        const double calls = facts->calls[row + u];
        const double page = calls * (reads ? facts->page_s[n] : MP_PLACE_LOST_S);
        uint32_t from;
        double rows = 0, message = 0;

        if (calls == 0 || has(facts, placement, n, u))
            continue;
        read += page;
        from = ops->calls ? nearest(facts, placement, n, u, share) : UINT32_MAX;
        if (from != UINT32_MAX) {
            rows = facts->tokens[row + u] * facts->token_s[(size_t)n * facts->servers + from];
            message = calls * share * facts->call_s[(size_t)n * facts->servers + from];
        }
        mixed += from == UINT32_MAX || page < rows ? page : rows + message;
    }
    return mixed < read ? mixed : read;
}

double mp_place_cost_s(const struct mp_place_ops *ops, const struct mp_place_facts *facts,
                       const struct mp_placement *placement, double horizon_s)
{
    double sum = 0;

    for (uint32_t n = 0; n < facts->servers; n++) {
        for (uint32_t l = 0; l < facts->layers; l++)
            sum += misses_s(ops, facts, placement, n, l);
    }
    return sum * horizon_s / facts->seconds;
}

double mp_place_copy_s(const struct mp_place_facts *facts, const struct mp_placement *from,
                       const struct mp_placement *to)
{
    const uint32_t ids = mp_place_ids(facts);
    double sum = 0;

    for (uint32_t n = 0; n < facts->servers; n++) {
        for (uint32_t u = 0; u < ids; u++) {
            if (mp_place_keeps(facts, to, n, u) && !mp_place_keeps(facts, from, n, u))
                sum += facts->copy_s[n];
        }
    }
    return sum;
}

bool mp_place_adopts(const struct mp_place_ops *ops, const struct mp_place_facts *facts,
                     const struct mp_placement *from, const struct mp_placement *to,
                     double horizon_s)
{
    return mp_place_cost_s(ops, facts, to, horizon_s) + mp_place_copy_s(facts, from, to) <
           mp_place_cost_s(ops, facts, from, horizon_s);
}
