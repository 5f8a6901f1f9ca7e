#!/usr/bin/env python3
"""The programs that tell what the machine allows, and the floors made of them, on a small model.

bench_programs.py MOEPAGER: bench_machine and bench_reader lie beside it. 77 where no direct reads
can be had.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_table import ROOT, check, load_tool  # also the path to bench_lib

from bench_lib import BenchError, Machine, Models, read_timeline, run_json  # noqa: E402

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
        try:
            run_json([program, "--fill", file, bytes_, threads])
        except BenchError as error:
            check("E_BENCH" in str(error), True, str(error))
            continue
        check((bytes_, threads), "refused", "a bad fill")


def check_machine(machine):
    speeds = machine.sample()
    pairs = speeds.pop("beside")
    check(len(pairs), 2 * 5, "pairs of speeds, those before and those now")
    for pair in [speeds, *pairs]:
        check([key for key, value in pair.items() if value <= 0], [], "speeds that are none")
    for arguments in ([], ["--beside"], ["FILE", "2", "3"], ["FILE", "0"]):
        done = subprocess.run([machine.program, *arguments], stderr=subprocess.DEVNULL)
        check(done.returncode, 2, f"bench_machine {arguments}")


def check_floors(moepager, model, machine, folder):
    """Of a real run: floors are above each other, and the blind time is a part of a step."""
    models = Models(moepager, model, model, None, 4, GEN, 2)
    timeline = folder / "timeline.json"
    run = models.run_moepager(1, ["--budget", "12MiB", "--timeline", timeline])["runs"][0]
    run |= {**read_timeline(timeline, 16), "speeds": machine.sample()}
    check(0 < run["blind_s"] < run["tpot_ms"] * (GEN - 1) / 1e3, True, "the blind time")
    result = {}
    load_tool("compare_llamacpp").add_floors(models, [run], result)
    floors = run["floors"]
    check(round(sum(run["unguessed"].values()), 6), 2.0, "layers per token")
    check(0 < floors["unguessed_per_token"] <= run["decode_counters"]["loads"] / (GEN - 1), True,
          "units that no guess had named")
    check(0 < floors["together_s"] <= floors["blind_s"] <= floors["routed_s"], True, str(floors))


def main():
    moepager = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="bench-programs-") as name:
        folder = Path(name)
        model = make_model(folder)
        machine = Machine(moepager, model, both=True)
        try:
            machine.sample()
        except BenchError as error:
            if "Invalid argument" not in str(error):
                raise
            print(f"skipped: {error}")
            return 77
        check_machine(machine)
        check_fill(moepager.with_name("bench_reader"), machine.file)
        check_floors(moepager, model, machine, folder)
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
