#!/usr/bin/env python3
"""tools/gpu/run without a GPU: what goes wrong on a machine, and the whole on the fake driver.

usage: tests/system/tools/gpu_run.py short|all BUILD FOLDER

short   programs that say what the test wants stand in for those of the bundle: a step that hangs, a
        warning before the JSON, no JSON, a cell that fails, a full disk, an end from outside, a
        wrong kernel, other logits, no driver. Each time the summary is whole and the other steps are there. What counts as met,
        and where the model goes, is asked of the functions.
all     everything is packed, moved, and run from there on the driver without a device, with nothing
        in the environment; nothing is written but the four files and the work folder
"""
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

TOP = Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOP / "tools/gpu"))
import steps

ENV = {"PATH": "/nonexistent"}
FILES = {"summary.md", "results.json", "all.log", "results.tar.gz"}


def check(what, good, text=""):
    if not good:
        sys.exit(f"gpu_run: {what}\n{str(text)[-4000:]}")


class Bundle:
    """A folder to run from, and where its runs write."""

    def __init__(self, folder, place):
        self.folder, self.out, self.work = folder, place / "out", place / "work"

    def command(self, *args):
        return [sys.executable, str(self.folder / "tools/gpu/run"), "--dry-run", "--out",
                str(self.out), "--work", str(self.work), *args]

    def run(self, *args, **env):
        process = subprocess.run(self.command(*args), capture_output=True, text=True, cwd="/",
                                 env=dict(ENV, **env), check=False)
        return process.returncode, process.stdout + process.stderr

    def rows(self, text=None):
        """{step and what: line} of a summary that is whole."""
        text = text if text is not None else (self.out / "summary.md").read_text()
        lines = text.splitlines()
        check("no table", lines[:1] == ["| step | verdict | figure | bound | ratio |"], text)
        check("the last line is cut", text.endswith(" |\n"), text)
        return {line.split(" | ")[0].strip("| "): line for line in lines[2:]}


def program(path, text):
    path.write_text("#!" + sys.executable + "\nimport json, os, sys, time\n" + text)
    path.chmod(0o755)


def stand_ins(folder):
    """A bundle whose programs are quick and good."""
    for name in ("tools/gpu/run", "tools/gpu/steps.py", "tools/gpu/pack.py",
                 "tools/make_bench_model"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / name, folder / name)
    (folder / "commit").write_text("made up\n")
    program(folder / "gpu_check_kernels", """
if "--open" in sys.argv:
    print(json.dumps({"open_ms": 1, "image": "PTX", "capability": 90}))
else:
    print("mp_embed 3 cases, 0 wrong\\n3 cases, 0 wrong")
""")
    program(folder / "gpu_check_remap", 'print("beside   ok: 3 remaps, 2 us each")\n')
    program(folder / "gpu_driver_laws", 'print("0 wrong")\n')
    program(folder / "gpu_driver_codes", 'print("init 0")\n')
    program(folder / "moepager",
            'print(json.dumps({"tokens": [1], "values": {}, "trouble": ""}))\n')
    program(folder / "gpu_bench_kernels", 'print("no numbers today")\n')
    program(folder / "gpu_bench_model", """
for budget in sys.argv[sys.argv.index("--budgets") + 1].split(","):
    prompt = int(sys.argv[sys.argv.index("--prompt-tokens") + 1])
    print(json.dumps({"budget": float(budget), "prompt": prompt, "tpot_ms": 2, "ttft_ms": 3,
                      "prefill_per_s": 4, "hit_rate": 1, "graphs": 0.75, "bytes_per_step": 0,
                      "wait_ms_per_step": 0, "waits": 1.5}), flush=True)
""")
    return folder


