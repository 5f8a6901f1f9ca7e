#ifndef MP_TESTS_PAGER_WORLD_H
#define MP_TESTS_PAGER_WORLD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "policy/pager/pager.h"
#include "vmm/backend/backend.h"

/*
 * A pager over a real space over a temporary file, in which every byte follows from its place.
 */
struct world_options {
    uint32_t layers, experts, top_k;
    uint32_t slices; /* 0 or 1: experts are whole */
    uint32_t slots;  /* wanted, of units; with several `sizes` the budget is that share of them */
    uint32_t sizes;  /* of units in turn, and so of size classes; 0 or 1: all have one size */
    bool deterministic;
    bool uring;
    uint64_t seed;
    struct mp_clock *reads_clock;  /* of the space; NULL: monotonic */
    struct mp_policy_names names;  /* profile NULL: "lru" */
    const struct mp_policies *set; /* instead of names; stays the caller's */
};

struct world {
    struct mp_backend *backend;
    struct mp_files *files;
    struct mp_space *space;
    struct mp_unit *units;
    uint32_t unit_count;
    struct mp_shape shape;
    struct mp_counters counters;
    struct mp_policies policies;
    bool own_policies;
    struct mp_pager_config config;
    struct mp_pager *pager;
};

/* Write the file that all worlds of this program read. Once, before the first world. */
void world_prepare(void);

/* On failure everything is undone. */
enum mp_status world_try_open(const struct world_options *options, struct world *world);
void world_open(const struct world_options *options, struct world *world);
void world_close(struct world *world);

/* Are these the bytes of the unit? */
bool world_pieces_are_right(const struct world *world, uint32_t unit, const void *const *pieces);

/* Bytes of one unit of the first size. */
#define WORLD_UNIT_BYTES UINT64_C(4500)

/* Begin with these experts (ascending), one token each. */
enum mp_status world_begin(struct world *world, uint32_t layer, const uint32_t *experts,
                           uint32_t count);

/* Hand out all needs of the open layer, each at once done, and end it. Checks bytes, that each need
 * comes once, and the order of slices. A failure of mp_pager_next() comes back with the layer still
 * open. */
enum mp_status world_finish(struct world *world, uint32_t layer, const uint32_t *experts,
                            uint32_t count);

/* Begin and finish, which must work; the pager's check must hold. */
void world_run(struct world *world, uint32_t layer, const uint32_t *experts, uint32_t count);

/* Until every read that was started has ended. */
void world_wait_until_idle(const struct world *world);

/* In the device tier, wholly? */
bool world_is_resident(struct world *world, uint32_t layer, uint32_t expert);

/* A clock that holds every thread but the one that made it, while it is closed. Reads that have
 * started stand still before their first byte; nothing else can start with one thread. */
struct world_gate {
    struct mp_clock super;
    pthread_t owner;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed;
    unsigned held; /* threads that stand still */
};

void world_gate_init(struct world_gate *gate);
/* Close only while no read is in flight. */
void world_gate_set(struct world_gate *gate, bool closed);

/* Wait until a read has started and stands still. */
void world_gate_wait(struct world_gate *gate);

#endif
