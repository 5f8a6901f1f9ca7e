#ifndef MP_PROBE_H
#define MP_PROBE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/cpu/types.h"
#include "policy/policy.h"
#include "vmm/base/status.h"
#include "vmm/output/json_out.h"

/*
 * Measures this machine's GPU, link and CPU, because no rule of thumb covers the differences
 * between machines: for assign policies, for the choice of addressing, and for people.
 *
 * Measurements run in a child process, because some drivers crash in calls that are made here
 * (memory on a NUMA node, changes of page tables while kernels run): a crash or hang fails its step
 * and is reported, and the other steps are still measured. Results are cached in a file per device
 * and driver, in the user's cache directory.
 */

/* X(NAME, key, unit, what). Not measured: NaN. */
#define MP_PROBE_MAP(X)                                                                     \
    X(HOST_NUMA, "host_numa", "", "memory on the GPU's NUMA node: enum mp_host_numa")       \
    X(COPY_256K_1, "copy_256k_1", "GB/s", "host to device, chunks of 256 KiB, 1 stream")    \
    X(COPY_256K_2, "copy_256k_2", "GB/s", "2 streams")                                      \
    X(COPY_1M_1, "copy_1m_1", "GB/s", "1 MiB, 1 stream")                                    \
    X(COPY_1M_2, "copy_1m_2", "GB/s", "2 streams")                                          \
    X(COPY_4M_1, "copy_4m_1", "GB/s", "4 MiB, 1 stream")                                    \
    X(COPY_4M_2, "copy_4m_2", "GB/s", "2 streams")                                          \
    X(COPY_16M_1, "copy_16m_1", "GB/s", "16 MiB, 1 stream")                                 \
    X(COPY_16M_2, "copy_16m_2", "GB/s", "2 streams")                                        \
    X(COPY_CALL, "copy_call", "us", "host time to queue one copy")                          \
    X(DEVICE_READ, "device_read", "GB/s", "a kernel reads device memory")                   \
    X(DEVICE_COPY, "device_copy", "GB/s", "device to device, bytes read and written")       \
    X(IN_PLACE_READ, "in_place_read", "GB/s", "a kernel reads host memory over the link")   \
    X(MAP_2M, "map_2m", "us", "cuMemMap of 2 MiB, device idle")                             \
    X(ACCESS_2M, "access_2m", "us", "cuMemSetAccess of it")                                 \
    X(UNMAP_2M, "unmap_2m", "us", "cuMemUnmap of it")                                       \
    X(MAP_16M, "map_16m", "us", "the same of 16 MiB")                                       \
    X(ACCESS_16M, "access_16m", "us", "")                                                   \
    X(UNMAP_16M, "unmap_16m", "us", "")                                                     \
    X(MAP_64M, "map_64m", "us", "the same of 64 MiB")                                       \
    X(ACCESS_64M, "access_64m", "us", "")                                                   \
    X(UNMAP_64M, "unmap_64m", "us", "")                                                     \
    X(REMAP_BUSY_2M, "remap_busy_2m", "us", "all three of 2 MiB while a kernel runs")       \
    X(REMAP_BUSY_16M, "remap_busy_16m", "us", "of 16 MiB")                                  \
    X(REMAP_BUSY_64M, "remap_busy_64m", "us", "of 64 MiB")                                  \
    X(LAUNCH, "launch", "us", "a kernel behind others on a stream")                         \
    X(GRAPH_LAUNCH, "graph_launch", "us", "a graph of 32 kernels, per kernel")              \
    X(HANDOFF, "handoff", "us", "queue a kernel, wait until the host knows that it ended")  \
    X(EXPERT_1, "expert_1", "us", "a resident expert of a list, 1 token")                   \
    X(EXPERT_8, "expert_8", "us", "8 tokens")                                               \
    X(IN_PLACE_1, "in_place_1", "us", "an expert in host memory, 1 token, by the device")   \
    X(IN_PLACE_8, "in_place_8", "us", "8 tokens")                                           \
    X(CPU_1, "cpu_1", "us", "an expert in host memory, 1 token, by all threads of the CPU") \
    X(CPU_8, "cpu_8", "us", "8 tokens")

enum mp_probe_item {
#define X(NAME, key, unit, what) MP_PROBE_##NAME,
    MP_PROBE_MAP(X)
#undef X
        MP_PROBE_COUNT
};

