/*
 * The probe's steps for memory: allocation, copies, reads over the link, and mapping.
 */
#include <string.h>

#include "engine/probe/probe_int.h"
#include "vmm/base/error.h"
#include "vmm/backend/cuda/cuda_nodes.h"

/* A word of a pattern that no zeroed or stale page has. */
#define PATTERN UINT64_C(0x9e3779b97f4a7c15)

static struct mp_cu_allocation allocation_of(int type, int id)
{
    struct mp_cu_allocation allocation;

    memset(&allocation, 0, sizeof(allocation));
    allocation.type = MP_CU_ALLOCATION_PINNED;
    allocation.location.type = type;
    allocation.location.id = id;
    return allocation;
}

/* Sum of the words of [src, src + bytes) by a kernel; scratch[0..blocks) is added up here. */
static enum mp_status sum_by_kernel(struct mp_bench *bench, mp_cu_ptr src, uint64_t bytes,
                                    uint64_t *sum_p)
{
    const struct mp_cuda_read params = {
        .src = src, .bytes = bytes, .sum = bench->scratch, .times = 1, .blocks = MP_PROBE_BLOCKS
    };
    const struct mp_cuda_grid grid = mp_cuda_kernel_grid(MP_CUDA_KERNEL_read, &params);
    uint64_t *sums = NULL, sum = 0;
    enum mp_status status =
        mp_gpu_alloc_host(bench->gpu, grid.x * sizeof(*sums), "sums", (void **)&sums);

    if (status == MP_OK)
        status = mp_gpu_launch(bench->gpu, bench->stream[0], MP_CUDA_KERNEL_read, &params);
    if (status == MP_OK)
        status = mp_gpu_download(bench->gpu, bench->stream[0], sums, bench->scratch,
                                 grid.x * sizeof(*sums));
    if (status == MP_OK)
        status = mp_gpu_finish(bench->gpu, bench->stream[0]);
    if (status != MP_OK)
        mp_bench_settle(bench);
    for (uint32_t i = 0; status == MP_OK && i < grid.x; i++)
        sum += sums[i];
    mp_gpu_free_host(bench->gpu, sums);
    *sum_p = sum;
    return status;
}

static bool undone(struct mp_bench *bench, mp_cu_result result)
{
    if (mp_cuda_is_sticky(result))
        mp_gpu_lose(bench->gpu);
    return result == MP_CU_SUCCESS;
}

/* What a step made by calls of its own; with a lost device it stays, and so does an address whose
 * mapping would not go. */
static void give_back(struct mp_bench *bench, mp_cu_ptr address, uint64_t bytes,
                      mp_cu_handle handle, bool mapped)
{
    const struct mp_cu_calls *call = bench->call;

    if (mapped && !mp_gpu_is_lost(bench->gpu))
        mapped = !undone(bench, call->unmap(address, bytes));
    if (handle != 0 && !mp_gpu_is_lost(bench->gpu))
        (void)undone(bench, call->release(handle));
    if (address != 0 && !mapped && !mp_gpu_is_lost(bench->gpu))
        (void)undone(bench, call->address_free(address, bytes));
}

/* Memory on a NUMA node: made, mapped, written by the CPU, and read by a kernel. */
static enum mp_status try_numa(struct mp_bench *bench, int node, uint64_t bytes, bool *right_p)
{
    const struct mp_cu_allocation allocation = allocation_of(MP_CU_LOCATION_HOST_NUMA, node);
    const struct mp_cu_calls *call = bench->call;
    struct mp_cu_access access[2];
    mp_cu_ptr address = 0;
    mp_cu_handle handle = 0;
    uint64_t sum = 0, expected = 0;
    bool mapped = false;
    enum mp_status status;

