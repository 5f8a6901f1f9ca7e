#ifndef MP_CUDA_NODES_H
#define MP_CUDA_NODES_H

#include "vmm/backend/cuda/cuda_driver.h"

/*
 * On which NUMA nodes host memory for a device is tried, best first: the node at which hwloc sees
 * its PCI address, then the one that the driver names. Where neither knows, `preferred`, or 0 if
 * that is negative. Returns how many: 1 or 2, all different.
 */
#define MP_CUDA_NODES_MAX 2

unsigned mp_cuda_host_nodes(const struct mp_cuda_device *device, int preferred,
                            int nodes[MP_CUDA_NODES_MAX]);

#endif
