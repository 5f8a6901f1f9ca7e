#!/usr/bin/env python3
"""The arithmetic of tools/bench: sizes, locality of a trace, and the tables of run_all."""
import csv
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools/bench"))
from bench_lib import (BenchError, guess_all, read_idle, read_locality,  # noqa: E402
                       read_moves, read_size)


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
             "speeds": {"disk_bytes_per_s": disk, "memory_bytes_per_s": memory,
                        "disk_bytes_per_s_mean": disk * 0.8, "memory_bytes_per_s_mean": memory / 2}}
            for disk, memory in ((1e9, 1e10), (1e10, 2e9))]
    check([round(part, 9) for part in compare.reached_beside(models, runs)], [0.8, 0.8], "reached")
    check([round(part, 9) for part in compare.reached_beside(models, runs, "_mean")], [1.0, 1.6],
          "reached by the means")
    runs = [{"need_bytes": 2e9, "compute_s": 0.5, "start_s": 3.0,
             "speeds": {"disk_bytes_per_s": disk}} for disk in (1e9, 8e9)]
    startup.add_bounds(runs, 2e9)
    check([(run["ratio"], run["ratio_beside"]) for run in runs], [(3.0, 1.5), (3.0, 6.0)], "start")


def check_moves(folder):
    """A prompt, and two tokens of two layers with two experts each of four."""
    def span(name, start, end, **args):
        return {"ph": "X", "name": name, "ts": start, "dur": end - start, "args": args}

    events = [{"ph": "M", "name": "thread_name"}, span("MoE layer", 1, 8, layer=0, tokens=5),
              span("demand", 2, 3, unit=0, bytes=4096), span("MoE layer", 10, 15, layer=1, tokens=5)]
    for start in (20, 40):
        events += [span("MoE layer", start, start + 5, layer=0, tokens=1),
                   span("MoE layer", start + 8, start + 15, layer=1, tokens=1)]
    # In the first token: 0 is there since the prompt, 1 is read on demand, 6 was guessed by the layer
    # before, 7 by its guess, which is still being read. Then 1 is there, 3 was guessed when the last
    # layer had been routed, 7 is there, and 5 is read once more, on demand.
    events += [span("demand", 21, 24, unit=1, bytes=8192), span("prefetch", 22, 27, unit=6, bytes=1),
               span("prefetch", 26, 31, unit=7, bytes=1), span("prefetch", 33, 36, unit=3, bytes=1),
               span("prefetch", 26, 27, unit=5, bytes=1), span("demand", 49, 50, unit=5, bytes=1)]
    timeline, trace = folder / "timeline.json", folder / "trace"
    trace.write_text("# moepager trace v1\n0 0 0 0 0:1 1:0\n0 0 0 1 2:1 1:0\n0 1 0 0 0:1 1:0\n"
                     "1 0 0 2 0:1 1:0\n1 1 0 2 2:1 3:0\n2 0 0 3 1:1 3:0\n2 1 0 3 3:1 1:0\n")
    info = {"experts": 4, "slices": 1}
    timeline.write_text(json.dumps({"traceEvents": events}))
    tokens, unit_bytes = read_moves(timeline, trace, info)
    check(unit_bytes, 8192, "bytes of a unit")
    check(tokens, [[(1, 0, 1), (0, 2, 0)], [(1, 1, 0), (1, 0, 1)]], "moves")
    check(guess_all(tokens), [[(1, 0, 1), (0, 2, 0)], [(1, 1, 0), (1, 1, 0)]], "all named")
    # In halves, of which the second ones were there.
    info["slices"] = 2
    for event in events:
        if "unit" in event.get("args", {}):
            event["args"]["unit"] *= 2
    timeline.write_text(json.dumps({"traceEvents": events}))
    check(read_moves(timeline, trace, info)[0], [[(3, 0, 1), (2, 2, 0)], [(3, 1, 0), (3, 0, 1)]],
          "moves of halves")
    # The first step: 1 before the first read, 1 between two that overlap and the next, 2 at the end.
    idle = [span("forward", 10, 20), span("demand", 11, 14), span("prefetch", 12, 15),
            span("demand", 16, 18), span("forward", 30, 40), span("demand", 35, 36)]
    timeline.write_text(json.dumps({"traceEvents": idle}))
    check(round(read_idle(timeline) * 1e6, 9), 4.0, "idle")
    timeline.write_text(json.dumps({"traceEvents": events[:4]}))
    try:
        read_moves(timeline, trace, info)
    except BenchError:
        return
    check("a prompt alone", "refused", "a timeline")


