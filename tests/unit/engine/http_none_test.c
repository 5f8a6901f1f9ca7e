/* A program that was built without libmicrohttpd: it says so, and nothing of it crashes. */
#include "engine/serve/http.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

#include <stdio.h>
#include <sys/stat.h>

static struct mp_keys *some_keys(void)
{
    char path[sizeof(test_tmpdir_path) + 16];
    struct mp_keys *keys;
    FILE *file;

    snprintf(path, sizeof(path), "%s/keys", test_tmpdir_path);
    file = fopen(path, "w");
    CHECK(file != NULL && fputs("0123456789abcdef\n", file) >= 0 && fclose(file) == 0);
    CHECK_EQ(chmod(path, 0600), 0);
    CHECK_EQ(mp_keys_load(path, &keys), MP_OK);
    return keys;
}

static void a_server_is_refused_with_what_to_install(void)
{
    const struct mp_http_config config = { .host = "127.0.0.1" };
    struct mp_http *http = NULL;

    CHECK_EQ(mp_http_check(&config), MP_ERR_UNSUPPORTED);
    CHECK_STR(mp_error_last()->code, "E_NO_HTTP");
    CHECK(strstr(mp_error_last()->text, "libmicrohttpd-dev") != NULL);
    mp_error_clear();
    CHECK_EQ(mp_http_start(&config, &http), MP_ERR_UNSUPPORTED);
    CHECK_STR(mp_error_last()->code, "E_NO_HTTP");
    CHECK(http == NULL);
    mp_error_clear();
    CHECK_EQ(mp_http_renew(http, NULL, NULL), MP_ERR_UNSUPPORTED);
    CHECK_STR(mp_error_last()->code, "E_NO_HTTP");
}

static void the_rest_does_nothing(void)
{
    CHECK_EQ(mp_http_port(NULL), 0);
    mp_http_set_keys(NULL, some_keys()); /* which are freed */
    mp_http_refuse(NULL);
    mp_http_stop(NULL, 1);
}

int main(void)
{
    test_tmpdir();
    RUN(a_server_is_refused_with_what_to_install);
    RUN(the_rest_does_nothing);
    return 0;
}
