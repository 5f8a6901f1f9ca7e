#!/usr/bin/env python3
"""The programs that measure what the machine allows, on a small model.

bench_programs.py MOEPAGER: bench_machine, bench_movement, bench_reader, bench_steps_* and
bench_windows lie beside it. 77 where no direct reads can be had.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_table import ROOT, check, load_tool  # also the path to bench_lib

from bench_lib import (BenchError, Machine, Models, guess_all, read_moves, run_json,  # noqa: E402
                       run_movement)

FILL_BYTES = 20 << 20  # two extents and a part
GEN = 5


def make_model(folder):
    model = folder / "model"
    subprocess.run([sys.executable, ROOT / "tools/make_bench_model", "--out", model, "--layers", "2",
                    "--experts", "16", "--hidden", "256", "--ffn", "512", "--top-k", "2", "--heads",
                    "4", "--kv-heads", "1", "--head-dim", "64"], check=True,
                   stdout=subprocess.DEVNULL)
    return model


def check_fill(program, file):
    for threads in (0, 1, 3):
        fill = run_json([program, "--fill", file, FILL_BYTES + 1, threads])
        check((fill.pop("bytes"), fill.pop("threads")), (FILL_BYTES, threads), "what is read")
        check(sorted(fill), ["new_cpu_s", "new_s", "touched_cpu_s", "touched_s"], "times of a fill")
        check([key for key, value in fill.items() if value < (0 if "cpu" in key else 1e-9)], [],
              "times that are none")
    for bytes_, threads in ((0, 1), (4095, 1), (1 << 50, 1), (4096, 65)):
        check_refused([program, "--fill", file, bytes_, threads], (bytes_, threads))


def check_machine(machine):
    speeds = machine.sample()
    check([key for key, value in speeds.items() if value <= 0], [], "speeds that are none")
    for arguments in ([], ["FILE", "2", "3"], ["FILE", "0"]):
        done = subprocess.run([machine.program, *arguments], stderr=subprocess.DEVNULL)
        check(done.returncode, 2, f"bench_machine {arguments}")


def check_movement(moepager, model, file, folder):
    """The same bytes as a real run, which was given few slots."""
    models = Models(moepager, model, model, None, 4, GEN, 2)
    timeline, trace = folder / "timeline.json", folder / "trace"
    run = models.run_moepager(1, ["--budget", "12MiB", "--timeline", timeline,
                                  "--trace", trace])["runs"][0]
    tokens, unit_bytes = read_moves(timeline, trace, models.info)
    counters = run["decode_counters"]
    check([len(token) for token in tokens], [2] * (GEN - 1), "layers of decoded tokens")
    check({sum(layer) for token in tokens for layer in token}, {2}, "experts of a layer")
    moved = sum(guesses + demands for token in tokens for _, guesses, demands in token)
    check(counters["loads"] <= moved <= counters["loads"] + counters["prefetch_issued"], True,
          f"{moved} units moved, {counters}")
    for moves in (tokens, guess_all(tokens)):
        check(run_movement(models, file, moves, unit_bytes, 15, None, folder) > 0, True, "seconds")
    program, list_ = moepager.with_name("bench_movement"), folder / "list"
    good = [file, unit_bytes, 15, 4096, 4096, 2]
    list_.write_text("1:0:1 0:1:1\n2:0:0 1:1:0\n")
    check(run_json([program, *good, list_])["units_per_token"], 2.0, "units")
    # A layer's weights may end anywhere.
    check(run_json([program, *good[:3], 16384 + 4, 16384 + 2, 1, list_])["tokens"], 2, "tokens")
    for text in ("", "1:0:1\n0:0:0 0:0:0\n", "1:0\n", "1:0:1 \n", "0:0:65\n", "0:65:0\n"):
        list_.write_text(text)
        check_refused([program, *good, list_], text)
    list_.write_text("1:1:1\n")
    for at, value in ((1, 0), (1, 4097), (1, 1 << 40), (2, 0), (2, 1 << 60), (3, -4096), (4, -4096)):
        check_refused([program, *good[:at], value, *good[at + 1:], list_], f"{at}: {value}")


def check_overhead(build, model):
    """Pairs of steps; the pager's part of a layer is measured, and a bad line is refused."""
    overhead = run_json([sys.executable, ROOT / "tools/bench/pager_overhead", "--model", model,
                         "--build", build, "--rounds", 2, "--passes", 3, "--gen-tokens", GEN,
                         "--json", "--", "--threads", 1])
    check((overhead["pairs"], len(overhead["rounds"])), (2 * 2 * GEN, 2), "pairs of steps")
    check([key for key in ("ratio", "pager_ms", "plain_ms", "decisions") if overhead[key] <= 0], [],
          "figures that are none")
    check(overhead["decisions"] < 1, True, f"decisions take {overhead['decisions']} of a layer")
    for line in ("0 100000", "4000000000 1", "0 1\n5 4294967295"):
        done = subprocess.run([build / "bench_steps_pager", "--model", model], input=line, text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        check((done.returncode, "beyond" in done.stderr), (2, True), line)
    for words in ([], ["--model", model / "none"], ["--model", model, "--no-such-flag"]):
        done = subprocess.run([build / "bench_steps_plain", *words], stdin=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
        check(done.returncode > 0, True, f"bench_steps_plain {words}")


def check_drafts(build, model):
    """Steps of drafts; a step that no --draft-tokens allows is none."""
    program = build / "bench_steps_pager"
    forced = run_json([sys.executable, ROOT / "tools/bench/forced_drafts", "--model", model, "--program", program,
                       "--accepted", "1,1.25", "--turns", 2, "--gen-tokens", GEN, "--prompt-tokens", 16, "--json"])
    check([row["accepted"] for row in forced.values()], [1, 1.25], "accepted")
    check(all(0 < row["ratio"]["low"] <= row["ratio"]["mean"] for row in forced.values()), True, "forced_drafts")
    for flags, line, wanted in (([], "20 3 1", 2), (["--draft-tokens", "2"], "20 4 1", 2),
                                (["--draft-tokens", "2"], "0 20\n20 3 1", 0)):
        done = subprocess.run([program, "--model", model, *flags], input=line, text=True, capture_output=True)
        check((done.returncode, "of a draft" in done.stderr), (wanted, wanted == 2), line)


def check_layer_cost(moepager):
    """Layers cost more than nothing, and what their weights take is part of it."""
    tool = [sys.executable, ROOT / "tools/bench/layer_cost", "--moepager", moepager]
    cost = run_json([*tool, "--hidden", 256, "--layers", "4,8", "--threads", "1,2", "--rounds", 3,
                     "--gen-tokens", 8, "--json"])
    # In BF16: q, o; k, v; 2 of 16 experts; the router. Norms come on top.
    parts = 2 * (2 * 256 * 256 + 2 * 256 * 64 + 2 * 3 * 256 * 256 + 16 * 256)
    check(parts <= cost["layer_bytes"] <= 1.02 * parts, True, f"{cost['layer_bytes']} bytes of a layer")
    check([row["threads"] for row in cost["threads"]], [1, 2], "threads")
    check([row for row in cost["threads"] if row["weights_us"] <= 0 or
           abs(row["layer_us"] - row["weights_us"] - row["rest_us"]) > 1e-6], [], "parts of a layer")
    for flags in (["--layers", "4"], ["--layers", "a,b"], ["--hidden", "100"], ["--rounds", "0"]):
        done = subprocess.run([*tool, *flags], stderr=subprocess.DEVNULL)
        check(done.returncode, 2, f"layer_cost {flags}")


def check_steps(build, model, folder):
    """A build against itself; ids from a file, and those that are none."""
    program, tokens = build / "bench_steps_pager", folder / "ids"
    compared = run_json([sys.executable, ROOT / "tools/bench/compare_steps", "--model", model,
                         program, program, "--turns", 2, "--gen-tokens", GEN, "--prompt-tokens", 2,
                         "--json", "--flags=--threads 1"])
    for part in ("prompt", "decode"):
        check(len(compared[part]["pairs"]), 2, part)
        check(0 < compared[part]["low"] <= compared[part]["mean"] <= compared[part]["high"], True,
              part)
    for text, wanted in (("1 2 3", 0), ("1 2", 2), ("1 2 4294967295", 2), ("", 2)):
        tokens.write_text(text)
        done = subprocess.run([program, "--model", model, "--tokens-file", tokens], input="0 3",
                              text=True, capture_output=True)
        check((done.returncode, "need 3" in done.stderr), (wanted, wanted == 2), repr(text))
    done = subprocess.run([program, "--model", model, "--tokens-file", folder / "none"], input="",
                          text=True, capture_output=True)
    check((done.returncode, "none" in done.stderr), (6, True), done.stderr)


def check_windows(program, folder):
    """Every way shows the file's bytes, and breaks where it is known to."""
    compared = run_json([program, folder, 8, 1, 3, 40])
    ways = {way["way"]: way for way in compared["ways"]}
    broken = {"userfaultfd": ["zeros", "EFAULT", "zeros"],
              "SIGSEGV": ["right", "EFAULT", "killed by signal 11"]}
    check(sorted(ways), ["SIGSEGV", "advice", "mapped", "moved", "userfaultfd"], "ways")
    for name, way in ways.items():
        if way.get("refused") and name in ("moved", "userfaultfd"):
            continue  # by old kernels and sandboxes
        check([way["fork"], way["syscall"], way["closed"]], broken.get(name, ["right"] * 3), name)
        check((way["misses"] > 0, way["misses"] + way["hits"], way["hit_ms"] > 0),
              (True, 40 - 2 * 3, True), name)
    for words in ([], [folder, 6, 1, 3], [folder, 8, 1, 1], [folder, 8, 0, 3], [folder, 8, 1, 3, 6]):
        done = subprocess.run([program, *map(str, words)], stderr=subprocess.DEVNULL)
        check(done.returncode, 2, f"bench_windows {words}")


def check_refused(command, what):
    try:
        run_json(command)
    except BenchError as error:
        check("E_BENCH" in str(error), True, str(error))
        return
    check(what, "refused", "what is bad")


def main():
    moepager = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="bench-programs-") as name:
        folder = Path(name)
        model = make_model(folder)
        check_overhead(moepager.parent, model)
        check_drafts(moepager.parent, model)
        check_steps(moepager.parent, model, folder)
        check_windows(moepager.with_name("bench_windows"), folder)
        machine = Machine(moepager, model)
        try:
            machine.sample()
        except BenchError as error:
            if "Invalid argument" not in str(error):
                raise
            print(f"skipped: {error}")
            return 77
        check_layer_cost(moepager)
        check_machine(machine)
        check_fill(moepager.with_name("bench_reader"), machine.file)
        check_movement(moepager, model, machine.file, folder)
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
