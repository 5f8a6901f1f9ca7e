#ifndef MP_COMMANDS_H
#define MP_COMMANDS_H

#include <signal.h>

#include "engine/cli/args/args.h"
#include "engine/session/progress.h"
#include "engine/session/session.h"

/*
 * The commands. Each prints its result on standard output and returns a status; main() turns that
 * into one line on standard error and an exit code.
 */
#define X(upper, lower)                                                                           \
    enum mp_status mp_cmd_##lower(const struct mp_args *args, const struct mp_settings *settings) \
        MP_MUST_CHECK;
MP_COMMAND_MAP(X)
#undef X

/* Set by SIGINT and SIGTERM. */
extern volatile sig_atomic_t mp_interrupted;

/* MP_ERR_CONFIG if --model is missing. */
enum mp_status mp_require_model(const struct mp_args *args) MP_MUST_CHECK;
/* The same if --text is; the text as of mp_read_text(). To be asked before anything is loaded. */
enum mp_status mp_require_text(const struct mp_args *args, char **text_p,
                               size_t *bytes_p) MP_MUST_CHECK;

/* Say so if not all of a text is UTF-8, naming the first byte that is not: the tokenizer reads
 * U+FFFD there. `name` is "the text" or the like. */
void mp_warn_unless_utf8(const char *name, const char *text, size_t bytes);

/* The text's tokens, at most --tokens of them; MP_ERR_CONFIG if it has fewer than 2, or --window
 * does not fit into the context. *bytes_p: of the text that they came from. */
enum mp_status mp_encode_text(const struct mp_args *args, const struct mp_session *session,
                              const char *text, size_t bytes, struct mp_ids *ids,
                              uint64_t *bytes_p) MP_MUST_CHECK;

/* A bar while weights are read, and Ctrl-C: for mp_session_config.progress. */
struct mp_progress mp_loading_progress(struct mp_progress_bar *bar);

/* Can the files that the flags name be written, and do the flags of a trace fit each other? To be
 * asked before anything is loaded. */
enum mp_status mp_check_outputs(const struct mp_args *args) MP_MUST_CHECK;

/* Has the reader of standard output gone away, as `| head` does when it has seen enough? */
bool mp_stdout_unread(void);

/* Everything on standard output arrived, or its reader wanted no more? MP_ERR_IO otherwise. */
enum mp_status mp_check_stdout(void) MP_MUST_CHECK;

/* After a result was printed: mp_check_stdout(), else what ended the run, MP_OK or the interruption
 * after which only what was complete has been printed. */
enum mp_status mp_printed(enum mp_status ended) MP_MUST_CHECK;

/* A whole file, or standard input for "-", as a new NUL-terminated text, at most 64 MiB. */
enum mp_status mp_read_text(const char *path, char **text_p, size_t *bytes_p) MP_MUST_CHECK;

/* The next part of a list with commas, which moves on; false at its end, NULL. Parts that do not
 * fit are cut: no name or size is that long. */
#define MP_PART_BYTES 64
bool mp_next_part(const char **list, char part[MP_PART_BYTES]);

/* The routing trace of a run: from the engine's callback to the file. */
struct mp_trace_sink {
    struct mp_trace_writer *writer; /* NULL: no trace */
    const struct mp_batch *batch;   /* in work */
    uint32_t step;
    const struct mp_engine *engine; /* NULL: without the scores of all experts */
};

/* As --trace and --trace-scores say. */
enum mp_status mp_trace_sink_open(struct mp_trace_sink *sink, const struct mp_args *args,
                                  const struct mp_session *session) MP_MUST_CHECK;
void mp_trace_sink_routed(void *sink, uint32_t layer, uint32_t tokens, uint32_t k,
                          const uint32_t *experts, const float *weights);
enum mp_status mp_trace_sink_close(struct mp_trace_sink *sink) MP_MUST_CHECK;

#endif
