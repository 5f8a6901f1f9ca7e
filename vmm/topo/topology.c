/*
 * The topology from hwloc, reduced to nodes, processing units and caches, and the binding of
 * threads to them. It places no memory.
 */
#include "vmm/topo/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <numa.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

static enum mp_status fail_source(const struct mp_topology_source *source, const char *why)
{
    const char *name = "this machine";
    char quoted[MP_QUOTE_BYTES];

    mp_assert(why != NULL);
    if (source->xml_path != NULL)
        name = source->xml_path;
    else if (source->synthetic != NULL)
        name = source->synthetic;
    return mp_fail(MP_ERR_CONFIG, "E_TOPOLOGY", "cannot use the topology of '%s': %s",
                   mp_quote(quoted, name, strlen(name)), why);
}

/* Plugins that open drivers of their own, where PCI says where devices are; and one that asks each
 * processor from a thread bound to it, which waits for busy ones, what the system says as well. */
static const char *const unwanted_plugins[] = { "cuda",      "nvml", "opencl", "rsmi",
                                                "levelzero", "gl",   "x86" };

static enum mp_status open_hwloc(const struct mp_topology_source *source, hwloc_topology_t *hwloc_p)
{
    hwloc_topology_t hwloc;
    int result = 0;

    mp_assert(source->xml_path == NULL || source->synthetic == NULL);
    if (hwloc_topology_init(&hwloc) != 0)
        return mp_fail_no_memory("the topology", 0);
    /* Disallowed parts are kept, so that `info` can distinguish them from parts that do not exist.
     */
    hwloc_topology_set_flags(hwloc, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    if (!source->no_devices)
        hwloc_topology_set_io_types_filter(hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    for (size_t i = 0; i < MP_ARRAY_LEN(unwanted_plugins); i++)
        hwloc_topology_set_components(hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                      unwanted_plugins[i]);
    if (source->xml_path != NULL)
        result = hwloc_topology_set_xml(hwloc, source->xml_path);
    else if (source->synthetic != NULL)
        result = hwloc_topology_set_synthetic(hwloc, source->synthetic);
    if (result == 0)
        result = hwloc_topology_load(hwloc);
    if (result != 0) {
        const char *why = strerror(errno);

        hwloc_topology_destroy(hwloc);
        return fail_source(source, why);
    }
    *hwloc_p = hwloc;
    return MP_OK;
}

/* What control groups allow, less what the affinity mask of this thread forbids. */
static hwloc_bitmap_t allowed_cpus(hwloc_topology_t hwloc)
{
    hwloc_bitmap_t allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(hwloc));
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();

    if (allowed != NULL && bound != NULL && hwloc_topology_is_thissystem(hwloc) &&
        hwloc_get_cpubind(hwloc, bound, HWLOC_CPUBIND_THREAD) == 0 &&
        hwloc_bitmap_intersects(allowed, bound))
        hwloc_bitmap_and(allowed, allowed, bound);
    hwloc_bitmap_free(bound);
    return allowed;
}

static enum mp_status fill_nodes(struct mp_topology *topology)
{
    const int count = hwloc_get_nbobjs_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE);
    hwloc_const_nodeset_t allowed = hwloc_topology_get_allowed_nodeset(topology->hwloc);

    mp_assert(topology->nodes == NULL);
    /* hwloc always makes one, also on machines without NUMA. */
    if (count <= 0)
        return mp_fail(MP_ERR_DEVICE, "E_TOPOLOGY", "the topology has no memory node");
    topology->nodes = calloc((size_t)count, sizeof(*topology->nodes));
    if (topology->nodes == NULL)
        return mp_fail_no_memory("the nodes of the topology",
                                 (uint64_t)count * sizeof(*topology->nodes));
    topology->node_count = (unsigned)count;
    for (int i = 0; i < count; i++) {
        hwloc_obj_t object =
            hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, (unsigned)i);
        struct mp_topology_node *node = &topology->nodes[i];
        long long free_bytes = -1;

        node->os_index = object->os_index;
        node->memory_bytes = object->attr->numanode.local_memory;
        node->memory_allowed = hwloc_bitmap_isset(allowed, object->os_index) != 0;
        if (topology->live && numa_available() >= 0)
            numa_node_size64((int)object->os_index, &free_bytes);
        node->free_bytes = free_bytes >= 0 ? (uint64_t)free_bytes : node->memory_bytes;
    }
    return MP_OK;
}

/* The most local node: of those whose CPUs include the PU, the one with fewest. */
static unsigned node_of(const struct mp_topology *topology, hwloc_obj_t pu)
{
    unsigned best = 0;
    int best_weight = -1;

    mp_assert(topology->node_count > 0);
    for (unsigned i = 0; i < topology->node_count; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, i);
        const int weight = hwloc_bitmap_weight(node->cpuset);

        if (!hwloc_bitmap_isset(node->cpuset, pu->os_index))
            continue;
        if (best_weight < 0 || weight < best_weight) {
            best = i;
            best_weight = weight;
        }
    }
    return best;
}

