#ifndef MP_INTERPOSE_IDENTITY_H
#define MP_INTERPOSE_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/cuda/tiers.h"

/*
 * What bytes are, by where a program copies them from: an address in a mapped model file is a byte
 * of a tensor, whose name says whether a router chooses it. Files are looked at when something is
 * first copied from them; what is no model, or memory of no file, is not known.
 *
 * A wrong result costs time, never bytes: what is mapped where is asked of the kernel when
 * something unknown is met, and may have changed since.
 *
 * Thread safety: all of it.
 */

/* Bytes [src, src + bytes) go to `dst`. For each part of one kind: note(ctx, dst, bytes, kind,
 * stride); `stride`: of the experts that lie in it one behind the other, 0 if it is not of experts.
 */
typedef void mp_identity_note(void *ctx, char *dst, uint64_t bytes, enum mp_tiers_kind kind,
                              uint64_t stride);
void mp_identity_find(const void *src, uint64_t bytes, char *dst, mp_identity_note *note,
                      void *ctx);

/* What lies at some addresses is not what the kernel was asked about any more. Takes no lock. */
void mp_identity_unmapped(void);

#endif
