/*
 * --device: which one a run uses and what it says of it, also where it is lost; routing of a trace
 * on it. On the CUDA driver without a device, whose folder is in FAKECUDA_DIR.
 */
#include "tests/system/cli/cli.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/record/trace.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

static char driver[4200], with_cublas[8500];

static json_t *run_on(const char *device, const char *budget)
{
    const struct cli cli = {
        .args = { "run", "--model", CLI_MODEL, "--prompt", "sort 5 3 9 1 ->", "--max-tokens", "6",
                  "--ctx", "64", "--json", "--device", device, "--budget", budget },
        .env = { driver },
    };

    return cli_json(&cli);
}

static const char *text_of(json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    CHECK(text != NULL);
    return text;
}

static void a_device_gives_the_cpus_text_and_is_named(void)
{
    json_t *cpu = run_on("cpu", "all"), *cuda = run_on("cuda", "all"), *small, *any;

    small = run_on("cuda:0", "50%");
    any = run_on("auto", "all");
    CHECK_STR(text_of(cpu, "device"), "cpu");
    CHECK_STR(text_of(cuda, "device"), "Fake device 0");
    CHECK_STR(text_of(any, "device"), "Fake device 0");
    CHECK_STR(text_of(cuda, "text"), text_of(cpu, "text"));
    CHECK_STR(text_of(small, "text"), text_of(cpu, "text"));
    CHECK_STR(text_of(any, "text"), text_of(cpu, "text"));
    CHECK(json_is_integer(json_object_get(small, "lost_bytes")));
    CHECK_EQ(json_integer_value(json_object_get(small, "lost_bytes")), 0);
    json_decref(cpu);
    json_decref(cuda);
    json_decref(small);
    json_decref(any);
}

static void a_device_that_is_not_there_is_refused(void)
{
    const struct cli eighth = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--device",
                                          "cuda:7" },
                                .env = { driver } };
    const struct cli third = { .args = { "bench", "--model", CLI_MODEL, "--device", "cuda:2" },
                               .env = { driver, "FAKECUDA_DEVICES=2" } };
    const struct cli eleventh = { .args = { "bench", "--model", CLI_MODEL, "--device", "cuda:10" },
                                  .env = { driver } };
    const struct cli no_driver = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a",
                                             "--device", "cuda" },
                                   .env = { driver, "FAKECUDA_INIT=100" } };

    cli_expect(&eighth, 2, "error[E_CUDA_DEVICE]: there is no CUDA device 7; the driver sees 1");
    cli_expect(&third, 2, "error[E_CUDA_DEVICE]: there is no CUDA device 2; the driver sees 2");
    cli_expect(&eleventh, 2, "error[E_CUDA_DEVICE]: there is no CUDA device 10; the driver sees 1");
    cli_expect(&no_driver, 2, "error[E_CUDA_OFF]: CUDA is off");
}

static void auto_without_a_device_says_why_if_asked(void)
{
    const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens",
                                       "1" },
                             .env = { driver, "FAKECUDA_INIT=100", "MOEPAGER_LOG=info" } };
    struct cli_result result;

    cli_run(&cli, &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.err, "the CPU computes: CUDA is off") != NULL);
    cli_free(&result);
}

/* A file that is no library stands in the way of any driver that this machine may have. */
static void without_a_driver_the_cpu_computes(void)
{
    const char *library = cli_path("libcuda.so.1");
    char nowhere[4300];
    const struct cli any = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens",
                                       "1", "--device", "auto", "--json" },
                             .env = { nowhere } };
    const struct cli cuda = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--device",
                                        "cuda" },
                              .env = { nowhere } };
    json_t *json;

    cli_write(library, "no library", 10);
    snprintf(nowhere, sizeof(nowhere), "LD_LIBRARY_PATH=%s", library);
    *strrchr(nowhere, '/') = '\0';
    json = cli_json(&any);
    CHECK_STR(text_of(json, "device"), "cpu");
    json_decref(json);
    cli_expect(&cuda, 2, "error[E_CUDA_OFF]: CUDA is off: the driver library cannot be loaded");
}

