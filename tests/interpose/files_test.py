#!/usr/bin/env python3
"""The library under a program whose model file, or the disk below it, is anything but in order: the
program sees the file's bytes, or what it would have seen without the library.

usage: files_test.py CASE PRELOAD WORK [--full]

  mapping    a program that only maps a model: every byte, by eight threads, by a child, by system
             calls; parts unmapped, protected, moved, mapped privately, advice for more than is mapped
  changed    the file is truncated, replaced, or overwritten while it is mapped
  reads      reads of ours fail, end early or find the file's end, while what is mapped can be read
  disk       the same by a file system of the test's own, with io_uring too; and a place that nobody
             can read
  broken     files that begin as a model does and are none
  pieces     a model of 70,000 matrices of experts: there are never more mappings than a process may
             have (vm.max_map_count), whatever the program takes of them before or afterwards
"""
import errno
import itertools
import os
import random
import re
import shutil
import signal
import sys

import harness
from bad_disk import BadDisk
from harness import (ALL_CHECKS, Llama, compile_program, expect, mapper, own_model, run, warnings)
from make_models import F32, Gguf


def mapping(preload, work, full):
    program, model = mapper(work), own_model(work)
    try:
        for what in (ALL_CHECKS, "unmap", "advise", "private"):
            want = run([program, model, what], None, None)
            for budget in harness.BUDGETS if full else harness.BUDGETS[1:2]:
                done = run([program, model, what], preload, budget)
                expect(done.status == 0 and done.out == want.out and "wrong 0" in done.out,
                       f"{what} with budget {budget}: exit {done.status}, {done.out} {done.err}")
        # What has nothing to do with the model costs next to nothing.
        other = compile_program(work, "other_preload.so", "other_preload.c",
                                flags=("-shared", "-fPIC"))
        expect(other is not None, "other_preload.so cannot be built")
        done = run([program, model, "beside"], f"{other}:{preload}", "20%")
        looks, devices = map(int, re.search(r"maps (\d+) devices (\d+)", done.err).groups())
        expect(done.status == 0 and done.out == "beside wrong 0\n" and looks < 100 and devices == 0,
               f"beside: exit {done.status}, {done.out} {done.err}")
        make_pieces(model, 2, 16, 33)
        command = [program, model, "protect", model.stat().st_size - 2 * 3 * 16 * 33 * 256, 33 * 256]
        for budget in (None, "40%"):
            done = run(command, preload if budget else None, budget)
            expect(done.status == 0 and done.out == "protect wrong 0\n",
                   f"protect with budget {budget}: exit {done.status}, {done.out} {done.err}")
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


def make_pieces(path, layers, experts, rows):
    """Experts of so many rows of 256 bytes, which are no multiple of a page."""
    out, rng = Gguf("made"), random.Random(1)
    out.add(".expert_count", experts)
    out.add(".expert_used_count", 8)
    out.tensor("token_embd.weight", (64, 1024), F32, lambda: [rng.randbytes(64 * 1024 * 4)])
    for layer in range(layers):
        for part in ("gate", "up", "down"):
            out.tensor(f"blk.{layer}.ffn_{part}_exps.weight", (experts, rows, 64), F32,
                       lambda: [rng.randbytes(experts * rows * 64 * 4)])
    out.write(path)


# Layers that are read, budget, mappings that victim_pieces leaves; what is said, and whether experts
# are paged.
PIECES = (
    (60, "95%", "before 0", "vm.max_map_count allows for", True),
    (8, "60%", "before 6000", "vm.max_map_count allows for", True),
    (2, "60%", "before 3000", "experts are not paged: vm.max_map_count allows for 0 bytes", False),
    (8, "60%", "after 1000 8 0", "no more mappings (vm.max_map_count)", True),
    (8, "40%", "before 0 ~5000 +62000", "no more mappings (vm.max_map_count)", True),
)


def pieces(preload, work, full):
    program = compile_program(work, "victim_pieces", "victim_pieces.c", "victim_checks.c")
    expect(program is not None, "victim_pieces cannot be built")
    model = work / f"pieces-{os.getpid()}.gguf"
    try:
        make_pieces(model, 60, 384, 33)
        for layers, budget, mappings, said, paged in PIECES:
            done = run([program, model, layers, 384, 33 * 256, *mappings.split()], preload, budget)
            label = f"{layers} layers, budget {budget}, mappings {mappings}"
            print(f"{label}: exit {done.status}: {done.out}{done.err}")
            expect(done.status == 0 and done.out.endswith("bytes wrong 0\n"),
                   f"{label}: exit {done.status}")
            lines = re.findall(r"wrong (\d+), not paged (\d+), mappings (\d+) of (\d+)", done.out)
            for wrong, others, most, limit in (map(int, line) for line in lines):
                expect(wrong == 0, f"{label}: wrong bytes")
                expect(most <= limit, f"{label}: {most} mappings")
                expect(others == (0 if paged else 2 * layers), f"{label}: {others} not paged")
            most, limit = int(lines[0][2]), int(lines[0][3])
            expect(layers < 60 or most > 50000, f"{label}: {most} mappings only")
            expect([said in line for line in warnings(done)] == [True] or
                   (limit > 100000 and layers == 60), f"{label}: said is {warnings(done)}")
    finally:
        model.unlink(missing_ok=True)


CASES = {case.__name__: case for case in (mapping, changed, reads, disk, broken, pieces)}

if __name__ == "__main__":
    sys.exit(harness.main(CASES, __doc__))
