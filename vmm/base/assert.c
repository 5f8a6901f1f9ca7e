/* What a failed assertion does: one line on stderr, and the end of the process. */
#include "vmm/base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Not through the log: the log's own invariants may be the ones that broke. */
void mp_assert_fail(const char *what, const char *file, int line, const char *function)
{
    char text[512];
    int bytes = snprintf(text, sizeof(text), "moepager: bug: %s:%d: %s: assertion '%s' failed\n",
                         file, line, function, what);

    if (bytes > (int)sizeof(text) - 1)
        bytes = (int)sizeof(text) - 1;
    if (bytes > 0 && write(STDERR_FILENO, text, (size_t)bytes) < 0)
        abort();
    abort();
}
