"""What the tests of the interposer share: programs that are not ours, models, runs with and without
the library, and what they must have in common.

Arguments of each test, after its own: PRELOAD WORK, the library and a folder of the build. Programs
come from tools/get_llama; LLAMA_PACKAGES says where they lie, else it is a folder of the user's
cache. A test that cannot have them ends with 77 and the reason.
"""
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/interpose"
SKIPPED = 77
# Of all experts' bytes. The first is below what a layer needs at once in a prompt, and the last
# leaves little to do.
BUDGETS = ("8%", "20%", "40%", "70%", "95%")
QUANTISED = {"qwen-q4": ("qwen", "Q4_K_M"), "qwen-q8": ("qwen", "Q8_0"),
             "oss-mx": ("oss", "MXFP4_MOE"), "odd-q8": ("odd", "Q8_0")}
# How it is learned which experts are read.
SOURCES = ("expert", "router", "touches")
# Types that llama.cpp reorders when it loads them (Q8_0 where the processor has AMX), and then
# computes with in another order of sums: with the library it uses them as they lie in the file, as
# with --no-repack.
REPACKED = ("qwen-q4", "qwen-q8", "odd-q8", "oss-mx")
# What victim_mapping does with a model.
ALL_CHECKS = "bytes,touch,fork,write,readv,signal"


class Failed(Exception):
    """A test has found something."""


class Skip(Exception):
    """Something that the test needs is not here."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


def packages_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LLAMA_PACKAGES") or Path(cache) / "moepager/llama")


class Llama:
    """llama.cpp as tools/get_llama brings it."""

    def __init__(self, kind):
        if os.environ.get("LLAMA_PACKAGES") == "none":
            raise Skip("LLAMA_PACKAGES is none")
        done = subprocess.run([ROOT / "tools/get_llama", kind, packages_folder()], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise Skip(done.stderr.strip())
        self.kind, self.folder = kind, Path(done.stdout.strip())

    def command(self, program, *args):
        """`program` is a name of the package, or a file that was linked with its libraries."""
        path = program if isinstance(program, Path) else self.folder / "bin" / program
        command = [path, *args]
        if self.kind == "debian":
            command = [self.folder / "modules/ld.so", "--library-path", self.folder / "lib",
                       *command]
        return [str(part) for part in command]

    def build(self, name, work):
        """A program of this folder, linked with libllama."""
        program, lib = work / f"{name}-{self.kind}", self.folder / "lib"
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise Skip("no C compiler: set CC")
        names = [next(lib.glob(f"lib{part}.so.0"), lib / f"lib{part}.so").name
                 for part in ("llama", "ggml")]
        done = subprocess.run(
            [compiler, "-O2", "-std=gnu11", HERE / f"{name}.c", HERE / "victim_checks.c", "-I", ROOT,
             "-I", self.folder / "include", "-L", lib, *(f"-l:{part}" for part in names),
             f"-Wl,--allow-shlib-undefined,-rpath,{lib},--disable-new-dtags", "-pthread", "-o",
             program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        expect(done.returncode == 0, f"cannot build {name}:\n{done.stdout}")
        return program

    def model(self, name):
        """A model's file, made once and kept beside the programs; `tiny-split` is its first part."""
        folder = packages_folder() / "models"
        path = folder / f"{name}.gguf"
        if name == "tiny-split":
            path = folder / "tiny-split-00001-of-00010.gguf"
        folder.mkdir(exist_ok=True)
        with open(folder / "lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self.make(name, folder, path)
        return path

    def make(self, name, folder, path):
        base, kind = QUANTISED.get(name, (name.removesuffix("-split"), None))
        subprocess.run([sys.executable, HERE / "make_models.py", folder, base], check=True)
        source = folder / f"{base}.gguf"
        if kind is not None:
            part = path.with_suffix(f".{os.getpid()}")
            run_checked(self.command("llama-quantize", source, part, kind, "2"))
            part.replace(path)
        elif name != base:
            run_checked(self.command("llama-gguf-split", "--split", "--split-max-tensors", "10",
                                     source, folder / name))


def run_checked(command):
    done = run(command, None, None)
    expect(done.status == 0, f"{' '.join(map(str, command))}: exit {done.status}: "
           f"{done.err.strip()[-500:]}")
    return done


class Done:
    def __init__(self, status, out, err, report=None):
        self.status, self.out, self.err, self.report = status, out, err, report


def environment(preload, budget, report=None, **more):
    """Of a run: nothing of ours but what the test says. Threads that wait let others run."""
    env = {key: value for key, value in os.environ.items()
           if not key.startswith(("MOEPAGER_", "LD_PRELOAD", "LLAMA_ARG"))}
    env["OMP_WAIT_POLICY"] = "passive"
    if preload is not None:
        env["LD_PRELOAD"] = str(preload)
    if budget is not None:
        env["MOEPAGER_BUDGET"] = budget
    if report is not None:
        env["MOEPAGER_REPORT"] = str(report)
    return env | more


def run(command, preload, budget, timeout=120, work=None, group=None, **more):
    """To the end. With `work` and a budget also the library's report."""
    report = None if work is None or budget is None else work / f"report-{os.getpid()}.json"
    if report is not None:
        report.unlink(missing_ok=True)
    with subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment(preload, budget, report, **more),
                          preexec_fn=group.enter if group else None) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise Failed(f"{' '.join(map(str, command))} took more than {timeout} s; it wrote "
                         f"{err.decode(errors='replace').strip()[-500:]}") from None
    found = None
    if report is not None and report.exists():
        found = json.loads(report.read_text())
        report.unlink()
    return Done(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"),
                found)


