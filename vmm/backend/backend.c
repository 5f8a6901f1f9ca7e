/* The list of backends, and opening of a chain from the innermost backend outwards. */
#include "vmm/backend/backend.h"

#include <stdio.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define CHAIN_BYTES_MAX 128
#define CHAIN_LINKS_MAX 8

/* Add a backend here and in CMakeLists.txt; nothing else needs to know of it. */
const struct mp_backend_ops *const mp_backends[] = {
    &mp_backend_host, &mp_backend_cuda, &mp_backend_trace, &mp_backend_fault, NULL,
};

static const struct mp_backend_ops *find_backend(const char *name)
{
    mp_assert(name != NULL);
    for (size_t i = 0; mp_backends[i] != NULL; i++) {
        if (strcmp(mp_backends[i]->name, name) == 0)
            return mp_backends[i];
    }
    return NULL;
}

static enum mp_status fail_chain(const char *chain, const char *problem, const char *name)
{
    char quoted_name[MP_QUOTE_BYTES], quoted_chain[MP_QUOTE_BYTES], list[256];
    size_t used = 0;

    list[0] = '\0';
    for (size_t i = 0; mp_backends[i] != NULL && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s%s", i > 0 ? ", " : "",
                                 mp_backends[i]->name, mp_backends[i]->wrapper ? ":" : "");
    return mp_fail(MP_ERR_CONFIG, "E_BACKEND",
                   "%s '%s' in MOEPAGER_BACKEND '%s'; names are %s, wrappers (with ':') before one "
                   "backend",
                   problem, mp_quote(quoted_name, name, strlen(name)),
                   mp_quote(quoted_chain, chain, strlen(chain)), list);
}

/* Cut `text` at the colons and look all names up. */
static enum mp_status parse_chain(const char *chain, char *text,
                                  const struct mp_backend_ops **links, uint32_t *link_count_p)
{
    uint32_t count = 0;
    char *name = text;

    while (name != NULL) {
        char *colon = strchr(name, ':');
        const struct mp_backend_ops *ops;

        if (colon != NULL)
            *colon = '\0';
        ops = find_backend(name);
        if (ops == NULL)
            return fail_chain(chain, "unknown backend", name);
        if (ops->wrapper && colon == NULL)
            return fail_chain(chain, "nothing to wrap after", name);
        if (!ops->wrapper && colon != NULL)
            return fail_chain(chain, "not a wrapper:", name);
        if (count == CHAIN_LINKS_MAX)
            return fail_chain(chain, "too many wrappers before", name);
        links[count++] = ops;
        name = colon == NULL ? NULL : colon + 1;
    }
    mp_assert(count > 0);
    *link_count_p = count;
    return MP_OK;
}

enum mp_status mp_backend_open(const char *chain, const struct mp_backend_config *config,
                               struct mp_backend **backend_p)
{
    const struct mp_backend_ops *links[CHAIN_LINKS_MAX];
    char text[CHAIN_BYTES_MAX];
    struct mp_backend *backend = NULL;
    uint32_t count = 0;
    enum mp_status status;

    mp_assert(chain != NULL && config != NULL);
    if (strlen(chain) >= sizeof(text))
        return fail_chain(chain, "too long:", chain);
    memcpy(text, chain, strlen(chain) + 1);
    status = parse_chain(chain, text, links, &count);
    if (status != MP_OK)
        return status;

    while (count > 0) {
        struct mp_backend *outer;

        status = links[--count]->open(config, backend, &outer);
        if (status != MP_OK) {
            mp_backend_close(backend);
            return status;
        }
        mp_assert(outer->ops == links[count]);
        backend = outer;
    }
    *backend_p = backend;
    return MP_OK;
}

void mp_backend_close(struct mp_backend *backend)
{
    if (backend != NULL)
        backend->ops->close(backend);
}
