/*
 * Characters of UTF-8 as far as output needs them: where one ends, and whether it can be shown.
 */
#include "vmm/base/utf8.h"

#include "vmm/base/assert.h"

size_t mp_utf8_sequence(const char *text, size_t left)
{
    const unsigned char *s = (const unsigned char *)text;
    const unsigned char c = s[0];
    size_t need;
    unsigned low = 0x80, high = 0xbf;

    mp_assert(left > 0);
    if (c < 0x80)
        return 1;
    if (c < 0xc2 || c > 0xf4)
        return 0;
    need = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (left < need)
        return 0;
    if (c == 0xe0)
        low = 0xa0;
    else if (c == 0xed)
        high = 0x9f;
    else if (c == 0xf0)
        low = 0x90;
    else if (c == 0xf4)
        high = 0x8f;
    if (s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < need; i++) {
        if (s[i] < 0x80 || s[i] > 0xbf)
            return 0;
    }
    return need;
}

bool mp_utf8_is_control(const char *text, size_t bytes)
{
    const unsigned char c = (unsigned char)text[0];

    mp_assert(bytes > 0);
    if (bytes == 1)
        return c < 0x20 || c == 0x7f;
    return bytes == 2 && c == 0xc2 && (unsigned char)text[1] < 0xa0;
}
