/*
 * libmicrohttpd behind dlopen; see http_library.h.
 */
#include "engine/serve/http_library.h"

#include <dlfcn.h>
#include <string.h>

#include "vmm/base/error.h"

#define LIBRARY "libmicrohttpd.so.12"

struct mp_http_library mp_mhd;

static enum mp_status refuse(const char *why)
{
    return mp_fail(MP_ERR_UNSUPPORTED, "E_NO_HTTP", "cannot serve: %s; install libmicrohttpd12",
                   why != NULL ? why : LIBRARY);
}

enum mp_status mp_http_load(void)
{
    static const struct {
        const char *name;
        size_t offset;
    } calls[] = {
#define X(call) { "MHD_" #call, offsetof(struct mp_http_library, call) },
        MP_HTTP_CALLS(X)
#undef X
    };
    struct mp_http_library found;
    void *library, *symbol;

    if (mp_mhd.start_daemon != NULL)
        return MP_OK;
    library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        return refuse(dlerror());
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        symbol = dlsym(library, calls[i].name);
        if (symbol == NULL)
            return refuse(dlerror());
        memcpy((char *)&found + calls[i].offset, &symbol, sizeof(symbol));
    }
    mp_mhd = found;
    return MP_OK;
}
