/*
 * Who may ask: a key where keys are wanted. Without keys the only barrier is the address, so a web
 * page of somebody else, which the user's browser shows, must not get through it.
 */
#include <string.h>
#include <strings.h>

#include "engine/serve/http_int.h"
#include "vmm/base/error.h"

static bool has_key(struct mp_http *http, struct MHD_Connection *connection)
{
    static const char scheme[] = "Bearer ";
    const char *given =
        mp_mhd.lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization");
    bool found;

    if (given == NULL || strncasecmp(given, scheme, sizeof(scheme) - 1) != 0)
        return false;
    given += sizeof(scheme) - 1;
    mp_lock(&http->lock);
    found = mp_keys_have(http->keys, given, strlen(given));
    mp_unlock(&http->lock);
    return found;
}

/* A name that only this machine's own programs use for it: no other name, that somebody else has
 * made to point here, counts. */
static bool is_own_name(const struct mp_http *http, const char *host)
{
    static const char *const names[] = { "localhost", "127.0.0.1", "[::1]" };
    const char *port = host != NULL ? strrchr(host, ':') : NULL;
    size_t bytes;

    if (host == NULL)
        return true; /* no browser */
    bytes = port != NULL && strchr(port, ']') == NULL ? (size_t)(port - host) : strlen(host);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strlen(names[i]) == bytes && strncasecmp(host, names[i], bytes) == 0)
            return true;
    }
    return strlen(http->config.host) == bytes && strncasecmp(host, http->config.host, bytes) == 0;
}

/* A browser says from whose page a request is; "null" and other pages are not ours. */
static bool is_own_page(const char *origin, const char *host)
{
    const char *name = origin != NULL ? strstr(origin, "://") : NULL;

    return origin == NULL || (name != NULL && host != NULL && strcasecmp(name + 3, host) == 0);
}

unsigned mp_http_check_access(struct mp_http *http, struct MHD_Connection *connection, bool is_open)
{
    const char *host = mp_mhd.lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
    const char *origin = mp_mhd.lookup_connection_value(connection, MHD_HEADER_KIND, "Origin");

    if (http->has_keys) {
        if (is_open || has_key(http, connection))
            return 0;
        (void)mp_fail(MP_ERR_CONFIG, "E_KEY",
                      "this server wants a key that it knows: Authorization: Bearer KEY");
        return 401;
    }
    if (is_own_name(http, host) && is_own_page(origin, host))
        return 0;
    (void)mp_fail(MP_ERR_CONFIG, "E_ORIGIN",
                  "a server without keys takes no requests from pages of other sites, nor under "
                  "other names");
    return 403;
}
