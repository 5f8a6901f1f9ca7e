/*
 * Lines by libedit, behind dlopen, or by getline(); messages from lines.
 */
#include "engine/cli/chat/lines.h"

#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/base/text.h"

#define LIBRARY "libedit.so.2"
#define HISTORY_LINES 1000
#define QUOTES "\"\"\""

/* ---- libedit: what its header histedit.h declares */

enum { EL_PROMPT = 0, EL_EDITOR = 2, EL_SIGNAL = 3, EL_HIST = 10 };
enum { H_SETSIZE = 1, H_ENTER = 10 };

struct hist_event {
    int number;
    const char *text;
};

static struct {
    void *(*el_init)(const char *, FILE *, FILE *, FILE *);
    void (*el_end)(void *);
    int (*el_set)(void *, int, ...);
    const char *(*el_gets)(void *, int *);
    void *(*history_init)(void);
    void (*history_end)(void *);
    int (*history)(void *, struct hist_event *, int, ...);
} lib;

static bool load_library(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    if (library == NULL)
        return false;
#define FIND(call) *(void **)&lib.call = dlsym(library, #call)
    FIND(el_init);
    FIND(el_end);
    FIND(el_set);
    FIND(el_gets);
    FIND(history_init);
    FIND(history_end);
    FIND(history);
#undef FIND
    return lib.el_init != NULL && lib.el_end != NULL && lib.el_set != NULL && lib.el_gets != NULL &&
           lib.history_init != NULL && lib.history_end != NULL && lib.history != NULL;
}

static const char *prompt = "> ";

static const char *give_prompt(void *editor)
{
    (void)editor;
    return prompt;
}

static void open_editor(struct mp_lines *lines)
{
    struct hist_event event;
    FILE *shown = isatty(STDOUT_FILENO) ? stdout : stderr;

    if (!load_library())
        return;
    (void)setlocale(LC_CTYPE, "C.UTF-8"); /* numbers stay as they are */
    lines->editor = lib.el_init("moepager", stdin, shown, stderr);
    lines->history = lib.history_init();
    if (lines->editor == NULL || lines->history == NULL) {
        mp_lines_close(lines);
        return;
    }
    (void)lib.history(lines->history, &event, H_SETSIZE, HISTORY_LINES);
    (void)lib.el_set(lines->editor, EL_PROMPT, give_prompt);
    (void)lib.el_set(lines->editor, EL_EDITOR, "emacs");
    (void)lib.el_set(lines->editor, EL_SIGNAL, 0);
    (void)lib.el_set(lines->editor, EL_HIST, lib.history, lines->history);
}

void mp_lines_open(struct mp_lines *lines, bool terminal)
{
    *lines = (struct mp_lines){ .terminal = terminal };
    if (terminal)
        open_editor(lines);
}

void mp_lines_close(struct mp_lines *lines)
{
    if (lines->history != NULL)
        lib.history_end(lines->history);
    if (lines->editor != NULL)
        lib.el_end(lines->editor);
    free(lines->line);
    free(lines->text);
    *lines = (struct mp_lines){ .terminal = lines->terminal };
}

/* ---- lines */

/* NULL: none, as errno and *bytes_p < 0 say. Without its end. */
static const char *read_line(struct mp_lines *lines, ssize_t *bytes_p)
{
    const char *line;

    errno = 0;
    if (lines->editor != NULL) {
        struct hist_event event;
        int count = 0;

        line = lib.el_gets(lines->editor, &count);
        *bytes_p = line != NULL ? count : -1;
        if (line != NULL && count > 1)
            (void)lib.history(lines->history, &event, H_ENTER, line);
    } else {
        if (lines->terminal)
            fputs(prompt, stderr);
        *bytes_p = getline(&lines->line, &lines->line_capacity, stdin);
        line = *bytes_p >= 0 ? lines->line : NULL;
    }
    while (*bytes_p > 0 && (line[*bytes_p - 1] == '\n' || line[*bytes_p - 1] == '\r'))
        --*bytes_p;
    return line;
}

static bool append(struct mp_lines *lines, const char *text, size_t bytes)
{
    if (!mp_text_reserve(&lines->text, &lines->capacity, lines->bytes + bytes))
        return false;
    memcpy(lines->text + lines->bytes, text, bytes);
    lines->bytes += bytes;
    lines->text[lines->bytes] = '\0';
    return true;
}

enum mp_lines_result mp_lines_read(struct mp_lines *lines)
{
    bool quoted = false, more = true, any = false;
    ssize_t bytes;

    lines->bytes = 0;
    prompt = "> ";
    while (more) {
        const char *line = read_line(lines, &bytes);
        bool quotes, goes_on;

        if (line == NULL && errno == EINTR) {
            clearerr(stdin);
            return MP_LINES_INTERRUPTED;
        }
        if (line == NULL)
            return any ? MP_LINES_MESSAGE : MP_LINES_END;
        quotes = bytes == 3 && strncmp(line, QUOTES, 3) == 0;
        goes_on = !quoted && bytes > 0 && line[bytes - 1] == '\\';
        if (quotes) {
            quoted = !quoted;
            more = quoted;
        } else {
            if (any && !append(lines, "\n", 1))
                return MP_LINES_END;
            any = true;
            if (!append(lines, line, (size_t)(bytes - goes_on)))
                return MP_LINES_END;
            more = quoted || goes_on;
        }
        prompt = "| ";
    }
    return any || append(lines, "", 0) ? MP_LINES_MESSAGE : MP_LINES_END;
}
