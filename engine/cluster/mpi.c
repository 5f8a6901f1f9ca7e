/* Loads the module that speaks MPI, and puts its results into our terms. */
#include "engine/cluster/mpi.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "engine/cluster/mpi_module.h"
#include "vmm/base/assert.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"

struct transport {
    struct mp_transport super;
    const struct mp_mpi_module *module;
    struct mp_mpi *mpi;
    void *library;
    uint64_t active_ns; /* when a message left or came last */
};

static uint64_t now_ns(void)
{
    return mp_clock_now_ns(mp_clock_monotonic());
}

static enum mp_status mpi_send(struct mp_transport *super, uint32_t to, const void *data,
                               uint64_t bytes)
{
    struct transport *transport = (struct transport *)super;

    mp_assert(bytes <= INT_MAX);
    transport->active_ns = now_ns();
    switch (transport->module->send(transport->mpi, (int)to, data, bytes)) {
    case MP_MPI_SENT: return MP_OK;
    case MP_MPI_FULL: return MP_ERR_BUSY;
    case MP_MPI_LOST:
        return mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_LOST", "MPI says that rank %u has died", to);
    default:
        return mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_LOST", "rank %u cannot be reached: %s", to,
                       transport->module->text(transport->mpi));
    }
}

static enum mp_status mpi_poll(struct mp_transport *super, uint64_t bytes_max,
                               struct mp_arrival *arrival_p, bool *found_p)
{
    struct transport *transport = (struct transport *)super;
    void *data = NULL;
    size_t bytes = 0;
    int from = 0;
    const enum mp_mpi_result result =
        transport->module->poll(transport->mpi, bytes_max, &from, &data, &bytes);

    *found_p = result == MP_MPI_MESSAGE || result == MP_MPI_LOST;
    if (result == MP_MPI_FAILED)
        return mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_MPI", "MPI: %s",
                       transport->module->text(transport->mpi));
    if (*found_p)
        transport->active_ns = now_ns();
    *arrival_p = (struct mp_arrival){
        .from = (uint32_t)from, .lost = result == MP_MPI_LOST, .data = data, .bytes = bytes
    };
    return MP_OK;
}

/*
 * MPI has nothing to sleep on, so this looks again soon: the sooner, the less time has passed since
 * the last message, as an answer, or the call of the next layer, follows soon.
 */
#define NAP_PART 8 /* of that time */
#define NAP_NS_MIN 10000
#define NAP_NS_MAX 200000

static void mpi_wait(struct mp_transport *super, uint64_t ns)
{
    const struct transport *transport = (struct transport *)super;
    const uint64_t part = (now_ns() - transport->active_ns) / NAP_PART;
    const uint64_t nap_ns = part < NAP_NS_MIN ? NAP_NS_MIN : part > NAP_NS_MAX ? NAP_NS_MAX : part;
    const struct timespec nap = { .tv_nsec = (long)(nap_ns < ns ? nap_ns : ns) };

    (void)prctl(PR_SET_TIMERSLACK, 1UL); /* of this thread; 50 us is the usual, added to each nap */
    nanosleep(&nap, NULL);
}

/* The words that this program was started with; the block is one allocation. */
static char **own_words(void)
{
    static char text[1 << 16];
    FILE *file = fopen("/proc/self/cmdline", "re");
    const size_t bytes = file != NULL ? fread(text, 1, sizeof(text) - 1, file) : 0;
    size_t count = 0;
    char **words;

    if (file != NULL)
        fclose(file);
    for (size_t i = 0; i < bytes; i++)
        count += text[i] == '\0';
    if (count == 0 || bytes == sizeof(text) - 1)
        return NULL;
    words = calloc(count + 1, sizeof(*words));
    if (words == NULL)
        return NULL;
    words[0] = text;
    for (size_t i = 1; i < count; i++)
        words[i] = words[i - 1] + strlen(words[i - 1]) + 1;
    return words;
}

static enum mp_status mpi_restart(struct mp_transport *super)
{
    const struct transport *transport = (struct transport *)super;
    char **words = own_words(); /* or NULL: then nobody is started, but all have to be asked */
    const enum mp_mpi_result result = transport->module->restart(transport->mpi, words);

    free(words);
    if (result != MP_MPI_SENT)
        return mp_fail(MP_ERR_CLUSTER, "E_CLUSTER_LOST", "%s",
                       transport->module->text(transport->mpi));
    return MP_OK;
}

static void mpi_close(struct mp_transport *super)
{
    struct transport *transport = (struct transport *)super;

    transport->module->close(transport->mpi);
    free(transport); /* the library stays: MPI may have threads in it */
}

static const struct mp_transport_ops ops = { mpi_send, mpi_poll, mpi_wait, mpi_restart, mpi_close };

/* Beside the program, or where libraries are installed from there. */
static void *load_library(void)
{
    static const char *const ways[] = { "", MP_INSTALL_BIN_TO_LIB "/" };
    char folder[PATH_MAX], path[PATH_MAX + 64];
    const ssize_t bytes = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    void *library = NULL;
    char *slash;

    if (bytes <= 0)
        return NULL;
    folder[bytes] = '\0';
    slash = strrchr(folder, '/');
    if (slash == NULL)
        return NULL;
    slash[1] = '\0';
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) && library == NULL; i++) {
        snprintf(path, sizeof(path), "%s%s%s", folder, ways[i], MP_MPI_LIBRARY);
        library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    return library;
}

enum mp_status mp_mpi_open(struct mp_transport **transport_p)
{
    struct transport *transport = calloc(1, sizeof(*transport));
    char error[256] = "";
    const char *why;

    if (transport == NULL)
        return mp_fail_no_memory("a transport", sizeof(*transport));
    transport->library = load_library();
    why = transport->library == NULL ? dlerror() : NULL;
    if (transport->library != NULL)
        transport->module = dlsym(transport->library, MP_MPI_SYMBOL);
    if (transport->module == NULL) {
        free(transport);
        return mp_fail(MP_ERR_CONFIG, "E_CLUSTER_MPI",
                       MP_MPI_LIBRARY " cannot be loaded (%.200s); build moepager where MPI's "
                                      "headers are, or leave --cluster out",
                       why != NULL ? why : "it has no " MP_MPI_SYMBOL);
    }
    transport->mpi = transport->module->open(error, sizeof(error));
    if (transport->mpi == NULL) {
        free(transport);
        return mp_fail(MP_ERR_CONFIG, "E_CLUSTER_MPI", "MPI: %.200s; start with mpirun", error);
    }
    transport->super = (struct mp_transport){
        .ops = &ops,
        .rank = (uint32_t)transport->module->rank(transport->mpi),
        .ranks = (uint32_t)transport->module->ranks(transport->mpi),
        .survives = transport->module->survives(transport->mpi) != 0,
        .returned = transport->module->returned(transport->mpi) != 0,
    };
    *transport_p = &transport->super;
    return MP_OK;
}