/* Result of allocating memory by handle on the device's NUMA nodes. If the driver refuses it, it is
 * safe to try again in another process; if the driver crashes, or the device reads other bytes than
 * the CPU wrote, it must not be used. */
enum mp_host_numa { MP_HOST_NUMA_REFUSED, MP_HOST_NUMA_WORKS, MP_HOST_NUMA_BREAKS };

/* The experts that are timed: their shape, the types of gate and up, and of down, and how many
 * lists have, on a device, as a layer's list in a step of one token has. hidden 0: none. */
struct mp_probe_shape {
    uint32_t hidden, channels, experts;
    enum mp_wtype gate, down;
};

/* Are rows whole blocks of types that devices have kernels for? */
bool mp_probe_shape_fits(const struct mp_probe_shape *shape);

/* Bytes of an expert's gate or up, of its down, and of all three. */
uint64_t mp_probe_gate_bytes(const struct mp_probe_shape *shape);
uint64_t mp_probe_down_bytes(const struct mp_probe_shape *shape);
uint64_t mp_probe_expert_bytes(const struct mp_probe_shape *shape);

/* "GATE,DOWN", or one name for both; false: no such types, or they do not fit the shape. */
bool mp_probe_parse_types(const char *text, struct mp_probe_shape *shape);

struct mp_probe {
    char device[128], uuid[48];
    int driver; /* 13000 is 13.0 */
    struct mp_probe_shape shape;
    double value[MP_PROBE_COUNT];
    char trouble[512]; /* steps that crashed, hung or failed, one sentence each; "" */
};

/*
 * The child's part: measure on this process's driver and print one line per result on `out`,
 * flushed: "begin STEP", "KEY VALUE", "failed STEP: why". Steps named in `skip` (comma-separated)
 * are skipped; "rest" skips all but the first, host-numa. MP_ERR_UNSUPPORTED, MP_ERR_CONFIG: there
 * is no such device.
 */
enum mp_status mp_probe_measure(unsigned ordinal, const struct mp_probe_shape *shape,
                                const char *skip, FILE *out) MP_MUST_CHECK;

/*
 * Measure in children: `argv0` is the program that is run as `argv0 probe --child ...`. Takes some
 * seconds; a step without progress for 30 s is aborted. MP_ERR_UNSUPPORTED E_CUDA_OFF: no driver or
 * device. MP_ERR_DEVICE E_PROBE: not even the first step completed.
 */
enum mp_status mp_probe_run(const char *argv0, unsigned ordinal, const struct mp_probe_shape *shape,
                            struct mp_probe *probe) MP_MUST_CHECK;

/*
 * The same for MP_PROBE_HOST_NUMA alone, with shape 0 x 0. Takes about as long as opening the
 * device.
 */
enum mp_status mp_probe_run_host_numa(const char *argv0, unsigned ordinal,
                                      struct mp_probe *probe) MP_MUST_CHECK;

/*
 * The file of this device, driver and shape in the directory that the setting names: "auto" is
 * .cache/moepager in the user's home (made if it is missing), "none" is none, all else is a path.
 * It is only a cache: false, without an error, if there is none or it cannot be read or written.
 * The result of MP_PROBE_HOST_NUMA is also stored for shape 0 x 0.
 */
bool mp_probe_load(const char *cache_dir, const char *uuid, int driver,
                   const struct mp_probe_shape *shape, struct mp_probe *probe);
bool mp_probe_store(const char *cache_dir, const struct mp_probe *probe);

void mp_probe_print(const struct mp_probe *probe, FILE *out);
void mp_probe_json(const struct mp_probe *probe, struct mp_json_out *json);

/* Costs for policies of all executors of engine/gpu/executors.h, for experts of `expert_bytes`,
 * which are loaded in `slices` units, one copy behind the other; costs that were not measured are
 * 0, unknown. */
void mp_probe_costs(const struct mp_probe *probe, uint64_t expert_bytes, uint32_t slices,
                    struct mp_costs *costs);

/*
 * The time of moving a unit's frame from one address to another, as windows do for each load, as a
 * share of the time of copying the unit; the slower of idle and busy. NaN: not measured.
 */
double mp_probe_remap_share(const struct mp_probe *probe, uint64_t unit_bytes);

const char *mp_probe_key(enum mp_probe_item item);
/* MP_PROBE_COUNT: there is none of this key. */
enum mp_probe_item mp_probe_find(const char *key, size_t bytes);

#endif
