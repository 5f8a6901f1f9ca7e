#ifndef MP_BASE_THREAD_H
#define MP_BASE_THREAD_H

#include <pthread.h>

/*
 * Threads of our own inside of somebody's process. Not a pool: who starts a thread joins it.
 */

/*
 * Start a thread that takes no signals: those belong to the program's own threads.
 *
 * name  for ps, at most 15 bytes
 *
 * 0, or the error number of pthread_create(); nothing is left then.
 */
int mp_thread_start(pthread_t *thread_p, const char *name, void *(*run)(void *), void *arg);

#endif