    memset(access, 0, sizeof(access));
    access[0].location.type = MP_CU_LOCATION_DEVICE;
    access[0].location.id = mp_gpu_device(bench->gpu)->id;
    access[1].location = allocation.location;
    access[0].flags = access[1].flags = MP_CU_ACCESS_READ_WRITE;
    status = mp_bench_check(bench, call->address_reserve(&address, bytes, bytes, 0, 0),
                            "cuMemAddressReserve");
    if (status == MP_OK)
        status = mp_bench_check(bench, call->create(&handle, bytes, &allocation, 0), "cuMemCreate");
    if (status == MP_OK)
        status = mp_bench_check(bench, call->map(address, bytes, 0, handle, 0), "cuMemMap");
    mapped = status == MP_OK;
    if (status == MP_OK)
        status =
            mp_bench_check(bench, call->set_access(address, bytes, access, 2), "cuMemSetAccess");
    for (uint64_t i = 0; status == MP_OK && i < bytes / 8; i++) {
        ((uint64_t *)(uintptr_t)address)[i] = i * PATTERN;
        expected += i * PATTERN;
    }
    if (status == MP_OK)
        status = sum_by_kernel(bench, address, bytes, &sum);
    *right_p = status == MP_OK && sum == expected;
    give_back(bench, address, bytes, handle, mapped);
    return status;
}

/* On the nodes and in the order in which the backend will try. */
enum mp_status mp_bench_host_numa(struct mp_bench *bench)
{
    int nodes[MP_CUDA_NODES_MAX];
    const unsigned count = mp_cuda_host_nodes(mp_gpu_device(bench->gpu), -1, nodes);
    enum mp_host_numa found = MP_HOST_NUMA_REFUSED;
    enum mp_status status = MP_OK;

    for (unsigned i = 0; i < count && found == MP_HOST_NUMA_REFUSED; i++) {
        const struct mp_cu_allocation allocation =
            allocation_of(MP_CU_LOCATION_HOST_NUMA, nodes[i]);
        size_t bytes = 0;
        bool right = false;

        status = mp_bench_check(
            bench, bench->call->granularity(&bytes, &allocation, MP_CU_GRANULARITY_RECOMMENDED),
            "cuMemGetAllocationGranularity");
        if (status == MP_OK)
            status = try_numa(bench, nodes[i], bytes, &right);
        if (status == MP_OK)
            found = right ? MP_HOST_NUMA_WORKS : MP_HOST_NUMA_BREAKS;
    }
    bench->host_handles = found == MP_HOST_NUMA_WORKS;
    mp_bench_put(bench, MP_PROBE_HOST_NUMA, found);
    if (found == MP_HOST_NUMA_BREAKS)
        return mp_fail(MP_ERR_DEVICE, "E_PROBE",
                       "the device reads something else than the CPU "
                       "wrote");
    return status;
}

/* GB/s of copying the host frame in chunks, over one or two streams. */
static enum mp_status copy_once(struct mp_bench *bench, uint64_t chunk, unsigned streams,
                                double *gbps_p, double *call_us_p)
{
    const mp_cu_ptr dst = (mp_cu_ptr)(uintptr_t)bench->device.alias;
    const char *src = bench->host.alias;
    const uint64_t chunks = bench->host.bytes / chunk;
    enum mp_status status = mp_bench_begin(bench);
    const double start_us = mp_bench_now_us(bench);
    double us = 0;

    for (uint64_t i = 0; i < chunks && status == MP_OK; i++)
        status = mp_gpu_upload(bench->gpu, bench->stream[i % streams], dst + i * chunk,
                               src + i * chunk, chunk);
    *call_us_p = (mp_bench_now_us(bench) - start_us) / (double)chunks;
    if (status == MP_OK)
        status = mp_bench_end(bench, &us);
    *gbps_p = (double)(chunks * chunk) / 1e3 / us;
    return status;
}

enum mp_status mp_bench_copies(struct mp_bench *bench)
{
    static const uint64_t chunk[4] = { 256u << 10, 1u << 20, 4u << 20, 16u << 20 };
    double gbps[MP_PROBE_RUNS], call_us[MP_PROBE_RUNS], ignored;
    enum mp_status status = copy_once(bench, bench->host.bytes, 1, &ignored, &ignored);

