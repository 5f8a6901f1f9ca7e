"""Evict policy `best` against single policies, in bytes that are read on demand.

A cell is a recorded trace, or a text that tiny-moe reads token by token, and a budget. Nothing
predicts in it, on either side, so every byte is one that the evict policy did not keep.
"""
import csv
import io
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

BUDGETS = ("10%", "25%", "50%")
BEST = "best"
RIVALS = ("lru", "layer-lfu", "layer-lru", "ema")
TEXTS = ("LICENSE", "docs/tiny-moe.md", "tools/run_ctest", "docs/residency-table.txt")
CONTEXT = 2048
TEXT_BYTES = 3000


def run(program, *words):
    return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout


def of_trace(program, path, budget):
    """Bytes by evict policy: replayed."""
    text = run(program, "replay", path, "--budget", budget, "--csv", "--evict",
               ",".join((BEST, *RIVALS)))
    return {row["evict"]: int(row["bytes_read"]) for row in csv.DictReader(io.StringIO(text))}


def of_text(program, text, budget):
    """Bytes by evict policy: really run, one thread, so that nothing depends on time."""
    read = {}
    for evict in (BEST, *RIVALS):
        report = run(program, "run", "--model", "models/tiny-moe", "--prompt", text, "--prefill-tokens", "1",
                     "--ctx", str(CONTEXT), "--max-tokens", "40", "--ignore-eos", "--deterministic",
                     "--threads", "1", "--evict", evict, "--predict", "none", "--prefetch", "none",
                     "--budget", budget, "--json")
        read[evict] = json.loads(report)["bytes_loaded"]
    return read


def start_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read(TEXT_BYTES)


def measure(program, traces):
    """Name, budget, bytes by evict policy of each cell."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(trace.title, budget, pool.submit(of_trace, program, trace.path, budget))
                for trace in traces for budget in BUDGETS]
        jobs += [(f"`{path}`", budget, pool.submit(of_text, program, start_of(path), budget))
                 for path in TEXTS for budget in BUDGETS]
        for title, budget, job in jobs:
            yield title, budget, job.result()


def print_gate(program, traces):
    """The table, and how many cells are within one percent."""
    ratios = []
    print("| trace or text | budget | MiB `best` | MiB least | by | ratio |\n|---|---|---|---|---|---|")
    for title, budget, read in measure(program, traces):
        least = min(RIVALS, key=lambda name: read[name])
        ratios.append(read[BEST] / read[least])
        print(f"| {title} | {budget} | {read[BEST] / 2**20:.1f} | {read[least] / 2**20:.1f} | "
              f"{least} | {ratios[-1]:.3f} |")
    print(f"\n`best` reads at most 1.01 times the least of {', '.join(RIVALS)} in "
          f"{sum(r <= 1.01 for r in ratios)} of {len(ratios)} cells; at worst {max(ratios):.3f} "
          f"times, on average {sum(ratios) / len(ratios):.3f} times.\n")
    return all(r <= 1.01 for r in ratios)