def a_step_that_hangs(bundle):
    program(bundle.folder / "gpu_check_kernels", """
print("said before", flush=True)
print("also this", file=sys.stderr, flush=True)
time.sleep(1000)
""")
    begin = time.monotonic()
    code, text = bundle.run("--steps", "laws,kernels,remap", "--minutes", "4")
    rows = bundle.rows()
    check("took too long", time.monotonic() - begin < 500, text)
    check("no steps before and behind it", "driver's laws" in str(rows) and "remap: beside" in rows,
          rows)
    check("not late", "| late | not done after" in rows["kernels"], rows)
    log = (bundle.out / "all.log").read_text()
    check("not what it had said", "out said before\n" in log and "err also this\n" in log, log)
    check("late is not wrong", code == 0, text)
    stand_ins(bundle.folder)
    kept = json.loads((bundle.out / "results.json").read_text())
    check("done or not", kept["done"] == ["laws", "remap"], kept["done"])
    code, text = bundle.run("--steps", "kernels")
    rows = bundle.rows()
    check("not gone on with", "| ok | 3 cases, 0 wrong" in rows["kernels: bits as on the CPU"] and
          "remap: beside" in rows, text)


def json_with_company(bundle):
    program(bundle.folder / "moepager", """
print("warning: {this is no JSON")
print("  { nor this }", file=sys.stderr)
print("{ neither is this")
print(json.dumps({"values": {"launch": 7.0}, "trouble": "", "tokens": []}, indent=1))
print("goodbye {}")
""")
    code, text = bundle.run("--steps", "probe,speed,codes")
    rows = bundle.rows()
    check("the figure is lost", "7.0 / - / - us" in rows["probe: launch / graph / hand-off"], rows)
    check("no JSON is no failure", "| WRONG | no JSON" in rows["speed"] and code == 1, rows)
    check("the step behind it is lost", "1 recorded" in str(rows), rows)


def a_cell_that_fails(bundle):
    good = (bundle.folder / "gpu_bench_model").read_text().split("sys, time\n", 1)[1]
    program(bundle.folder / "gpu_bench_model", """
if "lru" in sys.argv and not {"--graphs", "--predict"} & set(sys.argv):
    sys.exit("out of luck")
if "hot-table" in sys.argv:
    print("{ this is cut", flush=True)
    sys.argv[sys.argv.index("--budgets") + 1] = "100"
""" + good)
    code, text = bundle.run("--steps", "model")
    rows = bundle.rows()
    names = ("cost 2.00 ms (100 % hits, 75 % graphs)", "layers 2.00", "hot 2.00")
    check("no cells", all(name in rows["model: batch 1, 100 %"] for name in names), rows)
    check("no waits", "cost 1.5, " in rows["model: batch 1, 100 %: waits of the host"] and
          "host 1.5, gate 1.5 per step" in rows["model: batch 1, 100 %: waits of the host"] and
          "host 2.00 ms, gate 2.00 ms" in rows["model: batch 1, 100 %: graphs off, gate"], rows)
    check("a cell behind is lost", "layers" in rows["model: batch 1, 50 %"] and
          "4 tokens/s" in str(rows), rows)
    check("no word of it", "out of luck" in rows["model: demand, batch 1, prompt 8"] and
          "| WRONG | no JSON" in rows["model: hot b1 p8 100"] and code == 1, rows)
    stand_ins(bundle.folder)
    before = (bundle.out / "all.log").read_text()
    code, text = bundle.run("--steps", "model")
    rows = bundle.rows()
    check("not tried again", "demand 2.00" in rows["model: batch 1, 100 %"] and
          not any(name.startswith("model") and "WRONG" in row for name, row in rows.items()), rows)
    again = (bundle.out / "all.log").read_text()[len(before):].count("gpu_bench_model --model")
    check(f"{again} processes for demand, and hot at 50 %", again == 2, text)


def a_full_disk(bundle):
    program(bundle.folder / "gpu_check_kernels",
            'print("0123456789" * 30000)\nprint("1 cases, 0 wrong")\n')
    bundle.out.mkdir(parents=True, exist_ok=True)
    command = bundle.command("--fresh", "--steps", "laws,kernels,remap")
    words = " ".join(f"'{word}'" for word in command)
    script = f"mount -t tmpfs -o size=96k none '{bundle.out}' || exit 99; {words} >&2; " \
             f"cat '{bundle.out}/summary.md'"
    process = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True,
                             text=True, check=False)
    stand_ins(bundle.folder)
    if process.returncode == 99 or "unshare" in process.stderr.splitlines()[:1]:
        print("a full disk: not tried, this system mounts none")
        return
    rows = bundle.rows(process.stdout)
    check("no word of the disk", "No space left on device" in process.stderr, process.stderr)
    check("not whole", "remap: beside" in rows and "| ok | 1 cases" in
          rows["kernels: bits as on the CPU"], process.stdout)