def compile_program(work, name, *sources, flags=()):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise Skip("no C compiler: set CC")
    program = work / name
    done = subprocess.run([compiler, "-O2", "-std=gnu11", *(HERE / source for source in sources), "-I",
                           ROOT, *flags, "-pthread", "-o", program], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return program if done.returncode == 0 else None


def mapper(work):
    program = compile_program(work, "victim_mapping", "victim_mapping.c", "victim_checks.c")
    expect(program is not None, "victim_mapping cannot be built")
    return program


def own_model(work, name="qwen"):
    """A model that the test may change, made without any package."""
    subprocess.run([sys.executable, HERE / "make_models.py", work / "models", name], check=True)
    copy = work / f"{name}-{os.getpid()}.gguf"
    shutil.copyfile(work / f"models/{name}.gguf", copy)
    return copy


def warnings(done):
    return [line for line in done.err.splitlines() if "moepager" in line]


def plain_and_paged(command, preload, work, budgets, view=lambda done: done.out, plain=None,
                    sources=("auto",), **how):
    """What the program shows must be the same without the library and with it at each budget, by
    each of `sources`, and experts must have been paged. `plain` is the command without the library,
    if it is another."""
    first = run(plain or command, None, None, **how)
    label = " ".join(str(part) for part in command[-6:])
    expect(first.status == 0, f"{label}: exit {first.status} without the library: "
           f"{first.err.strip()[-800:]}")
    want = view(first)
    expect(want.strip() != "", f"{label}: the program shows nothing to compare")
    for budget, source in itertools.product(budgets, sources):
        done = run(command, preload, budget, work=work, MOEPAGER_HOOKS=source, **how)
        at = f"{label}: with budget {budget}, {source}"
        expect(done.status == 0, f"{at}: exit {done.status}: {done.err.strip()[-800:]}")
        got = view(done)
        expect(got == want, f"{at} another result:\n{got[-600:]}\nand not\n{want[-600:]}\n"
               f"{done.err.strip()[-400:]}")
        check_report(done, label, budget, source)


def check_report(done, label, budget, source="auto"):
    """Experts were paged, within the budget. Who only sees touches may come too late for that."""
    expect(done.report is not None, f"{label}: no report with budget {budget}: the library was not "
           f"there: {done.err.strip()[-400:]}")
    counters = done.report["counters"]
    expect(source == "touches" or
           (counters["hits"] + counters["misses"] > 0 and done.report["bytes_loaded"] > 0),
           f"{label}: nothing was paged with budget {budget}: {done.report}")


def main(cases, usage):
    """CASE PRELOAD WORK [--full] of the command line, and the exit status."""
    full = "--full" in sys.argv
    args = [arg for arg in sys.argv[1:] if arg != "--full"]
    if len(args) != 3 or args[0] not in cases:
        print(usage, file=sys.stderr)
        return 2
    preload, work = Path(args[1]).resolve(), Path(args[2]).resolve() / "interpose-tests" / args[0]
    work.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    try:
        expect(preload.exists(), f"{preload} is not there")
        cases[args[0]](preload, work, full)
    except Skip as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    except Failed as what:
        print(f"FAILED: {what}")
        return 1
    print(f"passed in {time.monotonic() - start:.1f} s")
    return 0
