/*
 * Where a session's threads and memory are, with a GPU beside the second node of a made-up machine
 * (tests/data/topo/gpu-on-node-1.xml) that says it is this one: two CPUs, a node each.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "engine/session/session.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define THREADS 3

static struct mp_settings settings;
static cpu_set_t every;
static _Atomic(unsigned) bound, elsewhere;

static void look(void *ctx, uint64_t part, unsigned thread)
{
    cpu_set_t set;

    (void)part;
    (void)ctx;
    CHECK_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    if (CPU_COUNT(&set) == 1 && CPU_ISSET(1, &set))
        atomic_fetch_add(&bound, 1);
    else if (thread > 0) /* the caller's own thread is bound too, or left alone */
        atomic_fetch_add(&elsewhere, 1);
}

/* A session binds its caller too; the next one may use every CPU again. */
static void open_session(const char *device, const char *bind, struct mp_session *session)
{
    const struct mp_session_config config = {
        .model = "models/tiny-moe", .sequences = 1, .plan_only = true, .clock = mp_clock_monotonic()
    };

    CHECK_EQ(sched_setaffinity(0, sizeof(every), &every), 0);
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    CHECK_EQ(mp_opt_set(settings.groups, "MOEPAGER_DEVICE", device), MP_OK);
    CHECK_EQ(mp_opt_set(settings.groups, "MOEPAGER_BIND", bind), MP_OK);
    CHECK_EQ(mp_opt_set(settings.groups, "MOEPAGER_THREADS", "3"), MP_OK);
    if (mp_session_open(&settings, &config, session) != MP_OK) {
        fprintf(stderr, "%s\n", mp_error_last()->text);
        exit(1);
    }
}

static void the_cpu_computes_next_to_the_gpu(void)
{
    static const char *const binds[] = { "auto", "node", "core" };
    struct mp_session session;

    for (size_t i = 0; i < sizeof(binds) / sizeof(binds[0]); i++) {
        open_session("cuda", binds[i], &session);
        CHECK(session.topology->live);
        CHECK_EQ(session.topology->nodes[session.node].os_index, 1);
        CHECK_EQ(session.engine_config.backend_config.numa_node, 1);
        atomic_store(&bound, 0);
        mp_pool_run(session.pool, look, NULL, THREADS);
        CHECK(atomic_load(&bound) >= THREADS - 1);
        CHECK_EQ(atomic_load(&elsewhere), 0);
        mp_session_close(&session);
    }
}

/* Without a device it is the node with most memory. */
static void without_a_gpu_it_is_another_node(void)
{
    struct mp_session session;

    open_session("cpu", "auto", &session);
    CHECK_EQ(session.topology->nodes[session.node].os_index, 0);
    atomic_store(&bound, 0);
    mp_pool_run(session.pool, look, NULL, THREADS);
    CHECK_EQ(atomic_load(&bound), 0);
    mp_session_close(&session);
}

int main(void)
{
    CHECK_EQ(sched_getaffinity(0, sizeof(every), &every), 0);
    if (!CPU_ISSET(0, &every) || !CPU_ISSET(1, &every)) {
        printf("skipped: needs CPUs 0 and 1\n");
        return 77;
    }
    setenv("HWLOC_XMLFILE", "tests/data/topo/gpu-on-node-1.xml", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    unsetenv("HWLOC_COMPONENTS");        /* the file has the PCI slots, to be read */
    setenv("FAKECUDA_NUMA_ID", "-1", 1); /* so that only hwloc knows */
    find_fake();
    RUN(the_cpu_computes_next_to_the_gpu);
    atomic_store(&elsewhere, 0);
    RUN(without_a_gpu_it_is_another_node);
    return 0;
}
