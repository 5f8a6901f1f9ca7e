/*
 * Runs of a small model, and the commands, with every call that can fail made to fail at every
 * place in the code that makes it (engine_fault_run.h).
 *
 * At the end the program's own machine code is searched for calls that were never reached; not
 * where each call fails in one way only.
 */
#include <unistd.h>

#include "engine/repack/repack.h"
#include "tests/model/fault/engine_fault_parts.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

#define MODEL "tests/data/models/mixtral-tiny" /* two layers */
#define SLICES 2

static char sites_path[4200], sliced_path[4200];

static void make_sliced(void)
{
    const struct mp_repack_config config = {
        .model = MODEL, .out = sliced_path, .slices = SLICES, .shard_bytes = UINT64_C(1) << 30
    };
    struct mp_repack_report report;

    snprintf(sliced_path, sizeof(sliced_path), "%s/sliced", test_tmpdir());
    CHECK_EQ(mp_repack(&config, &report), MP_OK);
    CHECK_EQ(report.slices, SLICES);
}

/* The sweeps found the sites that were reached; are there others in the program? */
static void every_site_was_reached(void)
{
    char program[4096] = { 0 }, command[16384];

    CHECK(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
    snprintf(
        command, sizeof(command),
        "python3 tests/support/fault/sites.py '%s' '%s' tests/model/fault/engine_fault_excuses.txt 1>&2",
        program, sites_path);
    fflush(stdout);
    CHECK_EQ(system(command), 0);
}

int main(void)
{
    static const struct fault_run runs[] = {
        { "threads, buffered", MODEL, "cpu", MP_IO_BUFFERED, false, "lru", "" },
        { "io_uring, direct where possible", MODEL, "cpu", MP_IO_AUTO, true, "gate-lru", "" },
        { "slices", sliced_path, "cpu", MP_IO_AUTO, true, "moepic", MODEL },
        { "cuda", MODEL, "cuda", MP_IO_AUTO, true, "gate-lru", NULL }, /* on the fake driver */
    };
    const bool one_way = fault_run_init(false);

    snprintf(sites_path, sizeof(sites_path), "%s/sites", test_tmpdir());
    make_sliced();
    for (size_t i = 0; i < MP_ARRAY_LEN(runs); i++) {
        fault_sweep_briefly(i >= 2);
        fault_run_sweep(&runs[i], sites_path);
    }
    CHECK(freopen("/dev/null", "w", stdout) != NULL); /* where commands print */
    fault_sweep_briefly(true);
    fault_sweep_new_ways(one_way);
    fault_sweep_commands(sites_path);
    fault_sweep_calibration(sites_path);
    fault_sweep_tokenizers(sites_path);
    fault_sweep_policies(sites_path);
    fault_sweep_single_calls(sites_path);
    if (!one_way)
        every_site_was_reached();
    return 0;
}