static void without_cublas_its_own_kernels_multiply(void)
{
    static const char *const names[] = { "libcublas.so.13", "libcublas.so.12" };
    char path[8600];
    const struct cli any = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens",
                                       "1", "--device", "cuda", "--json" },
                             .env = { path } };
    const struct cli cublas = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--device",
                                          "cuda", "--cuda-gemm", "cublas" },
                                .env = { path } };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        cli_write(cli_path(names[i]), "no library", 10);
    snprintf(path, sizeof(path), "%s:%s", driver, cli_path(""));
    json_decref(cli_json(&any));
    cli_expect(&cublas, 2, "error[E_CUBLAS_OFF]: cuBLAS cannot be loaded");
}

/* By a call in the middle of the run, and by work that was taken. */
static void a_device_that_is_lost_ends_the_run(void)
{
    static const char *const losses[] = {
        "FAKECUDA_FAIL=cuLaunchKernel,150,719",
        "FAKECUDA_FAIL=cuMemcpyHtoDAsync_v2,150,700",
        "FAKECUDA_FAIL=cuEventSynchronize,20,719",
        "FAKECUDA_FAIL=later:mp_combine,12,719",
        "FAKECUDA_FAIL=later:cuMemcpyHtoDAsync_v2,150,214",
    };

    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt",
                                           "sort 5 3 9 1 ->", "--max-tokens", "6", "--ctx", "64",
                                           "--device", "cuda", "--budget", "50%", "--addressing",
                                           i % 2 ? "window" : "table" },
                                 .env = { driver, losses[i], "FAKECUDA_GRANULE=4096" } };

        cli_expect(&cli, 5, "moepager: error[E_CUDA]: ");
    }
}

#define CHOICES_MAX 4096

/* All experts of a trace, in its order; returns how many. */
static size_t read_choices(const char *path, uint32_t *choices)
{
    struct mp_trace_reader *reader;
    struct mp_trace_row row;
    size_t count = 0;

    CHECK_EQ(mp_trace_open(path, &reader), MP_OK);
    for (;;) {
        CHECK_EQ(mp_trace_read(reader, &row), MP_OK);
        if (row.experts == NULL)
            break;
        for (uint32_t r = 0; r < mp_trace_get_shape(reader)->top_k; r++) {
            CHECK(count < CHOICES_MAX);
            choices[count++] = row.experts[r];
        }
    }
    mp_trace_reader_destroy(reader);
    return count;
}

static size_t bench_choices(const char *device, const char *from_trace, uint32_t *choices)
{
    const char *trace = cli_path("bench.trace");
    const struct cli cli = { .args = { "bench",
                                       "--model",
                                       CLI_MODEL,
                                       "--device",
                                       device,
                                       "--budget",
                                       "50%",
                                       "--prompt-tokens",
                                       "4",
                                       "--gen-tokens",
                                       "6",
                                       "--repeat",
                                       "1",
                                       "--ctx",
                                       "64",
                                       "--json",
                                       "--trace",
                                       trace,
                                       from_trace != NULL ? "--from-trace" : NULL,
                                       from_trace },
                             .env = { driver } };

    json_decref(cli_json(&cli));
    return read_choices(trace, choices);
}

static void a_trace_says_how_the_device_routes(void)
{
    static uint32_t own[CHOICES_MAX], cpu[CHOICES_MAX], cuda[CHOICES_MAX];
    const char *trace = cli_path("from.trace");
    const struct cli record = { .args = { "run", "--model", CLI_MODEL, "--prompt",
                                          "sort 5 3 9 1 ->", "--max-tokens", "6", "--ctx", "64",
                                          "--device", "cpu", "--json", "--trace", trace } };
    size_t count;

    json_decref(cli_json(&record));
    count = bench_choices("cuda", NULL, own);
    CHECK(count > 0);
    CHECK_EQ(bench_choices("cpu", trace, cpu), count);
    CHECK_EQ(bench_choices("cuda", trace, cuda), count);
    CHECK(memcmp(cuda, cpu, count * sizeof(cpu[0])) == 0);
    CHECK(memcmp(cuda, own, count * sizeof(own[0])) != 0);
}

static uint64_t needed_bytes; /* what the last refusal named, all together */

/* With so much memory on the device: true if it runs, false if the plan refuses it. Nothing else
 * may become of it: nobody does without what the plan has counted. */
