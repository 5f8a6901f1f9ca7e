/* engine/serve/page.html as a string. */
#include "engine/serve/page.h"

__asm__(".section .rodata\n"
        ".globl mp_page, mp_page_bytes\n"
        ".hidden mp_page, mp_page_bytes\n"
        ".type mp_page, %object\n"
        ".type mp_page_bytes, %object\n"
        "mp_page:\n"
        ".incbin \"" MP_PAGE "\"\n"
        "1:\n"
        ".byte 0\n"
        ".size mp_page, 1b - mp_page\n"
        ".balign 8\n"
        "mp_page_bytes:\n"
        ".quad 1b - mp_page\n"
        ".size mp_page_bytes, 8\n"
        ".previous\n");
