#ifndef MP_TRACE_H
#define MP_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "vmm/base/status.h"

/*
 * A routing trace: which experts each token chose, in order of time. A text format, so that a
 * spreadsheet or ten lines of Python can read it; docs/trace-format.md defines it.
 *
 * Thread safety: none; one thread per writer or reader.
 */
struct mp_trace_shape {
    char model[128];                 /* other characters than printable ASCII are written as '_' */
    uint32_t layers, experts, top_k; /* 1..4096, 1..4096, 1..64 */
    uint64_t expert_bytes;           /* of one expert, the mean where they differ */
    bool scores;                     /* rows also have the scores of all experts */
};

/* One token in one MoE layer. */
struct mp_trace_row {
    uint32_t step;  /* 0: prompt, then one per generated token */
    uint32_t layer; /* MoE layer */
    uint32_t sequence, position;
    const uint32_t *experts; // (top_k), best first
    const float *weights;    // (top_k), router scores as routed
    const float *scores;     // (experts) of all, with shape.scores; else NULL
};

struct mp_trace_writer;

/* The file appears under its name when close succeeds. MP_ERR_UNSUPPORTED E_TRACE_SHAPE: the model
 * is larger than the format allows. */
enum mp_status mp_trace_create(const char *path, const struct mp_trace_shape *shape,
                               struct mp_trace_writer **writer_p) MP_MUST_CHECK;
/* Write errors are reported by close. */
void mp_trace_write(struct mp_trace_writer *writer, const struct mp_trace_row *row);
enum mp_status mp_trace_close(struct mp_trace_writer *writer) MP_MUST_CHECK;
/* Close and remove. NULL is allowed. */
void mp_trace_abandon(struct mp_trace_writer *writer);

struct mp_trace_reader;

/* MP_ERR_MODEL E_TRACE_LINE with file and line: not a trace. MP_ERR_IO E_TRACE_READ: it does not
 * exist or is not a regular file; opening never blocks. */
enum mp_status mp_trace_open(const char *path, struct mp_trace_reader **reader_p) MP_MUST_CHECK;
const struct mp_trace_shape *mp_trace_get_shape(const struct mp_trace_reader *reader);
/* The next row, valid until the next call; *row_p with experts NULL at the end. */
enum mp_status mp_trace_read(struct mp_trace_reader *reader,
                             struct mp_trace_row *row_p) MP_MUST_CHECK;
void mp_trace_reader_destroy(struct mp_trace_reader *reader);

#endif
