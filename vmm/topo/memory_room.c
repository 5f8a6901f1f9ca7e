/*
 * How much more memory this process may allocate: from /proc/meminfo, its control groups and its
 * limits. Reads only text files below `root`.
 */
#include "vmm/topo/memory_room.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"

#define LINE_BYTES (2 * PATH_MAX + 512)

/* What a program that is not ours keeps for itself besides: one part of the room. */
#define PROGRAM_PARTS 8

/* Where one hierarchy keeps its numbers. Version 1 has no `high`. */
struct files {
    const char *limit;
    const char *high;
    const char *usage;
    const char *idle_key; /* in memory.stat */
};

static const struct files v1_files = { "memory.limit_in_bytes", NULL, "memory.usage_in_bytes",
                                       "total_inactive_file" };
static const struct files v2_files = { "memory.max", "memory.high", "memory.current",
                                       "inactive_file" };

static FILE *open_at(const char *root, const char *path)
{
    char full[2 * PATH_MAX];

    mp_assert(root != NULL && path != NULL);
    if ((size_t)snprintf(full, sizeof(full), "%s%s", root, path) >= sizeof(full))
        return NULL;
    return fopen(full, "re");
}

/* The number in a file of one; UINT64_MAX for "max" and for what cannot be read. */
static uint64_t read_number(const char *directory, const char *name)
{
    char path[2 * PATH_MAX];
    uint64_t value = UINT64_MAX;
    FILE *file;

    mp_assert(directory != NULL && name != NULL);
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", directory, name) >= sizeof(path))
        return UINT64_MAX;
    file = fopen(path, "re");
    if (file == NULL)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    fclose(file);
    return value;
}

/* The number after `key` in lines of "key number"; 0 if there is none. */
static uint64_t read_key(FILE *file, const char *key)
{
    char line[256];
    uint64_t value = 0;
    const size_t length = strlen(key);

    mp_assert(key[0] != '\0');
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, length) == 0 && (line[length] == ' ' || line[length] == ':')) {
            value = strtoull(line + length + 1, NULL, 10);
            break;
        }
    }
    if (file != NULL)
        fclose(file);
    return value;
}

static void take_group(const char *directory, const struct files *files,
                       struct mp_memory_room *room)
{
    uint64_t limit = read_number(directory, files->limit);
    const uint64_t high = files->high != NULL ? read_number(directory, files->high) : UINT64_MAX;
    uint64_t usage = read_number(directory, files->usage);
    uint64_t idle;

    mp_assert(room->room_bytes <= room->available_bytes);
    if (high < limit)
        limit = high; /* beyond it the group is throttled, which is as bad */
    if (limit > INT64_MAX / 2)
        return; /* version 1 writes "no limit" as a number near 2^63 */
    if (limit < room->limit_bytes)
        room->limit_bytes = limit;
    if (usage == UINT64_MAX)
        usage = 0;
    idle = read_key(open_at(directory, "/memory.stat"), files->idle_key);
    usage -= idle < usage ? idle : usage;
    if (usage >= limit)
        room->room_bytes = 0;
    else if (limit - usage < room->room_bytes)
        room->room_bytes = limit - usage;
}

/* The path of this process in one hierarchy: the memory controller of version 1, or version 2. */
static bool own_path(const char *root, bool v2, char path[PATH_MAX])
{
    FILE *file = open_at(root, "/proc/self/cgroup");
    char line[LINE_BYTES];
    bool found = false;

    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL) {
        char *controllers = strchr(line, ':');
        char *at = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

        if (at == NULL)
            continue;
        *at++ = '\0';
        at[strcspn(at, "\n")] = '\0';
        if (v2) {
            found = controllers[1] == '\0';
        } else {
            char *rest = NULL;

            for (char *name = strtok_r(controllers + 1, ",", &rest); name != NULL;
                 name = strtok_r(NULL, ",", &rest))
                found = found || strcmp(name, "memory") == 0;
        }
        if (found)
            found = (size_t)snprintf(path, PATH_MAX, "%s", at) < PATH_MAX;
    }
    if (file != NULL)
        fclose(file);
    return found;
}

/* Where that hierarchy is mounted, and which group stands at the mount point. */
static bool find_mount(const char *root, bool v2, char group[PATH_MAX], char mount[PATH_MAX])
{
    FILE *file = open_at(root, "/proc/self/mountinfo");
    char line[LINE_BYTES], type[64], options[1024];
    bool found = false;

    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL) {
        const char *dash = strstr(line, " - ");

        if (dash == NULL || sscanf(line, "%*s %*s %*s %4095s %4095s", group, mount) != 2 ||
            sscanf(dash, " - %63s %*s %1023s", type, options) != 2)
            continue;
        if (v2)
            found = strcmp(type, "cgroup2") == 0;
        else
            found = strcmp(type, "cgroup") == 0 && strstr(options, "memory") != NULL;
    }
    if (file != NULL)
        fclose(file);
    return found;
}

