/* Texts that grow. */
#include "vmm/base/text.h"

#include <stdint.h>
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
