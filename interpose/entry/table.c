/*
 * The one symbol that libmoepager_interpose.so exports; what is in it is in entry.c.
 */
#include "interpose/entry.h"
#include "vmm/base/compiler.h"

MOEPAGER_API const struct mp_interposer *const mp_interposer_v1 = &mp_interposer_table;
