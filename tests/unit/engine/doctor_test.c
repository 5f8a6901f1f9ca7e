/* The findings of `moepager doctor`, for machines that are not at hand, and its facts. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "engine/doctor/doctor.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

#define GIB (UINT64_C(1) << 30)

static struct mp_doctor_facts good(void)
{
    return (struct mp_doctor_facts){
        .kernels = "avx2",
        .room = { .total_bytes = 16 * GIB, .limit_bytes = UINT64_MAX, .room_bytes = 12 * GIB },
        .memlock_bytes = UINT64_MAX,
        .maps_max = 65530,
        .huge_pages = "madvise",
        .governor = "performance",
        .nodes = 1,
        .cores = 8,
        .devices = 1,
        .disk_bytes_per_s = 0x1p31,
        .disk_direct = true,
        .expert_bytes = 9 << 20
    };
}

static const struct mp_doctor_finding *find(const struct mp_doctor_finding *findings, size_t count,
                                            const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(findings[i].name, name))
            return &findings[i];
    }
    return NULL;
}

static void check(const struct mp_doctor_facts *facts, const char *name,
                  enum mp_doctor_verdict verdict, const char *text, const char *advice)
{
    struct mp_doctor_finding findings[MP_DOCTOR_FINDINGS_MAX];
    const size_t count = mp_doctor_judge(facts, findings);
    const struct mp_doctor_finding *finding = find(findings, count, name);

    CHECK(finding != NULL);
    CHECK_EQ(finding->verdict, verdict);
    CHECK(strstr(finding->text, text) != NULL);
    CHECK(advice != NULL ? strstr(finding->advice, advice) != NULL : finding->advice[0] == '\0');
}

static void a_good_machine_has_no_advice(void)
{
    struct mp_doctor_finding findings[MP_DOCTOR_FINDINGS_MAX];
    const struct mp_doctor_facts facts = good();
    const size_t count = mp_doctor_judge(&facts, findings);

    CHECK_EQ(count, 9);
    for (size_t i = 0; i < count; i++) {
        CHECK_EQ(findings[i].verdict, MP_DOCTOR_GOOD);
        CHECK_STR(findings[i].advice, "");
    }
    check(&facts, "disk", MP_DOCTOR_GOOD,
          "2.00 GiB/s, past the page cache: 4.39 ms for an expert of 9.00 MiB", NULL);
    check(&facts, "memory", MP_DOCTOR_GOOD, "a run can take 12.0 of 16.0 GiB", NULL);
}

static void what_is_slow_is_said(void)
{
    struct mp_doctor_facts facts = good();

    facts.kernels = "ref";
    facts.governor[0] = '\0';
    facts.room.room_bytes = 2 * GIB - 1;
    facts.room.limit_bytes = 3 * GIB;
    facts.maps_max = 65529;
    strcpy(facts.huge_pages, "never");
    facts.uring_error = EPERM;
    facts.nodes = 2;
    facts.disk_bytes_per_s = 0x1p29 - 1;
    facts.disk_direct = false;
    facts.devices = 0;
    strcpy(facts.driver, "libcuda.so.1 is not there");
    check(&facts, "processor", MP_DOCTOR_SLOW, "kernels ref", "AVX2");
    check(&facts, "memory", MP_DOCTOR_SLOW, "limited by a control group", "memory.max");
    check(&facts, "mappings", MP_DOCTOR_SLOW, "65529", "sysctl -w vm.max_map_count");
    check(&facts, "huge pages", MP_DOCTOR_SLOW, "never", "echo madvise");
    check(&facts, "io_uring", MP_DOCTOR_SLOW, "not permitted", "kernel.io_uring_disabled=0");
    check(&facts, "NUMA", MP_DOCTOR_NOTE, "2 nodes", "one node");
    check(&facts, "disk", MP_DOCTOR_SLOW, "through the page cache", "--budget");
    check(&facts, "CUDA", MP_DOCTOR_NOTE, "libcuda.so.1 is not there", "driver");
    facts.room.limit_bytes = UINT64_MAX;
    check(&facts, "memory", MP_DOCTOR_SLOW, "a run can take 2.0", "other programs");
}

/* Each limit is on the good side. */
static void limits_are_where_the_text_says(void)
{
    struct mp_doctor_facts facts = good();
    struct mp_doctor_finding findings[MP_DOCTOR_FINDINGS_MAX];

    facts.room.room_bytes = 2 * GIB;
    facts.disk_bytes_per_s = 0x1p29;
    check(&facts, "memory", MP_DOCTOR_GOOD, "a run can take 2.0", NULL);
    check(&facts, "disk", MP_DOCTOR_GOOD, "0.50 GiB/s", NULL);
    facts.memlock_bytes = facts.room.room_bytes;
    CHECK(find(findings, mp_doctor_judge(&facts, findings), "memlock") == NULL);
    facts.memlock_bytes--;
    check(&facts, "memlock", MP_DOCTOR_NOTE, "may lock 2047 MiB", "LimitMEMLOCK");
    facts.disk_bytes_per_s = 0;
    check(&facts, "disk", MP_DOCTOR_NOTE, "not measured", "--model");
    strcpy(facts.governor, "powersave");
    check(&facts, "clock", MP_DOCTOR_NOTE, "powersave", "cpupower");
}