/* Is `path` that of the group, of `bytes` letters, or of one below it? */
static bool is_below(const char *path, const char *group, size_t bytes)
{
    mp_assert(bytes <= strlen(group));
    return strncmp(path, group, bytes) == 0 &&
           (bytes == 0 || path[bytes] == '/' || path[bytes] == '\0') && strstr(path, "/..") == NULL;
}

/* The group of this process and all above it that can be seen: each may set a limit. */
static void take_hierarchy(const char *root, bool v2, struct mp_memory_room *room)
{
    char path[PATH_MAX], group[PATH_MAX], mount[PATH_MAX], directory[2 * PATH_MAX];
    size_t top, prefix;

    if (!own_path(root, v2, path) || !find_mount(root, v2, group, mount))
        return;
    prefix = strcmp(group, "/") == 0 ? 0 : strlen(group);
    top = strlen(root) + strlen(mount);
    /* In a container the path may be the host's: then the mount point is the own group. */
    if (!is_below(path, group, prefix))
        path[prefix = 0] = '\0';
    mp_assert(prefix <= strlen(path));
    if ((size_t)snprintf(directory, sizeof(directory), "%s%s%s", root, mount, path + prefix) >=
        sizeof(directory))
        return;
    for (;;) {
        char *slash;

        take_group(directory, v2 ? &v2_files : &v1_files, room);
        slash = strrchr(directory, '/');
        if (slash == NULL || (size_t)(slash - directory) < top)
            return;
        *slash = '\0';
    }
}

/* What RLIMIT_AS leaves of addresses to this process. */
static uint64_t read_addresses(const char *root)
{
    static const char key[] = "Max address space";
    FILE *file = open_at(root, "/proc/self/limits");
    char line[256];
    uint64_t limit = UINT64_MAX, used;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0 &&
            sscanf(line + strlen(key), "%" SCNu64, &limit) != 1)
            limit = UINT64_MAX; /* "unlimited" */
    }
    if (file != NULL)
        fclose(file);
    if (limit == UINT64_MAX)
        return limit;
    used = read_key(open_at(root, "/proc/self/status"), "VmSize") * 1024;
    return used < limit ? limit - used : 0;
}

void mp_memory_room_read(const char *root, struct mp_memory_room *room)
{
    room->total_bytes = read_key(open_at(root, "/proc/meminfo"), "MemTotal") * 1024;
    room->available_bytes = read_key(open_at(root, "/proc/meminfo"), "MemAvailable") * 1024;
    room->limit_bytes = UINT64_MAX;
    room->room_bytes = room->available_bytes;
    take_hierarchy(root, false, room);
    take_hierarchy(root, true, room);
    room->address_bytes = read_addresses(root);
    mp_assert(room->room_bytes <= room->available_bytes);
    if (room->address_bytes < room->room_bytes)
        room->room_bytes = room->address_bytes;
}

uint64_t mp_memory_room_beside(const struct mp_memory_room *room, uint64_t weights_bytes)
{
    const uint64_t kept = MP_MEMORY_PROGRAM_BYTES + room->room_bytes / PROGRAM_PARTS;

    return weights_bytes < room->room_bytes && room->room_bytes - weights_bytes > kept
               ? room->room_bytes - weights_bytes - kept
               : 0;
}

bool mp_memory_maps_read(const char *root, uint64_t *count_p, uint64_t *max_p)
{
    FILE *file = open_at(root, "/proc/sys/vm/max_map_count");
    uint64_t count = 0, max = 0;
    int byte;

    if (file != NULL && fscanf(file, "%" SCNu64, &max) != 1)
        max = 0;
    if (file != NULL)
        fclose(file);
    file = open_at(root, "/proc/self/maps");
    if (file == NULL || max == 0) {
        if (file != NULL)
            fclose(file);
        return false;
    }
    while ((byte = getc(file)) != EOF)
        count += byte == '\n';
    fclose(file);
    mp_assert(max > 0);
    *count_p = count;
    *max_p = max;
    return true;
}

uint64_t mp_memory_maps_left(void)
{
    uint64_t maps, maps_max;

    if (!mp_memory_maps_read("", &maps, &maps_max))
        return UINT64_MAX;
    return maps_max > maps + MP_MEMORY_MAPS_SPARE ? maps_max - maps - MP_MEMORY_MAPS_SPARE : 0;
}
