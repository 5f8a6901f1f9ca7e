/*
 * The probe on the fake driver: what its children print, crash at and leave out; every place that
 * the steps of memory call the driver from, failed once; the file that keeps it; what policies get.
 * The numbers that a driver without a device yields are looked at for being there only.
 */
#include "engine/gpu/executors.h"
#include "engine/probe/probe.h"
#include "engine/probe/probe_int.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define MEMORY "104857600" /* little: kernels are slow on the CPU */

static const struct mp_probe_shape shape = { 64, 32, 4, MP_WTYPE_Q8_0, MP_WTYPE_BF16 };
#define EXPERT_BYTES (2 * 64 * 34 + 64 * 32 * 2)
static char dir[64];

/* A program that stands in for the child; returns its path. */
static const char *script(const char *text)
{
    static char path[128];
    FILE *file;

    snprintf(path, sizeof(path), "%s/child", dir);
    file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file, "#!/bin/sh\n%s", text);
    CHECK_EQ(fclose(file), 0);
    CHECK_EQ(chmod(path, 0700), 0);
    return path;
}

/* Remove the file of what does not depend on the shape. */
static void forget(const struct mp_probe *probe)
{
    char path[256], uuid[sizeof(probe->uuid)];

    snprintf(uuid, sizeof(uuid), "%s", probe->uuid);
    for (char *c = uuid; *c != '\0'; c++) {
        if (strchr("./", *c) != NULL)
            *c = '-';
    }
    snprintf(path, sizeof(path), "%s/probe-%s-%d-0x0.json", dir, uuid, probe->driver);
    CHECK_EQ(unlink(path), 0);
}

static void a_crash_costs_one_step(void)
{
    const char *path =
        script("echo begin open\n"
               "case \"$*\" in *host-numa*) ;;\n"
               "*) echo begin host-numa; kill -SEGV $$ ;; esac\n"
               "case \"$*\" in *maps*) ;; *) echo begin maps; exit 3 ;; esac\n"
               "echo begin copies\necho copy_4m_1 12.5\necho copy_4m_1\n"
               "echo cpu_1 nonsense\necho cpu_8 inf\necho cpu_8 -1\necho what is this\n"
               "echo failed reads: no memory\necho end\n");
    struct mp_probe probe;

    CHECK_EQ(mp_probe_run(path, 0, &shape, &probe), MP_OK);
    CHECK(probe.value[MP_PROBE_COPY_4M_1] == 12.5);
    CHECK(isnan(probe.value[MP_PROBE_CPU_1]));
    CHECK(isnan(probe.value[MP_PROBE_CPU_8]));
    CHECK(strstr(probe.trouble, "host-numa: crashed with signal 11") != NULL);
    CHECK(probe.value[MP_PROBE_HOST_NUMA] == MP_HOST_NUMA_BREAKS);
    CHECK(strstr(probe.trouble, "maps: ended with exit code 3") != NULL);
    CHECK(strstr(probe.trouble, "reads: no memory") != NULL);
    CHECK(probe.device[0] != '\0' && probe.uuid[0] != '\0' && probe.driver > 0);
}

/* Of five the third, of four the third, however they come. */
static void the_middle_of_several_counts(void)
{
    double five[] = { 9, 1, 5, 3, 7 }, four[] = { 4, 3, 2, 1 }, one[] = { 6 };

    CHECK(mp_bench_median(five, 5) == 5);
    CHECK(mp_bench_median(four, 4) == 3);
    CHECK(mp_bench_median(one, 1) == 6);
}

