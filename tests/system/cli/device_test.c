/*
 * --device: which one a run uses and what it says of it, also where it is lost; routing of a trace
 * on it. On the CUDA driver without a device, whose folder is in FAKECUDA_DIR.
 */
#include "tests/system/cli/cli.h"
#include "tests/system/cli/device.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "policy/record/trace.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

static char with_cublas[8500];

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

static json_t *run_with_cache(const char *device, const char *type)
{
    const struct cli cli = {
        .args = { "run", "--model", CLI_MODEL, "--prompt", "sort 5 3 9 1 ->", "--max-tokens", "6",
                  "--ctx", "64", "--json", "--device", device, "--kv-type", type },
        .env = { driver },
    };

    return cli_json(&cli);
}

static void a_cache_of_16_bits_is_half_of_the_plan(void)
{
    json_t *wide = run_with_cache("cuda", "f32");
    const json_int_t bytes = json_integer_value(json_object_get(wide, "kv_bytes"));

    CHECK(bytes > 0);
    for (int i = 0; i < 2; i++) {
        const char *type = i == 0 ? "bf16" : "f16";
        json_t *cpu = run_with_cache("cpu", type), *cuda = run_with_cache("cuda", type);

        CHECK_STR(text_of(cuda, "device"), "Fake device 0");
        CHECK_STR(text_of(cuda, "kv_type"), type);
        CHECK_STR(text_of(cuda, "text"), text_of(cpu, "text"));
        CHECK_EQ(2 * json_integer_value(json_object_get(cuda, "kv_bytes")), bytes);
        json_decref(cpu);
        json_decref(cuda);
    }
    json_decref(wide);
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
    const struct cli blocks = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--device",
                                          "cuda", "--kv-type", "q8_0" },
                                .env = { driver } };
    const struct cli no_driver = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a",
                                             "--device", "cuda" },
                                   .env = { driver, "FAKECUDA_INIT=100" } };

    cli_expect(&eighth, 2, "error[E_CUDA_DEVICE]: there is no CUDA device 7; the driver sees 1");
    cli_expect(&third, 2, "error[E_CUDA_DEVICE]: there is no CUDA device 2; the driver sees 2");
    cli_expect(&eleventh, 2, "error[E_CUDA_DEVICE]: there is no CUDA device 10; the driver sees 1");
    cli_expect(&blocks, 2,
               "error[E_KV_TYPE]: KV cache of type q8_0: a GPU has f32, f16 and bf16; --device cpu "
               "has all");
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

/* Where policies ask for costs, `auto` measures them once and keeps them; `cached` only looks. */
static void costs_are_measured_by_auto_alone(void)
{
    static const struct {
        const char *probe, *profile;
        size_t files;
    } cases[] = {
        { "cached", "dali", 0 }, { "off", "dali", 0 }, { "auto", "lru", 0 }, { "auto", "dali", 1 }
    };
    char kept[4200], pattern[4200];

    snprintf(kept, sizeof(kept), "MOEPAGER_CACHE_DIR=%s", cli_path("costs"));
    snprintf(pattern, sizeof(pattern), "%s/probe-*-128x96-*.json", cli_path("costs"));
    CHECK_EQ(mkdir(cli_path("costs"), 0700), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a",
                                           "--max-tokens", "1", "--device", "cuda", "--budget",
                                           "50%", "--profile", cases[i].profile, "--probe",
                                           cases[i].probe },
                                 .env = { driver, kept, "FAKECUDA_MEMORY=167772160" } };
        glob_t found = { 0 };
        struct cli_result result;

        cli_run(&cli, &result);
        CHECK_EQ(result.exit_code, 0);
        cli_free(&result);
        CHECK(glob(pattern, 0, NULL, &found) == (cases[i].files > 0 ? 0 : GLOB_NOMATCH));
        CHECK_EQ(found.gl_pathc, cases[i].files);
        globfree(&found);
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
    RUN(a_cache_of_16_bits_is_half_of_the_plan);
    RUN(a_device_that_is_not_there_is_refused);
    RUN(auto_without_a_device_says_why_if_asked);
    RUN(without_a_driver_the_cpu_computes);
    RUN(without_cublas_its_own_kernels_multiply);
    RUN(a_trace_says_how_the_device_routes);
    RUN(costs_are_measured_by_auto_alone);
    RUN(the_timeline_has_a_track_for_each_that_works);
    return 0;
}
