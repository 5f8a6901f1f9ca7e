/*
 * --device on machines that differ or fail: no pinned memory, drivers that crash or hang, hidden
 * devices, where devices are.
 */
#include "tests/system/cli/cli.h"
#include "tests/system/cli/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

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
                                           i % 2 ? "window" : "table", "--spin-us", "0" },
                                 .env = { driver, losses[i], "FAKECUDA_GRANULE=4096" } };

        cli_expect(&cli, 5, "moepager: error[E_CUDA]: ");
    }
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
        { "FAKECUDA_FAIL=cuEventQuery,9,-1", "device 0", "cu" },
        { "FAKECUDA_FAIL=cuStreamSynchronize,2,-1", "device 0", "cu" },
        { "FAKECUDA_FAIL=cuLaunchKernel,20,-1", "device 0", "cu" },
        { "FAKECUDA_FAIL=cuMemUnmap,1,-1", "device 0", "cuMemUnmap;" },
    };

    const char *limit_s = cli_is_sanitized() ? "15" : "5";

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const bool asleep = strstr(cases[i].hang, "Synchronize") != NULL;
        const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a",
                                           "--max-tokens", "4", "--ctx", "64", "--device", "cuda",
                                           "--budget", "50%", "--watchdog", limit_s, "--spin-us",
                                           asleep ? "0" : "100000" },
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
    RUN(a_device_that_is_lost_ends_the_run);
    RUN(memory_that_is_not_pinned_is_reported_once);
    RUN(a_driver_that_crashes_on_numa_memory_kills_nothing);
    RUN(hidden_devices_are_not_used);
    RUN(info_says_where_devices_are);
    RUN(a_driver_that_hangs_ends_the_run);
    return 0;
}
