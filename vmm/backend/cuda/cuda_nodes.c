/* Chooses NUMA nodes for host memory of a CUDA device; see cuda_nodes.h. Allocates nothing. */
#include "vmm/backend/cuda/cuda_nodes.h"

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/topo/topology.h"

/* -1: hwloc does not know. */
static int node_of_pci(const char *pci)
{
    const struct mp_error before = *mp_error_last();
    struct mp_topology *topology = NULL;
    int node = -1;

    mp_assert(pci != NULL);
    if (mp_topology_load(NULL, &topology) == MP_OK) {
        const unsigned index = mp_topology_pci_node(topology, pci);

        if (index != MP_TOPOLOGY_ANY_NODE)
            node = (int)topology->nodes[index].os_index;
    }
    mp_topology_destroy(topology);
    mp_error_set(&before);
    return node;
}

unsigned mp_cuda_host_nodes(const struct mp_cuda_device *device, int preferred,
                            int nodes[MP_CUDA_NODES_MAX])
{
    const int pci = node_of_pci(device->pci), driver = device->host_numa_id;
    unsigned count = 0;

    if (pci >= 0)
        nodes[count++] = pci;
    if (driver >= 0 && driver != pci)
        nodes[count++] = driver;
    if (count == 0)
        nodes[count++] = preferred >= 0 ? preferred : 0;
    mp_assert(count >= 1 && count <= MP_CUDA_NODES_MAX);
    return count;
}
