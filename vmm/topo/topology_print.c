/* The topology as text and as JSON. */
#include "vmm/topo/topology.h"

#include <inttypes.h>

#include "vmm/base/assert.h"
#include "vmm/options/opt.h"

static double gib(uint64_t bytes)
{
    return (double)bytes / (1 << 30);
}

void mp_topology_print(const struct mp_topology *topology, FILE *out)
{
    char size[32];

    mp_assert(topology->node_count > 0);
    if (topology->cpu_model[0] != '\0')
        fprintf(out, "cpu      %s\n", topology->cpu_model);
    fprintf(out, "cores    %u usable, %u threads", topology->core_count, topology->pu_count);
    if (topology->pu_count < topology->machine_pu_count)
        fprintf(out, " (of %u in the machine)", topology->machine_pu_count);
    fprintf(out, ", %u package%s\n", topology->package_count,
            topology->package_count == 1 ? "" : "s");
    for (unsigned i = 0; i < topology->cache_count; i++) {
        const struct mp_topology_cache *cache = &topology->caches[i];

        fprintf(out, "L%u cache %u x %s\n", cache->level, cache->count,
                mp_opt_format_bytes(cache->bytes, size));
    }
    for (unsigned i = 0; i < topology->node_count; i++) {
        const struct mp_topology_node *node = &topology->nodes[i];

        fprintf(out, "node %-3u %.1f GiB, %.1f GiB free, %u cores, %u threads%s%s\n",
                node->os_index, gib(node->memory_bytes), gib(node->free_bytes), node->core_count,
                node->pu_count, node->memory_allowed ? "" : ", memory not allowed",
                i == mp_topology_device_node(topology) ? ", used for experts" : "");
    }
}

static void nodes_json(const struct mp_topology *topology, struct mp_json_out *json)
{
    mp_json_array_begin(json, "nodes");
    for (unsigned i = 0; i < topology->node_count; i++) {
        const struct mp_topology_node *node = &topology->nodes[i];

        mp_json_object_begin(json, NULL);
        mp_json_put_u64(json, "os_index", node->os_index);
        mp_json_put_u64(json, "memory_bytes", node->memory_bytes);
        mp_json_put_u64(json, "free_bytes", node->free_bytes);
        mp_json_put_u64(json, "cores", node->core_count);
        mp_json_put_u64(json, "threads", node->pu_count);
        mp_json_put_bool(json, "memory_allowed", node->memory_allowed);
        mp_json_object_end(json);
    }
    mp_json_array_end(json);
}

static void caches_json(const struct mp_topology *topology, struct mp_json_out *json)
{
    mp_json_array_begin(json, "caches");
    for (unsigned i = 0; i < topology->cache_count; i++) {
        const struct mp_topology_cache *cache = &topology->caches[i];

        mp_json_object_begin(json, NULL);
        mp_json_put_u64(json, "level", cache->level);
        mp_json_put_u64(json, "bytes", cache->bytes);
        mp_json_put_u64(json, "count", cache->count);
        mp_json_put_u64(json, "line_bytes", cache->line_bytes);
        mp_json_object_end(json);
    }
    mp_json_array_end(json);
}

void mp_topology_json(const struct mp_topology *topology, struct mp_json_out *json, const char *key)
{
    mp_assert(topology->node_count > 0);
    mp_json_object_begin(json, key);
    mp_json_put_string(json, "cpu_model",
                       topology->cpu_model[0] != '\0' ? topology->cpu_model : NULL);
    mp_json_put_bool(json, "live", topology->live);
    mp_json_put_u64(json, "packages", topology->package_count);
    mp_json_put_u64(json, "cores", topology->core_count);
    mp_json_put_u64(json, "threads", topology->pu_count);
    mp_json_put_u64(json, "machine_threads", topology->machine_pu_count);
    mp_json_put_u64(json, "device_node",
                    topology->nodes[mp_topology_device_node(topology)].os_index);
    nodes_json(topology, json);
    caches_json(topology, json);
    mp_json_object_end(json);
}