static void a_child_that_does_nothing_is_an_error(void)
{
    struct mp_probe probe;

    CHECK_EQ(mp_probe_run(script("exit 1\n"), 0, &shape, &probe), MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_PROBE");
    CHECK_EQ(mp_probe_run("/nonexistent/moepager", 0, &shape, &probe), MP_ERR_IO);
    CHECK_STR(mp_error_last()->code, "E_PROBE");
    CHECK_EQ(mp_probe_run(script("exit 1\n"), 77, &shape, &probe), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CUDA_DEVICE");
}

/* Not opened: said with the driver's words at once, and nothing that could be kept. */
static void a_device_that_does_not_open_is_an_error(const char *program)
{
    const char *count = "echo run >>\"$0.runs\"\n";
    struct mp_probe probe;
    struct stat info;
    char text[256], runs[160];
    const char *path;

    snprintf(text, sizeof(text), "%secho begin open\necho failed open: it is taken\nexit 1\n",
             count);
    path = script(text);
    CHECK_EQ(mp_probe_run(path, 0, &shape, &probe), MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_PROBE");
    CHECK(strstr(mp_error_last()->text, "it is taken") != NULL);
    snprintf(runs, sizeof(runs), "%s.runs", path);
    CHECK_EQ(stat(runs, &info), 0);
    CHECK_EQ(info.st_size, 4); /* "run", once */
    unlink(runs);
    CHECK_EQ(mp_probe_run(script("echo begin open\necho end\n"), 0, &shape, &probe), MP_ERR_DEVICE);

    setenv("FAKECUDA_MEMORY", "2097152", 1);
    CHECK_EQ(mp_probe_run(program, 0, &shape, &probe), MP_ERR_DEVICE);
    CHECK(strstr(mp_error_last()->text, "CUDA_ERROR_OUT_OF_MEMORY") != NULL);
    setenv("FAKECUDA_MEMORY", MEMORY, 1);
}

static void the_program_measures(const char *program)
{
    struct mp_probe probe;
    unsigned missing = 0;

    CHECK_EQ(mp_probe_run(program, 0, &shape, &probe), MP_OK);
    for (unsigned i = 0; i < MP_PROBE_COUNT; i++) {
        /* Chunks of 16 MiB need a device with more memory than the fake one has. */
        if (isnan(probe.value[i]) && strstr(mp_probe_key(i), "16m") == NULL) {
            fprintf(stderr, "%s was not measured: %s\n", mp_probe_key(i), probe.trouble);
            missing++;
        }
    }
    CHECK_EQ(missing, 0);
    CHECK(probe.value[MP_PROBE_HOST_NUMA] == MP_HOST_NUMA_WORKS);
    CHECK_STR(probe.trouble, "");
}

/* The trial of memory on a NUMA node by itself: nothing else is measured, and it is kept. */
static void the_trial_alone(const char *program, enum mp_host_numa expected)
{
    const struct mp_probe_shape none = { .hidden = 0 };
    struct mp_probe probe, again;

    CHECK_EQ(mp_probe_run_host_numa(program, 0, &probe), MP_OK);
    CHECK(probe.value[MP_PROBE_HOST_NUMA] == expected);
    CHECK_EQ(probe.trouble[0] == '\0', expected == MP_HOST_NUMA_WORKS);
    for (unsigned i = 0; i < MP_PROBE_COUNT; i++)
        CHECK(i == MP_PROBE_HOST_NUMA || isnan(probe.value[i]));
    CHECK_EQ(mp_probe_run_host_numa(script("exit 1\n"), 0, &again), MP_ERR_DEVICE);
    CHECK_EQ(mp_probe_run_host_numa(script("echo begin open\n"), 0, &again), MP_ERR_DEVICE);
    CHECK(mp_probe_store(dir, &probe));
    CHECK(mp_probe_load(dir, probe.uuid, probe.driver, &none, &again));
    CHECK(again.value[MP_PROBE_HOST_NUMA] == expected);
    CHECK_STR(again.trouble, probe.trouble);
    forget(&probe);
}

/* Where the driver crashes, frames are of the other kind, and all else is measured. */
static void a_driver_that_crashes_is_found_out(const char *program)
{
    struct mp_probe probe;

    CHECK_EQ(mp_probe_run(program, 0, &shape, &probe), MP_OK);
    CHECK(probe.value[MP_PROBE_HOST_NUMA] == MP_HOST_NUMA_BREAKS);
    CHECK_STR(probe.trouble, "host-numa: crashed with signal 11");
    CHECK(probe.value[MP_PROBE_COPY_1M_1] > 0);
    CHECK(probe.value[MP_PROBE_REMAP_BUSY_2M] > 0);
}

/* A driver that cannot make memory on a NUMA node says so; all else is measured. */
static void without_numa_memory(const char *program)
{
    struct mp_probe probe;

    CHECK_EQ(mp_probe_run(program, 0, &shape, &probe), MP_OK);
    CHECK(probe.value[MP_PROBE_HOST_NUMA] == MP_HOST_NUMA_REFUSED);
    CHECK(strstr(probe.trouble, "host-numa: ") != NULL);
    CHECK(probe.value[MP_PROBE_COPY_1M_1] > 0);
    CHECK(probe.value[MP_PROBE_CPU_8] > 0);
}

static void fill(struct mp_probe *probe)
{
    memset(probe, 0, sizeof(*probe));
    probe->shape = shape;
    probe->driver = 13000;
    snprintf(probe->device, sizeof(probe->device), "a \"device\"");
    snprintf(probe->uuid, sizeof(probe->uuid), "GPU-../../x");
    for (unsigned i = 0; i < MP_PROBE_COUNT; i++)
        probe->value[i] = i == 3 ? NAN : 0.5 + i;
}

/* The file is of an earlier version, whose costs were measured otherwise; all else is the same. */
static void make_older(const char *path)
{
    static char text[65536];
    FILE *file = fopen(path, "r+");
    char *version;

    CHECK(file != NULL);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    version = strstr(text, "moepager probe 3");
    CHECK(version != NULL);
    CHECK_EQ(fseek(file, version - text + (long)strlen("moepager probe "), SEEK_SET), 0);
    fputc('2', file);
    CHECK_EQ(fclose(file), 0);
}

static void kept_and_found_again(void)
{
    static const struct mp_probe_shape others[] = { { 64, 33, 4, MP_WTYPE_Q8_0, MP_WTYPE_BF16 },
                                                    { 64, 32, 2, MP_WTYPE_Q8_0, MP_WTYPE_BF16 },
                                                    { 64, 32, 4, MP_WTYPE_BF16, MP_WTYPE_BF16 },
                                                    { 64, 32, 4, MP_WTYPE_Q8_0, MP_WTYPE_Q8_0 } };
    const struct mp_probe_shape none = { .hidden = 0 };
    struct mp_probe probe, again;
    char path[192];
    FILE *file;

    fill(&probe);
    CHECK(!mp_probe_load(dir, probe.uuid, 13000, &shape, &again));
    CHECK(mp_probe_store(dir, &probe));
    CHECK(mp_probe_load(dir, probe.uuid, 13000, &shape, &again));
    for (unsigned i = 0; i < MP_PROBE_COUNT; i++)
        CHECK(i == 3 ? isnan(again.value[i]) : again.value[i] == probe.value[i]);
    CHECK_STR(again.device, probe.device);
    CHECK(mp_probe_load(dir, probe.uuid, 13000, &none, &again));
    CHECK(again.value[MP_PROBE_HOST_NUMA] == probe.value[MP_PROBE_HOST_NUMA]);
    CHECK(isnan(again.value[MP_PROBE_COPY_4M_1]));
    forget(&probe);
    CHECK(!mp_probe_load(dir, probe.uuid, 13000, &none, &again));
    CHECK(mp_probe_store(dir, &probe));
    snprintf(path, sizeof(path), "%s/probe-GPU-------x-13000-64x32-q8_0-bf16-4.json", dir);
    make_older(path);
    CHECK(!mp_probe_load(dir, probe.uuid, 13000, &shape, &again));
    forget(&probe);
    CHECK(!mp_probe_load(dir, probe.uuid, 13010, &shape, &again));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        CHECK(!mp_probe_load(dir, probe.uuid, 13000, &others[i], &again));
    CHECK(!mp_probe_load("none", probe.uuid, 13000, &shape, &again));
    CHECK(!mp_probe_store("none", &probe));
    CHECK(!mp_probe_store("/nonexistent", &probe));

    /* A uuid is no path. */
    snprintf(path, sizeof(path), "%s/probe-GPU-------x-13000-64x32-q8_0-bf16-4.json", dir);
    file = fopen(path, "w");
    CHECK(file != NULL);
    fputs("{\"format\": \"moepager probe 3\", \"device\": \"x\", \"values\": 3}", file);
    CHECK_EQ(fclose(file), 0);
    CHECK(!mp_probe_load(dir, probe.uuid, 13000, &shape, &again));
    CHECK_EQ(mp_error_last()->status, MP_OK);
    unlink(path);
}

/* GB/s in chunks of 256 KiB, 1 MiB and 4 MiB. */
static void set_link(struct mp_probe *probe, double gbps_256k, double gbps_1m, double gbps_4m)
{
    probe->value[MP_PROBE_COPY_256K_1] = gbps_256k;
    probe->value[MP_PROBE_COPY_1M_1] = gbps_1m;
    probe->value[MP_PROBE_COPY_4M_1] = gbps_4m;
}

/* A unit is loaded in chunks of 4 MiB, a smaller one as one chunk, which is slower per byte; an
 * expert's slices are units. */
static void loads_cost_what_their_chunks_do(void)
{
    static const struct {
        double bytes, us; /* 256 KiB take 25 us, 1 MiB 70 us, 4 MiB 220 us */
        uint32_t slices;
    } cases[] = {
        { 128 << 10, 12.5, 1 }, { 256 << 10, 25, 1 }, { 640 << 10, 47.5, 1 }, { 1 << 20, 70, 1 },
        { 2 << 20, 120, 1 },    { 4 << 20, 220, 1 },  { 12 << 20, 660, 1 },   { 4 << 20, 240, 2 },
        { 12 << 20, 660, 3 },   { 4 << 20, 280, 4 },
    };
    struct mp_probe probe;
    struct mp_costs costs;

    fill(&probe);
    set_link(&probe, 262.144 / 25, 1048.576 / 70, 4194.304 / 220);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mp_probe_costs(&probe, (uint64_t)cases[i].bytes, cases[i].slices, &costs);
        CHECK(fabs((double)costs.load_ns - 1e3 * cases[i].us) < 2);
    }
    set_link(&probe, NAN, NAN, 4194.304 / 220);
    mp_probe_costs(&probe, 1 << 20, 1, &costs);
    CHECK(fabs((double)costs.load_ns - 55e3) < 2);
    set_link(&probe, 262.144 / 25, NAN, NAN);
    mp_probe_costs(&probe, 1 << 20, 1, &costs);
    CHECK(fabs((double)costs.load_ns - 100e3) < 2);
    set_link(&probe, NAN, 0, NAN);
    mp_probe_costs(&probe, 1 << 20, 1, &costs);
    CHECK_EQ(costs.load_ns, 0);
}

static void costs_of_units(void)
{
    struct mp_probe probe;
    struct mp_costs costs;

    fill(&probe);
    set_link(&probe, 20, 20, 20);
    probe.value[MP_PROBE_CPU_1] = 100;
    probe.value[MP_PROBE_CPU_8] = 170;
    probe.value[MP_PROBE_HANDOFF] = 5;
    probe.value[MP_PROBE_EXPERT_1] = 10;
    probe.value[MP_PROBE_EXPERT_8] = 8; /* noise: no cost per token */
    probe.value[MP_PROBE_IN_PLACE_8] = NAN;
    mp_probe_costs(&probe, 2 * EXPERT_BYTES, 1, &costs); /* twice the probed expert */
    CHECK_EQ(costs.load_ns, 2 * EXPERT_BYTES / 20);
    CHECK_EQ(costs.executors[MP_GPU_CPU].token_ns, 20000);
    CHECK_EQ(costs.executors[MP_GPU_CPU].fixed_ns, 180000);
    CHECK_EQ(costs.executors[MP_GPU_CPU].handoff_ns, 5000);
    CHECK_EQ(costs.executors[MP_GPU_DEVICE].token_ns, 0);
    CHECK_EQ(costs.executors[MP_GPU_DEVICE].fixed_ns, 20000);
    CHECK_EQ(costs.executors[MP_GPU_IN_PLACE].fixed_ns, 0);
    CHECK_EQ(costs.executors[MP_GPU_IN_PLACE].token_ns, 0);
}

/* A cache's file may say anything from 0 to 1e15, and not all of that are nanoseconds of 64 bits.
 */
static void costs_of_nonsense_have_an_end(void)
{
    const uint64_t most_ns = 1000000000000000;
    struct mp_probe probe;
    struct mp_costs costs;

    fill(&probe);
    set_link(&probe, 1e-300, 1e-300, 1e-300);
    probe.value[MP_PROBE_HANDOFF] = probe.value[MP_PROBE_CPU_8] = 1e15;
    probe.value[MP_PROBE_CPU_1] = 1e15 / 8;
    mp_probe_costs(&probe, UINT64_C(1) << 40, 1, &costs);
    CHECK_EQ(costs.load_ns, most_ns);
    CHECK_EQ(costs.executors[MP_GPU_CPU].handoff_ns, most_ns);
    CHECK_EQ(costs.executors[MP_GPU_CPU].token_ns, most_ns);
}

static void set_remap(struct mp_probe *probe, unsigned size, double us, double busy_us)
{
    for (unsigned i = 0; i < 3; i++)
        probe->value[MP_PROBE_MAP_2M + 3 * size + i] = us / 3;
    probe->value[MP_PROBE_REMAP_BUSY_2M + size] = busy_us;
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

static void remaps_beside_copies(void)
{
    const uint64_t mib = 1u << 20;
    struct mp_probe probe;
    double copy_us;

    fill(&probe);
    set_link(&probe, 20, 20, 20);
    copy_us = (double)mib / 20e3;
    set_remap(&probe, 0, 60, 40);
    set_remap(&probe, 1, 60, 200); /* beside a kernel it takes longer */
    set_remap(&probe, 2, 300, NAN);
    CHECK(near(mp_probe_remap_share(&probe, mib), 60 / copy_us));
    CHECK(near(mp_probe_remap_share(&probe, 2 * mib), 60 / (2 * copy_us)));
    CHECK(near(mp_probe_remap_share(&probe, 9 * mib), 130 / (9 * copy_us)));
    CHECK(near(mp_probe_remap_share(&probe, 64 * mib), 300 / (64 * copy_us)));
    CHECK(near(mp_probe_remap_share(&probe, 128 * mib), 600 / (128 * copy_us)));
    set_remap(&probe, 2, NAN, NAN);
    CHECK(near(mp_probe_remap_share(&probe, 64 * mib), 800 / (64 * copy_us)));
    set_remap(&probe, 0, NAN, NAN);
    set_remap(&probe, 1, NAN, NAN);
    CHECK(isnan(mp_probe_remap_share(&probe, mib)));
    set_remap(&probe, 0, 60, 40);
    CHECK(isnan(mp_probe_remap_share(&probe, 0)));
    set_link(&probe, NAN, NAN, NAN);
    CHECK(isnan(mp_probe_remap_share(&probe, mib)));
}

/* What the measuring child says, here in this process; false: its end is not in it. */
static bool measure(const char *skip, char said[4096])
{
    FILE *out = tmpfile();
    size_t bytes;

    CHECK(out != NULL);
    if (mp_probe_measure(0, &shape, skip, out) != MP_OK)
        mp_error_clear();
    rewind(out);
    bytes = fread(said, 1, 4095, out);
    said[bytes] = '\0';
    CHECK_EQ(fclose(out), 0);
    return strstr(said, "\nend\n") != NULL;
}

/* What could not be given back is reported as an error; here that is wanted. */
static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)line;
    mp_test_expected_errors += level == MP_LOG_ERROR;
}

/* What the child said of `key`. */
static double value_of(const char *said, const char *key)
{
    char line[64];
    const char *at;

    snprintf(line, sizeof(line), "\n%s ", key);
    at = strstr(said, line);
    CHECK(at != NULL);
    return strtod(at + strlen(line), NULL);
}

#define EXPERTS_ONLY "copies,launches,graph,cpu,maps,maps-busy,reads"

/* Lists of four experts are timed eight at a time: three times each for 1 and 8 tokens, in device
 * memory and in place. */
static void experts_are_timed_in_batches(void)
{
    static const char skip[] = EXPERTS_ONLY;
    static char said[4096];

    find_fake();
    fake_api.reset();
    fake_api.elapsed(2);
    CHECK(measure(skip, said) && strstr(said, "failed") == NULL);
    fake_api.elapsed(0);
    CHECK_EQ(fake_api.calls("cuEventElapsedTime"), 2 * 2 * 3);
    CHECK(fake_api.calls("cuLaunchKernel") >= 2 * 2 * 3 * (2 * 8 + 1));
    CHECK(value_of(said, "expert_8") == 250 / 4.0);
    CHECK(value_of(said, "in_place_1") == 250 / 4.0);
}

/* Gate and up by the kernels of their type, down by those of its. */
static void experts_are_timed_in_their_own_types(void)
{
    static const char *const kernels[] = { "experts_up1_q8_0", "experts_up8_q8_0",
                                           "experts_down1_bf16", "experts_down8_bf16" };
    static char said[4096];

    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        char later[64];

        fake_api.reset();
        snprintf(later, sizeof(later), "later:mp_%s", kernels[i]);
        fake_api.fail(later, 0, MP_CU_ERROR_UNKNOWN, false);
        CHECK(measure(EXPERTS_ONLY ",in-place", said));
        CHECK(strstr(said, "failed experts") != NULL);
        fake_api.clear();
    }
    fake_api.reset();
}