static bool runs_with(uint64_t memory_bytes, const char *predict, const char *gemm,
                      const char *libraries)
{
    char memory[64];
    const struct cli cli = {
        .args = { "run",
                  "--model",
                  CLI_MODEL,
                  "--prompt",
                  "def main(argv):\n    return sum(x * x for x in range(10) if x % 3 == 1) + len(argv)",
                  "--max-tokens",
                  "4",
                  "--ctx",
                  "128",
                  "--prefill-tokens",
                  "64",
                  "--device",
                  "cuda",
                  "--budget",
                  "25%",
                  "--predict",
                  predict,
                  "--prefetch",
                  "top",
                  "--cuda-gemm",
                  gemm },
        .env = { libraries, memory, "FAKECUDA_GRANULE=4096", "MOEPAGER_LOG=info" },
    };
    struct cli_result result;
    bool ran;

    snprintf(memory, sizeof(memory), "FAKECUDA_MEMORY=%llu", (unsigned long long)memory_bytes);
    cli_run(&cli, &result);
    ran = result.exit_code == 0;
    if (!ran && (result.exit_code != 4 || strstr(result.err, "error[E_DEVICE_ROOM]") == NULL)) {
        fprintf(stderr, "%llu bytes, %s, %s: exit code %d\n%s", (unsigned long long)memory_bytes,
                predict, gemm, result.exit_code, result.err);
        exit(1);
    }
    if (!ran) {
        unsigned long long part[5];
        const char *at = strstr(result.err, "weights ");

        CHECK(at != NULL);
        CHECK_EQ(sscanf(at,
                        "weights %llu, KV cache %llu, activations %llu, experts %llu, graphs, "
                        "cuBLAS and rounding %llu bytes",
                        &part[0], &part[1], &part[2], &part[3], &part[4]),
                 5);
        needed_bytes = part[0] + part[1] + part[2] + part[3] + part[4];
    }
    CHECK(!ran || strstr(result.err, "kernel by kernel") == NULL);
    CHECK(!ran || strstr(result.err, "E_CUBLAS") == NULL);
    CHECK(!ran || strstr(result.err, "not enough") == NULL);
    cli_free(&result);
    return ran;
}

/* What passes the plan has the memory that it needs, to the page: the sum that a refusal names is
 * enough, and less is refused. */
static void what_passes_the_plan_runs(void)
{
    static const char *const cases[][2] = { { "gate", "cublas" }, { "partial", "own" } };
    const uint64_t too_little = UINT64_C(1) << 20;
    uint64_t needed[2];

    for (size_t i = 0; i < 2; i++) {
        uint64_t least;

        CHECK(!runs_with(too_little, cases[i][0], cases[i][1], with_cublas));
        needed[i] = needed_bytes;
        least = (needed_bytes + 4095) / 4096 * 4096;
        fprintf(stderr, "    %s, %s: %llu bytes\n", cases[i][0], cases[i][1],
                (unsigned long long)needed_bytes);
        CHECK(runs_with(least, cases[i][0], cases[i][1], with_cublas));
        CHECK(!runs_with(least - 4096, cases[i][0], cases[i][1], with_cublas));
    }
    CHECK(needed[0] > needed[1] + (60u << 20)); /* a workspace for each of two streams */

    /* AUTO needs what it would use: nothing, where cuBLAS is not installed. */
    CHECK(!runs_with(too_little, "gate", "auto", with_cublas));
    CHECK_EQ(needed_bytes, needed[0]);
    CHECK(!runs_with(too_little, "partial", "auto", driver));
    if (dlopen("libcublas.so.13", RTLD_LAZY) == NULL &&
        dlopen("libcublas.so.12", RTLD_LAZY) == NULL)
        CHECK_EQ(needed_bytes, needed[1]);
}

static bool has_track(const char *text, const char *name)
{
    char quoted[64];

    snprintf(quoted, sizeof(quoted), "\"%s\"", name);
    return strstr(text, quoted) != NULL;
}

/* Executors, the link, the disk, and who changes page tables. */
static void the_timeline_has_a_track_for_each_that_works(void)
{
    const char *path = cli_path("timeline.json");
    const struct cli cli = {
        .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens", "8", "--ctx", "64",
                  "--device", "cuda", "--budget", "10%", "--timeline", path },
        .env = { driver, "MOEPAGER_ADDRESSING=window", "FAKECUDA_GRANULE=4096" }
    };
    static const char *const names[] = { "gpu",       "gpu in place", "cpu", "forward", "link",
                                         "transfers", "mapper",       "map", "unmap" };
    struct cli_result result;
    size_t bytes;
    char *text;

    cli_run(&cli, &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.err, "cuda:0 Fake device 0") != NULL);
    cli_free(&result);
    text = cli_read(path, &bytes);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!has_track(text, names[i])) {
            fprintf(stderr, "no '%s' in the timeline\n", names[i]);
            exit(1);
        }
    }
    free(text);
}

