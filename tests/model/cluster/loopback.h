#ifndef MP_TEST_LOOPBACK_H
#define MP_TEST_LOOPBACK_H

#include "engine/cluster/message.h"
#include "engine/cluster/transport.h"

/*
 * A transport between threads of one process, with what goes wrong on real ones: a rank that dies,
 * one that is stopped, a link that is cut, a queue that is full, bytes that are none of ours.
 *
 * Thread safety: a transport belongs to one thread; the functions here may be called from any.
 */
struct loopback;

struct loopback *loopback_create(uint32_t ranks);
void loopback_destroy(struct loopback *net);

/* The transport of one rank; valid until loopback_destroy(). */
struct mp_transport *loopback_rank(struct loopback *net, uint32_t rank);

void loopback_kill(struct loopback *net, uint32_t rank);
/* Nobody uses the transport of a dead rank any more: it may be started again. */
void loopback_leave(struct loopback *net, uint32_t rank);
/* Who starts a rank again, in a thread of its own; NULL, as at first: nobody is. */
void loopback_on_restart(struct loopback *net, void (*start)(void *ctx, uint32_t rank), void *ctx);
/* Nothing goes from or to the rank; what was sent comes when the link is back. */
void loopback_cut(struct loopback *net, uint32_t rank, bool cut);
/* From now on a rank keeps at most so many messages that were not fetched. */
void loopback_limit(struct loopback *net, uint32_t messages);
/* Let `to` get these bytes as if `from` had sent them. */
void loopback_inject(struct loopback *net, uint32_t from, uint32_t to, const void *data,
                     uint64_t bytes);
/* Has the rank a message of this kind that it has not fetched? */
bool loopback_holds(struct loopback *net, uint32_t rank, enum mp_message_kind kind);
/* Messages that were sent so far. */
uint64_t loopback_count(struct loopback *net);

#endif
