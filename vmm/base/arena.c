/*
 * Sizes of an arena's parts, and their places; see arena.h. It never grows and frees nothing.
 */
#include "vmm/base/arena.h"

#include <stdlib.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

void *mp_arena_take(struct mp_arena *arena, uint64_t count, uint64_t bytes)
{
    const size_t at = arena->used;
    uint64_t end;

    if (!mp_mul_u64(count, bytes, &end) || !mp_round_up_u64(end, _Alignof(max_align_t), &end) ||
        !mp_add_u64(at, end, &end) || end > SIZE_MAX / 2) {
        arena->overflow = true;
        return NULL;
    }
    arena->used = (size_t)end;
    if (arena->block == NULL)
        return NULL;
    mp_assert(arena->used <= arena->bytes);
    return (char *)arena->block + at;
}

enum mp_status mp_arena_open(struct mp_arena *arena, const char *what)
{
    mp_assert(arena->block == NULL);
    if (!arena->overflow)
        arena->block = calloc(1, arena->used > 0 ? arena->used : 1);
    if (arena->block == NULL)
        return mp_fail_no_memory(what, arena->overflow ? UINT64_MAX : arena->used);
    arena->bytes = arena->used;
    arena->used = 0;
    return MP_OK;
}
