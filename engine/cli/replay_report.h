#ifndef MP_REPLAY_REPORT_H
#define MP_REPLAY_REPORT_H

#include <stdio.h>

#include "policy/replay/replay.h"

/*
 * The rows of `moepager replay` as table, CSV and JSON. docs/replay.md explains the numbers.
 */
struct mp_replay_row {
    const char *profile; /* static; NULL: a policy alone */
    uint64_t budget_bytes;
    struct mp_replay_result result;
    char reason[256]; /* why there is no result; empty: there is one */
};

/* Initialise with zeros. */
struct mp_replay_report {
    uint64_t cycle_bytes;
    struct mp_replay_row *rows;
    size_t count, room;
};

enum mp_status mp_replay_report_add(struct mp_replay_report *report,
                                    const struct mp_replay_row *row) MP_MUST_CHECK;
void mp_replay_report_fini(struct mp_replay_report *report);

/* Write errors of `out` are checked by its owner. */
void mp_replay_report_text(const struct mp_replay_report *report, FILE *out);
void mp_replay_report_csv(const struct mp_replay_report *report, FILE *out);
void mp_replay_report_json(const struct mp_replay_report *report, FILE *out);

#endif