def check_floors():
    """2 misses of 1 GB in a token; the disk gives 1 GB/s."""
    compare, startup = load_tool("compare_llamacpp"), load_tool("startup")
    models = SimpleNamespace(gen=2, token_bytes=4e9)
    run = {"tokens_per_s": 0.4, "floors": {"moved": 2.4, "named": 2.2}, "decode_counters": {
               "load_bytes": 2e9, "loads": 2, "prefetch_bytes": 1e9, "prefetch_unused_bytes": 1e9},
           "speeds": {"disk_bytes_per_s": 1e9, "memory_bytes_per_s": 1e10,
                      "disk_bytes_per_s_mean": 8e8, "memory_bytes_per_s_mean": 1e10}}
    result = {}
    compare.add_floors(models, [run], result)
    check([[round(result[name][key], 9) for key in ("reached", "of_bound", "of_bound_mean")]
           for name in ("moved", "named")],
          [[0.96, round(2 / 2.4, 9), round(2.5 / 2.4, 9)],
           [0.88, round(2 / 2.2, 9), round(2.5 / 2.2, 9)]], "floors")
    fills = [{"threads": 2, "new_s": 3.0, "new_cpu_s": 2.0, "touched_s": 2.0},
             {"threads": 1, "new_s": 2.4, "new_cpu_s": 2.6, "touched_s": 2.1}]
    for compute_s, floor_s in ((0.5, 2.4), (2.0, 3.0)):
        run = startup.add_floor({"start_s": 4.8, "compute_s": compute_s}, fills, 2)
        check((run["floor_s"], run["floor"]["touched_s"]), (floor_s, 2.0), "floor of a start")
        check(round(run["floor_ratio"], 9), round(4.8 / floor_s, 9), "ratio to the floor of a start")


def table(folder):
    out = subprocess.run([sys.executable, ROOT / "tools/bench/run_all", "--only", "none",
                          "--results", folder, "--csv", folder / "table.csv",
                          "--machine", "here"], stdout=subprocess.PIPE, text=True, check=True)
    return [[cell.strip() for cell in line.split("|")[1:6 + 1]] for line in out.stdout.splitlines()
            if line.startswith("| ") and not line.startswith("| what |")]