def an_end_from_outside(bundle):
    program(bundle.folder / "gpu_check_kernels", "time.sleep(1000)\n")
    process = subprocess.Popen(bundle.command("--fresh", "--steps", "laws,kernels"), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", env=ENV)
    for line in process.stdout:
        if line.startswith("kernels"):
            break
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=500)
    check("not interrupted", process.returncode == 130, text)
    check("no table", "laws: driver's laws" in text and
          "laws: driver's laws" in bundle.rows(), text)
    stand_ins(bundle.folder)


def kernels_that_are_needed(bundle):
    """Figures of graph and model count only where no kernel of a step is wrong."""
    good = (bundle.folder / "gpu_check_kernels").read_text().split("sys, time\n", 1)[1]

    def verdicts_with(lines):
        program(bundle.folder / "gpu_check_kernels", good.replace("mp_embed 3 cases, 0 wrong", lines))
        code, text = bundle.run("--steps", "kernels")
        return code, {row.split(" | ")[1] for name, row in bundle.rows().items()
                      if name.startswith("model")}, text

    code, text = bundle.run("--fresh", "--steps", "model")
    before = {row.split(" | ")[1] for name, row in bundle.rows().items() if name.startswith("model")}
    check("not good before", "invalid" not in before, text)
    for name in ("mp_project1_bf16", "mp_route1_bf16", "mp_attend_f32", "mp_sample_list", "mp_sample",
                 "mp_experts_down1_bf16"):
        code, found, text = verdicts_with(f"{name} 3 cases, 1 wrong")
        check(f"{name} is wrong, and the model's rows are {found}", found == {"invalid"} and code == 1, text)
    code, found, text = verdicts_with("mp_tensor_bf16 3 cases, 1 wrong\\nmp_gemv1_q4_k 3 cases, 1 wrong")
    check(f"kernels that the model does not need make its rows {found}", found == before, text)
    program(bundle.folder / "gpu_check_kernels", "sys.exit(5)\n")
    code, text = bundle.run("--steps", "kernels")
    check("check_kernels died", "| invalid | cost 2.00" in bundle.rows()["model: batch 1, 100 %"], text)
    stand_ins(bundle.folder)
    code, text = bundle.run("--steps", "kernels")
    check("right again", "invalid" not in str(bundle.rows()), text)


def ways(bundle):
    """Each way has the tokens of the CPU, and all ways on the device the same logits."""
    good = (bundle.folder / "moepager").read_text().split("sys, time\n", 1)[1]
    logits = "\nif '--logits-out' in sys.argv:\n" \
             "    import array\n" \
             "    with open(sys.argv[sys.argv.index('--logits-out') + 1], 'wb') as file:\n" \
             "        file.write(bytes(10) + array.array('f', %s).tobytes())\n"

    def rows_with(what, more=""):
        program(bundle.folder / "moepager", good + logits % what + more)
        return bundle.run("--steps", "ways"), [row.split(" | ")[1] for name, row in bundle.rows().items()
                                               if name.startswith("ways")]

    (code, text), found = rows_with("[1, -2]")
    check("four ways, and cuBLAS", found == ["ok"] * 4 + ["", "ok"] and code == 0, text)
    (code, text), found = rows_with("[2 if 'off' in sys.argv and 'bf16' in sys.argv else 1]")
    check("graphs off", found == ["ok", "WRONG", "ok", "ok", "", "ok"] and code == 1, text)
    (code, text), found = rows_with("[2 if 'gate' in sys.argv else 1]")
    check("gate", found == ["WRONG"] * 4 + ["", "ok"], text)
    (code, text), found = rows_with("[1, 2.11 if 'cublas' in sys.argv else 2]")
    check("cuBLAS is far off", found == ["ok"] * 4 + ["", "WRONG"] and code == 1, text)
    (code, text), found = rows_with("[1, 2.09 if 'cublas' in sys.argv else 2]")
    check("cuBLAS rounds", found == ["ok"] * 4 + ["", "ok"] and code == 0, text)
    (code, text), found = rows_with("[1]", "sys.exit(2 if 'cublas' in sys.argv else 0)\n")
    check("no cuBLAS", found == ["ok"] * 4 + ["", ""] and code == 0, text)
    program(bundle.folder / "moepager", (good + logits % "[1]").replace(
        '"tokens": [1]', '"tokens": [int("cpu" in sys.argv and "f16" in sys.argv)]'))
    code, text = bundle.run("--steps", "ways")
    check("tokens", "| WRONG | other tokens" in bundle.rows()["ways: KV cache f16"] and
          "| ok | the same tokens" in bundle.rows()["ways: KV cache bf16"], text)
    stand_ins(bundle.folder)