static void memory_that_is_not_pinned_is_reported_once(void)
{
    const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "sort 5 3 9 1 ->",
                                       "--max-tokens", "6", "--ctx", "64", "--device", "cuda",
                                       "--budget", "50%" },
                             .env = { driver, "FAKECUDA_HOST_NUMA=0", "FAKECUDA_REGISTER=0" } };
    json_t *cpu = run_on("cpu", "50%");
    struct cli_result result;
    const char *said;

    cli_run(&cli, &result);
    said = strstr(result.err, "host memory is not pinned");
    if (result.exit_code != 0 || said == NULL ||
        strstr(said + 1, "host memory is not pinned") != NULL) {
        fprintf(stderr, "exit code %d: %s\n", result.exit_code, result.err);
        exit(1);
    }
    CHECK(strstr(result.out, text_of(cpu, "text")) != NULL);
    json_decref(cpu);
    cli_free(&result);
}

/* In a child, whose end is reported once, also when the next run finds it in the cache. */
static void a_driver_that_crashes_on_numa_memory_kills_nothing(void)
{
    static char kept[4200];
    static const char *const breaks[] = { "FAKECUDA_HOST_NUMA=2", "FAKECUDA_HOST_NUMA=1" };
    json_t *cpu = run_on("cpu", "50%");

    snprintf(kept, sizeof(kept), "MOEPAGER_CACHE_DIR=%s", test_tmpdir());
    for (unsigned i = 0; i < 4; i++) {
        const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt",
                                           "sort 5 3 9 1 ->", "--max-tokens", "6", "--ctx", "64",
                                           "--device", "cuda", "--budget", "50%",
                                           i < 2 ? "--probe" : NULL, "off" },
                                 .env = { driver, breaks[i % 2], kept } };
        struct cli_result result;
        const char *said;

        cli_run(&cli, &result);
        said = strstr(result.err, "cannot be trusted with memory on a NUMA node");
        if (result.exit_code != 0 || said == NULL ||
            strstr(said + 1, "cannot be trusted") != NULL ||
            strstr(said, "host-numa: crashed with signal 11") == NULL) {
            fprintf(stderr, "exit code %d: %s\n", result.exit_code, result.err);
            exit(1);
        }
        CHECK(strstr(result.out, text_of(cpu, "text")) != NULL);
        cli_free(&result);
    }
    json_decref(cpu);
}

static void hidden_devices_are_not_used(void)
{
    const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens",
                                       "1", "--json" },
                             .env = { driver, "CUDA_VISIBLE_DEVICES=" } };
    const struct cli refused = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--device",
                                           "cuda" },
                                 .env = { driver, "CUDA_VISIBLE_DEVICES=" } };
    json_t *json = cli_json(&cli);

    CHECK_STR(text_of(json, "device"), "cpu");
    json_decref(json);
    cli_expect(&refused, 2, "CUDA_ERROR_NO_DEVICE");
}

/* Whatever hangs, on whichever thread, the program ends, and says where. The limit is one that no
 * wait for kernels that the CPU computes comes near to. Nothing on the device moves while a call
 * hangs, so a thread that waited already for a stream may be the one of which it is said. */
static void a_driver_that_hangs_ends_the_run(void)
{
    static const struct {
        const char *hang, *who, *where;
    } cases[] = {
        { "FAKECUDA_FAIL=cuInit,0,-1", "the CUDA driver", "cuInit;" },
        { "FAKECUDA_FAIL=cuDevicePrimaryCtxRetain,0,-1", "device 0", "" },
        { "FAKECUDA_FAIL=cuMemCreate,2,-1", "device 0", "cuMemCreate;" },
        { "FAKECUDA_FAIL=cuMemcpyHtoDAsync_v2,30,-1", "device 0", "cu" },
        { "FAKECUDA_FAIL=cuEventSynchronize,9,-1", "device 0", "cu" },
        { "FAKECUDA_FAIL=cuStreamSynchronize,9,-1", "device 0", "cu" },
        { "FAKECUDA_FAIL=cuLaunchKernel,20,-1", "device 0", "cu" },
        { "FAKECUDA_FAIL=cuMemUnmap,1,-1", "device 0", "cuMemUnmap;" },
    };

    const char *limit_s = cli_is_sanitized() ? "15" : "5";

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a",
                                           "--max-tokens", "4", "--ctx", "64", "--device", "cuda",
                                           "--budget", "50%", "--watchdog", limit_s },
                                 .env = { driver, cases[i].hang } };
        struct cli_result result;
        char said[128];

        snprintf(said, sizeof(said), "%s not responding for %s s in %s", cases[i].who, limit_s,
                 cases[i].where);
        cli_run(&cli, &result);
        if (result.exit_code != 5 || strstr(result.err, "moepager: error[E_CUDA_HANG]: ") == NULL ||
            strstr(result.err, said) == NULL) {
            fprintf(stderr, "%s: exit code %d: %s\n", cases[i].hang, result.exit_code, result.err);
            exit(1);
        }
        cli_free(&result);
    }
}