def check_table(folder):
    kernels = [{"kernels": kernels, "operation": "matmul", "type": "f32", "threads": threads, "tokens": tokens,
                "gb_per_s": 9.0, "limit": 10.0, "ratio": ratio}
               for kernels, threads, tokens, ratio in (
                   ("avx512", 1, 1, 0.95), ("avx512", 1, 2, 0.1), ("avx512", 2, 1, 0.9),
                   ("avx512", 2, 1, 0.85), ("avx2", 1, 1, 0.2))]
    limited = {"machine": {"cpu": "?", "cores": 2, "memory_bytes": 1 << 30, "threads": 2,
                           "memory_bytes_per_s_one_thread": 1e10, "memory_bytes_per_s": 2e10,
                           "memory_bytes_per_s_mean": 1.9e10, "disk_bytes_per_s": 1e9,
                           "disk_bytes_per_s_mean": 9e8, "disk_threads": 4},
               "memory_limit_bytes": 3 << 30, "decisions_share": 0.02, "llamacpp_version": "x",
               "tokens_per_s": {"ratio": 5.0, "moepager": 10.0, "llamacpp": 2.0},
               "bound": {"reached": 0.79, "tokens_per_s": 12.7, "by": "disk",
                         "missed_bytes_per_token": 1e8, "reached_beside": 0.85,
                         "reached_beside_runs": [0.85, 0.9, 0.7], "reached_beside_mean": 0.9,
                         "reached_beside_mean_runs": [0.9], "speeds_beside_runs": [{
                             "disk_bytes_per_s": 1e9, "disk_bytes_per_s_mean": 9e8,
                             "memory_bytes_per_s": 2e10, "memory_bytes_per_s_mean": 1.9e10}]},
               "floors": {"moved": {"reached": 0.95, "reached_runs": [0.95], "of_bound_runs": [0.88],
                                    "of_bound_mean_runs": [0.9]},
                          "named": {"reached": 0.9, "reached_runs": [0.9], "of_bound_runs": [0.93],
                                    "of_bound_mean_runs": [0.95]}}}
    cold = [{"start_s": start, "compute_s": 0.5, "need_bytes": 1e9, "ratio": start,
             "ratio_beside": start - 0.05, "expert_need_bytes": 5e8, "expert_read_bytes": read,
             "new_memory_bytes_per_s": 3e9, "floor_ratio": 1.05, "idle_s": start / 20,
             "floor": {"new_s": 2.0, "touched_s": 1.0}}
            for start, read in ((1.3, 5e8), (1.1, 5e8), (1.2, 5.5e8))]
    start = {"prompts": [{"tokens": 64, "ratio": 1.2, "ratio_beside": 1.15, "runs": cold,
                          "touched_ratio_beside": 1.1, "touched": cold[:1], "floor_ratio": 1.05,
                          "touched_floor_ratio": 1.04},
                         {"tokens": 4, "ratio": 1.3, "ratio_beside": 1.25, "runs": cold[:1],
                          "touched_ratio_beside": 1.21, "touched": cold[:1],
                          "floor_ratio": 1.06, "touched_floor_ratio": 1.03}]}
    for name, result in (("kernels", {"rows": kernels}), ("uniform", limited), ("start", start)):
        (folder / f"{name}.json").write_text(json.dumps({"date": "2000-01-01", **result}))
    bound, mean = "bound: best speeds beside each run", "bound: mean speeds beside each run"
    moved, beside = "data movement alone", "bound: disk beside each run"
    best, alone = "bound: best speeds of all", "reading alone into new memory"
    touched, idle = ", memory touched before", ": no read in flight once the model is open"
    check(table(folder), [
        ["decode", "llama.cpp", "5.000", "", ">= 5", "yes"],
        ["decode", best, "0.790", "", ">= 0.8", "no"],
        ["decode", bound, "0.850", "0.70 to 0.90", ">= 0.8", "yes"],
        ["decode", mean, "0.900", "0.90 to 0.90", ">= 0.8", "yes"],
        ["decode", moved, "0.950", "0.95 to 0.95", "", ""],
        ["decode", f"{moved}, every miss predicted", "0.900", "0.90 to 0.90", "", ""],
        ["decisions", "MoE layers' time", "0.020", "", "<= 0.01", "no"],
        ["slowest kernel, 1 thread", "reading the same memory", "0.950", "", ">= 0.9", "yes"],
        ["slowest kernel, 2 threads", "reading the same memory", "0.850", "", ">= 0.9", "no"],
        ["prompt of 64", best, "1.200", "", "<= 1.2", "yes"],
        ["prompt of 64", beside, "1.150", "1.05 to 1.25", "<= 1.2", "yes"],
        ["prompt of 64" + touched, beside, "1.100", "1.25 to 1.25", "<= 1.2", "yes"],
        ["prompt of 64", alone, "1.050", "1.05 to 1.05", "", ""],
        ["prompt of 64" + touched, "reading alone" + touched, "1.040", "1.05 to 1.05", "", ""],
        ["prompt of 64" + idle, "whole start", "0.050", "0.05 to 0.05", "", ""],
        ["prompt of 4", best, "1.300", "", "<= 1.2", "no"],
        ["prompt of 4", beside, "1.250", "1.25 to 1.25", "<= 1.2", "no"],
        ["prompt of 4" + touched, beside, "1.210", "1.25 to 1.25", "<= 1.2", "no"],
        ["prompt of 4", alone, "1.060", "1.05 to 1.05", "", ""],
        ["prompt of 4" + touched, "reading alone" + touched, "1.030", "1.05 to 1.05", "", ""],
        ["prompt of 4" + idle, "whole start", "0.050", "0.05 to 0.05", "", ""],
        ["bytes of experts read, worst run", "bytes needed", "1.100", "", "<= 1.01", "no"]], "table")


def check_csv(folder):
    """What run_all appends has the columns of docs/performance.csv, a row for each ratio."""
    with open(ROOT / "docs/performance.csv", encoding="utf-8", newline="") as file:
        columns = next(csv.reader(file))
    with open(folder / "table.csv", encoding="utf-8", newline="") as file:
        rows = [dict(zip(columns, row, strict=True)) for row in csv.reader(file)]
    check(len(rows), 22, "rows of the CSV")
    row = rows[2]
    check([row[key] for key in ("date", "machine", "model", "memory", "what", "value", "low", "high",
                                "rounds", "series")],
          ["2000-01-01", "here", "uniform", "3GiB", "decode", "0.850", "0.7", "0.9", "3",
           "0.85 0.9 0.7"], "a row of the CSV")


