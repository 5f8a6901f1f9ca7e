#ifndef MP_DECISIONS_REPLAY_INT_H
#define MP_DECISIONS_REPLAY_INT_H

#include "policy/record/decisions.h"
#include "policy/record/decisions_code.h"

/* Replay of a decision log: its head (decisions_head.c), then its calls. */
#define MP_LOG_LINE_BYTES 2048

struct mp_log_replay {
    const char *path;
    FILE *file;
    uint64_t file_bytes;
    struct mp_shape shape;
    struct mp_profile chosen;
    struct mp_opt_group groups[MP_POLICY_KIND_COUNT + 1];
    struct mp_calibration calibration;
    struct mp_policies set;
    struct mp_code code;
    struct mp_decisions_report *report;
    char line[MP_LOG_LINE_BYTES];
    bool held; /* line is to be read again */
};

/* MP_ERR_MODEL E_DECISION_LOG: the file is damaged, and how. */
enum mp_status mp_log_bad(const struct mp_log_replay *r, const char *what) MP_MUST_CHECK;

/* Read up to the first call and create the policies. */
enum mp_status mp_log_read_head(struct mp_log_replay *r) MP_MUST_CHECK;

#endif
