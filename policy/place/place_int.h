#ifndef MP_PLACE_INT_H
#define MP_PLACE_INT_H

#include <stddef.h>

#include "policy/builtins.h"
#include "policy/place/place.h"

/*
 * What the algorithms share. Experts are ids; `at` is server * ids + id.
 */
extern const struct mp_place_ops mp_place_prism;
extern const struct mp_place_ops mp_place_uniform;
extern const struct mp_place_ops mp_place_redundance;
extern const struct mp_place_ops mp_place_smartmoe;
extern const struct mp_place_ops mp_place_eplb;
extern const struct mp_place_ops mp_place_naive;
extern const struct mp_place_ops mp_place_local;
extern const struct mp_place_ops mp_place_redirect;
extern const struct mp_place_ops mp_place_united;

static inline uint32_t mp_place_ids(const struct mp_place_facts *facts)
{
    return facts->layers * facts->experts;
}

static inline uint32_t mp_place_devices(const struct mp_place_facts *facts)
{
    return facts->first_device[facts->servers];
}

/* Nothing is kept, free[] has the slots: a server with more slots than there are experts loses
 * those of its last devices, so that what is free can be filled. */
void mp_place_clear(const struct mp_place_facts *facts, struct mp_placement *placement);

/* How many messages a call is in the mean, at most 1, if server n has to ask for all calls of layer
 * l to experts that it does not keep. A step without any such call sends none, and experts are
 * taken to be chosen independently of each other. */
double mp_place_share(const struct mp_place_facts *facts, const struct mp_placement *placement,
                      uint32_t n, uint32_t l);

/* Slots of a server; never more than there are experts. */
uint32_t mp_place_room(const struct mp_place_facts *facts, uint32_t server);

/* The server of a device. */
uint32_t mp_place_server(const struct mp_place_facts *facts, uint32_t device);

static inline bool mp_place_keeps(const struct mp_place_facts *facts,
                                  const struct mp_placement *placement, uint32_t server,
                                  uint32_t id)
{
    return placement->device[(size_t)server * mp_place_ids(facts) + id] != 0;
}

/* Keep expert `id` on `device`, which has a free slot and whose server does not keep it yet. */
void mp_place_put(const struct mp_place_facts *facts, struct mp_placement *placement,
                  uint32_t device, uint32_t id);

/* total[id] := tokens of all servers. */
void mp_place_add_up(const struct mp_place_facts *facts, struct mp_placement *placement);

/* Sort ids[0..count) by value[id], the largest first, then the lower id. */
void mp_place_sort(uint32_t *ids, uint32_t count, const double *value);

/* A permutation of 0..count-1 in ids. */
void mp_place_shuffle(uint32_t *ids, uint32_t count, uint64_t *random);

/* 0..below-1; below > 0. */
static inline uint32_t mp_place_draw(uint64_t *random, uint32_t below)
{
    return (uint32_t)(mp_policy_mix((*random)++) % below);
}

/* A device with a free slot, each with a probability in proportion to its free slots. There is one.
 */
uint32_t mp_place_draw_device(const struct mp_place_facts *facts,
                              const struct mp_placement *placement, uint64_t *random);

/* Put ids[0..count) of a server on its devices: in this order, each on the device with the least
 * tokens per slot that has a free one. They fit. */
void mp_place_pack(const struct mp_place_facts *facts, struct mp_placement *placement,
                   uint32_t server, const uint32_t *ids, uint32_t count);

/* Place on every server its own most used experts, as many as fit. */
void mp_place_own(const struct mp_place_facts *facts, struct mp_placement *placement);

/* Each expert once, on a random device. */
void mp_place_scatter(const struct mp_place_facts *facts, struct mp_placement *placement,
                      uint64_t *random);

#endif
