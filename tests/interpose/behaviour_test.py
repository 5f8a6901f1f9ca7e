#!/usr/bin/env python3
"""The library in programs and surroundings of all kinds: they end as they would without it.

usage: behaviour_test.py CASE PRELOAD WORK [--full]

  idle       processes that have nothing to do with models, with and without a budget: no output, no
             thread, no file of ours is open, and their start is about as quick
  refused    budgets, reports and policies that are wrong: one warning, and the same result
  alone      the library without its other half beside it
  kills      starts and kills in a row (50, with --full 1,000); the next run is right, nothing is left
  crowd      20 processes on one file
  memory     a memory group of which most is taken: the kernel may end it, else the result is right
  limits     few descriptors, addresses and bytes of files: what runs without the library runs with it
  others     before and behind another preloaded library with the same hooks
  secure     a program that is somebody else when it runs: the library stays out of it
  report     SIGUSR1 in the middle writes it, as JSON or text, and the program goes on; a program
             with a handler of its own for the signal keeps it
  execs      a program that pages becomes another one: its report is written before, the environment
             and paging go on there, and no descriptor of ours; without the environment nothing is paged
  seccomp    userfaultfd and io_uring are refused: it pages; memfd_create too: it says why it does not
  dlopen     libllama behind RTLD_LOCAL, and behind RTLD_DEEPBIND
  static     a program without a dynamic loader
  sanitized  the interposer built with a sanitizer finds nothing in programs of C and in llama.cpp.
             SANITIZED_BUILD is a build folder of it: cmake -DCMAKE_C_COMPILER=gcc
             -DMP_SANITIZE=address|thread, targets moepager_interpose and moepager_safetensors
"""
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import harness
from harness import (ALL_CHECKS, ROOT, Failed, Llama, Skip, compile_program, expect, mapper, own_model,
                     plain_and_paged, run, warnings)

sys.path.insert(0, str(ROOT / "tools"))
from memory_group import MemoryGroup  # noqa: E402

MIB = 1 << 20
TRUE = shutil.which("true")


def time_starts(command, preload, budget, count):
    env = harness.environment(preload, budget)
    start = time.monotonic()
    for _ in range(count):
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        expect(done.returncode == 0 and done.stdout == b"",
               f"exit {done.returncode}: {done.stdout[-300:]}")
    return (time.monotonic() - start) / count


def idle(preload, work, full):
    count = 1000 if full else 100
    time_starts([TRUE], preload, None, 20)
    without = time_starts([TRUE], None, None, count)
    off = time_starts([TRUE], preload, None, count)
    budget = time_starts([TRUE], preload, "1GiB", count)
    print(f"a start takes {1e3 * without:.2f} ms, with the library {1e3 * off:.2f}, "
          f"with a budget too {1e3 * budget:.2f}")
    # Promised are 5 ms on a quiet machine; a busy one may take some times longer.
    expect(off < 2 * without + 0.01 and budget < 2 * without + 0.01, "starts take too long")
    for value in (None, "1GiB"):
        shown = run(["/bin/sh", "-c", "cat /proc/$$/status; ls -l /proc/$$/fd"], preload, value).out
        expect("Threads:\t1\n" in shown, f"a thread of ours in a shell: {shown}")
        expect("memfd" not in shown and "uring" not in shown, f"a file of ours is open: {shown}")


def refused(preload, work, full):
    program, model = mapper(work), own_model(work)
    try:
        for name, value in (("BUDGET", "much"), ("BUDGET", "-1"), ("BUDGET", "1"), ("BUDGET", "0"),
                            ("BUDGET", "99999999T"), ("EVICT", "nobody"), ("PROFILE", "nobody"),
                            ("REPORT", "/nowhere/report.json"), ("REPORT", str(work))):
            env = {"MOEPAGER_BUDGET": "20%", f"MOEPAGER_{name}": value}
            done = run([program, model, "bytes"], preload, None, **env)
            expect(done.status == 0 and done.out == "bytes wrong 0\n",
                   f"{name}={value}: exit {done.status}: {done.out}{done.err}")
            expect(len(done.err.splitlines()) <= 2, f"{name}={value}: much is said: {done.err}")
            if value in ("much", "-1", "nobody"):
                expect(value in done.err, f"{name}={value}: nothing is said of it: {done.err!r}")
            if name == "REPORT":
                expect(len(done.err.splitlines()) == 1 and "no report will be written" in done.err,
                       f"{name}={value}: one line was to say so: {done.err!r}")
        # At the start, not at the end.
        with subprocess.Popen([program, model, "stay"], stderr=subprocess.PIPE, text=True,
                              env=harness.environment(preload, "20%", "/nowhere/report.json")) as process:
            try:
                expect("no report will be written" in process.stderr.readline(), "nothing is said")
            finally:
                process.kill()
    finally:
        model.unlink()


