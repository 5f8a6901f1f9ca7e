/* Starts threads with all signals blocked. */
#include "vmm/base/thread.h"

#include <signal.h>
#include <string.h>

#include "vmm/base/assert.h"

int mp_thread_start(pthread_t *thread_p, const char *name, void *(*run)(void *), void *arg)
{
    sigset_t all, old;
    int error_number;

    mp_assert(strlen(name) <= 15);
    /* The new thread inherits the mask. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    error_number = pthread_create(thread_p, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error_number == 0)
        (void)pthread_setname_np(*thread_p, name);
    return error_number;
}
