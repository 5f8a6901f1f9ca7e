#ifndef MP_CUDA_NODES_H
#define MP_CUDA_NODES_H

#include "vmm/backend/cuda/cuda_driver.h"

#define MP_CUDA_NODES_MAX 2

/*
 * NUMA nodes on which the host memory of a device is tried, best first: where hwloc sees its PCI
 * address, and where the driver says. Where neither knows, `preferred`, or 0 if that is negative.
 * Returns how many: 1 or 2, all different.
 */
unsigned mp_cuda_host_nodes(const struct mp_cuda_device *device, int preferred,
                            int nodes[MP_CUDA_NODES_MAX]);

#endif