def check_speeds():
    """Twice as fast in every round has no interval; rounds that differ lie around their mean."""
    speed = load_tool("compare_variants").speed
    same = speed([2.0, 6.0, 3.0], [1.0, 3.0, 1.5])
    check([round(same[key], 9) for key in ("mean", "low", "high")], [2.0, 2.0, 2.0], "equal rounds")
    # ln 2 is 0.693: its standard error over 16 rounds of +-0.2 is 0.2 / 4, and 1.96 of those 0.098
    rounds = speed([2 * 1.2214 ** (-1) ** i for i in range(16)], [1.0] * 16)
    check(round(rounds["mean"], 2), 2.0, "mean of rounds")
    check(abs(rounds["low"] - 1.813) < 0.03 and abs(rounds["high"] - 2.206) < 0.03, True,
          "95 % interval of rounds")


def check_sweep(folder):
    """Shapes of a seed are the same everywhere, in range, of whole blocks; the table is the rows'."""
    sweep = load_tool("sweep")
    for number in range(40):
        for kind in sweep.TYPES:
            shape = sweep.draw_shape(3, number, kind, 1 << 30)
            check(shape, sweep.draw_shape(3, number, kind, 1 << 30), "a shape, drawn again")
            check(sweep.element_bytes(kind, shape) <= 1 << 30 and shape["top_k"] <= shape["experts"] and
                  shape["hidden"] % 256 == shape["ffn"] % 256 == 0 and shape["layers"] >= 4, True, shape)
    check(sweep.draw_shape(1, 0, "bf16", 1 << 30),
          {"hidden": 4864, "ffn": 512, "experts": 8, "top_k": 1, "layers": 8}, "shape 0 of seed 1")
    shapes = [sweep.draw_shape(3, number, "q4_k", 1 << 30) for number in range(40)]
    check([max(shape[name] for shape in shapes) >= many
           for name, many in (("experts", 150), ("layers", 20), ("hidden", 4608), ("ffn", 1024))],
          [True] * 4, "some shapes have many experts, layers, channels")
    try:
        check(sweep.draw_shape(1, 0, "bf16", 1 << 20), "refused", "a size that no shape has")
    except BenchError:
        pass
    other, path, row = folder / "other.csv", folder / "out/sweep.csv", dict.fromkeys(sweep.COLUMNS, "")
    for number, ours in ((0, 5), (1, 20), (2, 10)):
        sweep.append_row(path, row | {"seed": 1, "number": number, "type": "bf16", "token_bytes": 100,
                                      "memory_bytes_per_s": 2000, "resident_first_moepager": 4,
                                      "resident_later_moepager": ours, "decode_moepager": ours,
                                      "decode_llamacpp": 10})
    table = sweep.summary(sweep.read_rows(path))
    check(table["bf16"], {
        "decode": {"worst": 0.5, "median": 1.0, "best": 2.0, "shapes": 3},
        "decode of bound": {"worst": 0.25, "median": 0.5, "best": 1.0, "shapes": 3},
        "decode of the lesser": {"worst": 0.5, "median": 1.0, "best": 2.0, "shapes": 3},
        "first of later": {"worst": 0.2, "median": 0.4, "best": 0.8, "shapes": 3}}, "a sweep's table")
    sweep.append_row(other, row | {"seed": 1, "number": 0, "type": "bf16", "hidden": 768, "ffn": 512,
                                  "experts": 8, "top_k": 1, "layers": 4})
    done = subprocess.run([ROOT / "tools/bench/sweep", "--csv", other, "--llama", folder, "--no-limited"],
                          stderr=subprocess.PIPE, text=True)
    check([done.returncode, "not one of --size 1GiB: take another file" in done.stderr], [2, True],
          "a sweep of other shapes")
    for flags in (["--types", "q9"], ["--shapes", "0"], ["--only", "0", "--list", "--size", "1MiB"]):
        done = subprocess.run([ROOT / "tools/bench/sweep", *flags], stderr=subprocess.DEVNULL)
        check(done.returncode, 2, f"sweep {flags}")


def main():
    check_sizes()
    check_speeds()
    check_bounds()
    check_floors()
    with tempfile.TemporaryDirectory(prefix="bench-table-") as folder:
        check_locality(Path(folder))
        check_moves(Path(folder))
        check_table(Path(folder))
        check_csv(Path(folder))
        check_sweep(Path(folder))
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