static void facts_come_from_the_kernels_files(void)
{
    const char *root = test_tmpdir();
    const struct mp_topology_source source = { .synthetic = "package:2 core:3 pu:1" };
    struct mp_topology *topology;
    struct mp_doctor_facts facts;

    CHECK_EQ(mp_topology_load(&source, &topology), MP_OK);
    test_put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    test_put(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    test_put(root, "/proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n");
    mp_doctor_read(root, topology, &facts);
    CHECK_STR(facts.huge_pages, "never");
    CHECK_STR(facts.governor, "powersave");
    CHECK_EQ(facts.room.total_bytes, 4 * GIB);
    CHECK_EQ(facts.cores, 6);
    CHECK(facts.kernels != NULL);
    test_put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "nothing chosen\n");
    mp_doctor_read(root, topology, &facts);
    CHECK_STR(facts.huge_pages, "");
    mp_topology_destroy(topology);
}

static void a_disk_is_measured_by_its_largest_file(void)
{
    struct mp_doctor_facts facts = { .expert_bytes = 1 };
    struct mp_files *files;
    char small[512], large[512];
    uint32_t index;

    snprintf(small, sizeof(small), "%s/small", test_tmpdir());
    snprintf(large, sizeof(large), "%s/large", test_tmpdir());
    test_put(test_tmpdir(), "/small", "twelve bytes");
    test_put(test_tmpdir(), "/large", "");
    CHECK_EQ(truncate(large, 70 << 20), 0);
    CHECK_EQ(mp_files_create(&files), MP_OK);
    CHECK_EQ(mp_files_add(files, AT_FDCWD, small, &index), MP_OK);
    CHECK_EQ(mp_doctor_read_disk(files, mp_clock_monotonic(), &facts), MP_OK);
    CHECK(facts.disk_bytes_per_s > 0 && facts.disk_bytes_per_s < 1e10);
    CHECK(!facts.disk_direct);
    CHECK_EQ(mp_files_add(files, AT_FDCWD, large, &index), MP_OK);
    CHECK_EQ(mp_doctor_read_disk(files, mp_clock_monotonic(), &facts), MP_OK);
    CHECK(facts.disk_bytes_per_s > 1e6);
    CHECK_EQ(truncate(large, 0), 0);
    CHECK_EQ(mp_doctor_read_disk(files, mp_clock_monotonic(), &facts), MP_ERR_IO);
    mp_files_destroy(files);
}

int main(void)
{
    RUN(a_good_machine_has_no_advice);
    RUN(what_is_slow_is_said);
    RUN(limits_are_where_the_text_says);
    RUN(facts_come_from_the_kernels_files);
    RUN(a_disk_is_measured_by_its_largest_file);
    return 0;
}
