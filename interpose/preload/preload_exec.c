/*
 * Hooks of what makes another program of the process: nothing at the end of this one runs then, so
 * what is written at the end is written before. A program that is not paged, and a child that
 * shares its parent's memory (vfork), is passed on after a comparison or two.
 */
#include <errno.h>
#include <stdarg.h>
#include <unistd.h>

#include "interpose/preload/preload.h"
#include "vmm/base/compiler.h"

/* Of execl() and the like; on the stack, because a child of vfork() may not allocate. Nobody writes
 * down as many. */
#define ARGS_MAX 2048

static void before_exec(void)
{
    const int before = errno;
    const struct mp_interposer *interposer = mp_preload_opened();

    if (interposer != NULL && atomic_load_explicit(&mp_preload_span.end, memory_order_acquire) != 0)
        interposer->replaced();
    errno = before;
}

int execve(const char *path, char *const argv[], char *const envp[]) MOEPAGER_API;
int execv(const char *path, char *const argv[]) MOEPAGER_API;
int execvp(const char *file, char *const argv[]) MOEPAGER_API;
int execvpe(const char *file, char *const argv[], char *const envp[]) MOEPAGER_API;
int fexecve(int fd, char *const argv[], char *const envp[]) MOEPAGER_API;
int execveat(int fd, const char *path, char *const argv[], char *const envp[],
             int flags) MOEPAGER_API;
int execl(const char *path, const char *arg, ...) MOEPAGER_API;
int execlp(const char *file, const char *arg, ...) MOEPAGER_API;
int execle(const char *path, const char *arg, ...) MOEPAGER_API;

int execve(const char *path, char *const argv[], char *const envp[])
{
    before_exec();
    return mp_preload_real.execve(path, argv, envp);
}

int execv(const char *path, char *const argv[])
{
    before_exec();
    return mp_preload_real.execv(path, argv);
}

int execvpe(const char *file, char *const argv[], char *const envp[])
{
    before_exec();
    return mp_preload_real.execvpe(file, argv, envp);
}

int execvp(const char *file, char *const argv[])
{
    before_exec();
    return mp_preload_real.execvp(file, argv);
}

int fexecve(int fd, char *const argv[], char *const envp[])
{
    before_exec();
    return mp_preload_real.fexecve(fd, argv, envp);
}

int execveat(int fd, const char *path, char *const argv[], char *const envp[], int flags)
{
    before_exec();
    return mp_preload_real.execveat(fd, path, argv, envp, flags);
}

/* argv[0..ARGS_MAX) from a list that begins with `first`; `args` is left behind its NULL. False:
 * there is no room. */
static bool take_args(const char **argv, const char *first, va_list args)
{
    size_t i = 0;

    argv[i] = first;
    while (argv[i] != NULL) {
        if (i + 1 == ARGS_MAX) {
            errno = E2BIG;
            return false;
        }
        argv[++i] = va_arg(args, const char *);
    }
    return true;
}

int execl(const char *path, const char *arg, ...)
{
    const char *argv[ARGS_MAX];
    va_list args;
    bool taken;

    va_start(args, arg);
    taken = take_args(argv, arg, args);
    va_end(args);
    return taken ? execv(path, (char *const *)argv) : -1;
}

int execlp(const char *file, const char *arg, ...)
{
    const char *argv[ARGS_MAX];
    va_list args;
    bool taken;

    va_start(args, arg);
    taken = take_args(argv, arg, args);
    va_end(args);
    return taken ? execvp(file, (char *const *)argv) : -1;
}

int execle(const char *path, const char *arg, ...)
{
    const char *argv[ARGS_MAX];
    char *const *envp = NULL;
    va_list args;
    bool taken;

    va_start(args, arg);
    taken = take_args(argv, arg, args);
    if (taken)
        envp = va_arg(args, char *const *);
    va_end(args);
    return taken ? execve(path, (char *const *)argv, envp) : -1;
}