def alone(preload, work, full):
    folder = work / "alone"
    folder.mkdir(exist_ok=True)
    copy = folder / preload.name
    shutil.copyfile(preload, copy)
    program, model = mapper(work), own_model(work)
    try:
        done = run([program, model, "bytes"], copy, "20%")
        expect(done.status == 0 and done.out == "bytes wrong 0\n",
               f"exit {done.status}: {done.out}{done.err}")
        expect(len(done.err.splitlines()) == 1, f"one line was to be said: {done.err!r}")
    finally:
        model.unlink()


def leftovers(work):
    """Other programs come and go in the folder of shared memory, too: MPI's have names like these."""
    return {path for folder in ("/dev/shm", work) for path in Path(folder).iterdir()
            if not path.name.startswith(("sm_segment", "vader_segment", "sem.", "pymp", "psm_",
                                         "torch_"))}


def kills(preload, work, full):
    """At any time from the start to the middle of the work."""
    llama = Llama("debian")
    program = llama.build("victim_logits", work)
    command = llama.command(program, llama.model("tiny"), 2)
    want, before = run(command, None, None).out, leftovers(work)
    start = time.monotonic()
    done = run(command, preload, "20%")
    took = time.monotonic() - start
    expect(done.out == want, f"not even undisturbed: {done.err}")
    rng = random.Random(1)
    for i in range(1000 if full else 50):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=harness.environment(preload, "20%"))
        time.sleep(rng.random() * took)
        process.kill()
        expect(process.wait(30) in (0, -9), f"kill {i}: exit {process.returncode}")
    done = run(command, preload, "20%")
    expect(done.status == 0 and done.out == want, f"after the kills: exit {done.status}: {done.err}")
    expect(leftovers(work) <= before, f"left behind: {leftovers(work) - before}")


def crowd(preload, work, full):
    llama = Llama("debian")
    program = llama.build("victim_logits", work)
    command = llama.command(program, llama.model("tiny"), 1)
    want, got = run(command, None, None).out, [None] * 20

    def one(i):
        try:
            got[i] = run(command, preload, harness.BUDGETS[i % 5], timeout=400).out
        except Failed as what:
            got[i] = what

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(got))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, out in enumerate(got):
        expect(out == want, f"process {i} of {len(got)}: {out} and not {want}")


def check_dense(command, preload, work, group, want):
    """Copies of what is no expert cannot be dropped, so they are made where they leave room."""
    group.set_limit(304 * MIB)
    for budget, kept in (("8%", True), ("95%", False)):
        done = run(command, preload, budget, work=work, group=group, MOEPAGER_LOG="info")
        expect(done.status == 0 and done.out == want, f"budget {budget}: exit {done.status}: {done.err}")
        said = "stay the file's: there is no room for them" in done.err
        expect(said != kept and (kept or done.report["weights_read_bytes"] == 0),
               f"304 MiB, budget {budget}: {done.report}: {done.err}")


def memory(preload, work, full):
    """Without the library the file's pages come and go in what is left; with it they must too."""
    llama = Llama("debian")
    program, group = llama.build("victim_logits", work), MemoryGroup()
    if group.path is None:
        raise Skip("no memory control group: " + "; ".join(group.why))
    command = llama.command(program, llama.model("qwen"), 2)
    want = run(command, None, None).out
    check_dense(command, preload, work, group, want)
    try:
        for limit, budgets in ((200, ("auto", "20%")), (72, ("auto", "20%")), (40, ("auto", "95%"))):
            group.set_limit(limit * MIB)
            plain = run(command, None, None, group=group)
            for budget in budgets:
                done = run(command, preload, budget, group=group)
                print(f"{limit} MiB: without exit {plain.status}, budget {budget} exit {done.status}")
                expect(done.status in (0, -9) and (done.status == -9 or done.out == want),
                       f"{limit} MiB, budget {budget}: exit {done.status}: {done.err[-500:]}")
                expect(done.status == 0 or budget != "auto" or plain.status != 0 or limit < 60,
                       f"{limit} MiB: it runs there, but not with an automatic budget: {done.err}")
    finally:
        group.remove()


