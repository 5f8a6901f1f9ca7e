#ifndef MP_BASE_ARENA_H
#define MP_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/base/compiler.h"
#include "vmm/base/status.h"

/*
 * An arena: all arrays of an object in one block, so that making it has one allocation and one
 * failure. A function that takes each part is called twice, first to add up sizes, then to get the
 * addresses:
 *
 *     static void take_parts(struct thing *thing, struct mp_arena *arena)
 *     {
 *         thing->scores = mp_arena_take(arena, count, sizeof(float));
 *         ...
 *     }
 *
 *     struct mp_arena arena = { 0 };
 *     take_parts(thing, &arena);
 *     status = mp_arena_open(&arena, "a thing");
 *     if (status == MP_OK)
 *         take_parts(thing, &arena);
 *
 * The owner of the parts also keeps arena.block and frees them all with free(arena.block). Sizes
 * may be arbitrary: a sum that does not fit into a size_t is reported as out of memory.
 */
struct mp_arena {
    void *block; /* zeroed; NULL before mp_arena_open() */
    size_t used; /* bytes taken so far, with rounding */
    size_t bytes;
    bool overflow;
};

/* Take an array of `count` elements of `bytes` bytes, aligned for any type. NULL before
 * mp_arena_open(). */
void *mp_arena_take(struct mp_arena *arena, uint64_t count, uint64_t bytes);

/* Allocate a block for everything taken so far. MP_ERR_NO_MEMORY, with a text that names `what`. */
enum mp_status mp_arena_open(struct mp_arena *arena, const char *what) MP_MUST_CHECK;

#endif
