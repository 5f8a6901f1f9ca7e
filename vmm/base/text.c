/* Texts that grow, and sizes as text. */
#include "vmm/base/text.h"

#include <stdio.h>
#include <stdlib.h>

bool mp_text_reserve(char **text_p, size_t *capacity_p, size_t bytes)
{
    size_t capacity;
    char *grown;

    if (*text_p != NULL && bytes < *capacity_p)
        return true;
    if (bytes > SIZE_MAX / 4)
        return false;
    capacity = bytes + bytes / 2 + 128;
    grown = realloc(*text_p, capacity);
    if (grown == NULL)
        return false;
    *text_p = grown;
    *capacity_p = capacity;
    return true;
}

const char *mp_text_size(uint64_t bytes, char out[MP_TEXT_SIZE_BYTES])
{
    const double kib = (double)bytes / 1024;

    if (bytes < 1u << 20)
        snprintf(out, MP_TEXT_SIZE_BYTES, "%.1f KiB", kib);
    else if (bytes < 1u << 30)
        snprintf(out, MP_TEXT_SIZE_BYTES, "%.1f MiB", kib / 1024);
    else
        snprintf(out, MP_TEXT_SIZE_BYTES, "%.2f GiB", kib / (1024 * 1024));
    return out;
}
