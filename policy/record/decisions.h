#ifndef MP_DECISIONS_H
#define MP_DECISIONS_H

#include <signal.h>

#include "policy/policy.h"

/*
 * A decision log: the arguments and results of all policy calls of a run, from which its decisions
 * can be replayed without model and machine. docs/trace-format.md defines the format.
 *
 *     mp_policies_create(&chosen, &shape, groups, &policies);
 *     mp_decisions_create(path, &chosen, &shape, groups, &log);
 *     mp_decisions_record(log, &policies);          before the pager and the step are created
 *     ...
 *     mp_decisions_close(log);                      the file appears
 *     mp_policies_destroy(&policies);
 *     mp_decisions_destroy(log);
 *
 * Recording writes to a stream and allocates nothing. Without a log there is no overhead.
 *
 * Thread safety: one thread at a time, as the policies'.
 */
#define MP_DECISIONS_MAGIC "# moepager decisions v"
/* Version 1 lacked the slots of partition calls; 2 had three executors with fixed numbers. */
#define MP_DECISIONS_VERSION "4"

struct mp_decisions;

/* `groups` has the options of all chosen policies, filled. MP_ERR_IO: as mp_out_open(). */
enum mp_status mp_decisions_create(const char *path, const struct mp_profile *chosen,
                                   const struct mp_shape *shape, const struct mp_opt_group *groups,
                                   struct mp_decisions **log_p) MP_MUST_CHECK;

/* Wrap `policies` so that all calls are recorded. After the log is closed they must not be used,
 * only destroyed; destroy the log after them. */
void mp_decisions_record(struct mp_decisions *log, struct mp_policies *policies);

/* Complete the file. MP_ERR_IO: writing failed, and there is no file. Later calls are not recorded.
 * Closing again does nothing. */
enum mp_status mp_decisions_close(struct mp_decisions *log) MP_MUST_CHECK;

/* If the log was not closed there is no file. NULL is allowed. */
void mp_decisions_destroy(struct mp_decisions *log);

struct mp_decisions_report {
    char policy[MP_POLICY_KIND_COUNT][MP_POLICY_NAME_MAX + 1];
    uint64_t calls, results;                 /* replayed */
    uint64_t calls_of[MP_POLICY_KIND_COUNT]; /* calls of each */
};

/* True if the file begins like a decision log of any version. False also if it cannot be read. */
bool mp_decisions_is_log(const char *path);

/*
 * Replay the log: call new instances of the same policies with the same arguments and options, and
 * compare results.
 *
 * MP_ERR_MODEL E_DECISION_DIFFERS: the first result that differs, with the number of the call, its
 * layer, the found and the expected result. E_DECISION_LOG: not a log, or a damaged one.
 * MP_ERR_UNSUPPORTED E_DECISION_VERSION: format, policies or options of another version of
 * moepager. MP_ERR_CANCELED: *cancel became nonzero; cancel may be NULL.
 */
enum mp_status mp_decisions_replay(const char *path, const volatile sig_atomic_t *cancel,
                                   struct mp_decisions_report *report_p) MP_MUST_CHECK;

#endif
