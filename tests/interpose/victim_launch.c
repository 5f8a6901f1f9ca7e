/*
 * Starts a program in surroundings in which libraries often fail:
 *
 *     victim_launch seccomp COMMAND...     userfaultfd, io_uring, process_madvise and mbind are
 *                                          refused, as containers do
 *     victim_launch no-memfd COMMAND...    memfd_create too
 *     victim_launch local LIBRARY ARGS...  main() of a library that is opened with RTLD_LOCAL
 *     victim_launch deep LIBRARY ARGS...   and with RTLD_DEEPBIND: it prefers its own libc to hooks
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Noreturn void fail(const char *what, const char *why)
{
    fprintf(stderr, "victim_launch: %s: %s\n", what, why);
    exit(1);
}

#define REFUSE(number)                                 \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)

static void refuse_calls(bool memfd)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSE(SYS_userfaultfd),
        REFUSE((unsigned)(memfd ? SYS_memfd_create : SYS_userfaultfd)),
        REFUSE(SYS_io_uring_setup),
        REFUSE(SYS_process_madvise),
        REFUSE(SYS_mbind),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        fail("seccomp", strerror(errno));
}

int main(int argc, char **argv)
{
    int (*entry)(int, char **);
    int flags;
    void *library;

    if (argc < 3)
        fail("usage", "victim_launch seccomp|no-memfd|local|deep WHAT...");
    if (strcmp(argv[1], "seccomp") == 0 || strcmp(argv[1], "no-memfd") == 0) {
        refuse_calls(strcmp(argv[1], "no-memfd") == 0);
        execv(argv[2], argv + 2);
        fail(argv[2], strerror(errno));
    }
    flags = RTLD_NOW | RTLD_LOCAL | (strcmp(argv[1], "deep") == 0 ? RTLD_DEEPBIND : 0);
    library = dlopen(argv[2], flags);
    if (library == NULL)
        fail("dlopen", dlerror());
    *(void **)&entry = dlsym(library, "main"); /* NOLINT: POSIX' way from an object to a function */
    if (entry == NULL)
        fail(argv[2], "no main()");
    return entry(argc - 2, argv + 2);
}
