/*
 * A touch of memory that is not there is a fault of the CPU. Where the device does it, the work is
 * given up; everywhere else the fault goes where it would have gone.
 */
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

#include "tests/device/fakecuda/stream.h"

static __thread sigjmp_buf way_out;
static __thread volatile sig_atomic_t in_work;
static __thread uintptr_t fault_address;
static struct sigaction before[2];
static const int signals[2] = { SIGSEGV, SIGBUS };
static bool installed;

static void on_fault(int number, siginfo_t *info, void *context)
{
    const struct sigaction *old = &before[number == SIGBUS];

    if (in_work) {
        fault_address = (uintptr_t)info->si_addr;
        siglongjmp(way_out, 1);
    }
    if (old->sa_flags & SA_SIGINFO) {
        old->sa_sigaction(number, info, context);
    } else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) {
        old->sa_handler(number);
    } else {
        signal(number, SIG_DFL); /* the instruction faults again */
    }
}

bool fake_guarded(void (*work)(void *ctx), void *ctx, uintptr_t *address_p)
{
    if (sigsetjmp(way_out, 1) != 0) {
        in_work = 0;
        fake_become_device(); /* a handler starts with closed keys */
        *address_p = fault_address;
        return false;
    }
    in_work = 1;
    work(ctx);
    in_work = 0;
    return true;
}

void fake_faults_begin(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER };

    if (installed)
        return;
    installed = true;
    for (size_t i = 0; i < 2; i++)
        sigaction(signals[i], &action, &before[i]);
}
