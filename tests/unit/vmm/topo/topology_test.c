/* Recorded machines (tests/data/topo) for the choices, this machine for the acts. */
#include <jansson.h>
#include <limits.h>
#include <sched.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/topo/topology.h"

static struct mp_topology *load_xml(const char *name)
{
    struct mp_topology *topology = NULL;
    char path[128];
    const struct mp_topology_source source = { .xml_path = path };

    snprintf(path, sizeof(path), "tests/data/topo/%s", name);
    CHECK_EQ(mp_topology_load(&source, &topology), MP_OK);
    CHECK(!topology->live);
    return topology;
}

static void a_laptop_has_one_thread_per_core_first(void)
{
    static const unsigned expected[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    struct mp_topology *topology = load_xml("laptop.xml");
    unsigned pus[8] = { 0 };

    CHECK_EQ(topology->node_count, 1);
    CHECK_EQ(topology->nodes[0].memory_bytes, UINT64_C(16) << 30);
    CHECK_EQ(topology->nodes[0].free_bytes, UINT64_C(16) << 30);
    CHECK_EQ(topology->core_count, 4);
    CHECK_EQ(topology->pu_count, 8);
    CHECK_EQ(topology->package_count, 1);
    CHECK_EQ(topology->pus[1].os_index, 4); /* listed by core */
    CHECK_EQ(topology->pus[1].thread, 1);
    CHECK_EQ(topology->cache_count, 3);
    CHECK_EQ(topology->caches[2].level, 3);
    CHECK_EQ(topology->caches[2].bytes, 12 << 20);
    CHECK_EQ(mp_topology_device_node(topology), 0);
    CHECK_EQ(mp_topology_compute_pus(topology, 0, pus, 8), 8);
    CHECK_EQ(memcmp(pus, expected, sizeof(expected)), 0);
    mp_topology_destroy(topology);
}

static void two_sockets_keep_their_cores_apart(void)
{
    struct mp_topology *topology = load_xml("two-sockets.xml");
    unsigned pus[16], any[32];

    CHECK_EQ(topology->node_count, 2);
    CHECK_EQ(topology->core_count, 16);
    CHECK_EQ(topology->nodes[1].core_count, 8);
    CHECK_EQ(topology->nodes[1].pu_count, 16);
    CHECK_EQ(mp_topology_device_node(topology), 0);
    CHECK_EQ(mp_topology_compute_pus(topology, 1, pus, 16), 16);
    for (unsigned i = 0; i < 8; i++) {
        CHECK_EQ(pus[i], 16 + 2 * i);
        CHECK_EQ(pus[8 + i], 17 + 2 * i);
    }
    CHECK_EQ(mp_topology_compute_pus(topology, MP_TOPOLOGY_ANY_NODE, any, 32), 32);
    CHECK_EQ(any[15], 30);
    CHECK_EQ(any[16], 1);
    CHECK_EQ(mp_topology_compute_pus(topology, 1, NULL, 0), 16);
    CHECK_EQ(mp_topology_compute_pus(topology, 7, pus, 16), 0);
    mp_topology_destroy(topology);
}

static void the_node_with_most_memory_is_chosen(void)
{
    struct mp_topology *topology = load_xml("four-nodes.xml");
    unsigned pus[4];

    CHECK_EQ(topology->node_count, 4);
    CHECK_EQ(mp_topology_device_node(topology), 2);
    CHECK_EQ(mp_topology_compute_pus(topology, 2, pus, 4), 2);
    CHECK_EQ(pus[0], 4);
    CHECK_EQ(pus[1], 5);
    mp_topology_destroy(topology);
}

/* Of equal memory the node with more cores, of equal ones the first; one without CPUs where no
 * other may give memory. */
static void ties_go_to_cores_and_then_to_the_first(void)
{
    struct mp_topology_node nodes[] = {
        { .free_bytes = 5, .core_count = 1, .pu_count = 4, .memory_allowed = true },
        { .free_bytes = 5, .core_count = 2, .pu_count = 2, .memory_allowed = true },
        { .free_bytes = 5, .core_count = 2, .pu_count = 2, .memory_allowed = true },
        { .free_bytes = 9, .core_count = 0, .pu_count = 0, .memory_allowed = true },
    };
    const struct mp_topology topology = { .nodes = nodes, .node_count = 4 };

    CHECK_EQ(mp_topology_device_node(&topology), 1);
    for (unsigned i = 0; i < 3; i++)
        nodes[i].memory_allowed = false;
    CHECK_EQ(mp_topology_device_node(&topology), 3);
}

/* Of two nodes that are equally near, as fast and slow memory of one package, the first. */
static void cpus_belong_to_the_first_of_equal_nodes(void)
{
    const struct mp_topology_source source = {
        .synthetic = "package:1 [numa(memory=1073741824)] [numa(memory=2147483648)] core:2 pu:1"
    };
    struct mp_topology *topology = NULL;

    CHECK_EQ(mp_topology_load(&source, &topology), MP_OK);
    CHECK_EQ(topology->node_count, 2);
    CHECK_EQ(topology->pu_count, 2);
    CHECK_EQ(topology->pus[0].node, 0);
    CHECK_EQ(topology->pus[1].node, 0);
    mp_topology_destroy(topology);
}

static void a_node_without_cpus_is_not_chosen(void)
{
    struct mp_topology *topology = load_xml("memory-only-node.xml");

    CHECK_EQ(topology->node_count, 2);
    CHECK(topology->nodes[1].free_bytes > topology->nodes[0].free_bytes);
    CHECK_EQ(topology->nodes[1].pu_count, 0);
    CHECK_EQ(mp_topology_device_node(topology), 0);
    CHECK_EQ(mp_topology_compute_pus(topology, 1, NULL, 0), 0);
    mp_topology_destroy(topology);
}

static void only_what_is_allowed_is_offered(void)
{
    struct mp_topology *topology = load_xml("restricted.xml");
    unsigned pus[4];

    CHECK_EQ(topology->machine_pu_count, 16);
    CHECK_EQ(topology->pu_count, 2);
    CHECK_EQ(topology->core_count, 1);
    CHECK(!topology->nodes[0].memory_allowed);
    CHECK(topology->nodes[1].memory_allowed);
    CHECK_EQ(mp_topology_device_node(topology), 1);
    CHECK_EQ(mp_topology_compute_pus(topology, 1, pus, 4), 2);
    CHECK_EQ(pus[0], 10);
    CHECK_EQ(pus[1], 11);
    mp_topology_destroy(topology);
}

static void a_device_has_a_node_beside_it(void)
{
    struct mp_topology *topology = load_xml("gpu-on-node-1.xml");
    unsigned pus[2] = { 9, 9 };

    CHECK_EQ(topology->node_count, 2);
    CHECK_EQ(mp_topology_device_node(topology), 0); /* without a device: most memory */
    CHECK_EQ(mp_topology_pci_node(topology, "0000:1a:00.0"), 1);
    CHECK_EQ(mp_topology_pci_node(topology, "0000:1b:00.0"), MP_TOPOLOGY_ANY_NODE);
    CHECK_EQ(mp_topology_near_node(topology, "0000:1a:00.0", 0), 1); /* hwloc's word first */
    CHECK_EQ(mp_topology_near_node(topology, "0000:1b:00.0", 1), 1);
    CHECK_EQ(mp_topology_near_node(topology, "0000:1b:00.0", -1), 0);
    CHECK_EQ(mp_topology_near_node(topology, "0000:1b:00.0", 7), 0);
    CHECK_EQ(mp_topology_compute_pus(topology, 1, pus, 2), 1);
    CHECK_EQ(pus[0], 1);
    mp_topology_destroy(topology);

    topology = load_xml("memory-only-node.xml"); /* its node 1 has no CPUs */
    CHECK_EQ(mp_topology_near_node(topology, "0000:1a:00.0", 1), 0);
    mp_topology_destroy(topology);
}

static void a_synthetic_machine_can_be_described(void)
{
    const struct mp_topology_source source = { .synthetic = "package:1 core:3 pu:1" };
    struct mp_topology *topology = NULL;

    CHECK_EQ(mp_topology_load(&source, &topology), MP_OK);
    CHECK_EQ(topology->core_count, 3);
    CHECK_EQ(mp_topology_bind_thread(topology, 0), MP_ERR_UNSUPPORTED);
    CHECK_EQ(mp_topology_bind_thread_to_node(topology, 0), MP_ERR_UNSUPPORTED);
    mp_topology_destroy(topology);
    mp_topology_destroy(NULL);
}

/* restricted.xml with another set of allowed CPUs (ten characters); returns its path. */
static const char *machine_with_cpus(const char *mask)
{
    static const char key[] = "allowed_cpuset=\"";
    static char path[PATH_MAX + 32];
    char line[512];
    FILE *from, *to;

    snprintf(path, sizeof(path), "%s/cpus-%s.xml", test_tmpdir(), mask);
    from = fopen("tests/data/topo/restricted.xml", "r");
    to = fopen(path, "w");
    CHECK(from != NULL && to != NULL);
    while (fgets(line, sizeof(line), from) != NULL) {
        char *at = strstr(line, key);

        if (at != NULL)
            memcpy(at + strlen(key), mask, 10);
        fputs(line, to);
    }
    fclose(from);
    CHECK_EQ(fclose(to), 0);
    return path;
}

static void memory_that_is_not_allowed_is_not_chosen(void)
{
    const struct mp_topology_source source = { .xml_path = machine_with_cpus("0x00000c0f") };
    struct mp_topology *topology = NULL;

    CHECK_EQ(mp_topology_load(&source, &topology), MP_OK);
    CHECK_EQ(topology->nodes[0].core_count, 2);
    CHECK_EQ(topology->nodes[1].core_count, 1);
    CHECK(!topology->nodes[0].memory_allowed);
    CHECK_EQ(mp_topology_device_node(topology), 1);
    mp_topology_destroy(topology);
}

static void what_cannot_be_read_is_refused_by_name(void)
{
    const struct mp_topology_source sources[] = {
        { .xml_path = "tests/data/topo/none.xml" },
        { .xml_path = "tests/data/topo/README.md" },
        { .xml_path = machine_with_cpus("0x00000000") },
        { .synthetic = "package:x" },
    };
    struct mp_topology *topology = NULL;

    for (size_t i = 0; i < MP_ARRAY_LEN(sources); i++) {
        CHECK_EQ(mp_topology_load(&sources[i], &topology), MP_ERR_CONFIG);
        CHECK(topology == NULL);
        CHECK(strstr(mp_error_last()->text, "cannot use the topology of '") != NULL);
    }
    CHECK(strstr(mp_error_last()->text, "'package:x'") != NULL);
}

static void every_allocation_may_fail(void)
{
    const struct mp_topology_source source = { .synthetic = "package:1 core:3 pu:1" };
    uint64_t n;

    for (n = 0;; n++) {
        struct mp_topology *topology = NULL;
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_topology_load(&source, &topology);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            mp_topology_destroy(topology);
            break;
        }
        CHECK_EQ(status, MP_ERR_NO_MEMORY);
        CHECK(topology == NULL);
    }
    CHECK_EQ(n, 3);
}

