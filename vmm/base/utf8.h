#ifndef MP_BASE_UTF8_H
#define MP_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the UTF-8 character at `text`, of which `left` > 0 bytes are there; 0 if it is none
 * (overlong, a surrogate, cut, stray). Any thread. */
size_t mp_utf8_sequence(const char *text, size_t left);

/* Is this character, of `bytes` bytes as above, a control character (C0, DEL, C1)? */
bool mp_utf8_is_control(const char *text, size_t bytes);

#endif
