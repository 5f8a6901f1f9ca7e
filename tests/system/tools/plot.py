#!/usr/bin/env python3
"""`moepager plot` on what the program itself writes; the drawing only where matplotlib is.

usage: plot.py MOEPAGER
"""
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODEL = "models/tiny-moe"
TRACE = """# moepager trace v1
# model=m layers=2 experts=4 top_k=1 expert_bytes=1048576
# a comment
0 0 0 0 1:0.5
0 1 0 0 3:0.5 | 0.1 0.2 0.3 0.4
1 0 0 1 0:0.5
1 0 0 1 1:0.5
"""
TIMELINE = {"traceEvents": [
    {"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "cpu"}},
    {"ph": "X", "pid": 1, "tid": 0, "name": "a", "ts": 10.0, "dur": 4.0},
    {"ph": "X", "pid": 1, "tid": 0, "name": "a", "ts": 20.0, "dur": 1.0},
    {"ph": "X", "pid": 1, "tid": 1, "name": "b", "ts": 12.0, "dur": 10.0},
]}


def load():
    path = ROOT / "tools/python/moepager/plot.py"
    spec = importlib.util.spec_from_file_location("plot", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(got, wanted, what):
    if got != wanted:
        sys.exit(f"FAILED: {what}: {got!r}, not {wanted!r}")


def run(*command, **more):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **more)


def check_reading(module, printed):
    lines = module.lines_of(module.csv.DictReader(printed.splitlines()))
    check(list(lines), ["lru, global", "lfu, global", "bound, global"], "lines")
    check(all(list(line) == [4 << 20, 2 << 20] for line in lines.values()), True, "budgets")
    check(all(0 <= rate <= 100 for line in lines.values() for rate in line.values()), True, "rates")
    check(module.scale_of([4 << 20, 2 << 20]), (1 << 20, "MiB"), "scale of 4 MiB")
    check(module.scale_of([(4 << 20) - 1]), (1 << 10, "KiB"), "scale below")
    check(module.scale_of([1]), (1 << 10, "KiB"), "scale of a byte")
    check(module.heat_of(TRACE.splitlines()), [[1, 2, 0, 0], [0, 0, 0, 1]], "heat")
    for bad in ("", "x", "# moepager trace v1\n# model=m layers=1 experts=2\n0 0 0 0 2:1\n",
                "# moepager trace v1\n# model=m\n"):
        try:
            module.heat_of(bad.splitlines())
        except module.Refused:
            continue
        sys.exit(f"FAILED: {bad!r} is read as a trace")
    busy, whole = module.busy_of(TIMELINE)
    rounded = {track: {name: round(s * 1e6, 6) for name, s in names.items()} for track, names in busy.items()}
    check(rounded, {"cpu": {"a": 5.0}, "1": {"b": 10.0}}, "busy")
    check(round(whole * 1e6, 6), 12.0, "from begin to end")
    check(module.speed_of({"model": "x/m", "machine": "h", "routing": "synthetic", "rows": [
        {"possible": True, "budget_bytes": 5, "tokens_per_s": 2.5}, {"possible": False}]}),
          ("plan: m on h, synthetic routing", {5: 2.5}, True), "a plan")
    report = {"budget_bytes": 5, "tokens_per_s": 2, "policies": {"profile": "lru"}}
    check(module.speed_of(report), ("measured lru", {5: 2}, False), "a run")
    check(module.speed_of({"median": {"run": 1}, "runs": [{}, report]}), ("measured lru", {5: 2}, False), "a bench")


def main():
    module, program = load(), Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace, timeline, out = folder / "trace", folder / "timeline", folder / "a.svg"
        trace.write_text(TRACE.replace(" | 0.1 0.2 0.3 0.4", "").replace("layers=2", "layers=1")
                         .replace("0 1 0 0 3:0.5\n", ""))
        printed = run(program, "replay", trace, "--evict", "lru,lfu,score", "--budget", "4MiB,2MiB", "--csv").stdout
        check_reading(module, printed)

        made = run(program, "run", "--model", MODEL, "-p", "1", "-n", "8", "--json", "--trace", folder / "t",
                   "--timeline", timeline)
        check(made.returncode, 0, "a run")
        (folder / "run.json").write_text(made.stdout)
        plan = run(program, "plan", "--model", MODEL, "--budget", "25%,50%", "--profile", "lru", "--json")
        (folder / "plan.json").write_text(plan.stdout)
        shown = json.loads(made.stdout)
        check(module.speed_of(shown), (f"measured {shown['policies']['profile']}",
                                       {shown["budget_bytes"]: shown["tokens_per_s"]}, False), "its speed")
        check(len(module.speed_of(json.loads(plan.stdout))[1]), 2, "the plan's speeds")

        here = importlib.util.find_spec("matplotlib") is not None
        for command, text in ((("hits",), printed), (("heat", folder / "t"), ""), (("timeline", timeline), ""),
                              (("speed", folder / "plan.json", folder / "run.json"), "")):
            out.unlink(missing_ok=True)
            drawn = run(program, "plot", *command, "--out", out, "--title", "a & <b>", input=text)
            if not here:
                check((drawn.returncode, "needs matplotlib" in drawn.stderr), (1, True), "no matplotlib")
                continue
            said = [line for line in drawn.stderr.splitlines() if "font cache" not in line]
            check((drawn.returncode, said), (0, []), command)
            check(out.read_text().rstrip().endswith("</svg>"), True, "a whole picture")
        for command, text, said in ((("hits",), "", "no row with a hit rate"),
                                    (("heat", folder / "plan.json"), "", "not a trace"),
                                    (("speed", folder / "t"), "", ""),
                                    (("hits", "--out", "/nonexistent/x.svg"), printed, "cannot open"),
                                    (("heat", "/nonexistent"), "", "cannot open")):
            refused = run(program, "plot", *command, input=text, cwd=folder)
            check((refused.returncode, len(refused.stderr.splitlines())), (1, 1), command)
            check(not here or said in refused.stderr, True, refused.stderr)
        check(run(program, "plot").returncode, 2, "nothing to plot")
        check(run(program, "plot", "pie").returncode, 2, "an unknown kind")
        check(run(program, "plot", "heat").returncode, 2, "heat of nothing")
    print("plot: passed" + ("" if here else " (nothing drawn: no matplotlib)"))


main()