static void types_are_named(void)
{
    struct mp_probe_shape found = { .hidden = 64, .channels = 32 };

    CHECK(mp_probe_parse_types("q4_0,q8_0", &found));
    CHECK(found.gate == MP_WTYPE_Q4_0 && found.down == MP_WTYPE_Q8_0);
    CHECK(mp_probe_parse_types("f16", &found));
    CHECK(found.gate == MP_WTYPE_F16 && found.down == MP_WTYPE_F16);
    CHECK(!mp_probe_parse_types("q8_0,q4_k", &found)); /* blocks of 256 */
    CHECK(!mp_probe_parse_types("bf16,", &found));
    CHECK(!mp_probe_parse_types("bf16,f16,f16", &found));
    CHECK(!mp_probe_parse_types("bf", &found));
    CHECK(!mp_probe_parse_types("unknown", &found));
    CHECK(found.gate == MP_WTYPE_F16 && found.down == MP_WTYPE_F16);
}

/* The same clock says what the link and the memory do: of a frame, 16 MiB on this device, in chunks
 * of each size on one and on two streams, and of two frames that a kernel reads or a copy moves.
 */
static void the_devices_clock_times_copies_and_reads(void)
{
    static const char *const copies[] = { "copy_256k_1", "copy_256k_2", "copy_1m_1", "copy_1m_2",
                                          "copy_4m_1",   "copy_4m_2",   "copy_16m_1" };
    static const char *const reads[] = { "device_read", "device_copy", "in_place_read" };
    static const char skip[] = "launches,graph,cpu,maps,maps-busy,experts,in-place";
    const double gbps = 16.777216 / 2;
    static char said[4096];
    struct mp_probe probe = { .shape = shape };
    struct mp_costs costs;

    fake_api.reset();
    fake_api.elapsed(2);
    CHECK(measure(skip, said) && strstr(said, "failed") == NULL);
    fake_api.elapsed(0);
    for (size_t i = 0; i < sizeof(copies) / sizeof(copies[0]); i++)
        CHECK(fabs(value_of(said, copies[i]) - gbps) < 1e-6);
    for (size_t i = 0; i < sizeof(reads) / sizeof(reads[0]); i++)
        CHECK(fabs(value_of(said, reads[i]) - 2 * gbps) < 1e-6);
    check_no_violation();

    /* What a policy gets to know of it: 9 MiB go over such a link in 1125 us. */
    for (unsigned i = 0; i < MP_PROBE_COUNT; i++)
        probe.value[i] = NAN;
    for (unsigned i = MP_PROBE_COPY_256K_1; i <= MP_PROBE_COPY_4M_1; i++)
        probe.value[i] = value_of(said, copies[i - MP_PROBE_COPY_256K_1]);
    mp_probe_costs(&probe, 9 << 20, 1, &costs);
    CHECK(fabs((double)costs.load_ns - 1125000) < 2);
}

