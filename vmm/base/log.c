/*
 * The log: levels, the file, and lines that never mix.
 */
#include "vmm/base/assert.h"
#include "vmm/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "vmm/base/clock.h"
#include "vmm/base/error.h"

#define LINE_BYTES 1024
#define MODULES_MAX 16
#define MODULE_BYTES 24

static const char *const level_names[MP_LOG_LEVEL_COUNT] = { "error", "warn", "info", "debug",
                                                             "trace" };

struct module_level {
    char name[MODULE_BYTES];
    int level;
};

/* Written by init and fini only, when no other thread logs. */
static struct {
    int level;
    int fd;
    bool timestamps; /* in a file; a terminal shows the text only */
    size_t module_count;
    struct module_level modules[MODULES_MAX];
    void (*sink)(void *ctx, enum mp_log_level level, const char *line);
    void *sink_ctx;
} state = { .level = MP_LOG_WARN, .fd = STDERR_FILENO };

_Atomic int mp_log_level_max = MP_LOG_WARN;

static _Atomic uint64_t lines[MP_LOG_LEVEL_COUNT]; /* relaxed: sums only */

static _Thread_local bool inside;

/*
 * Whether descriptor 2 was open when the program (or the library) was loaded. Later is too late: a
 * program that closes stderr reuses the number for its next file.
 */
static bool stderr_open;

__attribute__((constructor)) static void look_at_stderr(void)
{
    stderr_open = fcntl(STDERR_FILENO, F_GETFD) != -1;
}

/* A broken pipe must not raise SIGPIPE in a program that is not ours. */
static void write_line(int fd, const char *text, size_t bytes)
{
    const struct timespec now = { 0 };
    sigset_t pipe_set, old_set, pending;
    bool was_pending;

    mp_assert(fd >= 0);
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigpending(&pending);
    was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_set, &old_set);
    while (bytes > 0) {
        const ssize_t wrote = write(fd, text, bytes);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            if (errno == EPIPE && !was_pending)
                sigtimedwait(&pipe_set, NULL, &now);
            break;
        }
        text += wrote;
        bytes -= (size_t)wrote;
    }
    pthread_sigmask(SIG_SETMASK, &old_set, NULL);
}

static int level_of(const char *module)
{
    mp_assert(state.module_count <= MODULES_MAX);
    for (size_t i = 0; i < state.module_count; i++) {
        if (strcmp(state.modules[i].name, module) == 0)
            return state.modules[i].level;
    }
    return state.level;
}

static size_t format_prefix(char *line, enum mp_log_level level, const char *module)
{
    const uint64_t now_us = mp_clock_now_ns(mp_clock_monotonic()) / 1000;
    int length;

    mp_assert((unsigned)level < MP_LOG_LEVEL_COUNT);
    if (state.timestamps)
        length = snprintf(line, LINE_BYTES, "%" PRIu64 ".%06u %d %s: %s: ", now_us / 1000000,
                          (unsigned)(now_us % 1000000), (int)getpid(), level_names[level], module);
    else
        length = snprintf(line, LINE_BYTES, "moepager: %s: %s: ", level_names[level], module);
    return length < 0 ? 0 : length < LINE_BYTES / 2 ? (size_t)length : LINE_BYTES / 2;
}

void mp_log_write(enum mp_log_level level, const char *module, const char *format, ...)
{
    char line[LINE_BYTES];
    const int saved_errno = errno;
    size_t used;
    int length;
    va_list args;

    mp_assert((unsigned)level < MP_LOG_LEVEL_COUNT && module != NULL);
    if (inside || (int)level > level_of(module))
        return;
    inside = true;
    atomic_fetch_add_explicit(&lines[level], 1, memory_order_relaxed);
    used = format_prefix(line, level, module);
    va_start(args, format);
    length = vsnprintf(line + used, sizeof(line) - 1 - used, format, args);
    va_end(args);
    if (length > 0)
        used += strlen(line + used);
    for (size_t i = 0; i < used; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    }
    line[used] = '\0';
    if (state.sink != NULL) {
        state.sink(state.sink_ctx, level, line);
    } else if (state.fd != STDERR_FILENO || stderr_open) {
        line[used] = '\n';
        write_line(state.fd, line, used + 1);
    }
    inside = false;
    errno = saved_errno;
}

void mp_log_failure(const char *module)
{
    const struct mp_error *error = mp_error_last();

    mp_log_error(module, "error[%s]: %s", error->code, error->text);
}

uint64_t mp_log_lines(enum mp_log_level level)
{
    mp_assert((unsigned)level < MP_LOG_LEVEL_COUNT);
    return atomic_load_explicit(&lines[level], memory_order_relaxed);
}

void mp_log_set_sink(void (*sink)(void *ctx, enum mp_log_level level, const char *line), void *ctx)
{
    state.sink = sink;
    state.sink_ctx = ctx;
}