    for (unsigned i = 0; i < 8 && status == MP_OK; i++) {
        if (chunk[i / 2] > bench->host.bytes)
            break;
        for (unsigned r = 0; r < MP_PROBE_RUNS && status == MP_OK; r++)
            status = copy_once(bench, chunk[i / 2], 1 + i % 2, &gbps[r], &call_us[r]);
        if (status != MP_OK)
            break;
        mp_bench_put(bench, MP_PROBE_COPY_256K_1 + i, mp_bench_median(gbps, MP_PROBE_RUNS));
        if (i == 0)
            mp_bench_put(bench, MP_PROBE_COPY_CALL, mp_bench_median(call_us, MP_PROBE_RUNS));
    }
    return status;
}

/* A kernel that reads the frame at `src`. */
static enum mp_status queue_read(struct mp_bench *bench, mp_cu_ptr src)
{
    const struct mp_cuda_read params = { .src = src,
                                         .bytes = bench->host.bytes,
                                         .sum = bench->scratch,
                                         .times = 1,
                                         .blocks = MP_PROBE_BLOCKS };

    return mp_gpu_launch(bench->gpu, bench->stream[0], MP_CUDA_KERNEL_read, &params);
}

/* Half of the frame at `base` becomes the other half: as many bytes are read and written. */
static enum mp_status queue_copy(struct mp_bench *bench, mp_cu_ptr base)
{
    const uint64_t half = bench->device.bytes / 2;

    return mp_bench_check(bench,
                          bench->call->copy_on_device(base, base + half, half, bench->stream[0]),
                          "cuMemcpyDtoDAsync");
}

/* A frame takes far longer than a launch. */
#define FRAMES 2

/* GB/s of going through the frame at `frame`, FRAMES times in a batch. */
static enum mp_status time_batches(struct mp_bench *bench,
                                   enum mp_status (*queue)(struct mp_bench *bench, mp_cu_ptr frame),
                                   const void *frame, enum mp_probe_item item)
{
    const double bytes = (double)bench->host.bytes * FRAMES;
    double gbps[MP_PROBE_BATCHES], us = 0;

    for (unsigned r = 0; r < MP_PROBE_BATCHES; r++) {
        enum mp_status status = mp_bench_begin(bench);

        for (unsigned i = 0; i < FRAMES && status == MP_OK; i++)
            status = queue(bench, (mp_cu_ptr)(uintptr_t)frame);
        if (status == MP_OK)
            status = mp_bench_end(bench, &us);
        if (status != MP_OK)
            return status;
        gbps[r] = bytes / 1e3 / us;
    }
    mp_bench_put(bench, item, mp_bench_median(gbps, MP_PROBE_BATCHES));
    return MP_OK;
}

/* The frame does not fit into a cache, or the device is so small that it does not matter. */
enum mp_status mp_bench_reads(struct mp_bench *bench)
{
    enum mp_status status =
        time_batches(bench, queue_read, bench->device.alias, MP_PROBE_DEVICE_READ);

    if (status == MP_OK)
        status = time_batches(bench, queue_copy, bench->device.alias, MP_PROBE_DEVICE_COPY);
    if (status == MP_OK)
        status = time_batches(bench, queue_read, bench->host.alias, MP_PROBE_IN_PLACE_READ);
    return status;
}

/* us of map, setAccess and unmap, each. */
struct remap {
    double map[MP_PROBE_RUNS], access[MP_PROBE_RUNS], unmap[MP_PROBE_RUNS], all[MP_PROBE_RUNS];
    bool mapped; /* the last one is still so: it could not be unmapped */
};

