#ifndef MP_TEST_HTTP_CLIENT_H
#define MP_TEST_HTTP_CLIENT_H

/* Requests to a server in the same process. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/test.h"

/* -1: the server does not listen. */
static inline int http_connect(uint16_t port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

/* A connection that the request was sent on, or -1: there is none. */
static inline int http_send(uint16_t port, const char *line, const char *body)
{
    char request[2048];
    const int bytes = snprintf(request, sizeof(request),
                               "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                               "Content-Length: %zu\r\n\r\n%s",
                               line, strlen(body), body);
    const int fd = http_connect(port);

    CHECK(bytes > 0 && (size_t)bytes < sizeof(request));
    if (fd < 0 || send(fd, request, (size_t)bytes, MSG_NOSIGNAL) == bytes)
        return fd;
    close(fd);
    return -1;
}

/* reply := what comes, as long as the connection gives something; "" if it was
 * closed, or never there. */
static inline void http_ask(uint16_t port, const char *line, const char *body, char *reply,
                            size_t reply_bytes)
{
    const int fd = http_send(port, line, body);
    size_t got = 0;

    while (fd >= 0 && got + 1 < reply_bytes) {
        const ssize_t n = recv(fd, reply + got, reply_bytes - 1 - got, 0);

        if (n <= 0)
            break;
        got += (size_t)n;
    }
    reply[got] = '\0';
    if (fd >= 0)
        close(fd);
}

#endif
