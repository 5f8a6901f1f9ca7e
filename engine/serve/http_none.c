/*
 * In place of http.c where libmicrohttpd was not there when moepager was built.
 */
#include "engine/serve/http.h"
#include "vmm/base/error.h"

enum mp_status mp_http_check(const struct mp_http_config *config)
{
    (void)config;
    return mp_fail(MP_ERR_UNSUPPORTED, "E_NO_HTTP",
                   "this moepager was built without libmicrohttpd, so it cannot serve; install "
                   "libmicrohttpd-dev and build again");
}

enum mp_status mp_http_start(const struct mp_http_config *config, struct mp_http **http_p)
{
    (void)http_p;
    return mp_http_check(config);
}

uint16_t mp_http_port(const struct mp_http *http)
{
    (void)http;
    return 0;
}

void mp_http_set_keys(struct mp_http *http, struct mp_keys *keys)
{
    (void)http;
    mp_keys_destroy(keys);
}

enum mp_status mp_http_renew(struct mp_http *http, const char *cert, const char *key)
{
    (void)http;
    (void)cert;
    (void)key;
    return mp_http_check(NULL);
}

void mp_http_refuse(struct mp_http *http)
{
    (void)http;
}

void mp_http_stop(struct mp_http *http, unsigned wait_s)
{
    (void)http;
    (void)wait_s;
}
