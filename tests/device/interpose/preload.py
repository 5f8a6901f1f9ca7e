#!/usr/bin/env python3
"""preload.py BUILD CASE: the programs of this folder with moepager preloaded compute what they
compute without it, and what was to happen did.

  budgets   device budgets from the smallest to more than all, both runtimes and ways of launching
  timing    work that lags behind by chance, or until it is waited for
  nothing   without a budget, or with one that holds all, no window is made
  refused   what cannot be done is left to the program, with one line
  busy      several threads that launch, capture, copy, wait, allocate and free at once
  again     a program that resets its device, after which windows are gone, and begins again; what
            it has on another device goes on as before
  forks     children that cannot use the device, while threads do
  others    another preloaded library with hooks of the same functions
  lookups   functions of CUDA that are asked for by name
  uploads   experts that a program keeps on the host and copies itself
  failures  every call of the driver that fails once ends in the same results or in a refusal
"""
import os
import re
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import programs

BUILD = programs.BUILD
# A program that ends keeps its models, and a thread of ours that was done before is never joined.
os.environ["TSAN_OPTIONS"] = f"{os.environ.get('TSAN_OPTIONS', '')}:report_thread_leaks=0"
BASE = {"FAKECUDA_GRANULE": "65536", "MOEPAGER_GPU_WINDOW": "256K", "MOEPAGER_GPU_UNIT": "256K",
        "MOEPAGER_GPU_HOST_BUDGET": "40M", "MOEPAGER_LOG": "info"}
# What of the device a program takes besides large allocations, and all that it takes.
SMALL = {"llama_like": "600K", "torch_like": "1M", "vllm_like": "600K"}
MIDDLE = {"llama_like": "4M", "torch_like": "9M", "vllm_like": "3M"}


def run(case, runtime, launches, budget, env=None, code=0):
    program, args = case
    preload = {"LD_PRELOAD": str(BUILD / "libmoepager_preload.so"), "MOEPAGER_GPU_BUDGET": budget}
    return programs.run(program, [*args, launches], runtime,
                        {**BASE, **preload, **(env or {})}, code)


def all_figures(said):
    """What the interposer says at the end, and when a device is reset."""
    found = re.findall(r"windows (\d+) made (\d+) units (\d+) on the device (\d+) moves (\d+) "
                       r"bytes (\d+) failed (\d+) refused (\d+)", said)
    names = "windows made units device moves bytes failed refused".split()
    return [dict(zip(names, map(int, values))) for values in found]


def figures(said):
    found = all_figures(said)
    if len(found) != 1:
        sys.exit(f"it does not say once at the end what was done:\n{said}")
    return found[0]


def check(what, ok):
    if not ok:
        sys.exit(f"wrong: {what}")


def plain(case):
    return programs.run(case[0], [*case[1], 12], 12, {"FAKECUDA_GRANULE": "65536"})[0]


def budgets(cases):
    for case in cases:
        expected = plain(case)
        for budget in (SMALL[case[0]], MIDDLE[case[0]]):
            for runtime, launches in programs.WAYS:
                out, said = run(case, runtime, launches, budget)
                check(f"{case[0]} {budget} {runtime}: other results", out == expected)
                done = figures(said)
                check(f"{case[0]} {budget} {runtime}: {done}",
                      done["made"] > 0 and done["moves"] > 0 and done["failed"] == 0 and
                      done["windows"] == 0 and done["refused"] == 0)
    # The second of two devices.
    case, devices = cases[0], {"FAKECUDA_DEVICES": "2", "PROGRAM_DEVICE": "1"}
    for runtime, launches in programs.WAYS:
        out, said = run(case, runtime, launches, "4M", devices)
        check(f"device 1 {runtime}: other results", out == plain(case))
        check(f"device 1 {runtime}: {said}", "device 1: " in said and "device 0: " not in said and
              figures(said)["moves"] > 0)


def lookups(_):
    """Functions that are asked for by name."""
    for runtime in (12, 13):
        run(("lookups", []), runtime, "hooked", "")
        run(("lookups", []), runtime, "hooked", "1M")
        programs.run("lookups", ["plain"], runtime)


def busy(_):
    """Several threads that do everything at once."""
    case = ("busy", [4, 120])
    expected = plain(case)
    for runtime, launches, env in ((12, 12, {}), (13, 13, {"FAKECUDA_SEED": "21"}),
                                   ("static", 12, {"FAKECUDA_SEED": "22"}),
                                   (13, "ex", {"FAKECUDA_LAZY": "1"})):
        out, said = run(case, runtime, launches, "1536K", dict(env, MOEPAGER_GPU_UNIT="128K"))
        check(f"{runtime} {env}: other results", out == expected)
        done = figures(said)
        check(f"{runtime} {env}: {done}", done["moves"] > 0 and done["made"] > 10 and
              done["windows"] == 0 and done["failed"] == 0)