/* What is on PCI changes nothing of the rest. */
static void devices_are_not_needed(void)
{
    const struct mp_topology_source source = { .no_devices = true };
    struct mp_topology *topology = NULL, *whole = NULL;

    CHECK_EQ(mp_topology_load(&source, &topology), MP_OK);
    CHECK_EQ(mp_topology_load(NULL, &whole), MP_OK);
    CHECK(topology->live);
    CHECK_EQ(topology->node_count, whole->node_count);
    CHECK_EQ(topology->pu_count, whole->pu_count);
    CHECK_EQ(topology->core_count, whole->core_count);
    CHECK_EQ(topology->cache_count, whole->cache_count);
    CHECK_EQ(mp_topology_device_node(topology), mp_topology_device_node(whole));
    CHECK_EQ(mp_topology_pci_node(topology, "0000:00:00.0"), MP_TOPOLOGY_ANY_NODE);
    mp_topology_destroy(topology);
    mp_topology_destroy(whole);
}

static void this_machine_binds(void)
{
    struct mp_topology *topology = NULL;
    cpu_set_t before, now;
    unsigned pus[4096];
    unsigned count;

    CHECK_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
    CHECK_EQ(mp_topology_load(NULL, &topology), MP_OK);
    CHECK(topology->live);
    CHECK_EQ(topology->pu_count, CPU_COUNT(&before));
    count = mp_topology_compute_pus(topology, MP_TOPOLOGY_ANY_NODE, pus, 4096);
    CHECK_EQ(count, topology->pu_count);
    for (unsigned i = 0; i < count; i++) {
        CHECK_EQ(mp_topology_bind_thread(topology, pus[i]), MP_OK);
        CHECK_EQ(sched_getcpu(), pus[i]);
    }
    CHECK_EQ(mp_topology_bind_thread(topology, 1u << 20), MP_ERR_UNSUPPORTED);
    CHECK_EQ(sched_getcpu(), pus[count - 1]);
    CHECK_EQ(mp_topology_bind_thread_to_node(topology, topology->node_count), MP_ERR_UNSUPPORTED);
    CHECK_EQ(mp_topology_bind_thread_to_node(topology, MP_TOPOLOGY_ANY_NODE), MP_OK);
    CHECK_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    CHECK(CPU_EQUAL(&now, &before));
    CHECK_EQ(mp_topology_bind_thread(topology, pus[count - 1]), MP_OK);
    mp_topology_destroy(topology);

    /* Bound to one CPU now, the process offers no more. */
    CHECK_EQ(mp_topology_load(NULL, &topology), MP_OK);
    CHECK_EQ(topology->pu_count, 1);
    CHECK_EQ(topology->pus[0].os_index, pus[count - 1]);
    mp_topology_destroy(topology);
    CHECK_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

static void a_description_has_all_nodes(void)
{
    struct mp_topology *topology = load_xml("restricted.xml");
    struct mp_json_out out;
    char text[8192];
    FILE *file = fmemopen(text, sizeof(text), "w");
    json_t *json;

    mp_topology_print(topology, file);
    fclose(file);
    CHECK(strstr(text, "cores    1 usable, 2 threads (of 16 in the machine), 2 packages\n") !=
          NULL);
    CHECK(strstr(text, "node 0   64.0 GiB, 64.0 GiB free, 0 cores, 0 threads, "
                       "memory not allowed\n") != NULL);
    CHECK(strstr(text, "1 cores, 2 threads, used for experts\n") != NULL);
    CHECK(strstr(text, "L3 cache 2 x 32MiB\n") != NULL);
    file = fmemopen(text, sizeof(text), "w");
    mp_json_begin(&out, file, true);
    mp_topology_json(topology, &out, NULL);
    mp_json_end(&out);
    fclose(file);
    json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    CHECK(json != NULL);
    CHECK_EQ(json_integer_value(json_object_get(json, "device_node")), 1);
    CHECK_EQ(json_array_size(json_object_get(json, "nodes")), 2);
    CHECK(json_is_null(json_object_get(json, "cpu_model")));
    json_decref(json);
    mp_topology_destroy(topology);
}

int main(void)
{
    RUN(a_laptop_has_one_thread_per_core_first);
    RUN(two_sockets_keep_their_cores_apart);
    RUN(the_node_with_most_memory_is_chosen);
    RUN(ties_go_to_cores_and_then_to_the_first);
    RUN(cpus_belong_to_the_first_of_equal_nodes);
    RUN(a_node_without_cpus_is_not_chosen);
    RUN(only_what_is_allowed_is_offered);
    RUN(memory_that_is_not_allowed_is_not_chosen);
    RUN(a_device_has_a_node_beside_it);
    RUN(a_synthetic_machine_can_be_described);
    RUN(what_cannot_be_read_is_refused_by_name);
    RUN(every_allocation_may_fail);
    RUN(devices_are_not_needed);
    RUN(this_machine_binds);
    RUN(a_description_has_all_nodes);
    return 0;
}
