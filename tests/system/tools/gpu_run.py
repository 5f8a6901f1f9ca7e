#!/usr/bin/env python3
"""tools/gpu/run without a GPU: packed, moved, and run from there with nothing but python3.

usage: tests/system/tools/gpu_run.py BUILD FOLDER

The dry run on the driver without a device has to end well, with a table of at most 30 lines that
names the targets, and to write into its output folder only. What counts as met is checked with given
numbers. Then what goes wrong on a machine: a step that hangs, an end from outside, no driver.
"""
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

TOP = Path(__file__).resolve().parents[3]
ENV = {"PATH": "/nonexistent"}


def check(what, good, text=""):
    if not good:
        sys.exit(f"gpu_run: {what}\n{text[-4000:]}")


def start(bundle, out, *args, **env):
    return subprocess.Popen([sys.executable, bundle / "tools/gpu/run", "--out", out, *args],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/",
                            env=dict(ENV, **env))


def table(text):
    """The lines behind the number of lines."""
    match = re.search(r"^(\d+) of \d+ lines; all: .*\n((?:.+\n?)*)", text, re.M)
    check("no table", match, text)
    lines = match[2].splitlines()
    check("another number of lines than it says", len(lines) == int(match[1]), text)
    check("more than 30 lines", len(lines) <= 30, text)
    return lines


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def dry_run(bundle, out):
    before = files(bundle)
    process = start(bundle, out, "--dry-run")
    text, _ = process.communicate()
    lines = "\n".join(table(text))
    check(f"the dry run ended with {process.returncode}", process.returncode == 0, text)
    for part in ("<= 1.02", "<=1.02 static, wait", ">= 0.85", "<= 1.10", "8 of 8 settings",
                 "all resident: pager/plain", "cost/layers/hot/demand", "in favour of static"):
        check(f"no '{part}' in the table", part in lines, text)
    check("wrote into the bundle", files(bundle) == before)
    for name in ("summary.md", "probe.json", "model.json", "driver_codes.txt", "driver_laws.txt",
                 "graph.log"):
        check(f"no {name}", (out / name).exists())
    cells = json.loads((out / "model.json").read_text())
    check("not all placements", {cell["config"] for cell in cells} ==
          {"cost", "layers", "hot", "demand"}, str(cells))
    check("no table of hot experts", (out / "hot-1.safetensors").exists())
    print(text[text.index(" lines; all") - 8:])


def verdicts():
    """`cost` is held against the better one of both static placements, whichever it is."""
    path = str(TOP / "tools/gpu/run")
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader(
        "gpu_run_script", importlib.machinery.SourceFileLoader("gpu_run_script", path)))
    script.__spec__.loader.exec_module(script)

    def judge(wait_ms=0.0, **tpot_ms):
        rows = []
        run = SimpleNamespace(probe={"values": {"copy_4m_1": 50.0}},
                              args=SimpleNamespace(dry_run=False),
                              row=lambda *row: rows.append(row[-1]))
        cells = {name: {"tpot_ms": ms, "hit_rate": 1.0, "bytes_per_step": 50e6,
                        "wait_ms_per_step": wait_ms} for name, ms in tpot_ms.items()}
        script.compare(run, 50, 1, cells, 1.0)
        return rows

    check("faster than both", judge(cost=1.0, layers=2.0, hot=1.0) == ["met"])
    check("within 2 %", judge(cost=1.02, layers=2.0, hot=1.0) == ["met"])
    check("layers are better", judge(cost=1.0, layers=0.9, hot=2.0) == ["missed"])
    check("hot is better", judge(cost=1.0, layers=2.0, hot=0.9) == ["missed"])
    check("the link's bound is 1 ms", judge(1.09, cost=1.0, layers=2.0, hot=2.0) == ["met"])
    check("waits too long", judge(1.11, cost=1.0, layers=2.0, hot=2.0) == ["missed"])
    check("cut before the last", judge(cost=1.0, layers=2.0, hot=2.0, demand=3.0) == ["met"])
    check("cut before hot", judge(cost=1.0, layers=2.0) == [])


def hang(bundle, out):
    """A program that never ends is cut, and the rest is there."""
    program = bundle / "gpu_check_kernels"
    program.write_text("#!/bin/sh\necho here\nexec /bin/sleep 1000\n") # says it at once
    begin = time.monotonic()
    process = start(bundle, out, "--dry-run", "--steps", "machine,kernels", "--minutes", "0.05")
    text, _ = process.communicate()
    lines = table(text)
    check("took too long", time.monotonic() - begin < 60, text)
    check("not a failure", process.returncode == 1, text)
    check("no word of the step", any("not done after" in line for line in lines), text)
    check("no other lines", any(line.startswith("commit") for line in lines), text)
    check("no output of what was cut", "here" in (out / "kernels.log").read_text())


def end_from_outside(bundle, out):
    process = start(bundle, out, "--dry-run", "--steps", "machine,kernels")
    for line in process.stdout:
        if line.startswith("kernels"):
            break
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate()
    check("not interrupted", process.returncode == 130, text)
    check("no lines", any(line.startswith("commit") for line in table(text)), text)


def no_driver(bundle, out):
    """A file that is no library stands in the way of any driver that there may be."""
    (out / "libcuda.so.1").write_text("no library")
    process = start(bundle, out, LD_LIBRARY_PATH=str(out))
    text, _ = process.communicate()
    check(f"without a driver it ended with {process.returncode}", process.returncode == 77, text)
    check("does not say why", "CUDA is off" in text, text)


def main():
    build, folder = (Path(arg).resolve() for arg in sys.argv[1:3])
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "elsewhere").mkdir(parents=True)
    subprocess.run([TOP / "tools/gpu/run", "--pack", folder / "packed", "--no-build", "--build",
                    build], check=True)
    bundle = folder / "elsewhere/bundle"
    os.rename(folder / "packed", bundle)
    verdicts()
    dry_run(bundle, folder / "out")
    hang(bundle, folder / "out")
    end_from_outside(bundle, folder / "out")
    no_driver(bundle, folder / "out")
    shutil.rmtree(bundle)


if __name__ == "__main__":
    main()