def again(_):
    """A device that is reset: windows are gone, and what comes after is as it was before."""
    case = ("again", [5])
    expected = plain(case)
    check("rounds differ", len({line.split()[1] for line in expected.split("\n") if line}) == 1)
    for runtime, launches in programs.WAYS:
        for env in ({}, {"FAKECUDA_SEED": "31"}, {"FAKECUDA_LAZY": "2"}):
            out, said = run(case, runtime, launches, "2M", env)
            check(f"{runtime} {env}: other results", out == expected)
            rounds = all_figures(said)
            check(f"{runtime} {env}: {said}", len(rounds) == 5 and all(
                done["made"] > 0 and done["moves"] > 0 and done["failed"] == 0 for done in rounds))
    # What another device has stays, and its units move on after each reset: the hot ones change.
    beside, two = ("again", [4, 12, "beside"]), {"FAKECUDA_DEVICES": "2"}
    of_both = programs.run("again", beside[1], 12, {"FAKECUDA_GRANULE": "65536", **two})[0]
    for runtime in (12, 13):
        for env in ({}, {"FAKECUDA_SEED": "31"}):
            out, said = programs.run("again", [4, runtime, "beside"], runtime, {
                **BASE, "LD_PRELOAD": str(BUILD / "libmoepager_preload.so"),
                "MOEPAGER_GPU_BUDGET": "2M", **two, **env})
            check(f"beside {runtime} {env}: other results", out == of_both)
            *resets, last = all_figures(said)
            check(f"beside {runtime} {env}: {said}", len(resets) == 4 and all(
                done["made"] > 0 and done["moves"] > 0 for done in resets) and
                last["windows"] > 0 and last["moves"] > 6 and last["failed"] == 0)
    # With a budget that holds all, and without one.
    for budget in ("200M", ""):
        check(f"{budget}: other results", run(case, 12, 12, budget)[0] == expected)


def forks(_):
    """A child is told that it cannot use the device, and ends; nobody else is disturbed."""
    case = ("forks", [12])
    expected = plain(case)
    for runtime, launches in ((12, 12), (13, 13)):
        out, said = run(case, runtime, launches, "1M")
        check(f"{runtime}: other results", out == expected)
        done = figures(said)        # of the parent alone
        check(f"{runtime}: {done}", done["moves"] > 0 and done["failed"] == 0)


def others(cases):
    """Another library that hooks the same, before or behind ours."""
    case = cases[0]
    expected = plain(case)
    ours, other = BUILD / "libmoepager_preload.so", BUILD / "libdevice_interpose_other.so"
    for order in (f"{other}:{ours}", f"{ours}:{other}"):
        for runtime in (12, 13):
            out, said = run(case, runtime, 12, "2M", {"LD_PRELOAD": order})
            check(f"{order}: other results", out == expected)
            check(f"{order}: {said}", figures(said)["moves"] > 0)
            counts = re.search(r"other: (\d+) mallocs, (\d+) frees", said)
            check(f"{order}: {said}", counts and int(counts[1]) > 0 and int(counts[2]) > 0)


def timing(cases):
    for case in cases:
        expected = plain(case)
        for env in ({"FAKECUDA_SEED": "11"}, {"FAKECUDA_SEED": "12"}, {"FAKECUDA_LAZY": "3"}):
            out, said = run(case, 13, 13, MIDDLE[case[0]], env)
            check(f"{case[0]} {env}: other results", out == expected)
            check(f"{case[0]} {env}: nothing moved", figures(said)["moves"] > 0)


def nothing(cases):
    for case in cases:
        expected = plain(case)
        out, said = run(case, 12, 12, "")
        check(f"{case[0]}: says something without a budget: {said}", said == "")
        check(f"{case[0]}: other results", out == expected)
        out, said = run(case, 13, 13, "200M")
        check(f"{case[0]}: other results", out == expected)
        check(f"{case[0]}: {said}", figures(said)["made"] == 0)


