#ifndef MP_COMMANDS_H
#define MP_COMMANDS_H

#include <signal.h>

#include "engine/cli/args/args.h"
#include "engine/session/progress.h"
#include "engine/session/session.h"
#include "engine/text/chat.h"

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

/* Check that --model is given: MP_ERR_CONFIG. */
enum mp_status mp_require_model(const struct mp_args *args) MP_MUST_CHECK;
/* The same for --text, and read it as mp_read_text() does. To be called before anything is loaded.
 */
enum mp_status mp_require_text(const struct mp_args *args, char **text_p,
                               size_t *bytes_p) MP_MUST_CHECK;

/* Warn if a text is not valid UTF-8, naming the first invalid byte, which the tokenizer replaces by
 * U+FFFD. `name` is "the text" or the like. */
void mp_warn_unless_utf8(const char *name, const char *text, size_t bytes);

/* The text's tokens, at most --tokens of them; MP_ERR_CONFIG if it has fewer than 2, or --window
 * does not fit into the context. *bytes_p: length of the text that they cover. */
enum mp_status mp_encode_text(const struct mp_args *args, const struct mp_session *session,
                              const char *text, size_t bytes, struct mp_ids *ids,
                              uint64_t *bytes_p) MP_MUST_CHECK;

/* A progress bar for reading weights that also handles Ctrl-C: for mp_session_config.progress. */
struct mp_progress mp_loading_progress(struct mp_progress_bar *bar);

/* The chat format of --chat-template, or the model's own. */
enum mp_status mp_open_chat(const struct mp_args *args, struct mp_chat **chat_p) MP_MUST_CHECK;

/* Check that the output files named by flags can be written and that the flags of a trace are
 * consistent. To be called before anything is loaded. */
enum mp_status mp_check_outputs(const struct mp_args *args) MP_MUST_CHECK;

/* True if the reader of standard output has closed it, as `| head` does. */
bool mp_stdout_unread(void);

/* MP_OK if all output was written to standard output, or its reader has closed it; else MP_ERR_IO.
 */
enum mp_status mp_check_stdout(void) MP_MUST_CHECK;

/* To be called after a result was printed: the error of mp_check_stdout(), else `ended`, the status
 * of the run: MP_OK, or MP_ERR_CANCELED if only completed parts were printed. */
enum mp_status mp_printed(enum mp_status ended) MP_MUST_CHECK;

/* A whole file, or for "-" standard input without its last newline, as a new NUL-terminated text,
 * at most 64 MiB. */
enum mp_status mp_read_text(const char *path, char **text_p, size_t *bytes_p) MP_MUST_CHECK;

/* Take the next element from a comma-separated list, which is advanced; false at its end (NULL).
 * Elements that do not fit are cut: no name or size is that long. */
#define MP_PART_BYTES 64
bool mp_next_part(const char **list, char part[MP_PART_BYTES]);

/* The routing trace of a run: from the engine's callback to the file. */
struct mp_trace_sink {
    struct mp_trace_writer *writer; /* NULL: no trace */
    const struct mp_batch *batch;   /* being processed */
    uint32_t step;
    const struct mp_engine *engine; /* NULL: without the scores of all experts */
};

/* Open it as set by --trace and --trace-scores. */
enum mp_status mp_trace_sink_open(struct mp_trace_sink *sink, const struct mp_args *args,
                                  const struct mp_session *session) MP_MUST_CHECK;
void mp_trace_sink_routed(void *sink, uint32_t layer, uint32_t tokens, uint32_t k,
                          const uint32_t *experts, const float *weights);
enum mp_status mp_trace_sink_close(struct mp_trace_sink *sink) MP_MUST_CHECK;

#endif
