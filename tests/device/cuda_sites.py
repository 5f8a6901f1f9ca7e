#!/usr/bin/env python3
"""Is every place of the source that calls the driver among those that failed in a test?

usage: cuda_sites.py PROGRAM.VARIANT...

Each PROGRAM.VARIANT is the file that a variant of a program leaves (report_failed_sites() in
tests/device/fakecuda/client.h): the places that failed. A place of the source is a line with `call->NAME(`
or `call.NAME(` in vmm or engine. Those that no variant reaches stand below with the test that fails
them; one that is reached must not. Skipped (77) where not all variants have run, and with
MP_FAULTS=one-way, where places behind one way of another may not be reached.
"""
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

START = "made once in a process, before any test; device/vmm/backend_cuda_test:"

# (file, call): how many places, and why they are not met
EXCUSED = {
    ("engine/gpu/gpu.c", "cuModuleLoadDataEx"): (
        1, "of a compiled file; device/gpu_image_test: a_driver_that_is_lost_meanwhile_is_an_error"),
    ("engine/gpu/gpu.c", "cuFuncSetAttribute"): (
        1, "no kernel of today needs it; device/gpu_test: more_shared_memory_is_asked_for_once"),
    ("vmm/backend/cuda/moves.c", "cuMemcpyDtoDAsync_v2"): (
        1, "no engine copies so; device/vmm/backend_cuda_test: a_copy_on_the_device_fails_and_then_works"),
    ("vmm/backend/cuda/cuda_driver.c", "cuInit"): (1, START + "init_fails"),
    ("vmm/backend/cuda/cuda_driver.c", "cuDriverGetVersion"): (1, START + "version_fails"),
    ("vmm/backend/cuda/cuda_driver.c", "cuDeviceGetCount"): (1, START + "count_fails"),
}

# Its calls are those of cuBLAS: device/cuda_sites_test:cublas.
OTHERS = ["engine/gpu/cublas.c"]


def exported_names():
    text = Path("vmm/backend/cuda/cuda_abi.h").read_text()
    return dict(re.findall(r"X\((\w+),\s*(cu\w+),", text))


def places(names):
    """{(file, exported name): lines}"""
    found = defaultdict(list)
    for path in sorted([*Path("vmm").rglob("*.c"), *Path("engine").rglob("*.c")]):
        if str(path) in OTHERS:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for member in re.findall(r"\bcall(?:->|\.)(\w+)\(", line):
                if member in names:
                    found[str(path), names[member]].append(number)
    return found


def read(path):
    """Calls, and where in the source they are made."""
    program = path.rpartition(".")[0]
    if not Path(path).exists() or Path(path).stat().st_mtime < Path(program).stat().st_mtime:
        print(f"cuda_sites: {path} is not there, or older than the program")
        sys.exit(77)
    pairs = [line.split() for line in Path(path).read_text().splitlines()]
    lines = subprocess.run(["addr2line", "-e", program, *(hex(int(at, 16) - 1) for _, at in pairs)],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    return zip((call for call, _ in pairs), lines)


def failed(paths):
    """{(file, exported name): lines}"""
    found = defaultdict(set)
    for path in paths:
        for call, line in read(path):
            file, number = line.split(" ")[0].rsplit(":", 1)
            if number.isdigit():
                inside = re.fullmatch(r".*/((?:vmm|engine)/.*)", "/" + file)
                found[inside[1] if inside else file, call].add(int(number))
    return found


def never_failed(lines, reached):
    """Of `lines`, those without a reached line of their own: a call may stand on several lines."""
    left = sorted(reached)
    missing = []
    for line in lines:
        near = next((r for r in left if line - 3 <= r < line + 6), None)
        if near is None:
            missing.append(line)
        else:
            left.remove(near)
    return missing


def main():
    if os.environ.get("MP_FAULTS") == "one-way":
        print("cuda_sites: places fail in one way only")
        return 77
    names = exported_names()
    reached = failed(sys.argv[1:])
    wrong = count = 0
    for key, lines in places(names).items():
        missing = never_failed(lines, reached[key])
        count += len(lines)
        excused = EXCUSED.get(key)
        if len(missing) != (excused[0] if excused else 0):
            wrong += 1
            print(f"cuda_sites: {key[0]}: {key[1]}: lines {lines}, of which {missing or 'none'} "
                  f"never failed; excused: {excused[0] if excused else 0}")
    for key in EXCUSED.keys() - places(names).keys():
        wrong += 1
        print(f"cuda_sites: {key[0]} has no {key[1]}, and needs no excuse")
    excuses = sum(excuse[0] for excuse in EXCUSED.values())
    print(f"cuda_sites: {count} places, {excuses} excused, {wrong} wrong")
    return wrong > 0


sys.exit(main())