def refused(cases):
    case = cases[0]
    expected = plain(case)
    # What is shared with others is left alone.
    for how, said_of_it in (("library", "what libnccl allocates is left alone"),
                            ("peer", "devices read each other's memory"),
                            ("ipc", "shares memory with other processes"), ("pool", "")):
        for runtime in (12, 13):
            _, said = run(("left_alone", []), runtime, how, "1M")
            check(f"{how}: {said}", said_of_it in said and
                  not re.search("made [1-9]", said))
    # Less host memory than the window needs: the program's own allocation, and one line.
    out, said = run(case, 12, 12, "1M", {"MOEPAGER_GPU_HOST_BUDGET": "2M"})
    check("other results", out == expected)
    check(said, figures(said)["refused"] > 0 and said.count("warn") == 1)
    # A device without host memory by handle has no windows.
    out, said = run(case, 12, 12, "1M", {"FAKECUDA_HOST_NUMA": "0"})
    check("other results", out == expected)
    check(said, figures(said)["made"] == 0 and said.count("warn") == 1)
    # A budget that is none, a policy that is none.
    for env in ({"MOEPAGER_GPU_EVICT": "score"}, {"MOEPAGER_GPU_UNIT": "64M"}):
        out, said = run(case, 12, 12, "1M", env)
        check("other results", out == expected)
        check(said, said.count("warn") == 1 and "no windows" in said)
    # Neither the device nor a window holds it: managed memory, unless that is switched off.
    tight = {"FAKECUDA_MEMORY": str(4 << 20), "MOEPAGER_GPU_HOST_BUDGET": "2M"}
    out, said = run(case, 12, 12, "1M", tight)
    check("other results with managed memory", out == expected)
    run(case, 12, 12, "1M", dict(tight, MOEPAGER_GPU_MANAGED="off"), code=1)


def failures(cases):
    """The program's own calls fail too: then it ends with an error of its own (1)."""
    case = cases[0]
    expected = plain(case)
    ended = {0: 0, 1: 0}
    for call, count in (("cuMemCreate", 30), ("cuMemMap", 40), ("cuMemSetAccess", 40),
                        ("cuMemUnmap", 20), ("cuMemAddressReserve", 30), ("cuEventRecord", 6),
                        ("cuEventSynchronize", 6), ("cuStreamQuery", 6), ("cuCtxGetCurrent", 6),
                        ("cuDevicePrimaryCtxRetain", 3), ("cuMemGetInfo_v2", 3),
                        ("cuStreamCreateWithPriority", 3), ("cuMemcpyHtoDAsync_v2", 6),
                        ("cuMemcpyDtoHAsync_v2", 4)):
        for nth in range(0, count, 1 if count < 10 else 3):
            env = {"FAKECUDA_FAIL": f"{call},{nth},2"}
            for code in (0, 1):
                try:
                    out, _ = run(case, 12, 12, "2M", env, code)
                    break
                except SystemExit:
                    if code == 1:
                        raise
            check(f"{env}: other results", code == 1 or out == expected)
            ended[code] += 1
    check(f"failures end in results {ended[0]} times, in errors {ended[1]} times",
          ended[0] > 3 * ended[1])


def uploads(cases):
    """Experts that the program copies itself come through the pager of the host's memory."""
    for mode in ("turns", "ahead"):
        case = ("experts_on_host", [cases[0][1][0], 24, mode])
        expected = plain(case)
        for budget, env, pins in (("1M", {}, True), ("3M", {"FAKECUDA_LAZY": "3"}, True),
                                  ("3M", {"FAKECUDA_SEED": "5"}, True),
                                  ("3M", {"FAKECUDA_REGISTER": "0"}, False)):
            for runtime in (12, 13):
                out, said = run(case, runtime, runtime, "", {
                    "MOEPAGER_BUDGET": budget, "MOEPAGER_REPORT": "1", "MOEPAGER_LOG": "warn",
                    **env})
                what = f"{mode} {budget} {env} {runtime}: {said}"
                check(f"{what}: other results", out == expected)
                uses = re.search(r"hit rate .*: (\d+) of (\d+) expert uses", said)
                copies = re.search(r"(\d+) copies from [0-9.]+ MiB of pinned slots", said)
                check(what, uses and int(uses[2]) >= 24 * 4 and int(uses[1]) > 0)
                check(what, (copies is not None and int(copies[1]) > 500) == pins)
                check(what, said.count("warn") == (0 if pins else 1))


CASES = {case.__name__: case for case in (budgets, timing, nothing, refused, failures, uploads,
                                          lookups, others, busy, again, forks)}


def main():
    with tempfile.TemporaryDirectory() as name:
        CASES[sys.argv[2]](programs.cases(Path(name)))


if __name__ == "__main__":
    main()
