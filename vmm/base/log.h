#ifndef MP_BASE_LOG_H
#define MP_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/compiler.h"
#include "vmm/base/status.h"

/*
 * The log: one line per event, on stderr or in a file.
 *
 *     mp_log_debug("pager", "evicted unit %u of layer %u", unit, layer);
 *
 * Messages are lower case, without newline, and a double click selects a whole value (no "x=1"). A
 * failure is logged where it is detected; expected ones (a full tier) at level debug. A disabled
 * message costs one relaxed load.
 *
 * Writing uses a buffer on the stack and write(2): no allocation, no lock, errno is preserved, no
 * SIGPIPE. Lines of different threads never mix, and a log call from inside the log is dropped.
 * Write errors are ignored. If stderr was closed when the program started, nothing is ever written
 * to descriptor 2, even if it is reused.
 *
 * Thread safety: any thread, except init, fini and set_sink, which the program calls before it
 * starts threads that log or after they have ended.
 */
enum mp_log_level {
    MP_LOG_ERROR,
    MP_LOG_WARN,
    MP_LOG_INFO,
    MP_LOG_DEBUG,
    MP_LOG_TRACE,
    MP_LOG_LEVEL_COUNT
};

/* MOEPAGER_LOG and MOEPAGER_LOG_FILE; vmm/options/log_options.h has their table. */
struct mp_log_config {
    char levels[256]; /* "info,pager:debug": a level for all, levels for single modules */
    char file[1024];  /* empty: stderr */
};

/*
 * Set levels and file. Before this call, and for invalid parts of the configuration, the defaults
 * apply: warnings and errors, to stderr. Returns the number of invalid parts; each was reported by
 * one warning.
 */
unsigned mp_log_init(const struct mp_log_config *config);

/* MP_ERR_CONFIG E_OPTION for the first invalid part of `levels`: for a program that refuses what
 * mp_log_init() only warns about. */
enum mp_status mp_log_check(const struct mp_log_config *config) MP_MUST_CHECK;

/* Close the file and restore the defaults. Counts are kept. */
void mp_log_fini(void);

/* Number of lines logged at this level, written or not. */
uint64_t mp_log_lines(enum mp_log_level level);

/* Send lines (without newline) to a function instead, as tests do; NULL restores the default. */
void mp_log_set_sink(void (*sink)(void *ctx, enum mp_log_level level, const char *line), void *ctx);

/* Log the calling thread's error record (vmm/base/error.h) as "error[CODE]: text". */
void mp_log_failure(const char *module);

/* The highest level that any module wants. Use the macros below. */
extern _Atomic int
    mp_log_level_max; /* relaxed: a thread that sees an old value logs or drops a line too many */

void mp_log_write(enum mp_log_level level, const char *module, const char *format, ...)
    MP_PRINTF(3, 4) MP_COLD;

#define MP_LOG_AT(level, module, ...)                                                      \
    do {                                                                                   \
        if ((int)(level) <= atomic_load_explicit(&mp_log_level_max, memory_order_relaxed)) \
            mp_log_write(level, module, __VA_ARGS__);                                      \
    } while (0)

#define mp_log_error(module, ...) MP_LOG_AT(MP_LOG_ERROR, module, __VA_ARGS__)
#define mp_log_warn(module, ...) MP_LOG_AT(MP_LOG_WARN, module, __VA_ARGS__)
#define mp_log_info(module, ...) MP_LOG_AT(MP_LOG_INFO, module, __VA_ARGS__)
#define mp_log_debug(module, ...) MP_LOG_AT(MP_LOG_DEBUG, module, __VA_ARGS__)
#define mp_log_trace(module, ...) MP_LOG_AT(MP_LOG_TRACE, module, __VA_ARGS__)

/* At most once per process for each place in the source. */
#define mp_log_once(level, module, ...)                                       \
    do {                                                                      \
        static atomic_flag said_ = ATOMIC_FLAG_INIT;                          \
        if (!atomic_flag_test_and_set_explicit(&said_, memory_order_relaxed)) \
            MP_LOG_AT(level, module, __VA_ARGS__);                            \
    } while (0)

#endif
