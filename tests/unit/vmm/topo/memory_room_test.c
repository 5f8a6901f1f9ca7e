/* Each case is a file tree as the kernel shows it, under a temporary root. */
#include <limits.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/topo/memory_room.h"

#define MIB (UINT64_C(1) << 20)

static char root[64];

static void put(const char *path, const char *text)
{
    test_put(root, path, text);
}

static void clear(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s/*", root);
    CHECK_EQ(system(command), 0);
}

static void put_machine(void)
{
    clear();
    put("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n"
                         "MemAvailable:    8388608 kB\n");
}

/* As `ulimit -v` sets it: what is mapped already counts. */
static void a_limit_on_addresses_counts(void)
{
    static const char format[] =
        "Limit                     Soft Limit           Hard Limit  Units\n"
        "Max cpu time              7                    7     seconds\n"
        "Max address space         %s  unlimited  bytes\n"
        "Max file locks            9                    9     locks\n";
    struct mp_memory_room room;
    char text[600];

    put_machine();
    put("/proc/self/status", "Name:\tx\nVmPeak:\t 9999999 kB\nVmSize:\t   102400 kB\n");
    snprintf(text, sizeof(text), format, "unlimited");
    put("/proc/self/limits", text);
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.address_bytes, UINT64_MAX);
    CHECK_EQ(room.room_bytes, 8192 * MIB);
    snprintf(text, sizeof(text), format, "1073741824");
    put("/proc/self/limits", text);
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.address_bytes, 924 * MIB);
    CHECK_EQ(room.room_bytes, 924 * MIB);
    CHECK_EQ(room.limit_bytes, UINT64_MAX);
    snprintf(text, sizeof(text), format, "1048576");
    put("/proc/self/limits", text);
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.room_bytes, 0);
}

static void without_a_group_the_machine_counts(void)
{
    struct mp_memory_room room;
    char too_long[3 * PATH_MAX];

    put_machine();
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.total_bytes, 16384 * MIB);
    CHECK_EQ(room.available_bytes, 8192 * MIB);
    CHECK_EQ(room.limit_bytes, UINT64_MAX);
    CHECK_EQ(room.room_bytes, 8192 * MIB);
    clear();
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.total_bytes, 0);
    CHECK_EQ(room.room_bytes, 0);
    memset(too_long, '/', sizeof(too_long) - 1);
    too_long[sizeof(too_long) - 1] = '\0';
    mp_memory_room_read(too_long, &room);
    CHECK_EQ(room.total_bytes, 0);
}

static void version_2_takes_the_tightest_of_all_ancestors(void)
{
    struct mp_memory_room room;

    put_machine();
    put("/proc/self/cgroup", "0::/a.slice/b.scope\n");
    put("/proc/self/mountinfo", "24 1 0:22 / /proc rw - proc proc rw\n"
                                "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/a.slice/memory.max", "2147483648\n"); /* 2048 MiB */
    put("/sys/fs/cgroup/a.slice/memory.current", "1073741824\n");
    put("/sys/fs/cgroup/a.slice/memory.stat", "anon 5\ninactive_file 104857600\nactive_file 7\n");
    put("/sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n");
    put("/sys/fs/cgroup/a.slice/b.scope/memory.current", "1048576\n");
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.limit_bytes, 2048 * MIB);
    CHECK_EQ(room.room_bytes, 1124 * MIB); /* 2048 - 1024 + 100 of idle cache */

    put("/sys/fs/cgroup/a.slice/b.scope/memory.high", "536870912\n"); /* 512 MiB */
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.limit_bytes, 512 * MIB);
    CHECK_EQ(room.room_bytes, 511 * MIB);
    put("/sys/fs/cgroup/a.slice/b.scope/memory.stat", "inactive_file 2097152\n"); /* just grew */
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.room_bytes, 512 * MIB);

    put("/sys/fs/cgroup/a.slice/memory.current", "9999999999999\n");
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.room_bytes, 0);
}