static enum mp_status fill_pus(struct mp_topology *topology, hwloc_const_bitmap_t allowed)
{
    const int count = hwloc_get_nbobjs_by_type(topology->hwloc, HWLOC_OBJ_PU);
    hwloc_obj_t last_core = NULL;
    unsigned thread = 0;

    mp_assert(topology->pus == NULL && topology->node_count > 0);
    if (count <= 0)
        return mp_fail(MP_ERR_DEVICE, "E_TOPOLOGY", "the topology has no CPU");
    topology->machine_pu_count = (unsigned)count;
    topology->pus = calloc((size_t)count, sizeof(*topology->pus));
    if (topology->pus == NULL)
        return mp_fail_no_memory("the CPUs of the topology",
                                 (uint64_t)count * sizeof(*topology->pus));
    for (int i = 0; i < count; i++) {
        hwloc_obj_t object = hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_PU, (unsigned)i);
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology->hwloc, HWLOC_OBJ_CORE, object);
        struct mp_topology_pu *pu = &topology->pus[topology->pu_count];

        if (!hwloc_bitmap_isset(allowed, object->os_index))
            continue;
        /* Some virtual machines have no cores: then each PU is one. */
        if (core == NULL || core != last_core) {
            topology->core_count++;
            thread = 0;
        }
        last_core = core;
        pu->os_index = object->os_index;
        pu->node = node_of(topology, object);
        pu->core = topology->core_count - 1;
        pu->thread = thread++;
        topology->nodes[pu->node].pu_count++;
        topology->nodes[pu->node].core_count += pu->thread == 0;
        topology->pu_count++;
    }
    return MP_OK;
}

static void fill_caches(struct mp_topology *topology)
{
    static const hwloc_obj_type_t types[] = { HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE,
                                              HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE,
                                              HWLOC_OBJ_L5CACHE };

    for (size_t i = 0; i < MP_ARRAY_LEN(types); i++) {
        const int count = hwloc_get_nbobjs_by_type(topology->hwloc, types[i]);
        struct mp_topology_cache *cache = &topology->caches[topology->cache_count];
        hwloc_obj_t object;

        if (count <= 0)
            continue;
        object = hwloc_get_obj_by_type(topology->hwloc, types[i], 0);
        mp_assert(topology->cache_count < MP_ARRAY_LEN(topology->caches));
        cache->level = object->attr->cache.depth;
        cache->bytes = object->attr->cache.size;
        cache->line_bytes = object->attr->cache.linesize;
        cache->count = (unsigned)count;
        topology->cache_count++;
    }
}

static enum mp_status fill(struct mp_topology *topology, const struct mp_topology_source *source)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_PACKAGE, 0);
    const int packages = hwloc_get_nbobjs_by_type(topology->hwloc, HWLOC_OBJ_PACKAGE);
    const char *model = package != NULL ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    hwloc_bitmap_t allowed;
    enum mp_status status;

    topology->live = hwloc_topology_is_thissystem(topology->hwloc) != 0;
    topology->package_count = packages > 0 ? (unsigned)packages : 0;
    if (model != NULL)
        snprintf(topology->cpu_model, sizeof(topology->cpu_model), "%s", model);
    status = fill_nodes(topology);
    if (status != MP_OK)
        return status;
    allowed = allowed_cpus(topology->hwloc);
    if (allowed == NULL)
        return mp_fail_no_memory("the CPUs of the topology", 0);
    status = fill_pus(topology, allowed);
    hwloc_bitmap_free(allowed);
    if (status != MP_OK)
        return status;
    if (topology->pu_count == 0)
        return fail_source(source, "it has no CPU that may be used");
    mp_assert(topology->pu_count <= topology->machine_pu_count &&
              topology->core_count <= topology->pu_count);
    fill_caches(topology);
    return MP_OK;
}

enum mp_status mp_topology_load(const struct mp_topology_source *source,
                                struct mp_topology **topology_p)
{
    static const struct mp_topology_source this_machine = { .no_devices = false };
    struct mp_topology *topology;
    enum mp_status status;

    if (source == NULL)
        source = &this_machine;
    topology = calloc(1, sizeof(*topology));
    if (topology == NULL)
        return mp_fail_no_memory("the topology", sizeof(*topology));
    status = open_hwloc(source, &topology->hwloc);
    if (status == MP_OK)
        status = fill(topology, source);
    if (status != MP_OK) {
        mp_topology_destroy(topology);
        return status;
    }
    mp_assert(topology->node_count > 0);
    mp_assert(topology->pu_count > 0);
    *topology_p = topology;
    return MP_OK;
}

void mp_topology_destroy(struct mp_topology *topology)
{
    if (topology == NULL)
        return;
    if (topology->hwloc != NULL)
        hwloc_topology_destroy(topology->hwloc);
    free(topology->pus);
    free(topology->nodes);
    free(topology);
}