/* With a kernel of 5 ms on the device if `busy`, which is over when a time is taken. */
static enum mp_status remap_once(struct mp_bench *bench, mp_cu_ptr address, uint64_t bytes,
                                 mp_cu_handle handle, bool busy, struct remap *times, unsigned run)
{
    const struct mp_cuda_spin spin = { .ns = 5000000 };
    struct mp_cu_access access;
    double at[4];
    enum mp_status status = MP_OK;

    memset(&access, 0, sizeof(access));
    access.location.type = MP_CU_LOCATION_DEVICE;
    access.location.id = mp_gpu_device(bench->gpu)->id;
    access.flags = MP_CU_ACCESS_READ_WRITE;
    if (busy)
        status = mp_gpu_launch(bench->gpu, bench->stream[0], MP_CUDA_KERNEL_spin, &spin);
    at[0] = mp_bench_now_us(bench);
    if (status == MP_OK)
        status = mp_bench_check(bench, bench->call->map(address, bytes, 0, handle, 0), "cuMemMap");
    if (status != MP_OK)
        return status;
    at[1] = mp_bench_now_us(bench);
    status = mp_bench_check(bench, bench->call->set_access(address, bytes, &access, 1),
                            "cuMemSetAccess");
    at[2] = mp_bench_now_us(bench);
    times->mapped =
        mp_gpu_is_lost(bench->gpu) ||
        mp_bench_check(bench, bench->call->unmap(address, bytes), "cuMemUnmap") != MP_OK;
    if (times->mapped)
        status = MP_ERR_DEVICE;
    at[3] = mp_bench_now_us(bench);
    times->map[run] = at[1] - at[0];
    times->access[run] = at[2] - at[1];
    times->unmap[run] = at[3] - at[2];
    times->all[run] = at[3] - at[0];
    return busy && status == MP_OK ? mp_gpu_finish(bench->gpu, bench->stream[0]) : status;
}

/* One handle of `bytes`, mapped and unmapped at a place of its own. */
static enum mp_status remap(struct mp_bench *bench, uint64_t bytes, bool busy, struct remap *times)
{
    const struct mp_cu_allocation allocation =
        allocation_of(MP_CU_LOCATION_DEVICE, mp_gpu_device(bench->gpu)->id);
    mp_cu_ptr address = 0;
    mp_cu_handle handle = 0;
    enum mp_status status = mp_bench_check(
        bench, bench->call->address_reserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");

    if (status == MP_OK)
        status = mp_bench_check(bench, bench->call->create(&handle, bytes, &allocation, 0),
                                "cuMemCreate");
    times->mapped = false;
    for (unsigned r = 0; r < MP_PROBE_RUNS && status == MP_OK; r++)
        status = remap_once(bench, address, bytes, handle, busy, times, r);
    /* Where that has failed once, it is not tried again. */
    give_back(bench, times->mapped ? 0 : address, bytes, handle, false);
    return status;
}

static const uint64_t frame_bytes[3] = { 2u << 20, 16u << 20, 64u << 20 };

enum mp_status mp_bench_maps(struct mp_bench *bench)
{
    struct remap times;
    enum mp_status status = MP_OK;

    for (unsigned i = 0; i < 3 && status == MP_OK; i++) {
        status = remap(bench, frame_bytes[i], false, &times);
        if (status != MP_OK)
            break;
        mp_bench_put(bench, MP_PROBE_MAP_2M + 3 * i, mp_bench_median(times.map, MP_PROBE_RUNS));
        mp_bench_put(bench, MP_PROBE_ACCESS_2M + 3 * i,
                     mp_bench_median(times.access, MP_PROBE_RUNS));
        mp_bench_put(bench, MP_PROBE_UNMAP_2M + 3 * i, mp_bench_median(times.unmap, MP_PROBE_RUNS));
    }
    return status;
}

enum mp_status mp_bench_maps_busy(struct mp_bench *bench)
{
    struct remap times;
    enum mp_status status = MP_OK;

    for (unsigned i = 0; i < 3 && status == MP_OK; i++) {
        status = remap(bench, frame_bytes[i], true, &times);
        if (status == MP_OK)
            mp_bench_put(bench, MP_PROBE_REMAP_BUSY_2M + i,
                         mp_bench_median(times.all, MP_PROBE_RUNS));
    }
    return status;
}
