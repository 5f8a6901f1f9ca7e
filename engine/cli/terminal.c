/*
 * Text for a terminal without control characters. Other outputs get every byte.
 */
#include "engine/cli/terminal.h"

#include "vmm/base/utf8.h"

bool mp_terminal_write(FILE *out, bool is_terminal, const char *text, size_t bytes)
{
    if (!is_terminal)
        return fwrite(text, 1, bytes, out) == bytes;
    for (size_t i = 0; i < bytes;) {
        const size_t length = mp_utf8_sequence(text + i, bytes - i);
        const size_t step = length > 0 ? length : 1;

        if (length > 0 &&
            (text[i] == '\n' || text[i] == '\t' || !mp_utf8_is_control(text + i, length)))
            fwrite(text + i, 1, length, out);
        else
            for (size_t j = 0; j < step; j++)
                fprintf(out, "\\x%02x", (unsigned char)text[i + j]);
        i += step;
    }
    return !ferror(out);
}
