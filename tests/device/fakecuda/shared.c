/*
 * How much of a device's memory is taken: by this process, and, where FAKECUDA_SHARED names a file,
 * by all processes that name the same one. What a process had when it ended, however it ended, is
 * free again.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/device/fakecuda/state.h"

#define PROCESSES_MAX 32

struct process {
    pid_t id; /* 0: free place */
    size_t bytes[FAKE_DEVICES_MAX];
};

static int file = -1;
static struct process *processes, *self;

static void shared_lock(bool lock)
{
    while (flock(file, lock ? LOCK_EX : LOCK_UN) != 0 && errno == EINTR)
        continue;
}

/* False: nothing is shared. */
static bool shared_open(void)
{
    const char *path = file == -1 ? getenv("FAKECUDA_SHARED") : NULL;
    void *place;

    if (file != -1 || path == NULL)
        return self != NULL;
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, PROCESSES_MAX * sizeof(struct process)) != 0)
        abort();
    place = mmap(NULL, PROCESSES_MAX * sizeof(struct process), PROT_READ | PROT_WRITE, MAP_SHARED,
                 file, 0);
    if (place == MAP_FAILED)
        abort();
    processes = place;
    shared_lock(true);
    for (unsigned i = 0; i < PROCESSES_MAX && self == NULL; i++) {
        if (processes[i].id == 0 || (kill(processes[i].id, 0) != 0 && errno == ESRCH))
            self = &processes[i];
    }
    if (self == NULL)
        abort();
    *self = (struct process){ .id = getpid() };
    shared_lock(false);
    return true;
}

/* With the file locked. */
static size_t others(unsigned device)
{
    size_t bytes = 0;

    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        if (&processes[i] == self || processes[i].id == 0)
            continue;
        if (kill(processes[i].id, 0) != 0 && errno == ESRCH)
            processes[i].id = 0;
        else
            bytes += processes[i].bytes[device];
    }
    return bytes;
}

static size_t own(unsigned device)
{
    return fake.device_bytes[device] + (fake.retained[device] > 0 ? fake.context_bytes : 0);
}

bool fake_take(unsigned device, size_t bytes)
{
    const bool is_shared = shared_open();
    size_t taken = own(device);
    bool ok;

    if (is_shared) {
        shared_lock(true);
        taken += others(device);
    }
    ok = taken <= fake.memory_bytes && bytes <= fake.memory_bytes - taken;
    if (ok)
        fake.device_bytes[device] += bytes;
    if (is_shared) {
        self->bytes[device] = own(device);
        shared_lock(false);
    }
    return ok;
}

void fake_give(unsigned device, size_t bytes)
{
    fake.device_bytes[device] -= bytes;
    if (shared_open())
        self->bytes[device] = own(device);
}

size_t fake_taken(unsigned device)
{
    size_t bytes = own(device);

    if (shared_open()) {
        shared_lock(true);
        bytes += others(device);
        shared_lock(false);
    }
    return bytes < fake.memory_bytes ? bytes : fake.memory_bytes;
}