/*
 * Where a device is, as a run would have it: hwloc (the machine of tests/data/topo, where only the
 * first one is), else the kernel, which has no such devices here, else the driver. How it is
 * connected nobody says; tests/unit/vmm/topo/pci_link_test.c has that.
 */
static void info_says_where_devices_are(void)
{
    static const struct {
        const char *machine, *driver;
        int nodes[2];
        const char *said[2];
    } cases[] = {
        { "", "FAKECUDA_NUMA_ID=-1", { -1, -1 }, { "NUMA node not known", "NUMA node not known" } },
        { "", "FAKECUDA_NUMA_ID=3", { 3, 3 }, { "NUMA node 3", "NUMA node 3" } },
        { "HWLOC_XMLFILE=tests/data/topo/gpu-on-node-1.xml",
          "FAKECUDA_NUMA_ID=-1",
          { 1, -1 },
          { "NUMA node 1", "NUMA node not known" } },
        { "HWLOC_XMLFILE=tests/data/topo/gpu-on-node-1.xml",
          "FAKECUDA_NUMA_ID=0",
          { 1, 0 },
          { "NUMA node 1", "NUMA node 0" } },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cli cli = { .args = { "info" },
                           .env = { driver, cases[i].driver, "FAKECUDA_DEVICES=2",
                                    cases[i].machine[0] != '\0' ? cases[i].machine : NULL } };
        struct cli_result result;
        json_t *json, *devices;
        char line[200];

        cli_run(&cli, &result);
        CHECK_EQ(result.exit_code, 0);
        cli.args[1] = "--json";
        json = cli_json(&cli);
        devices = json_object_get(json_object_get(json, "cuda"), "devices");
        CHECK_EQ(json_array_size(devices), 2);
        for (size_t d = 0; d < 2; d++) {
            json_t *device = json_array_get(devices, d);

            CHECK_EQ(json_integer_value(json_object_get(device, "numa_node")), cases[i].nodes[d]);
            CHECK(json_is_null(json_object_get(device, "link_speed")));
            CHECK_EQ(json_integer_value(json_object_get(device, "link_width")), 0);
            snprintf(line, sizeof(line), "PCI %s, %s, link not known, driver ",
                     text_of(device, "pci"), cases[i].said[d]);
            CHECK(strstr(result.out, line) != NULL);
        }
        json_decref(json);
        cli_free(&result);
    }
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    CHECK(getenv("FAKECUDA_DIR") != NULL);
    snprintf(driver, sizeof(driver), "LD_LIBRARY_PATH=%s", getenv("FAKECUDA_DIR"));
    snprintf(with_cublas, sizeof(with_cublas), "%s:%s/../fakecublas", driver,
             getenv("FAKECUDA_DIR"));
    RUN(what_passes_the_plan_runs);
    RUN(a_device_gives_the_cpus_text_and_is_named);
    RUN(a_device_that_is_not_there_is_refused);
    RUN(auto_without_a_device_says_why_if_asked);
    RUN(without_a_driver_the_cpu_computes);
    RUN(without_cublas_its_own_kernels_multiply);
    RUN(a_device_that_is_lost_ends_the_run);
    RUN(a_trace_says_how_the_device_routes);
    RUN(memory_that_is_not_pinned_is_reported_once);
    RUN(a_driver_that_crashes_on_numa_memory_kills_nothing);
    RUN(hidden_devices_are_not_used);
    RUN(info_says_where_devices_are);
    RUN(a_driver_that_hangs_ends_the_run);
    RUN(the_timeline_has_a_track_for_each_that_works);
    return 0;
}