/* Every place that the memory's steps call the driver from fails once. Most are reported, but for
 * calls that give back and those with another way. Nothing is freed under work, and the next run
 * measures all again. */
static void every_place_of_the_memory_steps_fails(void)
{
    static const char slow[] = "copies,launches,graph,experts,in-place,cpu,maps-busy";
    static const char skip[] = "copies,launches,graph,experts,in-place,cpu,maps-busy,reads";
    static struct fakecuda_site sites[512], now[512];
    static char said[4096];
    unsigned count, reported = 0;

    mp_log_set_sink(keep_line, NULL);
    find_fake();
    CHECK(measure(skip, said) && strstr(said, "failed") == NULL);
    count = fake_api.sites(now, 512);
    CHECK(measure(slow, said) && strstr(said, "failed") == NULL);
    memcpy(sites, now, sizeof(sites));
    for (unsigned s = 0, all = fake_api.sites(sites, 512); s < all; s++) {
        const char *call = sites[s].call;

        if (strcmp(call, "cuInit") == 0 || strcmp(call, "cuDriverGetVersion") == 0 ||
            strcmp(call, "cuDeviceGetCount") == 0 || strcmp(call, "cuCtxSetCurrent") == 0)
            continue; /* of the first run in a process */
        fake_api.reset();
        fake_api.fail_site(sites[s].address, 0, MP_CU_ERROR_UNKNOWN, false);
        (void)measure(s < count ? skip : slow, said);
        reported += strstr(said, "failed ") != NULL;
        fake_api.sites(now, 512);
        CHECK(now[s].failed > 0);
        check_no_violation();
        fake_api.clear();
    }
    fprintf(stderr, "    %u failures reported\n", reported);
    CHECK(reported > 20);
    fake_api.reset();
    CHECK(measure(skip, said) && strstr(said, "failed") == NULL);
    report_failed_sites("places");
}

