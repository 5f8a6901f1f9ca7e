#ifndef MP_INTERPOSE_OBJECTS_H
#define MP_INTERPOSE_OBJECTS_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/cuda/tiers.h"

/*
 * What is known of the device's memory: which addresses hold which tensor, by the copies that
 * brought it there, and where it was copied on the device since. What a program frees and uses
 * again is known as what it was until something else is copied there; a wrong guess costs time.
 *
 * Thread safety: all of it.
 */
struct mp_object {
    uintptr_t begin;
    uint64_t bytes;
    enum mp_tiers_kind kind;
    uint64_t stride; /* of experts; 0: it is not of experts */
};

/* Replaces what begins there. False: no memory, or there are too many. */
bool mp_objects_add(const struct mp_object *object);

/* The object that holds the address. */
bool mp_objects_find(uintptr_t address, struct mp_object *object_p);

/* [src, +bytes) was copied to `dst`: what lies in there as a whole does at both places; note() of
 * each part at dst. */
typedef void mp_objects_note(void *ctx, const struct mp_object *object);
void mp_objects_copy(uintptr_t dst, uintptr_t src, uint64_t bytes, mp_objects_note *note,
                     void *ctx);

/* Forget what lies in [begin, +bytes). */
void mp_objects_forget(uintptr_t begin, uint64_t bytes);

#endif
