#ifndef MP_TOP_INT_H
#define MP_TOP_INT_H

#include "engine/top/top.h"

struct mp_top_socket {
    int fd, lock_fd;
    char path[MP_LIVE_PATH_BYTES + 16];
};

struct mp_top {
    struct mp_clock *clock;
    struct mp_top_socket sockets[MP_LIVE_DIRS];
    size_t socket_count;
    struct mp_top_process processes[MP_TOP_PROCESSES_MAX];
    size_t count;
    uint64_t refused;
};

/* As mp_top_open() says. */
enum mp_status mp_top_sockets_open(const struct mp_live_dirs *dirs,
                                   struct mp_top *top) MP_MUST_CHECK;
void mp_top_sockets_close(struct mp_top *top);

/* Leave out the processes that have been silent for too long. */
void mp_top_forget(struct mp_top *top);

#endif