def no_driver(bundle):
    program(bundle.folder / "gpu_check_kernels", 'sys.exit(77)\n')
    code, text = bundle.run("--fresh")
    check("without a driver it is another code", code == 77 and "CUDA is off" in text, text)
    check("the machine is not described", "machine: CPU" in bundle.rows(), text)
    stand_ins(bundle.folder)


def verdicts():
    """`cost` is held against the better one of both static placements, whichever it is."""

    def judge(wait_ms=0.0, **tpot_ms):
        rows = []
        run = SimpleNamespace(args=SimpleNamespace(dry_run=False),
                              row=lambda *row: rows.append(row[1]))
        cells = {name: {"tpot_ms": ms, "hit_rate": 1.0, "bytes_per_step": 50e6, "graphs": 1,
                        "wait_ms_per_step": wait_ms} for name, ms in tpot_ms.items()}
        steps.compare(run, 1, 50, cells, 50.0)
        return rows

    check("faster than both", judge(cost=1.0, layers=2.0, hot=1.0) == ["met", "met"])
    check("within 2 %", judge(cost=1.02, layers=2.0, hot=1.0) == ["met", "met"])
    check("layers are better", judge(cost=1.0, layers=0.9, hot=2.0) == ["missed", "met"])
    check("hot is better", judge(cost=1.0, layers=2.0, hot=0.9) == ["missed", "met"])
    check("the link's bound is 1 ms", judge(1.09, cost=1.0, layers=2.0, hot=2.0) == ["met", "met"])
    check("waits too long", judge(1.11, cost=1.0, layers=2.0, hot=2.0) == ["met", "missed"])
    check("hot is missing", judge(cost=1.0, layers=2.0) == ["", "met"])

    def place(shm, memory, disk):
        return steps.place_model(8, 1 << 30, shm << 30, memory << 30, disk << 30)

    check("memory", place(64, 256, 0) == (True, 8))
    check("a small /dev/shm", place(1, 256, 64) == (False, 8))
    check("fewer layers", place(4, 256, 0) == (True, 3))
    check("little memory", place(64, 10, 64) == (False, 3))
    check("no room", place(0, 256, 0) == (False, 0))
    seconds = sum(share for _, share, _ in steps.STEPS)
    check(f"a call takes {seconds} s", seconds <= 570)


def speeds():
    """Headlines of experts and of a whole layer have a bound."""

    def judge(layer, experts):
        rows = []
        kernels = [{"name": name, "headline": headline, "us": 1.0, "gbps": 1.0, "ratio": experts,
                    "ratio_read": layer}
                   for name, headline in (("layer, project", False), ("layer, all", True),
                                          ("experts bf16", True), ("product bf16", True))]
        run = SimpleNamespace(args=SimpleNamespace(dry_run=False, device=0), bin=Path("bin"),
                              json=lambda *_: {"read_gbps": 1, "copy_gbps": 1, "kernels": kernels},
                              file=lambda *_: None, row=lambda *row: rows.append(row), data={})
        steps.speed(run)
        run.kept = {"data": {"speed": run.data}}
        steps.of_copy(run, {"bytes": 1e6 * layer, "pager_ms": 7 / 6})
        return {row[0].split(":")[0]: row[1] for row in rows}

    met, missed = judge(0.7, 0.85), judge(0.69, 0.84)
    check("as they should be", (met["layer, all"], met["experts bf16"]) == ("met", "met"), met)
    check("slow", (missed["layer, all"], missed["experts bf16"]) == ("missed", "missed"), missed)
    check("a step, as it should be and slow",
          (met["batch 1, bytes over time"], missed["batch 1, bytes over time"]) == ("met", "missed"), missed)
    check("others", missed["product bf16"] == "" and missed["layer, launch by launch"] == "", missed)