static bool better_node(const struct mp_topology_node *a, const struct mp_topology_node *b)
{
    if (a->memory_allowed != b->memory_allowed)
        return a->memory_allowed;
    if ((a->pu_count > 0) != (b->pu_count > 0))
        return a->pu_count > 0;
    if (a->free_bytes != b->free_bytes)
        return a->free_bytes > b->free_bytes;
    return a->core_count > b->core_count;
}

unsigned mp_topology_device_node(const struct mp_topology *topology)
{
    unsigned best = 0;

    for (unsigned i = 1; i < topology->node_count; i++) {
        if (better_node(&topology->nodes[i], &topology->nodes[best]))
            best = i;
    }
    mp_assert(best < topology->node_count);
    return best;
}

unsigned mp_topology_pci_node(const struct mp_topology *topology, const char *address)
{
    hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology->hwloc, address);
    hwloc_obj_t place =
        device != NULL ? hwloc_get_non_io_ancestor_obj(topology->hwloc, device) : NULL;

    mp_assert(address != NULL);
    /* At the root it is next to all nodes, which says nothing where there are several. */
    if (place == NULL || place->nodeset == NULL ||
        (topology->node_count > 1 && place->type == HWLOC_OBJ_MACHINE))
        return MP_TOPOLOGY_ANY_NODE;
    for (unsigned i = 0; i < topology->node_count; i++) {
        if (hwloc_bitmap_isset(place->nodeset, topology->nodes[i].os_index))
            return i;
    }
    return MP_TOPOLOGY_ANY_NODE;
}

unsigned mp_topology_near_node(const struct mp_topology *topology, const char *address,
                               int os_index)
{
    unsigned near = mp_topology_pci_node(topology, address);

    for (unsigned i = 0; i < topology->node_count && near == MP_TOPOLOGY_ANY_NODE; i++) {
        if (os_index >= 0 && topology->nodes[i].os_index == (unsigned)os_index)
            near = i;
    }
    mp_assert(near == MP_TOPOLOGY_ANY_NODE || near < topology->node_count);
    return near != MP_TOPOLOGY_ANY_NODE && topology->nodes[near].memory_allowed &&
                   topology->nodes[near].core_count > 0
               ? near
               : mp_topology_device_node(topology);
}

unsigned mp_topology_compute_pus(const struct mp_topology *topology, unsigned node, unsigned *pus,
                                 unsigned pus_max)
{
    unsigned count = 0, wanted = 0;

    mp_assert(pus != NULL || pus_max == 0);
    for (unsigned i = 0; i < topology->pu_count; i++)
        wanted += node == MP_TOPOLOGY_ANY_NODE || topology->pus[i].node == node;
    for (unsigned thread = 0; count < wanted; thread++) {
        for (unsigned i = 0; i < topology->pu_count; i++) {
            const struct mp_topology_pu *pu = &topology->pus[i];

            if (pu->thread != thread || (node != MP_TOPOLOGY_ANY_NODE && pu->node != node))
                continue;
            if (count < pus_max)
                pus[count] = pu->os_index;
            count++;
        }
    }
    return count;
}

/* Takes over `set`; NULL is refused like what the system refuses. */
static enum mp_status bind_thread(const struct mp_topology *topology, hwloc_bitmap_t set)
{
    int result = -1;

    mp_assert(topology->live);
    errno = EINVAL;
    if (set != NULL && !hwloc_bitmap_iszero(set))
        result = hwloc_set_cpubind(topology->hwloc, set, HWLOC_CPUBIND_THREAD);
    if (result != 0)
        mp_log_debug("topology", "cannot bind a thread: %s", strerror(errno));
    hwloc_bitmap_free(set);
    return result == 0 ? MP_OK : MP_ERR_UNSUPPORTED;
}

enum mp_status mp_topology_bind_thread(const struct mp_topology *topology, unsigned pu_os_index)
{
    hwloc_bitmap_t set;

    if (!topology->live)
        return MP_ERR_UNSUPPORTED;
    set = hwloc_bitmap_alloc();
    if (set != NULL)
        hwloc_bitmap_only(set, pu_os_index);
    return bind_thread(topology, set);
}

enum mp_status mp_topology_bind_thread_to_node(const struct mp_topology *topology, unsigned node)
{
    hwloc_bitmap_t set;

    if (!topology->live)
        return MP_ERR_UNSUPPORTED;
    set = hwloc_bitmap_alloc();
    if (set == NULL)
        return bind_thread(topology, NULL);
    for (unsigned i = 0; i < topology->pu_count; i++) {
        if (node == MP_TOPOLOGY_ANY_NODE || topology->pus[i].node == node)
            hwloc_bitmap_set(set, topology->pus[i].os_index);
    }
    return bind_thread(topology, set);
}
