#!/usr/bin/env python3
"""The arithmetic of tools/bench: sizes, locality of a trace, and the table of targets of run_all."""
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))
from bench_lib import BenchError, read_locality, read_size  # noqa: E402


def check(got, wanted, what):
    if got != wanted:
        print(f"FAILED: {what}: {got!r}, not {wanted!r}")
        sys.exit(1)


def check_sizes():
    for text, wanted in (("3GiB", 3 << 30), ("1.5G", 3 << 29), ("64K", 65536), ("4096", 4096)):
        check(read_size(text), wanted, text)
    for text in ("", "GiB", "3 apples", "-", "3Q"):
        try:
            read_size(text)
        except BenchError:
            continue
        check(text, "refused", "a bad size")


def check_locality(folder):
    """Two layers; token by token {0,1} {1,2} {0,2} and {4,5} {4,5} {4,5}."""
    rows = [(0, "0:1 1:1"), (1, "4:1 5:1"), (0, "1:1 2:1"), (1, "4:1 5:1"), (0, "0:1 2:1"),
            (1, "4:1 5:1")]
    trace = folder / "trace"
    trace.write_text("# moepager trace v1\n# shape\n" + "".join(
        f"{i // 2} {layer} 0 {i // 2} {pairs}\n" for i, (layer, pairs) in enumerate(rows)))
    check(read_locality(trace), {"last_token": 6 / 8, "last_8_tokens": 7 / 8}, "locality")


def load_tool(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "tools/bench" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def check_bounds():
    """Bounds at the speeds beside each run: by the disk, then by memory."""
    compare, startup = load_tool("compare_llamacpp"), load_tool("startup")
    models = SimpleNamespace(gen=3, token_bytes=4e8)
    counters = {"load_bytes": 3e8, "prefetch_bytes": 2e8, "prefetch_unused_bytes": 1e8}
    runs = [{"tokens_per_s": 4.0, "decode_counters": counters,
             "speeds": {"disk_bytes_per_s": disk, "memory_bytes_per_s": memory}}
            for disk, memory in ((1e9, 1e10), (1e10, 2e9))]
    check([round(part, 9) for part in compare.reached_beside(models, runs)], [0.8, 0.8], "reached")
    runs = [{"need_bytes": 2e9, "compute_s": 0.5, "start_s": 3.0,
             "speeds": {"disk_bytes_per_s": disk}} for disk in (1e9, 8e9)]
    startup.add_bounds(runs, 2e9)
    check([(run["ratio"], run["ratio_beside"]) for run in runs], [(3.0, 1.5), (3.0, 6.0)], "start")


def table(folder):
    out = subprocess.run([sys.executable, ROOT / "tools/bench/run_all", "--only", "none",
                          "--results", folder], stdout=subprocess.PIPE, text=True, check=True)
    return [[cell.strip() for cell in line.split("|")[1:4 + 1]]
            for line in out.stdout.splitlines() if line.startswith("| ")][1:]


def check_table(folder):
    kernels = [{"kernels": kernels, "operation": "matmul", "type": "f32", "threads": threads, "tokens": tokens,
                "gb_per_s": 9.0, "limit": 10.0, "ratio": ratio}
               for kernels, threads, tokens, ratio in (
                   ("avx512", 1, 1, 0.95), ("avx512", 1, 2, 0.1), ("avx512", 2, 1, 0.9),
                   ("avx512", 2, 1, 0.85), ("avx2", 1, 1, 0.2))]
    limited = {"machine": {"cpu": "?", "cores": 2, "memory_bytes": 1 << 30, "threads": 2,
                           "memory_bytes_per_s_one_thread": 1e10, "memory_bytes_per_s": 2e10,
                           "disk_bytes_per_s": 1e9, "disk_threads": 4},
               "memory_limit_bytes": 3 << 30, "decisions_share": 0.02, "llamacpp_version": "x",
               "tokens_per_s": {"ratio": 5.0, "moepager": 10.0, "llamacpp": 2.0},
               "bound": {"reached": 0.79, "tokens_per_s": 12.7, "by": "disk",
                         "missed_bytes_per_token": 1e8, "reached_beside": 0.85,
                         "reached_beside_runs": [0.85, 0.9, 0.7],
                         "disk_beside_runs": [1e9, 1e9, 1e9]}}
    cold = [{"start_s": start, "compute_s": 0.5, "need_bytes": 1e9, "ratio": start,
             "ratio_beside": start - 0.05, "expert_need_bytes": 5e8, "expert_read_bytes": read,
             "new_memory_bytes_per_s": 3e9}
            for start, read in ((1.3, 5e8), (1.1, 5e8), (1.2, 5.5e8))]
    start = {"prompts": [{"tokens": 64, "ratio": 1.2, "ratio_beside": 1.15, "runs": cold,
                          "touched_ratio_beside": 1.1, "touched": cold[:1]},
                         {"tokens": 4, "ratio": 1.3, "ratio_beside": 1.25, "runs": cold[:1],
                          "touched_ratio_beside": 1.21, "touched": cold[:1]}]}
    for name, result in (("kernels", {"rows": kernels}), ("uniform", limited), ("start", start)):
        (folder / f"{name}.json").write_text(json.dumps({"date": "2000-01-01", **result}))
    check(table(folder), [
        ["decode in 3 GiB, uniform: llama.cpp", "5", ">= 5", "yes"],
        ["the same: the bound, by the best of all speeds", "0.79", ">= 0.8", "no"],
        ["the same: the bound, by the speeds beside each run", "0.85", ">= 0.8", "yes"],
        ["decisions, uniform: layer's time", "0.02", "<= 0.01", "no"],
        ["kernels, one token, 1 thread: read bandwidth", "0.95", ">= 0.9", "yes"],
        ["kernels, one token, 2 threads: read bandwidth", "0.85", ">= 0.9", "no"],
        ["cold start to the first token, prompt of 64: bound, by the best of all speeds", "1.2", "<= 1.2", "yes"],
        ["the same, by the disk beside each run", "1.15", "<= 1.2", "yes"],
        ["the same, memory touched before", "1.1", "<= 1.2", "yes"],
        ["cold start to the first token, prompt of 4: bound, by the best of all speeds", "1.3", "<= 1.2", "no"],
        ["the same, by the disk beside each run", "1.25", "<= 1.2", "no"],
        ["the same, memory touched before", "1.21", "<= 1.2", "no"],
        ["cold start, experts' bytes read once", "1.1", "<= 1.01", "no"]], "table")


def main():
    check_sizes()
    check_bounds()
    with tempfile.TemporaryDirectory(prefix="bench-table-") as folder:
        check_locality(Path(folder))
        check_table(Path(folder))
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
