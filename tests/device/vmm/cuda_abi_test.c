/*
 * Our declarations of the driver's interface against a toolkit's cuda.h, where the compiler finds
 * one (CPATH=/usr/local/cuda/include).
 */
#include "tests/support/test.h"
#include "vmm/backend/cuda/cuda_abi.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#define SAME(ours, theirs) CHECK_EQ((long)(ours), (long)(theirs))

static void numbers_are_the_drivers(void)
{
#define X(name, value) SAME(MP_CU_##name, CUDA_##name);
    MP_CU_RESULT_MAP(X)
#undef X
    SAME(MP_CU_ATTR_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    SAME(MP_CU_ATTR_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED);
    SAME(MP_CU_ATTR_CAN_MAP_HOST_MEMORY, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
    SAME(MP_CU_ATTR_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
    SAME(MP_CU_ATTR_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    SAME(MP_CU_ATTR_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    SAME(MP_CU_ATTR_VMM_SUPPORTED, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    SAME(MP_CU_ATTR_HOST_NUMA_ID, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    SAME(MP_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
    SAME(MP_CU_LOCATION_HOST, CU_MEM_LOCATION_TYPE_HOST);
    SAME(MP_CU_LOCATION_HOST_NUMA, CU_MEM_LOCATION_TYPE_HOST_NUMA);
    SAME(MP_CU_LOCATION_HOST_NUMA_CURRENT, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
    SAME(MP_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
    SAME(MP_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    SAME(MP_CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    SAME(MP_CU_ACCESS_NONE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    SAME(MP_CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
    SAME(MP_CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    SAME(MP_CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
    SAME(MP_CU_HOST_DEVICE_MAP, CU_MEMHOSTALLOC_DEVICEMAP);
    SAME(MP_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
    SAME(MP_CU_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC);
    SAME(MP_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
    SAME(MP_CU_LAUNCH_PROGRAMMATIC, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
}

static void structs_have_the_drivers_layout(void)
{
    SAME(sizeof(mp_cu_ptr), sizeof(CUdeviceptr));
    SAME(sizeof(mp_cu_handle), sizeof(CUmemGenericAllocationHandle));
    SAME(sizeof(struct mp_cu_uuid), sizeof(CUuuid));
    SAME(sizeof(struct mp_cu_location), sizeof(CUmemLocation));
    SAME(offsetof(struct mp_cu_location, id), offsetof(CUmemLocation, id));
    SAME(sizeof(struct mp_cu_access), sizeof(CUmemAccessDesc));
    SAME(offsetof(struct mp_cu_access, flags), offsetof(CUmemAccessDesc, flags));
    SAME(sizeof(struct mp_cu_allocation), sizeof(CUmemAllocationProp));
    SAME(offsetof(struct mp_cu_allocation, handle_types),
         offsetof(CUmemAllocationProp, requestedHandleTypes));
    SAME(offsetof(struct mp_cu_allocation, location), offsetof(CUmemAllocationProp, location));
    SAME(offsetof(struct mp_cu_allocation, flags), offsetof(CUmemAllocationProp, allocFlags));
    SAME(sizeof(struct mp_cu_launch_attribute), sizeof(CUlaunchAttribute));
    SAME(offsetof(struct mp_cu_launch_attribute, value), offsetof(CUlaunchAttribute, value));
    SAME(sizeof(struct mp_cu_launch_config), sizeof(CUlaunchConfig));
    SAME(offsetof(struct mp_cu_launch_config, stream), offsetof(CUlaunchConfig, hStream));
    SAME(offsetof(struct mp_cu_launch_config, attributes), offsetof(CUlaunchConfig, attrs));
    SAME(offsetof(struct mp_cu_launch_config, attribute_count), offsetof(CUlaunchConfig, numAttrs));
}

int main(void)
{
    RUN(numbers_are_the_drivers);
    RUN(structs_have_the_drivers_layout);
    return 0;
}
#else
int main(void)
{
    printf("skipped: no cuda.h; set CPATH to a toolkit's include folder when building\n");
    return 77;
}
#endif
