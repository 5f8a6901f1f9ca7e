#!/usr/bin/env python3
"""transformers on a CPU: the same logits and tokens, bit for bit, with the experts paged.

usage: transformers_test.py CASE PRELOAD WORK [--full]

  logits     a checkpoint with one tensor of experts per layer, every implementation of the experts,
             through `moepager preload`; one family and two budgets (--full: three, and five)
  touches    the same without the Python module: whatever is paged then
  write      the program changes an expert in place: it stays changed
  fork       a child computes
  single     a checkpoint with a tensor for each expert: not mapped, nothing paged, the same result

TORCH_PYTHON is a Python that has torch and transformers, else the one that runs this.
"""
import json
import os
import subprocess
import sys

import harness
from harness import HERE, Skip, check_report, expect, run

VICTIM = HERE / "victim_transformers.py"
VERSIONS = "import torch, transformers; print(torch.__version__, transformers.__version__)"


def python():
    path = os.environ.get("TORCH_PYTHON") or sys.executable
    done = subprocess.run([path, "-c", VERSIONS], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)
    if done.returncode != 0:
        raise Skip(f"{path} has no torch or no transformers; set TORCH_PYTHON")
    torch, transformers = done.stdout.split()
    if int(transformers.split(".")[0]) < 5:
        raise Skip(f"transformers {transformers} is older than 5.0")
    print(f"torch {torch}, transformers {transformers}")
    return path


def make(path, family, work, *more):
    folder = work / "-".join((family, *more))
    if not (folder / "config.json").exists():
        done = subprocess.run([path, VICTIM, "make", family, folder, *more], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        expect(done.returncode == 0, f"cannot make {family}: {done.stdout[-800:]}")
    return folder


def result_of(done, label):
    expect(done.status == 0, f"{label}: exit {done.status}: {done.err.strip()[-800:]}")
    return json.loads(done.out.splitlines()[-1])


def compare(preload, work, families, budgets, threads, module=True, more=()):
    path = python()
    program = preload.parent / "moepager"
    for family in families:
        folder = make(path, family, work)
        for count in threads:
            command = [path, VICTIM, "run", folder, count, *more]
            want = result_of(run(command, None, None, HF_HUB_OFFLINE="1"), family)
            expect(all(each[0] for each in want.values()),
                   f"{family}: experts are not mapped even without the library: {want}")
            for budget in budgets:
                label = f"{family}, {count} threads, {budget}"
                report = work / f"report-{os.getpid()}.json"
                report.unlink(missing_ok=True)
                if module:
                    start = [program, "preload", "--budget", budget, "--report", report, "--",
                             *command]
                    done = run(start, None, None, HF_HUB_OFFLINE="1")
                else:
                    done = run(command, preload, budget, HF_HUB_OFFLINE="1",
                               MOEPAGER_REPORT=str(report))
                got = result_of(done, label)
                expect(got == want, f"{label}: {got}\nand not\n{want}\n{done.err[-400:]}")
                expect(report.exists(), f"{label}: no report: {done.err.strip()[-400:]}")
                done.report = json.loads(report.read_text())
                if module:
                    check_report(done, label, budget)


def logits(preload, work, full):
    compare(preload, work, ("qwen3_moe", "gpt_oss", "mixtral") if full else ("qwen3_moe",),
            harness.BUDGETS if full else ("20%", "70%"), (1, 4) if full else (2,))


def touches(preload, work, full):
    compare(preload, work, ("qwen3_moe",), ("20%", "70%") if full else ("40%",), (2,), module=False)


def write(preload, work, full):
    compare(preload, work, ("qwen3_moe",), ("20%", "70%") if full else ("40%",), (2,),
            more=("write",))


def fork(preload, work, full):
    compare(preload, work, ("qwen3_moe",), ("20%", "70%") if full else ("40%",), (1,),
            more=("fork",))


def single(preload, work, full):
    path = python()
    for family in ("qwen3_moe", "mixtral") if full else ("qwen3_moe",):
        folder = make(path, family, work, "single")
        command = [path, VICTIM, "run", folder, 2]
        want = result_of(run(command, None, None, HF_HUB_OFFLINE="1"), family)
        expect(not any(each[0] for each in want.values()), f"{family}: single experts are mapped")
        for budget in harness.BUDGETS if full else ("40%",):
            done = run([preload.parent / "moepager", "preload", "--budget", budget, "--", *command],
                       None, None, HF_HUB_OFFLINE="1")
            expect(result_of(done, family) == want, f"{family}, {budget}: {done.out} and not {want}")
            said = [line for line in done.err.splitlines() if "moepager" in line]
            expect(len(said) <= 1, f"{family}, {budget}: much is said: {said}")


if __name__ == "__main__":
    sys.exit(harness.main({"logits": logits, "touches": touches, "write": write, "fork": fork,
                           "single": single}, __doc__))