static void version_1_is_found_by_its_controller(void)
{
    struct mp_memory_room room;

    put_machine();
    put("/proc/self/cgroup", "9:name=systemd:/\n5:cpu,cpuacct:/x\n4:memory:/job/7\n0::/\n");
    put("/proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                                "36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/job/7/memory.limit_in_bytes", "1073741824\n");
    put("/sys/fs/cgroup/memory/job/7/memory.usage_in_bytes", "524288000\n"); /* 500 MiB */
    put("/sys/fs/cgroup/memory/job/7/memory.stat", "cache 1\ntotal_inactive_file 104857600\n");
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.limit_bytes, 1024 * MIB);
    CHECK_EQ(room.room_bytes, 624 * MIB);
}

static void in_a_container_the_mount_point_is_the_group(void)
{
    struct mp_memory_room room;

    /* The path below the mounted group. */
    put_machine();
    put("/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
    put("/proc/self/mountinfo",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    put("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "536870912\n");
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.limit_bytes, 512 * MIB);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n"); /* the mounted one counts */
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.limit_bytes, 256 * MIB);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824");

    /* A path of the host that cannot be seen from here. */
    put("/proc/self/cgroup", "4:memory:/elsewhere\n");
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.limit_bytes, 1024 * MIB);

    put("/proc/self/cgroup", "4:memory:/../other\n");
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.limit_bytes, 1024 * MIB);

    /* One whose name only begins like that of the mounted group. */
    put("/proc/self/cgroup", "4:memory:/docker/abcdef\n");
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.limit_bytes, 1024 * MIB);

    /* The mounted group itself. */
    put("/proc/self/cgroup", "4:memory:/docker/abc\n");
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.limit_bytes, 1024 * MIB);
}

static void odd_files_are_no_limit(void)
{
    struct mp_memory_room room;

    put_machine();
    put("/proc/self/cgroup", "no colons\n4:memory\n0::/a\n");
    put("/proc/self/mountinfo", "nonsense\n30 24 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n");
    put("/sys/fs/cgroup/a/memory.max", "many\n");
    mp_memory_room_read(root, &room);
    CHECK_EQ(room.limit_bytes, UINT64_MAX);
    CHECK_EQ(room.room_bytes, 8192 * MIB);
}

static void this_machine_has_room(void)
{
    struct mp_memory_room room;

    mp_memory_room_read("", &room);
    CHECK(room.total_bytes > 0);
    CHECK(room.room_bytes > 0 && room.room_bytes <= room.total_bytes);
}

static void mappings_are_counted(void)
{
    uint64_t count = 0, max = 0;

    clear();
    CHECK(!mp_memory_maps_read(root, &count, &max));
    put("/proc/sys/vm/max_map_count", "65530\n");
    CHECK(!mp_memory_maps_read(root, &count, &max));
    put("/proc/self/maps", "00400000-00401000 r--p\n00401000-00402000 r-xp\n");
    CHECK(mp_memory_maps_read(root, &count, &max));
    CHECK_EQ(count, 2);
    CHECK_EQ(max, 65530);
    put("/proc/sys/vm/max_map_count", "many\n");
    CHECK(!mp_memory_maps_read(root, &count, &max));
    CHECK(mp_memory_maps_read("", &count, &max)); /* this machine */
    CHECK(count > 5 && max > count);
}

int main(void)
{
    snprintf(root, sizeof(root), "/tmp/moepager-room-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    RUN(without_a_group_the_machine_counts);
    RUN(a_limit_on_addresses_counts);
    RUN(version_2_takes_the_tightest_of_all_ancestors);
    RUN(version_1_is_found_by_its_controller);
    RUN(in_a_container_the_mount_point_is_the_group);
    RUN(odd_files_are_no_limit);
    RUN(this_machine_has_room);
    RUN(mappings_are_counted);
    clear();
    CHECK_EQ(rmdir(root), 0);
    return 0;
}
