#ifndef MP_BASE_UTF8_H
#define MP_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Length in bytes of the UTF-8 character at `text`, where `left` > 0 bytes are available; 0 if it
 * is invalid (overlong, a surrogate, truncated, a stray byte). Any thread. */
size_t mp_utf8_sequence(const char *text, size_t left);

/* True if this character, of `bytes` bytes as above, is a control character (C0, DEL, C1). */
bool mp_utf8_is_control(const char *text, size_t bytes);

#endif
