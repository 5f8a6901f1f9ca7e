#ifndef MP_TOPOLOGY_H
#define MP_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "vmm/base/status.h"
#include "vmm/output/json_out.h"

/*
 * The machine's topology as far as placement needs it: NUMA nodes with their memory, cores,
 * hardware threads (PUs) and caches; and binding of threads.
 *
 * Only resources that this process may use are listed: control groups and the affinity mask at load
 * time are respected. Load it once, before any thread is bound. A topology can also come from an
 * XML file (lstopo --output-format xml) or from a synthetic description, for tests and for studying
 * other machines; then nothing can be bound. Limits of the process are never changed.
 *
 * Thread safety: a loaded topology does not change; binding affects the calling thread only.
 */
struct hwloc_topology;

struct mp_topology_node {
    unsigned os_index;     /* the kernel's number */
    uint64_t memory_bytes; /* 0 when the source does not say */
    uint64_t free_bytes;   /* at load time; memory_bytes when not live */
    unsigned core_count;   /* cores of this node with at least one PU we may use */
    unsigned pu_count;     /* PUs of this node that we may use */
    bool memory_allowed;   /* we may take its memory */
};

struct mp_topology_pu {
    unsigned os_index; /* the kernel's number */
    unsigned node;     /* index into `nodes` */
    unsigned core;     /* 0-based over all cores that we may use */
    unsigned thread;   /* 0 for the first hardware thread of its core that we may use */
};

struct mp_topology_cache {
    unsigned level;
    uint64_t bytes; /* of each */
    unsigned count;
    unsigned line_bytes;
};

#define MP_TOPOLOGY_CACHES_MAX 6
#define MP_TOPOLOGY_ANY_NODE UINT32_MAX

struct mp_topology {
    struct mp_topology_node *nodes; /* at least one; a machine without NUMA has one */
    unsigned node_count;
    struct mp_topology_pu *pus; /* that we may use, by core, then thread; at least one */
    unsigned pu_count;
    unsigned core_count; /* that we may use */
    unsigned package_count;
    unsigned machine_pu_count;                               /* including what we may not use */
    struct mp_topology_cache caches[MP_TOPOLOGY_CACHES_MAX]; /* data and unified */
    unsigned cache_count;
    char cpu_model[128]; /* empty when unknown */
    bool live;           /* this machine: threads can be bound */
    struct hwloc_topology *hwloc;
};

/* At most one of the names is set; neither: this machine. */
struct mp_topology_source {
    const char *xml_path;
    const char *synthetic; /* hwloc's notation: "package:2 core:8 pu:2" */
    bool no_devices;       /* do not scan the PCI bus, which takes longer than everything else */
};

/*
 * `source` may be NULL. MP_ERR_CONFIG with a text for a description that cannot be read or has no
 * CPU that may be used; MP_ERR_NO_MEMORY.
 */
enum mp_status mp_topology_load(const struct mp_topology_source *source,
                                struct mp_topology **topology_p) MP_MUST_CHECK;

void mp_topology_destroy(struct mp_topology *topology);

/*
 * The node for the host backend's device tier: of the nodes whose memory is allowed and that have
 * CPUs we may use, the one with most free memory; then with most cores; then the first. A node
 * without CPUs is taken only if no other may be. Returns an index into `nodes`.
 */
unsigned mp_topology_device_node(const struct mp_topology *topology);

/*
 * The node next to the PCI device at this address ("0000:17:00.0"): an index into `nodes`, or
 * MP_TOPOLOGY_ANY_NODE where hwloc does not know the device or its place, or did not look. Of
 * several nodes the first.
 */
unsigned mp_topology_pci_node(const struct mp_topology *topology, const char *address);

/*
 * The node for threads and memory that work with the device at this address: that of
 * mp_topology_pci_node(), or, where hwloc does not know, the one that the kernel gives the number
 * `os_index` (-1: not known either). If that node has no CPU or memory that may be used, or neither
 * is known: mp_topology_device_node().
 */
unsigned mp_topology_near_node(const struct mp_topology *topology, const char *address,
                               int os_index);

/*
 * The kernel's numbers of the PUs for compute threads on `node` (or MP_TOPOLOGY_ANY_NODE), in the
 * order in which to use them: one per core first, further hardware threads of the same cores
 * last. Writes at most `pus_max`, returns how many there are.
 */
unsigned mp_topology_compute_pus(const struct mp_topology *topology, unsigned node, unsigned *pus,
                                 unsigned pus_max);

/*
 * Bind the calling thread to one PU. MP_ERR_UNSUPPORTED, without text, where the system refuses or
 * the topology is not live: the thread then stays where it was.
 */
enum mp_status mp_topology_bind_thread(const struct mp_topology *topology,
                                       unsigned pu_os_index) MP_MUST_CHECK;

/* As above, to all PUs of a node (index into `nodes`, or any) that we may use. */
enum mp_status mp_topology_bind_thread_to_node(const struct mp_topology *topology,
                                               unsigned node) MP_MUST_CHECK;

/* A few lines for `moepager info`. */
void mp_topology_print(const struct mp_topology *topology, FILE *out);

void mp_topology_json(const struct mp_topology *topology, struct mp_json_out *json,
                      const char *key);

#endif
