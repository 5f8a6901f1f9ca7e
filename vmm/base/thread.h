#ifndef MP_BASE_THREAD_H
#define MP_BASE_THREAD_H

#include <pthread.h>

/*
 * Threads of this library inside a host process. Not a pool: whoever starts a thread joins it.
 */

/*
 * Start a thread with all signals blocked: signals belong to the program's own threads.
 *
 * name  for ps, at most 15 bytes
 *
 * Returns 0, or the error number of pthread_create(); then no thread was started.
 */
int mp_thread_start(pthread_t *thread_p, const char *name, void *(*run)(void *), void *arg);

#endif
