/*
 * How many mappings there may be: the kernel has so many for a process (vm.max_map_count), and the
 * program needs some.
 *
 * The budget leaves it MP_MEMORY_MAPS_SPARE at the start. Beyond that it gets ours: when the kernel
 * refuses one, whoever asked for it, all units are unmapped, and from then on half as many are
 * mapped at a time, until the kernel is found to have more again. What the program asks for without
 * a hook of ours (its libc, for threads and heaps) cannot be asked for again, so there are looks at
 * how many are left, too.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "interpose/mapping/mappings_int.h"
#include "vmm/base/log.h"
#include "vmm/topo/memory_room.h"

/* Mappings that are given up when the kernel has no more to give, so that the file can be mapped
 * back all the same. */
#define SPARE_BYTES (2 * 64 * (size_t)MP_SPACE_PAGE_BYTES)

/* Units that are to be mapped until the kernel is asked again how many mappings are left: it lists
 * them all. */
#define ASK_EVERY 256

/* Below that nobody needs to look: the kernel's default is more than twice as many. */
#define LOOK_MAPPINGS_MIN 16384u

/* Pages of alternating protection: each is a mapping of its own. */
void mp_mappings_take_spare(struct mp_mappings *mappings)
{
    char *spare = mappings->host.real.mmap(NULL, SPARE_BYTES, PROT_NONE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (spare == MAP_FAILED)
        return;
    for (size_t at = 0; at < SPARE_BYTES; at += 2 * MP_SPACE_PAGE_BYTES)
        (void)mappings->host.real.mprotect(spare + at, MP_SPACE_PAGE_BYTES, PROT_READ);
    mappings->spare = spare;
}

bool mp_mappings_give_spare(struct mp_mappings *mappings)
{
    if (mappings->spare == NULL)
        return false;
    mappings->host.real.munmap(mappings->spare, SPARE_BYTES);
    mappings->spare = NULL;
    return true;
}

/* That there are no more mappings is said once. */
static void halve(struct mp_mappings *mappings)
{
    if (mappings->units_max == UINT32_MAX)
        mp_log_warn("preload", "no more mappings (vm.max_map_count): fewer experts stay mapped");
    if (mappings->units_max > mappings->counts.mapped / 2)
        mappings->units_max = mappings->counts.mapped / 2;
}

void mp_mappings_note_refusal(struct mp_mappings *mappings)
{
    if (errno != ENOMEM)
        return;
    mappings->refused = true;
    halve(mappings);
}

static uint32_t pieces_of_unit(const struct mp_mappings *mappings)
{
    return (mappings->piece_count + mappings->units - 1) / mappings->units;
}

/* What is resident is mapped again when it is used next, as far as there is room. */
void mp_mappings_give_way(struct mp_mappings *mappings)
{
    uint64_t room;

    mappings->refused = false;
    if (mappings->counts.mapped > 0)
        mp_mappings_unmap_units_locked(mappings);
    if (mappings->asked > 0 && mappings->wanted - mappings->asked < ASK_EVERY)
        return;
    mappings->asked = mappings->wanted;
    room = mp_memory_maps_left() / (2 * (uint64_t)pieces_of_unit(mappings));
    mappings->units_max = room < mappings->units ? (uint32_t)room : mappings->units;
    if (mappings->spare == NULL && room > 0)
        mp_mappings_take_spare(mappings);
}

bool mp_mappings_has_room(struct mp_mappings *mappings, uint32_t unit)
{
    if (mappings->is_mapped[unit] != 0 && !mappings->refused)
        return true;
    mappings->wanted++;
    if (mappings->refused || mappings->spare == NULL ||
        mappings->counts.mapped >= mappings->units_max)
        mp_mappings_give_way(mappings);
    /* Without those that are kept back it might not be possible to map the file back. */
    return mappings->spare != NULL && mappings->counts.mapped < mappings->units_max;
}

/* Not asked again soon: what the program is taking now is not there yet. */
static bool make_way_locked(struct mp_mappings *mappings)
{
    if (mappings->off || mappings->counts.mapped == 0)
        return !mappings->off && mp_mappings_give_spare(mappings);
    halve(mappings);
    mp_mappings_unmap_units_locked(mappings);
    mappings->asked = mappings->wanted;
    return true;
}

bool mp_mappings_make_way(struct mp_mappings *mappings)
{
    bool made;

    mp_lock(&mappings->lock);
    made = make_way_locked(mappings);
    mp_unlock(&mappings->lock);
    return made;
}

void mp_mappings_keep_room(struct mp_mappings *mappings)
{
    struct mp_mappings_counts counts;
    uint64_t maps, maps_max;

    mp_mappings_get_counts(mappings, &counts);
    if (2 * (uint64_t)pieces_of_unit(mappings) * counts.mapped < LOOK_MAPPINGS_MIN ||
        !mp_memory_maps_read("", &maps, &maps_max) || maps + MP_MEMORY_MAPS_SPARE / 2 < maps_max)
        return;
    (void)mp_mappings_make_way(mappings);
}
