#ifndef MP_SERVE_PAGE_H
#define MP_SERVE_PAGE_H

#include <stddef.h>

/* The page at /: page.html, as it was when moepager was built. */
extern const char mp_page[];
extern const size_t mp_page_bytes;

/* What it may do in a browser: run what it brings along, and ask its own server. */
#define MP_PAGE_POLICY                                                                           \
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; " \
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

#endif
