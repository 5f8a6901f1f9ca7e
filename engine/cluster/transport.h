#ifndef MP_TRANSPORT_H
#define MP_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * How messages get from one rank to another: whole, in order between two ranks, and without a
 * thread of its own. engine/cluster/mpi.h is the implementation; tests have one inside a process.
 *
 * Thread safety: one thread at a time.
 */
struct mp_transport {
    const struct mp_transport_ops *ops;
    uint32_t rank, ranks;
    bool survives; /* the job goes on when a rank dies */
    bool returned; /* this process is here in place of one that died */
};

/* What poll() found. */
struct mp_arrival {
    uint32_t from;
    bool lost;        /* rank `from` has died: said once, data is NULL */
    const void *data; /* aligned as by malloc(); valid until the next call of poll() */
    uint64_t bytes;
};

struct mp_transport_ops {
    /* Queue a copy. MP_ERR_CLUSTER: rank `to` cannot be reached; MP_ERR_BUSY without a text: what
     * waits for it is already more than the transport keeps; MP_ERR_NO_MEMORY. */
    enum mp_status (*send)(struct mp_transport *transport, uint32_t to, const void *data,
                           uint64_t bytes);

    /* Get ahead with what was queued, and take a message that has come. False: there is none. A
     * message of more than bytes_max bytes counts as a loss of its sender. */
    enum mp_status (*poll)(struct mp_transport *transport, uint64_t bytes_max,
                           struct mp_arrival *arrival_p, bool *found_p);

    /* Sleep until something may have come, for `ns` at most. */
    void (*wait)(struct mp_transport *transport, uint64_t ns);

    /* Start ranks that have died again, all of them; NULL: not possible. Each live rank calls this
     * at the same time, without a message under way, and all get the same answer. After MP_OK the
     * new ones can be sent to; they open a transport with `returned` set. MP_ERR_CLUSTER: nobody
     * was started, and all is as before. */
    enum mp_status (*restart)(struct mp_transport *transport);

    void (*close)(struct mp_transport *transport);
};

#endif
