#ifndef MP_BASE_COMPILER_H
#define MP_BASE_COMPILER_H

#include <stddef.h>

#define MP_MUST_CHECK __attribute__((warn_unused_result))
#define MP_PRINTF(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))
#define MP_COLD __attribute__((cold, noinline))

/* Marks the functions that libmoepager.so exports; all others are hidden. */
#define MOEPAGER_API __attribute__((visibility("default")))

/* Names the lock that protects the preceding field. Documentation only. */
#define MP_GUARDED_BY(lock)

#define mp_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#define MP_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
