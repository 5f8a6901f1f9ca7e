#!/usr/bin/env python3
"""The library under a program whose model file, or the disk below it, is anything but in order: the
program sees the file's bytes, or what it would have seen without the library.

usage: files_test.py CASE PRELOAD WORK [--full]

  mapping    a program that only maps a model: every byte, by eight threads, by a child, by system
             calls; parts unmapped, protected, moved, mapped privately
  changed    the file is truncated, replaced, or overwritten while it is mapped
  reads      reads of ours fail, end early or find the file's end, while what is mapped can be read
  disk       the same by a file system of the test's own, with io_uring too; and a place that nobody
             can read
  broken     files that begin as a model does and are none
"""
import errno
import itertools
import os
import random
import shutil
import signal
import sys

import harness
from bad_disk import BadDisk
from harness import (ALL_CHECKS, Llama, compile_program, expect, mapper, own_model, run, warnings)


def mapping(preload, work, full):
    program, model = mapper(work), own_model(work)
    try:
        for what in (ALL_CHECKS, "unmap", "private"):
            want = run([program, model, what], None, None)
            for budget in harness.BUDGETS if full else harness.BUDGETS[1:2]:
                done = run([program, model, what], preload, budget)
                expect(done.status == 0 and done.out == want.out and "wrong 0" in done.out,
                       f"{what} with budget {budget}: exit {done.status}, {done.out} {done.err}")
    finally:
        model.unlink()


def changed(preload, work, full):
    program = mapper(work)
    for what in ("truncate", "rename", "overwrite"):
        for budget in (None, *harness.BUDGETS[1:3]):
            model, other = own_model(work), work / f"other-{os.getpid()}.gguf"
            shutil.copyfile(own_model(work, "odd"), other)
            done = run([program, model, what, other], preload, budget)
            for path in work.glob(f"*-{os.getpid()}.gguf"):
                path.unlink()
            expect(done.status == 0 and done.out == f"{what} wrong 0\n",
                   f"{what}, budget {budget}: exit {done.status}: {done.out}{done.err}")


def reads(preload, work, full):
    """What cannot be read past the mapping is read through it, as without the library."""
    llama = Llama("debian")
    program = llama.build("victim_logits", work)
    bad = compile_program(work, "bad_reads.so", "bad_reads.c", flags=("-shared", "-fPIC", "-ldl"))
    expect(bad is not None, "bad_reads.so cannot be built")
    for name in ("tiny", "qwen-q8", "tiny-split") if full else ("tiny",):
        command = llama.command(program, llama.model(name), 2)
        # Where no read of ours succeeds nothing is paged, and weights are reordered as without us.
        wanted = {run([*command, *more], None, None).out for more in ((), ("repack=0",))}
        for how, which in itertools.product(("eio", "short", "odd", "end"),
                                            ((0, 1), (3, 1), (30, 1), (4, 3), (9, 50), (120, 1000))
                                            if full else ((0, 1), (40, 1), (9, 50))):
            bad_reads = "{} {} {}".format(how, *which)
            done = run(command, f"{bad}:{preload}", "20%", work=work, BAD_READS=bad_reads,
                       MOEPAGER_URING="off")
            expect(done.status == 0 and done.out in wanted,
                   f"{name}, {bad_reads}: exit {done.status}: {done.out[-300:]}{done.err[-500:]}")
            expect("bad " in done.err and "bad 0" not in done.err,
                   f"{name}, {bad_reads}: nothing was bad: {done.err}")
            said = warnings(done)
            expect(len(said) <= 2, f"{name}, {bad_reads}: much is said: {said}")
            print(f"{name}, {bad_reads}: {done.err.strip()[-300:]}")


PLANS = {
    "eio": lambda number, direct, offset, size: -errno.EIO if direct and number > 9 else None,
    "some": lambda number, direct, offset, size:
        -errno.EIO if direct and number % 7 == 3 else None,
    "buffered": lambda number, direct, offset, size: -errno.EINVAL if direct else None,
    # Also for who reads the mapping, which then ends with SIGBUS.
    "place": lambda number, direct, offset, size:
        -errno.EIO if offset <= 13 << 20 < offset + size else None,
}


def disk(preload, work, full):
    llama = Llama("debian")
    program, model = llama.build("victim_logits", work), llama.model("tiny")
    want = run(llama.command(program, model, 2), None, None).out
    for plan, uring in itertools.product(PLANS, ("on", "off")):
        with BadDisk(work / "disk", model, PLANS[plan]) as path:
            done = run(llama.command(program, path, 2), preload, "20%", work=work,
                       MOEPAGER_URING=uring)
        label = f"{plan}, io_uring {uring}"
        print(f"{label}: exit {done.status}: {done.err.strip()[-300:]}")
        expect((done.status == 0 and done.out == want) or
               (done.status == -signal.SIGBUS and plan == "place"),
               f"{label}: exit {done.status}: {done.out[-300:]} and not {want[-300:]}: {done.err}")
        expect(len(warnings(done)) <= 2, f"{label}: much is said: {done.err}")
        expect(plan != "eio" or len(warnings(done)) > 0, f"{label}: nothing is said")
        if plan in ("some", "buffered"):
            harness.check_report(done, label, "20%")


def broken(preload, work, full):
    """Whatever stands behind the magic number: the program sees the file."""
    program, whole = mapper(work), own_model(work, "odd")
    data = whole.read_bytes()
    rng = random.Random(1)
    path = work / f"broken-{os.getpid()}.gguf"
    try:
        for i in range(200 if full else 40):
            new = bytearray(data[:rng.choice((4, 24, 300, 30000, 200000, len(data)))])
            for _ in range(rng.randrange(1, 20)):
                new[rng.randrange(min(len(new), 60000))] = rng.choice((0, 1, 0x7f, 0xff))
            if i % 3 > 0:
                new[:4] = b"GGUF"
            path.write_bytes(new)
            done = run([program, path, "bytes"], preload, "20%")
            expect(done.status == 0 and done.out == "bytes wrong 0\n",
                   f"file {i}: exit {done.status}: {done.out}{done.err}")
            expect(len(warnings(done)) <= 1, f"file {i}: more than one warning: {done.err}")
    finally:
        whole.unlink()
        path.unlink(missing_ok=True)


CASES = {case.__name__: case for case in (mapping, changed, reads, disk, broken)}

if __name__ == "__main__":
    sys.exit(harness.main(CASES, __doc__))