/* Names are lower-case words; anything else is a slip in the list. */
static bool is_module_name(const char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (!((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= '0' && name[i] <= '9') ||
              name[i] == '_' || name[i] == '-'))
            return false;
    }
    return bytes > 0 && bytes < MODULE_BYTES;
}

/* A level, or module:level, into *parsed; a level for all has an empty name. */
static bool parse_item(const char *item, size_t bytes, struct module_level *parsed)
{
    const char *colon = memchr(item, ':', bytes);
    const size_t name_bytes = colon != NULL ? (size_t)(colon - item) : 0;
    const char *word = colon != NULL ? colon + 1 : item;
    const size_t word_bytes = bytes - (size_t)(word - item);

    if (colon != NULL && !is_module_name(item, name_bytes))
        return false;
    memcpy(parsed->name, item, name_bytes);
    parsed->name[name_bytes] = '\0';
    for (parsed->level = 0; parsed->level < MP_LOG_LEVEL_COUNT; parsed->level++) {
        if (strlen(level_names[parsed->level]) == word_bytes &&
            memcmp(level_names[parsed->level], word, word_bytes) == 0)
            return true;
    }
    return false;
}

/* The next item of a list with commas, which moves on; empty ones are left out. False at the end.
 */
static bool next_item(const char **list, const char **item_p, size_t *bytes_p)
{
    *list += strspn(*list, ",");
    *item_p = *list;
    *bytes_p = strcspn(*list, ",");
    *list += *bytes_p;
    mp_assert(*bytes_p == 0 || (*item_p)[0] != ',');
    return *bytes_p > 0;
}

#define LEVELS_NEEDED                                                                  \
    "need error, warn, info, debug or trace, alone or as module:level (at most %d of " \
    "23 letters)"

/* True if the item is understood and there was room for it. */
static bool take_item(const char *item, size_t bytes)
{
    struct module_level parsed;

    mp_assert(bytes > 0);
    if (!parse_item(item, bytes, &parsed))
        return false;
    if (parsed.name[0] == '\0') {
        state.level = parsed.level;
        return true;
    }
    if (state.module_count == MODULES_MAX)
        return false;
    state.modules[state.module_count++] = parsed;
    return true;
}

static unsigned take_levels(const char *levels)
{
    unsigned bad = 0;
    const char *item;
    size_t bytes;
    int max;

    while (next_item(&levels, &item, &bytes)) {
        char quoted[MP_QUOTE_BYTES];

        if (take_item(item, bytes))
            continue;
        bad++;
        mp_log_write(MP_LOG_WARN, "log", "MOEPAGER_LOG has '%s', " LEVELS_NEEDED "; ignored",
                     mp_quote(quoted, item, bytes), MODULES_MAX);
    }
    max = state.level;
    for (size_t i = 0; i < state.module_count; i++)
        max = state.modules[i].level > max ? state.modules[i].level : max;
    atomic_store_explicit(&mp_log_level_max, max, memory_order_relaxed);
    return bad;
}

enum mp_status mp_log_check(const struct mp_log_config *config)
{
    const char *levels = config->levels, *item;
    char quoted[MP_QUOTE_BYTES];
    struct module_level parsed;
    size_t bytes, modules = 0;

    while (next_item(&levels, &item, &bytes)) {
        const bool understood = parse_item(item, bytes, &parsed);

        modules += understood && parsed.name[0] != '\0';
        if (!understood || modules > MODULES_MAX)
            return mp_fail(MP_ERR_CONFIG, "E_OPTION",
                           "option 'MOEPAGER_LOG' (--log) has '%s', " LEVELS_NEEDED,
                           mp_quote(quoted, item, bytes), MODULES_MAX);
    }
    return MP_OK;
}

/* O_NONBLOCK: a FIFO without a reader is an error, not a wait. */
static unsigned open_file(const char *path)
{
    char quoted[MP_QUOTE_BYTES];
    int fd;

    if (*path == '\0')
        return 0;
    fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
              0600);
    if (fd == STDERR_FILENO) {
        /* stderr was closed; its number must stay free for the program, so move away. */
        fd = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        close(STDERR_FILENO);
    }
    if (fd < 0) {
        mp_log_write(MP_LOG_WARN, "log", "cannot open log file '%s': %s; using stderr",
                     mp_quote(quoted, path, strlen(path)), strerror(errno));
        return 1;
    }
    state.fd = fd;
    state.timestamps = true;
    return 0;
}

unsigned mp_log_init(const struct mp_log_config *config)
{
    unsigned bad;

    mp_log_fini();
    bad = open_file(config->file);
    return bad + take_levels(config->levels);
}

void mp_log_fini(void)
{
    if (state.fd != STDERR_FILENO)
        close(state.fd);
    state.fd = STDERR_FILENO;
    state.timestamps = false;
    state.level = MP_LOG_WARN;
    state.module_count = 0;
    atomic_store_explicit(&mp_log_level_max, MP_LOG_WARN, memory_order_relaxed);
}
