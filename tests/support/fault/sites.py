#!/usr/bin/env python3
"""Compares the calls that a test program contains with those that were made to fail.

usage: sites.py PROGRAM FAILED EXCUSES

FAILED is what fault_write_failed() wrote. Every call of a wrapped function in the machine code of
vmm/, policy/ and engine/ must be in it, or be excused in the file EXCUSES by a line

    path[:function[:call]]  reason

An excuse that excuses nothing is an error too. Needs objdump and addr2line (binutils).
"""
import re
import subprocess
import sys

INSN = re.compile(r"^\s*([0-9a-f]+):\s+(\S.*)$")
CALL = re.compile(r"^(?:callq?|bl)\s.*<__wrap_(\w+)>$")
NOT_SWEPT = {"munmap", "pthread_join", "mbind"}  # not of FAULT_ANY


def calls_of(program):
    """{return address: name} of all calls of wrapped functions."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", program], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    found, pending = {}, None
    for line in text.splitlines():
        insn = INSN.match(line)
        if insn is None:
            continue
        if pending is not None:
            found[int(insn[1], 16)] = pending
        call = CALL.match(insn[2])
        pending = call[1] if call and call[1] not in NOT_SWEPT else None
    return found


def places_of(program, addresses):
    """(path in the tree, function, line) of each address, from the debug information."""
    asked = "\n".join(f"{address - 1:x}" for address in addresses)
    lines = subprocess.run(["addr2line", "-f", "-e", program], check=True, input=asked, text=True,
                           stdout=subprocess.PIPE).stdout.splitlines()
    for function, place in zip(lines[::2], lines[1::2]):
        path, _, line = place.split(" ")[0].rpartition(":")
        layer = re.search(r"(?:^|/)((?:vmm|policy|engine)/[\w/]+\.[ch])$", path)
        in_tests = re.search(r"(?:^|/)tests/", path)
        yield (layer[1], function, line) if layer and not in_tests else None


def read_excuses(path):
    with open(path, encoding="utf-8") as f:
        rows = [line.split(None, 1) for line in f if line.strip() and not line.startswith("#")]
    return {row[0]: row[1].strip() for row in rows}


def main():
    program, failed_path, excuses_path = sys.argv[1:]
    calls, excuses, used = calls_of(program), read_excuses(excuses_path), set()
    with open(failed_path, encoding="utf-8") as f:
        failed = {int(line.split()[1], 16) for line in f}
    addresses = sorted(calls)
    total = missed = excused = 0
    for address, place in zip(addresses, places_of(program, addresses)):
        if place is None:
            continue
        path, function, line = place
        total += 1
        if address in failed:
            continue
        call = calls[address]
        keys = [path, f"{path}:{function}", f"{path}:{function}:{call}"]
        hit = [key for key in keys if key in excuses]
        used.update(hit)
        if hit:
            excused += 1
        else:
            missed += 1
            print(f"{path}:{line}: {call} in {function} was never made to fail")
    stale = sorted(set(excuses) - used)
    for key in stale:
        print(f"{excuses_path}: nothing is left to excuse in {key}")
    print(f"{total} call sites, {total - excused - missed} failed, {excused} excused, "
          f"{missed} missed")
    if total - excused - missed < 100:
        print("too few: the program was not understood")
        return 1
    return 1 if missed or stale else 0


if __name__ == "__main__":
    sys.exit(main())
