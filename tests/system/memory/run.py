#!/usr/bin/env python3
"""A run takes the memory it was given and not more; without paging it would.

usage: run.py MOEPAGER WORK_DIR

Makes a model with more than 1 GiB of experts in WORK_DIR and runs it with 12 % of them in RAM,
inside a memory control group whose limit is little above the promise:

    peak RSS <= weights_bytes + budget_bytes + kv_bytes + 64 MiB

Then the same check must fail with --budget all: in the group the run is refused or killed, and
outside of it its peak is above the promise, while its tokens are the same. Groups need root (or a
delegated one); without them only the peaks are measured, and that is said.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
from memory_group import MemoryGroup  # noqa: E402

MIB = 1 << 20
ALLOWANCE_BYTES = 64 * MIB
CACHE_BYTES = 32 * MIB  # of the group, for pages of files that were read through the cache
DISK_BYTES = 2048 * MIB
RAM_BYTES = 2048 * MIB
EXIT_NO_MEMORY = 4


def run(moepager, model, budget, group=None):
    """(exit status or -signal, peak RSS in bytes, standard output, standard error)"""
    command = [moepager, "run", "--model", model, "--prompt", "moepager moves experts", "--ctx",
               "64", "--prefill-tokens", "16", "--max-tokens", "12", "--threads", "2", "--json",
               "--budget", budget]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err,
                                   preexec_fn=group.enter if group else None)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        return (process.returncode, usage.ru_maxrss * 1024, out.read().decode(),
                err.read().decode(errors="replace"))


def fail(text):
    print(f"FAILED: {text}")
    sys.exit(1)


def expect_run(result, what):
    status, peak, out, err = result
    if status != 0:
        fail(f"{what}: exit {status}: {err.strip()}")
    return json.loads(out), peak


def available_bytes():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def check(moepager, model, group):
    sizes = json.loads(subprocess.run([moepager, "info", "--model", model, "--json", "--budget",
                                       "12%", "--ctx", "64", "--prefill-tokens", "16"], check=True,
                                      stdout=subprocess.PIPE).stdout)["model"]
    if sizes["expert_bytes"] < 1024 * MIB:
        fail(f"the experts have only {sizes['expert_bytes']} bytes")
    bound = (sizes["weights_bytes"] + sizes["budget_bytes"] + sizes["kv_bytes"] + ALLOWANCE_BYTES)
    print(f"experts {sizes['expert_bytes'] / MIB:.0f} MiB, promise {bound / MIB:.1f} MiB = weights "
          f"{sizes['weights_bytes'] / MIB:.1f} + budget {sizes['budget_bytes'] / MIB:.1f} + KV "
          f"{sizes['kv_bytes'] / MIB:.1f} + {ALLOWANCE_BYTES / MIB:.0f}")
    if group.path is not None:
        group.set_limit(bound + CACHE_BYTES)
        print(f"memory group {group.path}, limit {(bound + CACHE_BYTES) / MIB:.1f} MiB")
        inside = group
    else:
        print("NO MEMORY GROUP, peaks are only measured: " + "; ".join(group.why))
        inside = None

    paged, peak = expect_run(run(moepager, model, "12%", inside), "12 % of the experts")
    print(f"12 %: peak {peak / MIB:.1f} MiB, hit rate {paged['hit_rate']:.2f}, "
          f"{paged['bytes_loaded'] / MIB:.0f} MiB loaded")
    for key in ("weights_bytes", "budget_bytes", "kv_bytes"):
        if paged[key] != sizes[key]:
            fail(f"{key} is {paged[key]} in run and {sizes[key]} in info")
    if peak > bound:
        fail(f"peak {peak} bytes is above the promise of {bound}")
    if paged["bytes_loaded"] <= paged["budget_bytes"] or paged["counters"]["evictions"] == 0:
        fail("nothing was paged, so nothing was shown")

    if inside is not None:
        status, peak, _, err = run(moepager, model, "all", inside)
        refused = status == EXIT_NO_MEMORY and "E_RAM" in err
        if not (refused or status == -signal.SIGKILL or peak > bound):
            fail(f"all experts in the group: exit {status}, peak {peak}: the check finds nothing")
        print(f"all experts in the group: {'refused' if refused else f'exit {status}'}, as it must")
    if available_bytes() < RAM_BYTES:
        print("NOT RUN: all experts outside the group, for want of RAM")
        if inside is None:
            fail("without a group and without RAM there is no counter-check")
        return
    whole, peak = expect_run(run(moepager, model, "all"), "all experts")
    print(f"all experts: peak {peak / MIB:.1f} MiB")
    if peak <= bound:
        fail(f"with all experts in RAM the peak is {peak} bytes: the check finds nothing")
    if whole["tokens"] != paged["tokens"] or len(paged["tokens"]) != 12:
        fail(f"tokens differ: {paged['tokens']} and {whole['tokens']}")


def main():
    moepager, work = sys.argv[1:]
    free = shutil.disk_usage(work).free
    if free < DISK_BYTES:
        print(f"skipped: {free} bytes free in {work}, need {DISK_BYTES}")
        return 77
    group = MemoryGroup()
    with tempfile.TemporaryDirectory(dir=work, prefix="memory-test-") as model:
        try:
            subprocess.run([sys.executable, ROOT / "tools/make_bench_model", "--tokenizer",
                            ROOT / "models/tiny-moe", "--out", model, "--layers", "12",
                            "--experts", "32", "--top-k", "4", "--hidden", "512", "--ffn", "1024",
                            "--heads", "8", "--kv-heads", "2", "--head-dim", "64"], check=True,
                           stdout=subprocess.DEVNULL)
            check(moepager, model, group)
        finally:
            group.remove()
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