def tensor_cores_are_earned():
    """Their cell is there only where check_kernels has launched all of their kernels and found them right."""
    names = [f"mp_tensor_{kind}{name}" for kind in ("", "up_", "down_")
             for name in ("bf16", "f16", "q4_k")]
    lines = [f"{name:20}    4 cases, 0 wrong, 1.5 % of the tolerance\n" for name in names]

    def cells(text, said=None):
        kept = {"kernels": {"tensor": steps.tensor_is_right(text)}} if text is not None else {}
        run = SimpleNamespace(args=SimpleNamespace(dry_run=False), kept={"data": kept},
                              row=lambda *row: said is None or said.append(row[2]))
        return [cell for cell in steps.plan(run) if cell[0] == "tensor"]

    said = []
    check("left out", len(cells("".join(lines), said)) == 1 and not said, said)
    check("not checked", not cells(None, said) and "left out" in said[0], said)
    check("one of them is missing", not cells("".join(lines[1:])))
    check("one of a type is missing", not cells("".join(lines[:-1])))
    check("wrong", not cells("".join(lines[1:]) + lines[0].replace("0 wrong", "1 wrong")))
    check("no case of one", not cells("".join(lines[1:]) + lines[0].replace("4 cases", "0 cases")))


def short(folder):
    bundle = Bundle(stand_ins(folder / "stand-ins"), folder)
    verdicts()
    speeds()
    tensor_cores_are_earned()
    for case in (a_step_that_hangs, json_with_company, a_cell_that_fails, a_full_disk,
                 an_end_from_outside, kernels_that_are_needed, ways, no_driver):
        print(case.__name__, flush=True)
        case(bundle)
    check("other files", {path.name for path in bundle.out.iterdir()} <= FILES)


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def everything(build, folder):
    packed = subprocess.run([TOP / "tools/gpu/run", "--pack", folder / "bundle.tar.gz", "--no-build",
                             "--build", build], check=False)
    check("the bundle is too large", packed.returncode == 0)
    with tarfile.open(folder / "bundle.tar.gz") as tar:
        tar.extractall(folder / "elsewhere")
    bundle = Bundle(folder / "elsewhere/bundle", folder)
    before = files(bundle.folder)
    code, text = bundle.run()
    rows = "".join(f"{name}{line}" for name, line in bundle.rows().items())
    print(text)
    check(f"the dry run ended with {code}", code == 0, text)
    for part in ("8 of 8 settings", "<= 1.02", ">= 0.85 of copy", "cost/static <= 1.02",
                 "project ", " + route ", " + combine ", "| >= 0.7 of read |", "experts bf16 8 of 128, list of 8,",
                 "sample_list, sample of", "KV cache f32 | ok", "KV cache bf16 | ok", "KV cache f16 | ok",
                 "Q4_K_M | ok", "ways: prefill, tensor | ok", "batch 1, bytes over time |", "waits of the host |", "graphs off, gate |",
                 "% graphs)", "batch 1, graph: early / not | ok", "batch 8, graph: early / not | ok", "prefill, own", "prefill, tensor b1 p16 100 |", "driver's error codes", " 0 wrong", "on the device: took part | ok", "CPU: took part | ok",
                 "on the device: text | ok", "CPU: text | ok"):
        check(f"no '{part}' in the table", part in rows, text)
    check("wrote into the bundle", files(bundle.folder) == before)
    check("other files", {path.name for path in bundle.out.iterdir()} == FILES)
    with tarfile.open(bundle.out / "results.tar.gz") as tar:
        check("not all in the archive", {"summary.md", "results.json", "all.log", "driver_laws.txt",
                                         "driver_codes.txt", "probe.json", "model.json"}
              <= set(tar.getnames()), tar.getnames())
    code, again = bundle.run()
    check("done steps are done again", code == 0 and "machine (" not in again, again)
    shutil.rmtree(bundle.folder)


def main():
    folder = Path(sys.argv[3]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if sys.argv[1] == "all":
        everything(Path(sys.argv[2]).resolve(), folder)
    else:
        short(folder)


if __name__ == "__main__":
    main()
