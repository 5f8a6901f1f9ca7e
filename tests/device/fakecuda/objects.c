/*
 * Handles: a place in a table and a serial number, so that one that has ended is known as such.
 */
#include "tests/device/fakecuda/stream.h"

#define OBJECTS_MAX 32768u

static struct {
    void *object;
    uint64_t handle;
    enum fake_object_kind kind;
} objects[OBJECTS_MAX];
static uint64_t serial;
static unsigned next_place;

static const char *const kind_names[FAKE_OBJECT_KINDS] = { "a stream", "an event",
                                                           "a module", "a function",
                                                           "a graph",  "an executable graph" };

uint64_t fake_object_add(enum fake_object_kind kind, void *object)
{
    for (unsigned i = 0; i < OBJECTS_MAX; i++) {
        const unsigned place = (next_place + i) % OBJECTS_MAX;

        if (objects[place].object != NULL)
            continue;
        next_place = place + 1;
        objects[place].object = object;
        objects[place].kind = kind;
        objects[place].handle = ++serial * OBJECTS_MAX + place;
        return objects[place].handle;
    }
    return 0;
}

void *fake_object_quietly(enum fake_object_kind kind, uint64_t handle)
{
    const unsigned place = (unsigned)(handle % OBJECTS_MAX);

    return handle != 0 && objects[place].object != NULL && objects[place].handle == handle &&
                   objects[place].kind == kind
               ? objects[place].object
               : NULL;
}

void *fake_object(enum fake_object_kind kind, uint64_t handle)
{
    void *object = fake_object_quietly(kind, handle);

    if (object == NULL && handle >= OBJECTS_MAX && handle / OBJECTS_MAX <= serial)
        fake_violation("use of %s that was destroyed, or is none", kind_names[kind]);
    else if (object == NULL)
        fake_violation("use of %#llx as %s", (unsigned long long)handle, kind_names[kind]);
    return object;
}

void fake_object_remove(uint64_t handle)
{
    if (handle != 0 && objects[handle % OBJECTS_MAX].handle == handle)
        objects[handle % OBJECTS_MAX].object = NULL;
}

unsigned fake_object_count(enum fake_object_kind kind)
{
    unsigned count = 0;

    for (unsigned i = 0; i < OBJECTS_MAX; i++)
        count += objects[i].object != NULL && objects[i].kind == kind;
    return count;
}

void fake_objects_clear(void)
{
    for (unsigned i = 0; i < OBJECTS_MAX; i++)
        objects[i].object = NULL;
}

void fake_object_each(enum fake_object_kind kind, void (*visit)(void *object))
{
    for (unsigned i = 0; i < OBJECTS_MAX; i++) {
        if (objects[i].object != NULL && objects[i].kind == kind)
            visit(objects[i].object);
    }
}
