#ifndef MP_TOP_H
#define MP_TOP_H

#include <signal.h>

#include "vmm/base/status.h"
#include "vmm/live/live.h"

/*
 * The receiving end of vmm/live/live.h: sockets in the user's directories, and what the processes
 * of this user said last. Nothing is drawn here. A message counts only if the kernel says that it
 * comes from this user or root; its process number is the kernel's.
 *
 * Thread safety: none.
 */
#define MP_TOP_PROCESSES_MAX 64
#define MP_TOP_TEXT_BYTES 416

/* One message. */
struct mp_top_sample {
    uint64_t now_ns, tokens, generated;
    uint64_t hits, misses, load_bytes, prefetch_bytes, exposed_wait_ns, resident_bytes;
};

struct mp_top_process {
    uint64_t pid;
    uint32_t index;
    char program[MP_TOP_TEXT_BYTES], command[MP_TOP_TEXT_BYTES], model[MP_TOP_TEXT_BYTES];
    uint64_t age_ns, budget_bytes, expert_bytes, weights_bytes;
    bool has_tokens;
    struct mp_top_sample first;        /* rates are between this, of one or two seconds ago, */
    struct mp_top_sample middle, last; /* and the last */
    uint64_t heard_ns;
};

/* Between `first` and `last`; 0 if only one message came. */
struct mp_top_rates {
    double tokens_per_s, read_bytes_per_s;
    double hit_rate;   /* of the uses in between, or of all if there were none; 1 without any */
    double wait_share; /* of the time, that compute stood still */
};

void mp_top_rates_of(const struct mp_top_process *process, struct mp_top_rates *rates_p);

struct mp_top;

/*
 * Make the user's directory if it does not exist, and listen. MP_ERR_IO, E_TOP: no directory that
 * is this user's alone; as many tops as there may be run already; the system refuses a socket.
 */
enum mp_status mp_top_open(const struct mp_live_dirs *dirs, struct mp_clock *clock,
                           struct mp_top **top_p) MP_MUST_CHECK;
void mp_top_close(struct mp_top *top);

/* Take what arrives within `ns`, and forget processes that have been silent for 3 s. Ends early
 * when `stop` is set by a signal. */
void mp_top_listen(struct mp_top *top, uint64_t ns, const volatile sig_atomic_t *stop);

/* By process number. Valid until the next call. */
const struct mp_top_process *mp_top_processes(const struct mp_top *top, size_t *count_p);

/* Bytes of RAM that the process takes now; 0: not known. */
uint64_t mp_top_resident_bytes(uint64_t pid);

/* Messages that were not understood or came from somebody else. */
uint64_t mp_top_refused(const struct mp_top *top);

/* Take one message as if it had arrived from process `pid`; false: it was not understood. */
bool mp_top_take(struct mp_top *top, uint64_t pid, const char *message, size_t bytes);

#endif
