#ifndef MP_SERVE_HTTP_LIBRARY_H
#define MP_SERVE_HTTP_LIBRARY_H

#include <microhttpd.h>

#include "vmm/base/status.h"

/*
 * libmicrohttpd, loaded when a server starts: it brings a TLS library, which no other command
 * needs.
 */
#define MP_HTTP_CALLS(X)             \
    X(add_connection)                \
    X(add_response_header)           \
    X(create_response_from_buffer)   \
    X(create_response_from_callback) \
    X(destroy_response)              \
    X(get_connection_info)           \
    X(get_daemon_info)               \
    X(is_feature_supported)          \
    X(lookup_connection_value)       \
    X(queue_response)                \
    X(quiesce_daemon)                \
    X(resume_connection)             \
    X(start_daemon)                  \
    X(stop_daemon)                   \
    X(suspend_connection)

struct mp_http_library {
#define X(name) __typeof__(MHD_##name) *name;
    MP_HTTP_CALLS(X)
#undef X
};

/* Filled by mp_http_load(). */
extern struct mp_http_library mp_mhd;

/* Before anything else is called, by one thread; again it does nothing. MP_ERR_UNSUPPORTED
 * E_NO_HTTP: the library cannot be loaded, or lacks a call. */
enum mp_status mp_http_load(void) MP_MUST_CHECK;

#endif
