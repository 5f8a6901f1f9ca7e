/*
 * Objects in an array sorted by where they begin: few thousands, asked for at every launch, and
 * added to while a model is loaded.
 */
#include "interpose/cuda/objects.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/lock.h"

#define OBJECTS_MAX (1u << 18)

static struct mp_mutex lock = MP_MUTEX_INIT(MP_LOCK_LEAF, "objects");
static struct mp_object *objects MP_GUARDED_BY(lock);
static uint32_t count MP_GUARDED_BY(lock), room MP_GUARDED_BY(lock);

/* The first that begins at `address` or behind it. */
static uint32_t lower_bound(uintptr_t address)
{
    uint32_t low = 0, high = count;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (objects[middle].begin < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool make_room(void)
{
    const uint32_t more = room > 0 ? 2 * room : 1024;
    struct mp_object *larger;

    if (count < room)
        return true;
    larger = more <= OBJECTS_MAX ? realloc(objects, more * sizeof(*larger)) : NULL;
    if (larger == NULL)
        return false;
    objects = larger;
    room = more;
    return true;
}

static bool add_locked(const struct mp_object *object)
{
    const uint32_t at = lower_bound(object->begin);

    if (at < count && objects[at].begin == object->begin) {
        objects[at] = *object;
        return true;
    }
    if (!make_room())
        return false;
    memmove(&objects[at + 1], &objects[at], (count - at) * sizeof(objects[0]));
    objects[at] = *object;
    count++;
    return true;
}

bool mp_objects_add(const struct mp_object *object)
{
    bool added;

    mp_lock(&lock);
    added = add_locked(object);
    mp_unlock(&lock);
    return added;
}

bool mp_objects_find(uintptr_t address, struct mp_object *object_p)
{
    bool found;
    uint32_t at;

    mp_lock(&lock);
    at = lower_bound(address + 1);
    found = at > 0 && address - objects[at - 1].begin < objects[at - 1].bytes;
    if (found)
        *object_p = objects[at - 1];
    mp_unlock(&lock);
    return found;
}

void mp_objects_copy(uintptr_t dst, uintptr_t src, uint64_t bytes, mp_objects_note *note, void *ctx)
{
    uintptr_t from = src;

    for (;;) {
        struct mp_object object = { .bytes = 0 };
        uint32_t at;

        mp_lock(&lock);
        at = lower_bound(from);
        if (at < count && objects[at].begin < src + bytes &&
            objects[at].bytes <= src + bytes - objects[at].begin) {
            object = objects[at];
            from = object.begin + 1;
            object.begin = dst + (object.begin - src);
            (void)add_locked(&object);
        }
        mp_unlock(&lock);
        if (object.bytes == 0)
            return;
        note(ctx, &object);
    }
}

void mp_objects_forget(uintptr_t begin, uint64_t bytes)
{
    uint32_t first, end;

    mp_lock(&lock);
    first = lower_bound(begin);
    end = lower_bound(begin + bytes);
    if (end > first) {
        memmove(&objects[first], &objects[end], (count - end) * sizeof(objects[0]));
        count -= end - first;
    }
    mp_unlock(&lock);
}