def limits(preload, work, full):
    llama = Llama("debian")
    program = llama.build("victim_logits", work)
    command = llama.command(program, llama.model("tiny"), 2, "gen=4", "prompt=16")
    want = run(command, None, None).out
    most = {"n": (4, 5, 6, 7, 8, 10, 16), "v": (80000, 90000, 100000, 120000, 200000, 300000, 600000),
            "f": (100, 10000000)}
    for flag, values in most.items():
        seen = set()
        for value in values:
            limited = ["/bin/sh", "-c", f'ulimit -{flag} {value}; exec "$@"', "sh", *command]
            plain = run(limited, None, None)
            for budget in ("20%", "auto") if full else ("20%",):
                done = run(limited, preload, budget, work=work)
                label = f"ulimit -{flag} {value}, budget {budget}"
                expect(plain.status != 0 or (done.status == 0 and done.out == want),
                       f"{label}: exit {done.status}: {done.err[-500:]}")
                expect(len(warnings(done)) <= 1, f"{label}: much is said: {done.err}")
                expect(done.status != 0 or done.report is not None or budget == "auto" or
                       len(warnings(done)) == 1, f"{label}: neither paged nor said: {done.err}")
                seen.add((plain.status == 0, done.report is not None))
        # Both are there: too little for the library, and enough for it.
        expect({(True, False), (True, True)} <= seen, f"ulimit -{flag}: {seen}")


def others(preload, work, full):
    llama = Llama("debian")
    program = llama.build("victim_logits", work)
    other = compile_program(work, "other_preload.so", "other_preload.c", flags=("-shared", "-fPIC"))
    expect(other is not None, "other_preload.so cannot be built")
    command = llama.command(program, llama.model("tiny"), 2)
    want = run(command, None, None).out
    for order in (f"{other}:{preload}", f"{preload}:{other}"):
        done = run(command, order, "20%", work=work)
        expect(done.status == 0 and done.out == want, f"{order}: exit {done.status}: {done.err}")
        expect(done.err.count("other ") == 1, f"{order}: the other was lost: {done.err}")
        harness.check_report(done, order, "20%")


