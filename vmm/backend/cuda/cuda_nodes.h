#ifndef MP_CUDA_NODES_H
#define MP_CUDA_NODES_H

#include "vmm/backend/cuda/cuda_driver.h"

/*
 * The NUMA nodes to try for host memory of a device, best first: the node of its PCI address
 * according to hwloc, then the one that the driver reports. If neither is known: `preferred`, or 0
 * if that is negative. Returns their number, 1 or 2; they are different.
 */
#define MP_CUDA_NODES_MAX 2

unsigned mp_cuda_host_nodes(const struct mp_cuda_device *device, int preferred,
                            int nodes[MP_CUDA_NODES_MAX]);

#endif
