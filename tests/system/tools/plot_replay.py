#!/usr/bin/env python3
"""tools/plot_replay on what the program prints; the drawing itself only where matplotlib is.

usage: plot_replay.py MOEPAGER
"""
import importlib.machinery
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TRACE = """# moepager trace v1
# model=m layers=1 experts=4 top_k=1 expert_bytes=1048576
0 0 0 0 1:0.5
1 0 0 1 0:0.5
1 0 0 1 1:0.5
"""


def load():
    path = str(ROOT / "tools/plot_replay")
    loader = importlib.machinery.SourceFileLoader("plot_replay", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("plot_replay", loader))
    loader.exec_module(module)
    return module


def check(got, wanted, what):
    if got != wanted:
        sys.exit(f"FAILED: {what}: {got!r}, not {wanted!r}")


def main():
    module, program = load(), sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace")
        trace.write_text(TRACE)
        printed = subprocess.run([program, "replay", trace, "--evict", "lru,lfu,score", "--budget",
                                  "4MiB,2MiB", "--csv"], check=True, capture_output=True, text=True).stdout
        lines = module.lines_of(module.csv.DictReader(printed.splitlines()))
        check(list(lines), ["lru, global", "lfu, global", "bound, global"], "lines")
        check(all(list(line) == [4 << 20, 2 << 20] for line in lines.values()), True, "budgets")
        check(all(0 <= rate <= 100 for line in lines.values() for rate in line.values()), True, "rates")
        check(module.scale_of([4 << 20, 2 << 20]), (1 << 20, "MiB"), "scale of 4 MiB")
        check(module.scale_of([(4 << 20) - 1]), (1 << 10, "KiB"), "scale below")
        check(module.scale_of([1]), (1 << 10, "KiB"), "scale of a byte")
        script, out = str(ROOT / "tools/plot_replay"), Path(folder, "a.svg")
        empty = subprocess.run([sys.executable, script, out], input="", capture_output=True, text=True,
                               check=False)
        check((empty.returncode, "no row with a hit rate" in empty.stderr), (1, True), "no input")
        drawn = subprocess.run([sys.executable, script, out, "--title", "a & <b>"], input=printed,
                               capture_output=True, text=True, check=False)
        if importlib.util.find_spec("matplotlib") is None:
            check((drawn.returncode, "needs matplotlib" in drawn.stderr), (1, True), "no matplotlib")
        else:
            check((drawn.returncode, drawn.stderr), (0, ""), "drawing")
            check(out.read_text().rstrip().endswith("</svg>"), True, "a whole picture")
        gone = subprocess.run([sys.executable, script, "/nonexistent/x.svg"], input=printed,
                              capture_output=True, text=True, check=False)
        check(gone.returncode, 1, "no such folder")
        print("plot_replay: passed")


main()
