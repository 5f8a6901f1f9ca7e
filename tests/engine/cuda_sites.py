#!/usr/bin/env python3
"""Is every place of the source that calls the driver among those that failed in a test?

usage: cuda_sites.py PROGRAM

PROGRAM is engine/cuda_faults_test; each of its variants `sites-*` has left a file beside it with the
places that failed. A place is a line with `call->NAME(` or `call.NAME(` in vmm or engine. Those
that no variant reaches stand below with the reason; one that is reached must not. Skipped (77)
where not all variants have run.
"""
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

VARIANTS = ["sites-table", "sites-table-graphs", "sites-window-exclusive", "sites-window-hybrid"]

START = "made once in a process, before any test; vmm/backend_cuda_test:init_fails and no_device fail it"
WORK = "engine/gpu_test fails it: each_call_of_work_fails_once"
PROBE = "of the probe, in a process of its own; engine/probe_test:places fails it"

# (file, call): how many places, and why they are not met
EXCUSED = {
    ("engine/gpu.c", "cuStreamWaitEvent"): (1, WORK),
    ("engine/gpu.c", "cuEventQuery"): (1, WORK),
    ("engine/gpu.c", "cuFuncSetAttribute"): (
        1, "no kernel of today needs it; engine/gpu_test: more_shared_memory_is_asked_for_once"),
    ("engine/probe_memory.c", "cuMemAddressReserve"): (2, PROBE),
    ("engine/probe_memory.c", "cuMemCreate"): (2, PROBE),
    ("engine/probe_memory.c", "cuMemMap"): (2, PROBE),
    ("engine/probe_memory.c", "cuMemSetAccess"): (2, PROBE),
    ("engine/probe_memory.c", "cuMemUnmap"): (2, PROBE),
    ("engine/probe_memory.c", "cuMemRelease"): (2, PROBE),
    ("engine/probe_memory.c", "cuMemAddressFree"): (2, PROBE),
    ("engine/probe_memory.c", "cuMemGetAllocationGranularity"): (1, PROBE),
    ("engine/probe_memory.c", "cuMemcpyDtoDAsync_v2"): (1, PROBE),
    ("vmm/backend_cuda_move.c", "cuMemcpyDtoDAsync_v2"): (
        1, "no engine copies so; vmm/backend_cuda_test: a_copy_on_the_device_fails_and_then_works"),
    ("vmm/cuda_driver.c", "cuInit"): (1, START),
    ("vmm/cuda_driver.c", "cuDriverGetVersion"): (1, START),
    ("vmm/cuda_driver.c", "cuDeviceGetCount"): (1, START),
}

# Its calls are those of cuBLAS: engine/cuda_faults_test:cublas.
OTHERS = ["engine/cublas.c"]


def exported_names():
    text = Path("vmm/cuda_abi.h").read_text()
    return dict(re.findall(r"X\((\w+),\s*(cu\w+),", text))


def places(names):
    """{(file, exported name): lines}"""
    found = defaultdict(list)
    for path in sorted([*Path("vmm").glob("*.c"), *Path("engine").glob("*.c")]):
        if str(path) in OTHERS:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for member in re.findall(r"\bcall(?:->|\.)(\w+)\(", line):
                if member in names:
                    found[str(path), names[member]].append(number)
    return found


def failed(program):
    """{(file, exported name): lines}"""
    calls, addresses = [], []
    for variant in VARIANTS:
        path = Path(f"{program}.{variant}")
        if not path.exists() or path.stat().st_mtime < Path(program).stat().st_mtime:
            print(f"cuda_sites: {path} is not there, or older than the program")
            sys.exit(77)
        for line in path.read_text().splitlines():
            call, address = line.split()
            calls.append(call)
            addresses.append(hex(int(address, 16) - 1))
    lines = subprocess.run(["addr2line", "-e", program, *addresses], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    found = defaultdict(set)
    for call, line in zip(calls, lines):
        path, number = line.split(" ")[0].rsplit(":", 1)
        if number.isdigit():
            found["/".join(Path(path).parts[-2:]), call].add(int(number))
    return found


def main():
    names = exported_names()
    reached = failed(sys.argv[1])
    wrong = count = 0
    for key, lines in places(names).items():
        missing = [n for n in lines if not any(n - 3 <= r < n + 6 for r in reached[key])]
        count += len(lines)
        excused = EXCUSED.get(key)
        if len(missing) != (excused[0] if excused else 0):
            wrong += 1
            print(f"cuda_sites: {key[0]}: {key[1]}: lines {lines}, of which {missing or 'none'} never "
                  f"failed; excused: {excused[0] if excused else 0}")
    for key in EXCUSED.keys() - places(names).keys():
        wrong += 1
        print(f"cuda_sites: {key[0]} has no {key[1]}, and needs no excuse")
    print(f"cuda_sites: {count} places, {sum(e[0] for e in EXCUSED.values())} excused, {wrong} wrong")
    return wrong > 0


sys.exit(main())
