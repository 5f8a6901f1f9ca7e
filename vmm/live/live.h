#ifndef MP_LIVE_H
#define MP_LIVE_H

#include "vmm/base/clock.h"
#include "vmm/options/opt.h"
#include "vmm/output/counters.h"

/*
 * What `moepager top` shows of a process, sent by the process itself. The process listens nowhere
 * and keeps nothing open: once a period it looks for the sockets of running tops, `top.0` to
 * `top.3` in a directory of the user, and sends each one datagram of JSON. Without a top that is a
 * look for four names. Nothing that fails here is an error or costs more than this period's
 * datagram, and a privileged process (AT_SECURE) sends nothing.
 *
 * The directory is XDG_RUNTIME_DIR/moepager, and /tmp/moepager-UID for processes without that
 * variable. Only top makes it; one that somebody else owns or may enter is passed over.
 */
#define MP_LIVE_VERSION 1
#define MP_LIVE_TOPS 4
#define MP_LIVE_DIRS 2
#define MP_LIVE_PATH_BYTES 96      /* of a directory; with a name it fits into a socket's address */
#define MP_LIVE_MESSAGE_BYTES 8192 /* at most */
#define MP_LIVE_PERIOD_NS UINT64_C(500000000)

/* MOEPAGER_TOP; list it with the prefix "MOEPAGER_". */
struct mp_live_config {
    uint64_t top;
};

extern const struct mp_opt mp_live_opts[];

struct mp_live_facts {
    const char *command; /* "run", "preload" */
    const char *model;
    uint32_t index; /* of the model in its process */
    uint64_t started_ns;
    uint64_t budget_bytes, expert_bytes, weights_bytes;
    uint64_t tokens;    /* that the model has processed; UINT64_MAX: not known */
    uint64_t generated; /* positions whose logits were wanted */
    struct mp_counters counters;
};

/* The directories, whether they exist or not. */
struct mp_live_dirs {
    uint32_t count; /* 0: a privileged process */
    char path[MP_LIVE_DIRS][MP_LIVE_PATH_BYTES];
};

/* Reads the environment: before other threads may change it. */
void mp_live_dirs_find(struct mp_live_dirs *dirs);

/* True if `path` is a directory, no link, that belongs to this user and nobody else may enter. */
bool mp_live_dir_is_private(const char *path);

/* True if there is, or was, a top. */
bool mp_live_is_watched(const struct mp_live_dirs *dirs);

/* Send the facts to every top that listens. For a thread that the caller has; may be called by
 * several. Allocates a little, and opens a socket, only if there is a top. */
void mp_live_send(const struct mp_live_dirs *dirs, const struct mp_live_facts *facts,
                  struct mp_clock *clock);

/*
 * A thread that sends what was noted last, once a period. `facts` is copied, its texts too.
 *
 * Returns NULL if there is nothing to be done (the setting is off, a privileged process) or no
 * memory or thread: then nothing is shown, and mp_live_note() and mp_live_stop() do nothing.
 */
struct mp_live;
struct mp_live *mp_live_start(const struct mp_live_config *config,
                              const struct mp_live_facts *facts, struct mp_clock *clock);
void mp_live_stop(struct mp_live *live);

/* After a batch of so many tokens; any thread, copies and never waits for the sending. */
void mp_live_note(struct mp_live *live, uint64_t tokens, uint64_t generated,
                  const struct mp_counters *counters);

#endif
