"""Profile `auto` against each paper's own profile with exact routing, in that paper's own setting."""
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

WANTED = 1.10
SHORT = ("--prompt-tokens", "16", "--gen-tokens", "32")
DALI = ("--budget", "50%", "--prompt-tokens", "64", "--gen-tokens", "64")
# All begin with its hot table (6.1).
PRESCOPE = ("--prompt-tokens", "128", "--gen-tokens", "16", "--partition", "hot-table")
MOEPIC = (*SHORT, "--warm", "640")

# Profile, its own arguments, machine, model, batches, arguments of both.
CELLS = (
    ("smoe", ("--route", "exact"), "rtx3080ti-i9", "deepseek-moe-16b", (1, 3), SHORT),
    ("smoe", ("--route", "exact"), "rtx4060ti16", "xverse-moe-a4.2b", (1, 3), SHORT),
    ("smoe", ("--route", "exact"), "a6000-8core", "qwen2-57b-a14b", (1, 3), SHORT),
    ("dali", (), "rtx3090-epyc7532", "deepseek-v2-lite-q4", (8, 32), DALI),
    ("dali", (), "rtx3090-epyc7532", "qwen3-30b-a3b-q4", (8, 32), DALI),
    ("dali", (), "rtx3090-epyc7532", "mixtral-8x7b-q4", (8, 32), DALI),
    ("prescope", (), "v100-xeon6230r", "deepseek-v2-lite", (4, 64), PRESCOPE),
    ("prescope", (), "v100-xeon6230r", "qwen3-30b-a3b", (4, 64), PRESCOPE),
    ("prescope", (), "a100-32gb-xeon6230r", "moonlight", (4, 64), PRESCOPE),
    ("prescope", (), "a100-32gb-xeon6230r", "mixtral-8x7b", (8, 64), PRESCOPE),
    ("moepic", ("--slices", "4", "--fixed-point-tau", "500"), "a6000-xeon8358p",
     "mixtral-8x7b-hqq", (1,), ("--budget", "62.5%", *MOEPIC)),
    ("moepic", ("--slices", "4", "--fixed-point-tau", "500"), "a6000-xeon8358p",
     "qwen1.5-moe", (1,), ("--budget", "33.4%", *MOEPIC)),
)


def row_of(program, machine, model, batch, words):
    """What the simulator says of a step of decode."""
    run = subprocess.run(
        [program, "simulate", "--json", "--machine", machine, "--model", model, "--batches",
         str(batch), *words], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)["rows"][0]


def least_ms(row):
    """
    Whoever computes or loads what is missing, CPU and link have this much to do: the link has the
    experts with most tokens, so that another division makes one of them busier and the other less.
    """
    return row["tpot_ms"] * max(min(row["cpu_busy_share"], row["link_busy_share"]),
                                row["device_busy_share"])


def measure(program):
    """Each cell with the rows of `auto` and of the paper's profile."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = []
        for profile, own, machine, model, batches, words in CELLS:
            for batch in batches:
                at = (row_of, program, machine, model, batch)
                jobs.append(((profile, machine, model, batch),
                             pool.submit(*at, ("--profile", "auto", *words)),
                             pool.submit(*at, ("--profile", profile, *own, *words))))
        for cell, auto, paper in jobs:
            yield cell, auto.result(), paper.result()


def print_gate(program):
    """The table, and in how many cells `auto` is as much faster as is wanted."""
    gains = []
    print("| profile | machine | model | batch | auto ms | its ms | faster | wanted ms | least ms |\n"
          "|---|---|---|---|---|---|---|---|---|")
    for (profile, machine, model, batch), auto, paper in measure(program):
        gains.append(paper["tpot_ms"] / auto["tpot_ms"])
        print(f"| `{profile}` | {machine} | {model} | {batch} | {auto['tpot_ms']:.2f} | "
              f"{paper['tpot_ms']:.2f} | {gains[-1]:.2f}x | {paper['tpot_ms'] / WANTED:.2f} | "
              f"{least_ms(auto):.2f} |")
    print(f"\n`auto` is at least {WANTED:.2f} times as fast in {sum(g >= WANTED for g in gains)} of "
          f"{len(gains)} cells; at worst {min(gains):.2f} times.\n")