/* probe_test VARIANT MOEPAGER */
int main(int argc, char **argv)
{
    CHECK(argc > 2);
    setenv("FAKECUDA_MEMORY", MEMORY, 1);
    if (!strcmp(argv[1], "no_host_numa"))
        setenv("FAKECUDA_HOST_NUMA", "0", 1);
    if (!strcmp(argv[1], "numa_breaks"))
        setenv("FAKECUDA_HOST_NUMA", "2", 1);
    snprintf(dir, sizeof(dir), "/tmp/moepager-probe-XXXXXX"); /* one that was killed left its own */
    CHECK(mkdtemp(dir) != NULL);
    if (!strcmp(argv[1], "no_host_numa")) {
        without_numa_memory(argv[2]);
        the_trial_alone(argv[2], MP_HOST_NUMA_REFUSED);
    } else if (!strcmp(argv[1], "numa_breaks")) {
        a_driver_that_crashes_is_found_out(argv[2]);
        the_trial_alone(argv[2], MP_HOST_NUMA_BREAKS);
    } else if (!strcmp(argv[1], "places")) {
        RUN(every_place_of_the_memory_steps_fails);
        RUN(experts_are_timed_in_batches);
        RUN(experts_are_timed_in_their_own_types);
        RUN(the_devices_clock_times_copies_and_reads);
    } else {
        RUN(a_crash_costs_one_step);
        RUN(the_middle_of_several_counts);
        RUN(types_are_named);
        RUN(a_child_that_does_nothing_is_an_error);
        RUN(kept_and_found_again);
        RUN(loads_cost_what_their_chunks_do);
        RUN(costs_of_units);
        RUN(costs_of_nonsense_have_an_end);
        RUN(remaps_beside_copies);
        a_device_that_does_not_open_is_an_error(argv[2]);
        the_program_measures(argv[2]);
        the_trial_alone(argv[2], MP_HOST_NUMA_WORKS);
    }
    unlink(script(""));
    CHECK_EQ(rmdir(dir), 0);
    return 0;
}
