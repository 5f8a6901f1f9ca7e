"""Profile `auto` against a written list of static combinations, in simulated cells.

A cell is a recorded trace, a budget and a machine, with or without a CPU that computes. Nothing
predicts in it, on either side: predictions would be made up.
"""
import itertools
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

BUDGETS = ("10%", "25%", "50%")
MACHINES = ("rtx3090-epyc7532", "rtx4060ti16", "h200", "host-disk")
ALONE = ("host-disk",)  # have no CPU beside the one that computes everything
EVICTS = ("lru", "layer-lru", "layer-lfu", "lfru", "ema")
ASSIGNS = ("queue", "cost", "greedy", "resident")
PARTITIONS = ("global", "uniform")
PROFILES = ("lru", "static")
QUIET = ("--predict", "none", "--prefetch", "none")


def rivals(cpu):
    """(name, arguments) of each static combination."""
    assigns = ASSIGNS if cpu else ("gpu-only",)
    for assign, evict, partition in itertools.product(assigns, EVICTS, PARTITIONS):
        yield f"{assign} {evict} {partition}", (
            "--profile", "lru", "--assign", assign, "--evict", evict, "--partition", partition)
    for profile in PROFILES if cpu else ("lru",):
        yield profile, ("--profile", profile)


def time_of(program, trace, machine, budget, cpu, words):
    """Milliseconds of a step of decode, and bytes loaded."""
    alone = () if cpu or machine in ALONE else ("--set", "cpu_gflops=0")
    run = subprocess.run(
        [program, "simulate", "--machine", machine, "--model", trace.model, "--from-trace",
         trace.path, "--budget", budget, "--json", *alone, *QUIET, *words],
        capture_output=True, text=True, check=True)
    return json.loads(run.stdout)["rows"][0]["tpot_ms"]


def cells(traces):
    for trace, budget, machine in itertools.product(traces, BUDGETS, MACHINES):
        for cpu in (False,) if machine in ALONE else (False, True):
            yield trace, budget, machine, cpu


def measure(program, traces):
    """For each cell: auto's time, the best rival's time and name."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = []
        for trace, budget, machine, cpu in cells(traces):
            def run(words, at=(trace, machine, budget, cpu)):
                return pool.submit(time_of, program, *at, words)
            jobs.append(((trace, budget, machine, cpu), run(("--profile", "auto")),
                         [(name, run(words)) for name, words in rivals(cpu)]))
        for cell, auto, others in jobs:
            best, name = min((job.result(), name) for name, job in others)
            yield cell, auto.result(), best, name


def print_gate(program, traces):
    """The table, and how many cells are within the bounds."""
    ratios = []
    print("| trace | budget | machine | CPU computes | auto ms | best ms | by | ratio |\n"
          "|---|---|---|---|---|---|---|---|")
    for (trace, budget, machine, cpu), auto, best, name in measure(program, traces):
        ratios.append(auto / best)
        print(f"| {trace.title} | {budget} | {machine} | {'yes' if cpu else 'no'} | {auto:.3f} | "
              f"{best:.3f} | {name} | {auto / best:.3f} |")
    close = sum(r <= 1.01 for r in ratios)
    print(f"\n`auto` takes at most 1.01 times the best in {close} of {len(ratios)} cells, at most "
          f"1.03 times in {sum(r <= 1.03 for r in ratios)}; at worst {max(ratios):.3f} times, on "
          f"average {sum(ratios) / len(ratios):.3f} times.\n")