def secure(preload, work, full):
    if os.getuid() != 0:
        raise Skip("only root can make a program that runs as root")
    model = own_model(work)
    folder = Path("/var/tmp") / f"secure-{os.getpid()}"
    folder.mkdir()
    try:
        program = folder / "victim"
        shutil.copyfile(mapper(work), program)
        program.chmod(0o755 | stat.S_ISUID)
        folder.chmod(0o755)
        copy, report = folder / "model.gguf", folder / "report.json"
        shutil.copyfile(model, copy)
        copy.chmod(0o644)
        env = harness.environment(preload, "20%", report)
        done = subprocess.run([program, copy, "bytes"], env=env, user=65534, group=65534, cwd="/",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        expect(done.returncode == 0 and done.stdout == "bytes wrong 0\n",
               f"exit {done.returncode}: {done.stdout}{done.stderr}")
        expect(not report.exists(), "a file was written with somebody else's rights")
    finally:
        model.unlink()
        shutil.rmtree(folder)


def launcher(work):
    program = compile_program(work, "victim_launch", "victim_launch.c", flags=("-ldl",))
    expect(program is not None, "victim_launch cannot be built")
    return program


def seccomp(preload, work, full):
    llama = Llama("debian")
    program = llama.build("victim_logits", work)
    command = llama.command(program, llama.model("tiny"), 2)
    plain_and_paged([launcher(work), "seccomp", *command], preload, work, harness.BUDGETS[1:2])
    done = run([launcher(work), "no-memfd", *command], preload, "20%")
    expect(done.status == 0 and done.out == run(command, None, None).out,
           f"without memory files: exit {done.status}: {done.err}")
    expect(len(done.err.splitlines()) == 1, f"without memory files one line was to be said: {done.err}")
    # Nothing is paged, so weights are reordered as without us: the last bits of sums show it.
    command = llama.command(program, llama.model("qwen-q4"), 2)
    reordered, plain = run(command, None, None), run([*command, "repack=0"], None, None)
    done = run([launcher(work), "no-memfd", *command], preload, "20%")
    expect(reordered.status == 0 and reordered.out != plain.out, "reordering weights shows nowhere")
    expect(done.status == 0 and done.out == reordered.out,
           f"without memory files weights were not reordered: exit {done.status}: {done.err}")


def dlopen(preload, work, full):
    llama = Llama("debian")
    lib = llama.folder / "lib"
    flags = ("-shared", "-fPIC", "-I", llama.folder / "include", "-L", lib, "-l:libllama.so.0",
             "-l:libggml.so.0", "-Wl,--allow-shlib-undefined")
    library = compile_program(work, "victim_logits.so", "victim_logits.c", "victim_checks.c",
                              flags=flags)
    expect(library is not None, "victim_logits.so cannot be built")
    model = llama.model("tiny")
    want = run(llama.command(launcher(work), "local", library, model, 2), None, None)
    expect(want.status == 0 and "logits" in want.out, f"without the library: {want.err}")
    for how in ("local", "deep"):
        done = run(llama.command(launcher(work), how, library, model, 2), preload, "20%", work=work)
        expect(done.status == 0 and done.out == want.out, f"{how}: exit {done.status}: {done.err}")
        if how == "local":
            harness.check_report(done, how, "20%")


def report_after_signal(program, model, preload, file):
    file.unlink(missing_ok=True)
    env = harness.environment(preload, "20%", file)
    with subprocess.Popen([program, model, "stay"], env=env, stdout=subprocess.PIPE) as process:
        try:
            expect(process.stdout.readline() == b"ready wrong 0\n", "the program is not ready")
            process.send_signal(signal.SIGUSR1)
            end = time.monotonic() + 20
            while not file.exists() and time.monotonic() < end and process.poll() is None:
                time.sleep(0.05)
            expect(process.poll() is None, f"the signal ended it: {process.returncode}")
            expect(file.exists(), "no report after SIGUSR1")
            return file.read_text()
        finally:
            process.kill()


def report(preload, work, full):
    program, model = mapper(work), own_model(work)
    file = work / "report.json"
    try:
        expect("counters" in json.loads(report_after_signal(program, model, preload, file)),
               file.read_text())
        text = report_after_signal(program, model, preload, work / "report.txt").splitlines()
        expect(text[0] == f"model         {model}" and text[-1].startswith("policies ") and
               sum(line.startswith(("hit rate ", "bytes by tier ", "exposed wait ", "unforeseen "))
                   for line in text) == 4, f"as text: {text}")
        for name in (None, file):
            done = run([program, model, "usr1"], preload, "20%", work=work if name else None)
            expect(done.status == 0 and done.out == "usr1 wrong 0\n",
                   f"its own handler: exit {done.status}: {done.out}{done.err}")
    finally:
        model.unlink()


def execs(preload, work, full):
    program, model = mapper(work), own_model(work)
    try:
        before = [program, model, "exec"]
        want = run([*before, program, model, ALL_CHECKS], None, None)
        done = run([*before, program, model, ALL_CHECKS], preload, "20%", work=work)
        expect(done.status == 0 and done.out == want.out and done.out.count("wrong 0") == 7,
               f"exit {done.status}: {done.out}{done.err}")
        expect(done.report is not None and done.report["paged"], f"no report: {done.err}")
        # A shell, not paged: the same variables, plus ours, and the same descriptors.
        shell = [*before, "/bin/sh", "-c", "echo $MOEPAGER_BUDGET; ls /proc/$$/fd"]
        want, done = run(shell, None, None), run(shell, preload, "20%")
        expect(done.status == 0 and done.out.splitlines()[1:] == [
            line or "20%" for line in want.out.splitlines()[1:]], f"{want.out}\n{done.out}{done.err}")
        # Reports on standard error: of the first, and of the second only if it is paged.
        both = [*before, program, model, ALL_CHECKS]
        for command, reports in ((both, 2), ([*both[:3], "/usr/bin/env", "-i", *both[3:]], 1)):
            done = run(command, preload, "20%", MOEPAGER_REPORT="1")
            expect(done.status == 0 and done.out.count("wrong 0") == 7 and
                   done.err.count("exposed wait") == reports,
                   f"{reports} reports: exit {done.status}: {done.out}{done.err}")
        # In files each has its own; another process begins anew.
        for _ in range(2):
            done = run(both, preload, "20%", MOEPAGER_REPORT=str(work / "twice.json"))
            found = sorted(file.name for file in work.glob("twice*"))
            expect(done.status == 0 and found == ["twice.2.json", "twice.json"] and
                   all(json.loads((work / name).read_text())["paged"] for name in found),
                   f"exit {done.status}, {found}: {done.err}")
        for how in ("execl", "execle", "execlp", "execve", "execvp", "execvpe", "fexecve", "execveat",
                    "vfork"):
            done = run([program, model, how, "/bin/echo", "two", "words"], preload, "20%",
                       MOEPAGER_REPORT="1")
            expect(done.status == 0 and done.out.endswith("two words\n") and
                   done.err.count("exposed wait") == 1, f"{how}: exit {done.status}: {done.out}{done.err}")
        # One that fails: the program goes on.
        want, done = (run([*before, "/nowhere"], preload if budget else None, budget)
                      for budget in (None, "20%"))
        expect(want.status == 1 and (done.status, done.out, done.err) == (1, want.out, want.err),
               f"a command that is not there: exit {done.status}: {done.out}{done.err}")
        llama = Llama("debian")
        command = llama.command(llama.build("victim_logits", work), llama.model("tiny"), 2)
        both = [*before, *command]
        want, done = run(both, None, None), run(both, preload, "20%", MOEPAGER_REPORT=str(work / "then.json"))
        expect(done.status == want.status == 0 and done.out == want.out, f"exit {done.status}: {done.out}{done.err}")
        # The first has its report, too; of it touches are all that is seen, and may be too late.
        report = json.loads((work / "then.2.json").read_text())
        expect(report["counters"]["hits"] + report["counters"]["misses"] > 0 and report["bytes_loaded"] > 0,
               f"nothing was paged: {report}")
    finally:
        model.unlink()


def static(preload, work, full):
    program = compile_program(work, "victim_static", "victim_mapping.c", "victim_checks.c",
                              flags=("-static",))
    if program is None:
        raise Skip("no static C library to link with")
    model = own_model(work)
    try:
        done = run([program, model, ALL_CHECKS], preload, "20%")
        expect(done.status == 0 and done.out.count("wrong 0") == 6,
               f"exit {done.status}: {done.out}{done.err}")
        expect(done.err == "", f"something was said: {done.err}")
    finally:
        model.unlink()


# Threads of llama.cpp meet at barriers that a sanitizer does not see: what they have written of
# tensors is read in these functions of ours.
SUPPRESSIONS = """
race:libggml
race:libllama
race_top:ggml_backend_tensor_get
race_top:mp_paged_key
race_top:read_routing
race_top:count_choices
race_top:begin_expert
race_top:begin_work
race_top:take_input
"""


def sanitized(preload, work, full):
    build = os.environ.get("SANITIZED_BUILD")
    if build is None:
        raise Skip("set SANITIZED_BUILD")
    # Hooks are called before a sanitizer has begun, so only what they open has it.
    libraries = list(Path(build).glob("libmoepager_[is]*.so"))
    expect(any("interpose" in path.name for path in libraries), f"no libmoepager_interpose.so in {build}")
    for path in (preload, *libraries):
        shutil.copyfile(path, work / path.name)
    needs = subprocess.run(["ldd", work / "libmoepager_interpose.so"], check=True, text=True,
                           stdout=subprocess.PIPE).stdout
    runtime = [line.split()[2] for line in needs.splitlines() if re.match(r"\s*lib[at]san\.", line)]
    expect(len(runtime) == 1, f"{build} is not built with a sanitizer of gcc: {needs}")
    (work / "suppressions").write_text(SUPPRESSIONS)
    how = {"LD_PRELOAD": f"{runtime[0]}:{work / preload.name}", "MOEPAGER_BUDGET": "20%",
           "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:exitcode=99",
           "TSAN_OPTIONS": f"suppressions={work / 'suppressions'}:exitcode=99"}

    def check(command, **more):
        want = run(command, None, None).out
        done = run(command, None, None, **how, **more)
        expect(done.status == 0 and done.out == want and "Sanitizer" not in done.err and
               "runtime error" not in done.err,
               f"{command[1:]}, {more}: exit {done.status}: {done.out[-200:]}{done.err[-2000:]}")

    model = own_model(work)
    for what in ("bytes,touch,fork,write,readv", "unmap", "advise", "private", "usr1", "truncate", "overwrite"):
        shutil.copyfile(model, work / "copy.gguf")
        check([mapper(work), model, what] if what not in ("truncate", "overwrite") else
              ["/bin/sh", "-c", 'cp "$1" "$2"; "$0" "$2" "$3"', mapper(work), model,
               work / "copy.gguf", what])
    model.unlink()
    llama = Llama("python")
    program = llama.build("victim_logits", work)
    for name, *more in (("tiny",), ("oss",), ("tiny-split",), ("fused", "reload=1"),
                        ("qwen-q8", "check=bytes,touch,fork,write,readv,bytes")):
        command = llama.command(program, llama.model(name), 4, *more)
        for source in harness.SOURCES:
            check(command, MOEPAGER_HOOKS=source)
        check(command, MOEPAGER_URING="off", MOEPAGER_REPORT=str(work / "report.json"),
              MOEPAGER_TRACE=str(work / "trace"), MOEPAGER_TIMELINE=str(work / "timeline.json"))


CASES = {case.__name__: case for case in (idle, refused, alone, kills, crowd, memory, limits, others,
                                          secure, report, execs, seccomp, dlopen, static, sanitized)}

if __name__ == "__main__":
    sys.exit(harness.main(CASES, __doc__))
